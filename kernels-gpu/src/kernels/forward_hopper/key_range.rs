//! The range of key tiles (FlashAttention's `n_block_min`, `n_block_max`) of a consumer warpgroup.
//!
//! A query tile visits all key tiles that any of its rows sees. A warpgroup whose rows see only some of
//! them skips the others ([`super::tile::KeyTiles`]): the *leading* ones, which come before its first one
//! (the last of the sequence: tiles are visited last to first), and the *trailing* ones behind its last
//! one.
//!
//! Each warp keeps its range in shared memory: registers are for the mainloop. It stands at an address that
//! the assembler knows to be uniform, which makes uniform what is read there.

use crate::abi::layout::KEY_RANGE_BYTES;
use crate::arch::{shared, thread, warp};
use crate::attention::work_tile::WorkTileSlot;
use crate::geometry::visible::TileRange;

/// Where a warp keeps the range of the work tile that it is at, and how many key tiles are trailing.
#[derive(Clone, Copy)]
pub struct KeyRange {
    address: u32,
}

/// Where the number of trailing key tiles stands, behind the range.
const TRAILING: u32 = 16;
/// Where the warp keeps what scores are in units of, at the end.
const UNIT: u32 = 28;
const _: () = assert!(UNIT + 4 <= KEY_RANGE_BYTES);

impl KeyRange {
    /// That of this consumer warp, among those at shared address `first`.
    ///
    /// # Safety
    /// All 32 lanes call it together.
    #[inline(always)]
    pub unsafe fn of_this_warp(first: u32) -> Self {
        let warp = warp::uniform(thread::thread_idx_x() / 32 - 4);
        KeyRange { address: first + warp * KEY_RANGE_BYTES }
    }

    /// Keeps the range of a work tile, [`WorkTileSlot::tiles_of_rows`].
    ///
    /// # Safety
    /// All 32 lanes call it together, behind their last use of the range before.
    #[inline(always)]
    pub unsafe fn keep(self, range: TileRange, lane: u32) {
        if lane == 0 {
            shared::store_u32x4(self.address, range.words());
        }
        warp::warp_sync();
    }

    /// The shared address of what the warp keeps beside: what scores of the work tile are in units of.
    /// Where key tiles are skipped, too: what stands there then ends before it.
    #[inline(always)]
    pub fn unit(self) -> u32 {
        self.address + UNIT
    }

    /// The range.
    ///
    /// # Safety
    /// Behind [`KeyRange::keep`].
    #[inline(always)]
    pub unsafe fn load(self) -> TileRange {
        TileRange::from_words(shared::load_u32x4(self.address))
    }

    /// How many key tiles are leading.
    ///
    /// # Safety
    /// As [`KeyRange::load`]; all 32 lanes call it together, and the work tile can still be read.
    #[inline(always)]
    pub unsafe fn leading(self, work_tile: WorkTileSlot) -> u32 {
        warp::uniform((work_tile.tiles().end - self.load().end) as u32)
    }

    /// Keeps how many key tiles are trailing behind `last`, this warpgroup's last one: the work tile is
    /// discarded before they have all been skipped.
    ///
    /// # Safety
    /// As [`KeyRange::leading`]; the lanes meet before [`KeyRange::trailing`].
    #[inline(always)]
    pub unsafe fn keep_trailing(self, work_tile: WorkTileSlot, last: i32, lane: u32) {
        // All have read what was kept of the work tile before.
        warp::warp_sync();
        if lane == 0 {
            shared::store_u32(self.address + TRAILING, (last - work_tile.tiles().begin) as u32);
        }
    }

    /// How many are trailing.
    ///
    /// # Safety
    /// Behind [`KeyRange::keep_trailing`]; all 32 lanes call it together.
    #[inline(always)]
    pub unsafe fn trailing(self) -> u32 {
        warp::uniform(shared::load_u32(self.address + TRAILING))
    }
}
