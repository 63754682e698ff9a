//! Sums over the threads that work on a row together: a warp, or a block.

use crate::arch::{barrier, shared, thread, warp};

/// `LANES` threads; 32 are a warp, and others all of their block, whose shared memory begins with
/// [`layout::dynamic`](crate::abi::layout::dynamic).
pub struct Team<const LANES: u32> {
    /// Index of this thread.
    pub index: u32,
    base: u32,
    side: u32,
}

impl<const LANES: u32> Team<LANES> {
    const WARPS: u32 = LANES / 32;

    /// The team of this thread.
    #[inline(always)]
    pub fn new() -> Self {
        let base = if LANES == 32 { 0 } else { shared::dynamic_base() };
        Team { index: thread::thread_idx_x() % LANES, base, side: 0 }
    }

    /// The sum over all threads, the same for all.
    ///
    /// # Safety
    /// All threads of the team call it together.
    #[inline(always)]
    pub unsafe fn sum(&mut self, value: u32) -> u32 {
        let of_warp = warp::sum_u32(value);
        if LANES == 32 { of_warp } else { warp::sum_u32(self.of_warps(of_warp)) }
    }

    /// The sum over all threads before this one, and that over all.
    ///
    /// # Safety
    /// As [`Team::sum`].
    #[inline(always)]
    pub unsafe fn sum_before(&mut self, value: u32) -> (u32, u32) {
        let (lane, own_warp) = (self.index % 32, self.index / 32);
        let up_to = sum_up_to(value, lane);
        let of_warp = warp::broadcast(up_to, 31);
        if LANES == 32 {
            return (up_to - value, of_warp);
        }
        let of_warps = self.of_warps(of_warp);
        let up_to_warp = sum_up_to(of_warps, lane);
        let all = warp::broadcast(up_to_warp, 31);
        (warp::broadcast(up_to_warp, own_warp) - of_warp + up_to - value, all)
    }

    /// What each warp says, in the lane of its index; 0 in others.
    #[inline(always)]
    unsafe fn of_warps(&mut self, of_warp: u32) -> u32 {
        let (lane, own_warp) = (self.index % 32, self.index / 32);
        let words = self.base + self.side * 4 * Self::WARPS;
        self.side ^= 1;
        if lane == 0 {
            shared::store_u32(words + 4 * own_warp, of_warp);
        }
        barrier::block_sync();
        let mut of_lane = 0;
        if lane < Self::WARPS {
            of_lane = shared::load_u32(words + 4 * lane);
        }
        of_lane
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
