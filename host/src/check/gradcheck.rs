//! The gradients of the f64 reference against central differences of its forward pass.

use super::expected::part_of_scores;
use super::{
    BiasFeature, BiasValues, Case, Dimensions, Features, GradientInputs, Gradients, Inputs, MaskFeature,
    ScoreHeads, ScorePlacement,
};
use crate::problem::{AlibiSlopes, CausalAlignment, Mask, Mode};
use crate::reference::{DropoutNumbers, OverScores, Scores, Sizes, exact_backward_with, exact_with};
use kernels_gpu::abi::Dtype;

/// Half of the distance between the two points of a central difference. In f64 its truncation, of the
/// size of `STEP` squared, and its cancellation, of 1e-16 over `STEP`, are then both near 1e-10.
const STEP: f64 = 1e-5;

/// Differences that are allowed, relative to the largest element of the gradient or 1: far above the
/// errors of a central difference, far below those of a wrong formula.
const ALLOWED: f64 = 1e-6;

/// How far the reference's gradients are from central differences.
#[derive(Clone, Debug, PartialEq)]
pub struct GradcheckRow {
    /// The case.
    pub case: Case,
    /// Largest differences of dq, dk and dv, and of dbias and dsinks where there are any, each relative to
    /// its largest element or 1.
    pub differences: Vec<(&'static str, f64)>,
    /// What is allowed of each.
    pub allowed: f64,
}

impl GradcheckRow {
    /// Whether all are small enough. NaN never is.
    pub fn passes(&self) -> bool {
        self.differences.iter().all(|&(_, difference)| difference <= self.allowed)
    }
}

/// A few small cases, with every kind of mask, heads in groups, packed sequences, dead rows, a dLSE, caps
/// that scores come near or not, and all that scores can have beside q and k.
pub fn gradcheck_cases() -> Vec<Case> {
    let gradients = Gradients { dtype: Dtype::F32, has_d_lse: true, mode: Mode::Deterministic };
    let base = Case {
        query_rows: 5,
        key_rows: 7,
        head_dim: 6,
        value_dim: 4,
        dtype: Dtype::F32,
        output_dtype: Dtype::F32,
        gradients: Some(gradients),
        ..Case::small()
    };
    let (bottom_right, top_left) = (CausalAlignment::BottomRight, CausalAlignment::TopLeft);
    let window = |left, right, alignment| Mask::Window { left, right, alignment };
    let grouped = Case { batches: 2, query_heads: 6, key_heads: 2, ..base.clone() };
    let cases = vec![
        base.clone(),
        Case { gradients: Some(Gradients { has_d_lse: false, ..gradients }), ..grouped.clone() },
        Case { mask: Mask::Causal(bottom_right), ..grouped.clone() },
        Case { mask: Mask::Causal(bottom_right), query_rows: 7, key_rows: 4, ..base.clone() },
        Case { mask: Mask::Causal(top_left), scale: Some(0.7), ..base.clone() },
        Case { mask: window(Some(2), Some(1), bottom_right), ..base.clone() },
        Case { mask: window(Some(1), None, top_left), query_rows: 9, key_rows: 5, ..base.clone() },
        Case { packed: true, batches: 4, mask: window(None, Some(2), bottom_right), ..grouped.clone() },
        Case { packed: true, batches: 3, mask: Mask::Causal(top_left), ..base.clone() },
        Case { softcap: Some(0.7), ..base.clone() },
        Case { softcap: Some(4.0), scale: Some(-1.0), mask: Mask::Causal(bottom_right), ..base },
    ];
    let cases = cases.into_iter().chain(cases_with_features(&grouped));
    cases.enumerate().map(|(id, case)| Case { id, seed: 1 + id as u64, ..case }).collect()
}

/// Bias, mask, slopes, sinks and dropout, alone and together, with windows, caps, packed sequences and dead
/// rows.
fn cases_with_features(grouped: &Case) -> Vec<Case> {
    let bias = |dimensions, values| {
        let (dtype, gradient, placement) = (Dtype::F32, Some(Dtype::F32), ScorePlacement::Dense);
        Some(BiasFeature { dtype, dimensions, placement, values, gradient })
    };
    let (none, all) = (Features::default(), Dimensions::ALL);
    let key_heads = Dimensions { heads: ScoreHeads::Key, queries: false, ..all };
    let of_keys = Dimensions { batches: false, heads: ScoreHeads::One, queries: false, keys: true };
    let of_queries = Dimensions { keys: false, ..all };
    let mask = |dimensions, density| {
        let (placement, has_dead_rows) = (ScorePlacement::Dense, true);
        Some(MaskFeature { dimensions, placement, density, block: 1, has_dead_rows })
    };
    let with_sinks = Features { has_sinks: true, wants_d_sinks: true, ..none };
    let everything = Features {
        bias: bias(Dimensions { heads: ScoreHeads::Key, ..all }, BiasValues::Hiding),
        mask: mask(Dimensions { heads: ScoreHeads::One, ..all }, 0.7),
        alibi: Some(AlibiSlopes::PerBatchAndHead),
        ..with_sinks
    };
    let bottom_right = CausalAlignment::BottomRight;
    let window = Mask::Window { left: Some(3), right: Some(2), alignment: CausalAlignment::TopLeft };
    let case = |features| Case { features, ..grouped.clone() };
    vec![
        case(Features { bias: bias(all, BiasValues::Normal), ..none }),
        case(Features { bias: bias(all, BiasValues::Hiding), ..none }),
        Case {
            softcap: Some(0.7),
            scale: Some(1.3),
            ..case(Features { bias: bias(key_heads, BiasValues::Normal), ..none })
        },
        Case {
            mask: Mask::Causal(bottom_right),
            ..case(Features { bias: bias(of_keys, BiasValues::Normal), ..none })
        },
        case(Features { bias: bias(of_queries, BiasValues::Normal), ..none }),
        case(Features { mask: mask(all, 0.5), ..none }),
        case(Features { mask: mask(key_heads, 0.5), ..with_sinks }),
        Case { mask: window, ..case(Features { alibi: Some(AlibiSlopes::PerHead), ..none }) },
        Case { query_rows: 7, key_rows: 4, mask: Mask::Causal(bottom_right), ..case(with_sinks) },
        Case { mask: window, softcap: Some(2.0), ..case(everything) },
        Case { packed: true, batches: 4, softcap: Some(0.7), ..case(everything) },
        case(Features { dropout: Some(0.3), ..none }),
        Case { mask: window, ..case(Features { dropout: Some(0.9), ..none }) },
        Case { softcap: Some(2.0), ..case(Features { dropout: Some(0.5), ..everything }) },
        Case { packed: true, batches: 4, ..case(Features { dropout: Some(0.5), ..everything }) },
    ]
}

/// Compares the gradients of one case, which must have gradients, element by element.
pub fn gradcheck(case: &Case) -> GradcheckRow {
    let mut differences = vec![("dq", 0f64), ("dk", 0f64), ("dv", 0f64)];
    differences.extend(case.features.bias.map(|_| ("dbias", 0.0)));
    differences.extend(case.features.has_sinks.then_some(("dsinks", 0.0)));
    let widened = |numbers: &[f32]| numbers.iter().copied().map(f64::from).collect::<Vec<f64>>();
    for part in case.parts() {
        // Each sequence of a packed case gets numbers of its own: which ones does not matter here.
        let alone = Case {
            seed: case.seed + part.first_query as u64 + 100 * part.first_key as u64,
            packed: false,
            batches: part.sizes.batches,
            query_rows: part.sizes.query_rows,
            key_rows: part.sizes.key_rows,
            ..case.clone()
        };
        let (inputs, gradients) = (Inputs::drawn(&alone), GradientInputs::drawn(&alone));
        let whole = alone.parts().remove(0);
        let scores = part_of_scores(&alone, &whole, &inputs);
        let slopes = scores.alibi_slopes.map(widened);
        let loss = Loss {
            sizes: whole.sizes,
            bias_shape: scores.bias.map(|bias| bias.shape),
            mask: scores.mask,
            alibi_slopes: slopes.as_deref(),
            has_sinks: scores.sinks.is_some(),
            dropout: scores.dropout,
            d_o: widened(&gradients.d_o),
            d_lse: widened(&gradients.d_lse),
        };
        let (bias, sinks) = (&inputs.scores.bias, &inputs.scores.sinks);
        let mut tensors = [&inputs.q, &inputs.k, &inputs.v, bias, sinks].map(|numbers| widened(numbers));
        for (tensor, exact) in loss.gradients(&tensors).into_iter().enumerate() {
            let name = ["dq", "dk", "dv", "dbias", "dsinks"][tensor];
            let Some((_, worst)) = differences.iter_mut().find(|(of, _)| *of == name) else { continue };
            let size = exact.iter().fold(1.0, |size: f64, value| size.max(value.abs()));
            for (element, exact) in exact.iter().enumerate() {
                let slope = loss.slope(&mut tensors, tensor, element);
                let difference = (slope - exact).abs() / size;
                *worst = if difference.is_nan() { difference } else { worst.max(difference) };
            }
        }
    }
    GradcheckRow { case: case.clone(), differences, allowed: ALLOWED }
}

/// q, k, v, bias and sinks.
type Tensors = [Vec<f64>; 5];

/// `sum(dO o) + sum(dLSE lse)`: what the gradients are of.
struct Loss<'l> {
    sizes: Sizes,
    bias_shape: Option<[usize; 4]>,
    mask: Option<OverScores<'l, bool>>,
    alibi_slopes: Option<&'l [f64]>,
    has_sinks: bool,
    dropout: Option<DropoutNumbers>,
    d_o: Vec<f64>,
    d_lse: Vec<f64>,
}

impl Loss<'_> {
    fn scores<'t>(&'t self, bias: &'t [f64], sinks: &'t [f64]) -> Scores<'t, f64> {
        Scores {
            bias: self.bias_shape.map(|shape| OverScores { shape, values: bias }),
            mask: self.mask,
            alibi_slopes: self.alibi_slopes,
            sinks: self.has_sinks.then_some(sinks),
            dropout: self.dropout,
        }
    }

    fn of(&self, [q, k, v, bias, sinks]: &Tensors) -> f64 {
        let results = exact_with(&self.sizes, &self.scores(bias, sinks), q, k, v);
        let of_o: f64 = results.o.iter().zip(&self.d_o).map(|(o, d_o)| o * d_o).sum();
        // The lse of a dead row is -inf whatever the inputs are, and has no gradient.
        let alive = results.lse.iter().zip(&self.d_lse).filter(|(lse, _)| lse.is_finite());
        of_o + alive.map(|(lse, d_lse)| lse * d_lse).sum::<f64>()
    }

    fn gradients(&self, [q, k, v, bias, sinks]: &Tensors) -> Tensors {
        let d_lse = (!self.d_lse.is_empty()).then_some(self.d_lse.as_slice());
        let scores = self.scores(bias, sinks);
        let gradients = exact_backward_with(&self.sizes, &scores, [q, k, v], &self.d_o, d_lse);
        [gradients.dq, gradients.dk, gradients.dv, gradients.d_bias, gradients.d_sinks]
    }

    /// The central difference for one element of one tensor. Of minus infinity, which stays what it is, that
    /// is 0.
    fn slope(&self, tensors: &mut Tensors, tensor: usize, element: usize) -> f64 {
        let value = tensors[tensor][element];
        let mut at = |value| {
            tensors[tensor][element] = value;
            self.of(tensors)
        };
        let slope = (at(value + STEP) - at(value - STEP)) / (2.0 * STEP);
        at(value);
        slope
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Some of the cases: the command runs all of them (`host/tests/cli.rs`).
    #[test]
    fn the_reference_is_the_slope_of_its_forward_pass() {
        for case in gradcheck_cases().into_iter().step_by(5) {
            let row = gradcheck(&case);
            assert!(row.passes(), "{} {}: {:?}", case.shape_text(), case.mask, row.differences);
        }
    }

    #[test]
    fn a_difference_above_what_is_allowed_and_a_nan_fail() {
        let row = |difference| GradcheckRow {
            case: Case::small(),
            differences: vec![("dq", 0.0), ("dk", difference), ("dv", 0.0)],
            allowed: ALLOWED,
        };
        assert!(row(1e-7).passes() && !row(1e-5).passes() && !row(f64::NAN).passes());
    }
}
