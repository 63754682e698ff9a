//! Runs a property over random cases.

use crate::attempts::{Attempt, Attempts};
use crate::cases::Cases;
use crate::device::{emulated, emulated_arch, name, open};
use finite_attention::check::Case;
use finite_attention::driver::emulated::Options;
use finite_attention::{Device, KernelImages};
use proptest::test_runner::{Config, FileFailurePersistence, RngSeed, TestCaseError, TestRunner};
use std::fs::create_dir_all;
use std::panic::resume_unwind;
use std::thread;

/// What a property says of a case: nothing, or what is wrong.
pub type Finding = Result<(), String>;

/// How many times more cases a GPU gets.
const GPU_FACTOR: u32 = 20;

/// Parts of the cases that run at the same time in the emulator, each from the next seed.
const PARTS: u32 = 4;

/// Checks `property` for `count` cases of `cases` (see `FATTN_CASES`) on the device that `FATTN_DEVICE`
/// names, in the emulator under a schedule of each case's own. Failures are kept in
/// `proptest-regressions/<test>.txt`.
///
/// # Panics
/// If a case fails, with the smallest one that does, its schedule and the seed.
pub fn check(test: &str, count: u32, cases: Cases, property: impl Fn(&Device, &Case) -> Finding + Sync) {
    let arch = emulated_arch();
    let count = count_from_environment(count);
    let seed = seed(test, std::env::var("FATTN_SEED").ok().as_deref());
    eprintln!("{test}: {count} cases on {}, FATTN_SEED={seed}", name());
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/proptest-regressions");
    // Without the folder the seed is only printed, which proptest says itself.
    let _ = create_dir_all(folder);
    // One short text per test and process.
    let file: &'static str = Box::leak(format!("{folder}/{test}.txt").into_boxed_str());
    // A GPU is one; in the emulator a property that takes long shall not wait for one core.
    let parts = if arch.is_some() { PARTS.min(count) } else { 1 };
    let run_part = |part: u32| {
        let device = open();
        let run = |Attempt { case, schedules }: Attempt| {
            let Some(arch) = arch else { return property(&device, &case) };
            schedules.into_iter().try_for_each(|schedule| {
                let options = Options { schedule, ..Options::default() };
                property(&emulated(arch, KernelImages::embedded(), options), &case)
                    .map_err(|wrong| format!("schedule {schedule:?}: {wrong}"))
            })
        };
        let seed = seed.wrapping_add(part.into());
        let config = Config {
            cases: count / parts + u32::from(part < count % parts),
            failure_persistence: Some(Box::new(FileFailurePersistence::Direct(file))),
            rng_seed: RngSeed::Fixed(seed),
            max_shrink_iters: 4096,
            max_shrink_time: 120_000, // milliseconds
            ..Config::default()
        };
        let attempts = Attempts { cases: cases.clone(), scheduled: arch.is_some() };
        let result =
            TestRunner::new(config).run(&attempts, |attempt| run(attempt).map_err(TestCaseError::fail));
        if let Err(error) = result {
            panic!("{test} on {}, FATTN_SEED={seed}: {error}", name());
        }
    };
    if parts == 1 {
        return run_part(0);
    }
    thread::scope(|scope| {
        let run_part = &run_part;
        let running: Vec<_> = (0..parts).map(|part| scope.spawn(move || run_part(part))).collect();
        for part in running {
            part.join().unwrap_or_else(|panic| resume_unwind(panic));
        }
    });
}

fn count_from_environment(default: u32) -> u32 {
    match std::env::var("FATTN_CASES") {
        Ok(text) => {
            text.parse().unwrap_or_else(|_| panic!("FATTN_CASES: expected a number, got `{text}`"))
        }
        Err(_) if emulated_arch().is_some() => default,
        Err(_) => default * GPU_FACTOR,
    }
}

/// What `FATTN_SEED` says of the seed of a test's cases. Without it each test has its own, in every run the same: the
/// FNV-1a hash of its name.
fn seed(test: &str, said: Option<&str>) -> u64 {
    match said {
        Some("random") => rand::random(),
        Some(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("FATTN_SEED: expected a number or `random`, got `{text}`")),
        None => test.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_draws_the_same_cases_in_every_run() {
        assert_eq!(seed("repeatable", None), 0x6d5d_1b6b_3c95_a6ee);
        assert_ne!(seed("repeatable", None), seed("accuracy", None));
        assert_eq!(seed("repeatable", Some("7")), 7);
        assert_ne!(seed("repeatable", Some("random")), seed("repeatable", Some("random")));
    }
}
