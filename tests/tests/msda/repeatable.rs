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

/// In the fast mode gradients of value alone may differ from call to call, and those by their order of summation
/// alone. Results of the two modes are not compared but for o: lanes of the fast kernels may have other channels,
/// and add them up for locations and weights in another, fixed order.
#[test]
fn fast_results_but_gradients_of_value_are_the_same_bits_under_every_schedule() {
    let schedules = [Schedule::Latest, Schedule::Eager, Schedule::Random(3), Schedule::Random(4)];
    for case in cases() {
        let numbers = MsdaNumbers::drawn(&case);
        let of_mode = |mode, schedule| {
            let case = MsdaCase { mode, ..case.clone() };
            computed(&scheduled(schedule), &case, &numbers)
        };
        let deterministic = of_mode(Mode::Deterministic, schedules[0]);
        let all = schedules.map(|schedule| of_mode(Mode::Fast, schedule));
        for fast in &all {
            let [o, _, d_locations, d_weights] = bits(fast);
            let [first_o, _, first_locations, first_weights] = bits(&all[0]);
            assert!(o == first_o && o == bits(&deterministic)[0], "o: {case:?}");
            assert!(d_locations == first_locations, "d_locations: {case:?}");
            assert!(d_weights == first_weights, "d_weights: {case:?}");
            let verdicts = judge_msda(&case, fast);
            assert!(verdicts.iter().all(|tensor| tensor.verdict.passes()), "{case:?}: {verdicts:?}");
        }
        let verdicts = judge_msda(&case, &deterministic);
        assert!(verdicts.iter().all(|tensor| tensor.verdict.passes()), "{case:?}: {verdicts:?}");
    }
}
