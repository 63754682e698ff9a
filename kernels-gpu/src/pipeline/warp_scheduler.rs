//! The warp-scheduler barrier (FlashAttention-3): two consumer warpgroups take turns at the tensor cores,
//! so that the products of one run beside the softmax of the other.
//!
//! ```text
//! warpgroup 0:  wait | start products | pass | softmax                    | wait | ...
//! warpgroup 1:  wait                         | start products | pass | softmax     ...
//! ```
//!
//! Three warpgroups fill the tensor cores without an order, and nobody ever waits.

use super::roles::WARPGROUP;
use crate::arch::barrier;
use crate::geometry::size::TileSize;
use core::marker::PhantomData;

/// A named barrier for each of two warpgroups: it waits at its own, and arrives at that of the other.
#[derive(Clone, Copy)]
pub struct WarpSchedulerBarrier<Q: TileSize> {
    warpgroup: u32,
    queries: PhantomData<Q>,
}

impl<Q: TileSize> WarpSchedulerBarrier<Q> {
    const FIRST_BARRIER: u32 = 8;
    /// Whether warpgroups of 64 rows of a query tile each are two.
    const IS_USED: bool = Q::ROWS == 128;

    /// That of consumer warpgroup `warpgroup`; number 0 begins.
    ///
    /// # Safety
    /// All threads of all consumer warpgroups call it, once.
    #[inline(always)]
    pub unsafe fn new(warpgroup: u32) -> Self {
        if Self::IS_USED && warpgroup == 1 {
            barrier::arrive(Self::FIRST_BARRIER, 2 * WARPGROUP);
        }
        WarpSchedulerBarrier { warpgroup, queries: PhantomData }
    }

    /// Waits for the turn.
    ///
    /// # Safety
    /// The warpgroup calls it, and then [`WarpSchedulerBarrier::pass`]; all warpgroups equally often.
    #[inline(always)]
    pub unsafe fn wait(self) {
        if Self::IS_USED {
            barrier::sync(Self::FIRST_BARRIER + self.warpgroup, 2 * WARPGROUP);
        }
    }

    /// Lets the other warpgroup have its turn.
    ///
    /// # Safety
    /// As [`WarpSchedulerBarrier::wait`].
    #[inline(always)]
    pub unsafe fn pass(self) {
        if Self::IS_USED {
            barrier::arrive(Self::FIRST_BARRIER + 1 - self.warpgroup, 2 * WARPGROUP);
        }
    }

    /// Lets `count` turns pass, those of key tiles that the warpgroup skips.
    ///
    /// # Safety
    /// As [`WarpSchedulerBarrier::wait`] and [`WarpSchedulerBarrier::pass`], so often.
    #[inline(always)]
    pub unsafe fn skip(self, count: u32) {
        let mut left = count;
        while Self::IS_USED && left > 0 {
            self.wait();
            self.pass();
            left -= 1;
        }
    }
}
