//! f32 operands in two f16 parts, for kernels that multiply them on tensor cores
//! ([`crate::tile::element::SplitF32`]): one kernel measures, the next one splits.
//!
//! ```text
//! measure:   of each head of q, k, v and dO the largest size; of each row and each column the largest size
//! split:     u = 2^14 / 2^floor(log2 max)                        of the head
//!            high = f16(u x),  low = f16(u x - high)
//! ```
//!
//! Parts are as exact as f32 is if numbers far below the largest of their head do not count. Where they do,
//! or where a number is not finite, a word says so, and the kernels behind this one compute in f32:
//!
//! - Of q and k it is the largest score that could be: if `|scale| D max|q| max|k|` is small, what parts are
//!   off by is too little to move a score ([`SPLIT_MOST_SCORE`](crate::abi::SPLIT_MOST_SCORE)).
//! - Of a backward, too; and of all operands rows and columns, as of v below: q, k and dO are multiplied over
//!   their rows, and dp is as exact as rows of v and dO are.
//! - Of v it is rows and columns: the output of a query that sees small values only is as exact as they are,
//!   and so is a column ([`SPLIT_SPREAD`]).

use crate::abi::{
    SPLIT_EXPONENT, SPLIT_LEAST_EXPONENT, SPLIT_RECORD_WORDS, SPLIT_ROWS, SPLIT_SPREAD, SPLIT_TENSORS,
    SPLIT_THREADS, SplitParams, SplitTensor,
};
use crate::arch::{barrier, global, math, shared, thread, warp};
use crate::tile::element::split_pair;

/// Warps of a block.
const WARPS: u32 = SPLIT_THREADS / 32;
/// Columns of a lane.
const LANE_COLUMNS: usize = 4;
/// Bytes of a record.
const RECORD_BYTES: u32 = SPLIT_RECORD_WORDS * 4;
/// The bits of an f32 but its sign.
const SIZE: u32 = 0x7fff_ffff;
/// The exponent field of what is not finite.
const NOT_FINITE: u32 = 255;

/// What a block works on: some rows of a head of a tensor.
struct Rows {
    tensor: SplitTensor,
    /// q, k, v or dO.
    index: usize,
    batch: u32,
    head: u32,
    chunk: u32,
}

impl Rows {
    #[inline(always)]
    fn of_this_block(p: &SplitParams) -> Self {
        let block = thread::block_idx_x();
        // Each by a number that is known: one that is not makes the compiler copy all of them to memory.
        let (mut index, mut tensor) = (0, p.tensors[0]);
        let mut next = 1;
        while next < SPLIT_TENSORS {
            if block >= p.tensors[next].first_block {
                (index, tensor) = (next, p.tensors[next]);
            }
            next += 1;
        }
        let block = block - tensor.first_block;
        let pair = math::divide(block, tensor.chunks);
        let batch = math::divide(pair, tensor.heads);
        let (head, chunk) = (pair - batch * tensor.heads, block - pair * tensor.chunks);
        Rows { tensor, index, batch, head, chunk }
    }

    /// Batch and head as one number.
    #[inline(always)]
    fn pair(&self) -> u32 {
        self.batch * self.tensor.heads + self.head
    }

    /// The lane's columns of a row, 0 where the tensor has none: two neighbouring ones, and those 64
    /// further on.
    #[inline(always)]
    unsafe fn load(&self, lane: u32, row: u32) -> [f32; LANE_COLUMNS] {
        let view = &self.tensor.tensor;
        let offset = self.batch as i64 * view.batch_stride
            + self.head as i64 * view.head_stride
            + row as i64 * view.row_stride;
        let first = view.address.wrapping_add((4 * offset) as u64);
        let mut values = [0.0; LANE_COLUMNS];
        let mut i = 0;
        while i < LANE_COLUMNS {
            let column = column(lane, i);
            let is_there = row < self.tensor.rows && column < self.tensor.columns;
            values[i] = f32::from_bits(global::load_u32_if(first + 4 * column as u64, is_there));
            i += 1;
        }
        values
    }
}

/// The lane's `i`-th column.
#[inline(always)]
fn column(lane: u32, i: usize) -> u32 {
    2 * lane + (i as u32 % 2) + 64 * (i as u32 / 2)
}

/// Measures the rows of a block, and writes their record.
///
/// # Safety
/// `p` is as [`SplitParams`] says.
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn measure_operands_f32_sm80(p: SplitParams) {
    let (lane, own_warp) = (thread::thread_idx_x() % 32, thread::thread_idx_x() / 32);
    if thread::block_idx_x() == 0 && thread::thread_idx_x() == 0 {
        global::store_u32x2(p.turn, [0; 2]);
    }
    let rows = Rows::of_this_block(&p);
    let (mut of_columns, mut largest, mut least) = ([0; LANE_COLUMNS], 0, 0);
    let mut step = 0;
    while step < thread::opaque(SPLIT_ROWS / WARPS) {
        let values = rows.load(lane, rows.chunk * SPLIT_ROWS + step * WARPS + own_warp);
        let mut of_row = 0;
        let mut i = 0;
        while i < LANE_COLUMNS {
            let size = values[i].to_bits() & SIZE;
            of_columns[i] = of_columns[i].max(size);
            of_row = of_row.max(size);
            i += 1;
        }
        let of_row = warp::max_u32(of_row);
        largest = largest.max(of_row);
        least = least.max(complement(of_row));
        step += 1;
    }
    let own = shared::dynamic_base() + own_warp * RECORD_BYTES;
    if lane == 0 {
        shared::store_u32(own, largest);
        shared::store_u32(own + 4, least);
    }
    let mut i = 0;
    while i < LANE_COLUMNS {
        shared::store_u32(own + 8 + 4 * column(lane, i), of_columns[i]);
        i += 1;
    }
    barrier::block_sync();
    let word = thread::thread_idx_x();
    if word < SPLIT_RECORD_WORDS {
        let mut all = 0;
        let mut other = 0;
        while other < WARPS {
            all = all.max(shared::load_u32(shared::dynamic_base() + other * RECORD_BYTES + 4 * word));
            other += 1;
        }
        let record = rows.pair() * rows.tensor.chunks + rows.chunk;
        let address = rows.tensor.records.wrapping_add(record as u64 * RECORD_BYTES as u64);
        global::store_u32(address.wrapping_add(4 * word as u64), all);
    }
}

/// What grows as a size that is not 0 shrinks; 0 of 0.
#[inline(always)]
fn complement(size: u32) -> u32 {
    if size == 0 { 0 } else { !size }
}

/// The largest of word `word` of all records of a pair of batch and head. The same in all lanes.
///
/// # Safety
/// All 32 lanes call it together.
#[inline(always)]
unsafe fn largest(tensor: &SplitTensor, pair: u32, word: u32) -> u32 {
    let first = (pair as u64 * tensor.chunks as u64) * SPLIT_RECORD_WORDS as u64 + word as u64;
    let mut all = 0;
    let mut chunk = thread::thread_idx_x() % 32;
    while chunk < tensor.chunks {
        let record = chunk as u64 * SPLIT_RECORD_WORDS as u64;
        all = all.max(global::load_u32(tensor.records.wrapping_add(4 * (first + record))));
        chunk += 32;
    }
    warp::max_u32(all)
}

/// The exponent field of a head's largest size as it is used: that of 0 is one that needs no factor.
#[inline(always)]
fn exponent(largest: u32) -> u32 {
    if largest == 0 { SPLIT_EXPONENT } else { largest >> 23 }
}

/// Whether heads with this exponent can be split at all.
#[inline(always)]
fn is_in_range(exponent: u32) -> bool {
    SPLIT_LEAST_EXPONENT <= exponent && exponent < NOT_FINITE
}

/// Splits the rows of a block. The first block of a head also says what its products are in units of, and
/// whether the parts are as exact as they must be.
///
/// # Safety
/// `p` is as [`SplitParams`] says, behind the kernel that measures.
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn split_operands_f32_sm80(p: SplitParams) {
    let (lane, own_warp) = (thread::thread_idx_x() % 32, thread::thread_idx_x() / 32);
    let rows = Rows::of_this_block(&p);
    let largest_size = largest(&rows.tensor, rows.pair(), 0);
    let exponent = exponent(largest_size);
    if rows.chunk == 0 {
        let is_exact = if p.gradient_units != 0 {
            is_even(&rows, exponent) && (rows.index > 0 || products_are_exact(&p, &rows, largest_size))
        } else {
            match rows.index {
                0 => scores_are_exact(&p, &rows, largest_size),
                1 => true,
                _ => values_are_exact(&p, &rows, exponent),
            }
        };
        if thread::thread_idx_x() == 0 && !(is_exact && is_in_range(exponent)) {
            global::count_release_u32(p.turn, 1);
        }
    }
    // Of heads that are out of range the parts are not used.
    let exponent = if is_in_range(exponent) { exponent } else { SPLIT_EXPONENT };
    let factor = f32::from_bits((127 + SPLIT_EXPONENT - exponent) << 23);
    let row_bytes = 4 * p.padded_columns as u64;
    let first = rows.pair() as u64 * rows.tensor.rows as u64;
    let mut step = 0;
    while step < thread::opaque(SPLIT_ROWS / WARPS) {
        let row = rows.chunk * SPLIT_ROWS + step * WARPS + own_warp;
        let values = rows.load(lane, row);
        let target = rows.tensor.parts.wrapping_add((first + row as u64) * row_bytes);
        let mut i = 0;
        while i < LANE_COLUMNS {
            let [high, low] = split_pair(values[i] * factor, values[i + 1] * factor);
            let column = column(lane, i);
            if row < rows.tensor.rows && column < p.padded_columns {
                global::store_u32(target + 2 * column as u64, high);
                global::store_u32(target + 2 * (p.padded_columns + column) as u64, low);
            }
            i += 2;
        }
        step += 1;
    }
}

/// Whether scores of a query head are as exact as they must be; writes what they are in units of.
///
/// # Safety
/// All 32 lanes call it together.
#[inline(always)]
unsafe fn scores_are_exact(p: &SplitParams, rows: &Rows, of_queries: u32) -> bool {
    let keys = &p.tensors[1];
    let pair = rows.batch * keys.heads + math::divide(rows.head, p.group_size);
    let of_keys = largest(keys, pair, 0);
    let unit = unit_of_product(of_queries, of_keys);
    if thread::thread_idx_x() == 0 {
        let address = p.score_factors.wrapping_add(4 * rows.pair() as u64);
        global::store_f32(address, unit.unwrap_or(1.0));
    }
    let product = f32::from_bits(of_queries) * f32::from_bits(of_keys);
    unit.is_some() && product < f32::INFINITY && product <= p.most_product
}

/// What a product of numbers of two heads is in units of, if that is a normal number.
#[inline(always)]
fn unit_of_product(first: u32, second: u32) -> Option<f32> {
    // The exponent field of the product of both units.
    let field = (exponent(first) + exponent(second) + 127) as i32 - 2 * SPLIT_EXPONENT as i32;
    if field > 0 && field < NOT_FINITE as i32 {
        return Some(f32::from_bits((field as u32) << 23));
    }
    None
}

/// Whether scores and dp of a query head are as exact as they must be; writes what they, and numbers of
/// dO, q and k, are in units of.
///
/// # Safety
/// All 32 lanes call it together.
#[inline(always)]
unsafe fn products_are_exact(p: &SplitParams, rows: &Rows, of_queries: u32) -> bool {
    let [_, keys, values, d_o] = &p.tensors;
    let pair = rows.batch * keys.heads + math::divide(rows.head, p.group_size);
    let (of_keys, of_values) = (largest(keys, pair, 0), largest(values, pair, 0));
    let of_d_o = largest(d_o, rows.pair(), 0);
    let scores = unit_of_product(of_queries, of_keys);
    let dp = unit_of_product(of_d_o, of_values);
    if thread::thread_idx_x() == 0 {
        // Of heads that are out of range units are not used.
        let unit = |of: u32| (exponent(of) + 127).saturating_sub(SPLIT_EXPONENT) << 23;
        let address = p.gradient_units.wrapping_add(32 * rows.pair() as u64);
        let scores = scores.unwrap_or(1.0).to_bits();
        global::store_u32x4(address, [scores, unit(of_d_o), 0, 0]);
        let dp = dp.unwrap_or(1.0).to_bits();
        global::store_u32x4(address.wrapping_add(16), [dp, unit(of_queries), unit(of_keys), 0]);
    }
    let product = |first, second| f32::from_bits(first) * f32::from_bits(second);
    let (of_scores, of_dp) = (product(of_queries, of_keys), product(of_d_o, of_values));
    // A NaN is neither.
    scores.is_some()
        && dp.is_some()
        && of_scores < f32::INFINITY
        && of_scores <= p.most_product
        && of_dp <= p.most_gradient_product
}

/// Whether rows and columns of the values of a key head are of sizes that parts can have together; writes
/// what output is in units of.
///
/// # Safety
/// All threads of the block call it together.
#[inline(always)]
unsafe fn values_are_exact(p: &SplitParams, rows: &Rows, exponent: u32) -> bool {
    if thread::thread_idx_x() == 0 && is_in_range(exponent) {
        let field = (exponent + 127).saturating_sub(SPLIT_EXPONENT);
        global::store_u32(p.value_factors.wrapping_add(4 * rows.pair() as u64), field << 23);
    }
    is_even(rows, exponent)
}

/// Whether rows and columns of a head are of sizes that parts can have together.
///
/// # Safety
/// All threads of the block call it together.
#[inline(always)]
unsafe fn is_even(rows: &Rows, exponent: u32) -> bool {
    let thread = thread::thread_idx_x();
    // Of each column, a thread.
    let mut of_column = 0;
    if thread < SPLIT_RECORD_WORDS - 2 {
        let chunks = rows.tensor.chunks;
        let mut next = rows.tensor.records.wrapping_add(
            (rows.pair() as u64 * chunks as u64) * RECORD_BYTES as u64 + 4 * (2 + thread) as u64,
        );
        let mut chunk = 0;
        while chunk < chunks {
            of_column = of_column.max(global::load_u32(next));
            next = next.wrapping_add(RECORD_BYTES as u64);
            chunk += 1;
        }
    }
    let of_warp = warp::max_u32(complement(of_column));
    let base = shared::dynamic_base();
    if thread % 32 == 0 {
        shared::store_u32(base + 4 * (thread / 32), of_warp);
    }
    barrier::block_sync();
    let mut least_column = 0;
    let mut other = 0;
    while other < WARPS {
        least_column = least_column.max(shared::load_u32(base + 4 * other));
        other += 1;
    }
    let least_row = largest(&rows.tensor, rows.pair(), 1);
    // A head of zeros has neither.
    let below = |least: u32| if least == 0 { 0 } else { exponent - (!least >> 23) };
    below(least_row) + below(least_column) <= SPLIT_SPREAD
}
