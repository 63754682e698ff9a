//! Takes away every barrier, wait, arrival, fence and guard of some kernels, one at a time, and says which of
//! these edits show in the suite's cases.
//!
//! ```text
//! mutate [--write FILE] [KERNEL]...
//! ```
//!
//! Exit code 1 if an edit shows in nothing and nobody has said why the kernel is as good without; and, of all kernels,
//! if all that somebody has said that of do show.

use finite_attention_tests::ptx::{Ptx, spec};
use finite_attention_tests::shapes::cases;
use finite_attention_tests::sweep::{
    Class, EXPLANATIONS, Edit, Explanation, KERNELS, edits, explanation, verdict,
};
use finite_attention_tests::verdict::{Shown, Verdict, first, schedules};
use std::fmt::Write as _;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::available_parallelism;

/// Edits of a kernel, each with how it shows.
struct Swept {
    kernel: &'static str,
    edits: Vec<(Edit, Verdict)>,
}

fn main() -> ExitCode {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let file = arguments.iter().position(|argument| argument == "--write").map(|at| {
        assert!(at + 1 < arguments.len(), "--write: expected a file");
        arguments.drain(at..at + 2).nth(1).unwrap_or_default()
    });
    let named: Vec<&'static str> = arguments.iter().map(|name| spec(name).name).collect();
    let all = named.is_empty();
    let kernels = if all { KERNELS.to_vec() } else { named };
    let swept: Vec<Swept> = kernels.into_iter().map(sweep).collect();
    let report = report(&swept);
    print!("{report}");
    if let Some(file) = file
        && let Err(error) = std::fs::write(&file, &report)
    {
        eprintln!("--write {file}: {error}");
        return ExitCode::from(2);
    }
    let needed: Vec<_> =
        swept.iter().flat_map(|swept| swept.missed().map(|edit| swept.explanation(edit))).collect();
    let idle: Vec<_> =
        EXPLANATIONS.iter().filter(|&known| all && !needed.contains(&Some(known))).collect();
    idle.iter().for_each(|known| eprintln!("what this explains does show: {known:?}"));
    if needed.iter().all(Option::is_some) && idle.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Tries every edit, on all cores.
fn sweep(kernel: &'static str) -> Swept {
    let shipped = Ptx::shipped(kernel);
    let cases = cases(kernel);
    let shipped_as_it_is =
        first(kernel, &shipped.images(), &cases, &schedules(0), &mut Shown::default());
    let is_clean = matches!(shipped_as_it_is, Verdict::Clean);
    assert!(is_clean, "what ships is not clean: {kernel}: {shipped_as_it_is:?}");
    let all = edits(&shipped);
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || loop {
        let index = next.fetch_add(1, Ordering::Relaxed);
        let Some(edit) = all.get(index) else { return };
        // Each for itself: how an edit shows does not depend on which others were tried before.
        let verdict = verdict(kernel, &shipped, edit, &cases, &mut Shown::default());
        eprintln!("{kernel} {index}/{}: {}: {}", all.len(), edit.site.text, verdict.summary());
        done.lock().unwrap_or_else(PoisonError::into_inner).push((index, edit.clone(), verdict));
    };
    std::thread::scope(|scope| {
        for _ in 0..available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(index, ..)| *index);
    Swept { kernel, edits: done.into_iter().map(|(_, edit, verdict)| (edit, verdict)).collect() }
}

/// Edits that show, by the emulator or by results; that show in nothing although they matter; and that change
/// nothing.
#[derive(Default)]
struct Counts {
    by_emulator: usize,
    by_results: usize,
    unseen: usize,
    equivalent: usize,
}

impl Counts {
    /// Of edits with their kernel.
    fn of<'e>(edits: impl Iterator<Item = (&'static str, &'e (Edit, Verdict))>) -> Self {
        let mut counts = Counts::default();
        for (kernel, (edit, verdict)) in edits {
            *match verdict {
                Verdict::Clean if explanation(kernel, edit).is_some() => &mut counts.equivalent,
                Verdict::Clean => &mut counts.unseen,
                Verdict::Wrong(_) => &mut counts.by_results,
                Verdict::Findings(_) | Verdict::Refused(_) => &mut counts.by_emulator,
            } += 1;
        }
        counts
    }

    fn row(&self, name: &str) -> String {
        let Counts { by_emulator, by_results, unseen, equivalent } = self;
        let found = by_emulator + by_results;
        let edits = found + unseen + equivalent;
        let share = 100.0 * found as f64 / (found + unseen).max(1) as f64;
        format!(
            "| {name} | {edits} | {by_emulator} | {by_results} | {unseen} | {equivalent} | {share:.1} % |\n"
        )
    }
}

impl Swept {
    /// Why an edit changes nothing, if it is known that it does not.
    fn explanation(&self, edit: &Edit) -> Option<&'static Explanation> {
        explanation(self.kernel, edit)
    }

    /// The edits that show in nothing.
    fn missed(&self) -> impl Iterator<Item = &Edit> {
        self.edits.iter().filter_map(|(edit, verdict)| matches!(verdict, Verdict::Clean).then_some(edit))
    }
}

const HEAD: &str = "| | edits | found by a finding | found by results | not found | equivalent | share |\n|--|--|--|--|--|--|--|\n";

/// The tables, in Markdown.
fn report(swept: &[Swept]) -> String {
    let mut text = String::from(
        "# What takes a kernel's safety away, and what shows it\n\n\
         Written by `cargo xtask mutate`. Each edit takes one barrier, wait, arrival, fence or guard of an access out\n\
         of the PTX that ships; then the kernel runs the cases of `tests/src/shapes.rs` in the emulator, under the\n\
         latest, the eager and six random schedules (guards under the latest only), until something shows: a finding\n\
         of the emulator, or numbers beyond the tolerance rule. What does not show there runs where three blocks share\n\
         out the tiles, with counters and without, and with gradients that must have the same bits, under 64 random\n\
         schedules more. The share is that of edits that change what the kernel does.\n\n",
    );
    text += HEAD;
    for Swept { kernel, edits } in swept {
        text += &Counts::of(edits.iter().map(|edit| (*kernel, edit))).row(kernel);
    }
    let all = swept.iter().flat_map(|swept| swept.edits.iter().map(|edit| (swept.kernel, edit)));
    text += &Counts::of(all).row("all");
    for swept @ Swept { kernel, edits } in swept {
        // Writing to a String cannot fail.
        let _ = write!(text, "\n## {kernel}\n\n{HEAD}");
        for class in Class::ALL {
            let of_class = || edits.iter().filter(|(edit, _)| edit.class == class);
            if of_class().count() > 0 {
                text += &Counts::of(of_class().map(|edit| (*kernel, edit))).row(class.name());
            }
        }
        text += &missed(swept);
    }
    text
}

/// The edits that show in nothing, those of one reason together.
fn missed(swept: &Swept) -> String {
    let mut reasons: Vec<(String, Vec<String>)> = Vec::new();
    for edit in swept.missed() {
        let reason = match swept.explanation(edit) {
            Some(known) => format!("Equivalent: {}.", known.why),
            None => "Not found, and nobody has said why.".to_owned(),
        };
        let ours = edit.site.places.iter().find(|place| !place.file.contains("/arch/"));
        let place = ours.map_or(String::new(), |place| {
            let file = place.file.trim_start_matches("kernels-gpu/src/");
            format!(" from {file}: `{}`", place.text())
        });
        let opcode = edit.site.instruction().split(char::is_whitespace).next().unwrap_or_default();
        let line = format!("- `{}`{place}\n", opcode.trim_end_matches(';'));
        match reasons.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, lines)) => lines.push(line),
            None => reasons.push((reason, vec![line])),
        }
    }
    reasons.into_iter().map(|(reason, lines)| format!("\n{reason}\n\n{}", lines.concat())).collect()
}
