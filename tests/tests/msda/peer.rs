//! The tests that msda-triton 90cda22 has of itself (`tests/test_msda.py`), against the reference in f64 at their
//! tolerances. Its `test_backward` fails in about one run of eleven: it compares with a formula of positions that is
//! rounded otherwise, and now and then a location falls into another cell. Here every seed passes; `FATTN_MSDA_SEEDS`
//! says how many are tried, from 0 on.

use finite_attention::check::msda::{MsdaTritonSize, run_msda_triton};
use finite_attention::check::sweep_of;
use finite_attention::driver::emulated::Options;
use finite_attention::problem::Sampling;
use finite_attention::{Device, Dtype, KernelImages, Mode};
use finite_attention_tests::device::{emulated, emulated_arch, emulated_archs, open};
use finite_attention_tests::property::seed_from_environment;
use finite_attention_tests::ptx::{Ptx, Which, dropped, off_by_one, spec};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::ops::Range;
use std::thread::available_parallelism;

/// Seeds up to here are those of a whole run; which of them one run draws moves with `FATTN_SEED`.
const SEEDS: u64 = 1000;

/// The seeds that `FATTN_MSDA_SEEDS` says, from 0 on; if it says nothing, one.
fn seeds() -> Range<u64> {
    let Ok(text) = std::env::var("FATTN_MSDA_SEEDS") else {
        let first = seed_from_environment() % SEEDS;
        return first..first + 1;
    };
    let count = text.parse();
    0..count.unwrap_or_else(|_| panic!("FATTN_MSDA_SEEDS: expected a number, got `{text}`"))
}

/// Every parametrisation of its tests, for every seed: in the emulator for each target, or that of `FATTN_DEVICE`.
#[test]
fn shapes_of_msda_triton_are_within_its_own_tolerances() {
    let (seeds, workers) = (seeds(), available_parallelism().map_or(1, usize::from));
    let count = (seeds.end - seeds.start) as usize;
    let check = |size| {
        move |device: &Device, index: usize| {
            let outcome = run_msda_triton(device, seeds.start + index as u64, size);
            for result in outcome.results {
                assert_eq!(result.failure, None, "seed {}: {:?}", outcome.seed, result.test);
            }
        }
    };
    let archs = emulated_archs();
    if archs.is_empty() {
        let gpu = open();
        sweep_of(count, check(MsdaTritonSize::FULL), workers, || Ok(gpu.clone()), |()| ()).unwrap();
    }
    for arch in archs {
        let open = || Ok(emulated(arch, KernelImages::embedded(), Options::default()));
        sweep_of(count, check(MsdaTritonSize::EMULATED), workers, open, |()| ()).unwrap();
    }
}

/// An addition to dvalue too few, and a corner taken that is outside: each fails its own tests, and no other.
#[test]
fn broken_kernels_fail_the_tests_of_msda_triton() {
    if emulated_arch().is_none() {
        return;
    }
    let failed = |kernel: &str, opcode: &str, lines: &[&str], which, edit: fn(&str) -> String| {
        let broken = Ptx::shipped(kernel).edited_at(opcode, lines, which, edit);
        let device = emulated(spec(kernel).arch, broken.images(), Options::default());
        let outcome =
            run_msda_triton(&device, 0, MsdaTritonSize { queries: 20, ..MsdaTritonSize::EMULATED });
        let failed =
            outcome.results.into_iter().filter_map(|result| Some((result.failure?, result.test)));
        failed.collect::<Vec<_>>()
    };
    let all = failed("msda_backward_f32_sm80", "red.global.add.f32", &[], Which::Number(5), dropped);
    assert_eq!(all.len(), 4, "{all:?}");
    for (failure, test) in all {
        assert!(test.name == "backward" && test.case.mode == Mode::Fast, "{test:?}");
        assert!(failure.starts_with("dvalue: error "), "{failure}");
    }
    let line = ["sample.rs: ((self.cell + 1) as u32) < size"];
    let all = failed("msda_forward_f32_sm80", "setp.lt.u32", &line, Which::All, off_by_one);
    assert!(!all.is_empty());
    assert!(all.iter().all(|(_, test)| test.case.dtype == Dtype::F32), "{all:?}");
    assert!(all.iter().any(|(_, test)| test.name == "forward_oob_sampling"), "{all:?}");
}

/// Why a test that compares with another formula is flaky: of so many random coordinates, some fall into
/// different cells of one of the levels.
#[test]
fn another_formula_puts_some_locations_into_other_cells() {
    let sampling = Sampling { align_corners: false, border: false };
    let mut random = StdRng::seed_from_u64(0);
    let (mut others, count) = (0, 60_000_000);
    for index in 0..count {
        // As CUDA draws them: of small numbers there are more than multiples of 2^-24.
        let x = random.random::<u32>() as f32 / 2f32.powi(32);
        let size = [64.0, 32.0, 16.0, 8.0][index % 4];
        // What `grid_sample` makes of `2 x - 1`.
        let position = (((2.0 * x - 1.0) + 1.0) * size - 1.0) / 2.0;
        let ours = sampling.place(x, size as u32);
        let sample = f64::from(ours.cell) + f64::from(ours.fraction);
        assert!((sample - f64::from(position)).abs() < 1e-5);
        others += usize::from(ours.cell != position.floor() as i32);
    }
    // The number that docs/msda.md has. A run of its test has 768,000: about one run in eleven has such a
    // coordinate.
    assert_eq!(others, 7, "of {count} coordinates");
}
