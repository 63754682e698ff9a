//! The tolerance rule for multi-scale deformable attention: docs/semantics.md, section 3.

use super::{MsdaCase, MsdaComputed, MsdaNumbers};
use crate::check::TensorVerdict;
use crate::reference::{
    MsdaTensors, Precision, Verdict, exact_msda, exact_msda_backward, naive_msda, naive_msda_backward,
    output_allowance,
};
use kernels_gpu::abi::Dtype;

/// What an f32 result may be off whatever unfused code is, as a share of the largest: 8 units in the last
/// place. Where a tensor has few elements, unfused code has next to no error in one case of fifty.
const F32_SHARE: f64 = 8.0 * f32::EPSILON as f64;

pub(super) fn precision(dtype: Dtype) -> Precision {
    match dtype {
        Dtype::Bf16 => Precision::Bf16,
        Dtype::F16 => Precision::F16,
        Dtype::F32 => Precision::F32,
    }
}

/// How o and the gradients compare with the reference, for the inputs as the kernels saw them.
pub fn judge_msda(case: &MsdaCase, computed: &MsdaComputed) -> Vec<TensorVerdict> {
    let MsdaNumbers { value, locations, weights, d_o } = &computed.numbers;
    let tensors = MsdaTensors { value, locations, weights };
    let sizes = case.sizes();
    let outputs = [case.dtype, case.locations_dtype, case.weights_dtype].map(precision);
    let exact = exact_msda_backward(&sizes, tensors, d_o);
    let exact_o = exact_msda(&sizes, tensors);
    let naive_o = naive_msda(&sizes, tensors, outputs[0]);
    // A result in f32 is held to code that rounds nothing to 16 bits on the way, also of values that have
    // them.
    let [low, wide] =
        [outputs, [Precision::F32; 3]].map(|outputs| naive_msda_backward(&sizes, tensors, d_o, outputs));
    let [_, of_locations, of_weights] =
        outputs.map(|output| if output == Precision::F32 { &wide } else { &low });
    let [value, locations, weights] = outputs;
    vec![
        verdict("o", value, &computed.o, &exact_o, &naive_o),
        verdict("dvalue", value, &computed.d_value, &exact.d_value, &low.d_value),
        verdict(
            "dlocations",
            locations,
            &computed.d_locations,
            &exact.d_locations,
            &of_locations.d_locations,
        ),
        verdict("dweights", weights, &computed.d_weights, &exact.d_weights, &of_weights.d_weights),
    ]
}

/// No element is exempt: NaN where the exact result is NaN, infinity of its sign where its type does not hold
/// it, and else a difference that is small enough.
fn verdict(
    name: &'static str,
    output: Precision,
    got: &[f32],
    exact: &[f64],
    naive: &[f32],
) -> TensorVerdict {
    let largest = exact.iter().filter(|exact| exact.is_finite()).fold(0.0, |a: f64, b| a.max(b.abs()));
    let rule = output_allowance(naive, exact, output);
    let allowed = if output == Precision::F32 { rule.max(F32_SHARE * largest) } else { rule };
    let mut verdict = Verdict { error: 0.0, allowed, worst: None };
    if got.len() != exact.len() {
        verdict.error = f64::NAN;
    }
    let (mut non_finite, mut first_non_finite) = (0, None);
    for (index, (&got, &exact)) in got.iter().zip(exact).enumerate() {
        let got = f64::from(got);
        let rounded = output.round_f64(exact);
        let error = if exact.is_nan() && got.is_nan() || rounded.is_infinite() && got == rounded {
            0.0
        } else {
            (got - exact).abs()
        };
        if exact.is_finite() && !got.is_finite() {
            non_finite += 1;
            first_non_finite = first_non_finite.or(Some(index));
        }
        let is_worse = verdict.worst.is_none() || error > verdict.error || error.is_nan();
        if is_worse && !verdict.error.is_nan() {
            verdict = Verdict { error, worst: Some(index), ..verdict };
        }
    }
    let relative = if verdict.error == 0.0 { 0.0 } else { verdict.error / largest };
    TensorVerdict { name, verdict, relative, non_finite, first_non_finite }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn f32_results_may_be_off_by_units_in_the_last_place_of_the_largest() {
        for largest in [0.1, 1.0, 1e6] {
            let passes = |off: f64| {
                let got = [(largest * (1.0 + off)) as f32, 0.0];
                let naive = [largest as f32, 0.0];
                verdict("o", Precision::F32, &got, &[largest, 0.0], &naive).verdict.passes()
            };
            assert!(passes(7e-7) && passes(-7e-7), "{largest}");
            assert!(!passes(1.5e-6) && !passes(-1.5e-6), "{largest}");
        }
    }

    /// Gradients in f32 of values in 16 bits are no worse than those of values in f32.
    #[test]
    fn f32_gradients_of_narrow_values_are_judged_as_f32() {
        let case = MsdaCase { dtype: Dtype::Bf16, ..MsdaCase::small() };
        let numbers = MsdaNumbers::drawn(&case);
        let tensors = MsdaTensors {
            value: &numbers.value,
            locations: &numbers.locations,
            weights: &numbers.weights,
        };
        let exact = exact_msda_backward(&case.sizes(), tensors, &numbers.d_o);
        let narrow = |numbers: &[f64]| numbers.iter().map(|&number| number as f32).collect::<Vec<_>>();
        let mut computed = MsdaComputed {
            kernels: Vec::new(),
            o: narrow(&exact_msda(&case.sizes(), tensors)),
            d_value: narrow(&exact.d_value),
            d_locations: narrow(&exact.d_locations),
            d_weights: narrow(&exact.d_weights),
            numbers,
            spilled: None,
            elapsed: Duration::ZERO,
        };
        let passes = |computed: &MsdaComputed| {
            judge_msda(&case, computed).iter().map(|tensor| tensor.verdict.passes()).collect::<Vec<_>>()
        };
        assert_eq!(passes(&computed), [true; 4]);
        for tensor in [&mut computed.d_locations, &mut computed.d_weights] {
            let largest = tensor.iter().fold(0.0, |a: f32, b| a.max(b.abs()));
            tensor[5] += 1e-5 * largest;
        }
        assert_eq!(passes(&computed), [true, true, false, false]);
    }
}
