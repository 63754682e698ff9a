//! How many queries a step of the backward for Hopper takes, where there are kernels for both 64 and 80.

use crate::problem::ValidForward;

/// Keys of a tile of these kernels.
const KEYS: u32 = 128;
/// How long a step of 80 queries takes where one of 64 takes 100. Measured at head dim 128 (H200): 121; a
/// problem that would not gain a hundredth stays with 64.
const COST_OF_80: u64 = 122;
/// Key tiles that are counted at most, evenly spaced.
const MOST_SAMPLES: u32 = 256;
/// After so many key tiles those of 64 and 80 queries stand to keys as at first: 5 x 128 = 10 x 64 = 8 x 80.
const PERIOD: u32 = 5;

/// Whether 80 queries a step are faster than 64: fewer steps, but with a mask more of what they compute is
/// not visible, and the last tile of a sequence may be emptier.
///
/// Measured, head dim 128, this rule's forecast in brackets: full S512 0.955 (0.937), S1024 and S2048 1.008
/// (1.009), S4096 1.010 (1.009), S8192 1.02 to 1.03 (1.019); causal S1024 0.961 (0.952), S4096 0.983
/// (0.981), S8192 1.009 (1.005), S16384 1.024 (1.019).
pub(super) fn suits_80(valid: &ValidForward) -> bool {
    // In packed sequences rows are padded to a whole number of tiles of 64 and 128.
    !valid.is_packed() && COST_OF_80 * steps(valid, 80) < 100 * steps(valid, 64)
}

/// Query tiles of `queries` rows that see a key tile, of all key tiles that are counted.
fn steps(valid: &ValidForward, queries: i32) -> u64 {
    let visible = valid.visible().transposed(valid.query_rows as i32);
    let key_tiles = valid.key_rows.div_ceil(KEYS);
    let mut stride = key_tiles.div_ceil(MOST_SAMPLES).max(1);
    if stride.is_multiple_of(PERIOD) {
        // Otherwise all that are counted would stand alike.
        stride += 1;
    }
    let counted = (0..key_tiles).step_by(stride as usize);
    let steps_of = |tile: u32| {
        let last = ((tile + 1) * KEYS).min(valid.key_rows) - 1;
        let tiles = visible.tiles((tile * KEYS) as i32, last as i32, queries);
        (tiles.end - tiles.begin) as u64
    };
    counted.map(steps_of).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::{CausalAlignment, ForwardProblem, Layout, Mask, Sequences};
    use kernels_gpu::abi::{Dtype, Family, KERNELS};

    fn problem(rows: usize) -> ForwardProblem {
        let layout = Layout::bshd([2, rows, 3, 128]);
        ForwardProblem::new(Dtype::Bf16, layout, layout, layout)
    }

    fn suits(problem: ForwardProblem) -> bool {
        suits_80(&problem.validate().unwrap())
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
    fn the_kernels_have_tiles_of_so_many_keys() {
        let of_80 =
            KERNELS.iter().filter(|spec| spec.family == Family::Backward && spec.query_rows == 80);
        assert!(of_80.clone().count() == 2 && of_80.clone().all(|spec| spec.key_rows == KEYS));
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
