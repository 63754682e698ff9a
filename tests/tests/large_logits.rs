//! Finite in, finite out: whatever the size of the scores and the sign of the scale.
//!
//! The rule for lse is relative to lse, so where it is applied the products of a score have one sign:
//! sums of numbers that cancel have an error that no f32 arithmetic keeps small against the result.

use finite_attention::check::{Case, Inputs, Placement, Surroundings};
use finite_attention::reference::{exact, judge_lse};
use finite_attention::{Device, Dtype};
use finite_attention_tests::cases::Cases;
use finite_attention_tests::compare::{finite, run};
use finite_attention_tests::property::{Finding, check};
use finite_attention_tests::rule::within_the_rule;

const SCALES: [Option<f32>; 6] = [None, Some(-0.125), Some(0.0), Some(1.0), Some(-3.0), None];

/// Any case, with one of [`SCALES`].
fn scaled(case: &mut Case) {
    (case.amplitude, case.logit_shift) = (1.0, 0.0);
    if case.scale.is_none() {
        case.scale = SCALES[case.id % SCALES.len()];
    }
}

/// As [`scaled`], but in f16 no scale above that which keeps the scores within its range: unfused code
/// is what the rule compares with.
fn judged(case: &mut Case) {
    scaled(case);
    if case.dtype == Dtype::F16 && case.scale.is_some_and(|scale| scale.abs() > 0.2) {
        case.scale = None;
    }
}

/// Numbers without their signs, those of q times `factor`.
fn without_signs(factor: f32) -> impl Fn(&Case) -> Inputs {
    move |case| {
        let mut inputs = Inputs::drawn(case);
        inputs.q.iter_mut().for_each(|q| *q = q.abs() * factor);
        inputs.k.iter_mut().for_each(|k| *k = k.abs());
        inputs
    }
}

fn finite_and_within_the_rule(
    device: &Device,
    case: &Case,
    numbers: impl Fn(&Case) -> Inputs,
) -> Finding {
    finite(case, &within_the_rule(device, case, numbers)?)
}

#[test]
fn logits_thirty_times_as_large_are_within_the_rule() {
    check("large-logits-30", 40, Cases::changed(judged).with_just_enough_rows(), |device, case| {
        finite_and_within_the_rule(device, case, without_signs(30.0))
    });
}

/// Not o in f32: the few rows whose two largest scores are close decide both sides of the rule there,
/// and it compares two rounding errors.
#[test]
fn logits_a_thousand_times_as_large_are_within_the_rule() {
    let in_16_bits = Cases::changed(|case| {
        if case.dtype == Dtype::F32 {
            case.dtype = [Dtype::Bf16, Dtype::F16][case.id % 2];
        }
        case.output_dtype = case.dtype;
        judged(case);
    });
    check("large-logits-1000", 40, in_16_bits.with_just_enough_rows(), |device, case| {
        finite_and_within_the_rule(device, case, without_signs(1000.0))
    });
}

#[test]
fn lse_of_logits_a_thousand_times_as_large_is_within_the_rule() {
    check("large-logits-lse", 30, Cases::changed(scaled), |device, case| {
        let computed = run(device, case, &without_signs(1000.0)(case), Surroundings::Nan)?;
        finite(case, &computed)?;
        let Inputs { q, k, v, .. } = &computed.inputs;
        let verdict = judge_lse(&computed.lse, &exact(&case.sizes(), q, k, v).lse);
        if verdict.passes() { Ok(()) } else { Err(format!("{}: lse: {verdict:?}", computed.kernel)) }
    });
}

#[test]
fn large_logits_of_both_signs_are_finite() {
    check("large-logits-signs", 40, Cases::changed(scaled).with_fewer_heads(), |device, case| {
        let mut inputs = Inputs::drawn(case);
        inputs.q.iter_mut().for_each(|q| *q *= 1000.0);
        finite(case, &run(device, case, &inputs, Surroundings::Nan)?)
    });
}

/// dq, dk and dv in f32, which holds their true values.
#[test]
fn gradients_of_large_logits_are_finite() {
    let cases = Cases::fitted(|mut case| {
        scaled(&mut case);
        case.gradients.as_mut()?.dtype = Dtype::F32;
        Some(case)
    });
    check("large-logits-gradients", 40, cases.extended().with_fewer_heads(), |device, case| {
        let mut inputs = Inputs::drawn(case);
        inputs.q.iter_mut().for_each(|q| *q *= 1000.0);
        finite(case, &run(device, case, &inputs, Surroundings::Nan)?)
    });
}

/// Every number of q, k and v is within a factor 2 of the largest f16.
#[test]
fn f16_near_its_overflow_is_finite() {
    let f16 = Cases::changed(|case| {
        (case.dtype, case.output_dtype) = (Dtype::F16, Dtype::F16);
        case.amplitude = 1.0;
    });
    check("large-logits-f16", 40, f16.with_fewer_heads(), |device, case| {
        let mut inputs = Inputs::drawn(case);
        for tensor in [&mut inputs.q, &mut inputs.k, &mut inputs.v] {
            tensor.iter_mut().for_each(|x| *x = (65504.0 - x.abs().fract() * 32768.0).copysign(*x));
        }
        finite(case, &run(device, case, &inputs, Surroundings::Nan)?)
    });
}

/// Scores are multiples of a huge number: one key has all the weight, and o is its value.
#[test]
fn the_largest_key_takes_all() {
    let distinct = |key: usize| ((key * 37 + 11) % DISTINCT_KEYS) as f32;
    check("large-logits-one-key", 40, few_keys().with_just_enough_rows(), move |device, case| {
        finite_and_within_the_rule(device, case, |case| along_one_column(case, distinct))
    });
}

/// Scores are huge and all the same: every visible key has the same weight.
#[test]
fn equal_keys_share_the_weight() {
    check("large-logits-equal", 40, few_keys().with_just_enough_rows(), |device, case| {
        finite_and_within_the_rule(device, case, |case| along_one_column(case, |_| 3.0))
    });
}

/// Scores grow from key to key, in either direction, by so little that a softmax that goes through tiles of
/// keys never has to move what its scores are relative to, or by so much that it must at every tile.
#[test]
fn scores_that_grow_from_tile_to_tile_are_within_the_rule() {
    /// How much larger the score of the next key is.
    const STEPS: [f32; 7] = [0.003, 0.02, 0.06, 0.1, 0.3, 1.0, 2.0];
    let growing = |case: &Case| {
        let mut inputs = Inputs::drawn(case);
        let scale = case.scale.unwrap_or((case.head_dim as f32).powf(-0.5));
        let step = STEPS[case.id % STEPS.len()] / scale;
        for q in inputs.q.iter_mut().step_by(case.head_dim) {
            *q = 1.0;
        }
        for (row, k) in inputs.k.chunks_mut(case.head_dim).enumerate() {
            let key = row / case.key_heads % case.key_rows;
            let place = if case.id.is_multiple_of(3) { key } else { case.key_rows - key };
            k[0] = step * place as f32;
        }
        inputs
    };
    let cases = Cases::changed(|case| {
        case.key_rows = 300 + case.key_rows % 300;
        case.scale = if case.id.is_multiple_of(2) { None } else { Some(-0.25) };
        (case.amplitude, case.logit_shift) = (1.0, 0.0);
        if case.placement == Placement::Broadcast {
            case.placement = Placement::Bshd;
        }
    });
    check("large-logits-growing", 40, cases.with_just_enough_rows(), move |device, case| {
        finite_and_within_the_rule(device, case, growing)
    });
}

/// A prime: `key * 37 + 11` differs from key to key modulo it. Whole numbers below are exact in every
/// dtype.
const DISTINCT_KEYS: usize = 211;

/// Scales that are not 0, no more keys than there are different numbers for, and o in the dtype of the
/// inputs, to which probabilities are rounded.
fn few_keys() -> Cases {
    Cases::changed(|case| {
        case.key_rows = case.key_rows.min(DISTINCT_KEYS);
        case.scale = if case.id.is_multiple_of(2) { None } else { Some(-0.25) };
        case.output_dtype = case.dtype;
        (case.amplitude, case.logit_shift) = (1.0, 0.0);
        if case.placement == Placement::Broadcast {
            case.placement = Placement::Bshd;
        }
    })
}

/// q is huge in the first column and k is `key_value(key row)` there; both are 0 elsewhere. In f16 the
/// scores stay below its largest number.
fn along_one_column(case: &Case, key_value: impl Fn(usize) -> f32) -> Inputs {
    let huge = match case.dtype {
        Dtype::F16 => 256.0,
        Dtype::Bf16 | Dtype::F32 => 2f32.powi(80),
    };
    let mut inputs = Inputs::drawn(case);
    for (at, q) in inputs.q.iter_mut().enumerate() {
        *q = if at.is_multiple_of(case.head_dim) { huge } else { 0.0 };
    }
    for (at, k) in inputs.k.iter_mut().enumerate() {
        let key = at / (case.head_dim * case.key_heads) % case.key_rows;
        *k = if at.is_multiple_of(case.head_dim) { key_value(key) } else { 0.0 };
    }
    inputs
}
