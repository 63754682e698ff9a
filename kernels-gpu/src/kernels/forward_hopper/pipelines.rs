//! A consumer warp's ends of the pipelines that the producer fills: work tiles, queries, keys, values.

use super::shared_storage::SharedStorage;
use super::tile::{ForwardKernel, KeyStages, QueryStages, QueryTile, ValueStages, WARPGROUP_ROWS};
use crate::arch::{bulk_copy, thread, warp};
use crate::attention::score::features::Elements;
use crate::attention::visited::VisitedTile;
use crate::attention::work_tile::WorkTileSlot;
use crate::geometry::size::StageCount;
use crate::pipeline::mailbox::MessageCursor;
use crate::pipeline::stages::Cursor;
use crate::tile::shared_tile::SharedTileOf;
use crate::tile::warpgroup::Queries;

/// The pipelines' states. A warp releases a stage by one arrival, of lane 0.
#[derive(Clone, Copy)]
pub(super) struct Pipelines<K: ForwardKernel> {
    pub storage: SharedStorage<K>,
    pub lane: u32,
    pub work_tiles: MessageCursor,
    pub queries: Cursor<QueryStages<K>>,
    pub keys: Cursor<KeyStages<K>>,
    pub values: Cursor<ValueStages<K>>,
    /// Of the work tile, where the bias comes through shared memory: the warp's first query and key 0.
    pub bias_rows: Option<Elements>,
}

impl<K: ForwardKernel> Pipelines<K> {
    /// This warp's ends, before the first work tile.
    #[inline(always)]
    pub fn new(storage: SharedStorage<K>) -> Self {
        Pipelines {
            storage,
            lane: thread::thread_idx_x() % 32,
            work_tiles: Cursor::start(),
            queries: Cursor::start(),
            keys: Cursor::start(),
            values: Cursor::start(),
            bias_rows: None,
        }
    }

    /// Waits for the next work tile, or the message that there is none.
    #[inline(always)]
    pub unsafe fn wait_for_work_tile(&self) -> WorkTileSlot {
        WorkTileSlot(self.storage.work_tiles.wait(&self.work_tiles))
    }

    /// The work tile, until it is discarded.
    #[inline(always)]
    pub fn work_tile(&self) -> WorkTileSlot {
        WorkTileSlot(self.storage.work_tiles.letter(&self.work_tiles))
    }

    /// The work tile's message will not be read again.
    #[inline(always)]
    pub unsafe fn discard_work_tile(&mut self, lane: u32) {
        self.storage.work_tiles.discard(&mut self.work_tiles, lane);
    }

    /// Skips the tiles of a work tile.
    #[inline(always)]
    pub unsafe fn skip_work_tile(&mut self) {
        self.storage.queries.pass(&mut self.queries, 1, self.lane == 0);
        let tiles = self.work_tile().tiles();
        let mut tile = tiles.begin;
        while tile < tiles.end {
            self.skip_keys(1);
            self.skip_values(1, self.lane);
            tile += 1;
        }
        self.discard_work_tile(self.lane);
    }

    /// Waits for the query tile and gives the 64 rows of `warpgroup`.
    #[inline(always)]
    pub unsafe fn wait_for_queries<const A: usize>(&self, warpgroup: u32) -> Queries<A> {
        self.storage.queries.wait(&self.queries);
        let (lane, row) = lane_and_row();
        let tile = self.storage.query(Self::query_stage(&self.queries));
        Queries::<A>::load(lane, tile, row, tile.descriptor(WARPGROUP_ROWS * warpgroup))
    }

    /// The stage of a query tile, uniform.
    #[inline(always)]
    unsafe fn query_stage(query: &Cursor<QueryStages<K>>) -> u32 {
        if QueryStages::<K>::COUNT == 1 { 0 } else { warp::uniform(query.stage()) }
    }

    /// Through which rows the output of queries `query` leaves.
    #[inline(always)]
    pub unsafe fn output_rows(&self, query: &Cursor<QueryStages<K>>) -> SharedTileOf<QueryTile<K>> {
        self.storage.output_rows(Self::query_stage(query))
    }

    /// Waits for the key tile.
    #[inline(always)]
    pub unsafe fn wait_for_keys(&self) {
        self.storage.keys.wait(&self.keys);
    }

    /// Whether only key tiles are visited of which a boolean mask shows something.
    #[inline(always)]
    pub fn skips_key_tiles(&self) -> bool {
        SharedStorage::<K>::skips_key_tiles()
    }

    /// Where key tiles are skipped: the first one of the work tile.
    #[inline(always)]
    pub unsafe fn first_visited(&self) -> VisitedTile {
        self.storage.first_visited(self.work_tiles.stage())
    }

    /// Where key tiles are skipped: waits for the keys, and says of which tile they are.
    #[inline(always)]
    pub unsafe fn wait_for_visited(&self) -> VisitedTile {
        self.wait_for_keys();
        let tile = self.storage.visited(Self::uniform(self.keys.stage()));
        // All have read it when one of them releases the keys.
        warp::warp_sync();
        tile
    }

    /// The descriptor of the key tile.
    #[inline(always)]
    pub unsafe fn key(&self) -> u64 {
        self.storage.key(Self::uniform(self.keys.stage())).descriptor(0)
    }

    /// Skips `count` key tiles.
    #[inline(always)]
    pub unsafe fn skip_keys(&mut self, count: u32) {
        self.storage.keys.pass(&mut self.keys, count, self.lane == 0);
    }

    /// Releases the key tile, for the warp if `by_this_lane`.
    #[inline(always)]
    pub unsafe fn release_keys(&self, by_this_lane: bool) {
        if by_this_lane {
            self.storage.keys.release(&self.keys);
        }
    }

    /// Waits for the value tile.
    #[inline(always)]
    pub unsafe fn wait_for_values(&self) {
        self.storage.values.wait(&self.values);
    }

    /// The descriptor of the value tile.
    #[inline(always)]
    pub unsafe fn value(&self) -> u64 {
        self.storage.value(Self::uniform(self.values.stage())).descriptor(0)
    }

    /// Skips `count` value tiles; `lane` is this one.
    #[inline(always)]
    pub unsafe fn skip_values(&mut self, count: u32, lane: u32) {
        self.storage.values.pass(&mut self.values, count, lane == 0);
    }

    /// Releases the value tile, for the warp if `by_this_lane`.
    #[inline(always)]
    pub unsafe fn release_values(&self, by_this_lane: bool) {
        if by_this_lane {
            self.storage.values.release(&self.values);
        }
    }

    /// Releases the values behind which no work tile comes at once: after one of which the warpgroup has no
    /// row it may be waited for.
    #[inline(always)]
    pub unsafe fn release_last_values(&self, by_this_lane: bool) {
        self.release_values(by_this_lane);
    }

    /// The assembler finds out by itself that stages are uniform in the loop that looks ahead, and not in the
    /// other one; telling it where it knows costs 2 %.
    #[inline(always)]
    unsafe fn uniform(stage: u32) -> u32 {
        if const { K::TILE.looks_ahead() } { stage } else { warp::uniform(stage) }
    }

    /// Releases the query tile where it was moved to registers, for the warp if `by_this_lane`.
    ///
    /// Behind a fence: the next tile comes through the async proxy, for which an arrival alone does not order
    /// what was before it.
    #[inline(always)]
    pub unsafe fn release_loaded_queries<const A: usize>(&self, by_this_lane: bool) {
        if !Queries::<A>::SHARED {
            self.release_written_queries(&self.queries, by_this_lane);
        }
    }

    /// Releases the query tile where it stays in shared memory, after its last use.
    #[inline(always)]
    pub unsafe fn release_shared_queries<const A: usize>(&self, by_this_lane: bool) {
        if Queries::<A>::SHARED {
            warp::warp_sync();
            if by_this_lane {
                self.storage.queries.release(&self.queries);
            }
        }
    }

    /// Releases a query tile whose memory threads have read or written since.
    #[inline(always)]
    pub unsafe fn release_written_queries(&self, query: &Cursor<QueryStages<K>>, by_this_lane: bool) {
        bulk_copy::fence();
        warp::warp_sync();
        if by_this_lane {
            self.storage.queries.release(query);
        }
    }

    /// Releases a query tile through whose rows an output was sent, for the warp if `by_this_lane`: that of
    /// the lane that sent it.
    #[inline(always)]
    pub unsafe fn release_sent_queries(&self, query: &Cursor<QueryStages<K>>, by_this_lane: bool) {
        if by_this_lane {
            bulk_copy::wait_read::<0>();
            self.storage.queries.release(query);
        }
    }
}

/// Lane, and first row of the warp, worked out anew: registers are for the mainloop.
#[inline(always)]
pub fn lane_and_row() -> (u32, u32) {
    let thread = thread::thread_idx_x_here();
    (thread % 32, (thread / 32 - 4) * 16)
}
