//! The first warpgroup of the Hopper backward: one thread brings tiles, one adds dQ to its accumulator, and
//! one warp repairs tiles at the ends of packed sequences.

use super::room::{KEYS, Room, STAGES};
use crate::abi::{BackwardHopperParams, BackwardParams};
use crate::arch::{bulk_copy, global, math, mbarrier, warp};
use crate::attention::key_block::{KeyBlock, Step, schedule};
use crate::attention::key_order::KeyOrder;
use crate::pipeline::mailbox::MessageCursor;
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

impl<const QUERIES: u32, const ROW_BYTES: u32> Room<QUERIES, ROW_BYTES> {
    /// The producer, one thread: takes key tiles, tells the others, and requests what they need.
    #[inline(always)]
    pub unsafe fn produce<E: TensorCoreElement>(&self, p: &BackwardHopperParams, maps: &Maps) {
        let mut progress = Progress { orders: Cursor::start(), stages: Cursor::start() };
        let schedule = schedule(&p.backward);
        let (counter, tiles) = (p.backward.turns, schedule.count());
        let mut queue = if p.in_order != 0 {
            TileQueue::in_order(counter, tiles)
        } else {
            TileQueue::new(counter, tiles)
        };
        let p = &p.backward;
        while let Some(tile) = queue.take() {
            let block = KeyBlock::new(p, schedule.work(tile, math::divide));
            if block.has_key(block.first_tile * KEYS) {
                let walk = block.walk(p, (block.first_tile * KEYS) as i32, KEYS, QUERIES);
                let order = KeyOrder { block, walk };
                let turn = progress.orders.in_step();
                self.orders.send(&mut progress.orders, order.message());
                self.bring::<E>(p, maps, &turn, &mut progress.stages, &order);
            }
        }
        self.orders.send(&mut progress.orders, KeyOrder::END);
        queue.finish();
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

        let mut at = walk.start_down();
        while at.step < walk.steps {
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

            self.d_os.acquire(stages);
            let barrier = if raw { self.raw_d_o(stage) } else { self.d_os.full(stage) };
            let statistics = if E::NARROW { 2 } else { 1 } * Self::STATISTIC_BYTES;
            mbarrier::arrive_expect(barrier, Self::QUERY_BYTES + statistics);
            self.d_o(stage).request(maps.d_o, &place, barrier);
            bulk_copy::load_bytes(self.delta(stage), source.delta, Self::STATISTIC_BYTES, barrier);
            if E::NARROW {
                bulk_copy::load_bytes(self.norm(stage), source.norm, Self::STATISTIC_BYTES, barrier);
            }
            stages.advance();
            at = walk.next_down(&at);
        }
    }

    /// The writer, one thread: adds each tile of dQ to the accumulator, a half per warpgroup.
    ///
    /// In order, key tiles add to a query tile from the first to the last. All of them walk from the last
    /// query tile to the first, so that none has to wait long: those that see a query tile come to it at the
    /// same time, or, with a mask, the earlier ones first.
    #[inline(always)]
    pub unsafe fn write_dq(&self, p: &BackwardHopperParams) {
        let in_order = p.in_order != 0;
        let p = &p.backward;
        let (first, second) = (self.dq_stage(0), self.dq_stage(1));
        let mut turns = Cursor::start();
        let mut orders = Cursor::start();
        loop {
            let letter = self.orders.wait(&orders);
            if KeyOrder::ends(letter) {
                break;
            }
            let KeyOrder { block, walk } = KeyOrder::read(letter, p, KEYS);
            self.orders.discard_alone(&mut orders);
            // The key tile before this one adds first, where it sees the query tile: those below an end,
            // since what a key tile sees begins no earlier than what the one before sees.
            let mut before_end = 0;
            if in_order && block.first_tile > 0 {
                let before = block.walk(p, (block.first_tile * KEYS - KEYS) as i32, KEYS, QUERIES);
                before_end = before.tiles.end;
            }
            let mut at = walk.start_down();
            while at.step < walk.steps {
                let turn = block.turn(p, &at, QUERIES);
                let target = block.dq_accumulator(p, &at, QUERIES);
                first.wait(&turns);
                if at.tile < before_end {
                    global::wait_for_u32(turn, block.first_tile);
                    bulk_copy::fence_global();
                }
                bulk_copy::add_f32(target, self.dq(0), Self::DQ_BYTES);
                bulk_copy::commit();
                second.wait(&turns);
                bulk_copy::add_f32(
                    target.wrapping_add(Self::DQ_BYTES as u64),
                    self.dq(1),
                    Self::DQ_BYTES,
                );
                bulk_copy::commit();
                bulk_copy::wait_read::<1>();
                first.release(&turns);
                bulk_copy::wait_read::<0>();
                second.release(&turns);
                if in_order {
                    bulk_copy::wait_written::<0>();
                    bulk_copy::fence_global();
                    global::store_release_u32(turn, block.first_tile + 1);
                }
                turns.advance();
                at = walk.next_down(&at);
            }
        }
        bulk_copy::wait_written::<0>();
    }

    /// The repairer, one warp: zeroes rows past the end of a packed sequence.
    #[inline(always)]
    pub unsafe fn repair(&self, p: &BackwardParams, lane: u32) {
        let mut orders = Cursor::start();
        let (mut key_parity, mut parities) = (0, 0);
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
            let mut at = walk.start_down();
            while at.step < walk.steps {
                let stage = stages.stage();
                let raw = repairs_queries(p, &order, &at, QUERIES);
                let rows = (block.sequence.query_rows - at.tile * QUERIES as i32) as u32;
                let raw_keys = at.step == 0 && repairs_keys(p, &order);
                let key_rows =
                    (block.sequence.visible.key_rows - (block.first_tile * KEYS) as i32) as u32;
                let parity = parities >> stage & 1;
                if raw {
                    mbarrier::wait(self.raw_query(stage), parity);
                    self.query(stage).clear_rows(lane, rows);
                    repaired(self.queries.full(stage));
                }
                if raw_keys {
                    mbarrier::wait(self.raw_key(), key_parity);
                    self.key.clear_rows(lane, key_rows);
                    repaired(self.keys.full(0));
                }
                if raw {
                    mbarrier::wait(self.raw_d_o(stage), parity);
                    self.d_o(stage).clear_rows(lane, rows);
                    repaired(self.d_os.full(stage));
                    parities ^= 1 << stage;
                }
                if raw_keys {
                    mbarrier::wait(self.raw_value(), key_parity);
                    self.value.clear_rows(lane, key_rows);
                    repaired(self.values.full(0));
                    key_parity ^= 1;
                }
                stages.advance();
                at = walk.next_down(&at);
            }
        }
    }
}
