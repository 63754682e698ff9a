//! Query and output-gradient tiles with their row statistics: the backward's [`super::key_value_ring`].
//!
//! With two stages, one is used while the other is filled. With one stage, the next tiles may be
//! requested after a barrier that follows the last use of these.

use crate::arch::{async_copy, barrier};
use crate::tile::element::Element;
use crate::tile::global_rows::GlobalRows;
use crate::tile::shared_tile::SharedTile;

/// Where a stage's data come from.
#[derive(Clone, Copy)]
pub struct QuerySource {
    /// q from the tile's first row on.
    pub q: GlobalRows,
    /// dO from the tile's first row on.
    pub d_o: GlobalRows,
    /// Device address of lse of the tile's first row; padded to whole tiles.
    pub lse: u64,
    /// Device address of delta of the tile's first row; padded to whole tiles.
    pub delta: u64,
    /// Device address of the norm of dO of the tile's first row, or 0; padded to whole tiles.
    pub norm: u64,
}

/// `STAGES` (1 or 2) stages of a q tile, a dO tile and three rows of statistics, in [`QueryRing::BYTES`]
/// bytes of shared memory.
pub struct QueryRing<
    const STAGES: u32,
    const ROWS: u32,
    const ROW_BYTES: u32,
    const THREADS: u32,
    const VECTOR: bool,
> {
    address: u32,
    thread: u32,
}

impl<const STAGES: u32, const ROWS: u32, const ROW_BYTES: u32, const THREADS: u32, const VECTOR: bool>
    QueryRing<STAGES, ROWS, ROW_BYTES, THREADS, VECTOR>
{
    const TILE_BYTES: u32 = ROWS * ROW_BYTES;
    /// Shared memory of the ring.
    pub const BYTES: u32 = STAGES * (2 * Self::TILE_BYTES + 3 * 4 * ROWS);

    /// A ring at shared address `address`.
    #[inline(always)]
    pub fn new(address: u32, thread: u32) -> Self {
        QueryRing { address, thread }
    }

    /// The q tile of step `step`.
    #[inline(always)]
    pub fn q(&self, step: u32) -> SharedTile<ROWS, ROW_BYTES> {
        SharedTile::at(self.address + step % STAGES * 2 * Self::TILE_BYTES)
    }

    /// The dO tile of step `step`.
    #[inline(always)]
    pub fn d_o(&self, step: u32) -> SharedTile<ROWS, ROW_BYTES> {
        SharedTile::at(self.q(step).address + Self::TILE_BYTES)
    }

    /// Shared address of lse of step `step`.
    #[inline(always)]
    pub fn lse(&self, step: u32) -> u32 {
        self.address + STAGES * 2 * Self::TILE_BYTES + step % STAGES * 3 * 4 * ROWS
    }

    /// Shared address of delta of step `step`.
    #[inline(always)]
    pub fn delta(&self, step: u32) -> u32 {
        self.lse(step) + 4 * ROWS
    }

    /// Shared address of the norms of dO of step `step`, if the source has them.
    #[inline(always)]
    pub fn norm(&self, step: u32) -> u32 {
        self.delta(step) + 4 * ROWS
    }

    /// Requests what step `step` needs, together with what was requested since the last call.
    ///
    /// # Safety
    /// All threads of the block call it, after a barrier that follows the use of step `step - STAGES`.
    #[inline(always)]
    pub unsafe fn request<E: Element>(&self, step: u32, source: &QuerySource) {
        self.q(step).load::<E, THREADS, VECTOR>(self.thread, &source.q);
        self.d_o(step).load::<E, THREADS, VECTOR>(self.thread, &source.d_o);
        // 4 rows per thread: the first ROWS / 4 threads bring lse, the next delta, the next norms.
        let chunk = self.thread % (ROWS / 4);
        if self.thread < ROWS / 4 {
            async_copy::copy16(self.lse(step) + 16 * chunk, source.lse.wrapping_add(16 * chunk as u64));
        } else if self.thread < ROWS / 2 {
            async_copy::copy16(
                self.delta(step) + 16 * chunk,
                source.delta.wrapping_add(16 * chunk as u64),
            );
        } else if source.norm != 0 && self.thread < 3 * ROWS / 4 {
            async_copy::copy16(
                self.norm(step) + 16 * chunk,
                source.norm.wrapping_add(16 * chunk as u64),
            );
        }
        async_copy::commit();
    }

    /// Waits for everything requested, from all threads.
    ///
    /// # Safety
    /// All threads of the block call it.
    #[inline(always)]
    pub unsafe fn wait(&self) {
        async_copy::wait::<0>();
        barrier::block_sync();
    }
}
