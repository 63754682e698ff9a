//! The same call gives the same bits in every run (of dq: in deterministic mode), and whatever the order
//! in which warps run and copies land.

use finite_attention::check::{Inputs, Surroundings};
use finite_attention::driver::emulated::{Checks, Options, Schedule};
use finite_attention::{KernelImages, check::Case};
use finite_attention_tests::cases::Cases;
use finite_attention_tests::compare::{has_repeatable_dq, identical, run};
use finite_attention_tests::device::{arch_of, emulated, emulated_arch};
use finite_attention_tests::property::{check, check_all};
use finite_attention_tests::share::is_whole;

/// Several blocks of several warps.
fn busy(case: &mut Case) {
    case.query_rows += 65;
    case.batches = case.batches.max(1);
}

/// Such cases, half of them with gradients, some with packed sequences.
fn cases() -> Cases {
    Cases::changed(busy).extended().with_fewer_heads()
}

#[test]
fn runs_give_the_same_bits() {
    check("repeatable", 24, cases(), |device, case| {
        let inputs = Inputs::drawn(case);
        let first = run(device, case, &inputs, Surroundings::Nan)?;
        // The emulator repeats itself.
        for _ in 0..if is_whole() { 3 } else { 1 } {
            identical(
                &first.kernel,
                has_repeatable_dq(case),
                &first,
                &run(device, case, &inputs, Surroundings::Nan)?,
            )?;
        }
        Ok(())
    });
}

/// Threads that share a device, none of which opened it: calls of the driver that need a current context failed
/// in them.
#[test]
fn threads_give_the_same_bits() {
    check("repeatable-threads", 24, cases(), |device, case| {
        let inputs = Inputs::drawn(case);
        let first = run(device, case, &inputs, Surroundings::Nan)?;
        std::thread::scope(|scope| {
            let threads =
                [(); 3].map(|()| scope.spawn(|| run(device, case, &inputs, Surroundings::Nan)));
            threads.into_iter().try_for_each(|thread| {
                let other = thread.join().map_err(|_| "a thread panicked")??;
                identical(&first.kernel, has_repeatable_dq(case), &first, &other)
            })
        })
    });
}

/// Only on the emulator: a GPU has no schedule to choose.
#[test]
fn schedules_give_the_same_bits() {
    if emulated_arch().is_none() {
        return;
    }
    check_all("repeatable-schedules", 32, cases(), |device, case| {
        let inputs = Inputs::drawn(case);
        let first = run(device, case, &inputs, Surroundings::Nan)?;
        let orders = [
            (Schedule::Eager, 1),
            (Schedule::Latest, 4),
            (Schedule::Random(case.seed), 1),
            (Schedule::Random(case.seed ^ 1), 3),
        ];
        for (schedule, threads) in orders {
            let options = Options { schedule, threads, ..Options::default() };
            let other = emulated(arch_of(device), KernelImages::embedded(), options);
            let other = run(&other, case, &inputs, Surroundings::Nan)
                .map_err(|error| format!("{schedule:?}, {threads} threads: {error}"))?;
            let what = format!("{}: {schedule:?}, {threads} threads", first.kernel);
            identical(&what, has_repeatable_dq(case), &first, &other)?;
        }
        Ok(())
    });
}

/// The checks watch and change nothing.
#[test]
fn checks_change_no_bits() {
    if emulated_arch().is_none() {
        return;
    }
    check("repeatable-checks", 16, cases(), |device, case| {
        let inputs = Inputs::drawn(case);
        // Both under the same schedule: in fast mode dq goes by it.
        let of = |checks| {
            let options =
                Options { checks, schedule: Schedule::Random(case.seed), ..Options::default() };
            let device = emulated(arch_of(device), KernelImages::embedded(), options);
            run(&device, case, &inputs, Surroundings::Nan)
        };
        let checked = of(Checks::all())?;
        identical(&checked.kernel, true, &checked, &of(Checks::none())?)
    });
}
