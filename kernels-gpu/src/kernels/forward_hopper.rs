//! The forward for Hopper: `o = softmax(scale q k^T) v`, lse (SEMANTICS section 1), at the rate of its
//! tensor cores.
//!
//! A block stays on its multiprocessor and takes query tiles until there are none left. One thread has the
//! tensor memory accelerator bring tiles; each of two or three warpgroups computes 64 query rows. Products
//! run beside the softmax: while a warpgroup turns scores into probabilities, its tensor core multiplies
//! the probabilities of the tile before with their values.
//!
//! ```text
//! s = q k(last)^T;  p = softmax(s)
//! for the other key tiles, last to first:
//!     start s' = q k^T      start o += p v(the tile before)
//!     wait for s', p' = softmax(s')
//!     wait for o,  o corrected if the reference moved;  p = p'
//! o += p v(first);  o = o / sum,  lse = ln(sum) + r
//! ```
//!
//! What lies outside of a tensor arrives as zeros. In packed sequences the rows after a sequence's end are
//! those of the next one: one warp, the repairer, overwrites them with zeros before anybody uses the tile
//! (queries, so that they have no say in when the reference moves; values, since 0 x NaN is NaN; keys need
//! none of it, their scores are replaced). It also multiplies q by the sign of the scale.

use crate::abi::{ForwardHopperParams, ForwardParams, forward_sm90a_reuses_query_tile};
use crate::arch::{bulk_copy, math, mbarrier, shared, thread, warp};
use crate::arch::barrier::block_sync;
use crate::attention::mask;
use crate::attention::query_block::{QueryBlock, schedule};
use crate::attention::scale::Scale;
use crate::attention::softmax::OnlineSoftmax;
use crate::attention::work_order::{ReceivedOrder, WorkOrder};
use crate::geometry::descriptor;
use crate::geometry::visible::TileRange;
use crate::pipeline::mailbox::Mailbox;
use crate::pipeline::roles::{Helper, Recruit, Turns, WarpgroupBarrier};
use crate::pipeline::stages::{BARRIER_BYTES, Cursor, Stages};
use crate::pipeline::tile_queue::TileQueue;
use crate::tile::bulk::Place;
use crate::tile::element::{self, TensorCoreElement};
use crate::tile::fragment::{Fragment, MmaFragment};
use crate::tile::shared_tile::SharedTile;
use crate::tile::store;
use crate::tile::warpgroup::{Queries, Wait, WarpgroupElement};

/// Key tiles, and value tiles, on their way or in use.
const STAGES: u32 = 2;

/// Addresses of the four tensor maps.
#[derive(Clone, Copy)]
struct Maps {
    q: u64,
    k: u64,
    v: u64,
    o: u64,
}

/// The block's shared memory, and the barriers in it.
#[derive(Clone, Copy)]
struct Room<const QUERIES: u32, const KEYS: u32, const ROW_BYTES: u32, const WARPGROUPS: u32> {
    q: SharedTile<QUERIES, ROW_BYTES>,
    o: SharedTile<QUERIES, ROW_BYTES>,
    first_key: SharedTile<KEYS, ROW_BYTES>,
    first_value: SharedTile<KEYS, ROW_BYTES>,
    queries: Stages<1>,
    keys: Stages<STAGES>,
    values: Stages<STAGES>,
    /// Tiles that arrived and wait for repair: the query tile, and the value stages.
    raw_queries: u32,
    raw_values: u32,
    orders: Mailbox,
}

impl<const QUERIES: u32, const KEYS: u32, const ROW_BYTES: u32, const WARPGROUPS: u32>
    Room<QUERIES, KEYS, ROW_BYTES, WARPGROUPS>
{
    const REUSES_QUERY_TILE: bool = forward_sm90a_reuses_query_tile(ROW_BYTES / 2);
    const Q_BYTES: u32 = SharedTile::<QUERIES, ROW_BYTES>::BYTES;
    const KEY_BYTES: u32 = SharedTile::<KEYS, ROW_BYTES>::BYTES;

    #[inline(always)]
    fn new() -> Self {
        let q = shared::dynamic_base();
        let k = q + Self::Q_BYTES;
        let v = k + STAGES * Self::KEY_BYTES;
        let after = v + STAGES * Self::KEY_BYTES;
        let (o, control) =
            if Self::REUSES_QUERY_TILE { (q, after) } else { (after, after + Self::Q_BYTES) };
        let queries = control + Mailbox::BYTES;
        let keys = queries + Stages::<1>::BYTES;
        let values = keys + Stages::<STAGES>::BYTES;
        let raw_queries = values + Stages::<STAGES>::BYTES;
        Room {
            q: SharedTile { address: q },
            o: SharedTile { address: o },
            first_key: SharedTile { address: k },
            first_value: SharedTile { address: v },
            queries: Stages::new(queries),
            keys: Stages::new(keys),
            values: Stages::new(values),
            raw_queries,
            raw_values: raw_queries + BARRIER_BYTES,
            orders: Mailbox::new(control),
        }
    }

    /// Makes all barriers; all threads meet.
    #[inline(always)]
    unsafe fn open(&self, p: &ForwardParams) {
        if thread::thread_idx_x() == 0 {
            self.queries.init(1, if Self::REUSES_QUERY_TILE { WARPGROUPS } else { 4 * WARPGROUPS });
            self.keys.init(1, 4 * WARPGROUPS);
            self.values.init(1, 4 * WARPGROUPS);
            mbarrier::init(self.raw_queries, 1);
            let mut stage = 0;
            while stage < STAGES {
                mbarrier::init(self.raw_value(stage), 1);
                stage += 1;
            }
            self.orders.init(4 * WARPGROUPS + may_need_repair(p) as u32);
            mbarrier::fence_init();
        }
        block_sync();
    }

    #[inline(always)]
    fn raw_value(&self, stage: u32) -> u32 {
        self.raw_values + stage * BARRIER_BYTES
    }

    #[inline(always)]
    fn key(&self, stage: u32) -> SharedTile<KEYS, ROW_BYTES> {
        SharedTile { address: self.first_key.address + stage * Self::KEY_BYTES }
    }

    #[inline(always)]
    fn value(&self, stage: u32) -> SharedTile<KEYS, ROW_BYTES> {
        SharedTile { address: self.first_value.address + stage * Self::KEY_BYTES }
    }

    /// The producer: takes query tiles, tells the others, and requests what they need, in the order in which
    /// they need it. One thread.
    #[inline(always)]
    unsafe fn produce(&self, p: &ForwardHopperParams, maps: &Maps) {
        let p_forward = &p.forward;
        let schedule = schedule(p_forward, QUERIES);
        let mut queue = TileQueue::new(p.counter, schedule.count());
        let (mut orders, mut queries) = (Cursor::start(), Cursor::start());
        let (mut keys, mut values) = (Cursor::start(), Cursor::start());
        let packed = p_forward.cu_seqlens_q != 0;
        let flips = !(p_forward.scale > 0.0);
        while let Some(tile) = queue.take() {
            let block = QueryBlock::new(p_forward, QUERIES, schedule.work(tile, math::divide));
            if block.is_empty() {
                continue;
            }
            let tiles = block.key_tiles(QUERIES, KEYS);
            let any = tiles.begin < tiles.end;
            let sequence = &block.sequence;
            let ragged = !block.has_row(QUERIES - 1);
            let last_end = tiles.end * KEYS as i32;
            let order = WorkOrder {
                block,
                tiles,
                repairs_queries: any && (flips || packed && ragged),
                repairs_values: any && packed && last_end > sequence.visible.key_rows,
                value_stage: values.stage,
            };
            self.orders.send(&mut orders, order.message());
            if !any {
                continue;
            }
            let row = sequence.first_query + block.first_row;
            self.queries.acquire(&queries);
            let barrier =
                if order.repairs_queries { self.raw_queries } else { self.queries.full(0) };
            mbarrier::arrive_expect(barrier, Self::Q_BYTES);
            self.q.request(maps.q, &Place { row, head: block.head, batch: sequence.batch }, barrier);
            queries.advance();

            let place = |tile: i32| Place {
                row: sequence.first_key + tile * KEYS as i32,
                head: block.key_head,
                batch: sequence.batch,
            };
            let mut raw = order.repairs_values;
            let mut tile = tiles.end;
            while tile >= tiles.begin {
                // Keys are one tile ahead of values.
                if tile > tiles.begin {
                    self.keys.acquire(&keys);
                    let barrier = self.keys.full(keys.stage);
                    mbarrier::arrive_expect(barrier, Self::KEY_BYTES);
                    self.key(keys.stage).request(maps.k, &place(tile - 1), barrier);
                    keys.advance();
                }
                if tile < tiles.end {
                    self.values.acquire(&values);
                    let stage = values.stage;
                    let barrier = if raw { self.raw_value(stage) } else { self.values.full(stage) };
                    raw = false;
                    mbarrier::arrive_expect(barrier, Self::KEY_BYTES);
                    self.value(stage).request(maps.v, &place(tile), barrier);
                    values.advance();
                }
                tile -= 1;
            }
        }
        self.orders.send(&mut orders, WorkOrder::END);
        queue.finish();
    }

    /// The repairer: one warp.
    #[inline(always)]
    unsafe fn repair<E: TensorCoreElement>(&self, p: &ForwardHopperParams, lane: u32) {
        let factor = Scale::new(p.forward.scale).q_factor;
        let mut orders = Cursor::start();
        let (mut query_parity, mut value_parities) = (0, 0);
        loop {
            let order = ReceivedOrder(self.orders.wait(&orders));
            if order.is_end() {
                break;
            }
            let (queries, values, stage) = order.repairs();
            let block = order.block(&p.forward);
            let last_tile = order.tiles().end - 1;
            self.orders.discard(&mut orders, lane);
            if queries {
                mbarrier::wait(self.raw_queries, query_parity);
                query_parity ^= 1;
                self.q.clear_rows(lane, (block.sequence.query_rows - block.first_row) as u32);
                warp::warp_sync();
                if factor != 1.0 {
                    self.q.scale_rows::<E, QUERIES>(lane, 0, factor);
                }
                bulk_copy::fence();
                warp::warp_sync();
                if lane == 0 {
                    self.queries.fill(&Cursor::start());
                }
            }
            if values {
                mbarrier::wait(self.raw_value(stage), value_parities >> stage & 1);
                value_parities ^= 1 << stage;
                let rows = block.sequence.visible.key_rows - last_tile * KEYS as i32;
                self.value(stage).clear_rows(lane, rows as u32);
                bulk_copy::fence();
                warp::warp_sync();
                if lane == 0 {
                    mbarrier::arrive(self.values.full(stage));
                }
            }
        }
    }

    /// A warp of a computing warpgroup. Registers per thread: `A` of queries (0: they stay in shared
    /// memory), `S` of scores, `P` of packed probabilities, `O` of output.
    #[inline(always)]
    unsafe fn consume<E, const A: usize, const S: usize, const P: usize, const O: usize>(
        &self,
        p: &ForwardHopperParams,
        maps: &Maps,
        warpgroup: u32,
    ) where
        E: WarpgroupElement<A, S, P, O>,
        [f32; S]: Wait,
        [f32; O]: Wait,
    {
        let p_forward = &p.forward;
        let lane = thread::thread_idx_x() % 32;
        let first_row = 64 * warpgroup;
        // Lane and first row of the warp, worked out anew: registers are for the loop below.
        let place = || {
            let thread = thread::thread_idx_x_here();
            (thread % 32, first_row + thread / 32 % 4 * 16)
        };
        let leads = thread::thread_idx_x() / 32 % 4 == 0 && warp::elect();
        let team = WarpgroupBarrier::new(warpgroup);
        let scale = Scale::new(p_forward.scale);
        let (first_key, first_value) = (self.first_key.descriptor(0), self.first_value.descriptor(0));
        let step = descriptor::step(Self::KEY_BYTES) as u32;
        let (mut orders, mut queries) = (Cursor::start(), Cursor::start());
        let (mut keys, mut values) = (Cursor::start(), Cursor::start());
        let turns = Turns::<WARPGROUPS>::begin(warpgroup);

        loop {
            let order = ReceivedOrder(self.orders.wait(&orders));
            if order.is_end() {
                break;
            }
            let tiles = order.tiles();
            if tiles.begin == tiles.end {
                let (lane, row) = place();
                self.write_dead::<E, O>(p_forward, &order.block(p_forward), lane, row);
                self.orders.discard(&mut orders, lane);
                continue;
            }
            let hide = |scores: &mut [f32; S], tile: i32, tiles: &TileRange| {
                if tile < tiles.full_begin || tile >= tiles.full_end {
                    let block = order.block(p_forward);
                    let (lane, row) = place();
                    mask::hide::<MmaFragment, 2, S>(
                        lane,
                        scores,
                        &block.sequence.visible,
                        block.first_row + row as i32,
                        tile * KEYS as i32,
                        block.sequence.query_rows,
                    );
                }
            };
            let mut output = [0.0; O];
            let mut softmax = OnlineSoftmax::<2>::new(p_forward.output_f32 != 0);
            self.queries.wait(&queries);
            let (here, row) = place();
            let q = Queries::<A>::load(here, self.q, warpgroup, row);
            if !Queries::<A>::SHARED {
                warp::warp_sync();
                if lane == 0 {
                    self.queries.release(&queries);
                }
            }
            let mut tile = tiles.end - 1;
            self.keys.wait(&keys);
            let k = first_key + (warp::uniform(keys.stage) * step) as u64;
            let mut scores = E::start_scores::<QUERIES>(&q, k);
            scores.wait::<0>();
            if lane == 0 {
                self.keys.release(&keys);
            }
            keys.advance();
            hide(&mut scores, tile, &tiles);
            softmax.follow::<MmaFragment, S>(&scores, scale.log2);
            let mut probabilities: [u32; P] =
                softmax.probabilities::<MmaFragment, E, S, P>(&mut scores, scale.log2);

            let mut first_tile = tiles.begin;
            while tile > first_tile {
                tile -= 1;
                self.keys.wait(&keys);
                turns.wait();
                let k = first_key + (warp::uniform(keys.stage) * step) as u64;
                let mut scores = E::start_scores::<QUERIES>(&q, k);
                self.values.wait(&values);
                let v = first_value + (warp::uniform(values.stage) * step) as u64;
                E::start_output(&mut output, &probabilities, v);
                turns.pass();

                let tiles = order.tiles();
                first_tile = tiles.begin;
                scores.wait::<1>();
                if lane == 0 {
                    self.keys.release(&keys);
                }
                keys.advance();
                hide(&mut scores, tile, &tiles);
                let correction = softmax.follow::<MmaFragment, S>(&scores, scale.log2);

                output.wait::<0>();
                if lane == 0 {
                    self.values.release(&values);
                }
                values.advance();
                probabilities = softmax.probabilities::<MmaFragment, E, S, P>(&mut scores, scale.log2);
                correction.apply::<MmaFragment, O>(&mut output);
            }
            if Queries::<A>::SHARED && !Self::REUSES_QUERY_TILE && lane == 0 {
                self.queries.release(&queries);
            }
            self.values.wait(&values);
            let v = first_value + (warp::uniform(values.stage) * step) as u64;
            E::start_output(&mut output, &probabilities, v);

            let (lane, row) = place();
            let block = order.block(p_forward);
            self.orders.discard(&mut orders, lane);
            let (normalisation, lse) = softmax.close::<MmaFragment, O>(&scale, |half| {
                block.is_dead(row + <MmaFragment as Fragment<2, O>>::row(lane, half))
            });
            let mut half = 0;
            while half < 2 {
                if lane % 4 == 0 {
                    let row = row + <MmaFragment as Fragment<2, O>>::row(lane, half);
                    block.store_lse(p_forward, row, lse[half]);
                }
                half += 1;
            }
            output.wait::<0>();
            if lane == 0 {
                self.values.release(&values);
            }
            values.advance();
            normalisation.apply::<MmaFragment, O>(&mut output);

            if p_forward.output_f32 != 0 {
                let target = block.o::<4>(p_forward);
                store::store_pairs::<E, O, true>(lane, &output, row, 0, &target, true);
                if Self::REUSES_QUERY_TILE {
                    team.sync();
                }
            } else {
                // The store before this one must have read the tile; over the query tile, all warps must be
                // done with their products, and the producer waits for the store instead.
                if !Self::REUSES_QUERY_TILE && leads {
                    bulk_copy::wait_read();
                }
                team.sync();
                store::stage::<E, QUERIES, ROW_BYTES, O>(lane, &output, self.o, row);
                bulk_copy::fence();
                let packed = p_forward.cu_seqlens_q != 0;
                if packed && !block.has_row(first_row + 63) {
                    // The rows that follow are another sequence's.
                    store::store_rows(lane, self.o, row, &block.o::<2>(p_forward));
                    team.sync();
                } else {
                    team.sync();
                    if leads {
                        let place = Place {
                            row: block.sequence.first_query + block.first_row + first_row as i32,
                            head: block.head,
                            batch: block.sequence.batch,
                        };
                        self.o.write_out(first_row, maps.o, &place);
                        if Self::REUSES_QUERY_TILE {
                            bulk_copy::wait_read();
                        }
                    }
                }
            }
            if Self::REUSES_QUERY_TILE && leads {
                self.queries.release(&queries);
            }
            queries.advance();
        }
        if leads {
            bulk_copy::wait_written();
        }
    }

    /// Output and lse of rows that see no key tile.
    #[inline(always)]
    unsafe fn write_dead<E: TensorCoreElement, const O: usize>(
        &self,
        p: &ForwardParams,
        block: &QueryBlock,
        lane: u32,
        row: u32,
    ) {
        let as_f32 = p.output_f32 != 0;
        let target = if as_f32 { block.o::<4>(p) } else { block.o::<2>(p) };
        store::store_pairs::<E, O, true>(lane, &[0.0; O], row, 0, &target, as_f32);
        if lane < 16 {
            block.store_lse(p, row + lane, f32::NEG_INFINITY);
        }
    }
}

/// One block of `1 + WARPGROUPS` warpgroups.
#[inline(always)]
unsafe fn forward<
    E,
    const QUERIES: u32,
    const KEYS: u32,
    const ROW_BYTES: u32,
    const WARPGROUPS: u32,
    const A: usize,
    const S: usize,
    const P: usize,
    const O: usize,
>(
    p: &ForwardHopperParams,
    maps: Maps,
) where
    E: WarpgroupElement<A, S, P, O>,
    [f32; S]: Wait,
    [f32; O]: Wait,
{
    let room = Room::<QUERIES, KEYS, ROW_BYTES, WARPGROUPS>::new();
    room.open(&p.forward);
    let warp = Recruit::<WARPGROUPS>::new();
    if warp.helps() {
        match warp.become_helper() {
            Helper::Producer => {
                if warp::elect() {
                    room.produce(p, &maps);
                }
            }
            Helper::Repairer if may_need_repair(&p.forward) => {
                room.repair::<E>(p, thread::thread_idx_x() % 32)
            }
            _ => {}
        }
    } else {
        room.consume::<E, A, S, P, O>(p, &maps, warp.become_consumer());
    }
}

/// Whether there can be any work for the repairer.
#[inline(always)]
fn may_need_repair(p: &ForwardParams) -> bool {
    p.cu_seqlens_q != 0 || !(p.scale > 0.0)
}

/// Registers of queries per thread: at head dim 128 there is room for them.
const fn query_registers(head_dim: u32) -> usize {
    if head_dim == 128 { 32 } else { 0 }
}

macro_rules! entries {
    ($(($name:ident, $dtype:ident, $dim:literal, $queries:literal, $keys:literal, $warpgroups:literal))*) => {
        $(
            /// An instance of [`forward`], chosen in [`crate::abi`].
            ///
            /// # Safety
            /// `p` is as [`ForwardHopperParams`] says, for this kernel's row of the table.
            #[unsafe(no_mangle)]
            pub unsafe extern "ptx-kernel" fn $name(p: ForwardHopperParams) {
                let first = crate::parameter_address!($name);
                let maps = Maps { q: first, k: first + 128, v: first + 256, o: first + 384 };
                forward::<
                    element::$dtype, $queries, $keys, { $dim * 2 }, $warpgroups,
                    { query_registers($dim) }, { $keys / 2 }, { $keys / 4 }, { $dim / 2 },
                >(&p, maps);
            }
        )*
    };
}
crate::for_each_forward_sm90a!(entries);
