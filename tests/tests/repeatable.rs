//! The forward pass gives the same bits in every run, and whatever the order in which warps run and copies land.

use finite_attention::check::{Inputs, Surroundings};
use finite_attention::driver::emulated::{Checks, Options, Schedule};
use finite_attention::{KernelImages, check::Case};
use finite_attention_tests::cases::Cases;
use finite_attention_tests::compare::{identical, run};
use finite_attention_tests::device::{emulated, emulated_arch};
use finite_attention_tests::property::check;

/// Several blocks of several warps.
fn busy(case: &mut Case) {
    case.query_rows += 65;
    case.batches = case.batches.max(1);
}

#[test]
fn runs_give_the_same_bits() {
    check("repeatable", 24, Cases::changed(busy), |device, case| {
        let inputs = Inputs::normal(case);
        let first = run(device, case, &inputs, Surroundings::Nan)?;
        for _ in 0..3 {
            identical(first.kernel, &first, &run(device, case, &inputs, Surroundings::Nan)?)?;
        }
        Ok(())
    });
}

/// Only on the emulator: a GPU has no schedule to choose.
#[test]
fn schedules_give_the_same_bits() {
    let Some(arch) = emulated_arch() else { return };
    check("repeatable-schedules", 24, Cases::changed(busy), |device, case| {
        let inputs = Inputs::normal(case);
        let first = run(device, case, &inputs, Surroundings::Nan)?;
        let orders = [
            (Schedule::Eager, 1),
            (Schedule::Latest, 4),
            (Schedule::Random(case.seed), 1),
            (Schedule::Random(case.seed ^ 1), 3),
        ];
        for (schedule, threads) in orders {
            let options = Options { schedule, threads, ..Options::default() };
            let other = emulated(arch, KernelImages::embedded(), options);
            let other = run(&other, case, &inputs, Surroundings::Nan)
                .map_err(|error| format!("{schedule:?}, {threads} threads: {error}"))?;
            identical(&format!("{}: {schedule:?}, {threads} threads", first.kernel), &first, &other)?;
        }
        Ok(())
    });
}

/// The checks watch and change nothing.
#[test]
fn checks_change_no_bits() {
    let Some(arch) = emulated_arch() else { return };
    check("repeatable-checks", 12, Cases::changed(busy), |device, case| {
        let inputs = Inputs::normal(case);
        let checked = run(device, case, &inputs, Surroundings::Nan)?;
        let options = Options { checks: Checks::none(), ..Options::default() };
        let plain = emulated(arch, KernelImages::embedded(), options);
        identical(checked.kernel, &checked, &run(&plain, case, &inputs, Surroundings::Nan)?)
    });
}
