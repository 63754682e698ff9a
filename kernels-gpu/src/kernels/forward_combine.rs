//! Last kernel of a forward whose keys were split: o and lse from those of each range of keys.
//!
//! With the references `r` (unscaled scores), sums `l` and outputs `o` of the ranges (docs/semantics.md,
//! section 1, sums over keys taken apart), and the largest reference `m`:
//!
//! ```text
//! w = l 2^(c (r - m))        o = sum of w o / sum of w, rounded once        lse = ln(sum of w) + scale m
//! ```
//!
//! A warp takes one query of one head. Its lanes share out the ranges to find what each of them counts for,
//! and then the columns. In kernels for few rows the warps of a block take one row together: each sums up
//! some of the ranges, and the first one what they have. The order of all additions depends on the problem
//! alone, so that results are the same in every run.

use crate::abi::{COMBINE_WARPS, CombineParams, MAX_SPLITS};
use crate::arch::{barrier, global, grid, math, shared, thread, warp};
use crate::attention::score::split_sign;
use crate::attention::sequence;
use crate::attention::softmax::{DEAD_SUM, half_difference, with_sink};
use crate::tile::element::{self, TensorCoreElement};
use crate::tile::global_rows::GlobalRows;
use crate::tile::store::{store_four, store_four_f32};
use core::f32::consts::LN_2;

/// Ranges whose weights a lane holds.
const HELD: usize = (MAX_SPLITS / 32) as usize;

/// Columns of a lane at a time.
const COLUMNS: u32 = 4;

/// Ranges that are read at once.
const AT_ONCE: u32 = 4;

/// A query of a head, and where its parts are.
#[derive(Clone, Copy)]
struct Row {
    batch: u32,
    head: u32,
    query: u32,
    /// Row of range 0 among those of all parts.
    first_part: u64,
    /// Ranges of keys that it has.
    ranges: u32,
}

/// Which of the ranges of a row a warp sums up: [`AT_ONCE`] from `first` on, and again every `step`.
#[derive(Clone, Copy)]
struct Share {
    first: u32,
    step: u32,
}

impl Row {
    /// The one of this warp, if there is one.
    #[inline(always)]
    unsafe fn of_this_warp<const ROWS: u32>(p: &CombineParams, warp: u32, lane: u32) -> Option<Self> {
        let index = thread::block_idx_x() * ROWS + if ROWS == 1 { 0 } else { warp };
        if index >= p.rows {
            return None;
        }
        let pair = math::divide(index, p.query_rows);
        let query = index - pair * p.query_rows;
        let batch = math::divide(pair, p.query_heads);
        let head = pair - batch * p.query_heads;
        let first_pair = batch as u64 * p.splits as u64 * p.query_heads as u64 + head as u64;
        let first_part = first_pair * p.query_rows as u64 + query as u64;
        let ranges = if p.cu_seqlens_q != 0 { ranges_of_packed(p, query, lane) } else { p.splits };
        Some(Row { batch, head, query, first_part, ranges })
    }

    /// The row of a range among those of all parts.
    #[inline(always)]
    fn part(&self, p: &CombineParams, range: u32) -> u64 {
        self.first_part + range as u64 * (p.query_heads as u64 * p.query_rows as u64)
    }

    /// What the ranges count for, those `lane`, `lane + 32`, ... in this lane, 0 for those that there are
    /// not; and lse. All are 0 and lse `-inf` if no range has a key; NaN, if all scores are `-inf`.
    #[inline(always)]
    unsafe fn weights(&self, p: &CombineParams, lane: u32) -> ([f32; HELD], f32) {
        let (scale, _) = split_sign(p.scale);
        let scale_log2 = scale * core::f32::consts::LOG2_E;
        let (mut references, mut weights) = ([0.0; HELD], [0.0; HELD]);
        let mut largest = f32::NEG_INFINITY;
        let mut all_are_infinite = false;
        let mut held = 0;
        while held < HELD {
            let range = 32 * held as u32 + lane;
            if range < self.ranges {
                let pair = p.part_statistics.wrapping_add(8 * self.part(p, range));
                references[held] = global::load_f32(pair);
                weights[held] = global::load_f32(pair.wrapping_add(4));
            }
            if weights[held] == DEAD_SUM {
                weights[held] = 0.0;
            } else if weights[held] != 0.0 {
                largest = math::max(largest, references[held]);
            } else if range < self.ranges {
                all_are_infinite = true;
            }
            held += 1;
        }
        largest = warp::max(largest);
        let mut sum = 0.0;
        let mut held = 0;
        while held < HELD {
            if weights[held] != 0.0 {
                weights[held] *=
                    math::exp2(half_difference(references[held], largest) * (2.0 * scale_log2));
            }
            sum += weights[held];
            held += 1;
        }
        sum = warp::sum(sum);
        if sum == 0.0 {
            let weight = if warp::any(all_are_infinite) { f32::NAN } else { 0.0 };
            return ([weight; HELD], f32::NEG_INFINITY);
        }
        let mut factor = math::reciprocal(sum) * p.kept;
        let mut lse = math::fma(largest, scale, math::log2(sum) * LN_2);
        if p.sinks != 0 {
            let sink = global::load_f32(p.sinks.wrapping_add(4 * self.head as u64));
            let share;
            (lse, share) = with_sink((largest, scale), sum, sink);
            factor *= share;
        }
        let mut held = 0;
        while held < HELD {
            weights[held] *= factor;
            held += 1;
        }
        (weights, lse)
    }

    /// Four columns of o of a range from `column` on, as far as they exist; zeros if the range does not.
    #[inline(always)]
    unsafe fn load(&self, p: &CombineParams, range: u32, column: u32) -> [f32; COLUMNS as usize] {
        let columns = p.value_dim.div_ceil(COLUMNS) * COLUMNS;
        let first = self.part(p, range) * columns as u64 + column as u64;
        let address = p.part_o.wrapping_add(4 * first);
        let exists = range < self.ranges;
        if p.value_dim % COLUMNS == 0 {
            return global::load_u32x4_if(address, exists && column < p.value_dim).map(f32::from_bits);
        }
        let mut o = [0.0; COLUMNS as usize];
        let mut e = 0;
        while e < COLUMNS {
            let exists = exists && column + e < p.value_dim;
            let bits = global::load_u32_if(address.wrapping_add(4 * e as u64), exists);
            o[e as usize] = f32::from_bits(bits);
            e += 1;
        }
        o
    }

    /// Four columns of o from `column` on, of a share of the ranges.
    #[inline(always)]
    unsafe fn sum(
        &self,
        p: &CombineParams,
        share: Share,
        weights: &[f32; HELD],
        column: u32,
    ) -> [f32; COLUMNS as usize] {
        let mut o = [0.0; COLUMNS as usize];
        let mut held = 0;
        while held < HELD {
            // Where each lane's first one stands; unknown to the compiler, which would write out all rounds.
            let first = thread::opaque(32 * held as u32);
            let end = if first + 32 < self.ranges { first + 32 } else { self.ranges };
            let mut range = first + share.first;
            while range < end {
                let mut parts = [[0.0; COLUMNS as usize]; AT_ONCE as usize];
                let mut i = 0;
                while i < AT_ONCE {
                    parts[i as usize] = self.load(p, range + i, column);
                    i += 1;
                }
                let mut i = 0;
                while i < AT_ONCE {
                    let weight = warp::shuffle(weights[held], range - first + i);
                    let mut e = 0;
                    while e < o.len() {
                        o[e] = math::fma(weight, parts[i as usize][e], o[e]);
                        e += 1;
                    }
                    i += 1;
                }
                range += share.step;
            }
            held += 1;
        }
        o
    }

    /// Where o goes.
    #[inline(always)]
    fn target<const ELEMENT_BYTES: i64>(&self, p: &CombineParams) -> GlobalRows {
        let o = &p.o;
        let address = GlobalRows::address::<ELEMENT_BYTES>(o, self.batch, self.head, self.query as i32);
        GlobalRows::new::<ELEMENT_BYTES>(o, address, 1, p.value_dim)
    }
}

/// Ranges that packed row `row` has: those of the last sequence that begins at it or before.
#[inline(always)]
unsafe fn ranges_of_packed(p: &CombineParams, row: u32, lane: u32) -> u32 {
    // It is one of `count` from `first` on; each lane asks whether another one of them begins that early.
    let (mut first, mut count) = (0, p.batches);
    while count > 1 {
        let step = count.div_ceil(32);
        let begins_by_then = lane * step < count
            && global::load_u32(p.cu_seqlens_q.wrapping_add(4 * (first + lane * step) as u64)) <= row;
        // The first one begins that early in any case.
        let skipped = ((!warp::ballot(begins_by_then)).trailing_zeros() - 1) * step;
        first += skipped;
        count = if count - skipped < step { count - skipped } else { step };
    }
    sequence::ranges(sequence::length(p.cu_seqlens_k, first), p.split_keys)
}

/// What all warps of a block have summed up, where they share out a row, in the first warp: `o` is what this
/// lane has of four columns of 128 from `first_column` on.
#[inline(always)]
unsafe fn add_shares(
    warp: u32,
    lane: u32,
    first_column: u32,
    o: [f32; COLUMNS as usize],
) -> [f32; COLUMNS as usize] {
    // Each 128 columns have memory of their own, so that nobody overwrites what is still read.
    let place =
        |warp: u32| shared::dynamic_base() + 4 * COMBINE_WARPS * first_column + 16 * (32 * warp + lane);
    if warp != 0 {
        shared::store_u32x4(place(warp), o.map(f32::to_bits));
    }
    barrier::block_sync();
    let mut sum = o;
    let mut other = 1;
    while other < COMBINE_WARPS && warp == 0 {
        let share = shared::load_f32x4(place(other));
        let mut e = 0;
        while e < sum.len() {
            sum[e] += share[e];
            e += 1;
        }
        other += 1;
    }
    sum
}

/// One of `ROWS` rows a warp, or one for all warps of the block; `IS_EARLY`: the main kernel may not have
/// ended.
#[inline(always)]
unsafe fn combine<E: Store, const ROWS: u32, const IS_EARLY: bool>(p: &CombineParams) {
    if IS_EARLY {
        grid::wait_for_previous();
    }
    let (warp, lane) = (thread::thread_idx_x() / 32, thread::thread_idx_x() % 32);
    let Some(row) = Row::of_this_warp::<ROWS>(p, warp, lane) else { return };
    let shares_rows = ROWS == 1;
    let share = if shares_rows {
        Share { first: AT_ONCE * warp, step: AT_ONCE * COMBINE_WARPS }
    } else {
        Share { first: 0, step: AT_ONCE }
    };
    let writes = !shares_rows || warp == 0;
    let (weights, lse) = row.weights(p, lane);
    if p.lse != 0 && lane == 0 && writes {
        let index = row.batch as i64 * p.lse_batch_stride
            + row.head as i64 * p.lse_head_stride
            + row.query as i64;
        global::store_f32(p.lse.wrapping_add((4 * index) as u64), lse);
    }
    let mut first_column = 0;
    while first_column < p.value_dim {
        let column = first_column + COLUMNS * lane;
        let mut o = row.sum(p, share, &weights, column);
        if shares_rows {
            o = add_shares(warp, lane, first_column, o);
        }
        if writes {
            E::store(p, row, column, o);
        }
        first_column += COLUMNS * 32;
    }
}

/// Writes four columns of f32.
#[inline(always)]
unsafe fn store_f32(p: &CombineParams, row: Row, column: u32, o: [f32; COLUMNS as usize]) {
    let target = row.target::<4>(p);
    if p.is_aligned != 0 {
        store_four_f32::<true>(&target, 0, column, o);
    } else {
        store_four_f32::<false>(&target, 0, column, o);
    }
}

/// Writes four columns of 16 bits, or of f32.
#[inline(always)]
unsafe fn store_either<E: TensorCoreElement>(
    p: &CombineParams,
    row: Row,
    column: u32,
    o: [f32; COLUMNS as usize],
) {
    if p.output_f32 != 0 {
        store_f32(p, row, column, o);
    } else {
        store_four::<E>(&row.target::<2>(p), 0, column, o, p.is_aligned != 0);
    }
}

macro_rules! entries {
    ($is_early:literal, $(($name:ident, $dtype:ident, $rows:literal))*) => {
        $(
            /// The combining kernel of one element type and number of rows.
            ///
            /// # Safety
            /// `p` is as [`CombineParams`] says.
            #[unsafe(no_mangle)]
            pub unsafe extern "ptx-kernel" fn $name(p: CombineParams) {
                combine::<element::$dtype, $rows, $is_early>(&p);
            }
        )*
    };
}

macro_rules! entries_sm80 { ($($row:tt)*) => { entries!(false, $($row)*); } }
crate::for_each_forward_combine_sm80!(entries_sm80);

macro_rules! entries_sm90a { ($($row:tt)*) => { entries!(true, $($row)*); } }
crate::for_each_forward_combine_sm90a!(entries_sm90a);

/// How four columns of o of a problem in an element type are written.
trait Store {
    unsafe fn store(p: &CombineParams, row: Row, column: u32, o: [f32; COLUMNS as usize]);
}

macro_rules! store_16_bits {
    ($($dtype:ident)*) => {
        $(impl Store for element::$dtype {
            #[inline(always)]
            unsafe fn store(p: &CombineParams, row: Row, column: u32, o: [f32; COLUMNS as usize]) {
                store_either::<Self>(p, row, column, o);
            }
        })*
    };
}
store_16_bits!(Bf16 F16);

impl Store for element::F32 {
    #[inline(always)]
    unsafe fn store(p: &CombineParams, row: Row, column: u32, o: [f32; COLUMNS as usize]) {
        store_f32(p, row, column, o);
    }
}
