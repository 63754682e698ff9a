//! From accumulators to global memory: valid rows and columns only.

use super::element::TensorCoreElement;
use super::fragment::{FMA_LANE_COLUMNS, FmaFragment, Fragment, MmaFragment};
use super::global_rows::{GlobalRows, Rows};
use super::mma::store_packed;
use super::shared_tile::{SharedTile, SharedTileOf};
use super::warpgroup::store_rows;
use crate::arch::{global, shared, warp};
use crate::geometry::size::TileSize;

/// Writes 16 rows in 16 bits, through the warp's own 16 rows of `staging` so that 16 bytes leave at a
/// time.
///
/// # Safety
/// All 32 lanes call it together; rows `first_row..first_row + 16` of `staging` belong to this warp and
/// `target`'s rows are 16-byte aligned.
#[inline(always)]
pub unsafe fn store_staged<
    E: TensorCoreElement,
    const ROWS: u32,
    const ROW_BYTES: u32,
    const N: usize,
>(
    lane: u32,
    values: &[f32; N],
    staging: SharedTile<ROWS, ROW_BYTES>,
    first_row: u32,
    target: &GlobalRows,
) {
    warp::warp_sync();
    store_packed(lane, |i| E::pack(values[2 * i], values[2 * i + 1]), staging, first_row);
    warp::warp_sync();
    // 8 lanes (4 for the narrowest tile) side by side write one row, 128 bytes at a time.
    const fn lanes_per_row(row_bytes: u32) -> u32 {
        if row_bytes.is_multiple_of(128) { 8 } else { 4 }
    }
    let across = lanes_per_row(ROW_BYTES);
    let mut top = 0;
    while top < 16 {
        let row = first_row + top + lane / across;
        let mut left = 0;
        while left < ROW_BYTES / 16 {
            let chunk = left + lane % across;
            store_chunk(target, row as i32, chunk * 8, shared::load_u32x4(staging.chunk(row, chunk)));
            left += across;
        }
        top += 32 / across;
    }
}

/// The same by `stmatrix`, of an accumulator of `2 N` columns, at most as wide as the tile.
///
/// # Safety
/// As [`store_staged`]; no lane has yet to read these rows of `staging`, and `target`'s columns are a
/// multiple of 8, at most `2 N`.
#[inline(always)]
pub unsafe fn store_by_matrix<E: TensorCoreElement, S: TileSize, const N: usize>(
    lane: u32,
    values: &[f32; N],
    staging: SharedTileOf<S>,
    first_row: u32,
    target: &impl Rows,
) {
    store_rows::<E, S, N>(lane, values, staging, first_row);
    warp::warp_sync();
    copy_staged::<S, N>(lane, staging, first_row, target);
}

/// Writes rows `first_row..first_row + 16` of `staging`, 16 bytes at a time.
///
/// # Safety
/// All 32 lanes call it together, and have met since these rows were written; `target` is as for
/// [`store_by_matrix`].
#[inline(always)]
pub unsafe fn copy_staged<S: TileSize, const N: usize>(
    lane: u32,
    staging: SharedTileOf<S>,
    first_row: u32,
    target: &impl Rows,
) {
    let (down, across) = (lane / 8, lane % 8);
    let mut address = target.row((first_row + down) as i32).wrapping_add(16 * across as u64);
    let mut top = 0;
    while top < 16 {
        let row = first_row + top + down;
        let mut left = 0;
        while left < N as u32 / 4 {
            let chunk = left + across;
            if (row as i32) < target.count() && 8 * chunk < target.columns() {
                let words = shared::load_u32x4(staging.chunk(row, chunk));
                global::store_u32x4(address.wrapping_add(16 * left as u64), words);
            }
            left += 8;
        }
        address = target.behind(address, (first_row + top + down) as i32, 4);
        top += 4;
    }
}

/// Writes 16 rows in 16 bits straight from registers, 16 bytes of a row at a time: the four lanes that share
/// a row exchange their pairs of columns, so that each has eight neighbouring ones.
///
/// ```text
/// lane t of four holds word t of chunks 0, 1, 2, 3;  afterwards words 0, 1, 2, 3 of chunk t
///
///          chunk 0 1 2 3       exchange with t ^ 1         exchange with t ^ 2
/// lane 0:        a b c d       a0 a1    c0 c1              a0 a1 a2 a3
/// lane 1:        a b c d       b0 b1    d0 d1              b0 b1 b2 b3
/// lane 2:        a b c d       a2 a3    c2 c3              c0 c1 c2 c3
/// lane 3:        a b c d       b2 b3    d2 d3              d0 d1 d2 d3
/// ```
///
/// # Safety
/// All 32 lanes call it together; `target`'s rows are 16-byte aligned and its columns a multiple of 8, at
/// most `2 N`.
#[inline(always)]
pub unsafe fn store_exchanged<E: TensorCoreElement, const N: usize>(
    lane: u32,
    values: &[f32; N],
    first_row: u32,
    target: &impl Rows,
) {
    let (odd, upper) = (lane & 1 != 0, lane & 2 != 0);
    let pick = |first: bool, a: u32, b: u32| if first { a } else { b };
    let mut half = 0;
    while half < 2 {
        let row = (first_row + <MmaFragment as Fragment<2, N>>::row(lane, half)) as i32;
        let start = target.row(row).wrapping_add(16 * (lane % 4) as u64);
        let mut group = 0;
        while group < N.div_ceil(16) {
            let word = |chunk: usize| {
                let at = 16 * group + 4 * chunk + 2 * half;
                if at + 1 < N { E::pack(values[at], values[at + 1]) } else { 0 }
            };
            let (a, b, c, d) = (word(0), word(1), word(2), word(3));
            let left = warp::exchange(pick(odd, a, b), 1);
            let right = warp::exchange(pick(odd, c, d), 1);
            let low = [pick(odd, left, a), pick(odd, b, left)];
            let high = [pick(odd, right, c), pick(odd, d, right)];
            let first = warp::exchange(pick(upper, low[0], high[0]), 2);
            let second = warp::exchange(pick(upper, low[1], high[1]), 2);
            let words = [
                pick(upper, first, low[0]),
                pick(upper, second, low[1]),
                pick(upper, high[0], first),
                pick(upper, high[1], second),
            ];
            let column = 32 * group as u32 + 8 * (lane % 4);
            if row < target.count() && column < target.columns() {
                global::store_u32x4(start.wrapping_add(64 * group as u64), words);
            }
            group += 1;
        }
        half += 1;
    }
}

/// Writes eight neighbouring elements of a row from column `column` on, a multiple of 8, as far as they are
/// valid: `as_f32` in f32, otherwise in 16 bits.
///
/// # Safety
/// `target` is writable where valid; its rows are 16-byte aligned.
#[inline(always)]
pub unsafe fn store_eight<E: TensorCoreElement>(
    values: [f32; 8],
    target: &GlobalRows,
    row: i32,
    column: u32,
    as_f32: bool,
) {
    let [a, b, c, d, e, f, g, h] = values;
    if as_f32 {
        store_four_f32::<true>(target, row, column, [a, b, c, d]);
        store_four_f32::<true>(target, row, column + 4, [e, f, g, h]);
    } else {
        store_chunk(target, row, column, [E::pack(a, b), E::pack(c, d), E::pack(e, f), E::pack(g, h)]);
    }
}

/// Writes eight 16-bit elements from column `column` on, as far as they are valid.
#[inline(always)]
unsafe fn store_chunk(target: &GlobalRows, row: i32, column: u32, words: [u32; 4]) {
    if row >= target.rows {
        return;
    }
    let address = target.row(row).wrapping_add(2 * column as u64);
    if column + 8 <= target.columns {
        global::store_u32x4(address, words);
        return;
    }
    let mut i = 0;
    while i < 8 {
        if column + i < target.columns {
            let word = words[i as usize / 2];
            global::store_u16(address.wrapping_add(2 * i as u64), (word >> (i % 2 * 16)) as u16);
        }
        i += 1;
    }
}

/// Writes 16 rows pair by pair, straight from registers: `as_f32` in f32, otherwise in 16 bits. The
/// accumulator's column 0 is column `first_column` (even) of the target.
///
/// # Safety
/// `target` is writable where valid; with `VECTOR`, its rows are 16-byte aligned.
#[inline(always)]
pub unsafe fn store_pairs<E: TensorCoreElement, const N: usize, const VECTOR: bool>(
    lane: u32,
    values: &[f32; N],
    first_row: u32,
    first_column: u32,
    target: &impl Rows,
    as_f32: bool,
) {
    let mut half = 0;
    while half < 2 {
        let row = (first_row + <MmaFragment as Fragment<2, N>>::row(lane, half)) as i32;
        if row < target.count() {
            let start = target.row(row);
            let mut tile = 0;
            while tile < N / 4 {
                let register = 4 * tile + 2 * half;
                let column =
                    first_column + <MmaFragment as Fragment<2, N>>::first_column(lane) + 8 * tile as u32;
                let pair = [values[register], values[register + 1]];
                let valid = target.columns() as i32 - column as i32;
                if as_f32 {
                    store_pair_f32::<VECTOR>(start.wrapping_add(4 * column as u64), pair, valid);
                } else {
                    store_pair::<VECTOR>(
                        start.wrapping_add(2 * column as u64),
                        E::pack(pair[0], pair[1]),
                        valid,
                    );
                }
                tile += 1;
            }
        }
        half += 1;
    }
}

/// Writes the first `valid` (at most two) of a pair of 16-bit elements.
#[inline(always)]
unsafe fn store_pair<const VECTOR: bool>(address: u64, packed: u32, valid: i32) {
    if VECTOR && valid >= 2 {
        global::store_u32(address, packed);
    } else if valid >= 1 {
        global::store_u16(address, packed as u16);
        if valid >= 2 {
            global::store_u16(address.wrapping_add(2), (packed >> 16) as u16);
        }
    }
}

/// Writes the first `valid` (at most two) of a pair of f32.
#[inline(always)]
unsafe fn store_pair_f32<const VECTOR: bool>(address: u64, pair: [f32; 2], valid: i32) {
    if VECTOR && valid >= 2 {
        global::store_f32x2(address, pair);
    } else if valid >= 1 {
        global::store_f32(address, pair[0]);
        if valid >= 2 {
            global::store_f32(address.wrapping_add(4), pair[1]);
        }
    }
}

/// Writes the output of a plain-FMA warp: lane `c` of a row holds columns `4 c + 32 i..4 c + 32 i + 4`.
///
/// # Safety
/// `target` is writable where valid; with `VECTOR`, its rows are 16-byte aligned.
#[inline(always)]
pub unsafe fn store_fma_f32<const ROWS: usize, const N: usize, const VECTOR: bool>(
    lane: u32,
    values: &[f32; N],
    first_row: u32,
    target: &GlobalRows,
) {
    let mut r = 0;
    while r < ROWS {
        let row = (first_row + <FmaFragment as Fragment<ROWS, N>>::row(lane, r)) as i32;
        if row < target.rows {
            let mut i = 0;
            while i < N / ROWS / 4 {
                let column = lane % FMA_LANE_COLUMNS * 4 + i as u32 * FMA_LANE_COLUMNS * 4;
                let at = r * (N / ROWS) + 4 * i;
                store_four_f32::<VECTOR>(target, row, column, [0, 1, 2, 3].map(|e| values[at + e]));
                i += 1;
            }
        }
        r += 1;
    }
}

/// Writes four f32 from column `column` of row `row` on, as far as they are valid.
///
/// # Safety
/// `target` is writable where valid; with `VECTOR`, its rows are 16-byte aligned.
#[inline(always)]
pub unsafe fn store_four_f32<const VECTOR: bool>(
    target: &GlobalRows,
    row: i32,
    column: u32,
    values: [f32; 4],
) {
    if row >= target.rows {
        return;
    }
    let address = target.row(row).wrapping_add(4 * column as u64);
    if VECTOR && column + 4 <= target.columns {
        global::store_u32x4(address, values.map(f32::to_bits));
        return;
    }
    let mut e = 0;
    while e < 4 {
        if column + (e as u32) < target.columns {
            global::store_f32(address.wrapping_add(4 * e as u64), values[e]);
        }
        e += 1;
    }
}

/// Writes four 16-bit elements from column `column` of row `row` on, a multiple of 4, as far as they are
/// valid.
///
/// # Safety
/// `target` is writable where valid; if it `is_aligned`, its rows are 8-byte aligned.
#[inline(always)]
pub unsafe fn store_four<E: TensorCoreElement>(
    target: &GlobalRows,
    row: i32,
    column: u32,
    values: [f32; 4],
    is_aligned: bool,
) {
    if row >= target.rows {
        return;
    }
    let words = [E::pack(values[0], values[1]), E::pack(values[2], values[3])];
    let address = target.row(row).wrapping_add(2 * column as u64);
    if is_aligned && column + 4 <= target.columns {
        global::store_u32x2(address, words);
        return;
    }
    let mut e = 0;
    while e < 4 {
        if column + (e as u32) < target.columns {
            global::store_u16(
                address.wrapping_add(2 * e as u64),
                (words[e / 2] >> (16 * (e % 2))) as u16,
            );
        }
        e += 1;
    }
}
