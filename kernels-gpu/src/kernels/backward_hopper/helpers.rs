//! The first warpgroup of the Hopper backward: one thread brings tiles, one adds dQ to its accumulator, and
//! one warp repairs tiles at the ends of packed sequences.

use super::room::{KEYS, Room};
use crate::abi::BackwardParams;
use crate::arch::{bulk_copy, mbarrier, warp};
use crate::attention::key_block::{KeyBlock, Step, Walk};
use crate::pipeline::stages::Cursor;
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

/// What a block works on.
#[derive(Clone, Copy)]
pub(super) struct Work<'p> {
    pub p: &'p BackwardParams,
    pub block: KeyBlock,
    pub walk: Walk,
}

impl Work<'_> {
    #[inline(always)]
    pub fn first_key(&self) -> i32 {
        (self.block.first_tile * KEYS) as i32
    }

    #[inline(always)]
    fn is_packed(&self) -> bool {
        self.p.cu_seqlens_q != 0
    }

    /// Whether rows of the next sequence come with the keys.
    #[inline(always)]
    fn repairs_keys(&self) -> bool {
        self.is_packed() && self.walk.ragged
    }

    /// Whether rows of the next sequence come with the queries of a step.
    #[inline(always)]
    fn repairs_queries(&self, at: &Step, queries: u32) -> bool {
        self.is_packed() && (at.tile + 1) * queries as i32 > self.block.sequence.query_rows
    }
}

impl<const QUERIES: u32, const ROW_BYTES: u32> Room<QUERIES, ROW_BYTES> {
    /// The producer, one thread: requests what the steps need, in the order in which they need it.
    #[inline(always)]
    pub unsafe fn produce<E: TensorCoreElement>(&self, work: &Work<'_>, maps: &Maps) {
        let Work { p, block, walk } = work;
        let sequence = &block.sequence;
        let keys = Place {
            row: sequence.first_key + work.first_key(),
            head: block.key_head,
            batch: sequence.batch,
        };
        let mut stages = Cursor::start();
        let mut at = walk.start();
        while at.step < walk.steps {
            let source = block.source::<2>(p, &at, QUERIES, E::NARROW);
            let place = Place {
                row: sequence.first_query + at.tile * QUERIES as i32,
                head: block.key_head * p.group_size + at.head,
                batch: sequence.batch,
            };
            let raw = work.repairs_queries(&at, QUERIES);
            let stage = stages.stage();
            self.queries.acquire(&stages);
            let barrier = if raw { self.raw_query(stage) } else { self.queries.full(stage) };
            mbarrier::arrive_expect(barrier, Self::QUERY_BYTES + Self::STATISTIC_BYTES);
            self.query(stage).request(maps.q, &place, barrier);
            bulk_copy::load_bytes(self.lse(stage), source.lse, Self::STATISTIC_BYTES, barrier);
            if at.step == 0 {
                let barrier = if work.repairs_keys() { self.raw_key() } else { self.key_full() };
                mbarrier::arrive_expect(barrier, Self::KEY_BYTES);
                self.key.request(maps.k, &keys, barrier);
            }

            self.d_os.acquire(&stages);
            let barrier = if raw { self.raw_d_o(stage) } else { self.d_os.full(stage) };
            let statistics = if E::NARROW { 2 } else { 1 } * Self::STATISTIC_BYTES;
            mbarrier::arrive_expect(barrier, Self::QUERY_BYTES + statistics);
            self.d_o(stage).request(maps.d_o, &place, barrier);
            bulk_copy::load_bytes(self.delta(stage), source.delta, Self::STATISTIC_BYTES, barrier);
            if E::NARROW {
                bulk_copy::load_bytes(self.norm(stage), source.norm, Self::STATISTIC_BYTES, barrier);
            }
            if at.step == 0 {
                let barrier = if work.repairs_keys() { self.raw_value() } else { self.value_full() };
                mbarrier::arrive_expect(barrier, Self::KEY_BYTES);
                self.value.request(maps.v, &keys, barrier);
            }
            stages.advance();
            at = walk.next(&at);
        }
    }

    /// The writer, one thread: adds each tile of dQ to the accumulator, a half per warpgroup.
    #[inline(always)]
    pub unsafe fn write_dq(&self, work: &Work<'_>) {
        let (first, second) = (self.dq_stage(0), self.dq_stage(1));
        let mut turns = Cursor::start();
        let mut at = work.walk.start();
        while at.step < work.walk.steps {
            let target = work.block.dq_accumulator(work.p, &at, QUERIES);
            first.wait(&turns);
            bulk_copy::add_f32(target, self.dq(0), Self::DQ_BYTES);
            bulk_copy::commit();
            second.wait(&turns);
            bulk_copy::add_f32(target.wrapping_add(Self::DQ_BYTES as u64), self.dq(1), Self::DQ_BYTES);
            bulk_copy::commit();
            bulk_copy::wait_read::<1>();
            first.release(&turns);
            bulk_copy::wait_read::<0>();
            second.release(&turns);
            turns.advance();
            at = work.walk.next(&at);
        }
        bulk_copy::wait_written::<0>();
    }

    /// The repairer, one warp: zeroes rows past the end of the sequence.
    #[inline(always)]
    pub unsafe fn repair(&self, work: &Work<'_>, lane: u32) {
        let Work { block, walk, .. } = work;
        if !work.is_packed() || walk.steps == 0 {
            return;
        }
        let repaired = |barrier: u32| {
            bulk_copy::fence();
            warp::warp_sync();
            if lane == 0 {
                mbarrier::arrive(barrier);
            }
        };
        if work.repairs_keys() {
            let rows = (block.sequence.visible.key_rows - work.first_key()) as u32;
            mbarrier::wait(self.raw_key(), 0);
            self.key.clear_rows(lane, rows);
            repaired(self.key_full());
            mbarrier::wait(self.raw_value(), 0);
            self.value.clear_rows(lane, rows);
            repaired(self.value_full());
        }
        let mut parities = 0;
        let mut at = walk.start();
        while at.step < walk.steps {
            if work.repairs_queries(&at, QUERIES) {
                let stage = at.step % super::room::STAGES;
                let parity = parities >> stage & 1;
                parities ^= 1 << stage;
                let rows = (block.sequence.query_rows - at.tile * QUERIES as i32) as u32;
                mbarrier::wait(self.raw_query(stage), parity);
                self.query(stage).clear_rows(lane, rows);
                repaired(self.queries.full(stage));
                mbarrier::wait(self.raw_d_o(stage), parity);
                self.d_o(stage).clear_rows(lane, rows);
                repaired(self.d_os.full(stage));
            }
            at = walk.next(&at);
        }
    }
}
