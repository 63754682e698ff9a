//! The first warpgroup of the Hopper backward: one thread brings tiles, two add dQ to its accumulator
//! ([`super::writer`]), and one warp repairs tiles at the ends of packed sequences.

use super::room::{Room, may_need_repair};
use super::tile::{BackwardKernel, OutputGradientStages, QueryStages};
use crate::abi::{BackwardHopperParams, BackwardParams, DQ_IN_ORDER};
use crate::arch::{bulk_copy, mbarrier, thread, warp};
use crate::attention::key_block::Step;
use crate::attention::key_order::KeyOrder;
use crate::attention::key_schedule::KeySchedule;
use crate::attention::key_stretch::division;
use crate::attention::score::features;
use crate::attention::visited::{VisitedStep, VisitedTile};
use crate::geometry::mask_map::Shown;
use crate::geometry::size::Count;
use crate::pipeline::mailbox::{Letter, MessageCursor};
use crate::pipeline::roles::{Helper, Recruit};
use crate::pipeline::stages::Cursor;
use crate::pipeline::tile_queue::TileQueue;
use crate::tile::bulk::Place;
use crate::tile::element::TensorCoreElement;

/// Addresses of the tensor maps.
#[derive(Clone, Copy)]
pub(in crate::kernels) struct Maps {
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
struct Progress<K: BackwardKernel> {
    orders: MessageCursor,
    stages: Cursor<QueryStages<K>>,
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

impl<E: TensorCoreElement, K: BackwardKernel<Element = E>> Room<K> {
    /// A warp of the helpers.
    #[inline(always)]
    pub unsafe fn help(&self, p: &BackwardHopperParams, maps: &Maps, warp: Recruit) {
        match warp.become_helper::<24>() {
            Helper::Producer => {
                if warp::elect() {
                    self.produce(p, maps);
                }
            }
            Helper::Repairer if may_need_repair(&p.backward) => {
                self.repair(&p.backward, thread::thread_idx_x() % 32)
            }
            Helper::Writer(writer) => {
                if warp::elect() {
                    self.write_dq(&p.backward, writer);
                }
            }
            _ => {}
        }
    }

    /// The producer, one thread: takes key tiles, tells the others, and requests what they need.
    #[inline(always)]
    unsafe fn produce(&self, p: &BackwardHopperParams, maps: &Maps) {
        let mut progress = Progress { orders: Cursor::start(), stages: Cursor::start() };
        let p = &p.backward;
        let in_order = p.dq_order == DQ_IN_ORDER;
        let mut schedule = KeySchedule::new(p, K::KEYS, features::bias_is_of_all_batches(&p.score));
        // The schedule says when there are none left.
        let mut queue = TileQueue::endless(p.counter, in_order);
        loop {
            let turn = queue.take_any();
            let mut next = division(p).stretch(turn, division(p).first_tile(turn));
            loop {
                let letter = self.orders.begin(&progress.orders);
                KeyOrder::write_stretch(letter, &next);
                let Some(block) = schedule.block(p, K::KEYS, next.tile, in_order) else {
                    KeyOrder::write_end(letter);
                    self.orders.end(&mut progress.orders);
                    return;
                };
                KeyOrder::write_block(letter, &block);
                // Between the fences the compiler has all registers for one part of the message.
                bulk_copy::fence();
                KeyOrder::write_tiles(letter, p, K::KEYS, K::QUERIES);
                bulk_copy::fence();
                KeyOrder::write_steps(letter, p);
                if Self::skips_steps() {
                    self.bring_shown(p, maps, &mut progress, letter, &mut queue);
                } else {
                    let turn = progress.orders.in_step();
                    self.orders.end(&mut progress.orders);
                    self.bring(p, maps, &turn, &mut progress.stages, letter, &mut queue);
                }
                let done = KeyOrder::stretch(letter);
                if !division(p).goes_on(&done) {
                    break;
                }
                next = division(p).stretch(done.turn, done.tile + 1);
            }
        }
    }

    /// Requests what the steps of a key tile need, in the order in which they need it. Keys and values come
    /// also where there is no step.
    #[inline(always)]
    unsafe fn bring(
        &self,
        p: &BackwardParams,
        maps: &Maps,
        turn: &Cursor<Count<1>>,
        stages: &mut Cursor<QueryStages<K>>,
        letter: Letter,
        queue: &mut TileQueue,
    ) {
        self.bring_keys(p, maps, turn, letter);
        // Read again: there are no registers to keep it in meanwhile.
        let mut order = KeyOrder::read(letter, p, K::KEYS);
        let walk = order.walk;
        let mut at = walk.start();
        // Heads are counted from the first of all.
        at.head += order.block.key_head * p.group_size;
        order.block.key_head = 0;
        let order = &order;
        let mut left = walk.steps;
        while left > 0 {
            if left <= ASK_AHEAD {
                queue.ask();
            }
            left -= 1;
            let raw = repairs_queries(p, order, &at, K::QUERIES);
            self.bring_queries(p, maps, stages, order, &at, raw);
            at = walk.next_of_head(&at);
        }
    }

    /// The same of the steps of which a boolean mask shows something; the order, which is written, is sent
    /// before. Others are told which these are, each with its queries.
    #[inline(always)]
    unsafe fn bring_shown(
        &self,
        p: &BackwardParams,
        maps: &Maps,
        progress: &mut Progress<K>,
        letter: Letter,
        queue: &mut TileQueue,
    ) {
        let mut order = KeyOrder::read(letter, p, K::KEYS);
        let walk = order.walk;
        let key_head = order.block.key_head;
        // The step that is looked at, and one that is visited and waits for it to be known whether it is the
        // last; with heads of all.
        let mut look = walk.start();
        look.head += key_head * p.group_size;
        let (mut at, mut at_shown) = (look, Shown::NOTHING);
        let mut is_sent = false;
        let mut left = walk.steps;
        loop {
            let mut shown = Shown::NOTHING;
            order.block.key_head = key_head;
            let key_tile = (order.block.first_tile, K::KEYS);
            while left > 0 && !shown.some {
                let tile = (look.tile, K::QUERIES);
                shown = order.block.shown(p, key_tile, tile, look.head);
                left -= 1;
                if !shown.some {
                    look = walk.next_of_head(&look);
                }
            }
            if !is_sent && (at_shown.some || !shown.some) {
                if !at_shown.some {
                    KeyOrder::write_no_steps(letter);
                }
                let turn = progress.orders.in_step();
                self.orders.end(&mut progress.orders);
                self.bring_keys(p, maps, &turn, letter);
                is_sent = true;
            }
            if at_shown.some {
                let is_last = !shown.some;
                if is_last {
                    queue.ask();
                }
                let tile = VisitedTile { tile: at.tile, is_last, shows_all: at_shown.all };
                self.queries.acquire(&progress.stages);
                self.write_visited(&progress.stages, VisitedStep { tile, head: at.head });
                order.block.key_head = 0;
                // The repairer, who learns of a step with its queries, looks at all of them.
                let raw = p.cu_seqlens_q != 0;
                self.bring_queries(p, maps, &mut progress.stages, &order, &at, raw);
            }
            if !shown.some {
                return;
            }
            (at, at_shown) = (look, shown);
            look = walk.next_of_head(&look);
        }
    }

    /// Requests keys and values.
    #[inline(always)]
    unsafe fn bring_keys(
        &self,
        p: &BackwardParams,
        maps: &Maps,
        turn: &Cursor<Count<1>>,
        letter: Letter,
    ) {
        let order = &KeyOrder::read(letter, p, K::KEYS);
        let block = &order.block;
        let raw = repairs_keys(p, order);
        let (key_full, value_full) = if raw {
            (self.raw_key(), self.raw_value())
        } else {
            (self.keys.full(0), self.values.full(0))
        };
        let row = block.sequence.first_key + (block.first_tile * K::KEYS) as i32;
        let place = Place::of_rows(row, block.key_head, block.sequence.batch);
        self.keys.acquire(turn);
        mbarrier::arrive_expect(key_full, Self::KEY_BYTES);
        self.key.request(maps.k, &place, key_full);
        self.values.acquire(turn);
        mbarrier::arrive_expect(value_full, Self::KEY_BYTES);
        self.value.request(maps.v, &place, value_full);
    }

    /// Requests what a step needs, with a head of all: `raw` if it waits for repair.
    #[inline(always)]
    unsafe fn bring_queries(
        &self,
        p: &BackwardParams,
        maps: &Maps,
        stages: &mut Cursor<QueryStages<K>>,
        order: &KeyOrder,
        at: &Step,
        raw: bool,
    ) {
        let block = &order.block;
        let source = block.source::<2>(p, at, K::QUERIES, E::NARROW);
        let row = block.sequence.first_query + at.tile * K::QUERIES as i32;
        let place = Place::of_rows(row, at.head, block.sequence.batch);
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
    }

    /// The repairer, one warp: zeroes rows past the end of a packed sequence.
    #[inline(always)]
    unsafe fn repair(&self, p: &BackwardParams, lane: u32) {
        let mut orders = Cursor::start();
        let (mut key_parity, mut query_parities, mut d_o_parities) = (0, 0, 0);
        let mut stages = Cursor::<QueryStages<K>>::start();
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
            let order = KeyOrder::read(letter, p, K::KEYS);
            self.orders.discard(&mut orders, lane);
            let KeyOrder { block, walk, .. } = order;
            let mut at = walk.start();
            let mut is_first = true;
            while at.step < walk.steps {
                let stage = stages.stage();
                let raw = Self::skips_steps() || repairs_queries(p, &order, &at, K::QUERIES);
                let raw_keys = is_first && repairs_keys(p, &order);
                is_first = false;
                let key_rows =
                    (block.sequence.visible.key_rows - (block.first_tile * K::KEYS) as i32) as u32;
                if raw {
                    mbarrier::wait(self.raw_query(stage), query_parities >> stage & 1);
                    query_parities ^= 1 << stage;
                    if Self::skips_steps() {
                        at = self.visited(&stages).step(walk.steps);
                    }
                }
                let rows = (block.sequence.query_rows - at.tile * K::QUERIES as i32) as u32;
                let rows = if rows < K::QUERIES { rows } else { K::QUERIES };
                if raw {
                    self.query(stage).clear_rows(lane, rows);
                    repaired(self.queries.full(stage));
                }
                if raw_keys {
                    mbarrier::wait(self.raw_key(), key_parity);
                    self.key.clear_rows(lane, key_rows);
                    repaired(self.keys.full(0));
                }
                if raw {
                    let stage = stages.in_step::<OutputGradientStages<K>>().stage();
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
