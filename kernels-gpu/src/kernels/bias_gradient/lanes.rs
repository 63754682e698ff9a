//! What lanes do with their rows of a tile, in the gradient of the bias for Hopper: what they know of them,
//! what they add up, and where it goes.

use super::hopper::{ROWS, SCORES, Scores, Step, sequence};
use super::part::Part;
use super::rows::{RowReference, RowStatistics};
use crate::abi::BackwardParams;
use crate::arch::{global, math, specialize, thread, warp};
use crate::attention::score::dropout;
use crate::pipeline::roles::lane_and_first_row;
use crate::tile::element::TensorCoreElement;
use crate::tile::fragment::Fragment;
use crate::tile::global_rows::GlobalRows;
use crate::tile::store::{store_exchanged, store_pairs};
use core::f32::consts::LOG2_E;

/// What is known of a lane's two rows in a step.
pub(super) struct LaneRows([RowStatistics; 2]);

impl LaneRows {
    /// `first_query` is the first of the warp.
    #[inline(always)]
    pub unsafe fn load(p: &BackwardParams, step: &Step, lane: u32, first_query: i32) -> Self {
        let mut rows = [RowStatistics::NOTHING; 2];
        let mut row = 0;
        while row < 2 {
            if let Some(place) = Self::place(p, step, lane, first_query, row) {
                rows[row] = RowStatistics::load(p, step.head, place);
            }
            row += 1;
        }
        LaneRows(rows)
    }

    /// Where the lane's `row`-th row stands in the workspace, if it is one.
    #[inline(always)]
    unsafe fn place(
        p: &BackwardParams,
        step: &Step,
        lane: u32,
        first_query: i32,
        row: usize,
    ) -> Option<u32> {
        let sequence = sequence(p, step.batch);
        let first_row = p.padded_rows * step.batch;
        let query = first_query + <Scores as Fragment<2, SCORES>>::row(lane, row) as i32;
        (query < sequence.query_rows).then_some(first_row + query as u32)
    }

    /// Calls `apply(register, row)` for all registers of scores.
    #[inline(always)]
    fn each(mut apply: impl FnMut(usize, usize)) {
        let mut row = 0;
        while row < 2 {
            let mut column = 0;
            while column < SCORES / 2 {
                apply(<Scores as Fragment<2, SCORES>>::register(row, column), row);
                column += 1;
            }
            row += 1;
        }
    }

    /// Makes natural scores of steep rows relative to their references, if there are any; `first_query` is
    /// the first of the warp.
    ///
    /// # Safety
    /// All 32 lanes call it together; as [`RowStatistics::load`].
    #[inline(always)]
    pub unsafe fn subtract_references(
        &self,
        p: &BackwardParams,
        step: &Step,
        first_query: i32,
        scores: &mut [f32; SCORES],
    ) {
        let LaneRows(rows) = self;
        if warp::any(rows[0].is_steep() | rows[1].is_steep()) {
            let lane = thread::thread_idx_x_here() % 32;
            let mut references = [RowReference::NOTHING; 2];
            let mut row = 0;
            while row < 2 {
                if rows[row].is_steep()
                    && let Some(place) = Self::place(p, step, lane, first_query, row)
                {
                    references[row] = RowReference::load(p, step.head, place);
                }
                row += 1;
            }
            Self::each(|register, row| scores[register] = references[row].relative(scores[register]));
        }
    }

    /// `sums += p (dp - delta)` with `p = e^(s - lse)`. What q and dO of a row that sees no key hold is
    /// nothing to it.
    ///
    /// Exponentials and sums in one go: one after the other, what makes exponentials would be waited for.
    ///
    /// # Safety
    /// All 32 lanes call it together.
    #[inline(always)]
    pub unsafe fn add_gradient(
        &self,
        sums: &mut [f32; SCORES],
        scores: &mut [f32; SCORES],
        dp: &mut [f32; SCORES],
    ) {
        let LaneRows(rows) = self;
        if warp::any(rows[0].is_dead() | rows[1].is_dead()) {
            Self::each(|register, row| {
                if rows[row].is_dead() {
                    (scores[register], dp[register]) = (f32::NEG_INFINITY, rows[row].delta);
                }
            });
        }
        // An instruction less than `s - lse` first: lse of rows that are not steep is not large.
        let minus_lse = rows.map(|row| row.minus_lse * LOG2_E);
        Self::each(|register, row| {
            let exponent = math::fma(scores[register], LOG2_E, minus_lse[row]);
            let ds = dp[register] - rows[row].delta;
            sums[register] = math::fma(math::exp2_down(exponent), ds, sums[register]);
        });
    }
}

/// Writes a warp's 16 rows of a part.
///
/// # Safety
/// All 32 lanes call it together; the gradient is writable.
#[inline(always)]
pub(super) unsafe fn store<E: TensorCoreElement>(
    p: &BackwardParams,
    part: &Part,
    warpgroup: u32,
    sums: &mut [f32; SCORES],
) {
    // Worked out anew: registers are for what every step needs.
    let (lane, warp_row) = lane_and_first_row(thread::thread_idx_x_here(), warpgroup);
    let [_, _, queries, keys] = p.d_bias_shape;
    let as_f32 = p.d_bias_f32 != 0;
    let element_bytes = if as_f32 { 4 } else { E::BYTES as i64 };
    if specialize::dropout() {
        let factor = dropout::gradient_scale(&p.score);
        LaneRows::each(|register, _| sums[register] *= factor);
    }
    let rows = GlobalRows {
        address: p.d_bias.address.wrapping_add((part.offset(p, ROWS) * element_bytes) as u64),
        row_bytes: p.d_bias.query_stride * element_bytes,
        rows: (queries - part.query_tile * ROWS) as i32,
        columns: keys - part.key_tile * ROWS,
    };
    let is_aligned = p.d_bias.key_stride == 1 && (rows.address | rows.row_bytes as u64) % 16 == 0;
    if is_aligned && as_f32 {
        store_pairs::<E, SCORES, true>(lane, sums, warp_row, 0, &rows, true);
    } else if is_aligned && rows.columns % 8 == 0 {
        store_exchanged::<E, SCORES>(lane, sums, warp_row, &rows);
    } else {
        let column_bytes = p.d_bias.key_stride * element_bytes;
        store_elements::<E>((lane, warp_row), sums, &rows, column_bytes, as_f32);
    }
}

/// The same one by one, `column_bytes` apart.
///
/// # Safety
/// As [`store`].
#[inline(always)]
unsafe fn store_elements<E: TensorCoreElement>(
    (lane, warp_row): (u32, u32),
    sums: &[f32; SCORES],
    rows: &GlobalRows,
    column_bytes: i64,
    as_f32: bool,
) {
    let first_column = <Scores as Fragment<2, SCORES>>::first_column(lane);
    let mut row = 0;
    while row < 2 {
        let this_row = (warp_row + <Scores as Fragment<2, SCORES>>::row(lane, row)) as i32;
        let mut index = 0;
        while index < SCORES / 2 {
            let column = first_column + <Scores as Fragment<2, SCORES>>::column_offset(index);
            if this_row < rows.rows && column < rows.columns {
                let address = rows.row(this_row).wrapping_add((column as i64 * column_bytes) as u64);
                let sum = sums[<Scores as Fragment<2, SCORES>>::register(row, index)];
                if as_f32 {
                    global::store_f32(address, sum);
                } else {
                    E::store(address, sum);
                }
            }
            index += 1;
        }
        row += 1;
    }
}
