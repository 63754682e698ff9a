//! Broken kernels: each is one of those that ship with one thing changed in its PTX, named after what that
//! breaks. Every one is found, for the right reason and at the right line of Rust; what ships is clean under
//! many schedules.
//!
//! A family of kernels is a file with a list. Instructions are chosen by opcode and by the Rust lines that they
//! come from, so a kernel may be compiled again, and a kernel that is written differently says which mutant has
//! to be thought over.

mod backward_sm80;
mod backward_sm90a;
mod forward_sm80;
mod forward_sm90a;

use finite_attention::check::Case;
use finite_attention::driver::emulated::Schedule;
use finite_attention_tests::device::{emulated_arch, schedule_count};
use finite_attention_tests::ptx::{Ptx, Which, operand, with_operand};
use finite_attention_tests::sources::{Place, goes_through};
use finite_attention_tests::verdict::{Finding, Verdict, judge, schedules};
use std::collections::BTreeSet;

/// A kernel with one thing changed.
struct Mutant {
    /// What is broken.
    name: &'static str,
    kernel: &'static str,
    case: Case,
    ptx: Ptx,
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
        Mutant { name, kernel, case, ptx: Ptx::shipped(kernel), found: Vec::new() }
    }

    /// The same in another case.
    fn on(self, case: Case) -> Self {
        Mutant { case, ..self }
    }

    /// One edit, see [`Ptx::edited_at`].
    fn edit(self, opcode: &str, through: &[&str], which: Which, edit: impl Fn(&str) -> String) -> Self {
        Mutant { ptx: self.ptx.edited_at(opcode, through, which, edit), ..self }
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

    /// What is wrong with how it was found; nothing if all is well. Under the first schedule that shows anything.
    fn complaint(&self) -> Option<String> {
        let images = self.ptx.images();
        let run = |schedule| judge(self.kernel, images.clone(), &self.case, schedule);
        let verdict =
            schedules(6).into_iter().map(run).find(|verdict| !matches!(verdict, Verdict::Clean));
        let Some(verdict) = verdict else { return Some(format!("{}: not found", self.name)) };
        let fits = |found: &Found| match found {
            Found::Finding(kind, through) => verdict.has(kind, through),
            Found::Wrong(tensor) => matches!(&verdict, Verdict::Wrong(text) if text.starts_with(tensor)),
        };
        if self.found.iter().any(fits) {
            None
        } else {
            Some(format!("{}: {}", self.name, described(&verdict)))
        }
    }
}

/// A verdict with the source lines of its first findings.
fn described(verdict: &Verdict) -> String {
    let Verdict::Findings(findings) = verdict else { return format!("{verdict:?}") };
    let describe = |finding: &Finding| {
        let lines = finding.places.iter().map(|place| format!("    {}: {}\n", place.file, place.text()));
        format!("\n  {}\n{}", finding.text.lines().next().unwrap_or_default(), lines.collect::<String>())
    };
    findings.iter().take(3).map(describe).collect()
}

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

/// All of a family are found, at least so many. Nothing is done on a GPU, which checks nothing.
fn all_are_found(least: usize, mutants: impl FnOnce() -> Vec<Mutant>) {
    if emulated_arch().is_none() {
        return;
    }
    let mutants = mutants();
    let names: BTreeSet<&str> = mutants.iter().map(|mutant| mutant.name).collect();
    assert!(
        names.len() == mutants.len() && names.len() >= least,
        "{} of {least}: {names:?}",
        mutants.len()
    );
    // In the same cases, what ships is clean.
    let mut healthy: Vec<(&str, &Case)> = Vec::new();
    for Mutant { kernel, case, .. } in &mutants {
        if !healthy.contains(&(*kernel, case)) {
            let verdict = judge(kernel, Ptx::shipped(kernel).images(), case, Schedule::Latest);
            assert!(matches!(verdict, Verdict::Clean), "{kernel}, {case:?}: {}", described(&verdict));
            healthy.push((kernel, case));
        }
    }
    let complaints: Vec<String> = mutants.iter().filter_map(Mutant::complaint).collect();
    assert!(complaints.is_empty(), "{}", complaints.join("\n\n"));
}

/// What ships is clean in these cases, under as many schedules as `FATTN_SCHEDULES` says.
fn shipped_is_clean(kernel: &str, cases: &[Case]) {
    if emulated_arch().is_none() {
        return;
    }
    let images = Ptx::shipped(kernel).images();
    for schedule in schedules(schedule_count().saturating_sub(2)) {
        for case in cases {
            let verdict = judge(kernel, images.clone(), case, schedule);
            let is_clean = matches!(verdict, Verdict::Clean);
            assert!(is_clean, "{kernel}, {schedule:?}, {case:?}: {}", described(&verdict));
        }
    }
}

/// Not on a GPU either: the source need not be there.
#[test]
fn source_lines_are_found_by_their_text() {
    if emulated_arch().is_none() {
        return;
    }
    let file = "tests/tests/zoo/main.rs".to_owned();
    let first = [Place { file: file.clone(), line: 1 }];
    assert!(first[0].text().starts_with("//! Broken kernels"));
    assert!(goes_through(&first, &["Broken", "zoo/main.rs: kernels"]));
    assert!(!goes_through(&first, &["Broken", "other.rs: kernels"]));
    assert_eq!(Place { file, line: 0 }.text(), "");
}
