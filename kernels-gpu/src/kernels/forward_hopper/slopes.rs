//! ALiBi by products. The penalty of a key is `slope` times its distance from the diagonal, which is that of
//! the nearest key of its tile and how far it is from there, where the whole tile is on one side of the
//! diagonal. So one more step of the product q k^T adds it, and nothing is left to do for each score:
//!
//! ```text
//! columns, of tiles        rows: queries                           keys: n = 0, 1, ... of their tile
//!   0   before the diagonal    -slope                                  KEYS - 1 - n
//!   1   behind it              -slope                                  n
//!   2   before it              -slope (distance of the nearest key)    1
//!   3   behind it              -slope (distance of the nearest key)    1
//! ```
//!
//! Of tiles on the other side rows have 0 in a column. All penalties of a pair have one sign, so that none is
//! lost in the other. Rows are given to tf32 in two parts, of 11 bits each, which are multiplied by the same
//! columns. Slopes are in units of scores, products of q and k. Tiles on the diagonal, where distances are
//! least and their errors count most, have nothing added: each score gets its penalty for itself
//! ([`features`](crate::attention::score::features)). Where there is a softcap or a bias, too, all tiles are
//! like that.

use super::pipelines::{Pipelines, lane_and_row};
use super::tile::ForwardKernel;
use crate::abi::ForwardParams;
use crate::arch::{bulk_copy, math, shared, thread, warp};
use crate::attention::score::features;
use crate::geometry::descriptor::repeated_columns_descriptor;
use crate::tile::warpgroup::SlopeStep;

/// Four numbers for each key of a tile.
pub(super) const SLOPE_COLUMN_BYTES: u32 = 16;

/// What a tf32 has of an f32: a sign, eight bits of exponent, ten bits.
const TF32_BITS: u32 = 0xffff_e000;

/// Writes the keys' columns at a shared address, for products that come after the block has met.
///
/// # Safety
/// All threads of the block call it, of which there are not fewer than `keys`; nobody else uses the memory.
#[inline(always)]
pub(super) unsafe fn write_columns(address: u32, keys: u32) {
    let key = thread::thread_idx_x();
    if key < keys {
        let columns = [(keys - 1 - key) as f32, key as f32, 1.0, 1.0];
        shared::store_u32x4(address + key * SLOPE_COLUMN_BYTES, columns.map(f32::to_bits));
        bulk_copy::fence();
    }
}

/// On which side of the diagonal a key tile is, for all rows of a warp.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Before,
    /// On it, for one of them.
    On,
    Behind,
}

/// What makes the column of a lane's two rows, of a work tile: `slope (factor x + offset)` with the negated
/// slope, and x how far the first key of a key tile is behind the diagonal of the warp's first row.
#[derive(Clone, Copy)]
pub(super) struct SlopeRows {
    slopes: [f32; 2],
    /// Uniform, as x is.
    first_diagonal: i32,
    /// Up to which x a tile is on the diagonal.
    rest: i32,
    /// Of which side factor and offsets are.
    side: Side,
    factor: f32,
    offsets: [f32; 2],
}

impl SlopeRows {
    /// Where there are no slopes.
    pub const NONE: SlopeRows = SlopeRows {
        slopes: [0.0; 2],
        first_diagonal: 0,
        rest: 0,
        side: Side::On,
        factor: 0.0,
        offsets: [0.0; 2],
    };
}

impl<K: ForwardKernel> Pipelines<K> {
    /// Whether penalties are products.
    #[inline(always)]
    pub fn multiplies_slopes(&self) -> bool {
        features::slopes_may_be_products::<K::Element>()
    }

    /// The rows of the work tile, whose first key tile has no penalties in its products.
    ///
    /// # Safety
    /// All 32 lanes call it together; the work tile's message can be read.
    #[inline(always)]
    pub unsafe fn slope_rows(&self, p: &ForwardParams) -> SlopeRows {
        let mut rows = SlopeRows::NONE;
        if self.multiplies_slopes() {
            let (lane, row) = lane_and_row();
            let block = self.block(p);
            let place = block.score_place(p);
            let first_row = block.first_row + row as i32;
            let first = block.row_heads.query(first_row);
            rows.first_diagonal = warp::uniform((first + block.sequence.visible.diagonal) as u32) as i32;
            rows.rest = block.row_heads.query(first_row + 15) - first;
            let mut i = 0;
            while i < 2 {
                let (_, head) = block.row_heads.place(first_row + (lane / 4 + 8 * i as u32) as i32);
                let slope = features::slope_in_units(&p.score, &place, head, p.score_unit);
                rows.slopes[i] = math::clamp_or_nan(-slope, features::LARGEST_SLOPE);
                i += 1;
            }
        }
        rows
    }

    /// What is multiplied for the penalties of key tile `tile`, and whether these are all: else there are
    /// none, and each score of the warp's rows gets its own.
    ///
    /// # Safety
    /// As [`Pipelines::slope_rows`].
    #[inline(always)]
    pub unsafe fn slopes(
        &self,
        p: &ForwardParams,
        rows: &mut SlopeRows,
        tile: i32,
    ) -> (SlopeStep, bool) {
        let behind = tile * K::KEYS as i32 - rows.first_diagonal;
        let side = if behind > rows.rest {
            Side::Behind
        } else if behind <= -(K::KEYS as i32) {
            Side::Before
        } else {
            Side::On
        };
        if side != rows.side {
            self.turn_to(p, rows, side);
        }
        let mut step = self.no_slopes();
        let mut i = 0;
        while i < 2 {
            // Exact but for the product with the slope, up to 2^24.
            let value = rows.slopes[i] * math::fma(rows.factor, behind as f32, rows.offsets[i]);
            let high = f32::from_bits(value.to_bits() & TF32_BITS);
            (step.rows[i], step.rows[2 + i]) = (high.to_bits(), (value - high).to_bits());
            i += 1;
        }
        (step, side != Side::On)
    }

    /// Makes rows those of tiles on this side.
    #[inline(always)]
    unsafe fn turn_to(&self, p: &ForwardParams, rows: &mut SlopeRows, side: Side) {
        let (lane, row) = lane_and_row();
        let block = self.block(p);
        let first_row = block.first_row + row as i32;
        let first = block.row_heads.query(first_row);
        let (sign, nearest) = match side {
            Side::Before => (-1, K::KEYS as i32 - 1),
            Side::On | Side::Behind => (1, 0),
        };
        let is_own = side != Side::On && (lane % 2 == 1) == (side == Side::Behind);
        let is_distance = is_own && lane % 4 >= 2;
        let other = if is_own { 1 } else { 0 };
        rows.side = side;
        rows.factor = if is_distance { sign as f32 } else { 0.0 };
        let mut i = 0;
        while i < 2 {
            let query = block.row_heads.query(first_row + (lane / 4 + 8 * i as u32) as i32) - first;
            let distance = sign * (nearest - query);
            rows.offsets[i] = (if is_distance { distance } else { other }) as f32;
            i += 1;
        }
    }

    /// What scores are multiplied with that get no penalty, or each its own.
    #[inline(always)]
    pub fn no_slopes(&self) -> SlopeStep {
        SlopeStep { rows: [0; 4], columns: repeated_columns_descriptor(self.storage.slope_columns()) }
    }
}
