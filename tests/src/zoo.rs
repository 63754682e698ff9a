//! Broken kernels: each is one of those that ship with one thing changed in its PTX, named after what that
//! breaks. Every one is found by the emulator, for the right reason and at the right line of Rust
//! (`tests/tests/zoo.rs`); `benchmarks/sanitizer.py` says what becomes of them on a GPU.
//!
//! A family of kernels is a file with a list. Instructions are chosen by opcode and by the Rust lines that they
//! come from, so a kernel may be compiled again, and a kernel that is written differently says which mutant has
//! to be thought over.

mod backward_sm80;
mod backward_sm90a;
mod backward_wide_sm90a;
mod bias_gradient;
mod dynamic;
mod features;
mod forward_combine;
mod forward_sm80;
mod forward_sm90a;

use crate::device::emulated;
use crate::ptx::{Ptx, Which, operand, spec, with_operand};
use crate::recorder::of_size;
use crate::shapes::ragged;
use crate::verdict::{Finding, Verdict, judge_on, options, schedules};
use finite_attention::Device;
use finite_attention::check::Case;

/// The mutants of some kernels.
#[derive(Clone, Copy)]
pub struct Family {
    /// Kernels that are run in all cases.
    pub kernels: &'static [&'static str],
    /// Cases that go through every part of one of them.
    pub cases: fn(&str) -> Vec<Case>,
    /// Their mutants. The text of none of them is made yet.
    pub mutants: fn() -> Vec<Mutant>,
}

impl Family {
    /// Each kernel of a mutant as it ships, in the case of its first mutant, and then the mutants.
    pub fn all(&self) -> Vec<Mutant> {
        let mutants = (self.mutants)();
        let mut all: Vec<Mutant> = Vec::new();
        for mutant in &mutants {
            if all.iter().all(|shipped| shipped.kernel != mutant.kernel) {
                all.push(mutant.shipped());
            }
        }
        all.extend(mutants);
        all
    }
}

/// All of them.
pub const FAMILIES: [Family; 8] = [
    forward_sm80::FAMILY,
    backward_sm80::FAMILY,
    forward_sm90a::FAMILY,
    backward_sm90a::FAMILY,
    backward_wide_sm90a::FAMILY,
    forward_combine::FAMILY,
    dynamic::FAMILY,
    bias_gradient::FAMILY,
];

/// Where masks work out up to which column a row sees: a `sub.s32`.
pub const VISIBLE_END: &str = "score/mask.rs: let bits = F::columns_before(last - first_column)";

type Edit = Box<dyn Fn(&Ptx) -> Ptx>;

/// A kernel with one thing changed.
pub struct Mutant {
    /// What is broken.
    pub name: &'static str,
    /// The kernel.
    pub kernel: &'static str,
    /// A case that shows it.
    pub case: Case,
    /// The size of the device that is planned for.
    pub multiprocessors: u32,
    edits: Vec<Edit>,
    found: Vec<Found>,
}

/// What gives a mutant away; one of several that it may be.
enum Found {
    /// A finding of this kind, at a place whose chain of calls goes through these lines.
    Finding(&'static str, &'static [&'static str]),
    /// Wrong numbers in this tensor.
    Wrong(&'static str),
}

impl Mutant {
    fn new(name: &'static str, kernel: &'static str, case: Case) -> Self {
        Mutant { name, kernel, case, multiprocessors: 1, edits: Vec::new(), found: Vec::new() }
    }

    /// The same kernel and case with nothing changed.
    fn shipped(&self) -> Self {
        let shipped = Mutant::new("as it ships", self.kernel, self.case.clone());
        shipped.blocks(self.multiprocessors)
    }

    /// The same in another case.
    fn on(self, case: Case) -> Self {
        Mutant { case, ..self }
    }

    /// The same on a device that is planned for as one of so many multiprocessors.
    fn blocks(self, multiprocessors: u32) -> Self {
        Mutant { multiprocessors, ..self }
    }

    /// One edit, see [`Ptx::edited_at`].
    fn edit(
        mut self,
        opcode: &'static str,
        through: &'static [&'static str],
        which: Which,
        edit: impl Fn(&str) -> String + 'static,
    ) -> Self {
        self.edits.push(Box::new(move |ptx| ptx.edited_at(opcode, through, which, &edit)));
        self
    }

    /// Is found by the emulator.
    fn finding(mut self, kind: &'static str, through: &'static [&'static str]) -> Self {
        self.found.push(Found::Finding(kind, through));
        self
    }

    /// Is found by its results.
    fn wrong(mut self, tensor: &'static str) -> Self {
        self.found.push(Found::Wrong(tensor));
        self
    }

    /// The text. Needs the Rust that the kernel was compiled from.
    ///
    /// # Panics
    /// If an edit no longer fits the kernel.
    pub fn ptx(&self) -> Ptx {
        self.edits.iter().fold(Ptx::shipped(self.kernel), |ptx, edit| edit(&ptx))
    }

    /// A name for files: `forward_bf16_d64_sm80.rows_past_the_end_are_stored`.
    pub fn slug(&self) -> String {
        let name: String =
            self.name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
        format!("{}.{}", self.kernel, name.to_lowercase())
    }

    /// What the emulator makes of it, under the first schedule that shows anything.
    pub fn verdict(&self) -> Verdict {
        self.shown().next().unwrap_or(Verdict::Clean)
    }

    /// What the emulator makes of it, under each schedule that shows anything.
    fn shown(&self) -> impl Iterator<Item = Verdict> + '_ {
        let images = self.ptx().images();
        let arch = spec(self.kernel).arch;
        let run = move |schedule| self.judge(&emulated(arch, images.clone(), options(schedule)));
        schedules(24).into_iter().map(run).filter(|verdict| !matches!(verdict, Verdict::Clean))
    }

    /// Runs the case on a device that has the mutant's images, or others.
    pub fn judge(&self, device: &Device) -> Verdict {
        judge_on(&of_size(device, self.multiprocessors), self.kernel, &self.case)
    }

    /// What is wrong with how it was found; nothing if a schedule shows it as it should. Which schedule is the
    /// first to show anything, and what, changes with every other change of the kernel.
    pub fn complaint(&self) -> Option<String> {
        let fits = |found: &Found, verdict: &Verdict| match found {
            Found::Finding(kind, through) => verdict.has(kind, through),
            Found::Wrong(tensor) => matches!(verdict, Verdict::Wrong(text) if text.starts_with(tensor)),
        };
        let is_right = |verdict: &Verdict| self.found.iter().any(|found| fits(found, verdict));
        let mut shown = self.shown();
        let first = shown.next().unwrap_or(Verdict::Clean);
        let is_found = is_right(&first) || shown.any(|verdict| is_right(&verdict));
        (!is_found).then(|| format!("{}, {}: {}", self.kernel, self.name, described(&first)))
    }
}

/// A verdict with the source lines of its first findings.
pub fn described(verdict: &Verdict) -> String {
    let Verdict::Findings(findings) = verdict else { return format!("{verdict:?}") };
    let describe = |finding: &Finding| {
        let lines = finding.places.iter().map(|place| format!("    {}: {}\n", place.file, place.text()));
        format!("\n  {}\n{}", finding.text.lines().next().unwrap_or_default(), lines.collect::<String>())
    };
    findings.iter().take(3).map(describe).collect()
}

/// A comparison of an operand with itself, which is never true.
fn never(line: &str) -> String {
    with_operand(&line.replacen(".geu.", ".gt.", 1), 2, operand(line, 1))
}

/// The result of an instruction on f32 as one of its operands, or a number.
fn result_is(line: &str, value: &str) -> String {
    format!("mov.b32 {}, {value};", operand(line, 0))
}

/// Where the backward reads lse of the columns of its scores.
const LSE: &str = "score/backward.rs: each_element::<F, ROWS, N, 0>(self.lane, self.lse,";
/// Where the backward looks for steep rows: the first that reads lse of a step.
const STATISTIC: &str =
    "references.rs: is_steep |= is_steep_statistic::<E>(f32::from_bits(shared::load_u32(lse";
/// Its vote, a `vote.sync.any`.
const STEEP_VOTE: &str = "references.rs: References { are_needed: warp::any(is_steep & can_be)";
/// Where it reads what the scores of steep rows are relative to, and what is added then: `ld.global.b32`.
const REFERENCE: &str = "references.rs: let reference = global::load_written_f32(address);";
const REST: &str = "references.rs: let rest = global::load_written_f32(";

/// Scores of some 10,000, of which nearly always one takes all.
fn steep(kernel: &str) -> Case {
    Case { amplitude: 100.0, ..ragged(kernel) }
}

/// Scores of 100,000 that hardly differ, so that lse cannot say how many they are.
fn coarse(kernel: &str) -> Case {
    Case { amplitude: 0.01, logit_shift: 1e5, ..ragged(kernel) }
}

/// A vote of which nothing comes.
fn voted_down(line: &str) -> String {
    let [out, any] = [0, 1].map(|index| operand(line, index));
    format!("xor.pred {out}, {any}, {any};")
}

/// 1.0.
const ONE: &str = "0f3F800000";
/// Where it is found out that all scores of a fragment are near 0, compared with the cap: a `setp.geu.f32`.
const ARE_NEAR: &str = "softcap.rs: if warp::any(needs_long | !(math::max(even, odd) < self.near)) {";
/// The polynomial of such scores, `fma.rn.f32` one after the other, up to the factor of the product.
const NEAR: &str = "softcap.rs: products[i] *= horner(&self.short, products[i] * products[i])";
/// What dp - delta is multiplied by because scores are capped: a `fma.rn.sat.f32`.
const SLOPE: &str = "softcap.rs: math::fma_saturated(-score, score, 1.0)";

/// A wait for the other parity.
fn other_parity(line: &str) -> String {
    let parity = operand(line, 2);
    format!("{{ .reg .b32 %other; xor.b32 %other, {parity}, 1; {} }}", with_operand(line, 2, "%other"))
}

/// An instruction with `more` added to one of its operands, a register of this type.
fn moved(line: &str, index: usize, of_type: &str, more: i64) -> String {
    let value = operand(line, index).trim_matches(|c| "[]{}".contains(c)).to_owned();
    let bits = &of_type[1..];
    let moved = with_operand(line, index, &operand(line, index).replace(&value, "%more"));
    format!("{{ .reg .b{bits} %more; add.{of_type} %more, {value}, {more}; {moved} }}")
}
