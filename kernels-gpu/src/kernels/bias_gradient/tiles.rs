//! The tiles in shared memory of a step of the gradient of the bias.

use super::steps::Step;
use crate::abi::{BackwardParams, TensorView};
use crate::arch::{async_copy, barrier, thread};
use crate::attention::score::ScorePlace;
use crate::tile::element::Element;
use crate::tile::shared_tile::SharedTile;

/// The tiles of a step: q and dO of `ROWS` rows, k and v in tiles of `KEYS` rows, one after the other.
pub(super) struct Tiles<const ROWS: u32, const KEYS: u32, const ROW_BYTES: u32> {
    pub(super) q: SharedTile<ROWS, ROW_BYTES>,
    pub(super) d_o: SharedTile<ROWS, ROW_BYTES>,
    /// Addresses of the first ones.
    pub(super) k: u32,
    pub(super) v: u32,
}

impl<const ROWS: u32, const KEYS: u32, const ROW_BYTES: u32> Tiles<ROWS, KEYS, ROW_BYTES> {
    #[inline(always)]
    pub(super) fn at(address: u32) -> Self {
        let place = |index: u32| address + index * ROWS * ROW_BYTES;
        Tiles { q: SharedTile::at(place(0)), k: place(1), d_o: SharedTile::at(place(2)), v: place(3) }
    }

    /// Starts to fetch q and k; from then on they are not to be read until they have been waited for.
    #[inline(always)]
    pub(super) unsafe fn load_q_and_k<E: Element, const VECTOR: bool, const THREADS: u32>(
        &self,
        p: &BackwardParams,
        step: &Step,
    ) {
        self.load::<E, VECTOR, THREADS>(p, step, [&p.q, &p.k], p.head_dim, self.q, self.k);
    }

    /// The same of dO and v.
    #[inline(always)]
    pub(super) unsafe fn load_d_o_and_v<E: Element, const VECTOR: bool, const THREADS: u32>(
        &self,
        p: &BackwardParams,
        step: &Step,
    ) {
        self.load::<E, VECTOR, THREADS>(p, step, [&p.d_o, &p.v], p.value_dim, self.d_o, self.v);
    }

    #[inline(always)]
    unsafe fn load<E: Element, const VECTOR: bool, const THREADS: u32>(
        &self,
        p: &BackwardParams,
        step: &Step,
        [of_queries, of_keys]: [&TensorView; 2],
        columns: u32,
        queries: SharedTile<ROWS, ROW_BYTES>,
        keys: u32,
    ) {
        let thread = thread::thread_idx_x();
        let (sequence, ScorePlace { head, key_head, .. }) = (step.sequence(p), step.place(p));
        let (first_query, first_key) = ((step.query_tile * ROWS) as i32, step.key_tile * ROWS);
        let rows = if E::BYTES == 2 {
            sequence.query_rows::<2>(of_queries, head, first_query, columns)
        } else {
            sequence.query_rows::<4>(of_queries, head, first_query, columns)
        };
        queries.load::<E, THREADS, VECTOR>(thread, &rows);
        let mut first = 0;
        while first < ROWS {
            let key = (first_key + first) as i32;
            let rows = if E::BYTES == 2 {
                sequence.key_rows::<2>(of_keys, key_head, key, columns)
            } else {
                sequence.key_rows::<4>(of_keys, key_head, key, columns)
            };
            let tile = SharedTile::<KEYS, ROW_BYTES>::at(keys + first * ROW_BYTES);
            tile.load::<E, THREADS, VECTOR>(thread, &rows);
            first += KEYS;
        }
        commit::<VECTOR>();
    }
}

/// Ends a group of copies, also one of none.
#[inline(always)]
pub(super) unsafe fn commit<const VECTOR: bool>() {
    if VECTOR {
        async_copy::commit();
    }
}

/// Waits for all groups of copies of all threads but the last.
#[inline(always)]
pub(super) unsafe fn wait_for_all_but_the_last<const VECTOR: bool>() {
    if VECTOR {
        async_copy::wait::<1>();
    }
    barrier::block_sync();
}
