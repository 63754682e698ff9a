//! Random cases together with the schedule in which the emulator runs them.

use crate::cases::{CaseTree, Cases};
use finite_attention::check::Case;
use finite_attention::driver::emulated::Schedule;
use kernels_gpu::abi::Arch;
use proptest::strategy::{NewTree, Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use rand::Rng as _;

/// Random schedules that a smaller case is tried under: what one of them showed of a case, another one may show of a
/// smaller one.
const SEEDS: u64 = 6;

/// A case and how it is run.
#[derive(Clone, Debug, PartialEq)]
pub struct Attempt {
    /// The case.
    pub case: Case,
    /// The schedules under which it is run, the latest first. On a GPU there are none to choose.
    pub schedules: Vec<Schedule>,
    /// The target that the emulator runs it for; of a GPU none is chosen.
    pub arch: Option<Arch>,
}

/// Attempts at cases: each under the latest schedule, which shows most, every other one under the eager or a random one
/// too. Case and schedule shrink together.
#[derive(Clone, Debug)]
pub struct Attempts {
    /// The cases.
    pub cases: Cases,
    /// Targets of the emulator, of which each case gets one; none on a GPU.
    pub archs: Vec<Arch>,
}

impl Strategy for Attempts {
    type Tree = AttemptTree;
    type Value = Attempt;

    fn new_tree(&self, runner: &mut TestRunner) -> NewTree<Self> {
        let case = self.cases.new_tree(runner)?;
        let random = runner.rng().next_u64();
        let schedules = match random % 4 {
            _ if self.archs.is_empty() => Vec::new(),
            0 => vec![Schedule::Latest, Schedule::Eager],
            1 => vec![Schedule::Latest, Schedule::Random(random >> 48)],
            _ => vec![Schedule::Latest],
        };
        // From bits that nothing else is drawn from.
        let arch = (random >> 16) as usize % self.archs.len().max(1);
        Ok(AttemptTree { case, schedules, arch: self.archs.get(arch).copied() })
    }
}

/// An attempt and how it becomes simpler.
#[derive(Debug)]
pub struct AttemptTree {
    case: CaseTree,
    schedules: Vec<Schedule>,
    arch: Option<Arch>,
}

impl AttemptTree {
    /// From now on a random schedule stands for several.
    fn widen(&mut self) {
        if let [Schedule::Latest, Schedule::Random(seed)] = self.schedules[..] {
            self.schedules.push(Schedule::Eager);
            self.schedules.extend((1..SEEDS).map(|step| Schedule::Random(seed + step)));
        }
    }
}

impl ValueTree for AttemptTree {
    type Value = Attempt;

    fn current(&self) -> Attempt {
        Attempt { case: self.case.current(), schedules: self.schedules.clone(), arch: self.arch }
    }

    fn simplify(&mut self) -> bool {
        self.widen();
        self.case.simplify()
    }

    fn complicate(&mut self) -> bool {
        self.case.complicate()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases::smallest;

    fn smallest_attempt(fails: impl Fn(Schedule, &Case) -> bool) -> Attempt {
        let attempts = Attempts { cases: Cases::changed(|_| ()), archs: Arch::ALL.to_vec() };
        smallest(attempts, |Attempt { case, schedules, .. }| {
            schedules.iter().any(|&schedule| fails(schedule, case))
        })
    }

    /// A schedule shows a case only if their numbers have something in common, as with a real race.
    #[test]
    fn case_and_random_schedule_shrink_together() {
        let attempt = smallest_attempt(|schedule, case| {
            let shows = |seed: u64| (seed + case.key_rows as u64).is_multiple_of(3);
            matches!(schedule, Schedule::Random(seed) if shows(seed)) && case.key_rows >= 40
        });
        assert_eq!(attempt.case.key_rows, 40);
        assert!(attempt.schedules.len() == 2 + SEEDS as usize);
    }

    #[test]
    fn cases_are_drawn_for_both_targets_and_stay_with_theirs() {
        let attempts = Attempts { cases: Cases::changed(|_| ()), archs: Arch::ALL.to_vec() };
        for arch in Arch::ALL {
            let attempt = smallest(attempts.clone(), |attempt| attempt.arch == Some(arch));
            assert_eq!(attempt.arch, Some(arch));
        }
        let attempts = Attempts { cases: Cases::changed(|_| ()), archs: Vec::new() };
        let attempt = smallest(attempts, |attempt| attempt.schedules.is_empty());
        assert_eq!(attempt.arch, None);
    }

    #[test]
    fn a_failure_under_any_schedule_is_one_under_the_simplest() {
        let attempt = smallest_attempt(|_, case| case.key_rows >= 40);
        assert_eq!(attempt.case.key_rows, 40);
        assert_eq!(attempt.schedules[0], Schedule::Latest);
    }
}
