//! Edits of PTX text, for tests that show that a wrong kernel does not pass.

use crate::sources::{Place, chain, goes_through};
use finite_attention::KernelImages;
use kernels_gpu::abi::{KERNELS, KernelSpec, Marker};
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

/// The PTX of one kernel, in lines, of which there are a hundred thousand: those that an edit leaves alone are shared.
#[derive(Clone, Debug)]
pub struct Ptx {
    lines: Vec<Arc<str>>,
}

/// An instruction.
#[derive(Clone, Debug)]
pub struct Site {
    /// Its line, from 0.
    pub line: usize,
    /// Its text without indentation.
    pub text: String,
    /// Where it comes from: the innermost place, then the calls that it was inlined into.
    pub places: Vec<Place>,
}

impl Site {
    /// The instruction without its predicate.
    pub fn instruction(&self) -> &str {
        without_predicate(&self.text)
    }
}

/// Which of the instructions that fit are edited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// All of them.
    All,
    /// The one with this number, from 0.
    Number(usize),
    /// The last one.
    Last,
}

impl Which {
    fn of<T>(self, found: &[T]) -> &[T] {
        match self {
            Which::All => found,
            Which::Number(number) => found.get(number..=number).unwrap_or(&[]),
            Which::Last => found.last().map_or(&[][..], std::slice::from_ref),
        }
    }
}

impl Ptx {
    /// The text that ships.
    ///
    /// # Panics
    /// If there is no such kernel, or no PTX of it.
    pub fn shipped(kernel: &str) -> Self {
        static SHIPPED: LazyLock<Mutex<HashMap<String, Ptx>>> = LazyLock::new(Mutex::default);
        let mut shipped = SHIPPED.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || {
            let text = KernelImages::embedded().get(spec(kernel).into());
            Ptx::new(&text.unwrap_or_else(|error| panic!("{error}")))
        };
        shipped.entry(kernel.to_owned()).or_insert_with(new).clone()
    }

    /// A text, in lines of one instruction.
    pub fn new(text: &str) -> Self {
        Ptx { lines: text.lines().flat_map(single).map(Arc::from).collect() }
    }

    /// The lines.
    pub fn lines(&self) -> &[Arc<str>] {
        &self.lines
    }

    /// The text with other lines in place of some.
    ///
    /// # Panics
    /// If there is no such line.
    pub fn with_lines(&self, lines: &[(usize, String)]) -> Self {
        let mut edited = self.clone();
        for (number, line) in lines {
            edited.lines[*number] = line.as_str().into();
        }
        edited
    }

    /// Every instruction, with the places in the source that it was compiled from.
    pub fn sites(&self) -> Vec<Site> {
        let mut places = Vec::new();
        let mut sites = Vec::new();
        for (line, text) in self.lines.iter().enumerate() {
            let text = text.trim();
            if text.starts_with(".loc") {
                places = text.split_once("//").map_or(Vec::new(), |(_, comment)| chain(comment));
            } else if text.ends_with(';') && !text.starts_with('.') {
                sites.push(Site { line, text: text.to_owned(), places: places.clone() });
            }
        }
        sites
    }

    /// Lines of the instructions that start with `opcode` (behind a predicate, if they have one) and
    /// come from the source file whose path ends with `file`, inlined or not; from any file if it is
    /// empty.
    pub fn find(&self, opcode: &str, file: &str) -> Vec<usize> {
        let mut from_file = file.is_empty();
        let mut found = Vec::new();
        for (number, line) in self.lines.iter().enumerate() {
            let text = line.trim_start();
            if text.starts_with(".loc") && !file.is_empty() {
                // The comment names each place of the chain of inlined calls:
                // `path/file.rs:line:column`.
                from_file = text.contains(&format!("{file}:"));
            } else if from_file && without_predicate(text).starts_with(opcode) {
                found.push(number);
            }
        }
        found
    }

    /// The text after `edit` of the instructions that [`Ptx::find`] gives. `edit` gets the instruction
    /// without its indentation.
    ///
    /// # Panics
    /// If there is no such instruction, or an edit changes nothing.
    pub fn edited(&self, opcode: &str, file: &str, which: Which, edit: impl Fn(&str) -> String) -> Self {
        let found = self.find(opcode, file);
        let chosen = which.of(&found);
        assert!(!chosen.is_empty(), "no `{opcode}` from `{file}` ({which:?}) in the PTX");
        let mut edited = self.clone();
        for &number in chosen {
            let line = self.lines[number].trim();
            let new = edit(line);
            assert_ne!(new, line, "the edit of `{opcode}` changes nothing");
            edited.lines[number] = new.into();
        }
        edited
    }

    /// The text after `edit` of those instructions with this opcode whose chain of inlined calls goes through
    /// these source lines (see [`goes_through`]). `edit` gets the instruction without its predicate.
    ///
    /// # Panics
    /// If there is no such instruction, or an edit changes nothing.
    pub fn edited_at(
        &self,
        opcode: &str,
        through: &[&str],
        which: Which,
        edit: impl Fn(&str) -> String,
    ) -> Self {
        let found = self.find_at(opcode, through);
        let chosen = which.of(&found);
        assert!(
            !chosen.is_empty(),
            "no `{opcode}` ({which:?}) from source lines with {through:?}: the kernel has changed, and the edit has to \
             be thought over"
        );
        let mut edited = self.clone();
        for &number in chosen {
            let instruction = without_predicate(self.lines[number].trim());
            let new = edit(instruction);
            assert_ne!(new, instruction, "the edit of `{opcode}` from {through:?} changes nothing");
            edited.lines[number] = new.into();
        }
        edited
    }

    /// Lines of those of [`Ptx::sites`] that have this opcode and go through these source lines. Chains of no others are
    /// read.
    fn find_at(&self, opcode: &str, through: &[&str]) -> Vec<usize> {
        let (mut places, mut found) = ("", Vec::new());
        for (number, line) in self.lines.iter().enumerate() {
            let text = line.trim();
            if text.starts_with(".loc") {
                places = text.split_once("//").map_or("", |(_, comment)| comment);
            } else if text.ends_with(';')
                && !text.starts_with('.')
                && without_predicate(text).starts_with(opcode)
                && goes_through(&chain(places), through)
            {
                found.push(number);
            }
        }
        found
    }

    /// The text with every `from` replaced by `to`.
    ///
    /// # Panics
    /// If there is none.
    pub fn replaced(&self, from: &str, to: &str) -> Self {
        assert!(self.lines.iter().any(|line| line.contains(from)), "no `{from}` in the PTX");
        Ptx { lines: self.lines.iter().map(|line| line.replace(from, to).into()).collect() }
    }

    /// The kernels of this text in place of those that ship.
    ///
    /// # Panics
    /// If the text has no kernel.
    pub fn images(&self) -> KernelImages {
        KernelImages::with_override(&self.lines.join("\n")).unwrap_or_else(|error| panic!("{error}"))
    }
}

/// The row of the table of kernels with this name.
///
/// # Panics
/// If there is none.
pub fn spec(kernel: &str) -> &'static KernelSpec {
    KERNELS.iter().find(|spec| spec.name == kernel).unwrap_or_else(|| panic!("no kernel {kernel}"))
}

/// The kernel of a variant, by its name: without what is switched on.
pub fn kernel_of(variant: &str) -> &str {
    variant.split_once('+').map_or(variant, |(kernel, _)| kernel)
}

/// A line with two instructions as two lines, without comments behind them; a marker as it is.
fn single(line: &str) -> Vec<String> {
    if matches!(Marker::of_line(line), Ok(Some(_))) {
        return vec![line.to_owned()];
    }
    let code = if line.trim_start().starts_with(['.', '/']) {
        line
    } else {
        line.split("//").next().unwrap_or(line)
    };
    if !code.trim_end().ends_with(';') || !code.contains("; ") {
        return vec![code.to_owned()];
    }
    code.split_inclusive(';').map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

/// `@%p1 bra x;` is `bra x;`.
fn without_predicate(text: &str) -> &str {
    match text.strip_prefix('@').and_then(|rest| rest.split_once(char::is_whitespace)) {
        Some((_, instruction)) => instruction.trim_start(),
        None => text,
    }
}

/// Nothing in place of an instruction.
pub fn dropped(_: &str) -> String {
    String::new()
}

/// The same comparison, true on both sides of what it was true on one side of: `<` becomes `<=`, `>=`
/// becomes `>`.
///
/// # Panics
/// If the instruction is no comparison of order.
pub fn off_by_one(instruction: &str) -> String {
    let swaps = [(".lt.", ".le."), (".le.", ".lt."), (".gt.", ".ge."), (".ge.", ".gt.")];
    let swap = swaps.into_iter().find(|(from, _)| instruction.contains(from));
    let Some((from, to)) = swap else { panic!("`{instruction}` compares no order") };
    instruction.replacen(from, to, 1)
}

/// The instruction, and then 1 added to its result of 32 bits.
pub fn one_more(instruction: &str) -> String {
    let result = operand(instruction, 0);
    format!("{instruction} add.s32 {result}, {result}, 1;")
}

/// Operand `index` (from 0) of an instruction.
///
/// # Panics
/// If it has no such operand.
pub fn operand(instruction: &str, index: usize) -> &str {
    let (_, operands) = opcode_and_operands(instruction);
    operands.get(index).unwrap_or_else(|| panic!("`{instruction}` has no operand {index}"))
}

/// The instruction with operand `index` (from 0) replaced.
///
/// # Panics
/// If it has no such operand.
pub fn with_operand(instruction: &str, index: usize, new: &str) -> String {
    let (opcode, mut operands) = opcode_and_operands(instruction);
    assert!(index < operands.len(), "`{instruction}` has no operand {index}");
    operands[index] = new;
    format!("{opcode} {};", operands.join(", "))
}

/// `add.s32 %r1, %r2, 3;` in its parts.
fn opcode_and_operands(instruction: &str) -> (&str, Vec<&str>) {
    let text = instruction.trim_end().trim_end_matches(';');
    let (opcode, operands) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    (opcode, operands.split(',').map(str::trim).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_are_found_by_opcode_and_file() {
        let text = "\t.loc 1 2 3 // a/mask.rs:2:3 @[ b/kernel.rs:9:9 ]\n\tsetp.lt.u32 \t%p1, %r1, %r2;\n\
                    .loc 1 2 3 // a/store.rs:2:3\n@%p1 setp.lt.u32 %p2, %r1, 7;\nbra x;";
        let ptx = Ptx::new(text);
        assert_eq!(ptx.find("setp.lt", ""), [1, 3]);
        assert_eq!(ptx.find("setp.lt", "a/store.rs"), [3]);
        assert_eq!(ptx.find("setp", "kernel.rs"), [1]);
        assert_eq!(
            &*ptx.edited("setp", "mask.rs", Which::All, off_by_one).lines[1],
            "setp.le.u32 \t%p1, %r1, %r2;"
        );
    }

    #[test]
    fn an_instruction_a_line_each_with_its_places() {
        let ptx = Ptx::new(
            "\t.loc 1 2 3 // a.rs:2:3 @[ b.rs:9:9 ]\n\tfence.a; fence.b; // x\n$L:\n@%p1 bra $L;",
        );
        let sites = ptx.sites();
        let texts: Vec<&str> = sites.iter().map(|site| site.text.as_str()).collect();
        assert_eq!(texts, ["fence.a;", "fence.b;", "@%p1 bra $L;"]);
        assert_eq!(sites[2].instruction(), "bra $L;");
        assert_eq!(sites[1].places.len(), 2);
        assert_eq!(ptx.find_at("fence", &["b.rs: "]), [sites[0].line, sites[1].line]);
        assert_eq!(ptx.find_at("bra", &[]), [sites[2].line]);
        assert!(ptx.find_at("bra", &["c.rs: "]).is_empty());
        let edited = ptx.with_lines(&[(sites[0].line, String::new())]);
        assert_eq!(edited.sites().len(), 2);
    }

    #[test]
    fn markers_stay_what_they_are() {
        let marker = "mov.b32 %r1, 0; // specialize softcap";
        assert_eq!(*Ptx::new(&format!("\tmov.b32 %r2, 0; // 0\n{marker}\n")).lines[1], *marker);
        assert_eq!(kernel_of("forward+softcap+more"), "forward");
    }

    #[test]
    fn operands_are_replaced_by_position() {
        assert_eq!(operand("cp.async [%r1], [%rd2], 16, %r3;", 3), "%r3");
        assert_eq!(with_operand("setp.ge.s32 \t%p1, %r1, %r2;", 2, "0"), "setp.ge.s32 %p1, %r1, 0;");
    }

    #[test]
    #[should_panic = "no `setp.ge` from `mask.rs`"]
    fn an_edit_of_nothing_panics() {
        Ptx { lines: vec!["bra x;".into()] }.edited("setp.ge", "mask.rs", Which::Last, dropped);
    }
}
