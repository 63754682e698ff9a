//! Tensor-core products of a warpgroup: 64 query rows, the accumulators as [`super::fragment::MmaFragment`].

use super::element::{Bf16, F16, TensorCoreElement};
use super::mma::LaneAddress;
use super::shared_tile::SharedTile;
use crate::arch::{matrix, wgmma};

pub use wgmma::Wait;

/// The 64 query rows of a warpgroup: `A` registers per thread, or none and then left in shared memory.
///
/// Registers are quicker, where there are enough: measured at head dim 128, 3 % of the whole forward.
#[derive(Clone, Copy)]
pub struct Queries<const A: usize> {
    fragments: [u32; A],
    descriptor: u64,
}

impl<const A: usize> Queries<A> {
    /// Whether they stay in shared memory while they are used.
    pub const SHARED: bool = A == 0;

    /// The rows of this warpgroup in a tile: `row` is the first of this warp's 16, `descriptor` that of the
    /// first of the warpgroup's 64.
    ///
    /// # Safety
    /// All threads of the warpgroup call it; the tile is written and visible.
    #[inline(always)]
    pub unsafe fn load<const ROWS: u32, const ROW_BYTES: u32>(
        lane: u32,
        tile: SharedTile<ROWS, ROW_BYTES>,
        row: u32,
        descriptor: u64,
    ) -> Self {
        let mut fragments = [0; A];
        let address = LaneAddress::<ROW_BYTES>::rows_first(lane);
        let mut block = 0;
        while block < A / 4 {
            let four = matrix::load_matrix_x4(address.of(tile, row, block as u32));
            let mut i = 0;
            while i < 4 {
                fragments[4 * block + i] = four[i];
                i += 1;
            }
            block += 1;
        }
        Queries { fragments, descriptor }
    }
}

/// Products of one element type at one head dim: `A` registers of queries, `S` of scores, `P` of packed
/// probabilities and `O` of output per thread.
pub trait WarpgroupElement<const A: usize, const S: usize, const P: usize, const O: usize>:
    TensorCoreElement
{
    /// Starts `scores = q k^T`, a group of its own; k is the descriptor of a tile of `2 S` keys.
    ///
    /// # Safety
    /// The warpgroup calls it together; the scores are not touched before [`Wait::wait`].
    unsafe fn start_scores<const Q_ROWS: u32>(q: &Queries<A>, k: u64) -> [f32; S];

    /// Starts `output += p v`, a group of its own; v is the descriptor of a tile of `2 S` keys.
    ///
    /// # Safety
    /// As [`WarpgroupElement::start_scores`]; p is not touched either.
    unsafe fn start_output(output: &mut [f32; O], p: &[u32; P], v: u64);
}

macro_rules! products {
    ($element:ident, $module:ident, $s:literal, $p:literal, $o:literal, shared $scores:ident,
        $output:ident) => {
        impl WarpgroupElement<0, $s, $p, $o> for $element {
            #[inline(always)]
            unsafe fn start_scores<const Q_ROWS: u32>(q: &Queries<0>, k: u64) -> [f32; $s] {
                wgmma::$module::$scores::<Q_ROWS>(q.descriptor, k)
            }

            #[inline(always)]
            unsafe fn start_output(output: &mut [f32; $o], p: &[u32; $p], v: u64) {
                wgmma::$module::$output(output, p, v);
            }
        }
    };
    ($element:ident, $module:ident, $s:literal, $p:literal, $o:literal, $a:literal $scores:ident,
        $output:ident) => {
        impl WarpgroupElement<$a, $s, $p, $o> for $element {
            #[inline(always)]
            unsafe fn start_scores<const Q_ROWS: u32>(q: &Queries<$a>, k: u64) -> [f32; $s] {
                wgmma::$module::$scores(&q.fragments, k)
            }

            #[inline(always)]
            unsafe fn start_output(output: &mut [f32; $o], p: &[u32; $p], v: u64) {
                wgmma::$module::$output(output, p, v);
            }
        }
    };
}

macro_rules! all_head_dims {
    ($element:ident, $module:ident) => {
        products!($element, $module, 64, 32, 32, shared scores_d64_n128, accumulate_d64_n128);
        products!($element, $module, 64, 32, 64, 32 scores_d128_n128, accumulate_d128_n128);
        products!($element, $module, 56, 28, 96, shared scores_d192_n112, accumulate_d192_n112);
        products!($element, $module, 40, 20, 128, shared scores_d256_n80, accumulate_d256_n80);
    };
}
all_head_dims!(Bf16, bf16);
all_head_dims!(F16, f16);
