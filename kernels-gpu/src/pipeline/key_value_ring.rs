//! Key and value tiles, two of each: one pair is used while the next is on its way.
//!
//! ```text
//! step n:   wait for pair n | barrier | request pair n + 1 into the other stage | use pair n
//! ```
//!
//! One barrier per step does both: it makes pair n, copied by all threads, visible to all, and it says
//! that all threads are done with pair n - 1, whose stage pair n + 1 overwrites.

use super::key_values::{KeyStep, KeyValues};
use crate::arch::async_copy;
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
    fn key(&self, step: i32) -> SharedTile<KEYS, ROW_BYTES> {
        SharedTile::at(self.address + (step as u32 & 1) * Self::PAIR_BYTES)
    }

    /// The value tile of step `step`.
    #[inline(always)]
    fn value(&self, step: i32) -> SharedTile<KEYS, ROW_BYTES> {
        SharedTile::at(self.key(step).address + KEYS * ROW_BYTES)
    }

    /// Requests the key and the value tile of step `at`, together with what was requested since the last
    /// call.
    ///
    /// # Safety
    /// All threads of the block call it, after a barrier that follows the step two before.
    #[inline(always)]
    unsafe fn request<E: Element>(&self, at: &KeyStep) {
        let (first, step) = (at.tile * KEYS as i32, at.number);
        self.key(step).load::<E, THREADS, VECTOR>(self.thread, &self.k.skip(first));
        self.value(step).load::<E, THREADS, VECTOR>(self.thread, &self.v.skip(first));
        async_copy::commit();
    }
}

impl<const KEYS: u32, const ROW_BYTES: u32, const THREADS: u32, const VECTOR: bool>
    KeyValues<KEYS, ROW_BYTES> for KeyValueRing<KEYS, ROW_BYTES, THREADS, VECTOR>
{
    #[inline(always)]
    unsafe fn request_first<E: Element>(&self, first: &KeyStep) {
        self.request::<E>(first);
    }

    #[inline(always)]
    unsafe fn step<E: Element, R, P>(
        &self,
        at: &KeyStep,
        end: i32,
        (rows, has_rows): (&mut R, bool),
        next: impl FnOnce(&R) -> KeyStep,
        probabilities: impl FnOnce(&mut R, SharedTile<KEYS, ROW_BYTES>) -> P,
        output: impl FnOnce(&mut R, P, SharedTile<KEYS, ROW_BYTES>),
    ) -> KeyStep {
        self.wait();
        let next = next(rows);
        if next.tile < end {
            self.request::<E>(&next);
        }
        if has_rows {
            let p = probabilities(rows, self.key(at.number));
            output(rows, p, self.value(at.number));
        }
        next
    }
}
