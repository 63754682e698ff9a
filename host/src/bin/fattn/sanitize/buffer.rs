//! Buffers in global memory: `buf:TYPE:COUNT:CONTENTS` and `file:PATH`, with their options.

use super::argument::{digits, hexadecimal, number, sizes};
use super::element::Element;
use super::error::{Result, SanitizeError, expected};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use safetensors::{Dtype, SafeTensors};
use std::fmt;
use std::path::{Path, PathBuf};

/// Most bytes of a buffer: what a typing error may cost.
const MOST_BYTES: usize = 1 << 31;

/// A buffer before the launch.
#[derive(Clone, Debug, PartialEq)]
pub struct Buffer {
    /// Its name; empty if it is to have that of its parameter.
    pub name: String,
    pub element: Element,
    /// Length in bytes.
    pub bytes: usize,
    /// What is in it; nothing if it starts uninitialised.
    pub contents: Option<Vec<u8>>,
    /// The file that its contents come from.
    pub source: Option<PathBuf>,
    /// Where to write it afterwards.
    pub out: Option<PathBuf>,
    /// Whether an element that is not finite is a finding.
    pub finite: bool,
    /// Whether an element that nothing wrote is a finding.
    pub written: bool,
    /// What it must end with.
    pub expected: Option<Expected>,
}

/// The contents that a buffer must end with: each element within `absolute + relative * |expected|`.
#[derive(Clone, Debug, PartialEq)]
pub struct Expected {
    pub bytes: Vec<u8>,
    pub absolute: f64,
    pub relative: f64,
}

impl Buffer {
    /// Reads `buf:...` or `file:...`.
    pub fn parse(option: &str, text: &str) -> Result<Self> {
        let mut fields = text.split(',');
        let body = fields.next().unwrap_or_default();
        let (mut buffer, is_typed) = match body.split_once(':') {
            Some(("buf", rest)) => (filled(option, rest)?, true),
            Some(("file", path)) => from_file(option, path)?,
            _ => return Err(expected(option, "buf:TYPE:COUNT:CONTENTS or file:PATH", text)),
        };
        let (mut absolute, mut relative) = (None, None);
        for field in fields {
            match field.split_once('=').unwrap_or((field, "")) {
                ("name", name) if is_name(name) => name.clone_into(&mut buffer.name),
                ("name", name) => return Err(expected(option, "a name of letters, digits and _", name)),
                ("out", path) if !path.is_empty() => buffer.out = Some(path.into()),
                ("dtype", dtype) if !is_typed => buffer.element = Element::parse(option, dtype)?,
                ("expect", path) if !path.is_empty() => {
                    let bytes = match path.strip_prefix("hex:") {
                        Some(digits) => hexadecimal(option, digits)?,
                        None => from_file(option, path)?.0.contents.unwrap_or_default(),
                    };
                    buffer.expected = Some(Expected { bytes, absolute: 0.0, relative: 0.0 });
                }
                ("atol", value) => absolute = Some(tolerance(option, "atol", value)?),
                ("rtol", value) => relative = Some(tolerance(option, "rtol", value)?),
                ("finite", "") => buffer.finite = true,
                ("written", "") => buffer.written = true,
                _ => {
                    let what = "name=NAME, out=PATH, expect=PATH, atol=X, rtol=X, finite or written, or \
                                dtype=TYPE for raw bytes";
                    return Err(expected(option, what, field));
                }
            }
        }
        let size = buffer.element.bytes();
        if !buffer.bytes.is_multiple_of(size) {
            let what = format!("a multiple of {size} bytes ({})", buffer.element.name());
            return Err(expected(option, what, buffer.bytes));
        }
        match &mut buffer.expected {
            Some(wanted) if wanted.bytes.len() != buffer.bytes => {
                let what = format!("{} bytes to expect, as many as the buffer has", buffer.bytes);
                return Err(expected(option, what, wanted.bytes.len()));
            }
            Some(wanted) => {
                (wanted.absolute, wanted.relative) = (absolute.unwrap_or(0.0), relative.unwrap_or(0.0));
            }
            None if absolute.is_some() || relative.is_some() => {
                return Err(expected(option, "expect=PATH with a tolerance", "none"));
            }
            None => {}
        }
        if buffer.finite && !buffer.element.is_float() {
            return Err(expected(option, "a type of floats with `finite`", buffer.element.name()));
        }
        Ok(buffer)
    }

    /// Elements.
    pub fn len(&self) -> usize {
        self.bytes / self.element.bytes()
    }
}

impl fmt::Display for Buffer {
    /// The text that [`Buffer::parse`] reads it from, with all bytes in it, and without the file that it is
    /// written to.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "buf:{}:{}:", self.element.name(), self.len())?;
        match &self.contents {
            Some(contents) => write!(f, "hex:{}", digits(contents))?,
            None => write!(f, "uninit")?,
        }
        if !self.name.is_empty() {
            write!(f, ",name={}", self.name)?;
        }
        if let Some(Expected { bytes, absolute, relative }) = &self.expected {
            write!(f, ",expect=hex:{},atol={absolute},rtol={relative}", digits(bytes))?;
        }
        for (name, is_set) in [("finite", self.finite), ("written", self.written)] {
            if is_set {
                write!(f, ",{name}")?;
            }
        }
        Ok(())
    }
}

/// A tolerance: not negative, and a number.
fn tolerance(option: &str, name: &str, text: &str) -> Result<f64> {
    let value = text.parse().ok().filter(|value: &f64| value.is_finite() && *value >= 0.0);
    value.ok_or_else(|| expected(option, format!("a number of at least 0 ({name})"), text))
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || "_$.".contains(c))
}

fn new(element: Element, bytes: usize, contents: Option<Vec<u8>>) -> Buffer {
    let (name, source, out) = (String::new(), None, None);
    let (finite, written, expected) = (false, false, None);
    Buffer { name, element, bytes, contents, source, out, finite, written, expected }
}

/// `f32:1024:zeros`.
fn filled(option: &str, text: &str) -> Result<Buffer> {
    let mut parts = text.splitn(3, ':');
    let (Some(element), Some(count), Some(contents)) = (parts.next(), parts.next(), parts.next()) else {
        return Err(expected(option, "TYPE:COUNT:CONTENTS after buf:", text));
    };
    let element = Element::parse(option, element)?;
    let counts: Vec<usize> = sizes(option, "elements", count)?;
    let bytes = counts.iter().try_fold(element.bytes(), |bytes, &count| bytes.checked_mul(count));
    let Some(bytes) = bytes.filter(|bytes| (1..=MOST_BYTES).contains(bytes)) else {
        return Err(expected(option, format!("1 to {MOST_BYTES} bytes"), count));
    };
    let source = contents.strip_prefix("file:").map(PathBuf::from);
    let contents = contents_of(option, element, bytes / element.bytes(), contents)?;
    match &contents {
        Some(given) if given.len() != bytes => {
            let what = if source.is_some() { "a file of" } else { "hex: of" };
            Err(expected(option, format!("{what} {bytes} bytes"), given.len()))
        }
        _ => Ok(Buffer { source, ..new(element, bytes, contents) }),
    }
}

fn contents_of(option: &str, element: Element, count: usize, text: &str) -> Result<Option<Vec<u8>>> {
    let (kind, value) = text.split_once(':').unwrap_or((text, ""));
    let has_value = text.contains(':');
    let bytes = match (kind, has_value) {
        ("uninit", false) => return Ok(None),
        ("zeros", false) => vec![0; count * element.bytes()],
        ("nan", false) if !element.is_float() => {
            return Err(expected(option, "a type of floats with `nan`", element.name()));
        }
        ("nan", false) => element.of_float(f64::NAN).repeat(count),
        ("iota", false) => (0..count).flat_map(|index| element.of_integer(index as i128)).collect(),
        ("fill", true) => element.value(option, value)?.repeat(count),
        ("random", true) => random(element, count, number(option, "seed", value)?),
        ("file", true) => read(option, Path::new(value))?,
        ("hex", true) => hexadecimal(option, value)?,
        _ => {
            let what = "zeros, uninit, nan, iota, random:SEED, fill:NUMBER, file:PATH or hex:DIGITS";
            return Err(expected(option, what, text));
        }
    };
    Ok(Some(bytes))
}

/// Floats of -1 to 1, integers of all bits.
fn random(element: Element, count: usize, seed: u64) -> Vec<u8> {
    let mut random = StdRng::seed_from_u64(seed);
    let draw = |_| {
        if element.is_float() {
            element.of_float(random.random_range(-1.0..=1.0))
        } else {
            element.of_integer(random.random::<u64>().into())
        }
    };
    (0..count).flat_map(draw).collect()
}

fn read(option: &str, path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|error| SanitizeError::File {
        option: option.to_owned(),
        path: path.to_owned(),
        error,
    })
}

/// A file, or a tensor of one: the buffer, and whether its type is known.
fn from_file(option: &str, text: &str) -> Result<(Buffer, bool)> {
    let Some((path, name)) = text.rsplit_once('#') else {
        let contents = read(option, Path::new(text))?;
        if contents.is_empty() {
            return Err(expected(option, "a file that is not empty", text));
        }
        let buffer = new(Element::U8, contents.len(), Some(contents));
        return Ok((Buffer { source: Some(text.into()), ..buffer }, false));
    };
    let path = Path::new(path);
    let file = read(option, path)?;
    let refused =
        |error| SanitizeError::Safetensors { option: option.to_owned(), path: path.to_owned(), error };
    let file = SafeTensors::deserialize(&file).map_err(refused)?;
    let Ok(tensor) = file.tensor(name) else {
        let mut names = file.names();
        names.sort_unstable();
        return Err(expected(option, format!("a tensor of the file: {}", names.join(", ")), name));
    };
    let element = match tensor.dtype() {
        Dtype::U8 | Dtype::BOOL => Element::U8,
        Dtype::I8 => Element::I8,
        Dtype::U16 => Element::U16,
        Dtype::I16 => Element::I16,
        Dtype::U32 => Element::U32,
        Dtype::I32 => Element::I32,
        Dtype::U64 => Element::U64,
        Dtype::I64 => Element::I64,
        Dtype::F16 => Element::F16,
        Dtype::BF16 => Element::Bf16,
        Dtype::F32 => Element::F32,
        Dtype::F64 => Element::F64,
        other => {
            let what = format!("a tensor of {}", super::element::NAMES);
            return Err(expected(option, what, format!("{other:?}").to_lowercase()));
        }
    };
    let bytes = tensor.data().len();
    if bytes == 0 {
        return Err(expected(option, "a tensor that is not empty", name));
    }
    let buffer = new(element, bytes, Some(tensor.data().to_vec()));
    Ok((Buffer { source: Some(path.to_owned()), ..buffer }, true))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Buffer {
        Buffer::parse("--arg", text).unwrap()
    }

    fn refusal(text: &str) -> String {
        Buffer::parse("--arg", text).unwrap_err().to_string()
    }

    #[test]
    fn contents() {
        let bytes = |text: &str| parse(text).contents.unwrap();
        assert_eq!(parse("buf:f32:4:uninit").contents, None);
        assert_eq!(bytes("buf:f32:2x2:zeros"), [0; 16]);
        assert_eq!(bytes("buf:u16:3:iota"), [0, 0, 1, 0, 2, 0]);
        assert_eq!(bytes("buf:u8:2:fill:0x7f"), [0x7f, 0x7f]);
        assert!(bytes("buf:bf16:2:nan").chunks(2).all(|chunk| Element::Bf16.text(chunk) == "NaN"));
        let random = bytes("buf:f32:64:random:7");
        assert_eq!(random, bytes("buf:f32:64:random:7"));
        assert_ne!(random, bytes("buf:f32:64:random:8"));
        let numbers = random.chunks(4).map(|four| f32::from_le_bytes(four.try_into().unwrap()));
        assert!(
            numbers.clone().all(|number| number.abs() <= 1.0) && numbers.into_iter().any(|n| n < 0.0)
        );
    }

    #[test]
    fn options() {
        let buffer = parse("buf:f32:4:uninit,name=dv,out=dv.bin,finite,written");
        assert_eq!((buffer.name.as_str(), buffer.len(), buffer.bytes), ("dv", 4, 16));
        assert_eq!(buffer.out, Some("dv.bin".into()));
        assert!(buffer.finite && buffer.written);
    }

    /// Files of tensors with bytes changed, cut off and doubled: an error or a buffer, and no panic.
    /// `PTX_FUZZ` files.
    #[test]
    fn mutated_files_of_tensors_are_read_or_refused() {
        let data: Vec<u8> = (0..96).collect();
        let view = |dtype, bytes: std::ops::Range<usize>, shape: &[usize]| {
            safetensors::tensor::TensorView::new(dtype, shape.to_vec(), &data[bytes]).unwrap()
        };
        let views = [("a", view(Dtype::F32, 0..48, &[3, 4])), ("b", view(Dtype::BF16, 48..96, &[24]))];
        let whole = safetensors::serialize(views, None).unwrap();
        let count = std::env::var("PTX_FUZZ").ok().and_then(|count| count.parse().ok()).unwrap_or(1000);
        let path = std::env::temp_dir().join(format!("fattn-sanitize-fuzz-{}", std::process::id()));
        let mut random = StdRng::seed_from_u64(1);
        for _ in 0..count {
            let mut bytes = whole.clone();
            for _ in 0..random.random_range(1..6) {
                let at = random.random_range(0..bytes.len());
                match random.random_range(0..4) {
                    0 => bytes[at] = random.random(),
                    1 => bytes[at] ^= 1 << random.random_range(0..8),
                    2 => bytes.truncate(at.max(1)),
                    _ => bytes.extend_from_within(at..),
                }
            }
            std::fs::write(&path, &bytes).unwrap();
            for name in ["a", "b", ""] {
                if let Ok(buffer) = Buffer::parse("--arg", &format!("file:{}#{name}", path.display())) {
                    assert!(buffer.bytes <= bytes.len());
                }
            }
        }
        let _ = std::fs::remove_file(&path);
    }

    #[test]
    fn what_is_no_buffer_is_refused_with_what_could_stand_there() {
        for (text, error) in [
            ("buf:f32:4", "TYPE:COUNT:CONTENTS after buf:, got `f32:4`"),
            ("buf:f32:0:zeros", "1 to 2147483648 bytes, got `0`"),
            (
                "buf:f64:99999999999x99999999999:zeros",
                "1 to 2147483648 bytes, got `99999999999x99999999999`",
            ),
            (
                "buf:f32:4:ones",
                "zeros, uninit, nan, iota, random:SEED, fill:NUMBER, file:PATH or hex:DIGITS, got `ones`",
            ),
            (
                "buf:f32:4:random",
                "zeros, uninit, nan, iota, random:SEED, fill:NUMBER, file:PATH or hex:DIGITS, got `random`",
            ),
            ("buf:f32:4:random:x", "a number (seed), got `x`"),
            ("buf:u32:4:nan", "a type of floats with `nan`, got `u32`"),
            ("buf:u32:4:zeros,finite", "a type of floats with `finite`, got `u32`"),
            ("buf:u8:4:fill:300", "0 to 255 (u8), got `300`"),
            ("buf:u8:4:zeros,name=a b", "a name of letters, digits and _, got `a b`"),
            (
                "buf:u8:4:zeros,dtype=f32",
                "name=NAME, out=PATH, expect=PATH, atol=X, rtol=X, finite or written, or \
                 dtype=TYPE for raw bytes, got `dtype=f32`",
            ),
            ("u32:5", "buf:TYPE:COUNT:CONTENTS or file:PATH, got `u32:5`"),
        ] {
            assert_eq!(refusal(text), format!("--arg: expected {error}"));
        }
        let missing = refusal("file:nowhere/at.all");
        assert!(missing.starts_with("--arg: nowhere/at.all: "), "{missing}");
    }
}
