//! Nothing outside the logical tensors is read or written: whatever stands before, after and between the
//! elements of the inputs, the results are the same bits. And all of the outputs is written.

use finite_attention::check::{Case, Inputs, Placement, Surroundings};
use finite_attention::{Device, Dtype};
use finite_attention_tests::cases::Cases;
use finite_attention_tests::compare::{finite, has_repeatable_dq, identical, run};
use finite_attention_tests::property::{Finding, check_all};

/// Zeros around the inputs against NaN and infinity there. Outputs start as NaN, so that an element that
/// is not written is not finite.
fn surroundings_change_nothing(device: &Device, case: &Case) -> Finding {
    let inputs = Inputs::drawn(case);
    let zeros = run(device, case, &inputs, Surroundings::Zero)?;
    finite(case, &zeros)?;
    for surroundings in [Surroundings::Nan, Surroundings::Infinity] {
        let poisoned = run(device, case, &inputs, surroundings)?;
        let what = format!("{}: zeros and {surroundings:?} around", zeros.kernel);
        identical(&what, has_repeatable_dq(case), &zeros, &poisoned)?;
        if let Some(spilled) = poisoned.spilled {
            return Err(format!("{}: {spilled}", zeros.kernel));
        }
    }
    Ok(())
}

/// Guard bytes on both sides of every tensor.
#[test]
fn poison_in_every_layout_changes_nothing() {
    let guarded = Cases::changed(|case| case.tight = false);
    check_all("poison", 40, guarded.with_fewer_heads(), surroundings_change_nothing);
}

/// Rows that are longer than the head dimension, which is off every multiple of a vector.
#[test]
fn poison_beyond_the_head_dimension_changes_nothing() {
    let gapped = Cases::changed(|case| {
        case.tight = false;
        case.placement = [Placement::Padded, Placement::Unaligned, Placement::Packed][case.id % 3];
        if case.head_dim.is_multiple_of(8) {
            case.head_dim -= 1 + case.seed as usize % 7;
        }
    });
    check_all("poison-gaps", 40, gapped.with_fewer_heads(), surroundings_change_nothing);
}

/// With NaN before and after only, and rows of o in f32.
#[test]
fn poison_around_wide_outputs_changes_nothing() {
    let wide = Cases::changed(|case| {
        case.tight = false;
        case.dtype = [Dtype::Bf16, Dtype::F16][case.id % 2];
        case.output_dtype = Dtype::F32;
    });
    check_all("poison-wide", 20, wide.with_fewer_heads(), surroundings_change_nothing);
}

/// With packed sequences, poison stands beyond the last one; before and after dO, and in the workspace.
#[test]
fn poison_around_gradients_and_packed_sequences_changes_nothing() {
    let cases = Cases::fitted(|mut case| {
        case.tight = false;
        (case.packed || case.gradients.is_some()).then_some(case)
    });
    let cases = cases.extended().with_fewer_heads();
    check_all("poison-gradients", 40, cases, surroundings_change_nothing);
}

/// Around and between elements of bias, mask, slopes and sinks, and of their gradients; of packed sequences also
/// what stands beyond the end of each.
#[test]
fn poison_around_bias_and_mask_changes_nothing() {
    let cases = Cases::fitted(|mut case| {
        case.tight = false;
        (!case.features.is_empty()).then_some(case)
    });
    let cases = cases.featured().with_fewer_heads();
    check_all("poison-features", 40, cases, surroundings_change_nothing);
}
