//! How large the steps of the backward for Hopper are, where there are kernels of two sizes: which of them
//! has less to do.

use crate::driver::DeviceProperties;
use crate::problem::ValidForward;
use kernels_gpu::abi::Dtype;

/// Keys and queries of a step.
#[derive(Clone, Copy)]
pub(super) struct Step {
    pub keys: u32,
    pub queries: i32,
}

/// The steps of the kernels for head dims up to 64.
const WIDE_64: Step = Step { keys: 128, queries: 128 };
const LONG_64: Step = Step { keys: 192, queries: 64 };
/// The steps of the kernels for head dims up to 128.
const SHORT_128: Step = Step { keys: 128, queries: 64 };
const WIDE_128: Step = Step { keys: 128, queries: 80 };

/// How long a step of [`WIDE_128`] takes where one of [`SHORT_128`] takes 100. Measured (H200): 121; a
/// problem that would not gain a hundredth stays with the latter.
const COST_OF_80: u128 = 122;
/// How long a step of [`LONG_64`] takes where one of [`WIDE_64`] takes 100. Measured (H100): 69 to 71, in f16
/// 72.
const COST_OF_192: u128 = 70;
const COST_OF_192_F16: u128 = 72;

/// Key tiles that are counted at most, evenly spaced.
const MOST_SAMPLES: u32 = 256;
/// After so many key tiles those of 64 and 80 queries stand to keys as at first: 5 x 128 = 10 x 64 = 8 x 80.
const PERIOD: u32 = 5;

/// Whether to take the kernel with fewer queries a step, of those for heads of `head_dim`. Under a boolean
/// mask the one whose steps are of 64 or 128 queries and of 128 keys, as blocks of masks are: it skips what
/// the mask hides. That with 192 keys does not.
pub(super) fn are_short(valid: &ValidForward, head_dim: u32, device: &DeviceProperties) -> bool {
    if valid.problem.attn_mask.is_some() {
        return head_dim > 64;
    }
    if head_dim <= 64 { suits_192(valid, device.multiprocessors) } else { !suits_80(valid) }
}

/// Whether 80 queries a step are faster than 64, at head dim 128: fewer steps, but with a mask more of what
/// they compute is not visible, and the last tile of a sequence may be emptier.
///
/// Measured, this rule's forecast in brackets: full S512 0.955 (0.937), S1024 and S2048 1.008 (1.009), S4096
/// 1.010 (1.009), S8192 1.02 to 1.03 (1.019); causal S1024 0.961 (0.952), S4096 0.983 (0.981), S8192 1.009
/// (1.005), S16384 1.024 (1.019).
fn suits_80(valid: &ValidForward) -> bool {
    // In packed sequences rows are padded to a whole number of tiles of 64 and 128. With dropout or a softcap
    // the kernel lacks registers.
    !valid.is_packed()
        && valid.dropout().is_none()
        && valid.softcap.is_none()
        && COST_OF_80 * Count::of(valid, WIDE_128).all < 100 * Count::of(valid, SHORT_128).all
}

/// Whether 192 keys by 64 queries a step are faster than 128 by 128, at head dim 64: less to do for what is
/// visible, but the last tile of a sequence may be emptier, and there are fewer to share out. Of packed
/// sequences the longest decides.
///
/// Measured, this rule's forecast in brackets: full S1024 0.97 (0.95), S2048 and S4096 1.03 (1.04), S8192
/// 1.07 (1.06), S16384 1.06 (1.06); causal S1024 0.99 to 1.02 (1.01), S2048 1.05 (1.05), S4096 1.04 (1.06),
/// S16384 1.065 (1.08).
fn suits_192(valid: &ValidForward, multiprocessors: u32) -> bool {
    let cost = if valid.problem.dtype == Dtype::F16 { COST_OF_192_F16 } else { COST_OF_192 };
    let pairs = u128::from(valid.batches) * u128::from(valid.key_heads);
    let time = |step: Step| Count::of(valid, step).time(pairs, multiprocessors);
    cost * time(LONG_64) < 100 * time(WIDE_64)
}

/// The steps of one head.
pub(super) struct Count {
    /// Of all key tiles.
    pub all: u128,
    /// Of the key tile with the most.
    pub most: u128,
}

impl Count {
    pub fn of(valid: &ValidForward, step: Step) -> Self {
        let visible = valid.visible().transposed(valid.query_rows as i32);
        let key_tiles = valid.key_rows.div_ceil(step.keys);
        let mut stride = key_tiles.div_ceil(MOST_SAMPLES).max(1);
        if stride.is_multiple_of(PERIOD) {
            // Otherwise all that are counted would stand alike.
            stride += 1;
        }
        let steps_of = |tile: u32| {
            let last = ((tile + 1) * step.keys).min(valid.key_rows) - 1;
            let tiles = visible.tiles((tile * step.keys) as i32, last as i32, step.queries);
            (tiles.end - tiles.begin) as u128
        };
        let counted = (0..key_tiles).step_by(stride as usize);
        let samples = counted.len().max(1) as u128;
        let sum: u128 = counted.clone().map(steps_of).sum();
        Count {
            all: sum * u128::from(key_tiles) / samples,
            most: counted.map(steps_of).max().unwrap_or(0),
        }
    }

    /// How long `pairs` such heads take: shared out evenly, but at least as long as one key tile. Multiplied
    /// by the multiprocessors.
    fn time(&self, pairs: u128, multiprocessors: u32) -> u128 {
        (self.all * pairs).max(self.most * u128::from(multiprocessors))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::{CausalAlignment, ForwardProblem, Layout, Mask, MaskShape, Sequences};
    use kernels_gpu::abi::{Arch, Dtype, Family, KERNELS, KernelSpec};

    fn problem(rows: usize) -> ForwardProblem {
        let layout = Layout::bshd([2, rows, 3, 128]);
        ForwardProblem::new(Dtype::Bf16, layout, layout, layout)
    }

    fn suits(problem: ForwardProblem) -> bool {
        suits_80(&problem.validate().unwrap())
    }

    /// Heads of 64 columns, `rows` times `batch` rows.
    fn narrow(dtype: Dtype, [batch, rows, heads]: [usize; 3], mask: Mask) -> bool {
        let layout = Layout::bshd([batch, rows, heads, 64]);
        let problem = ForwardProblem::new(dtype, layout, layout, layout).with_mask(mask);
        suits_192(&problem.validate().unwrap(), 132)
    }

    #[test]
    fn tiles_of_80_are_for_long_sequences() {
        let causal = |rows| problem(rows).with_mask(Mask::Causal(CausalAlignment::BottomRight));
        assert!([1024, 2048, 4096, 8192, 16384, 1 << 20].into_iter().all(|rows| suits(problem(rows))));
        assert!([0, 1, 64, 128, 500, 512].into_iter().all(|rows| !suits(problem(rows))));
        assert!([8192, 16384, 1 << 20].into_iter().all(|rows| suits(causal(rows))));
        assert!([1, 512, 1024, 4096].into_iter().all(|rows| !suits(causal(rows))));
    }

    #[test]
    fn key_tiles_that_are_counted_stand_in_every_way_to_query_tiles() {
        for rows in [16384, 140_000, 163_840, 300_000] {
            let mask = Mask::Window { left: Some(511), right: Some(0), alignment: Default::default() };
            assert!(!suits(problem(rows).with_mask(mask)), "{rows}");
        }
    }

    #[test]
    fn the_kernels_have_such_steps() {
        for (head_dim, steps) in [(64, [WIDE_64, LONG_64]), (128, [SHORT_128, WIDE_128])] {
            for dtype in [Dtype::Bf16, Dtype::F16] {
                let is_one = |spec: &&KernelSpec| {
                    let kind = (spec.family, spec.arch, spec.head_dim, spec.dtype);
                    kind == (Family::Backward, Arch::Sm90a, head_dim, dtype)
                };
                let found: Vec<_> = KERNELS.iter().filter(is_one).collect();
                assert_eq!(found.len(), steps.len());
                for step in steps {
                    let size = (step.keys, step.queries as u32);
                    assert!(found.iter().any(|spec| (spec.key_rows, spec.query_rows) == size));
                }
            }
        }
    }

    #[test]
    fn steps_under_a_boolean_mask_are_of_128_keys_by_64_or_128_queries() {
        let device = crate::plan::tests::device();
        let mask = MaskShape { batches: 1, heads: 1, queries: 16384, keys: 16384 };
        let are_short = |head_dim, problem: ForwardProblem| {
            super::are_short(&problem.validate().unwrap(), head_dim, &device)
        };
        assert!(!are_short(128, problem(16384)));
        assert!(are_short(128, problem(16384).with_attn_mask(mask)));
        assert!(are_short(128, problem(16384).with_softcap(30.0)));
        let layout = Layout::bshd([1, 16384, 32, 64]);
        let narrow = ForwardProblem::new(Dtype::Bf16, layout, layout, layout);
        assert!(are_short(64, narrow));
        assert!(!are_short(64, narrow.with_attn_mask(mask)));
    }

    #[test]
    fn tiles_of_192_keys_are_for_many_long_sequences() {
        let causal = Mask::Causal(CausalAlignment::BottomRight);
        for shape in [[8, 2048, 32], [4, 4096, 32], [4, 4097, 32], [4, 3000, 32], [1, 16384, 32]] {
            assert!(narrow(Dtype::Bf16, shape, Mask::Full), "{shape:?}");
            assert!(narrow(Dtype::Bf16, shape, causal), "{shape:?}");
        }
        for shape in [[32, 512, 32], [16, 1024, 32], [1, 2048, 4], [1, 0, 4]] {
            assert!(!narrow(Dtype::Bf16, shape, Mask::Full), "{shape:?}");
        }
        for shape in [[32, 512, 32], [1, 4096, 8]] {
            assert!(!narrow(Dtype::Bf16, shape, causal), "{shape:?}");
        }
        assert!(narrow(Dtype::F16, [4, 4096, 32], Mask::Full));
    }

    #[test]
    fn the_longest_of_packed_sequences_decides() {
        let layout = Layout::packed([16384, 32, 64]);
        let with_rows = |rows| {
            let sequences = Sequences::Packed { count: 32, max_query_rows: rows, max_key_rows: rows };
            let problem = ForwardProblem::new(Dtype::Bf16, layout, layout, layout);
            suits_192(&problem.with_sequences(sequences).validate().unwrap(), 132)
        };
        assert!(with_rows(4096) && !with_rows(512));
    }

    #[test]
    fn queries_that_see_little_and_packed_ones_stay_with_64() {
        let window = Mask::Window { left: Some(1024), right: Some(0), alignment: Default::default() };
        assert!(!suits(problem(16384).with_mask(window)));
        let sequences = Sequences::Packed { count: 1, max_query_rows: 8192, max_key_rows: 8192 };
        let layout = Layout::packed([8192, 3, 128]);
        let packed = ForwardProblem::new(Dtype::Bf16, layout, layout, layout).with_sequences(sequences);
        assert!(!suits(packed));
    }
}
