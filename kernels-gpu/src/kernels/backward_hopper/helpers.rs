//! The first warpgroup of the Hopper backward: one thread brings tiles, two add dQ to its accumulator, and
//! one warp repairs tiles at the ends of packed sequences, or zeroes the accumulator where nothing is packed.

use super::room::{Room, STAGES, WARPGROUPS, may_need_repair};
use crate::abi::layout::ZERO_BYTES;
use crate::abi::{BackwardHopperParams, BackwardParams, ZEROED_ROWS, workspace_row_strided};
use crate::arch::{bulk_copy, global, math, mbarrier, thread, warp};
use crate::attention::key_block::{self, KeyBlock, Step, schedule};
use crate::attention::key_order::KeyOrder;
use crate::pipeline::mailbox::MessageCursor;
use crate::pipeline::roles::{Helper, Recruit};
use crate::pipeline::stages::Cursor;
use crate::pipeline::tile_queue::TileQueue;
use crate::tile::bulk::Place;
use crate::tile::element::TensorCoreElement;

/// Addresses of the tensor maps.
#[derive(Clone, Copy)]
pub(super) struct Maps {
    pub q: u64,
    pub k: u64,
    pub v: u64,
    pub d_o: u64,
}

impl Maps {
    /// The maps of the parameters at `first`.
    #[inline(always)]
    pub fn at(first: u64) -> Self {
        Maps { q: first, k: first + 128, v: first + 256, d_o: first + 384 }
    }
}

/// Steps before the last one at which the next tile is asked for.
const ASK_AHEAD: u32 = 2;

/// How far the producer is.
struct Progress {
    orders: MessageCursor,
    stages: Cursor<STAGES>,
}

/// Whether rows of the next sequence come with the keys, and are used.
#[inline(always)]
fn repairs_keys(p: &BackwardParams, order: &KeyOrder) -> bool {
    p.cu_seqlens_q != 0 && order.walk.ragged && order.walk.steps > 0
}

/// Whether rows of the next sequence come with the queries of a step.
#[inline(always)]
fn repairs_queries(p: &BackwardParams, order: &KeyOrder, at: &Step, queries: u32) -> bool {
    p.cu_seqlens_q != 0 && (at.tile + 1) * queries as i32 > order.block.sequence.query_rows
}

impl<const KEYS: u32, const QUERIES: u32, const ROW_BYTES: u32, const D_O_STAGES: u32>
    Room<KEYS, QUERIES, ROW_BYTES, D_O_STAGES>
{
    /// A warp of the helpers.
    #[inline(always)]
    pub unsafe fn help<E: TensorCoreElement>(
        &self,
        p: &BackwardHopperParams,
        maps: &Maps,
        warp: Recruit<WARPGROUPS>,
    ) {
        match warp.become_helper::<24>() {
            Helper::Producer => {
                if warp::elect() {
                    self.produce::<E>(p, maps);
                }
            }
            Helper::Repairer if may_need_repair(&p.backward) => {
                self.repair(&p.backward, thread::thread_idx_x() % 32)
            }
            Helper::Repairer if p.backward.main_zeroes != 0 => {
                if warp::elect() {
                    self.zero(&p.backward);
                }
            }
            Helper::Writer(warpgroup) => {
                if warp::elect() {
                    self.write_dq(&p.backward, warpgroup);
                }
            }
            _ => {}
        }
    }

    /// The producer, one thread: takes key tiles, tells the others, and requests what they need.
    #[inline(always)]
    unsafe fn produce<E: TensorCoreElement>(&self, p: &BackwardHopperParams, maps: &Maps) {
        let mut progress = Progress { orders: Cursor::start(), stages: Cursor::start() };
        let schedule = schedule(&p.backward);
        let (counter, tiles) = (p.backward.turns, schedule.count());
        let p = &p.backward;
        let in_order = p.in_order != 0;
        let mut queue =
            if in_order { TileQueue::in_order(counter, tiles) } else { TileQueue::new(counter, tiles) };
        while let Some(tile) = queue.take() {
            let work = schedule.work(tile, math::divide);
            let block =
                if in_order { KeyBlock::descending(p, work) } else { KeyBlock::ascending(p, work) };
            if block.has_key(block.first_tile * KEYS) {
                let walk = block.walk(p, (block.first_tile * KEYS) as i32, KEYS, QUERIES);
                let order = KeyOrder { block, walk };
                let turn = progress.orders.in_step();
                self.orders.send(&mut progress.orders, order.message());
                self.bring::<E>(p, maps, &turn, &mut progress.stages, &order, &mut queue);
            }
        }
        self.orders.send(&mut progress.orders, KeyOrder::END);
    }

    /// Requests what the steps of a key tile need, in the order in which they need it. Keys and values come
    /// also where there is no step.
    #[inline(always)]
    unsafe fn bring<E: TensorCoreElement>(
        &self,
        p: &BackwardParams,
        maps: &Maps,
        turn: &Cursor<1>,
        stages: &mut Cursor<STAGES>,
        order: &KeyOrder,
        queue: &mut TileQueue,
    ) {
        let KeyOrder { block, walk } = order;
        let sequence = &block.sequence;
        let raw = repairs_keys(p, order);
        let (key_full, value_full) = if raw {
            (self.raw_key(), self.raw_value())
        } else {
            (self.keys.full(0), self.values.full(0))
        };
        let place = Place {
            row: sequence.first_key + (block.first_tile * KEYS) as i32,
            head: block.key_head,
            batch: sequence.batch,
        };
        self.keys.acquire(turn);
        mbarrier::arrive_expect(key_full, Self::KEY_BYTES);
        self.key.request(maps.k, &place, key_full);
        self.values.acquire(turn);
        mbarrier::arrive_expect(value_full, Self::KEY_BYTES);
        self.value.request(maps.v, &place, value_full);

        let mut at = walk.start();
        while at.step < walk.steps {
            if at.step + ASK_AHEAD >= walk.steps {
                queue.ask();
            }
            let source = block.source::<2>(p, &at, QUERIES, E::NARROW);
            let place = Place {
                row: sequence.first_query + at.tile * QUERIES as i32,
                head: block.key_head * p.group_size + at.head,
                batch: sequence.batch,
            };
            let raw = repairs_queries(p, order, &at, QUERIES);
            let stage = stages.stage();
            self.queries.acquire(stages);
            let barrier = if raw { self.raw_query(stage) } else { self.queries.full(stage) };
            mbarrier::arrive_expect(barrier, Self::QUERY_BYTES + Self::STATISTIC_BYTES);
            self.query(stage).request(maps.q, &place, barrier);
            bulk_copy::load_bytes(self.lse(stage), source.lse, Self::STATISTIC_BYTES, barrier);

            let turn = stages.in_step();
            let stage = turn.stage();
            self.d_os.acquire(&turn);
            let barrier = if raw { self.raw_d_o(stage) } else { self.d_os.full(stage) };
            let statistics = if E::NARROW { 2 } else { 1 } * Self::STATISTIC_BYTES;
            mbarrier::arrive_expect(barrier, Self::QUERY_BYTES + statistics);
            self.d_o(stage).request(maps.d_o, &place, barrier);
            bulk_copy::load_bytes(self.delta(stage), source.delta, Self::STATISTIC_BYTES, barrier);
            if E::NARROW {
                bulk_copy::load_bytes(self.norm(stage), source.norm, Self::STATISTIC_BYTES, barrier);
            }
            stages.advance();
            at = walk.next(&at);
        }
    }

    /// A writer, one thread: adds a warpgroup's part of each tile of dQ to the accumulator.
    ///
    /// In order, key tiles add to a query tile from the last to the first; the wait until a copy was written
    /// is the fence between the proxies that the next one needs. With a causal mask, key tiles that
    /// start together then never wait: each comes to a query tile a step after the one that adds before it.
    #[inline(always)]
    unsafe fn write_dq(&self, p: &BackwardParams, warpgroup: u32) {
        let in_order = p.in_order != 0;
        let (dq, stage) = (self.dq(warpgroup), self.dq_stage(warpgroup));
        let (bytes, parts) = (Self::dq_bytes(warpgroup), Self::dq_parts(warpgroup));
        let mut turns = Cursor::start();
        let mut orders = Cursor::start();
        loop {
            let letter = self.orders.wait(&orders);
            if KeyOrder::ends(letter) {
                break;
            }
            let KeyOrder { block, walk } = KeyOrder::read(letter, p, KEYS);
            self.orders.discard_alone(&mut orders);
            // The next key tile adds first, where it sees the query tile: those from a first one on, since
            // what a key tile sees ends no later than what the next one sees.
            let next_tile = block.first_tile + 1;
            let mut waits_from = i32::MAX;
            if in_order && block.has_key(next_tile * KEYS) {
                let next = block.walk(p, (next_tile * KEYS) as i32, KEYS, QUERIES);
                if next.steps > 0 {
                    waits_from = next.tiles.begin;
                }
            }
            let mut at = walk.start();
            while at.step < walk.steps {
                if p.main_zeroes != 0 && at.tile == walk.tiles.begin {
                    let head = block.key_head * p.group_size + at.head;
                    let zeroed = key_block::zeroed(p, block.sequence.batch, head);
                    global::wait_for_u32(zeroed, p.query_rows.div_ceil(ZEROED_ROWS));
                }
                let turn = block.turn(p, &at, QUERIES, warpgroup);
                let mut target =
                    block.dq_accumulator(p, &at, QUERIES) + (warpgroup * Self::dq_bytes(0)) as u64;
                let mut part = 0;
                while part < parts {
                    stage.wait(&turns);
                    if part == 0 && at.tile >= waits_from {
                        global::wait_for_u32(turn, next_tile);
                    }
                    bulk_copy::add_f32(target, dq, bytes);
                    bulk_copy::commit();
                    bulk_copy::wait_read::<0>();
                    stage.release(&turns);
                    turns.advance();
                    target += bytes as u64;
                    part += 1;
                }
                if in_order {
                    bulk_copy::wait_written::<0>();
                    global::store_release_u32(turn, block.first_tile);
                }
                at = walk.next(&at);
            }
        }
    }

    /// The zeroer, one thread: zeroes blocks of dQ's accumulator, in the order in which heads are worked on,
    /// and not long before: zeroed all at once, they would take the memory's time from the work.
    ///
    /// Whoever adds to a head waits until all its blocks are counted. A zeroer waits only until its block's
    /// head is near, and for a head that somebody adds to it never does.
    #[inline(always)]
    unsafe fn zero(&self, p: &BackwardParams) {
        let blocks = p.query_rows.div_ceil(ZEROED_ROWS);
        let all_blocks = p.batches * p.query_heads * blocks;
        let mut index = global::fetch_add_u32(key_block::zero_ticket(p), 1);
        while index < all_blocks {
            let next = global::fetch_add_u32(key_block::zero_ticket(p), 1);
            let pair = math::divide(index, blocks);
            while pair >= pairs_ahead(p) {
                thread::sleep::<500>();
            }
            let batch = math::divide(pair, p.query_heads);
            let head = pair - batch * p.query_heads;
            let row = workspace_row_strided(p.query_rows, batch) + (index - pair * blocks) * ZEROED_ROWS;
            let mut address = key_block::dq_accumulator(p, 0, head, row);
            let mut left = ZEROED_ROWS * 2 * ROW_BYTES;
            while left > 0 {
                bulk_copy::store_bytes(address, self.zeros, ZERO_BYTES);
                address += ZERO_BYTES as u64;
                left -= ZERO_BYTES;
            }
            bulk_copy::commit();
            bulk_copy::wait_written::<0>();
            global::fence();
            global::fetch_add_u32(key_block::zeroed(p, batch, head), 1);
            index = next;
        }
    }

    /// The repairer, one warp: zeroes rows past the end of a packed sequence.
    #[inline(always)]
    unsafe fn repair(&self, p: &BackwardParams, lane: u32) {
        let mut orders = Cursor::start();
        let (mut key_parity, mut query_parities, mut d_o_parities) = (0, 0, 0);
        let mut stages = Cursor::<STAGES>::start();
        let repaired = |barrier: u32| {
            bulk_copy::fence();
            warp::warp_sync();
            if lane == 0 {
                mbarrier::arrive(barrier);
            }
        };
        loop {
            let letter = self.orders.wait(&orders);
            if KeyOrder::ends(letter) {
                break;
            }
            let order = KeyOrder::read(letter, p, KEYS);
            self.orders.discard(&mut orders, lane);
            let KeyOrder { block, walk } = order;
            let mut at = walk.start();
            while at.step < walk.steps {
                let stage = stages.stage();
                let raw = repairs_queries(p, &order, &at, QUERIES);
                let rows = (block.sequence.query_rows - at.tile * QUERIES as i32) as u32;
                let raw_keys = at.step == 0 && repairs_keys(p, &order);
                let key_rows =
                    (block.sequence.visible.key_rows - (block.first_tile * KEYS) as i32) as u32;
                if raw {
                    mbarrier::wait(self.raw_query(stage), query_parities >> stage & 1);
                    query_parities ^= 1 << stage;
                    self.query(stage).clear_rows(lane, rows);
                    repaired(self.queries.full(stage));
                }
                if raw_keys {
                    mbarrier::wait(self.raw_key(), key_parity);
                    self.key.clear_rows(lane, key_rows);
                    repaired(self.keys.full(0));
                }
                if raw {
                    let stage = stages.in_step::<D_O_STAGES>().stage();
                    mbarrier::wait(self.raw_d_o(stage), d_o_parities >> stage & 1);
                    d_o_parities ^= 1 << stage;
                    self.d_o(stage).clear_rows(lane, rows);
                    repaired(self.d_os.full(stage));
                }
                if raw_keys {
                    mbarrier::wait(self.raw_value(), key_parity);
                    self.value.clear_rows(lane, key_rows);
                    repaired(self.values.full(0));
                    key_parity ^= 1;
                }
                stages.advance();
                at = walk.next(&at);
            }
        }
    }
}

/// How many (batch, query head) pairs, counted from the first, have been worked on or soon will be: those of
/// the waves that the next (batch, key head) belongs to.
#[inline(always)]
unsafe fn pairs_ahead(p: &BackwardParams) -> u32 {
    let tiles = thread::grid_dim_x() + global::load_relaxed_u32(p.turns) + p.key_blocks;
    let waves = math::divide(tiles, p.heads_per_wave * p.key_blocks) + 1;
    waves * p.heads_per_wave * p.group_size
}
