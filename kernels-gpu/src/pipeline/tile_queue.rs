//! Which tiles a block of threads works on, one after another.
//!
//! With a counter in global memory blocks take the next tile when they are free, so that long and short
//! tiles even out. Without one, tiles are dealt out in a fixed order ([`crate::geometry::schedule::dealt`]).

use crate::arch::{global, thread};
use crate::geometry::schedule::dealt;

/// The next tile is not known yet.
const UNASKED: u32 = u32::MAX;
/// There are not as many tiles.
const NO_SUCH: u32 = i32::MAX as u32;

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

    /// As [`TileQueue::new`], where somebody else knows how many tiles there are; without a counter, a tile
    /// for each block. `in_order`, with a counter, where a tile waits for those before it: what has been
    /// taken from the counter is worked on as soon as the block's tile before is done, and who is free
    /// first gets what is waited for first.
    #[inline(always)]
    pub fn endless(counter: u64, in_order: bool) -> Self {
        TileQueue { counter, tiles: NO_SUCH, next: thread::block_idx_x(), in_order }
    }

    /// The next tile, if there is one left.
    ///
    /// # Safety
    /// One thread of the block calls it.
    #[inline(always)]
    pub unsafe fn take(&mut self) -> Option<u32> {
        let tile = if self.counter == 0 {
            self.next += 1;
            dealt(self.next - 1, thread::block_idx_x(), thread::grid_dim_x())
        } else {
            self.take_any()
        };
        (tile < self.tiles).then_some(tile)
    }

    /// The next tile of an [endless](TileQueue::endless) queue; whether there is such a tile is for the
    /// caller to say.
    ///
    /// # Safety
    /// As [`TileQueue::take`].
    #[inline(always)]
    pub unsafe fn take_any(&mut self) -> u32 {
        if self.in_order {
            return global::fetch_add_u32(self.counter, 1);
        }
        self.ask();
        core::mem::replace(&mut self.next, UNASKED)
    }

    /// Asks for the next tile, unless that was done, so that it is there when it is to be taken. The later,
    /// the better long and short tiles even out: asked for at the start of the one before, a long tile waits
    /// behind another one while other blocks have nothing left to do.
    ///
    /// # Safety
    /// As [`TileQueue::take`].
    #[inline(always)]
    pub unsafe fn ask(&mut self) {
        // It never is in order.
        if self.next == UNASKED {
            self.next = if self.counter == 0 {
                NO_SUCH
            } else {
                thread::grid_dim_x() + global::fetch_add_u32(self.counter, 1)
            };
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
