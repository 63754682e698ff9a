//! Key and value tiles on their way to shared memory, as the loop over them
//! ([`crate::attention::query_rows`]) takes them: two of each ([`super::key_value_ring`]), or one of each in
//! turns ([`super::key_value_turns`]).

use crate::arch::{async_copy, barrier};
use crate::tile::element::Element;
use crate::tile::shared_tile::SharedTile;

/// A step of the loop over key tiles.
#[derive(Clone, Copy)]
pub struct KeyStep {
    /// The key tile.
    pub tile: i32,
    /// Which step it is: one more than that of the step before.
    pub number: i32,
    /// Whether the boolean mask, if there is one, hides nothing of it.
    pub shows_all: bool,
}

/// Tiles of `KEYS` keys and values, which the threads of a block copy.
pub trait KeyValues<const KEYS: u32, const ROW_BYTES: u32> {
    /// Requests what the first step begins with, together with what was requested before.
    ///
    /// # Safety
    /// All threads of the block call it.
    unsafe fn request_first<E: Element>(&self, first: &KeyStep);

    /// Waits for everything requested, from all threads.
    ///
    /// # Safety
    /// All threads of the block call it.
    #[inline(always)]
    unsafe fn wait(&self) {
        async_copy::wait::<0>();
        barrier::block_sync();
    }

    /// Takes step `at`: where the warp has `rows` (told beside them), `probabilities` gets the key tile,
    /// and then `output` what that gave, and the value tile. Gives the step that follows, as `next` finds
    /// it; its tile is requested, so that it arrives meanwhile, unless it is past `end`.
    ///
    /// # Safety
    /// All threads of the block call it alike, after the step before, or [`KeyValues::request_first`].
    unsafe fn step<E: Element, R, P>(
        &self,
        at: &KeyStep,
        end: i32,
        rows: (&mut R, bool),
        next: impl FnOnce(&R) -> KeyStep,
        probabilities: impl FnOnce(&mut R, SharedTile<KEYS, ROW_BYTES>) -> P,
        output: impl FnOnce(&mut R, P, SharedTile<KEYS, ROW_BYTES>),
    ) -> KeyStep;
}
