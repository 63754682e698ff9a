//! The backward mathematics on transposed tiles: rows are keys, columns are queries.
//!
//! `p = e^(s - lse)`, `dp = v dO^T`, `ds = p' (dp - delta)` (docs/semantics.md, section 1;
//! FlashAttention-2, algorithm 2), with p and p' as [`super::score::backward`] makes them. lse and delta
//! belong to columns, and stand in shared memory as two rows of f32.

pub mod units;

use crate::arch::{math, shared, warp};
use crate::attention::score::backward::each_element;
use crate::tile::fragment::Fragment;

/// Subtracts from each column its delta (at shared address `delta`).
///
/// # Safety
/// The deltas of all columns are written and visible.
#[inline(always)]
pub unsafe fn subtract_delta<F: Fragment<ROWS, N>, const ROWS: usize, const N: usize>(
    lane: u32,
    dp: &mut [f32; N],
    delta: u32,
) {
    each_element::<F, ROWS, N, 0>(lane, delta, |register, value| dp[register] -= value);
}

/// The deltas of a lane's first `COLUMNS` columns, so that [`subtract_loaded_delta`] need not wait for them.
///
/// # Safety
/// As [`subtract_delta`].
#[inline(always)]
pub unsafe fn load_delta<
    F: Fragment<ROWS, N>,
    const ROWS: usize,
    const N: usize,
    const COLUMNS: usize,
>(
    lane: u32,
    delta: u32,
) -> [f32; COLUMNS] {
    const { assert!(F::PAIRED && COLUMNS.is_multiple_of(2) && COLUMNS <= F::COLUMNS) };
    let mut loaded = [0.0; COLUMNS];
    let mut column = 0;
    while column < COLUMNS {
        let address = delta + 4 * (F::first_column(lane) + F::column_offset(column));
        [loaded[column], loaded[column + 1]] = shared::load_f32x2(address);
        column += 2;
    }
    loaded
}

/// [`subtract_delta`], with the first columns' deltas `loaded` before.
///
/// # Safety
/// As [`subtract_delta`].
#[inline(always)]
pub unsafe fn subtract_loaded_delta<
    F: Fragment<ROWS, N>,
    const ROWS: usize,
    const N: usize,
    const COLUMNS: usize,
>(
    lane: u32,
    dp: &mut [f32; N],
    loaded: &[f32; COLUMNS],
    delta: u32,
) {
    let mut column = 0;
    while column < COLUMNS {
        let mut row = 0;
        while row < ROWS {
            dp[F::register(row, column)] -= loaded[column];
            row += 1;
        }
        column += 1;
    }
    each_element::<F, ROWS, N, COLUMNS>(lane, delta, |register, value| dp[register] -= value);
}

/// The power of two that dS of a tile of `QUERIES` queries is multiplied by to stay below 2^15, when
/// no element of v exceeds `largest_value` in size: `|dS| <= |dP - delta| <= largest_value sum|dO| +
/// |delta|`. 1 unless that is needed, and where the bound is not finite. `norm` and `delta` are the
/// shared addresses of the queries' `sum|dO|` and delta. All lanes get the same.
///
/// # Safety
/// As [`subtract_delta`], for `norm` too; all 32 lanes call it together.
#[inline(always)]
pub unsafe fn range_factor(lane: u32, queries: u32, largest_value: f32, norm: u32, delta: u32) -> f32 {
    let mut bound = 0.0;
    let mut row = lane;
    while row < queries {
        let norm = f32::from_bits(shared::load_u32(norm + 4 * row));
        let delta = f32::from_bits(shared::load_u32(delta + 4 * row));
        bound = math::max(bound, math::fma(largest_value, norm, delta.abs()));
        row += 32;
    }
    let bound = warp::max(bound);
    if bound < LARGEST_DS || bound.is_infinite() {
        return 1.0;
    }
    // bound is in 2^e..2^(e + 1): the factor is 2^(14 - e), a normal number up to e = 127.
    f32::from_bits(((2 * 127 + 14) << 23) - (bound.to_bits() >> 23 << 23))
}

/// Multiplies values by others, one by one.
#[inline(always)]
pub fn multiply_all<const N: usize>(values: &mut [f32; N], others: &[f32; N]) {
    let mut i = 0;
    while i < N {
        values[i] *= others[i];
        i += 1;
    }
}

/// Multiplies all values by `factor`.
#[inline(always)]
pub fn scale_all(values: &mut [f32], factor: f32) {
    let mut i = 0;
    while i < values.len() {
        // SAFETY: i is below the length. Indexing would leave a panic behind.
        unsafe { *values.get_unchecked_mut(i) *= factor };
        i += 1;
    }
}

/// The largest value of `THREADS` threads, the same for all; `address` is that of four bytes of shared memory
/// for each warp.
///
/// # Safety
/// All the threads call it, with a `meet` at which exactly they meet; the memory is not in use until they
/// meet again.
#[inline(always)]
pub unsafe fn block_max<const THREADS: u32>(
    thread: u32,
    value: f32,
    address: u32,
    meet: impl FnOnce(),
) -> f32 {
    let largest = warp::max(value);
    if thread % 32 == 0 {
        shared::store_u32(address + thread / 32 * 4, largest.to_bits());
    }
    meet();
    let mut largest = 0.0;
    let mut warp = 0;
    while warp < THREADS / 32 {
        largest = math::max(largest, f32::from_bits(shared::load_u32(address + 4 * warp)));
        warp += 1;
    }
    largest
}

/// Half of the power of two that f16 no longer holds.
const LARGEST_DS: f32 = 32768.0;
