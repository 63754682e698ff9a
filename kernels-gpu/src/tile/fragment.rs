//! How the rows and columns of a tile in registers are spread over the lanes of a warp.
//!
//! Softmax, masks and the epilogue are written once over this trait: `mma.sync`, `wgmma` (whose warps
//! hold the same fragment) and the plain-FMA kernels differ in nothing else.

use crate::arch::{math, warp};
use crate::geometry::fragment::{fma_accumulator, mma_accumulator};

/// A tile of which each lane holds `ROWS` rows in `REGISTERS` registers.
pub trait Fragment<const ROWS: usize, const REGISTERS: usize> {
    /// Columns that a lane holds of each of its rows.
    const COLUMNS: usize;

    /// The register of a lane's `row`-th row and `column`-th column.
    fn register(row: usize, column: usize) -> usize;

    /// Row in the tile of a lane's `row`-th row.
    fn row(lane: u32, row: usize) -> u32;

    /// Column in the tile of a lane's first column.
    fn first_column(lane: u32) -> u32;

    /// How far a lane's `column`-th column is from its first. A constant once unrolled.
    fn column_offset(column: usize) -> u32;

    /// How many of a lane's columns are less than `distance` from its first: [`u32::BITS`] or more where
    /// there are no more. `None`: a lane holds so few columns that it is better to compare each.
    fn columns_before(distance: i32) -> Option<u32>;

    /// Whether a lane's columns come in neighbouring pairs, the first of them even.
    const PAIRED: bool;

    /// Lanes that share a row.
    const LANES_PER_ROW: u32;

    /// The maximum over the lanes that share a row, given to all of them.
    ///
    /// # Safety
    /// All 32 lanes call it together.
    unsafe fn row_max(value: f32) -> f32;

    /// The sum over the lanes that share a row, given to all of them.
    ///
    /// # Safety
    /// All 32 lanes call it together.
    unsafe fn row_sum(value: f32) -> f32;
}

/// Accumulators of `mma.m16n8` (and of a warp of `wgmma`): 16 rows, two of them in each lane.
pub struct MmaFragment;

impl<const REGISTERS: usize> Fragment<2, REGISTERS> for MmaFragment {
    const COLUMNS: usize = REGISTERS / 2;
    const PAIRED: bool = true;
    const LANES_PER_ROW: u32 = 4;

    #[inline(always)]
    fn register(row: usize, column: usize) -> usize {
        column / 2 * 4 + row * 2 + column % 2
    }

    #[inline(always)]
    fn row(lane: u32, row: usize) -> u32 {
        mma_accumulator::row(lane, row as u32 * 2)
    }

    #[inline(always)]
    fn first_column(lane: u32) -> u32 {
        mma_accumulator::column(lane, 0)
    }

    #[inline(always)]
    fn column_offset(column: usize) -> u32 {
        mma_accumulator::column(0, <Self as Fragment<2, REGISTERS>>::register(0, column) as u32)
    }

    #[inline(always)]
    fn columns_before(distance: i32) -> Option<u32> {
        Some(mma_accumulator::columns_before(distance.clamp(0, 4 * u32::BITS as i32) as u32))
    }

    #[inline(always)]
    unsafe fn row_max(value: f32) -> f32 {
        let value = math::max(value, warp::shuffle_xor(value, 2));
        math::max(value, warp::shuffle_xor(value, 1))
    }

    #[inline(always)]
    unsafe fn row_sum(value: f32) -> f32 {
        let value = value + warp::shuffle_xor(value, 2);
        value + warp::shuffle_xor(value, 1)
    }
}

/// Accumulators of the plain-FMA kernels: 4 x 8 lanes, rows 4 apart and columns 8 apart.
pub struct FmaFragment;

/// Lanes that share a row in [`FmaFragment`].
pub const FMA_LANE_COLUMNS: u32 = 8;

impl<const ROWS: usize, const REGISTERS: usize> Fragment<ROWS, REGISTERS> for FmaFragment {
    const COLUMNS: usize = REGISTERS / ROWS;
    const PAIRED: bool = false;
    const LANES_PER_ROW: u32 = FMA_LANE_COLUMNS;

    #[inline(always)]
    fn register(row: usize, column: usize) -> usize {
        row * (REGISTERS / ROWS) + column
    }

    #[inline(always)]
    fn row(lane: u32, row: usize) -> u32 {
        fma_accumulator::row(lane, FMA_LANE_COLUMNS, row as u32)
    }

    #[inline(always)]
    fn first_column(lane: u32) -> u32 {
        fma_accumulator::column(lane, FMA_LANE_COLUMNS, 0)
    }

    #[inline(always)]
    fn column_offset(column: usize) -> u32 {
        fma_accumulator::column(0, FMA_LANE_COLUMNS, column as u32)
    }

    #[inline(always)]
    fn columns_before(_distance: i32) -> Option<u32> {
        None
    }

    #[inline(always)]
    unsafe fn row_max(value: f32) -> f32 {
        let value = math::max(value, warp::shuffle_xor(value, 4));
        let value = math::max(value, warp::shuffle_xor(value, 2));
        math::max(value, warp::shuffle_xor(value, 1))
    }

    #[inline(always)]
    unsafe fn row_sum(value: f32) -> f32 {
        let value = value + warp::shuffle_xor(value, 4);
        let value = value + warp::shuffle_xor(value, 2);
        value + warp::shuffle_xor(value, 1)
    }
}
