//! Which tiles a block of threads works on, one after another.
//!
//! With a counter in global memory blocks take the next tile when they are free, so that long and short
//! tiles even out. Without one, tiles are dealt out in a fixed order ([`crate::geometry::schedule::dealt`]).

use crate::arch::{global, thread};
use crate::geometry::schedule::dealt;

/// The tiles of one block.
pub struct TileQueue {
    counter: u64,
    tiles: u32,
    /// Tiles that are dealt out before those that the counter counts.
    dealt: u32,
    /// The next tile; without a counter, the number of the block's next turn.
    next: u32,
}

impl TileQueue {
    /// The queue of this block, out of `tiles` tiles. `counter` is 0, or the address of two counters as
    /// [`crate::abi::ForwardHopperParams::counter`] says.
    #[inline(always)]
    pub fn new(counter: u64, tiles: u32) -> Self {
        let next = if counter != 0 { thread::block_idx_x() } else { 0 };
        TileQueue { counter, tiles, dealt: thread::grid_dim_x(), next }
    }

    /// As [`TileQueue::new`], where a tile waits for those before it: also the first one is taken only once
    /// the block runs, so that whatever has been taken is being worked on.
    ///
    /// # Safety
    /// As [`TileQueue::take`].
    #[inline(always)]
    pub unsafe fn in_order(counter: u64, tiles: u32) -> Self {
        let next = if counter != 0 { global::fetch_add_u32(counter, 1) } else { 0 };
        TileQueue { counter, tiles, dealt: 0, next }
    }

    /// The next tile, if there is one left. The one after it is asked for at once.
    ///
    /// # Safety
    /// One thread of the block calls it.
    #[inline(always)]
    pub unsafe fn take(&mut self) -> Option<u32> {
        let blocks = thread::grid_dim_x();
        let tile =
            if self.counter != 0 { self.next } else { dealt(self.next, thread::block_idx_x(), blocks) };
        if tile >= self.tiles {
            return None;
        }
        if self.counter != 0 {
            self.next = self.dealt + global::fetch_add_u32(self.counter, 1);
        } else {
            self.next += 1;
        }
        Some(tile)
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
