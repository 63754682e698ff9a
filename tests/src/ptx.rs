//! Edits of PTX text, for tests that show that a wrong kernel does not pass.

use finite_attention::KernelImages;
use kernels_gpu::abi::{KERNELS, KernelSpec};

/// The PTX of one kernel, in lines.
#[derive(Clone, Debug)]
pub struct Ptx {
    lines: Vec<String>,
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

impl Ptx {
    /// The text that ships.
    ///
    /// # Panics
    /// If there is no such kernel, or no PTX of it.
    pub fn shipped(kernel: &str) -> Self {
        let text = KernelImages::embedded().get(spec(kernel)).unwrap_or_else(|error| panic!("{error}"));
        Ptx { lines: text.lines().map(str::to_owned).collect() }
    }

    /// Lines of the instructions that start with `opcode` (behind a predicate, if they have one) and come from the
    /// source file whose path ends with `file`, inlined or not; from any file if it is empty.
    pub fn find(&self, opcode: &str, file: &str) -> Vec<usize> {
        let mut from_file = file.is_empty();
        let mut found = Vec::new();
        for (number, line) in self.lines.iter().enumerate() {
            let text = line.trim_start();
            if text.starts_with(".loc") && !file.is_empty() {
                // The comment names each place of the chain of inlined calls: `path/file.rs:line:column`.
                from_file = text.contains(&format!("{file}:"));
            } else if from_file && without_predicate(text).starts_with(opcode) {
                found.push(number);
            }
        }
        found
    }

    /// The text after `edit` of the instructions that [`Ptx::find`] gives. `edit` gets the instruction without
    /// its indentation.
    ///
    /// # Panics
    /// If there is no such instruction, or an edit changes nothing.
    pub fn edited(
        &self,
        opcode: &str,
        file: &str,
        which: Which,
        edit: impl Fn(&str) -> String,
    ) -> Self {
        let found = self.find(opcode, file);
        let chosen = match which {
            Which::All => found.as_slice(),
            Which::Number(number) => found.get(number..=number).unwrap_or(&[]),
            Which::Last => found.last().map_or(&[][..], std::slice::from_ref),
        };
        assert!(!chosen.is_empty(), "no `{opcode}` from `{file}` ({which:?}) in the PTX");
        let mut edited = self.clone();
        for &number in chosen {
            let line = self.lines[number].trim();
            let new = edit(line);
            assert_ne!(new, line, "the edit of `{opcode}` changes nothing");
            edited.lines[number] = new;
        }
        edited
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

/// The same comparison, true on both sides of what it was true on one side of: `<` becomes `<=`, `>=` becomes `>`.
///
/// # Panics
/// If the instruction is no comparison of order.
pub fn off_by_one(instruction: &str) -> String {
    let swaps = [(".lt.", ".le."), (".le.", ".lt."), (".gt.", ".ge."), (".ge.", ".gt.")];
    let swap = swaps.into_iter().find(|(from, _)| instruction.contains(from));
    let Some((from, to)) = swap else { panic!("`{instruction}` compares no order") };
    instruction.replacen(from, to, 1)
}

/// The instruction with operand `index` (from 0) replaced.
///
/// # Panics
/// If it has no such operand.
pub fn with_operand(instruction: &str, index: usize, operand: &str) -> String {
    let (head, body) = instruction.trim_end_matches(';').split_once(char::is_whitespace).unwrap_or_default();
    let mut operands: Vec<&str> = body.split(',').map(str::trim).collect();
    assert!(index < operands.len(), "`{instruction}` has no operand {index}");
    operands[index] = operand;
    format!("{head} {};", operands.join(", "))
}
