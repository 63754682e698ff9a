//! PTX in an archive. A kernel's text is long (3 MB with the lines of its source) but says little: the same
//! lines come again and again, in this kernel and in others of its family, with other numbers of registers.
//!
//! So a line is a shape and numbers. Shapes are in the first member of the archive, each once for all texts.
//! A text is the numbers of its shapes, in two or three bytes each, then those of registers and labels, each
//! as how many others of its kind were named since ([`crate::recent`]): that is what code that does the same
//! has in common.

use crate::bytes::Reader;
use crate::lines::Lines;
use crate::recent::Recent;
use crate::{Archive, Error};
use std::sync::OnceLock;

/// The member with the shapes. Another name where texts are written in another way, which no reader then
/// mistakes.
const SHAPES: &str = "shapes.2";

/// What is followed by a number of its own. In a shape, byte 1 + i stands for kind i and its number.
const KINDS: [&str; 8] = ["%r", "%rd", "%rs", "%p", "%f", "%fd", "%rq", "$L__BB0_"];

/// In a shape: the name of the kernel.
const NAME: u8 = 11;

/// Shapes that two bytes can tell apart.
const NARROW: usize = 1 << 16;

/// Bytes of a shape's number.
fn width(shapes: usize) -> usize {
    if shapes <= NARROW { 2 } else { 3 }
}

/// An archive of texts.
pub struct Texts<'a> {
    archive: Archive<'a>,
    shapes: OnceLock<Lines>,
}

impl<'a> Texts<'a> {
    /// Reads the header of an archive.
    ///
    /// # Errors
    /// As [`Archive::open`].
    pub fn open(file: &'a [u8]) -> Result<Self, Error> {
        Ok(Texts { archive: Archive::open(file)?, shapes: OnceLock::new() })
    }

    /// The names of the texts, in their order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.archive.names().filter(|&name| name != SHAPES)
    }

    /// A text, if there is one of this name. The first call expands the shapes, which are kept; every one the
    /// block of the text.
    ///
    /// # Errors
    /// What is wrong with the archive.
    pub fn get(&self, name: &str) -> Result<Option<String>, Error> {
        if name == SHAPES {
            return Ok(None);
        }
        let Some(member) = self.archive.get(name)? else { return Ok(None) };
        let shapes = match self.shapes.get() {
            Some(shapes) => shapes,
            None => {
                let read = Lines::read(&self.archive.get(SHAPES)?.ok_or(Error::NotAnArchive)?)?;
                self.shapes.get_or_init(|| read)
            }
        };
        let text = expand(&member, shapes, name)?;
        String::from_utf8(text).map(Some).map_err(|_| Error::NotText(name.to_owned()))
    }
}

fn expand(member: &[u8], shapes: &Lines, name: &str) -> Result<Vec<u8>, Error> {
    let mut reader = Reader(member);
    let (bytes, lines, width) = (reader.count()?, reader.count()?, width(shapes.len()));
    let numbers = reader.take(lines.checked_mul(width).ok_or(Error::Cut)?)?;
    let mut recent: [Recent; KINDS.len()] = Default::default();
    let mut text = Vec::with_capacity(bytes.min(1 << 26));
    // Most lines say where in the source the next ones are from, and have no marks: each shape is searched
    // once.
    let mut is_plain = vec![None; shapes.len()];
    for (line, number) in numbers.chunks_exact(width).enumerate() {
        if line > 0 {
            text.push(b'\n');
        }
        let number = number.iter().rev().fold(0, |number, &byte| number << 8 | usize::from(byte));
        let mut shape = shapes.get(number)?;
        if *is_plain[number].get_or_insert_with(|| !shape.iter().any(|&byte| is_mark(byte))) {
            text.extend_from_slice(shape);
            continue;
        }
        while let Some(at) = shape.iter().position(|&byte| is_mark(byte)) {
            text.extend_from_slice(&shape[..at]);
            if shape[at] == NAME {
                text.extend_from_slice(name.as_bytes());
            } else {
                let kind = usize::from(shape[at] - 1);
                text.extend_from_slice(KINDS[kind].as_bytes());
                put_decimal(&mut text, recent[kind].read(&mut reader)?);
            }
            shape = &shape[at + 1..];
        }
        text.extend_from_slice(shape);
    }
    Ok(text)
}

/// Whether a byte of a shape stands for something else. Tabs and line ends do not.
fn is_mark(byte: u8) -> bool {
    byte == NAME || (1..=KINDS.len() as u8).contains(&byte)
}

fn put_decimal(text: &mut Vec<u8>, mut number: u64) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return text.extend_from_slice(&digits[at..]);
        }
    }
}

#[cfg(feature = "write")]
pub use write::pack_texts;

#[cfg(feature = "write")]
mod write {
    use super::{Error, KINDS, NAME, SHAPES, is_mark, width};
    use crate::bytes::put;
    use crate::recent::Recent;
    use crate::{container, lines};
    use std::collections::BTreeMap;

    /// A text taken apart: shapes, and numbers.
    struct Parts {
        shapes: Vec<Vec<u8>>,
        numbers: Vec<u8>,
    }

    /// An archive of texts, each a name and a text, in groups that are much alike (as [`crate::pack`]).
    ///
    /// # Errors
    /// [`Error::NotText`], or as [`crate::pack`].
    ///
    /// [`Error::Name`] comes before all else: an empty name would be found at every place of a text.
    pub fn pack_texts<T: AsRef<str>>(groups: &[Vec<(String, T)>]) -> Result<Vec<u8>, Error> {
        let parts = |(name, text): &(String, T)| taken_apart(name, text.as_ref());
        let parts: Vec<Vec<Parts>> =
            groups.iter().map(|group| group.iter().map(parts).collect()).collect::<Result<_, _>>()?;
        let all = parts.iter().flatten().flat_map(|parts| &parts.shapes);
        let mut numbers: BTreeMap<&[u8], usize> = all.map(|shape| (&**shape, 0)).collect();
        numbers.values_mut().zip(0..).for_each(|(number, at)| *number = at);
        let width = width(numbers.len());
        if numbers.len() > 1 << 24 {
            return Err(Error::TooLarge);
        }
        let shapes = lines::put(numbers.keys().copied());
        let mut packed = vec![vec![(SHAPES.to_owned(), shapes)]];
        for (group, parts) in groups.iter().zip(&parts) {
            let member = |((name, text), parts): (&(String, T), &Parts)| {
                let mut bytes = Vec::new();
                put(&mut bytes, text.as_ref().len() as u64);
                put(&mut bytes, parts.shapes.len() as u64);
                for shape in &parts.shapes {
                    bytes.extend(&numbers[&**shape].to_le_bytes()[..width]);
                }
                bytes.extend(&parts.numbers);
                (name.clone(), bytes)
            };
            packed.push(group.iter().zip(parts).map(member).collect());
        }
        container::pack(&packed)
    }

    fn taken_apart(name: &str, text: &str) -> Result<Parts, Error> {
        container::check_name(name)?;
        if text.bytes().any(is_mark) || name == SHAPES {
            return Err(Error::NotText(name.to_owned()));
        }
        let mut recent: [Recent; KINDS.len()] = Default::default();
        let mut parts = Parts { shapes: Vec::new(), numbers: Vec::new() };
        for line in text.split('\n') {
            let (mut shape, mut rest) = (Vec::new(), line);
            while let Some(first) = rest.chars().next() {
                if let Some((kind, number, after)) = numbered(rest) {
                    recent[kind].put(&mut parts.numbers, number);
                    shape.push(1 + kind as u8);
                    rest = after;
                } else if let Some(after) = rest.strip_prefix(name) {
                    shape.push(NAME);
                    rest = after;
                } else {
                    let (taken, after) = rest.split_at(first.len_utf8());
                    shape.extend(taken.as_bytes());
                    rest = after;
                }
            }
            parts.shapes.push(shape);
        }
        Ok(parts)
    }

    /// The kind and number that a text starts with, and what follows: only as the reader would write them.
    fn numbered(text: &str) -> Option<(usize, u64, &str)> {
        const MOST_DIGITS: usize = 9;
        let is_digit = |byte: &u8| byte.is_ascii_digit();
        if !text.starts_with(['%', '$']) {
            return None;
        }
        for (kind, prefix) in KINDS.iter().enumerate() {
            let Some(rest) = text.strip_prefix(prefix) else { continue };
            let digits = rest.bytes().take_while(is_digit).count();
            let is_canonical = digits == 1 || !rest.starts_with('0');
            if (1..=MOST_DIGITS).contains(&digits) && is_canonical {
                return Some((kind, rest[..digits].parse().ok()?, &rest[digits..]));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What comes back of some texts, each a group of its own.
    fn around(texts: &[(&str, &str)]) -> Result<Vec<String>, Error> {
        let groups: Vec<_> =
            texts.iter().map(|(name, text)| vec![((*name).to_owned(), *text)]).collect();
        let file = pack_texts(&groups)?;
        assert_eq!(file, pack_texts(&groups)?);
        let read = Texts::open(&file)?;
        assert!(read.names().eq(texts.iter().map(|(name, _)| *name)));
        texts.iter().map(|(name, _)| Ok(read.get(name)?.expect("it was packed"))).collect()
    }

    #[test]
    fn texts_come_back() {
        let code = "\t.reg .b32 %r<7>;\n\tadd.s32 %r5, %r4, %r10;\n$L__BB0_3: // %bb.1 %r0 %r01 %rq2 %tid.x\n\
                    \tmov.b64 {_, %r3}, %rd999999999;\n\tx %r1234567890 k1 k\n";
        let texts = [("k1", code), ("k2", ""), ("k3", "\n\n"), ("k4", "no end %p0 é %p0")];
        assert_eq!(around(&texts).unwrap(), texts.map(|(_, text)| text.to_owned()));
        assert_eq!(around(&[]).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn control_characters_are_refused() {
        let refused = around(&[("k", "a\u{1}")]).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "k: expected text without control characters other than tabs and line ends"
        );
        assert!(around(&[("k", "\t\r\n\u{c}\u{7f}\0")]).is_ok());
    }

    /// Also an empty one, which every place of a text begins with.
    #[test]
    fn names_have_no_spaces() {
        for name in ["", "a b", "a\n"] {
            assert_eq!(around(&[(name, "text of a b")]), Err(Error::Name(name.to_owned())));
        }
    }

    /// Code that differs in which registers it uses differs in nothing but its first line.
    #[test]
    fn the_same_code_in_other_registers_is_packed_as_the_same() {
        let code = |from: u32| -> String {
            let line = |i: u32| {
                format!("\tadd.f32 %f{}, %f{}, %f{};\n", from + i, from + i - 1, from + i * 7 / 8)
            };
            format!("\tmov.f32 %f{from}, 0;\n") + &(1..5000).map(line).collect::<String>()
        };
        let (one, other) = (code(1), code(70_000));
        let size = |texts: &[&str]| {
            let named = texts.iter().zip(0..).map(|(text, i)| (format!("k{i}"), *text)).collect();
            pack_texts(&[named]).unwrap().len()
        };
        assert!(
            size(&[&one, &other]) < size(&[&one]) + 100,
            "{} {}",
            size(&[&one, &other]),
            size(&[&one])
        );
    }

    proptest! {
        #[test]
        fn any_text_comes_back(text in "([%$](r|rd|p|L__BB0_|f)?[0-9]{0,10}|[ -~é]|name|\n){0,40}") {
            prop_assert_eq!(around(&[("name", &text), ("other", &text)]).unwrap(), [text.clone(), text]);
        }

        #[test]
        fn nonsense_is_an_error_and_no_panic(bytes: Vec<u8>, at in 0usize..400, value: u8) {
            let _ = Texts::open(&bytes).and_then(|texts| texts.get("k"));
            let mut file = pack_texts(&[vec![("k".to_owned(), "%r1 a\n%r2 b\n%rd9")]]).unwrap();
            let length = file.len();
            file[at % length] = value;
            let _ = Texts::open(&file).and_then(|texts| texts.get("k"));
        }
    }
}
