//! The grid of tests that Flash-DMAttn has of its kernels, run on ours: its shapes, masks and windows,
//! forward and backward, by the tolerance rule. It compares 95 of 100 elements within 0.1 and lets others be
//! anything, NaN included; here no element is exempt.

use super::{
    BiasFeature, BiasValues, Case, Dimensions, Features, Gradients, ScoreHeads, ScorePlacement,
};
use crate::problem::{DynamicMask, DynamicWay, Mask, Mode};
use kernels_gpu::abi::Dtype;

/// Query heads and key heads.
const HEADS: [[usize; 2]; 3] = [[2, 1], [4, 2], [8, 2]];

/// Sq and Sk.
const ROWS: [[usize; 2]; 9] = [
    [64, 64],
    [128, 128],
    [256, 256],
    [512, 512],
    [1024, 1024],
    [799, 3],
    [3, 799],
    [511, 512],
    [512, 511],
];

const HEAD_DIMS: [usize; 6] = [32, 64, 96, 128, 192, 256];

/// How many keys are kept.
const WINDOWS: [usize; 3] = [32, 128, 2048];

/// How much of the grid is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlashDmattnSize {
    /// Products of q and k, over all heads and batches, above which a case has one batch and two query heads.
    pub pairs: usize,
}

impl FlashDmattnSize {
    /// All of it.
    pub const FULL: Self = Self { pairs: usize::MAX };

    /// What the emulator takes a second for.
    pub const EMULATED: Self = Self { pairs: 1 << 17 };
}

/// Its grid, with numbers from `seed` on. A choice of keys for each query, and one for all queries, whose
/// keys are gathered, take turns, and so do bf16 and f16, of which it has the former, and the two modes.
pub fn flash_dmattn_cases(seed: u64, size: FlashDmattnSize) -> Vec<Case> {
    let mut cases = Vec::new();
    for [query_rows, key_rows] in ROWS {
        for head_dim in HEAD_DIMS {
            for (heads, batches) in HEADS.into_iter().flat_map(|heads| [(heads, 1), (heads, 2)]) {
                for (causal, window) in [false, true].into_iter().flat_map(|c| WINDOWS.map(|w| (c, w))) {
                    let pairs = batches * heads[0] * query_rows * key_rows;
                    let is_first = heads == HEADS[0] && batches == 1;
                    if pairs <= size.pairs || is_first {
                        let id = cases.len();
                        let rows = [query_rows, key_rows];
                        cases.push(one(id, seed, rows, head_dim, batches, heads, causal, window));
                    }
                }
            }
        }
    }
    cases
}

#[allow(clippy::too_many_arguments)] // The dimensions of the grid.
fn one(
    id: usize,
    seed: u64,
    [query_rows, key_rows]: [usize; 2],
    head_dim: usize,
    batches: usize,
    [query_heads, key_heads]: [usize; 2],
    causal: bool,
    window: usize,
) -> Case {
    let dtype = if id % 4 < 2 { Dtype::Bf16 } else { Dtype::F16 };
    // One choice for all queries; its keys are gathered, if they are all, too. Not of three keys: their
    // gradients of the bias are three sums over all queries, of which the rule would compare chances (the
    // rounding of o moves each, and that of unfused code may cancel it).
    let of_all = id.is_multiple_of(2) && key_rows > 3;
    let dimensions = Dimensions { batches: true, heads: ScoreHeads::Key, queries: !of_all, keys: true };
    let bias = BiasFeature {
        dtype,
        dimensions,
        placement: ScorePlacement::Dense,
        values: BiasValues::Normal,
        gradient: Some(dtype),
    };
    let mask = DynamicMask::top_k(window);
    let mask = if of_all { mask.with_way(DynamicWay::Gather) } else { mask };
    let mode = if id % 8 < 4 { Mode::Fast } else { Mode::Deterministic };
    Case {
        id,
        seed: seed.wrapping_add((id as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)),
        batches,
        query_rows,
        key_rows,
        query_heads,
        key_heads,
        head_dim,
        value_dim: head_dim,
        dtype,
        output_dtype: dtype,
        mask: if causal { Mask::Full.and_causal() } else { Mask::Full },
        features: Features { bias: Some(bias), dynamic_mask: Some(mask), ..Features::default() },
        gradients: Some(Gradients { dtype, has_d_lse: false, mode }),
        ..Case::small()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grid_is_whole_and_its_problems_are_valid() {
        let full = flash_dmattn_cases(0, FlashDmattnSize::FULL);
        assert_eq!(full.len(), 9 * 6 * 6 * 6);
        let some = flash_dmattn_cases(0, FlashDmattnSize::EMULATED);
        assert!(some.len() < full.len());
        for case in full.iter().chain(&some) {
            assert!(case.backward_problem().unwrap().validate().is_ok(), "{case:?}");
        }
        for rows in ROWS {
            let of_rows = some.iter().filter(|case| [case.query_rows, case.key_rows] == rows).count();
            assert!(of_rows >= 36, "{rows:?}: {of_rows}");
        }
    }
}
