//! Programs in CUDA C++, as nvcc compiles them: what the device's libraries do, and what they tell the host.
//!
//! What is printed is compared as the processes' output: of a program in a process of its own, in the emulator and on a
//! GPU, each with the text that the host's `printf` makes of it.

use super::program::Program;
use finite_attention::device::DeviceName;
use finite_attention_tests::device::name;
use kernels_gpu::abi::Arch;
use std::process::{Command, Output};

/// Which program a process of its own runs.
const RUNS: &str = "FATTN_AGREEMENT_RUNS";

const PRINTED: &str = include_str!("cuda/print.txt");

/// A program of `blocks` blocks of 128 threads, whose input is random bits, none of them of a NaN or infinite f32 or f64.
fn compiled(name: &str, module: &'static str, blocks: u32) -> Program {
    let program = Program::new(name, Arch::Sm80, 128, "");
    let words = program.words();
    let finite = |index: u32| {
        words[index as usize] & if index.is_multiple_of(2) { !(1 << 23) } else { !(1 << 20) }
    };
    Program { module: Some(module), blocks, ..program.on_words(finite) }
}

pub fn programs() -> Vec<Program> {
    vec![
        compiled("128-bit integers", include_str!("cuda/int128.ptx"), 8),
        compiled("sines of any number", include_str!("cuda/sines.ptx"), 8),
        compiled("what printf returns", include_str!("cuda/print.ptx"), 1),
    ]
}

/// Runs this test again in a process of its own, which runs a program on a device.
fn run_apart(test: &str, program: &str, device: &str) -> Output {
    let this = std::env::current_exe().unwrap_or_else(|error| panic!("{error}"));
    let test = format!("{}::{test}", module_path!().split_once("::").map_or("", |(_, path)| path));
    Command::new(this)
        .args([&test, "--exact", "--nocapture"])
        .env("FATTN_DEVICE", device)
        .env(RUNS, program)
        .output()
        .unwrap_or_else(|error| panic!("{test}: {error}"))
}

/// The devices that programs are compared on.
fn devices() -> Vec<String> {
    let is_gpu = matches!(name(), DeviceName::Cuda(_) | DeviceName::CudaAs(..));
    let emulated = ["emulated:sm_80".to_owned()];
    emulated
        .into_iter()
        .chain(is_gpu.then(|| std::env::var("FATTN_DEVICE").unwrap_or_default()))
        .collect()
}

/// Whether this process is one that runs a program, which it then has.
fn ran(module: &'static str) -> bool {
    if std::env::var_os(RUNS).is_none() {
        return false;
    }
    match compiled("apart", module, 1).outcome(name()) {
        Ok(_) => println!("[done]"),
        Err(error) => println!("[failed] {error}"),
    }
    true
}

#[test]
fn what_is_printed_is_what_the_host_prints() {
    if ran(include_str!("cuda/print.ptx")) {
        return;
    }
    for device in devices() {
        let output = run_apart("what_is_printed_is_what_the_host_prints", "print", &device);
        let text = String::from_utf8_lossy(&output.stdout);
        let printed = text.split_once("[begin]\n").and_then(|(_, rest)| rest.split_once("[end]\n"));
        let (printed, _) = printed.unwrap_or_else(|| panic!("{device}: {text}"));
        // Lines of other threads come in any order.
        let sorted = |text: &str| {
            let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
            lines.sort();
            lines
        };
        assert_eq!(sorted(printed), sorted(PRINTED), "{device}");
    }
}

#[test]
fn an_assertion_that_fails_is_told_with_its_place_and_thread() {
    if ran(include_str!("cuda/check.ptx")) {
        return;
    }
    for device in devices() {
        let output =
            run_apart("an_assertion_that_fails_is_told_with_its_place_and_thread", "check", &device);
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        let is_emulated = device.starts_with("emulated");
        let expected = if is_emulated {
            [
                "thread (37, 0, 0)",
                "`value < 5 && \"small\"` does not hold in void program(Parameters), check.cu:9",
            ]
        } else {
            [
                "check.cu:9: void program(Parameters): block: [0,0,0], thread: [37,0,0]",
                "`value < 5 && \"small\"` failed",
            ]
        };
        for part in [if is_emulated { "[failed]" } else { "CUDA_ERROR_ASSERT" }].iter().chain(&expected)
        {
            assert!(text.contains(part), "{device}: no {part:?} in\n{text}");
        }
    }
}
