//! The first warpgroup of the Hopper backward: one thread brings tiles, one adds dQ to its accumulator, and
//! one warp repairs tiles at the ends of packed sequences.

use super::room::{KEYS, Room, STAGES};
use crate::abi::{BackwardHopperParams, BackwardParams};
use crate::arch::{bulk_copy, math, mbarrier, warp};
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
    keys: Cursor<1>,
    stages: Cursor<STAGES>,
}

/// Whether rows of the next sequence come with the keys.
#[inline(always)]
fn repairs_keys(p: &BackwardParams, order: &KeyOrder) -> bool {
    p.cu_seqlens_q != 0 && order.walk.ragged
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
        let mut progress =
            Progress { orders: Cursor::start(), keys: Cursor::start(), stages: Cursor::start() };
        let schedule = schedule(&p.backward);
        let mut queue = TileQueue::new(p.counter, schedule.count());
        let p = &p.backward;
        while let Some(tile) = queue.take() {
            let block = KeyBlock::new(p, schedule.work(tile, math::divide));
            if block.has_key(block.first_tile * KEYS) {
                let walk = block.walk(p, (block.first_tile * KEYS) as i32, KEYS, QUERIES);
                let order = KeyOrder { block, walk };
                self.orders.send(&mut progress.orders, order.message());
                self.bring::<E>(p, maps, &mut progress, &order);
            }
        }
        self.orders.send(&mut progress.orders, KeyOrder::END);
        queue.finish();
    }

    /// Requests what the steps of a key tile need, in the order in which they need it.
    #[inline(always)]
    unsafe fn bring<E: TensorCoreElement>(
        &self,
        p: &BackwardParams,
        maps: &Maps,
        progress: &mut Progress,
        order: &KeyOrder,
    ) {
        let KeyOrder { block, walk } = order;
        let Progress { keys, stages, .. } = progress;
        if walk.steps == 0 {
            return;
        }
        let sequence = &block.sequence;
        let repairs_keys = repairs_keys(p, order);
        let key_place = Place {
            row: sequence.first_key + (block.first_tile * KEYS) as i32,
            head: block.key_head,
            batch: sequence.batch,
        };
        let mut at = walk.start();
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
            if at.step == 0 {
                self.keys.acquire(keys);
                let barrier = if repairs_keys { self.raw_key() } else { self.keys.full(0) };
                mbarrier::arrive_expect(barrier, Self::KEY_BYTES);
                self.key.request(maps.k, &key_place, barrier);
            }

            self.d_os.acquire(stages);
            let barrier = if raw { self.raw_d_o(stage) } else { self.d_os.full(stage) };
            let statistics = if E::NARROW { 2 } else { 1 } * Self::STATISTIC_BYTES;
            mbarrier::arrive_expect(barrier, Self::QUERY_BYTES + statistics);
            self.d_o(stage).request(maps.d_o, &place, barrier);
            bulk_copy::load_bytes(self.delta(stage), source.delta, Self::STATISTIC_BYTES, barrier);
            if E::NARROW {
                bulk_copy::load_bytes(self.norm(stage), source.norm, Self::STATISTIC_BYTES, barrier);
            }
            if at.step == 0 {
                self.values.acquire(keys);
                let barrier = if repairs_keys { self.raw_value() } else { self.values.full(0) };
                mbarrier::arrive_expect(barrier, Self::KEY_BYTES);
                self.value.request(maps.v, &key_place, barrier);
            }
            stages.advance();
            at = walk.next(&at);
        }
        keys.advance();
    }

    /// The writer, one warp of which one thread works: adds each tile of dQ to the accumulator, a half per
    /// warpgroup.
    #[inline(always)]
    pub unsafe fn write_dq(&self, p: &BackwardParams, lane: u32) {
        let (first, second) = (self.dq_stage(0), self.dq_stage(1));
        let mut turns = Cursor::start();
        let mut orders = Cursor::start();
        while let Some(KeyOrder { block, walk }) = KeyOrder::read(self.orders.wait(&orders), p, KEYS) {
            self.orders.discard(&mut orders, lane);
            let mut at = walk.start();
            while at.step < walk.steps {
                if lane == 0 {
                    let target = block.dq_accumulator(p, &at, QUERIES);
                    let second_half = target.wrapping_add(Self::DQ_BYTES as u64);
                    first.wait(&turns);
                    bulk_copy::add_f32(target, self.dq(0), Self::DQ_BYTES);
                    bulk_copy::commit();
                    second.wait(&turns);
                    bulk_copy::add_f32(second_half, self.dq(1), Self::DQ_BYTES);
                    bulk_copy::commit();
                    bulk_copy::wait_read::<1>();
                    first.release(&turns);
                    bulk_copy::wait_read::<0>();
                    second.release(&turns);
                }
                turns.advance();
                at = walk.next(&at);
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
        while let Some(order) = KeyOrder::read(self.orders.wait(&orders), p, KEYS) {
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
                at = walk.next(&at);
            }
        }
    }
}
