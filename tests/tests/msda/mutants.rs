//! Kernels of multi-scale deformable attention with one thing changed in their PTX: each is found, for its reason.

use finite_attention::check::Placement;
use finite_attention::check::msda::{MsdaCase, MsdaNumbers, run_msda_case_with};
use finite_attention::driver::emulated::{Options, Schedule};
use finite_attention::{Error, KernelImages, Mode};
use finite_attention_tests::device::{emulated, emulated_arch};
use finite_attention_tests::ptx::{Ptx, Which, dropped, off_by_one, operand, spec, with_operand};

/// A kernel with one thing changed.
struct Mutant {
    name: &'static str,
    kernel: &'static str,
    opcode: &'static str,
    /// The Rust line that the instruction comes from.
    line: &'static str,
    which: Which,
    edit: fn(&str) -> String,
    mode: Mode,
    /// Beginnings of what may be said of it: a kind of finding, or the tensor that is wrong.
    found: &'static [&'static str],
}

const MUTANTS: [Mutant; 9] = [
    Mutant {
        name: "points are used before their lanes have left them",
        kernel: "msda_forward_f32_sm80",
        opcode: "bar.warp.sync",
        line: "msda_forward.rs: warp::warp_sync();",
        which: Which::All,
        edit: dropped,
        mode: Mode::Fast,
        found: &["race in shared memory"],
    },
    Mutant {
        name: "a strip of channels too many is computed",
        kernel: "msda_forward_f32_sm80",
        opcode: "setp.lt.u32",
        // The compiler moves the comparison there.
        line: "msda_forward.rs: .wrapping_add((channel * S::ELEMENT_BYTES) as u64);",
        which: Which::All,
        edit: off_by_one,
        mode: Mode::Fast,
        found: &["o:", "out-of-bounds global access", "race in global memory"],
    },
    Mutant {
        name: "corners behind the last row and column are taken",
        kernel: "msda_forward_f32_sm80",
        opcode: "setp.lt.u32",
        line: "sample.rs: ((self.cell + 1) as u32) < size",
        which: Which::All,
        edit: off_by_one,
        mode: Mode::Fast,
        found: &["o:", "out-of-bounds global access"],
    },
    Mutant {
        name: "sums begin with what was there",
        kernel: "msda_zero_f32_sm80",
        opcode: "st.global.v4",
        line: "msda_sums.rs: global::store_u32x4",
        which: Which::All,
        edit: dropped,
        mode: Mode::Fast,
        found: &["dvalue:"],
    },
    Mutant {
        name: "an addition to sums is missing",
        kernel: "msda_backward_f32_sm80",
        opcode: "red.global.add.f32",
        line: "",
        which: Which::Number(5),
        edit: dropped,
        mode: Mode::Fast,
        found: &["dvalue:"],
    },
    Mutant {
        name: "lanes add up their own sums",
        kernel: "msda_backward_f32_sm80",
        opcode: "shfl.sync.bfly",
        line: "msda_backward.rs: let others = sums.map",
        which: Which::All,
        edit: |instruction| with_operand(instruction, 2, "0"),
        mode: Mode::Fast,
        found: &["dlocations:", "dweights:"],
    },
    Mutant {
        name: "counters begin with what was there",
        kernel: "msda_count_f32_sm80",
        opcode: "st.global.b32",
        line: "msda_sort.rs: global::store_u32(counters.wrapping_add(4 * bin as u64), 0);",
        which: Which::All,
        edit: dropped,
        mode: Mode::Deterministic,
        found: &["race in global memory: lanes"],
    },
    Mutant {
        name: "sums of warps are read before they are there",
        kernel: "msda_scan_f32_sm80",
        opcode: "bar.sync",
        line: "msda_sort.rs: barrier::block_sync();",
        which: Which::All,
        edit: dropped,
        mode: Mode::Deterministic,
        found: &["race in shared memory", "uninitialised shared read"],
    },
    Mutant {
        name: "lane 0 counts for the points of every bin",
        kernel: "msda_fill_f32_sm80",
        opcode: "popc.b32",
        line: "msda_sort.rs: let leader = same.trailing_zeros();",
        which: Which::All,
        edit: |instruction| format!("mov.b32 {}, 0;", operand(instruction, 0)),
        mode: Mode::Deterministic,
        found: &["race in global memory", "out-of-bounds global access", "dvalue:"],
    },
];

/// Many points in few cells, and a strip of channels that no lane has.
fn case(mode: Mode) -> MsdaCase {
    MsdaCase {
        queries: 50,
        channels: 24,
        shapes: vec![[3, 4], [2, 2]],
        placement: Placement::Padded,
        mode,
        ..MsdaCase::small()
    }
}

/// What is said of a kernel in place of the one that ships; nothing if all is well.
fn said(kernel: &str, images: KernelImages, mode: Mode, schedule: Schedule) -> Vec<String> {
    let options = Options { schedule, step_limit: Some(1 << 26), ..Options::default() };
    let device = emulated(spec(kernel).arch, images, options);
    let case = case(mode);
    match run_msda_case_with(&device, &case, &MsdaNumbers::drawn(&case)) {
        Ok((outcome, _)) => {
            assert!(outcome.kernels.contains(&kernel), "{kernel} is not run: {:?}", outcome.kernels);
            outcome.failure.into_iter().collect()
        }
        Err(Error::Findings { findings, .. }) => findings,
        Err(error) => vec![error.to_string()],
    }
}

#[test]
fn broken_kernels_are_found_for_their_reason() {
    if emulated_arch().is_none() {
        return;
    }
    let schedules = [Schedule::Latest, Schedule::Eager, Schedule::Random(1)];
    for Mutant { name, kernel, opcode, line, which, edit, mode, found } in MUTANTS {
        let shipped = Ptx::shipped(kernel);
        for schedule in schedules {
            assert_eq!(said(kernel, shipped.images(), mode, schedule), [""; 0], "{kernel}");
        }
        let lines: &[&str] = if line.is_empty() { &[] } else { &[line] };
        let broken = shipped.edited_at(opcode, lines, which, edit);
        let all: Vec<String> = schedules
            .into_iter()
            .flat_map(|schedule| said(kernel, broken.images(), mode, schedule))
            .collect();
        let is_found = all.iter().any(|text| found.iter().any(|start| text.starts_with(start)));
        assert!(is_found, "{kernel}, {name}: {}", all.join("\n"));
    }
}
