//! Runs a property over random cases.

use crate::attempts::{Attempt, Attempts};
use crate::cases::Cases;
use crate::device::{emulated, emulated_arch, emulated_archs, name, open};
use crate::kept::Kept;
use crate::seed;
use finite_attention::check::Case;
use finite_attention::device::DeviceName;
use finite_attention::driver::emulated::Options;
use finite_attention::{Device, KernelImages};
use kernels_gpu::abi::Arch;
use proptest::test_runner::{Config, RngSeed, TestCaseError, TestRunner};
use std::panic::resume_unwind;
use std::thread;

/// What a property says of a case: nothing, or what is wrong.
pub type Finding = Result<(), String>;

/// How many times more cases a GPU gets.
const GPU_FACTOR: u32 = 20;

/// Parts of the cases that run at the same time in the emulator, each from the next seed.
const PARTS: u32 = 4;

/// Of so many cases one is run by default in the emulator. A run of everything that must be green draws others each
/// time; `FATTN_CASES=all` runs all of them.
pub const SHARE: u32 = 3;

/// Checks `property` for a share of `count` cases of `cases` (see `FATTN_CASES`) on the device that `FATTN_DEVICE`
/// names, in the emulator under a schedule of each case's own, and where nothing is said of a target under one of each
/// case's own. Failures are kept in `proptest-regressions/<test>.txt`, and run again at first, for every target.
///
/// # Panics
/// If a case fails, with the smallest one that does, its schedule, its target and the seed.
pub fn check(test: &str, count: u32, cases: Cases, property: impl Fn(&Device, &Case) -> Finding + Sync) {
    check_some(test, count_from_environment(count, SHARE), cases, property);
}

/// As [`check`], of all of these cases in every run.
///
/// # Panics
/// As [`check`].
pub fn check_all(
    test: &str,
    count: u32,
    cases: Cases,
    property: impl Fn(&Device, &Case) -> Finding + Sync,
) {
    check_some(test, count_from_environment(count, 1), cases, property);
}

fn check_some(
    test: &str,
    count: u32,
    cases: Cases,
    property: impl Fn(&Device, &Case) -> Finding + Sync,
) {
    let archs = emulated_archs();
    if count == 0 {
        return;
    }
    let said = seed_from_environment();
    let device = || match archs[..] {
        [one] => DeviceName::Emulated(one).to_string(),
        [] => name().to_string(),
        _ => "the emulator, a target for each case".to_owned(),
    };
    eprintln!("{test}: {count} cases on {}, FATTN_SEED={said}", device());
    let run_part = |part: Part<'_>| {
        let device = open();
        let run = |Attempt { case, schedules, arch }: Attempt| {
            let Some(arch) = arch else { return property(&device, &case) };
            schedules.into_iter().try_for_each(|schedule| {
                let options = Options { schedule, ..Options::default() };
                property(&emulated(arch, KernelImages::embedded(), options), &case)
                    .map_err(|wrong| format!("schedule {schedule:?}: {wrong}"))
            })
        };
        let config = Config {
            cases: part.cases,
            failure_persistence: Some(Box::new(Kept::new(test, part.cases == 0))),
            rng_seed: RngSeed::Fixed(seed_of(test, said).wrapping_add(part.number)),
            max_shrink_iters: 4096,
            max_shrink_time: 120_000, // milliseconds
            ..Config::default()
        };
        let attempts = Attempts { cases: cases.clone(), archs: part.archs.to_vec() };
        let result =
            TestRunner::new(config).run(&attempts, |attempt| run(attempt).map_err(TestCaseError::fail));
        if let Err(error) = result {
            panic!("{test} on {}, FATTN_SEED={said}: {error}", name());
        }
    };
    // What once failed, on each target; then what is drawn anew, where there is one GPU in one part; in the emulator a
    // property that takes long shall not wait for one core.
    let parts = if archs.is_empty() { 1 } else { PARTS.min(count) };
    let kept = archs.chunks(1).chain(archs.is_empty().then_some(&[][..]));
    let kept = kept.map(|archs| Part { number: 0, cases: 0, archs });
    let drawn = (0..parts).map(|part| Part {
        number: part.into(),
        cases: count / parts + u32::from(part < count % parts),
        archs: &archs,
    });
    if archs.is_empty() {
        return kept.chain(drawn.filter(|part| part.cases > 0)).for_each(run_part);
    }
    thread::scope(|scope| {
        let run_part = &run_part;
        let running: Vec<_> =
            kept.chain(drawn).map(|part| scope.spawn(move || run_part(part))).collect();
        for part in running {
            part.join().unwrap_or_else(|panic| resume_unwind(panic));
        }
    });
}

/// Some of the cases: so many drawn from a seed of their own, or, without any, those that are kept.
struct Part<'a> {
    number: u64,
    cases: u32,
    archs: &'a [Arch],
}

/// How many cases `FATTN_CASES` says: a number, or `all`; if it says nothing, one of `share` in the emulator, and
/// more than all on a GPU. With 0, nothing is checked.
///
/// # Panics
/// If it says something else.
pub fn count_from_environment(all: u32, share: u32) -> u32 {
    let usual = match emulated_arch() {
        Some(_) => all.div_ceil(share),
        None => all * GPU_FACTOR,
    };
    std::env::var("FATTN_CASES").map_or(usual, |text| count(&text, all))
}

fn count(text: &str, all: u32) -> u32 {
    let count = if text == "all" { Some(all) } else { text.parse().ok() };
    count.unwrap_or_else(|| panic!("FATTN_CASES: expected a number or `all`, got `{text}`"))
}

/// What `FATTN_SEED` says: a number, or `random` for any; 0 unless it is said.
///
/// # Panics
/// If it says something else.
pub fn seed_from_environment() -> u64 {
    seed::from_environment().unwrap_or_else(|error| panic!("{error}")).unwrap_or(0)
}

/// The seed of a test's cases: its own, the FNV-1a hash of its name, moved by what is said of all.
pub fn seed_of(test: &str, said: u64) -> u64 {
    let own = test.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    own ^ said.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_draws_the_same_cases_for_the_same_seed_and_others_for_another() {
        assert_eq!(seed_of("repeatable", 0), 0x6d5d_1b6b_3c95_a6ee);
        assert_ne!(seed_of("repeatable", 0), seed_of("accuracy", 0));
        assert_ne!(seed_of("repeatable", 7), seed_of("accuracy", 7));
        assert_ne!(seed_of("repeatable", 7), seed_of("repeatable", 0));
        assert_eq!(seed_of("repeatable", 7), seed_of("repeatable", 7));
    }

    #[test]
    fn a_count_is_a_number_or_all() {
        assert_eq!(["all", "0", "1000"].map(|text| count(text, 240)), [240, 0, 1000]);
    }

    #[test]
    #[should_panic = "FATTN_CASES: expected a number or `all`, got `many`"]
    fn no_other_text_is_a_count() {
        count("many", 240);
    }
}
