//! Query heads that share a key head, worked on together as if they were queries: o and lse are those of each
//! head alone. Only kernels for Hopper can: where the device is another one, its emulator stands in.

use finite_attention::check::{Case, Inputs};
use finite_attention::driver::emulated::{Options, Schedule};
use finite_attention::{CausalAlignment, Device, Dtype, KernelImages, Mask};
use finite_attention_tests::cases::Cases;
use finite_attention_tests::device::emulated;
use finite_attention_tests::property::{Finding, check};
use finite_attention_tests::rule::within_the_rule;
use finite_attention_tests::shapes::cases;
use finite_attention_tests::share::drawn;
use finite_attention_tests::verdict::{Verdict, judge};
use kernels_gpu::abi::{Arch, KERNELS};

fn right(device: &Device, case: &Case) -> Finding {
    let (major, minor) = device.properties().compute_capability;
    if Arch::Sm90a.runs_on(major, minor) {
        return within_the_rule(device, case, Inputs::drawn).map(|_| ());
    }
    let hopper = emulated(Arch::Sm90a, KernelImages::embedded(), Options::default());
    within_the_rule(&hopper, case, Inputs::drawn).map(|_| ())
}

/// Heads to a key head that fill a tile of 128 rows, and some that do not.
fn share_keys(case: &mut Case) {
    let group = [2, 3, 4, 5, 7, 8, 16, 96][case.seed as usize % 8];
    case.key_heads = if group > 8 { 1 } else { case.key_heads.min(2) };
    case.query_heads = case.key_heads * group;
    case.query_rows = case.query_rows.min(300 / group + 1);
    case.pack_gqa = Some(true);
}

/// Everything else as it comes: masks, windows, packed sequences, ranges of keys, placements, scales.
#[test]
fn heads_together_are_as_right_as_alone() {
    check("pack-gqa", 12, Cases::changed(share_keys).extended().with_enough_rows(), right);
}

/// Under a mask a row's query counts, not its number: with the wrong one it would see other keys, or none.
#[test]
fn each_row_sees_what_its_query_sees() {
    let cases = Cases::changed(|case| {
        share_keys(case);
        (case.packed, case.key_rows) = (false, case.query_rows + case.seed as usize / 8 % 200);
        let alignment =
            [CausalAlignment::TopLeft, CausalAlignment::BottomRight][case.seed as usize / 2 % 2];
        let left = [None, Some(case.seed as u32 % 30)][case.seed as usize / 4 % 2];
        case.mask = Mask::Window { left, right: Some(case.seed as u32 % 3), alignment };
    });
    check("pack-gqa-masks", 10, cases.with_enough_rows(), right);
}

/// As when sequences are decoded together: one to four queries each, and any number of keys.
#[test]
fn packed_sequences_of_few_queries() {
    let cases = Cases::changed(|case| {
        share_keys(case);
        (case.packed, case.batches, case.query_rows) =
            (true, 5 + case.seed as usize % 40, 1 + case.id % 4);
        case.key_rows = case.key_rows.min(200);
        case.pack_gqa = None;
    });
    check("pack-gqa-packed", 10, cases.with_enough_rows(), right);
}

/// Every part of these kernels, with several tiles to a block, as late or as early as their protocol allows, as is drawn; in
/// the emulator whatever the device.
#[test]
fn every_part_of_the_kernels_is_right_in_any_order() {
    let kernels = KERNELS.iter().filter(|spec| spec.gathers_heads && spec.dtype == Dtype::Bf16);
    for kernel in kernels.map(|spec| spec.name) {
        for (number, case) in cases(kernel).into_iter().enumerate() {
            let schedules = [Schedule::Latest, Schedule::Eager];
            for schedule in drawn(&format!("{kernel} {number}"), 2, schedules) {
                let verdict = judge(kernel, KernelImages::embedded(), &case, schedule);
                assert!(matches!(verdict, Verdict::Clean), "{kernel}, {case:?}: {verdict:?}");
            }
        }
    }
}
