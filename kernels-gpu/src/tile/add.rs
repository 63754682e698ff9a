//! From global memory to registers: rows of f32 that are added to what [`super::store`] then writes.

use super::fragment::{FMA_LANE_COLUMNS, FmaFragment, Fragment, MmaFragment};
use super::global_rows::{GlobalRows, Rows};
use crate::arch::{global, math};

/// Adds 16 rows of f32, each times its factor, to those of an accumulator whose column 0 is column
/// `first_column` (even) of theirs.
///
/// # Safety
/// `source` is readable where valid; with `VECTOR`, its rows are 8-byte aligned.
#[inline(always)]
pub unsafe fn add_pairs<const N: usize, const VECTOR: bool>(
    lane: u32,
    values: &mut [f32; N],
    factors: [f32; 2],
    first_row: u32,
    first_column: u32,
    source: &impl Rows,
) {
    let first_column = first_column + <MmaFragment as Fragment<2, N>>::first_column(lane);
    let mut half = 0;
    while half < 2 {
        let row = (first_row + <MmaFragment as Fragment<2, N>>::row(lane, half)) as i32;
        if row < source.count() {
            let start = source.row(row).wrapping_add(4 * first_column as u64);
            let mut tile = 0;
            while tile < N / 4 {
                let register = 4 * tile + 2 * half;
                let valid = source.columns() as i32 - (first_column + 8 * tile as u32) as i32;
                let pair = load_pair::<VECTOR>(start.wrapping_add(32 * tile as u64), valid);
                values[register] = math::fma(factors[half], pair[0], values[register]);
                values[register + 1] = math::fma(factors[half], pair[1], values[register + 1]);
                tile += 1;
            }
        }
        half += 1;
    }
}

/// The first `valid` (at most two) of a pair of f32, and 0.
#[inline(always)]
unsafe fn load_pair<const VECTOR: bool>(address: u64, valid: i32) -> [f32; 2] {
    let mut pair = [0.0; 2];
    if VECTOR {
        pair = global::load_written_f32x2_if(address, valid >= 2);
    } else if valid >= 2 {
        pair[1] = global::load_written_f32(address.wrapping_add(4));
    }
    if valid == 1 || !VECTOR && valid >= 2 {
        pair[0] = global::load_written_f32(address);
    }
    pair
}

/// Adds rows of f32, each times its factor, to those of a plain-FMA warp: lane `c` of a row holds columns
/// `4 c + 32 i..4 c + 32 i + 4`.
///
/// # Safety
/// `source` is readable where valid; with `VECTOR`, its rows are 16-byte aligned.
#[inline(always)]
pub unsafe fn add_fma_f32<const ROWS: usize, const N: usize, const VECTOR: bool>(
    lane: u32,
    values: &mut [f32; N],
    factors: &[f32; ROWS],
    first_row: u32,
    source: &GlobalRows,
) {
    let mut r = 0;
    while r < ROWS {
        let row = (first_row + <FmaFragment as Fragment<ROWS, N>>::row(lane, r)) as i32;
        let mut i = 0;
        while i < N / ROWS / 4 {
            let column = lane % FMA_LANE_COLUMNS * 4 + i as u32 * FMA_LANE_COLUMNS * 4;
            let four = load_four::<VECTOR>(source, row, column);
            let mut e = 0;
            while e < 4 {
                let at = r * (N / ROWS) + 4 * i + e;
                values[at] = math::fma(factors[r], four[e], values[at]);
                e += 1;
            }
            i += 1;
        }
        r += 1;
    }
}

/// Adds neighbouring elements of a row from column `column` on, a multiple of 4.
///
/// # Safety
/// As [`add_fma_f32`].
#[inline(always)]
pub unsafe fn add_row<const N: usize, const VECTOR: bool>(
    values: &mut [f32; N],
    source: &GlobalRows,
    row: i32,
    column: u32,
) {
    let mut i = 0;
    while i < N / 4 {
        let four = load_four::<VECTOR>(source, row, column + 4 * i as u32);
        let mut e = 0;
        while e < 4 {
            values[4 * i + e] += four[e];
            e += 1;
        }
        i += 1;
    }
}

/// Four f32 from column `column` of row `row` on, as far as they are valid, and 0.
#[inline(always)]
unsafe fn load_four<const VECTOR: bool>(source: &GlobalRows, row: i32, column: u32) -> [f32; 4] {
    if row >= source.rows {
        return [0.0; 4];
    }
    let address = source.row(row).wrapping_add(4 * column as u64);
    if VECTOR && column + 4 <= source.columns {
        return global::load_written_u32x4_if(address, true).map(f32::from_bits);
    }
    let mut four = [0.0; 4];
    let mut e = 0;
    while e < 4 {
        if column + (e as u32) < source.columns {
            four[e] = global::load_written_f32(address.wrapping_add(4 * e as u64));
        }
        e += 1;
    }
    four
}
