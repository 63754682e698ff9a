//! Key and value tiles, two of each: one pair is used while the next is on its way.
//!
//! ```text
//! step n:   wait for pair n | barrier | request pair n + 1 into the other stage | use pair n
//! ```
//!
//! One barrier per step does both: it makes pair n, copied by all threads, visible to all, and it says
//! that all threads are done with pair n - 1, whose stage pair n + 1 overwrites.

use crate::arch::{async_copy, barrier};
use crate::tile::element::Element;
use crate::tile::global_rows::GlobalRows;
use crate::tile::shared_tile::SharedTile;

/// Two stages of a key tile and a value tile of `KEYS` rows, in `4 * KEYS * ROW_BYTES` bytes of shared
/// memory.
pub struct KeyValueRing<const KEYS: u32, const ROW_BYTES: u32, const THREADS: u32, const VECTOR: bool> {
    address: u32,
    thread: u32,
    k: GlobalRows,
    v: GlobalRows,
}

impl<const KEYS: u32, const ROW_BYTES: u32, const THREADS: u32, const VECTOR: bool>
    KeyValueRing<KEYS, ROW_BYTES, THREADS, VECTOR>
{
    const PAIR_BYTES: u32 = 2 * KEYS * ROW_BYTES;

    /// A ring at shared address `address` over all keys `k` and values `v` of the head.
    #[inline(always)]
    pub fn new(address: u32, thread: u32, k: GlobalRows, v: GlobalRows) -> Self {
        KeyValueRing { address, thread, k, v }
    }

    /// The key tile of step `step`.
    #[inline(always)]
    pub fn key(&self, step: i32) -> SharedTile<KEYS, ROW_BYTES> {
        SharedTile::at(self.address + (step as u32 & 1) * Self::PAIR_BYTES)
    }

    /// The value tile of step `step`.
    #[inline(always)]
    pub fn value(&self, step: i32) -> SharedTile<KEYS, ROW_BYTES> {
        SharedTile::at(self.key(step).address + KEYS * ROW_BYTES)
    }

    /// Requests key and value tile `tile` for step `step`, together with what was requested since the last
    /// call.
    ///
    /// # Safety
    /// All threads of the block call it, after a barrier that follows step `step - 2`.
    #[inline(always)]
    pub unsafe fn request<E: Element>(&self, tile: i32, step: i32) {
        let first = tile * KEYS as i32;
        self.key(step).load::<E, THREADS, VECTOR>(self.thread, &self.k.skip(first));
        self.value(step).load::<E, THREADS, VECTOR>(self.thread, &self.v.skip(first));
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
