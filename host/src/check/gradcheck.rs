//! The gradients of the f64 reference against central differences of its forward pass.

use super::{Case, GradientInputs, Gradients, Inputs};
use crate::problem::{CausalAlignment, Mask, Mode};
use crate::reference::{Sizes, exact, exact_backward};
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
    /// Largest differences of dq, dk and dv, each relative to its largest element or 1.
    pub differences: [(&'static str, f64); 3],
    /// What is allowed of each.
    pub allowed: f64,
}

impl GradcheckRow {
    /// Whether all are small enough. NaN never is.
    pub fn passes(&self) -> bool {
        self.differences.iter().all(|&(_, difference)| difference <= self.allowed)
    }
}

/// A few small cases, with every kind of mask, heads in groups, packed sequences, dead rows, a dLSE, and caps
/// that scores come near or not.
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
        Case { packed: true, batches: 4, mask: window(None, Some(2), bottom_right), ..grouped },
        Case { packed: true, batches: 3, mask: Mask::Causal(top_left), ..base.clone() },
        Case { softcap: Some(0.7), ..base.clone() },
        Case { softcap: Some(4.0), scale: Some(-1.0), mask: Mask::Causal(bottom_right), ..base },
    ];
    cases.into_iter().enumerate().map(|(id, case)| Case { id, seed: 1 + id as u64, ..case }).collect()
}

/// Compares the gradients of one case, which must have gradients, element by element.
pub fn gradcheck(case: &Case) -> GradcheckRow {
    let mut differences = [("dq", 0f64), ("dk", 0f64), ("dv", 0f64)];
    let widened = |numbers: &[f32]| numbers.iter().copied().map(f64::from).collect::<Vec<f64>>();
    for part in case.parts() {
        // Each sequence of a packed case gets numbers of its own: which ones does not matter here.
        let sizes = part.sizes;
        let alone = Case {
            seed: case.seed + part.first_query as u64 + 100 * part.first_key as u64,
            packed: false,
            batches: sizes.batches,
            query_rows: sizes.query_rows,
            key_rows: sizes.key_rows,
            ..case.clone()
        };
        let (inputs, gradients) = (Inputs::drawn(&alone), GradientInputs::drawn(&alone));
        let loss = Loss { sizes, d_o: widened(&gradients.d_o), d_lse: widened(&gradients.d_lse) };
        let mut tensors = [&inputs.q, &inputs.k, &inputs.v].map(|numbers| widened(numbers));
        let exact = loss.gradients(&tensors);
        for (tensor, exact) in exact.iter().enumerate() {
            let size = exact.iter().fold(1.0, |size: f64, value| size.max(value.abs()));
            for (element, exact) in exact.iter().enumerate() {
                let slope = loss.slope(&mut tensors, tensor, element);
                let difference = (slope - exact).abs() / size;
                let worst = &mut differences[tensor].1;
                *worst = if difference.is_nan() { difference } else { worst.max(difference) };
            }
        }
    }
    GradcheckRow { case: case.clone(), differences, allowed: ALLOWED }
}

/// `sum(dO o) + sum(dLSE lse)`: what dq, dk and dv are the gradients of.
struct Loss {
    sizes: Sizes,
    d_o: Vec<f64>,
    d_lse: Vec<f64>,
}

impl Loss {
    fn of(&self, [q, k, v]: &[Vec<f64>; 3]) -> f64 {
        let results = exact(&self.sizes, q, k, v);
        let of_o: f64 = results.o.iter().zip(&self.d_o).map(|(o, d_o)| o * d_o).sum();
        // The lse of a dead row is -inf whatever the inputs are, and has no gradient.
        let alive = results.lse.iter().zip(&self.d_lse).filter(|(lse, _)| lse.is_finite());
        of_o + alive.map(|(lse, d_lse)| lse * d_lse).sum::<f64>()
    }

    fn gradients(&self, [q, k, v]: &[Vec<f64>; 3]) -> [Vec<f64>; 3] {
        let d_lse = (!self.d_lse.is_empty()).then_some(self.d_lse.as_slice());
        let gradients = exact_backward(&self.sizes, q, k, v, &self.d_o, d_lse);
        [gradients.dq, gradients.dk, gradients.dv]
    }

    /// The central difference for one element of one tensor.
    fn slope(&self, tensors: &mut [Vec<f64>; 3], tensor: usize, element: usize) -> f64 {
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

    #[test]
    fn the_reference_is_the_slope_of_its_forward_pass() {
        for case in gradcheck_cases() {
            let row = gradcheck(&case);
            assert!(row.passes(), "{} {}: {:?}", case.shape_text(), case.mask, row.differences);
        }
    }

    #[test]
    fn a_difference_above_what_is_allowed_and_a_nan_fail() {
        let row = |difference| GradcheckRow {
            case: Case::small(),
            differences: [("dq", 0.0), ("dk", difference), ("dv", 0.0)],
            allowed: ALLOWED,
        };
        assert!(row(1e-7).passes() && !row(1e-5).passes() && !row(f64::NAN).passes());
    }
}
