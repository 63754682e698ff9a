//! Two warps of a block that hand a register tile from one to the other through shared memory.
//!
//! ```text
//! giver:  write the tile | meet
//! taker:                 | meet | read the tile
//! ```
//!
//! The shared memory belongs to the taker from [`WarpPair::receive`] until the next barrier of the whole
//! block.

use crate::arch::{barrier, shared};

/// A pair of warps, with a named barrier and a piece of shared memory of their own.
#[derive(Clone, Copy)]
pub struct WarpPair {
    index: u32,
    address: u32,
    lane: u32,
}

impl WarpPair {
    /// Pair `index` (0..4), of lane `lane`, exchanging at shared address `address`.
    #[inline(always)]
    pub fn new(index: u32, address: u32, lane: u32) -> Self {
        WarpPair { index, address, lane }
    }

    /// Gives `N` (a multiple of 4) registers per lane.
    ///
    /// # Safety
    /// The giving warp calls it, once between two barriers of the block.
    #[inline(always)]
    pub unsafe fn give<const M: usize, const N: usize>(&self, values: &[[u32; N]; M]) {
        let mut m = 0;
        while m < M {
            let mut i = 0;
            while i < N / 4 {
                let four =
                    [values[m][4 * i], values[m][4 * i + 1], values[m][4 * i + 2], values[m][4 * i + 3]];
                shared::store_u32x4(self.place(m * (N / 4) + i), four);
                i += 1;
            }
            m += 1;
        }
        self.meet();
    }

    /// Waits for the giver.
    ///
    /// # Safety
    /// The taking warp calls it, once between two barriers of the block.
    #[inline(always)]
    pub unsafe fn receive(&self) {
        self.meet();
    }

    /// Barrier 0 is the whole block's.
    #[inline(always)]
    unsafe fn meet(&self) {
        match self.index {
            0 => barrier::sync_constant::<1, 64>(),
            1 => barrier::sync_constant::<2, 64>(),
            2 => barrier::sync_constant::<3, 64>(),
            _ => barrier::sync_constant::<4, 64>(),
        }
    }

    /// Registers `4 index..4 index + 4` of what was given.
    ///
    /// # Safety
    /// Between [`WarpPair::receive`] and the taker's first write to the memory.
    #[inline(always)]
    pub unsafe fn read(&self, index: usize) -> [u32; 4] {
        shared::load_u32x4(self.place(index))
    }

    #[inline(always)]
    fn place(&self, index: usize) -> u32 {
        self.address + (index as u32 * 32 + self.lane) * 16
    }
}
