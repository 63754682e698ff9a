//! How large the errors of unfused code are for the numbers of a case, when there are many of them.
//!
//! The tolerance rule compares with the largest error that unfused code makes anywhere in a tensor. In a
//! few elements that is small by chance, and where every row sees one key alone it is 0: two equally
//! good results of such a tensor fail the rule now and then. So a second tensor of the same kind, large
//! enough, has a say in what is allowed.

use super::expected::precision;
use super::{Case, Distribution, Expected, GradientInputs, Inputs, Placement, expected};
use crate::problem::{CausalAlignment, Mask};
use crate::reference::unfused_error;

/// Largest errors of unfused code.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct UnfusedErrors {
    pub o: f64,
    pub dq: f64,
    pub dk: f64,
    pub dv: f64,
}

impl UnfusedErrors {
    /// In these results.
    pub fn of(expected: &Expected) -> Self {
        let o = unfused_error(&expected.naive_o, &expected.o);
        let Some((exact, naive)) = &expected.gradients else {
            return UnfusedErrors { o, ..Default::default() };
        };
        UnfusedErrors {
            o,
            dq: unfused_error(&naive.dq, &exact.dq),
            dk: unfused_error(&naive.dk, &exact.dk),
            dv: unfused_error(&naive.dv, &exact.dv),
        }
    }

    /// In the results of a case and in those of its company.
    pub fn with_company(case: &Case, expected: &Expected) -> Self {
        let own = UnfusedErrors::of(expected);
        let company = UnfusedErrors::of(&computed(&company(case)));
        UnfusedErrors {
            o: own.o.max(company.o),
            dq: own.dq.max(company.dq),
            dk: own.dk.max(company.dk),
            dv: own.dv.max(company.dv),
        }
    }
}

/// Numbers of the same kind, and as many keys up to 64: rows see from one to all of them.
fn company(case: &Case) -> Case {
    let group = case.query_heads.checked_div(case.key_heads).unwrap_or(1).clamp(1, 4);
    Case {
        seed: case.seed.wrapping_add(1),
        batches: 1,
        query_rows: case.query_rows.clamp(64, 256),
        key_rows: case.key_rows.clamp(2, 64),
        key_heads: 4 / group,
        query_heads: 4 / group * group,
        value_dim: case.value_dim.min(32),
        mask: Mask::Causal(CausalAlignment::TopLeft),
        placement: Placement::Bshd,
        packed: false,
        ..case.clone()
    }
}

fn computed(case: &Case) -> Expected {
    let rounded = |numbers: &[f32]| numbers.iter().map(|&x| precision(case.dtype).round(x)).collect();
    let distribution = Distribution::of(case);
    let Inputs { q, k, v } = Inputs::drawn(case, distribution);
    let inputs = Inputs { q: rounded(&q), k: rounded(&k), v: rounded(&v) };
    let GradientInputs { d_o, d_lse } = GradientInputs::drawn(case, distribution);
    expected(case, &inputs, &GradientInputs { d_o: rounded(&d_o), d_lse })
}

#[cfg(test)]
mod tests {
    use super::super::Gradients;
    use super::*;
    use crate::problem::Mode;
    use kernels_gpu::abi::Dtype;

    #[test]
    fn one_key_is_exact_alone_and_not_in_company() {
        let gradients = Gradients { dtype: Dtype::F32, has_d_lse: false, mode: Mode::Fast };
        let case = Case {
            dtype: Dtype::F32,
            key_rows: 1,
            gradients: Some(gradients),
            output_dtype: Dtype::F32,
            ..Case::small()
        };
        let results = computed(&case);
        let (alone, company) =
            (UnfusedErrors::of(&results), UnfusedErrors::with_company(&case, &results));
        assert_eq!((alone.o, alone.dk), (0.0, 0.0));
        assert!(
            company.o > 0.0 && company.dq > 0.0 && company.dk > 0.0 && company.dv > 0.0,
            "{company:?}"
        );
        assert!(company.o < 0.05 && company.dv < 0.2, "{company:?}");
    }
}
