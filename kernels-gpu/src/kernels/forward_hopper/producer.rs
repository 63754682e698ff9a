//! The producer warpgroup of the Hopper forward: one thread brings tiles, one warp zeroes the tails of some.

use super::shared_storage::SharedStorage;
use super::tile::{ForwardKernel, KeyStages, QueryStages, ValueStages};
use crate::abi::ForwardHopperParams;
use crate::arch::{bulk_copy, math, mbarrier, thread, warp};
use crate::attention::packed_work::PackedWork;
use crate::attention::query_block::QueryBlock;
use crate::attention::score::split_sign;
use crate::attention::visited::{NextTile, VisitedTile};
use crate::attention::work_tile::{WorkTileInfo, WorkTileSlot};
use crate::geometry::mask_map::Shown;
use crate::geometry::visible::TileRange;
use crate::pipeline::mailbox::MessageCursor;
use crate::pipeline::stages::Cursor;
use crate::pipeline::tile_queue::TileQueue;
use crate::tile::bulk::Place;

/// Addresses of the tensor maps.
#[derive(Clone, Copy)]
pub(super) struct Maps {
    pub q: u64,
    pub k: u64,
    pub v: u64,
    pub o: u64,
}

/// Key tiles before the last one at which the next work tile is asked for.
const ASK_AHEAD: i32 = 1;

/// The producer's pipeline states, between work tiles.
struct PipelineStates<K: ForwardKernel> {
    work_tiles: MessageCursor,
    queries: Cursor<QueryStages<K>>,
    keys: Cursor<KeyStages<K>>,
    values: Cursor<ValueStages<K>>,
}

impl<K: ForwardKernel> PipelineStates<K> {
    #[inline(always)]
    fn start() -> Self {
        PipelineStates {
            work_tiles: Cursor::start(),
            queries: Cursor::start(),
            keys: Cursor::start(),
            values: Cursor::start(),
        }
    }
}

impl<K: ForwardKernel> SharedStorage<K> {
    /// The producer, one warp: takes query tiles, and its first thread tells the others and requests what
    /// they need.
    #[inline(always)]
    pub unsafe fn produce(&self, p: &ForwardHopperParams, maps: &Maps) {
        let mut states = PipelineStates::start();
        if p.forward.cu_seqlens_q == 0 {
            if warp::elect() {
                let schedule = Self::QUERY_TILES.schedule(&p.forward);
                let mut queue = TileQueue::new(p.counter, schedule.count());
                while let Some(tile) = queue.take() {
                    let work = schedule.work(tile, math::divide);
                    let block = QueryBlock::new(&p.forward, Self::QUERY_TILES, work);
                    self.bring(p, maps, &mut states, &mut queue, &block);
                }
                self.work_tiles.send(&mut states.work_tiles, WorkTileInfo::END);
                queue.finish();
            }
            return;
        }
        // All lanes find out which sequence comes next.
        let mut queue = TileQueue::new(p.counter, u32::MAX);
        let mut sequences = PackedWork::new(&p.forward, Self::QUERY_TILES);
        loop {
            // Worked out anew each time: registers are scarce here.
            let lane = thread::thread_idx_x_here() % 32;
            let tile = if lane == 0 { queue.take().unwrap_or(0) } else { 0 };
            let tile = warp::broadcast(tile, 0);
            let Some(work) = sequences.find(&p.forward, Self::QUERY_TILES, tile) else { break };
            if lane == 0 {
                let block = QueryBlock::new(&p.forward, Self::QUERY_TILES, work);
                self.bring(p, maps, &mut states, &mut queue, &block);
            }
            warp::warp_sync();
        }
        if thread::thread_idx_x_here() % 32 == 0 {
            self.work_tiles.send(&mut states.work_tiles, WorkTileInfo::END);
            queue.finish();
        }
    }

    /// Announces a query block, and requests its tiles in the order in which they are needed.
    #[inline(always)]
    unsafe fn bring(
        &self,
        p: &ForwardHopperParams,
        maps: &Maps,
        states: &mut PipelineStates<K>,
        queue: &mut TileQueue,
        block: &QueryBlock,
    ) {
        // One count is enough, if there are as many.
        states.values.follow(&states.keys);
        if Self::skips_key_tiles() {
            self.bring_shown(p, maps, states, queue, block);
            return;
        }
        let tiles = block.key_tiles(K::QUERIES, K::KEYS);
        let mut zeroes = self.announce(p, maps, states, block, &tiles);
        let mut tile = tiles.end;
        if tiles.begin >= tile {
            return;
        }
        let first = block.first_key_tile(&p.forward, K::QUERIES, K::KEYS, &tiles);
        // Tiles in their order, as if the last one were first.
        let at = |tile: i32| {
            let tile = tile + first + 1 - tiles.end;
            if tile < tiles.begin { tile + tiles.end - tiles.begin } else { tile }
        };
        while tile >= tiles.begin {
            if tile <= tiles.begin + ASK_AHEAD {
                queue.ask();
            }
            // Keys are one tile ahead of values.
            if tile > tiles.begin {
                self.bring_keys(maps, &mut states.keys, block, at(tile - 1));
            }
            if tile < tiles.end {
                self.bring_values(maps, &mut states.values, block, at(tile), zeroes);
                zeroes = false;
            }
            tile -= 1;
        }
    }

    /// The same under a boolean mask, for key tiles of which it shows something. Consumers are told which
    /// these are: the first one with the work tile, and each with its keys.
    #[inline(always)]
    unsafe fn bring_shown(
        &self,
        p: &ForwardHopperParams,
        maps: &Maps,
        states: &mut PipelineStates<K>,
        queue: &mut TileQueue,
        block: &QueryBlock,
    ) {
        let tiles = block.key_tiles(K::QUERIES, K::KEYS);
        self.work_tiles.begin(&states.work_tiles);
        // The tile whose keys come next, and the one whose values do; none below all.
        let mut key = NextTile { tile: -1, shown: Shown::NOTHING };
        let mut value = -1;
        let mut zeroes = false;
        let mut end = tiles.end;
        loop {
            let after = block.last_shown(&p.forward, (K::QUERIES, K::KEYS), tiles.begin, end);
            let (has_key, is_last) = (key.tile >= tiles.begin, after.tile < tiles.begin);
            let visited = VisitedTile { tile: key.tile, is_last, shows_all: key.shown.all };
            if value < 0 && (has_key || is_last) {
                let mut seen = TileRange { begin: 0, full_begin: 0, full_end: 0, end: 0 };
                if has_key {
                    self.write_first_visited(states.work_tiles.stage(), visited);
                    seen = TileRange { end: key.tile + 1, ..tiles };
                }
                zeroes = self.announce(p, maps, states, block, &seen);
                if !has_key {
                    return;
                }
            }
            if has_key {
                if is_last {
                    queue.ask();
                }
                self.keys.acquire(&states.keys);
                self.write_visited(states.keys.stage(), visited);
                self.bring_keys(maps, &mut states.keys, block, key.tile);
            }
            if value >= 0 {
                self.bring_values(maps, &mut states.values, block, value, zeroes);
                zeroes = false;
                if !has_key {
                    return;
                }
            }
            if has_key {
                value = key.tile;
            }
            (key, end) = (after, after.tile);
        }
    }

    /// Tells the other warps of a query block that visits these key tiles, and requests its queries if there
    /// are any. Gives whether rows of the values of the last tile must be zeroed before use.
    #[inline(always)]
    unsafe fn announce(
        &self,
        p: &ForwardHopperParams,
        maps: &Maps,
        states: &mut PipelineStates<K>,
        block: &QueryBlock,
        tiles: &TileRange,
    ) -> bool {
        let PipelineStates { work_tiles, queries, values, .. } = states;
        let packed = p.forward.cu_seqlens_q != 0;
        let flips = !(p.forward.scale > 0.0);
        let any = tiles.begin < tiles.end;
        let sequence = &block.sequence;
        // Also where the rows that are not its own are the next tile's: to tell that apart takes a register.
        let ragged = !block.has_row(K::QUERIES - 1);
        let last_end = tiles.end * K::KEYS as i32;
        let work_tile = WorkTileInfo {
            block: *block,
            tiles: *tiles,
            zeroes_queries: any && (flips || (packed || Self::lacks_rows(&p.forward)) && ragged),
            zeroes_values: any && packed && last_end > sequence.visible.key_rows,
            query_stage: queries.stage(),
            value_stage: values.stage(),
        };
        self.work_tiles.send(work_tiles, work_tile.message());
        if !any {
            return false;
        }
        self.queries.acquire(queries);
        let stage = queries.stage();
        let zeroes = work_tile.zeroes_queries;
        let barrier = if zeroes { self.landed_query(stage) } else { self.queries.full(stage) };
        mbarrier::arrive_expect(barrier, Self::query_bytes(&p.forward));
        let row = sequence.first_query + block.row_heads.query(block.first_row);
        let place = if K::GATHERS_HEADS {
            Place::of_heads(block.head, row, sequence.batch)
        } else {
            Place::of_rows(row, block.head, sequence.batch)
        };
        self.query(stage).request(maps.q, &place, barrier);
        queries.advance();
        work_tile.zeroes_values
    }

    /// Requests the keys of a key tile.
    #[inline(always)]
    unsafe fn bring_keys(
        &self,
        maps: &Maps,
        keys: &mut Cursor<KeyStages<K>>,
        block: &QueryBlock,
        tile: i32,
    ) {
        self.keys.acquire(keys);
        let barrier = self.keys.full(keys.stage());
        mbarrier::arrive_expect(barrier, Self::KEY_BYTES);
        self.key(keys.stage()).request(maps.k, &key_place::<K>(block, tile), barrier);
        keys.advance();
    }

    /// Requests the values of a key tile, whose last rows may have to be zeroed before use.
    #[inline(always)]
    unsafe fn bring_values(
        &self,
        maps: &Maps,
        values: &mut Cursor<ValueStages<K>>,
        block: &QueryBlock,
        tile: i32,
        zeroes: bool,
    ) {
        self.values.acquire(values);
        let stage = values.stage();
        let barrier = if zeroes { self.landed_value(stage) } else { self.values.full(stage) };
        mbarrier::arrive_expect(barrier, Self::KEY_BYTES);
        self.value(stage).request(maps.v, &key_place::<K>(block, tile), barrier);
        values.advance();
    }

    /// The tail-zeroing warp: overwrites with zeros the rows of a tile that has landed which are not its own,
    /// and multiplies q by the sign of the scale.
    #[inline(always)]
    pub unsafe fn zero_tails(&self, p: &ForwardHopperParams, lane: u32) {
        let (_, factor) = split_sign(p.forward.scale);
        let mut work_tiles = Cursor::start();
        let (mut query_parities, mut value_parities) = (0, 0);
        loop {
            let work_tile = WorkTileSlot(self.work_tiles.wait(&work_tiles));
            if work_tile.is_end() {
                break;
            }
            let tails = work_tile.tails();
            let block = work_tile.block(&p.forward, Self::QUERY_TILES);
            let last_tile = work_tile.tiles().end - 1;
            self.work_tiles.discard(&mut work_tiles, lane);
            if let Some(stage) = tails.query_stage {
                mbarrier::wait(self.landed_query(stage), query_parities >> stage & 1);
                query_parities ^= 1 << stage;
                let tile = self.query(stage);
                tile.clear_rows(lane, (block.end_row - block.first_row) as u32);
                if factor != 1.0 {
                    warp::warp_sync();
                    tile.scale_rows::<K::Element>(lane, 0, K::QUERIES, factor);
                }
                hand_over(self.queries.full(stage), lane);
            }
            if let Some(stage) = tails.value_stage {
                mbarrier::wait(self.landed_value(stage), value_parities >> stage & 1);
                value_parities ^= 1 << stage;
                let rows = block.sequence.visible.key_rows - last_tile * K::KEYS as i32;
                self.value(stage).clear_rows(lane, rows as u32);
                hand_over(self.values.full(stage), lane);
            }
        }
    }
}

/// Where a key tile of a query block stands.
#[inline(always)]
fn key_place<K: ForwardKernel>(block: &QueryBlock, tile: i32) -> Place {
    let row = block.sequence.first_key + tile * K::KEYS as i32;
    Place::of_rows(row, block.key_head, block.sequence.batch)
}

/// Says at `barrier` that a tile is there whose tail is zeros now, to products and threads.
#[inline(always)]
unsafe fn hand_over(barrier: u32, lane: u32) {
    bulk_copy::fence();
    warp::warp_sync();
    if lane == 0 {
        mbarrier::arrive(barrier);
    }
}
