//! One key tile and one value tile, used in turns: while one is used, the other is on its way.
//!
//! ```text
//! step n:   wait for k n | barrier | request v n     | use k n
//!           wait for v n | barrier | request k n + 1 | use v n
//! ```
//!
//! Half the shared memory of [`super::key_value_ring`], twice its barriers: for wide f32 tiles.

use super::key_values::{KeyStep, KeyValues};
use crate::arch::async_copy;
use crate::tile::element::Element;
use crate::tile::global_rows::GlobalRows;
use crate::tile::shared_tile::SharedTile;

/// A key tile and a value tile of `KEYS` rows, in `2 * KEYS * ROW_BYTES` bytes of shared memory.
pub struct KeyValueTurns<const KEYS: u32, const ROW_BYTES: u32, const THREADS: u32, const VECTOR: bool> {
    key: SharedTile<KEYS, ROW_BYTES>,
    value: SharedTile<KEYS, ROW_BYTES>,
    thread: u32,
    k: GlobalRows,
    v: GlobalRows,
}

impl<const KEYS: u32, const ROW_BYTES: u32, const THREADS: u32, const VECTOR: bool>
    KeyValueTurns<KEYS, ROW_BYTES, THREADS, VECTOR>
{
    /// The two tiles at shared address `address`, over all keys `k` and values `v` of the head.
    #[inline(always)]
    pub fn new(address: u32, thread: u32, k: GlobalRows, v: GlobalRows) -> Self {
        let value = SharedTile::at(address + KEYS * ROW_BYTES);
        KeyValueTurns { key: SharedTile::at(address), value, thread, k, v }
    }

    /// Requests key tile `tile`, together with what was requested since the last request.
    ///
    /// # Safety
    /// All threads of the block call it, after a barrier that follows the use of the key tile before.
    #[inline(always)]
    unsafe fn request_key<E: Element>(&self, tile: i32) {
        self.key.load::<E, THREADS, VECTOR>(self.thread, &self.k.skip(tile * KEYS as i32));
        async_copy::commit();
    }

    /// Requests value tile `tile`.
    ///
    /// # Safety
    /// All threads of the block call it, after a barrier that follows the use of the value tile before.
    #[inline(always)]
    unsafe fn request_value<E: Element>(&self, tile: i32) {
        self.value.load::<E, THREADS, VECTOR>(self.thread, &self.v.skip(tile * KEYS as i32));
        async_copy::commit();
    }
}

impl<const KEYS: u32, const ROW_BYTES: u32, const THREADS: u32, const VECTOR: bool>
    KeyValues<KEYS, ROW_BYTES> for KeyValueTurns<KEYS, ROW_BYTES, THREADS, VECTOR>
{
    #[inline(always)]
    unsafe fn request_first<E: Element>(&self, first: &KeyStep) {
        self.request_key::<E>(first.tile);
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
        self.request_value::<E>(at.tile);
        let p = if has_rows { Some(probabilities(rows, self.key)) } else { None };
        self.wait();
        let next = next(rows);
        if next.tile < end {
            self.request_key::<E>(next.tile);
        }
        if let Some(p) = p {
            output(rows, p, self.value);
        }
        next
    }
}
