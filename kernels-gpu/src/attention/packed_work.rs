//! Which query block a number stands for, among those that packed sequences really have.
//!
//! Blocks are numbered sequence by sequence, in each the last rows of all heads first; where keys are split,
//! all that have the last range of keys first. The lengths are in device memory alone, so a warp adds them
//! up, 32 sequences at a time, those with most keys first: long blocks started last would leave the machine
//! idle.
//!
//! ```text
//! lane          0     1     2   ...
//! sequence      7     0     3   ...        by their keys
//! end          12    20    24   ...        blocks of these sequences, and of all before their end
//!                                          number 17: lane 1, block 17 - 12 of sequence 0
//! ```

use super::query_block::{QueryTiles, is_split};
use super::sequence::{length, ranges};
use crate::abi::ForwardParams;
use crate::arch::{math, thread, warp};
use crate::geometry::schedule::{Work, sort_descending, within_sequence};

/// A warp's place in the numbering. Numbers are asked for in ascending order.
pub struct PackedWork {
    /// This lane's sequence.
    sequence: u32,
    /// Blocks of this lane's sequence.
    blocks: u32,
    /// Blocks up to the end of this lane's sequence.
    end: u32,
}

impl PackedWork {
    /// The first 32 sequences, in query tiles.
    ///
    /// # Safety
    /// All 32 lanes call it together; `p` is as [`ForwardParams`] says, with packed sequences.
    #[inline(always)]
    pub unsafe fn new(p: &ForwardParams, tiles: QueryTiles) -> Self {
        let mut work = PackedWork { sequence: 0, blocks: 0, end: 0 };
        work.count(p, tiles, 0, 0);
        work
    }

    /// Counts the blocks of 32 sequences from `first` on, after `before` blocks of those before them.
    #[inline(always)]
    unsafe fn count(&mut self, p: &ForwardParams, tiles: QueryTiles, first: u32, before: u32) {
        // Worked out anew: registers are scarce where this is used.
        let lane = thread::thread_idx_x_here() % 32;
        let own = |offsets| if first + lane < p.batches { length(offsets, first + lane) } else { 0 };
        let (queries, keys) = (own(p.cu_seqlens_q), own(p.cu_seqlens_k));
        let mut blocks = tiles.count(p, queries) * p.query_heads;
        if is_split(p, tiles.rows) {
            blocks *= ranges(keys, p.split_keys);
        }
        let place = by_length(lane, keys);
        self.sequence = first + place;
        self.blocks = warp::broadcast(blocks, place);
        let mut sum = self.blocks;
        let mut distance = 1;
        while distance < 32 {
            let other = warp::shuffle_up(sum, distance);
            sum += if lane >= distance { other } else { 0 };
            distance *= 2;
        }
        self.end = before + sum;
    }

    /// The work with this number; none after the last. Where keys are split, its batch counts the ranges of
    /// all sequences, `p.splits` for each.
    ///
    /// # Safety
    /// All 32 lanes call it together, with the same number, not below the one before.
    #[inline(always)]
    pub unsafe fn find(&mut self, p: &ForwardParams, tiles: QueryTiles, number: u32) -> Option<Work> {
        loop {
            let holders = warp::ballot(number < self.end);
            if holders != 0 {
                let lane = holders.trailing_zeros();
                let (blocks, end) =
                    (warp::broadcast(self.blocks, lane), warp::broadcast(self.end, lane));
                let number = number - (end - blocks);
                let count = math::divide(blocks, p.query_heads);
                let (mut tile, head) = within_sequence(number, count, p.query_heads, math::divide);
                let mut batch = warp::broadcast(self.sequence, lane);
                if is_split(p, tiles.rows) {
                    let keys = length(p.cu_seqlens_k, batch);
                    let tiles = math::divide(count, ranges(keys, p.split_keys));
                    let range = math::divide(tile, tiles);
                    (tile, batch) = (tile - range * tiles, batch * p.splits + range);
                }
                return Some(Work { tile, head, batch });
            }
            let next = (self.sequence | 31) + 1;
            if next >= p.batches {
                return None;
            }
            let before = warp::broadcast(self.end, 31);
            self.count(p, tiles, next, before);
        }
    }
}

/// Which lane's length stands in this lane's place when they are sorted, the longest first: the low bits of
/// the lengths give way to the number of the lane, such that those that are then equal stay in their order.
#[inline(always)]
unsafe fn by_length(lane: u32, length: u32) -> u32 {
    let number = (length & !31) | (31 - lane);
    31 - sort_descending(lane, number, |own, distance| warp::exchange(own, distance)) % 32
}
