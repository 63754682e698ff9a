//! Every single edit of a kernel that takes something away which keeps it safe: a barrier, a wait, an arrival,
//! a fence, or the guard of an access.

mod explained;

pub use explained::{EXPLANATIONS, Explanation, explanation};

use crate::ptx::{Ptx, Site, operand};
use crate::verdict::{Shown, Verdict, first, schedules};
use finite_attention::check::Case;
use finite_attention::driver::emulated::Schedule;
use std::collections::HashMap;

/// The kernels that are swept.
pub const KERNELS: [&str; 5] = [
    "forward_bf16_d64_sm80",
    "backward_bf16_d64_sm80",
    "forward_bf16_d128_sm90a",
    "backward_bf16_d128_sm90a",
    "forward_bf16_d128_heads_sm90a",
];

/// What an edit takes away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// Threads of a block or a warp that wait for each other.
    Barrier,
    /// A wait for a copy, a product or a phase.
    Wait,
    /// An arrival, an announcement of bytes, or the end of a group that is waited for.
    Arrival,
    /// A fence.
    Fence,
    /// A predicate, or a branch around the access that follows it.
    Guard,
}

impl Class {
    /// All of them.
    pub const ALL: [Class; 5] =
        [Class::Barrier, Class::Wait, Class::Arrival, Class::Fence, Class::Guard];

    /// The name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Class::Barrier => "barrier",
            Class::Wait => "wait",
            Class::Arrival => "arrival",
            Class::Fence => "fence",
            Class::Guard => "guard",
        }
    }
}

/// One edit.
#[derive(Clone, Debug)]
pub struct Edit {
    /// What is taken away.
    pub class: Class,
    /// From which instruction.
    pub site: Site,
    /// The line in its place.
    pub line: String,
}

/// All edits of a text, in its order.
pub fn edits(ptx: &Ptx) -> Vec<Edit> {
    let sites = ptx.sites();
    let (labels, settings) = (labels(ptx), Settings::of(ptx));
    let edit = |(index, site): (usize, &Site)| {
        let (class, line) =
            taken_away(site).or_else(|| guard(ptx, &sites, index, &labels, &settings))?;
        Some(Edit { class, site: site.clone(), line })
    };
    sites.iter().enumerate().filter_map(edit).collect()
}

/// The class of an instruction that synchronises, and the line without it.
fn taken_away(site: &Site) -> Option<(Class, String)> {
    let text = site.instruction();
    let is = |opcodes: &[&str]| opcodes.iter().any(|opcode| text.starts_with(opcode));
    if is(&["mbarrier.try_wait", "mbarrier.test_wait"]) {
        return Some((Class::Wait, no_wait(text)));
    }
    let class = if is(&["bar.sync", "bar.warp.sync", "barrier.sync", "barrier.cluster"]) {
        Class::Barrier
    } else if is(&["cp.async.wait", "cp.async.bulk.wait", "wgmma.wait", "griddepcontrol.wait"]) {
        Class::Wait
    } else if is(&[
        "mbarrier.arrive",
        "bar.arrive",
        "cp.async.commit",
        "cp.async.bulk.commit",
        "wgmma.commit",
    ]) {
        Class::Arrival
    } else if is(&["fence.", "membar", "wgmma.fence"]) {
        Class::Fence
    } else {
        return None;
    };
    Some((class, String::new()))
}

/// A test of a phase that always says yes.
pub fn no_wait(instruction: &str) -> String {
    let done = operand(instruction, 0);
    format!("setp.eq.u32 {done}, 0, 0;")
}

const ACCESSES: [&str; 6] = ["st.", "ld.global", "cp.async.c", "cp.async.bulk.tensor", "red.", "atom."];

fn is_access(site: &Site) -> bool {
    ACCESSES.iter().any(|opcode| site.instruction().starts_with(opcode))
}

/// The line without a guard: an access without its predicate, or nothing in place of a branch around one.
fn guard(
    ptx: &Ptx,
    sites: &[Site],
    index: usize,
    labels: &HashMap<&str, usize>,
    settings: &Settings,
) -> Option<(Class, String)> {
    let site = &sites[index];
    let instruction = site.instruction();
    if instruction == site.text {
        return None;
    }
    if is_access(site) {
        return Some((Class::Guard, instruction.to_owned()));
    }
    // A branch on a switch, which the host sets, guards nothing.
    let predicate = site.text.trim_start_matches('@').split_whitespace().next()?;
    if settings.is_switch(ptx, predicate, site.line) {
        return None;
    }
    let target =
        instruction.strip_prefix("bra")?.trim_start_matches(".uni").trim().trim_end_matches(';');
    let &target = labels.get(target).filter(|&&target| target > site.line)?;
    // Straight on from the branch: what is behind another branch or a label has a guard of its own.
    let mut next = sites[index + 1..].iter().take_while(|next| next.line < target);
    let is_straight = |next: &&Site| {
        let is_labelled = ptx.lines()[site.line..next.line].iter().any(|line| is_label(line));
        !next.instruction().starts_with("bra") && !is_labelled
    };
    let has_access = next.by_ref().take_while(is_straight).any(is_access);
    has_access.then(|| (Class::Guard, String::new()))
}

/// Lines that set a predicate by comparing, and that move something into a register, by what they set.
#[derive(Default)]
struct Settings<'p> {
    comparisons: HashMap<&'p str, Vec<usize>>,
    moves: HashMap<&'p str, Vec<usize>>,
}

impl<'p> Settings<'p> {
    fn of(ptx: &'p Ptx) -> Self {
        let mut settings = Settings::default();
        for (number, line) in ptx.lines().iter().enumerate() {
            let mut words = line.split_whitespace();
            let lines = match words.next() {
                Some(opcode) if opcode.starts_with("setp.") => &mut settings.comparisons,
                Some("mov.b32") => &mut settings.moves,
                _ => continue,
            };
            if let Some(set) = words.next().and_then(|word| word.strip_suffix(',')) {
                lines.entry(set).or_default().push(number);
            }
        }
        settings
    }

    /// Whether what last set a predicate before a line compares a register that a switch has just set.
    fn is_switch(&self, ptx: &Ptx, predicate: &str, line: usize) -> bool {
        let last = |lines: Option<&Vec<usize>>, end: usize| {
            lines.and_then(|lines| lines[..lines.partition_point(|&line| line < end)].last().copied())
        };
        let Some(comparison) = last(self.comparisons.get(predicate.trim_start_matches('!')), line)
        else {
            return false;
        };
        let compared = operand(ptx.lines()[comparison].trim(), 1);
        let set = last(self.moves.get(compared), comparison);
        set.is_some_and(|line| ptx.lines()[line].contains("// specialize "))
    }
}

fn is_label(line: &str) -> bool {
    line.trim().strip_suffix(':').is_some_and(|name| !name.contains(char::is_whitespace))
}

/// Lines of labels outside of inline assembly, whose labels are many times there.
fn labels(ptx: &Ptx) -> HashMap<&str, usize> {
    let lines = ptx.lines().iter().map(|line| line.trim()).enumerate();
    let named = lines.filter(|(_, line)| line.starts_with('$') && is_label(line));
    named.map(|(number, line)| (line.trim_end_matches(':'), number)).collect()
}

/// Whether anything gives an edit away: what has given others away first. Guards do not depend on the schedule.
pub fn verdict(kernel: &str, shipped: &Ptx, edit: &Edit, cases: &[Case], shown: &mut Shown) -> Verdict {
    let mutant = shipped.with_lines(&[(edit.site.line, edit.line.clone())]).images();
    let schedules = if edit.class == Class::Guard { vec![Schedule::Latest] } else { schedules(6) };
    first(kernel, &mutant, cases, &schedules, shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_keeps_a_kernel_safe_is_taken_away_one_by_one() {
        let ptx = Ptx::new(
            "@%p1 ld.global.b32 %r1, [%rd1];\nbar.sync 0;\nmbarrier.try_wait.shared.b64 %done, [%r1], %r2;\n\
             mbarrier.arrive.shared.b64 _, [%r1];\nfence.proxy.async;\n$BACK:\n@%p2 bra $END;\n\
             add.s32 %r1, %r1, 1;\nst.global.b32 [%rd1], %r1;\n@%p3 bra $BACK;\n@%p4 bra $END;\n$END:\nret;",
        );
        let edits = edits(&ptx);
        let found: Vec<(Class, &str)> =
            edits.iter().map(|edit| (edit.class, edit.line.as_str())).collect();
        let expected = [
            (Class::Guard, "ld.global.b32 %r1, [%rd1];"),
            (Class::Barrier, ""),
            (Class::Wait, "setp.eq.u32 %done, 0, 0;"),
            (Class::Arrival, ""),
            (Class::Fence, ""),
            (Class::Guard, ""),
        ];
        assert_eq!(found, expected);
        assert_eq!(edits[5].site.text, "@%p2 bra $END;");
        let behind_a_switch = Ptx::new(
            "mov.b32 %r1, 0; // specialize bias\nsetp.ne.b32 %p1, %r1, 0;\n@%p1 bra $END;\n\
             st.global.b32 [%rd1], %r1;\n$END:\nret;",
        );
        assert!(super::edits(&behind_a_switch).is_empty());
        assert!(explanation("any", &edits[0]).is_none());
    }
}
