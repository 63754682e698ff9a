//! Ranges of keys that are worked on side by side: o and lse are those of all keys, whatever the ranges.

use finite_attention::check::{Case, Inputs, Placement, Surroundings, compute, with_enough_rows};
use finite_attention::{CausalAlignment, Device, Dtype, Mask};
use finite_attention_tests::cases::Cases;
use finite_attention_tests::device::open;
use finite_attention_tests::property::{Finding, check};
use finite_attention_tests::recorder::recording;
use finite_attention_tests::rule::within_the_rule;
use kernels_gpu::abi::MAX_SPLITS;

fn right(device: &Device, case: &Case) -> Finding {
    within_the_rule(device, case, Inputs::drawn).map(|_| ())
}

/// Up to as many ranges as there can be, most of them of one key tile, in every placement; with gradients.
#[test]
fn any_number_of_ranges_gives_the_same() {
    let cases = Cases::changed(|case| {
        case.packed = false;
        case.key_rows += 200;
        case.num_splits = Some([2, 3, 5, MAX_SPLITS][case.seed as usize % 4]);
    });
    check("splits", 16, cases.extended().with_enough_rows(), right);
}

/// Under a window or a causal mask a row sees nothing in some ranges, and all rows nothing in others.
#[test]
fn ranges_that_show_nothing_count_for_nothing() {
    let cases = Cases::changed(|case| {
        case.packed = false;
        (case.query_rows, case.key_rows) = (case.query_rows.min(70), 390);
        case.num_splits = Some(MAX_SPLITS);
        let alignment = [CausalAlignment::TopLeft, CausalAlignment::BottomRight][case.seed as usize % 2];
        case.mask = Mask::Window { left: Some(case.seed as u32 % 40), right: Some(3), alignment };
    });
    check("splits-windows", 16, cases.with_enough_rows(), right);
}

/// What one range overflows or loses must not show: logits far from 0 on either side, and far from each other.
#[test]
fn ranges_with_logits_far_apart_are_weighed_right() {
    let cases = Cases::changed(|case| {
        case.packed = false;
        (case.query_rows, case.key_rows) = (case.query_rows.min(20), 300);
        case.num_splits = Some(4);
        case.logit_shift = [200.0, -200.0, 0.0][case.seed as usize % 3];
        case.amplitude = 2.0;
    });
    check("splits-logits", 16, cases.with_enough_rows(), right);
}

/// Decoding: one query of many heads, of which those that share keys are rows of a tile, and 16 keys more than whole
/// tiles. The kernel that combines is launched, and results are the same bits each time.
#[test]
fn a_single_query_is_combined_from_ranges_and_repeats() {
    let (device, launched) = recording(&open());
    for dtype in [Dtype::Bf16, Dtype::F16, Dtype::F32] {
        for placement in [Placement::Bshd, Placement::Unaligned] {
            for output_dtype in [dtype, Dtype::F32] {
                let case = with_enough_rows(Case {
                    query_rows: 1,
                    key_rows: 3 * 128 + 16,
                    query_heads: 8,
                    key_heads: 2,
                    batches: 2,
                    head_dim: 60,
                    value_dim: 50,
                    num_splits: Some(3),
                    dtype,
                    output_dtype,
                    placement,
                    ..Case::small()
                });
                if let Err(finding) = right(&device, &case) {
                    panic!("{} {placement:?}: {finding}", dtype.name());
                }
                let run = || {
                    let computed =
                        compute(&device, &case, &Inputs::drawn(&case), Surroundings::Nan).unwrap();
                    (computed.o, computed.lse)
                };
                assert_eq!(run(), run(), "{} {placement:?}", dtype.name());
                let kernel = format!("forward_combine_{}_sm80", dtype.name());
                assert!(launched.names().contains(kernel.as_str()), "{kernel} was not launched");
            }
        }
    }
}
