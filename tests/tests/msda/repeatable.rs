//! The same bits at every call, where they are promised.

use super::{bits, computed, scheduled};
use finite_attention::Mode;
use finite_attention::check::msda::{MsdaCase, MsdaNumbers, judge_msda, msda_case};
use finite_attention::driver::emulated::Schedule;

/// Cases with many points in few cells, so that sums have an order to depend on.
fn cases() -> impl Iterator<Item = MsdaCase> {
    (0..12).map(|id| {
        let case = msda_case(5, id);
        MsdaCase {
            queries: 60,
            shapes: vec![[2, 3], [1, 2]],
            level_points: 4,
            batches: 1,
            heads: 2,
            ..case
        }
    })
}

#[test]
fn deterministic_results_are_the_same_bits_under_every_schedule() {
    let schedules = [Schedule::Latest, Schedule::Eager, Schedule::Random(1), Schedule::Random(2)];
    for case in cases() {
        let case = MsdaCase { mode: Mode::Deterministic, ..case };
        let numbers = MsdaNumbers::drawn(&case);
        let all = schedules.map(|schedule| bits(&computed(&scheduled(schedule), &case, &numbers)));
        assert!(all.iter().all(|bits| *bits == all[0]), "{case:?}");
    }
}

/// In the fast mode gradients of value alone may differ, and those by their order of summation alone.
#[test]
fn fast_results_differ_from_deterministic_ones_by_the_order_of_sums() {
    for case in cases() {
        let numbers = MsdaNumbers::drawn(&case);
        let [fast, deterministic] = [Mode::Fast, Mode::Deterministic].map(|mode| {
            let case = MsdaCase { mode, ..case.clone() };
            computed(&scheduled(Schedule::Random(3)), &case, &numbers)
        });
        assert!(fast.o == deterministic.o && fast.d_weights == deterministic.d_weights);
        assert!(fast.d_locations == deterministic.d_locations);
        for result in [&fast, &deterministic] {
            let verdicts = judge_msda(&case, result);
            assert!(verdicts.iter().all(|tensor| tensor.verdict.passes()), "{case:?}: {verdicts:?}");
        }
    }
}
