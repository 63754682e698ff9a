//! The forward for Hopper: `o = softmax(scale q k^T) v`, lse (SEMANTICS section 1), at the rate of its
//! tensor cores.
//!
//! A block stays on its multiprocessor and takes query tiles until there are none left. One thread has the
//! tensor memory accelerator bring tiles; each of two or three warpgroups computes 64 query rows. Products
//! run beside the softmax: while a warpgroup turns scores into probabilities, its tensor core multiplies
//! the probabilities of the tile before with their values.
//!
//! ```text
//! s = q k(last)^T
//! for each query tile:
//!     p = softmax(s)
//!     for the other key tiles, last to first:
//!         start s = q k^T             start o += p v(the tile before)
//!         wait for s;  wait for o;    p = softmax(s), and correct o if the reference moved
//!     start s = q' k'(last)^T of the next query tile, and o += p v(first)
//!     wait for both;  o = o / sum,  lse = ln(sum) + r
//! ```
//!
//! What lies outside of a tensor arrives as zeros. In packed sequences the rows after a sequence's end are
//! those of the next one: one warp, the repairer, overwrites them with zeros before anybody uses the tile
//! (queries, so that they have no say in when the reference moves; values, since 0 x NaN is NaN; keys need
//! none of it, their scores are replaced). It also multiplies q by the sign of the scale.

mod helpers;
mod room;

use crate::abi::{
    ForwardHopperParams, ForwardParams, forward_sm90a_key_stages, forward_sm90a_query_stages,
    panel_columns,
};
use crate::arch::{bulk_copy, thread, warp};
use crate::attention::mask;
use crate::attention::query_block::QueryBlock;
use crate::attention::scale::Scale;
use crate::attention::softmax::OnlineSoftmax;
use crate::attention::work_order::ReceivedOrder;
use crate::geometry::visible::TileRange;
use crate::pipeline::mailbox::MessageCursor;
use crate::pipeline::roles::{Helper, Recruit, Turns};
use crate::pipeline::stages::Cursor;
use crate::tile::element::{self, TensorCoreElement};
use crate::tile::fragment::{Fragment, MmaFragment};
use crate::tile::store;
use crate::tile::warpgroup::{Queries, Wait, WarpgroupElement};
use helpers::Maps;
use room::{Room, may_need_repair, query_registers};

impl<
    const QUERIES: u32,
    const KEYS: u32,
    const ROW_BYTES: u32,
    const WARPGROUPS: u32,
    const QUERY_STAGES: u32,
    const STAGES: u32,
> Room<QUERIES, KEYS, ROW_BYTES, WARPGROUPS, QUERY_STAGES, STAGES>
{
    /// A warp of a computing warpgroup. Registers per thread: `A` of queries (0: they stay in shared
    /// memory), `S` of scores, `P` of packed probabilities, `O` of output.
    #[inline(always)]
    unsafe fn consume<E, const A: usize, const S: usize, const P: usize, const O: usize>(
        &self,
        p: &ForwardHopperParams,
        warpgroup: u32,
    ) where
        E: WarpgroupElement<A, S, P, O>,
        [f32; S]: Wait,
        [f32; O]: Wait,
    {
        let p = &p.forward;
        let lane = thread::thread_idx_x() % 32;
        // Lane and first row of the warp, worked out anew: registers are for the loop below.
        let place = || {
            let thread = thread::thread_idx_x_here();
            (thread % 32, 64 * warpgroup + thread / 32 % 4 * 16)
        };
        let scale = Scale::new(p.scale);
        let mut orders = Cursor::start();
        let mut queries: Cursor<QUERY_STAGES> = Cursor::start();
        let (mut keys, mut values) = (Cursor::<STAGES>::start(), Cursor::<STAGES>::start());
        let turns = Turns::<WARPGROUPS>::begin(warpgroup);
        // Rows of this warpgroup and those before it.
        let rows = 64 * (warpgroup + 1);
        let load = |stage: u32| {
            let (lane, row) = place();
            let tile = self.query(warp::uniform(stage));
            Queries::<A>::load(lane, tile, row, tile.descriptor(64 * warpgroup))
        };
        // The assembler finds out by itself that stages are uniform in the loop that looks ahead, and not in
        // the other one; telling it where it knows costs 2 %.
        let stage = |stage: u32| if Self::LOOKS_AHEAD { stage } else { warp::uniform(stage) };
        let key = |index: u32| self.key(stage(index)).descriptor(0);
        let value = |index: u32| self.value(stage(index)).descriptor(0);

        let mut more = self.next_order::<E, O>(p, &mut orders, place);
        if !more {
            return;
        }
        self.queries.wait(&queries);
        let mut q = load(queries.stage());
        if Self::PASSES_UNSEEN {
            let order = ReceivedOrder(self.orders.letter(&orders));
            self.keys.pass(&mut keys, order.unseen_tiles(p, rows, KEYS), lane == 0);
        }
        self.keys.wait(&keys);
        let mut scores = E::start_scores::<QUERIES>(&q, key(keys.stage()));
        self.release_loaded_queries::<A>(&queries, lane == 0);
        scores.wait::<0>();
        if lane == 0 {
            self.keys.release(&keys);
        }
        keys.advance();
        loop {
            let order = ReceivedOrder(self.orders.letter(&orders));
            let tiles = order.tiles();
            let hide = |scores: &mut [f32; S], tile: i32, tiles: &TileRange| {
                if tile < tiles.full_begin || tile >= tiles.full_end {
                    let block = order.block(p);
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
            let mut softmax = OnlineSoftmax::<2>::new(p.output_f32 != 0);
            let mut tile = tiles.end - 1;
            let mut unseen = 0;
            if Self::PASSES_UNSEEN {
                unseen = order.unseen_tiles(p, rows, KEYS);
                tile -= unseen as i32;
            }
            hide(&mut scores, tile, &tiles);
            let (mut probabilities, _) =
                softmax.probabilities_anew::<MmaFragment, E, S, P>(&scores, scale.log2);

            if Self::PASSES_UNSEEN {
                self.values.pass(&mut values, unseen, lane == 0);
            }
            let mut first_tile = tiles.begin;
            while tile > first_tile {
                tile -= 1;
                self.keys.wait(&keys);
                turns.wait();
                scores = E::start_scores::<QUERIES>(&q, key(keys.stage()));
                self.values.wait(&values);
                E::start_output(&mut output, &probabilities, value(values.stage()));
                turns.pass();

                let tiles = order.tiles();
                first_tile = tiles.begin;
                scores.wait::<1>();
                if lane == 0 {
                    self.keys.release(&keys);
                }
                keys.advance();
                hide(&mut scores, tile, &tiles);

                output.wait::<0>();
                if lane == 0 {
                    self.values.release(&values);
                }
                values.advance();
                let correction;
                (probabilities, correction) =
                    softmax.probabilities::<MmaFragment, E, S, P>(&scores, scale.log2);
                correction.apply::<MmaFragment, O>(&mut output);
            }
            self.release_shared_queries::<A>(&queries, lane == 0);
            queries.advance();
            let block = order.block(p);
            self.orders.discard(&mut orders, lane);

            if Self::LOOKS_AHEAD {
                more = self.next_order::<E, O>(p, &mut orders, place);
                if more {
                    self.queries.wait(&queries);
                    q = load(queries.stage());
                    if Self::PASSES_UNSEEN {
                        let order = ReceivedOrder(self.orders.letter(&orders));
                        self.keys.pass(&mut keys, order.unseen_tiles(p, rows, KEYS), lane == 0);
                    }
                    self.keys.wait(&keys);
                }
                turns.wait();
                // Without a next query tile: any product, of no consequence, of a key tile that is still
                // there. A branch around it would make the assembler wait for each product.
                let stage = if more { keys.stage() } else { 0 };
                scores = E::start_scores::<QUERIES>(&q, key(stage));
                self.values.wait(&values);
                E::start_output(&mut output, &probabilities, value(values.stage()));
                turns.pass();
                self.release_loaded_queries::<A>(&queries, lane == 0 && more);
            } else {
                self.values.wait(&values);
                E::start_output(&mut output, &probabilities, value(values.stage()));
            }
            let (lane, row) = place();
            let (normalisation, lse) = softmax.close::<MmaFragment, O>(&scale, |half| {
                block.is_dead(row + <MmaFragment as Fragment<2, O>>::row(lane, half))
            });
            let mut half = 0;
            while half < 2 {
                if lane % 4 == 0 {
                    let row = row + <MmaFragment as Fragment<2, O>>::row(lane, half);
                    block.store_lse(p, row, lse[half]);
                }
                half += 1;
            }
            output.wait::<0>();
            if lane == 0 {
                self.values.release(&values);
            }
            values.advance();
            if Self::LOOKS_AHEAD {
                scores.wait::<0>();
                if lane == 0 && more {
                    self.keys.release(&keys);
                }
                keys.advance();
            }
            normalisation.apply::<MmaFragment, O>(&mut output);
            if p.output_f32 != 0 {
                store::store_pairs::<E, O, true>(lane, &output, row, 0, &block.o::<4>(p), true);
            } else if p.value_dim % 8 != 0 {
                store::store_pairs::<E, O, true>(lane, &output, row, 0, &block.o::<2>(p), false);
            } else {
                store::store_exchanged::<E, O>(lane, &output, row, &block.o::<2>(p));
            }
            if !Self::LOOKS_AHEAD {
                more = self.next_order::<E, O>(p, &mut orders, place);
            }
            if !more {
                break;
            }
            if !Self::LOOKS_AHEAD {
                self.queries.wait(&queries);
                q = load(queries.stage());
                self.keys.wait(&keys);
                scores = E::start_scores::<QUERIES>(&q, key(keys.stage()));
                scores.wait::<0>();
                if lane == 0 {
                    self.keys.release(&keys);
                }
                keys.advance();
            }
        }
    }

    /// Releases the query tile where it was moved to registers, for the warp if `by_this_lane`.
    ///
    /// After the first product with these registers was started, and behind a fence: the next tile comes
    /// through the async proxy, for which an arrival alone does not order the reads before it.
    #[inline(always)]
    unsafe fn release_loaded_queries<const A: usize>(
        &self,
        queries: &Cursor<QUERY_STAGES>,
        by_this_lane: bool,
    ) {
        if !Queries::<A>::SHARED {
            bulk_copy::fence();
            warp::warp_sync();
            if by_this_lane {
                self.queries.release(queries);
            }
        }
    }

    /// Releases the query tile where it stays in shared memory, after its last use.
    #[inline(always)]
    unsafe fn release_shared_queries<const A: usize>(
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

    /// Waits for the next order with a key tile; orders without one are carried out here. False at the end.
    #[inline(always)]
    unsafe fn next_order<E: TensorCoreElement, const O: usize>(
        &self,
        p: &ForwardParams,
        orders: &mut MessageCursor,
        place: impl Fn() -> (u32, u32),
    ) -> bool {
        loop {
            let order = ReceivedOrder(self.orders.wait(orders));
            if order.is_end() {
                return false;
            }
            let tiles = order.tiles();
            if tiles.begin < tiles.end {
                return true;
            }
            let (lane, row) = place();
            self.write_dead::<E, O>(p, &order.block(p), lane, row);
            self.orders.discard(orders, lane);
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
    const QUERY_STAGES: u32,
    const STAGES: u32,
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
    let room = Room::<QUERIES, KEYS, ROW_BYTES, WARPGROUPS, QUERY_STAGES, STAGES>::new();
    room.open(&p.forward);
    let warp = Recruit::<WARPGROUPS>::new();
    if warp.helps() {
        let helper =
            if WARPGROUPS == 2 { warp.become_helper::<40>() } else { warp.become_helper::<32>() };
        match helper {
            Helper::Producer => room.produce(p, &maps, thread::thread_idx_x() % 32),
            Helper::Repairer if may_need_repair(&p.forward) => {
                room.repair::<E>(p, thread::thread_idx_x() % 32)
            }
            _ => {}
        }
    } else {
        let warpgroup =
            if WARPGROUPS == 2 { warp.become_consumer::<232>() } else { warp.become_consumer::<160>() };
        room.consume::<E, A, S, P, O>(p, warpgroup);
    }
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
                let maps = Maps { q: first, k: first + 128, v: first + 256 };
                forward::<
                    element::$dtype, $queries, $keys, { panel_columns($dim) * 2 }, $warpgroups,
                    { forward_sm90a_query_stages($dim) }, { forward_sm90a_key_stages($dim) },
                    { query_registers($dim) }, { $keys / 2 }, { $keys / 4 }, { $dim / 2 },
                >(&p, maps);
            }
        )*
    };
}
crate::for_each_forward_sm90a!(entries);
