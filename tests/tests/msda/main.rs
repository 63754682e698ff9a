//! Multi-scale deformable attention (docs/semantics.md, section 5): random cases, and those that its contract
//! names.

mod contract;
mod edges;
mod mutants;
mod nonfinite;
mod peer;
mod repeatable;

use finite_attention::check::Surroundings;
use finite_attention::check::msda::{
    MsdaCase, MsdaComputed, MsdaNumbers, compute_msda, msda_case, run_msda_case,
};
use finite_attention::driver::emulated::{Options, Schedule};
use finite_attention::{Arch, Device, KernelImages, Padding};
use finite_attention_tests::device::{emulated, emulated_arch, emulated_archs, open};
use finite_attention_tests::property::{count_from_environment, seed_from_environment};
use kernels_gpu::abi::Family;
use std::collections::BTreeSet;
use std::ops::Deref;

/// Every padding, corners aligned or not.
const SAMPLINGS: [(Padding, bool); 4] =
    [(Padding::Zeros, false), (Padding::Zeros, true), (Padding::Border, false), (Padding::Border, true)];

/// Either device of a test.
enum AnyDevice {
    Named(finite_attention_tests::device::TestDevice),
    Scheduled(Device),
}

impl Deref for AnyDevice {
    type Target = Device;

    fn deref(&self) -> &Device {
        match self {
            AnyDevice::Named(device) => device,
            AnyDevice::Scheduled(device) => device,
        }
    }
}

/// The device of the tests, in the emulator with this schedule.
fn scheduled(schedule: Schedule) -> AnyDevice {
    scheduled_on(emulated_arch(), schedule)
}

/// The emulator of a target with this schedule; without one the device of the tests.
fn scheduled_on(arch: Option<Arch>, schedule: Schedule) -> AnyDevice {
    match arch {
        None => AnyDevice::Named(open()),
        Some(arch) => {
            let options = Options { schedule, ..Options::default() };
            AnyDevice::Scheduled(emulated(arch, KernelImages::embedded(), options))
        }
    }
}

/// Computes both passes; findings of the emulator are failures.
fn computed(device: &Device, case: &MsdaCase, numbers: &MsdaNumbers) -> MsdaComputed {
    let computed = compute_msda(device, case, numbers, Surroundings::Nan)
        .unwrap_or_else(|error| panic!("{case:?}: {error}"));
    assert_eq!(computed.spilled, None, "{case:?}");
    computed
}

/// The bits of all results.
fn bits(computed: &MsdaComputed) -> [Vec<u32>; 4] {
    let tensors = [&computed.o, &computed.d_value, &computed.d_locations, &computed.d_weights];
    tensors.map(|tensor| tensor.iter().map(|number| number.to_bits()).collect())
}

/// Every element of every output is within the rule, in random cases under three schedules, for every target of the
/// emulator. `FATTN_CASES` and `FATTN_SEED` say how many and which.
#[test]
fn results_are_within_the_rule() {
    let (count, seed) = (count_from_environment(240, 1) as usize, seed_from_environment());
    let schedules = [Schedule::Latest, Schedule::Eager, Schedule::Random(seed)];
    let archs: Vec<Option<Arch>> = emulated_archs().into_iter().map(Some).collect();
    let archs = if archs.is_empty() { vec![None] } else { archs };
    for arch in archs {
        let mut ran = BTreeSet::new();
        for (part, schedule) in schedules.into_iter().enumerate() {
            let device = scheduled_on(arch, schedule);
            for id in (0..count).filter(|id| id / 5 % schedules.len() == part) {
                let outcome = run_msda_case(&device, &msda_case(seed, id));
                let case = &outcome.case;
                assert_eq!(outcome.failure, None, "FATTN_SEED={seed}, {arch:?}, {schedule:?}: {case:?}");
                ran.extend(outcome.kernels);
            }
        }
        // Every kernel there is for this device, if there are as many cases as by default.
        let (major, minor) = scheduled_on(arch, Schedule::Latest).properties().compute_capability;
        let kernels = kernels_gpu::abi::KERNELS.iter().filter(|kernel| {
            matches!(kernel.family, Family::Msda(_)) && kernel.arch.runs_on(major, minor)
        });
        let missing: Vec<_> = kernels.filter(|kernel| !ran.contains(kernel.name)).collect();
        assert!(count < 240 || missing.is_empty(), "{arch:?}: not run: {missing:?}");
    }
}
