//! Points of multi-scale deformable attention by bins, in an order that no schedule changes: for gradients of
//! value that are the same in every run ([`super::msda_gather`]).
//!
//! A counting sort in three kernels. The points of a (batch, head) pair are divided into chunks, and a warp
//! takes a chunk, 32 points at a time and in order:
//!
//! 1. count: how many points of the chunk each bin has;
//! 2. scan: where the entries of each bin begin, and in them those of each chunk;
//! 3. fill: the entries. Lanes with points of the same bin find each other by `match`, and take places in
//!    the order of lanes.
//!
//! So entries of a bin stand in the order of queries and points. Nothing is atomic: a warp has counters of
//! its own for each bin.

use crate::abi::{MSDA_SCAN_THREADS, MSDA_SMALL_THREADS, MsdaEntry, MsdaParams};
use crate::arch::{barrier, global, math, shared, thread, warp};
use crate::msda::bin::{NO_BIN, of_point};
use crate::msda::levels::Levels;
use crate::msda::point::Point;
use crate::msda::strip::{Strip, Strips};
use crate::msda::tensor::Row;
use crate::tile::element;

/// Address of the counters of a chunk.
#[inline(always)]
fn counters(p: &MsdaParams, pair: u32, chunk: u32) -> u64 {
    let row = pair as u64 * p.chunks as u64 + chunk as u64;
    p.counts.wrapping_add(4 * row * p.bins as u64)
}

#[inline(always)]
unsafe fn sort<E: Strips<Element: Strip<Values = [f32; 1]>>, const FILL: bool>(p: &MsdaParams) {
    let levels = Levels::new(p, shared::dynamic_base());
    let lane = thread::thread_idx_x() & 31;
    let worker = thread::block_idx_x() as u64 * (MSDA_SMALL_THREADS / 32) as u64
        + (thread::thread_idx_x() / 32) as u64;
    let pair = math::divide_u64(worker, p.chunks as u64) as u32;
    let chunk = (worker - pair as u64 * p.chunks as u64) as u32;
    if pair >= p.batches * p.heads {
        return;
    }
    let counters = counters(p, pair, chunk);
    if !FILL {
        let mut bin = lane;
        while bin < p.bins {
            global::store_u32(counters.wrapping_add(4 * bin as u64), 0);
            bin += 32;
        }
        warp::warp_sync();
    }
    let batch = math::divide(pair, p.heads);
    let head = pair - batch * p.heads;
    let all = p.queries * p.points;
    let entries = p.entries.wrapping_add(16 * pair as u64 * all as u64);
    let mut first = chunk * p.chunk_points;
    let end = if all - first < p.chunk_points { all } else { first + p.chunk_points };
    while first < end {
        let item = first + lane;
        let (mut query, mut point) = (0, Point::none());
        if item < end {
            query = math::divide(item, p.points);
            let locations = Row::new::<E>(&p.locations, batch, query, head, p.locations_f32 != 0);
            let weights = Row::new::<E>(&p.weights, batch, query, head, p.weights_f32 != 0);
            point = Point::new::<E>(p, levels, locations, weights, item - query * p.points);
        }
        let bin = of_point(&point);
        let same = warp::match_any(bin);
        let leader = same.trailing_zeros();
        let rank = (same & ((1 << lane) - 1)).count_ones();
        let counter = counters.wrapping_add(4 * bin as u64);
        let mut place = 0;
        if bin != NO_BIN && lane == leader {
            place = global::load_written_u32(counter);
            global::store_u32(counter, place + same.count_ones());
        }
        if FILL {
            place = warp::broadcast(place, leader) + rank;
            if bin != NO_BIN {
                let (x, y) = (point.x.fraction, point.y.fraction);
                let entry = MsdaEntry { query, x, y, weight: point.weight };
                let words = [entry.query, entry.x.to_bits(), entry.y.to_bits(), entry.weight.to_bits()];
                global::store_u32x4(entries.wrapping_add(16 * place as u64), words);
            }
        }
        warp::warp_sync();
        first += 32;
    }
}

/// The sum over all lanes up to this one.
#[inline(always)]
unsafe fn sum_up_to(mut value: u32, lane: u32) -> u32 {
    let mut distance = 1;
    while distance < 32 {
        let below = warp::shuffle_up(value, distance);
        value += if lane >= distance { below } else { 0 };
        distance *= 2;
    }
    value
}

/// The sum over the threads of the block before this one, and over all of them. The sums of warps pass
/// through shared memory from `base` on.
#[inline(always)]
unsafe fn sum_before(value: u32, base: u32) -> (u32, u32) {
    let (lane, warp) = (thread::thread_idx_x() & 31, thread::thread_idx_x() / 32);
    let up_to = sum_up_to(value, lane);
    if lane == 31 {
        shared::store_u32(base + 4 * warp, up_to);
    }
    barrier::block_sync();
    let of_lane = shared::load_u32(base + 4 * lane);
    let up_to_warp = sum_up_to(of_lane, lane);
    let of_warp = warp::broadcast(of_lane, warp);
    let before = warp::broadcast(up_to_warp, warp) - of_warp + up_to - value;
    let all = warp::broadcast(up_to_warp, MSDA_SCAN_THREADS / 32 - 1);
    barrier::block_sync();
    (before, all)
}

#[inline(always)]
unsafe fn scan(p: &MsdaParams) {
    let pair = thread::block_idx_x();
    let starts = p.bin_starts.wrapping_add(4 * pair as u64 * (p.bins + 1) as u64);
    let mut carry = 0;
    let mut first = 0;
    while first < p.bins {
        let bin = first + thread::thread_idx_x();
        let counter = |chunk| counters(p, pair, chunk).wrapping_add(4 * bin as u64);
        let mut count = 0;
        if bin < p.bins {
            let mut chunk = 0;
            while chunk < p.chunks {
                count += global::load_written_u32(counter(chunk));
                chunk += 1;
            }
        }
        let (before, all) = sum_before(count, shared::dynamic_base());
        if bin < p.bins {
            let mut place = carry + before;
            global::store_u32(starts.wrapping_add(4 * bin as u64), place);
            let mut chunk = 0;
            while chunk < p.chunks {
                let of_chunk = global::load_written_u32(counter(chunk));
                global::store_u32(counter(chunk), place);
                place += of_chunk;
                chunk += 1;
            }
        }
        carry += all;
        first += MSDA_SCAN_THREADS;
    }
    if thread::thread_idx_x() == 0 {
        global::store_u32(starts.wrapping_add(4 * p.bins as u64), carry);
    }
}

macro_rules! sort_entries {
    ($(($count:ident, $fill:ident, $dtype:ident))*) => {
        $(
            /// The kernel that counts points of one element type.
            ///
            /// # Safety
            /// `p` is as [`MsdaParams`] says.
            #[unsafe(no_mangle)]
            pub unsafe extern "ptx-kernel" fn $count(p: MsdaParams) {
                sort::<element::$dtype, false>(&p);
            }

            /// The kernel that writes entries, from points of one element type.
            ///
            /// # Safety
            /// `p` is as [`MsdaParams`] says.
            #[unsafe(no_mangle)]
            pub unsafe extern "ptx-kernel" fn $fill(p: MsdaParams) {
                sort::<element::$dtype, true>(&p);
            }
        )*
    };
}
crate::for_each_msda_sort_sm80!(sort_entries);

macro_rules! scan_entries {
    ($(($name:ident, $dtype:ident))*) => {
        $(
            /// The kernel between counting and filling.
            ///
            /// # Safety
            /// `p` is as [`MsdaParams`] says.
            #[unsafe(no_mangle)]
            pub unsafe extern "ptx-kernel" fn $name(p: MsdaParams) {
                scan(&p);
            }
        )*
    };
}
crate::for_each_msda_scan_sm80!(scan_entries);
