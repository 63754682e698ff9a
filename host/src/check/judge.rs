//! The tolerance rule for the results of a case, or of several as if they were batches of one.

use super::expected::precision;
use super::{Case, Computed, Expected, GradientInputs, Inputs};
use crate::reference::{Precision, Verdict, judge_gradient, judge_lse, judge_output, output_allowance};
use kernels_gpu::abi::Dtype;

/// How one output of a case compares with the reference.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TensorVerdict {
    /// `o`, `lse`, `dq`, `dk`, `dv`, `dbias` or `dsinks`.
    pub name: &'static str,
    /// The largest error, and what is allowed.
    pub verdict: Verdict,
    /// The largest difference over the largest exact element in size; 0 when both are.
    pub relative: f64,
    /// Elements that are NaN or infinite although the exact ones are finite.
    pub non_finite: usize,
    /// The first of them.
    pub first_non_finite: Option<usize>,
}

/// What came out, what should have, and what came out of unfused code.
pub(super) struct Results {
    tensors: Vec<Tensor>,
}

/// Elements of a tensor whose largest error says little about the next one's: gradients of sinks, mostly.
const FEW_ELEMENTS: usize = 64;

struct Tensor {
    name: &'static str,
    precision: Precision,
    got: Vec<f32>,
    exact: Vec<f64>,
    naive: Vec<f32>,
}

impl Results {
    /// Those of a case, of which so much is `expected`.
    pub(super) fn of(
        case: &Case,
        computed: &Computed,
        expected: impl Fn(&Case, &Inputs, &GradientInputs, &[f32]) -> Expected,
    ) -> Self {
        let nothing = GradientInputs::default();
        let gradients = computed.gradients.as_ref();
        let inputs = gradients.map_or(&nothing, |gradients| &gradients.inputs);
        let expected = expected(case, &computed.inputs, inputs, &computed.o);
        let tensor = |name, dtype, got: &Vec<f32>, exact, naive| {
            let (precision, got) = (precision(dtype), got.clone());
            Tensor { name, precision, got, exact, naive }
        };
        let mut tensors = vec![
            tensor("o", case.output_dtype, &computed.o, expected.o, expected.naive_o),
            tensor("lse", case.output_dtype, &computed.lse, expected.lse, Vec::new()),
        ];
        if let Some(((asked, got), (exact, naive))) =
            case.gradients.zip(gradients).zip(expected.gradients)
        {
            tensors.push(tensor("dq", asked.dtype, &got.dq, exact.dq, naive.dq));
            tensors.push(tensor("dk", asked.dtype, &got.dk, exact.dk, naive.dk));
            tensors.push(tensor("dv", asked.dtype, &got.dv, exact.dv, naive.dv));
            if let Some(d_bias) = case.d_bias() {
                tensors.push(tensor("dbias", d_bias.dtype, &got.d_bias, exact.d_bias, naive.d_bias));
            }
            if case.features.has_sinks && case.features.wants_d_sinks {
                let d_sinks = tensor("dsinks", Dtype::F32, &got.d_sinks, exact.d_sinks, naive.d_sinks);
                tensors.push(d_sinks);
            }
        }
        Results { tensors }
    }

    /// Adds the results of a case of the same kind, as further batches.
    pub(super) fn append(&mut self, other: Results) {
        for (tensor, other) in self.tensors.iter_mut().zip(other.tensors) {
            tensor.got.extend(other.got);
            tensor.exact.extend(other.exact);
            tensor.naive.extend(other.naive);
        }
    }

    /// Every tensor by its rule.
    pub(super) fn verdicts(&self) -> Vec<TensorVerdict> {
        self.tensors.iter().map(Tensor::verdict).collect()
    }

    /// Whether more of the same may show that a failure is chance: an error, beyond what is allowed but by no
    /// more than a factor, in a tensor where what is allowed depends on the errors of unfused code. The
    /// largest of n of those is k times smaller than usual by a chance of about k^-n: the fewer elements, the
    /// larger the factor.
    pub(super) fn is_close(&self, verdicts: &[TensorVerdict]) -> bool {
        self.tensors.iter().zip(verdicts).all(
            |(tensor, TensorVerdict { name, verdict, non_finite, .. })| {
                let factor = if tensor.exact.len() < FEW_ELEMENTS { 8.0 } else { 2.0 };
                verdict.passes()
                    || (*name != "lse" && *non_finite == 0 && verdict.error <= factor * verdict.allowed)
            },
        )
    }

    /// The worst element of the first tensor that does not pass.
    pub(super) fn failure(&self, verdicts: &[TensorVerdict]) -> Option<String> {
        self.tensors.iter().zip(verdicts).find_map(|(tensor, of)| tensor.describe(&of.verdict))
    }
}

impl Tensor {
    fn verdict(&self) -> TensorVerdict {
        let Tensor { name, precision, got, exact, naive } = self;
        let verdict = match *name {
            "lse" => judge_lse(got, exact),
            "o" => judge_output(got, exact, output_allowance(naive, exact, *precision)),
            _ => judge_gradient(got, exact, output_allowance(naive, exact, *precision), *precision),
        };
        let largest = |numbers: &mut dyn Iterator<Item = f64>| {
            numbers.filter(|number| number.is_finite()).fold(0.0, f64::max)
        };
        let size = largest(&mut exact.iter().map(|exact| exact.abs()));
        let pairs = got.iter().zip(exact);
        let error = largest(&mut pairs.clone().map(|(&got, exact)| (f64::from(got) - exact).abs()));
        let mut wrong = pairs.map(|(got, exact)| exact.is_finite() && !got.is_finite());
        let first_non_finite = wrong.clone().position(|wrong| wrong);
        let non_finite = wrong.by_ref().filter(|&wrong| wrong).count();
        let relative = if error == 0.0 { 0.0 } else { error / size };
        TensorVerdict { name, verdict, relative, non_finite, first_non_finite }
    }

    /// The worst element, unless the tensor passes.
    fn describe(&self, verdict: &Verdict) -> Option<String> {
        let Tensor { name, got, exact, .. } = self;
        if verdict.passes() {
            return None;
        }
        let Some(index) = verdict.worst else {
            return Some(format!("{name}: expected {} elements, got {}", exact.len(), got.len()));
        };
        let (got, exact, Verdict { error, allowed, .. }) = (got[index], exact[index], verdict);
        Some(format!(
            "{name}: element {index}: expected {exact}, got {got} (error {error:.2e}, allowed {allowed:.2e})"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Results of one tensor, whose errors are those of unfused code times `factor`.
    fn results(name: &'static str, elements: usize, factor: f32) -> Results {
        let naive = vec![1e-3; elements];
        let got = naive.iter().map(|error| factor * error).collect();
        let exact = vec![0.0; elements];
        Results { tensors: vec![Tensor { name, precision: Precision::F32, got, exact, naive }] }
    }

    /// What is allowed is twice the error of unfused code: 15 is 7.5 times that.
    #[test]
    fn errors_of_few_elements_are_judged_again_where_those_of_many_are_faults() {
        let is_close = |name, elements, factor| {
            let results = results(name, elements, factor);
            let verdicts = results.verdicts();
            assert!(results.failure(&verdicts).is_some(), "{name} of {elements}, {factor}");
            results.is_close(&verdicts)
        };
        for name in ["dsinks", "dv"] {
            assert!(is_close(name, 3, 15.0) && !is_close(name, 3, 17.0));
            assert!(is_close(name, 100, 3.9) && !is_close(name, 100, 5.0));
            assert!(!is_close(name, 3, f32::NAN));
        }
        assert!(!is_close("lse", 3, 15.0));
    }
}
