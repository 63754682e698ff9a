//! Which key tile a number stands for, among those that there are: packed sequences differ in length.
//!
//! Tiles of packed sequences are numbered sequence by sequence. The lengths are in device memory alone, and
//! are added up on the way; numbers are asked for in ascending order.

use super::key_block::{KeyBlock, schedule};
use crate::abi::BackwardParams;
use crate::arch::{global, math};
use crate::geometry::schedule::{Schedule, Work};

/// A thread's place in the numbering.
pub struct KeySchedule {
    /// All tiles; of packed sequences those of one sequence, of all its heads.
    tiles: Schedule,
    /// The sequence, if they are packed.
    sequence: u32,
    /// Tiles of those before it.
    before: u32,
}

impl KeySchedule {
    /// The first tiles, of `keys` keys; `batches_are_neighbours` as in [`Schedule`].
    ///
    /// # Safety
    /// `p` is as [`BackwardParams`] says.
    #[inline(always)]
    pub unsafe fn new(p: &BackwardParams, keys: u32, batches_are_neighbours: bool) -> Self {
        let mut all = KeySchedule { tiles: schedule(p, batches_are_neighbours), sequence: 0, before: 0 };
        if p.cu_seqlens_k != 0 {
            all.tiles.batches = 1;
            all.count(p, keys);
        }
        all
    }

    /// Counts the tiles of a head of the sequence.
    #[inline(always)]
    unsafe fn count(&mut self, p: &BackwardParams, keys: u32) {
        let offsets = p.cu_seqlens_k.wrapping_add(4 * self.sequence as u64);
        let rows = global::load_u32(offsets.wrapping_add(4)) - global::load_u32(offsets);
        self.tiles.tiles = math::divide(rows + keys - 1, keys);
    }

    /// The tile with this number; none after the last. The first keys come first: with a causal mask their
    /// tiles are the longest. In `descending` order the last keys do.
    ///
    /// # Safety
    /// As [`KeySchedule::new`], with the same arguments; numbers ascend.
    #[inline(always)]
    pub unsafe fn block(
        &mut self,
        p: &BackwardParams,
        keys: u32,
        number: u32,
        descending: bool,
    ) -> Option<KeyBlock> {
        if p.cu_seqlens_k != 0 {
            while number - self.before >= self.tiles.count() {
                self.before += self.tiles.count();
                self.sequence += 1;
                if self.sequence == p.batches {
                    return None;
                }
                self.count(p, keys);
            }
        } else if number >= self.tiles.count() {
            return None;
        }
        let work = self.tiles.work(number - self.before, math::divide);
        let tile = if descending { work.tile } else { self.tiles.tiles - 1 - work.tile };
        Some(KeyBlock::of(p, Work { tile, batch: work.batch + self.sequence, ..work }))
    }
}
