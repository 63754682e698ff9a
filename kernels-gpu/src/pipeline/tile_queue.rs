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
    /// The next tile; without a counter, the number of the block's next turn.
    next: u32,
    /// Whether a tile is asked for no earlier than it is taken.
    in_order: bool,
}

impl TileQueue {
    /// The queue of this block, out of `tiles` tiles. `counter` is 0, or the address of two counters as
    /// [`crate::abi::ForwardHopperParams::counter`] says.
    #[inline(always)]
    pub fn new(counter: u64, tiles: u32) -> Self {
        let next = if counter != 0 { thread::block_idx_x() } else { 0 };
        TileQueue { counter, tiles, next, in_order: false }
    }

    /// As [`TileQueue::new`], where a tile waits for those before it: what has been taken from the counter
    /// is being worked on, and who is free first gets what is waited for first.
    #[inline(always)]
    pub fn in_order(counter: u64, tiles: u32) -> Self {
        TileQueue { counter, tiles, next: 0, in_order: true }
    }

    /// The next tile, if there is one left. The one after it is asked for at once, unless in order.
    ///
    /// # Safety
    /// One thread of the block calls it.
    #[inline(always)]
    pub unsafe fn take(&mut self) -> Option<u32> {
        let (block, blocks) = (thread::block_idx_x(), thread::grid_dim_x());
        let tile = if self.counter == 0 {
            dealt(self.next, block, blocks)
        } else if self.in_order {
            global::fetch_add_u32(self.counter, 1)
        } else {
            self.next
        };
        if tile >= self.tiles {
            return None;
        }
        if self.counter == 0 {
            self.next += 1;
        } else if !self.in_order {
            self.next = blocks + global::fetch_add_u32(self.counter, 1);
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
