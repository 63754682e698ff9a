//! The tolerance rule for the results of a case, or of several as if they were batches of one.

use super::expected::precision;
use super::{Case, ColumnOrder, Computed, GradientInputs, Unfused, expected, unfused};
use crate::reference::{
    Precision, Verdict, allowance, judge_gradient, judge_lse, judge_output, unfused_error,
};
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

/// Rows whose largest error says little about the next one's: gradients of sinks, mostly, of queries that
/// see two keys where others see one, or of a key that takes all of every query.
const FEW_ROWS: usize = 64;
/// Elements that are so many times smaller than the largest have errors that do not count.
const SMALL: f64 = 16.0;

struct Tensor {
    name: &'static str,
    precision: Precision,
    /// How many elements a row has, which may be off by one and the same number times others.
    columns: usize,
    got: Vec<f32>,
    exact: Vec<f64>,
    /// The largest error of unfused code.
    unfused: f64,
}

/// No gradients of o and lse.
const NOTHING: &GradientInputs = &GradientInputs { d_o: Vec::new(), d_lse: Vec::new() };

impl Results {
    /// Those of a case.
    pub(super) fn of(case: &Case, computed: &Computed) -> Self {
        let gradients = computed.gradients.as_ref();
        let inputs = gradients.map_or(NOTHING, |gradients| &gradients.inputs);
        let expected = expected(case, &computed.inputs, inputs, &computed.o);
        let tensor = |name, dtype, got: &Vec<f32>, exact| {
            let (precision, got) = (precision(dtype), got.clone());
            let columns = match name {
                "dq" | "dk" => case.head_dim,
                "o" | "dv" => case.value_dim,
                _ => 1,
            };
            Tensor { name, precision, columns, got, exact, unfused: 0.0 }
        };
        let mut tensors = vec![
            tensor("o", case.output_dtype, &computed.o, expected.o),
            tensor("lse", case.output_dtype, &computed.lse, expected.lse),
        ];
        if let Some(((asked, got), exact)) = case.gradients.zip(gradients).zip(expected.gradients) {
            tensors.push(tensor("dq", asked.dtype, &got.dq, exact.dq));
            tensors.push(tensor("dk", asked.dtype, &got.dk, exact.dk));
            tensors.push(tensor("dv", asked.dtype, &got.dv, exact.dv));
            if let Some(d_bias) = case.d_bias() {
                tensors.push(tensor("dbias", d_bias.dtype, &got.d_bias, exact.d_bias));
            }
            if case.features.has_sinks && case.features.wants_d_sinks {
                tensors.push(tensor("dsinks", Dtype::F32, &got.d_sinks, exact.d_sinks));
            }
        }
        let mut results = Results { tensors };
        results.add_unfused(case, computed, ColumnOrder::OF_MEMORY);
        results
    }

    /// Adds what unfused code is off by that makes its sums in other orders. Where a few elements decide,
    /// such as those that dropout has multiplied by 100, the largest error of one order is that of a few
    /// roundings, and now and then next to nothing, however many cases there are.
    pub(super) fn add_other_orders(&mut self, case: &Case, computed: &Computed) {
        ColumnOrder::others().for_each(|order| self.add_unfused(case, computed, order));
    }

    /// Adds what unfused code is off by, of the case that these results are of.
    fn add_unfused(&mut self, case: &Case, computed: &Computed, order: ColumnOrder) {
        let gradients = computed.gradients.as_ref().map_or(NOTHING, |gradients| &gradients.inputs);
        let Unfused { o, gradients } = unfused(case, &computed.inputs, gradients, &computed.o, order);
        let gradients = gradients.unwrap_or_default();
        for Tensor { name, exact, unfused, .. } in &mut self.tensors {
            let naive = match *name {
                "o" => &o,
                "dq" => &gradients.dq,
                "dk" => &gradients.dk,
                "dv" => &gradients.dv,
                "dbias" => &gradients.d_bias,
                "dsinks" => &gradients.d_sinks,
                // It has a tolerance of its own.
                _ => continue,
            };
            *unfused = unfused_error(naive, exact).max(*unfused);
        }
    }

    /// Adds the results of a case of the same kind, as further batches.
    pub(super) fn append(&mut self, other: Results) {
        for (tensor, other) in self.tensors.iter_mut().zip(other.tensors) {
            tensor.got.extend(other.got);
            tensor.exact.extend(other.exact);
            tensor.unfused = tensor.unfused.max(other.unfused);
        }
    }

    /// Every tensor by its rule.
    pub(super) fn verdicts(&self) -> Vec<TensorVerdict> {
        self.tensors.iter().map(Tensor::verdict).collect()
    }

    /// Whether more of the same may show that a failure is chance: an error, beyond what is allowed but by no
    /// more than a factor, in a tensor where what is allowed depends on the errors of unfused code. The
    /// largest of n of those is k times smaller than usual by a chance of about k^-n: the fewer rows have
    /// elements about as large as the largest, the larger the factor.
    pub(super) fn is_close(&self, verdicts: &[TensorVerdict]) -> bool {
        self.tensors.iter().zip(verdicts).all(
            |(tensor, TensorVerdict { name, verdict, non_finite, .. })| {
                let factor = if tensor.large_rows() < FEW_ROWS { 8.0 } else { 2.0 };
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
        let Tensor { name, precision, got, exact, unfused, .. } = self;
        let verdict = match *name {
            "lse" => judge_lse(got, exact),
            "o" => judge_output(got, exact, allowance(*unfused, exact, *precision)),
            _ => judge_gradient(got, exact, allowance(*unfused, exact, *precision), *precision),
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

    /// How many rows have an element that is about as large as the largest one.
    fn large_rows(&self) -> usize {
        let least = largest(&mut self.exact.iter().map(|exact| exact.abs())) / SMALL;
        let rows = self.exact.chunks(self.columns.max(1));
        rows.filter(|row| row.iter().any(|exact| exact.abs() >= least)).count()
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

/// The largest of the finite ones, and of 0.
fn largest(numbers: &mut dyn Iterator<Item = f64>) -> f64 {
    numbers.filter(|number| number.is_finite()).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::super::{ComputedGradients, Gradients, Inputs};
    use super::*;
    use crate::problem::Mode;
    use std::time::Duration;

    /// Results of one tensor, whose errors are those of unfused code times `factor`.
    fn results(name: &'static str, elements: usize, factor: f32) -> Results {
        let (got, exact) = (vec![1e-3 * factor; elements], vec![0.0; elements]);
        let (precision, unfused) = (Precision::F32, 1e-3);
        Results { tensors: vec![Tensor { name, precision, columns: 1, got, exact, unfused }] }
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

    /// Of many elements, too, those of a few rows may decide: they are off together, or all others are next
    /// to nothing.
    #[test]
    fn errors_of_many_elements_of_few_rows_or_one_of_which_is_large_are_judged_again() {
        let mut results = results("dk", 1000, 15.0);
        results.tensors[0].columns = 16;
        assert!(results.is_close(&results.verdicts()));
        results.tensors[0].columns = 15;
        assert!(!results.is_close(&results.verdicts()));
        results.tensors[0].exact[7] = 1.0;
        results.tensors[0].got[7] = 1.0;
        assert!(results.is_close(&results.verdicts()));
    }

    /// What unfused code makes of a case, with its sums in this order.
    fn computed(case: &Case, order: ColumnOrder) -> Computed {
        let (inputs, gradients) = (Inputs::drawn(case), GradientInputs::drawn(case));
        let exact = expected(&Case { gradients: None, ..case.clone() }, &inputs, NOTHING, &[]);
        let o: Vec<f32> = exact.o.iter().map(|&o| o as f32).collect();
        let made = unfused(case, &inputs, &gradients, &o, order);
        let of = made.gradients.unwrap();
        Computed {
            kernel: "none".to_owned(),
            inputs,
            o,
            lse: exact.lse.iter().map(|&lse| lse as f32).collect(),
            gradients: Some(ComputedGradients {
                kernel: "none".to_owned(),
                inputs: gradients,
                dq: of.dq,
                dk: of.dk,
                dv: of.dv,
                d_bias: of.d_bias,
                d_sinks: of.d_sinks,
                spilled: None,
            }),
            spilled: None,
            elapsed: Duration::ZERO,
        }
    }

    /// A sink's gradient is one number: where one order of its sums is lucky, another one fails by the rule
    /// that compares with that alone.
    #[test]
    fn unfused_code_of_another_order_is_within_the_rule_of_all_orders() {
        let (mut failures, order) = (0, ColumnOrder::others().next().unwrap());
        for seed in 0..200 {
            let mut case = Case {
                seed,
                dtype: Dtype::F32,
                output_dtype: Dtype::F32,
                batches: 1,
                query_rows: 1,
                key_rows: 3,
                query_heads: 1,
                key_heads: 1,
                head_dim: 24,
                value_dim: 24,
                gradients: Some(Gradients { dtype: Dtype::F32, has_d_lse: false, mode: Mode::Fast }),
                ..Case::small()
            };
            (case.features.has_sinks, case.features.wants_d_sinks) = (true, true);
            let computed = computed(&case, order);
            let mut results = Results::of(&case, &computed);
            failures += usize::from(results.failure(&results.verdicts()).is_some());
            results.add_other_orders(&case, &computed);
            assert_eq!(results.failure(&results.verdicts()), None, "seed {seed}");
        }
        assert!(failures > 0);
    }
}
