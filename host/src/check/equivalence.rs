//! A regular grid of cases, for a table or a plot of errors against length.

use super::{Case, Gradients};
use crate::problem::{CausalAlignment, Mask, Mode};
use kernels_gpu::abi::Dtype;

/// Every length with every head dimension and mask (full, causal, and a window of 32 keys on the left
/// and 8 on the right), two query heads to one key head, forward and backward, gradients of the inputs'
/// dtype. Scores are capped in all of them if there is a `softcap`.
pub fn equivalence_cases(
    dtype: Dtype,
    lengths: &[usize],
    head_dims: &[usize],
    softcap: Option<f32>,
) -> Vec<Case> {
    let alignment = CausalAlignment::BottomRight;
    let window = Mask::Window { left: Some(32), right: Some(8), alignment };
    let mut cases = Vec::new();
    for mask in [Mask::Full, Mask::Causal(alignment), window] {
        for &head_dim in head_dims {
            for &length in lengths {
                cases.push(Case {
                    id: cases.len(),
                    seed: cases.len() as u64,
                    query_rows: length,
                    key_rows: length,
                    head_dim,
                    value_dim: head_dim,
                    dtype,
                    output_dtype: dtype,
                    mask,
                    softcap,
                    gradients: Some(Gradients { dtype, has_d_lse: false, mode: Mode::Deterministic }),
                    ..Case::small()
                });
            }
        }
    }
    cases
}
