//! The tolerance rule for the results of a case, or of several as if they were batches of one.

use super::expected::precision;
use super::{Case, Computed, GradientInputs, expected};
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

/// Rows of a tensor ([`Tensor::rows_that_count`]) whose largest error says little about the next one's.
const FEW_ROWS: f64 = 64.0;

struct Tensor {
    name: &'static str,
    precision: Precision,
    /// Elements whose errors belong together: all of a row of dq have those of the same ds.
    columns: usize,
    got: Vec<f32>,
    exact: Vec<f64>,
    naive: Vec<f32>,
}

impl Results {
    /// Those of a case.
    pub(super) fn of(case: &Case, computed: &Computed) -> Self {
        let nothing = GradientInputs { d_o: Vec::new(), d_lse: Vec::new() };
        let gradients = computed.gradients.as_ref();
        let inputs = gradients.map_or(&nothing, |gradients| &gradients.inputs);
        let expected = expected(case, &computed.inputs, inputs, &computed.o);
        let tensor = |name, (dtype, columns), got: &Vec<f32>, exact, naive| {
            let (precision, got) = (precision(dtype), got.clone());
            Tensor { name, precision, columns, got, exact, naive }
        };
        let Case { head_dim, value_dim, output_dtype: dtype, .. } = *case;
        let mut tensors = vec![
            tensor("o", (dtype, value_dim), &computed.o, expected.o, expected.naive_o),
            tensor("lse", (dtype, 1), &computed.lse, expected.lse, Vec::new()),
        ];
        if let Some(((asked, got), (exact, naive))) =
            case.gradients.zip(gradients).zip(expected.gradients)
        {
            tensors.push(tensor("dq", (asked.dtype, head_dim), &got.dq, exact.dq, naive.dq));
            tensors.push(tensor("dk", (asked.dtype, head_dim), &got.dk, exact.dk, naive.dk));
            tensors.push(tensor("dv", (asked.dtype, value_dim), &got.dv, exact.dv, naive.dv));
            if let Some(d_bias) = case.d_bias() {
                let of = (d_bias.dtype, 1);
                tensors.push(tensor("dbias", of, &got.d_bias, exact.d_bias, naive.d_bias));
            }
            if case.features.has_sinks && case.features.wants_d_sinks {
                let of = (Dtype::F32, 1);
                tensors.push(tensor("dsinks", of, &got.d_sinks, exact.d_sinks, naive.d_sinks));
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
    /// largest of n of those is k times smaller than usual by a chance of about k^-n: the fewer rows, the
    /// larger the factor.
    pub(super) fn is_close(&self, verdicts: &[TensorVerdict]) -> bool {
        self.tensors.iter().zip(verdicts).all(
            |(tensor, TensorVerdict { name, verdict, non_finite, .. })| {
                let factor = if tensor.rows_that_count() < FEW_ROWS { 8.0 } else { 2.0 };
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
    /// How many rows of one size would be as many as these: `(sum r^2)^2 / sum r^4` of the rows' norms r, the
    /// participation ratio. Where a few are much larger than the others, these alone decide the largest
    /// error: of a bias under steep slopes, of queries of which most see one key.
    fn rows_that_count(&self) -> f64 {
        let square = |row: &[f64]| row.iter().map(|value| value * value).sum::<f64>();
        let squares: Vec<f64> = self.exact.chunks(self.columns.max(1)).map(square).collect();
        // Relative to the largest: its fourth power need not be a number.
        let largest = squares.iter().copied().fold(0.0, f64::max);
        let shares = || squares.iter().map(|square| square / largest).filter(|share| share.is_finite());
        let (sum, of_squares) =
            (shares().sum::<f64>(), shares().map(|share| share * share).sum::<f64>());
        if of_squares > 0.0 { sum * sum / of_squares } else { 0.0 }
    }

    fn verdict(&self) -> TensorVerdict {
        let Tensor { name, precision, got, exact, naive, .. } = self;
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

    /// Results of one tensor of rows of these sizes, whose errors are those of unfused code times `factor`.
    fn results(name: &'static str, sizes: &[f64], factor: f64) -> Results {
        let exact: Vec<f64> = sizes.iter().flat_map(|&size| [size; 2]).collect();
        let off = |factor: f64| exact.iter().map(|exact| (exact + 1e-3 * factor) as f32).collect();
        let (naive, got, precision) = (off(1.0), off(factor), Precision::F32);
        Results { tensors: vec![Tensor { name, precision, columns: 2, got, exact, naive }] }
    }

    /// What is allowed is twice the error of unfused code: 15 is 7.5 times that.
    #[test]
    fn errors_of_few_rows_are_judged_again_where_those_of_many_are_faults() {
        let is_close = |name, sizes: &[f64], factor| {
            let results = results(name, sizes, factor);
            let verdicts = results.verdicts();
            assert!(results.failure(&verdicts).is_some(), "{name} of {sizes:?}, {factor}");
            results.is_close(&verdicts)
        };
        let few_of_many = [[8.0; 3].as_slice(), &[0.125; 100]].concat();
        for name in ["dsinks", "dv"] {
            for few in [&[1.0; 3], [0.0; 100].as_slice(), &few_of_many] {
                assert!(is_close(name, few, 15.0) && !is_close(name, few, 17.0));
            }
            assert!(is_close(name, &[1.0; 100], 3.9) && !is_close(name, &[1.0; 100], 5.0));
            assert!(!is_close(name, &[1.0; 3], f64::NAN));
        }
        assert!(!is_close("lse", &[1.0; 3], 15.0));
    }

    #[test]
    fn rows_that_count_are_those_of_the_largest_size() {
        let count = |sizes: &[f64]| results("dq", sizes, 1.0).tensors[0].rows_that_count();
        assert_eq!((count(&[3.0; 7]), count(&[0.0; 7]), count(&[])), (7.0, 0.0, 0.0));
        assert_eq!(count(&[1e30, 1e30, 0.0, 1.0]), 2.0);
        assert!(count(&[1e200, f64::INFINITY]).is_finite());
    }
}
