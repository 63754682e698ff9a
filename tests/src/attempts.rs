//! Random cases together with the schedule in which the emulator runs them.

use crate::cases::{CaseTree, Cases};
use finite_attention::check::Case;
use finite_attention::driver::emulated::Schedule;
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
    /// The schedules under which it is run, the simplest first. On a GPU there are none to choose.
    pub schedules: Vec<Schedule>,
}

/// Attempts at cases: half of them under the latest schedule, which shows most, the others under the eager one and random
/// ones. Case and schedule shrink together.
#[derive(Clone, Debug)]
pub struct Attempts {
    /// The cases.
    pub cases: Cases,
    /// Whether there are schedules.
    pub scheduled: bool,
}

impl Strategy for Attempts {
    type Tree = AttemptTree;
    type Value = Attempt;

    fn new_tree(&self, runner: &mut TestRunner) -> NewTree<Self> {
        let case = self.cases.new_tree(runner)?;
        let random = runner.rng().next_u64();
        let schedule = match random % 4 {
            0 | 1 => Schedule::Latest,
            2 => Schedule::Eager,
            _ => Schedule::Random(random >> 48),
        };
        let schedules = if self.scheduled { vec![schedule] } else { Vec::new() };
        Ok(AttemptTree { case, schedules })
    }
}

/// An attempt and how it becomes simpler.
#[derive(Debug)]
pub struct AttemptTree {
    case: CaseTree,
    schedules: Vec<Schedule>,
}

impl AttemptTree {
    /// From now on every schedule that is as simple as the one that failed counts.
    fn widen(&mut self) {
        if let [schedule] = self.schedules[..] {
            self.schedules = match schedule {
                Schedule::Latest => vec![schedule],
                Schedule::Eager => vec![Schedule::Latest, schedule],
                Schedule::Random(seed) => [Schedule::Latest, Schedule::Eager]
                    .into_iter()
                    .chain((0..SEEDS).map(|step| Schedule::Random(seed + step)))
                    .collect(),
            };
        }
    }
}

impl ValueTree for AttemptTree {
    type Value = Attempt;

    fn current(&self) -> Attempt {
        Attempt { case: self.case.current(), schedules: self.schedules.clone() }
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
    use proptest::test_runner::{Config, RngSeed, TestError};

    fn smallest(fails: impl Fn(Schedule, &Case) -> bool) -> Attempt {
        let config = Config {
            cases: 2000,
            rng_seed: RngSeed::Fixed(1),
            failure_persistence: None,
            ..Config::default()
        };
        let attempts = Attempts { cases: Cases::changed(|_| ()), scheduled: true };
        let result = TestRunner::new(config).run(&attempts, |attempt| {
            proptest::prop_assert!(
                !attempt.schedules.iter().any(|&schedule| fails(schedule, &attempt.case))
            );
            Ok(())
        });
        match result {
            Err(TestError::Fail(_, attempt)) => attempt,
            other => panic!("{other:?}"),
        }
    }

    /// A schedule shows a case only if their numbers have something in common, as with a real race.
    #[test]
    fn case_and_random_schedule_shrink_together() {
        let attempt = smallest(|schedule, case| {
            let shows = |seed: u64| (seed + case.key_rows as u64).is_multiple_of(3);
            matches!(schedule, Schedule::Random(seed) if shows(seed)) && case.key_rows >= 40
        });
        assert_eq!(attempt.case.key_rows, 40);
        assert!(attempt.schedules.len() == 2 + SEEDS as usize);
    }

    #[test]
    fn a_failure_under_any_schedule_is_one_under_the_simplest() {
        let attempt = smallest(|_, case| case.key_rows >= 40);
        assert_eq!(attempt.case.key_rows, 40);
        assert_eq!(attempt.schedules[0], Schedule::Latest);
    }
}
