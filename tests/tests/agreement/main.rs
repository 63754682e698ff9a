//! The emulator and a GPU agree: small programs, one idea each, run on both and compared bit for bit.
//!
//! What PTX leaves open has a tolerance that stands with the program: approximations (`ex2`, `lg2`, `rcp`, `rsqrt`,
//! `sqrt`, `sin`, `cos`, `tanh`, `div.approx`) within the sum of both error bounds, tensor-core sums of numbers that
//! are not exact within `2^-20` of the sum of magnitudes, and payloads of NaN in f64.
//!
//! Without a GPU (`FATTN_DEVICE` names none) each program must be clean and give the same bits under every schedule.

mod arithmetic;
mod cuda;
mod hopper;
mod memory;
mod program;
mod warp;

use finite_attention::device::DeviceName;
use finite_attention::driver::emulated::Schedule;
use finite_attention::{Device, KernelImages};
use finite_attention_tests::device::name;
use program::Program;

const SCHEDULES: [Schedule; 4] =
    [Schedule::Eager, Schedule::Latest, Schedule::Random(0), Schedule::Random(1)];

/// Runs all programs; reports every one that disagrees.
fn agree(programs: &[Program]) {
    let mut disagree: Vec<String> = Vec::new();
    let is_gpu = matches!(name(), DeviceName::Cuda(_) | DeviceName::CudaAs(..));
    // Kept open: a context would be made anew for each program.
    let _gpu = is_gpu.then(|| Device::open(name(), KernelImages::embedded()));
    for program in programs {
        let emulated = program.emulated(Schedule::Eager);
        for schedule in SCHEDULES {
            if program.emulated(schedule) != emulated {
                disagree.push(format!("{}: depends on the schedule ({schedule:?})", program.name));
            }
        }
        if !emulated.iter().any(|&byte| byte != 0) {
            disagree.push(format!("{}: writes nothing", program.name));
        }
        if is_gpu
            && let Some(cuda) = program.on_gpu(name())
            && let Some(difference) = program.difference(&emulated, &cuda)
        {
            disagree.push(format!("{}: {difference}", program.name));
        }
    }
    assert!(
        disagree.is_empty(),
        "{} of {} programs:\n{}",
        disagree.len(),
        programs.len(),
        disagree.join("\n")
    );
}

#[test]
fn arithmetic_agrees() {
    agree(&arithmetic::programs());
}

#[test]
fn warps_agree() {
    agree(&warp::programs());
}

#[test]
fn memory_agrees() {
    agree(&memory::programs());
}

#[test]
fn hopper_agrees() {
    agree(&hopper::programs());
}

#[test]
fn compiled_programs_agree() {
    agree(&cuda::programs());
}

#[test]
fn there_are_enough_programs_each_with_a_name_of_its_own() {
    let all = [
        arithmetic::programs(),
        warp::programs(),
        memory::programs(),
        hopper::programs(),
        cuda::programs(),
    ]
    .concat();
    let names: std::collections::BTreeSet<&str> =
        all.iter().map(|program| program.name.as_str()).collect();
    assert_eq!(names.len(), all.len());
    assert!(all.len() >= 100, "{}", all.len());
    if let Ok(folder) = std::env::var("FATTN_WRITE_PTX") {
        // For an assembler to look at.
        for (index, program) in all.iter().enumerate() {
            std::fs::write(format!("{folder}/{index}.ptx"), program.ptx())
                .unwrap_or_else(|error| panic!("{error}"));
        }
    }
}
