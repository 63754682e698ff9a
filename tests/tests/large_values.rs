//! Finite in, finite out: whatever the size of the values.
//!
//! Probabilities add up to 1 only at the end. Before, sums of values must not reach infinity: o could not come
//! back from there.

use finite_attention::Dtype;
use finite_attention::check::{Case, Inputs, Surroundings};
use finite_attention_tests::cases::Cases;
use finite_attention_tests::compare::{finite, run, same_bits};
use finite_attention_tests::property::check;

/// Not f16, whose largest values the tests of large logits have.
fn of_a_wide_range(case: &mut Case) {
    if case.dtype == Dtype::F16 {
        case.dtype = Dtype::Bf16;
    }
    if case.output_dtype == Dtype::F16 {
        case.output_dtype = Dtype::Bf16;
    }
    (case.amplitude, case.logit_shift) = (1.0, 0.0);
}

/// Values of one sign; logits so large in every third case that the softmax must correct its sums.
fn inputs(case: &Case) -> Inputs {
    let mut inputs = Inputs::drawn(case);
    inputs.v.iter_mut().for_each(|v| *v = v.abs());
    if case.id.is_multiple_of(3) {
        inputs.q.iter_mut().for_each(|q| *q *= 30.0);
    }
    inputs
}

/// Values times a power of two give outputs times that power, bit by bit, up to the largest numbers that there
/// are. What is rounded relative to its size knows nothing of it.
#[test]
fn outputs_grow_with_values_up_to_the_largest() {
    check("large-values", 60, Cases::changed(of_a_wide_range), |device, case| {
        let inputs = inputs(case);
        let largest = inputs.v.iter().copied().fold(1.0, f32::max);
        let factor = 2f32.powi(126 - largest.log2().floor() as i32);
        let usual = run(device, case, &inputs, Surroundings::Nan)?;
        let mut large = inputs;
        large.v.iter_mut().for_each(|v| *v *= factor);
        let computed = run(device, case, &large, Surroundings::Nan)?;
        finite(case, &computed)?;
        let o: Vec<f32> = computed.o.iter().map(|o| o / factor).collect();
        same_bits(&format!("{}: o", computed.kernel), &usual.o, &o)?;
        same_bits(&format!("{}: lse", computed.kernel), &usual.lse, &computed.lse)
    });
}

/// The first key has a score far above the others, whose values are the largest numbers that there are: when
/// it comes, sums of these are multiplied by 0.
#[test]
fn values_of_keys_without_weight_leave_no_trace() {
    let cases = Cases::changed(|case| {
        of_a_wide_range(case);
        case.key_rows += 200;
    });
    check("large-values-without-weight", 40, cases, |device, case| {
        let mut inputs = Inputs::drawn(case);
        let (width, heads) = (case.value_dim, case.key_heads);
        for (at, v) in inputs.v.iter_mut().enumerate() {
            let key = at / (width * heads) % case.key_rows;
            *v = if key == 0 { 1.0 } else { 3e38 };
        }
        let scale = case.scale.unwrap_or((case.head_dim as f32).powf(-0.5));
        let sign = if scale < 0.0 { -1.0 } else { 1.0 };
        for (at, q) in inputs.q.iter_mut().enumerate() {
            *q = if at.is_multiple_of(case.head_dim) { 1.0 } else { 0.0 };
        }
        for (at, k) in inputs.k.iter_mut().enumerate() {
            let key = at / (case.head_dim * heads) % case.key_rows;
            let is_first = at.is_multiple_of(case.head_dim) && key == 0;
            *k = if is_first { sign * 8000.0 } else { 0.0 };
        }
        finite(case, &run(device, case, &inputs, Surroundings::Nan)?)
    });
}
