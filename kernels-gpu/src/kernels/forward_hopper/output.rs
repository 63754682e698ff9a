//! How the output of a query tile leaves.
//!
//! In 16 bits it leaves through shared memory, if the kernel has room for that ([`Room::STAGES_OUTPUT`]).
//! Where it fills whole boxes ([`Room::sends_output`]) the tensor memory accelerator sends each warp's 16
//! rows from there while the warp goes on. The end of a sequence, rows of several heads, and tensors that no
//! tensor map describes, are left to threads, 16 bytes at a time.

use super::room::Room;
use crate::abi::{ForwardParams, OUTPUT_BOX_ROWS};
use crate::arch::{bulk_copy, warp};
use crate::attention::query_block::QueryBlock;
use crate::pipeline::stages::Cursor;
use crate::tile::bulk::Place;
use crate::tile::element::TensorCoreElement;
use crate::tile::global_rows::{HeadRows, Rows};
use crate::tile::shared_tile::SharedTile;
use crate::tile::store;
use crate::tile::warpgroup::{Queries, store_rows};

impl<
    const QUERIES: u32,
    const KEYS: u32,
    const ROW_BYTES: u32,
    const WARPGROUPS: u32,
    const QUERY_STAGES: u32,
    const KEY_STAGES: u32,
    const VALUE_STAGES: u32,
    const GATHERS_HEADS: bool,
> Room<QUERIES, KEYS, ROW_BYTES, WARPGROUPS, QUERY_STAGES, KEY_STAGES, VALUE_STAGES, GATHERS_HEADS>
{
    /// Whether an output of `registers` per thread leaves by the tensor memory accelerator. At head dims 80
    /// and 96, where half a box or more is empty, that was measured slower. No box has rows of several heads.
    pub const fn sends_output(registers: usize) -> bool {
        Self::STAGES_OUTPUT && !GATHERS_HEADS && 4 * registers == ROW_BYTES as usize
    }

    /// Writes a warp's 16 rows of the output, from `row` on, in 16 bits, through those of `staging`. Where
    /// the output is sent, these may be read until [`bulk_copy::wait_read`].
    ///
    /// # Safety
    /// All 32 lanes call it together, and have met since the warp's rows of `staging` were used.
    #[inline(always)]
    pub unsafe fn write_output<E: TensorCoreElement, const O: usize>(
        p: &ForwardParams,
        map: u64,
        block: &QueryBlock,
        (lane, row): (u32, u32),
        output: &[f32; O],
        staging: SharedTile<QUERIES, ROW_BYTES>,
        target: &HeadRows,
    ) {
        if !Self::sends_output(O) {
            store::store_by_matrix::<E, QUERIES, ROW_BYTES, O>(lane, output, staging, row, target);
            return;
        }
        store_rows::<E, QUERIES, ROW_BYTES, O>(lane, output, staging, row);
        bulk_copy::fence();
        warp::warp_sync();
        // In one register of the warp: behind a branch that lanes could disagree on, the assembler would not
        // know any more that stages are uniform.
        let is_whole = warp::uniform(((row + OUTPUT_BOX_ROWS) as i32 <= target.count()) as u32);
        if p.o_is_mapped != 0 && is_whole != 0 {
            if lane == 0 {
                let first_row = block.sequence.first_query + block.first_row + row as i32;
                let place = Place::of_rows(first_row, block.head, block.part);
                staging.send(map, &place, row);
                bulk_copy::commit();
            }
        } else {
            store::copy_staged::<QUERIES, ROW_BYTES, O>(lane, staging, row, target);
            bulk_copy::fence();
            warp::warp_sync();
        }
    }

    /// Releases a query tile through whose rows an output was sent, for the warp if `by_this_lane`: that of
    /// the lane that sent it.
    #[inline(always)]
    pub unsafe fn release_sent_queries(&self, queries: &Cursor<QUERY_STAGES>, by_this_lane: bool) {
        if by_this_lane {
            bulk_copy::wait_read::<0>();
            self.queries.release(queries);
        }
    }

    /// Releases the query tile where it was moved to registers, for the warp if `by_this_lane`.
    ///
    /// Behind a fence: the next tile comes through the async proxy, for which an arrival alone does not order
    /// what was before it.
    #[inline(always)]
    pub unsafe fn release_loaded_queries<const A: usize>(
        &self,
        queries: &Cursor<QUERY_STAGES>,
        by_this_lane: bool,
    ) {
        if !Queries::<A>::SHARED {
            self.release_queries(queries, by_this_lane);
        }
    }

    /// Releases a query tile whose memory was written by threads since.
    #[inline(always)]
    pub unsafe fn release_queries(&self, queries: &Cursor<QUERY_STAGES>, by_this_lane: bool) {
        bulk_copy::fence();
        warp::warp_sync();
        if by_this_lane {
            self.queries.release(queries);
        }
    }

    /// Releases the values behind which no query tile comes at once: after one of which the warpgroup has no
    /// row it may be waited for.
    #[inline(always)]
    pub unsafe fn release_last_values(&self, values: &Cursor<VALUE_STAGES>) {
        self.values.release(values);
    }

    /// Releases the query tile where it stays in shared memory, after its last use.
    #[inline(always)]
    pub unsafe fn release_shared_queries<const A: usize>(
        &self,
        queries: &Cursor<QUERY_STAGES>,
        by_this_lane: bool,
    ) {
        if Queries::<A>::SHARED {
            warp::warp_sync();
            if by_this_lane {
                self.queries.release(queries);
            }
        }
    }
}
