//! o, lse and the gradients are as near to the f64 reference as the tolerance rule asks, for every
//! ragged shape, dtype, mask and layout. What surrounds the elements is NaN, and nothing outside the
//! outputs may be written.

use finite_attention::check::{Case, Gradients, Inputs};
use finite_attention::{CausalAlignment, Device, Dtype, Mask, Mode};
use finite_attention_tests::cases::Cases;
use finite_attention_tests::device::{emulated_arch, open};
use finite_attention_tests::property::{Finding, check};
use finite_attention_tests::recorder::small;
use finite_attention_tests::rule::within_the_rule;
use finite_attention_tests::share::drawn;

fn accurate(test: &str, count: u32, cases: Cases) {
    check(test, count, cases.with_just_enough_rows(), right);
}

fn right(device: &Device, case: &Case) -> Finding {
    within_the_rule(device, case, Inputs::drawn).map(|_| ())
}

/// In this dtype; o and the gradients are in f32 where they were to differ from the inputs.
fn retyped(case: &mut Case, dtype: Dtype) {
    let retype = |output: Dtype| if output == case.dtype { dtype } else { Dtype::F32 };
    case.output_dtype = retype(case.output_dtype);
    if let Some(gradients) = &mut case.gradients {
        gradients.dtype = retype(gradients.dtype);
    }
    case.dtype = dtype;
}

/// Full and causal cases of one dtype.
fn of(dtype: Dtype) -> Cases {
    Cases::changed(move |case| retyped(case, dtype))
}

/// Cases of one dtype with gradients, among them such with windows and packed sequences.
fn with_gradients(dtype: Dtype) -> Cases {
    let cases = Cases::fitted(move |mut case| {
        retyped(&mut case, dtype);
        case.gradients.is_some().then_some(case)
    });
    cases.extended()
}

#[test]
fn bf16_is_within_the_rule() {
    accurate("accuracy-bf16", 60, of(Dtype::Bf16));
}

#[test]
fn f16_is_within_the_rule() {
    accurate("accuracy-f16", 60, of(Dtype::F16));
}

#[test]
fn f32_is_within_the_rule() {
    accurate("accuracy-f32", 40, of(Dtype::F32));
}

/// One row of queries, as in decoding, and one key at the least.
#[test]
fn a_single_query_row_is_within_the_rule() {
    accurate("accuracy-decode", 30, Cases::changed(|case| case.query_rows = 1));
}

/// Heads that share keys become rows of a tile then, behind every mask and in every layout.
#[test]
fn a_single_query_row_of_shared_keys_is_within_the_rule() {
    let shared = Cases::changed(|case| {
        let key_heads = 1 + case.seed as usize % 3;
        let group = 2 + case.seed as usize / 3 % 7;
        (case.key_heads, case.query_heads) = (key_heads, group * key_heads);
        (case.query_rows, case.packed, case.gradients) = (1, false, None);
    });
    check("accuracy-decode-groups", 40, shared.extended().with_enough_rows(), right);
}

/// Query heads in large groups: the key head of a query head must be the right one.
#[test]
fn heads_of_a_group_share_their_key_head() {
    let grouped = Cases::changed(|case| {
        let key_heads = 1 + case.seed as usize % 3;
        (case.key_heads, case.query_heads) = (key_heads, 4 * key_heads);
        (case.query_rows, case.key_rows) = (case.query_rows.min(20), case.key_rows.min(40));
    });
    check("accuracy-groups", 30, grouped.with_enough_rows(), right);
}

#[test]
fn windows_and_packed_sequences_are_within_the_rule() {
    let cases = Cases::fitted(|mut case| {
        case.gradients = None;
        (case.packed || matches!(case.mask, Mask::Window { .. })).then_some(case)
    });
    accurate("accuracy-windows-and-packed", 100, cases.extended());
}

#[test]
fn gradients_in_bf16_are_within_the_rule() {
    accurate("accuracy-gradients-bf16", 60, with_gradients(Dtype::Bf16));
}

#[test]
fn gradients_in_f16_are_within_the_rule() {
    accurate("accuracy-gradients-f16", 60, with_gradients(Dtype::F16));
}

#[test]
fn gradients_in_f32_are_within_the_rule() {
    accurate("accuracy-gradients-f32", 40, with_gradients(Dtype::F32));
}

/// A smaller GPU has fewer blocks, each of which works on several key tiles, and takes the heads in more waves.
#[test]
fn plans_for_a_small_device_are_within_the_rule() {
    let cases = Cases::changed(|case| case.key_rows += 65).extended().with_just_enough_rows();
    check("accuracy-small-device", 40, cases, |device, case| {
        within_the_rule(&small(device), case, Inputs::drawn).map(|_| ())
    });
}

/// One key tile for each query tile, and all of them worked on by one block: the next queries arrive as soon as
/// these were read.
#[test]
fn many_heads_of_short_sequences_are_right() {
    let device = open();
    for (head_dim, mask) in [64, 80, 128, 192, 256]
        .into_iter()
        .flat_map(|dim| [(dim, Mask::Full), (dim, Mask::Causal(CausalAlignment::BottomRight))])
    {
        let case = Case {
            query_rows: 32,
            key_rows: 65,
            query_heads: 80,
            key_heads: 20,
            head_dim,
            value_dim: head_dim,
            mask,
            ..Case::small()
        };
        for _ in 0..if emulated_arch().is_some() { 1 } else { 20 } {
            within_the_rule(&small(&device), &case, Inputs::drawn)
                .unwrap_or_else(|wrong| panic!("head dim {head_dim}, {mask}: {wrong}"));
        }
    }
}

/// A warp finds out which sequence a tile is of, 32 sequences at a time, with those that have most keys first.
#[test]
fn more_packed_sequences_than_a_warp_has_lanes_are_right() {
    let device = open();
    for (dtype, head_dim, mask) in [
        (Dtype::Bf16, 64, Mask::Full),
        (Dtype::F16, 128, Mask::Causal(CausalAlignment::BottomRight)),
        (Dtype::Bf16, 256, Mask::Causal(CausalAlignment::TopLeft)),
        (Dtype::F32, 64, Mask::Full),
    ] {
        let case = Case {
            dtype,
            output_dtype: dtype,
            packed: true,
            batches: 70,
            query_rows: 40,
            key_rows: 100,
            query_heads: 2,
            key_heads: 1,
            head_dim,
            value_dim: head_dim,
            mask,
            gradients: Some(Gradients { dtype, has_d_lse: false, mode: Mode::Fast }),
            ..Case::small()
        };
        for device in
            drawn(&format!("accuracy-sequences {head_dim} {mask}"), 2, [device.clone(), small(&device)])
        {
            within_the_rule(&device, &case, Inputs::drawn)
                .unwrap_or_else(|wrong| panic!("{dtype:?}, head dim {head_dim}, {mask}: {wrong}"));
        }
    }
}
