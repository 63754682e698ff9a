//! Which query block a number stands for, among those that packed sequences really have.
//!
//! Blocks are numbered sequence by sequence, in each the last rows of all heads first. The lengths are in
//! device memory alone, so a warp adds them up, 32 sequences at a time:
//!
//! ```text
//! lane          0     1     2   ...        blocks of sequence first + lane, and of all before its end
//! end          12    20    44   ...        number 17: lane 1, block 17 - 12 of its sequence
//! ```

use crate::abi::ForwardParams;
use crate::arch::{global, math, thread, warp};
use crate::geometry::schedule::{Work, within_sequence};

/// A warp's place in the numbering. Numbers are asked for in ascending order.
pub struct PackedWork {
    /// Sequence of lane 0.
    first: u32,
    /// Blocks of this lane's sequence.
    blocks: u32,
    /// Blocks up to the end of this lane's sequence.
    end: u32,
}

impl PackedWork {
    /// The first 32 sequences, in blocks of `rows` query rows.
    ///
    /// # Safety
    /// All 32 lanes call it together; `p` is as [`ForwardParams`] says, with packed sequences.
    #[inline(always)]
    pub unsafe fn new(p: &ForwardParams, rows: u32) -> Self {
        let mut work = PackedWork { first: 0, blocks: 0, end: 0 };
        work.count(p, rows, 0);
        work
    }

    /// Counts the blocks of 32 sequences, after `before` blocks of those before them.
    #[inline(always)]
    unsafe fn count(&mut self, p: &ForwardParams, rows: u32, before: u32) {
        // Worked out anew: registers are scarce where this is used.
        let lane = thread::thread_idx_x_here() % 32;
        let sequence = self.first + lane;
        self.blocks = 0;
        if sequence < p.batches {
            let offsets = p.cu_seqlens_q.wrapping_add(4 * sequence as u64);
            let length = global::load_u32(offsets.wrapping_add(4)) - global::load_u32(offsets);
            self.blocks = length.div_ceil(rows) * p.query_heads;
        }
        let mut sum = self.blocks;
        let mut distance = 1;
        while distance < 32 {
            let other = warp::shuffle_up(sum, distance);
            sum += if lane >= distance { other } else { 0 };
            distance *= 2;
        }
        self.end = before + sum;
    }

    /// The work with this number; none after the last.
    ///
    /// # Safety
    /// All 32 lanes call it together, with the same number, not below the one before.
    #[inline(always)]
    pub unsafe fn find(&mut self, p: &ForwardParams, rows: u32, number: u32) -> Option<Work> {
        loop {
            let holders = warp::ballot(number < self.end);
            if holders != 0 {
                let lane = holders.trailing_zeros();
                let (blocks, end) =
                    (warp::broadcast(self.blocks, lane), warp::broadcast(self.end, lane));
                let number = number - (end - blocks);
                let tiles = math::divide(blocks, p.query_heads);
                let (tile, head) = within_sequence(number, tiles, p.query_heads, math::divide);
                return Some(Work { tile, head, batch: self.first + lane });
            }
            self.first += 32;
            if self.first >= p.batches {
                return None;
            }
            let before = warp::broadcast(self.end, 31);
            self.count(p, rows, before);
        }
    }
}
