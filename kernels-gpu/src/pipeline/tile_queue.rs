//! Which tiles a block of threads works on, one after another.
//!
//! With a counter in global memory blocks take the next tile when they are free, so that long and short
//! tiles even out. Without one, tiles are dealt out in a fixed order ([`crate::geometry::schedule::dealt`]).

use crate::arch::{global, thread};
use crate::geometry::schedule::dealt;

/// No tile.
const UNASKED: u32 = u32::MAX;

/// The tiles of one block.
pub struct TileQueue {
    counter: u64,
    tiles: u32,
    /// The next tile, or [`UNASKED`]; without a counter, the number of the block's next turn.
    next: u32,
    /// Whether a tile is asked for no earlier than it is taken.
    in_order: bool,
}

impl TileQueue {
    /// The queue of this block, out of `tiles` tiles. `counter` is 0, or the address of a counter; for
    /// [`TileQueue::finish`] of two, as [`crate::abi::ForwardHopperParams::counter`] says.
    #[inline(always)]
    pub fn new(counter: u64, tiles: u32) -> Self {
        let next = if counter != 0 { thread::block_idx_x() } else { 0 };
        TileQueue { counter, tiles, next, in_order: false }
    }

    /// As [`TileQueue::new`], where a tile waits for those before it: what has been taken from the counter is
    /// worked on as soon as the block's tile before is done, and who is free first gets what is waited for
    /// first.
    #[inline(always)]
    pub fn in_order(counter: u64, tiles: u32) -> Self {
        TileQueue { counter, tiles, next: 0, in_order: true }
    }

    /// The next tile, if there is one left.
    ///
    /// # Safety
    /// One thread of the block calls it.
    #[inline(always)]
    pub unsafe fn take(&mut self) -> Option<u32> {
        let (block, blocks) = (thread::block_idx_x(), thread::grid_dim_x());
        let tile = if self.counter == 0 {
            self.next += 1;
            dealt(self.next - 1, block, blocks)
        } else if self.in_order {
            global::fetch_add_u32(self.counter, 1)
        } else {
            self.ask();
            core::mem::replace(&mut self.next, UNASKED)
        };
        (tile < self.tiles).then_some(tile)
    }

    /// Asks for the next tile, unless that was done, so that it is there when it is to be taken. The later,
    /// the better long and short tiles even out: asked for at the start of the one before, a long tile waits
    /// behind another one while other blocks have nothing left to do.
    ///
    /// # Safety
    /// As [`TileQueue::take`].
    #[inline(always)]
    pub unsafe fn ask(&mut self) {
        // It never is without a counter, nor in order.
        if self.next == UNASKED {
            self.next = thread::grid_dim_x() + global::fetch_add_u32(self.counter, 1);
        }
    }

    /// After the last tile: the last block of all sets the counters to 0 again.
    ///
    /// # Safety
    /// As [`TileQueue::take`], once.
    #[inline(always)]
    pub unsafe fn finish(&self) {
        if self.counter == 0 {
            return;
        }
        let done = self.counter.wrapping_add(4);
        global::fence();
        if global::fetch_add_u32(done, 1) == thread::grid_dim_x() - 1 {
            global::fence();
            global::store_u32(self.counter, 0);
            global::store_u32(done, 0);
        }
    }
}
