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
//!         wait for s;  wait for o;    p = softmax(s), and rescale o if the row max moved
//!     start s = q' k'(last)^T of the next query tile, and o += p v(first)
//!     wait for both;  o = o / sum,  lse = ln(sum) + r
//! ```
//!
//! Warpgroups go past key tiles that none of their rows sees, and three of them past query tiles of which
//! they have no row. Where o has memory of its own, they start the last product with values before the scores
//! of the next query tile, and write o while these are made.
//!
//! What lies outside of a tensor arrives as zeros. In packed sequences the rows after a sequence's end are
//! those of the next one: one warp, the repairer, overwrites them with zeros before anybody uses the tile
//! (queries, so that they have no say in when the reference moves; values, since 0 x NaN is NaN; keys need
//! none of it, their scores are replaced). It also multiplies q by the sign of the scale.
//!
//! Where there are few queries, rows of a query tile are those of several heads that share keys
//! ([`crate::geometry::row_heads`]); the repairer clears those for which there is no whole query.

mod helpers;
mod orders;
mod output;
mod room;

use crate::abi::{
    ForwardHopperParams, forward_sm90a_key_and_value_stages, forward_sm90a_query_stages, panel_columns,
    tiles_split_keys,
};
use crate::arch::{barrier, bulk_copy, grid, thread, warp};
use crate::attention::query_block::is_split;
use crate::attention::score::{self, Scale};
use crate::attention::softmax::OnlineSoftmax;
use crate::attention::work_order::ReceivedOrder;
use crate::geometry::visible::TileRange;
use crate::pipeline::roles::{Helper, Recruit, Turns};
use crate::pipeline::stages::Cursor;
use crate::tile::element;
use crate::tile::fragment::{Fragment, MmaFragment};
use crate::tile::store;
use crate::tile::warpgroup::{Queries, Sum, Wait, WarpgroupElement};
use helpers::Maps;
use orders::Next;
use room::{Room, query_registers};

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
    /// A warp of a computing warpgroup. Registers per thread: `A` of queries (0: they stay in shared
    /// memory), `S` of scores, `P` of packed probabilities, `O` of output.
    #[inline(always)]
    unsafe fn consume<E, const A: usize, const S: usize, const P: usize, const O: usize>(
        &self,
        p: &ForwardHopperParams,
        o_map: u64,
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
            (thread % 32, (thread / 32 - 4) * 16)
        };
        let scale = Scale::new::<E>(p);
        let mut orders = Cursor::start();
        let mut queries: Cursor<QUERY_STAGES> = Cursor::start();
        let (mut keys, mut values) = (Cursor::<KEY_STAGES>::start(), Cursor::<VALUE_STAGES>::start());
        let turns = Turns::<WARPGROUPS>::begin(warpgroup);
        let note = self.note();
        let query_stage = |cursor: &Cursor<QUERY_STAGES>| {
            if QUERY_STAGES == 1 { 0 } else { warp::uniform(cursor.stage()) }
        };
        let load = |cursor: &Cursor<QUERY_STAGES>| {
            let (lane, row) = place();
            let tile = self.query(query_stage(cursor));
            Queries::<A>::load(lane, tile, row, tile.descriptor(64 * warpgroup))
        };
        // The assembler finds out by itself that stages are uniform in the loop that looks ahead, and not in
        // the other one; telling it where it knows costs 2 %.
        let uniform = |stage: u32| if Self::LOOKS_AHEAD { stage } else { warp::uniform(stage) };
        let key = |cursor: &Cursor<KEY_STAGES>| self.key(uniform(cursor.stage())).descriptor(0);
        let value = |cursor: &Cursor<VALUE_STAGES>| self.value(uniform(cursor.stage())).descriptor(0);

        // Waits for a query tile and for the first of its key tiles that this warpgroup sees.
        let receive =
            |order: ReceivedOrder, queries: &Cursor<QUERY_STAGES>, keys: &mut Cursor<KEY_STAGES>| {
                self.queries.wait(queries);
                let q = load(queries);
                if Self::HAS_PARTS {
                    self.find_part(p, order, warpgroup, note, lane);
                    self.keys.pass(keys, Self::unseen(order, note), lane == 0);
                }
                self.keys.wait(keys);
                q
            };

        let mut next = Next::Unknown;
        loop {
            while next != Next::Work {
                if next == Next::End {
                    return;
                }
                if next == Next::Idle {
                    self.go_past(&mut orders, &mut queries, &mut keys, &mut values, lane);
                }
                next = self.next_order::<E, O>(p, &mut orders, warpgroup, place);
            }
            let order = ReceivedOrder(self.orders.letter(&orders));
            let mut q = receive(order, &queries, &mut keys);
            let mut scores = E::start_scores::<QUERIES>(&q, key(&keys));
            self.release_loaded_queries::<A>(&queries, lane == 0);
            scores.wait::<0>();
            if lane == 0 {
                self.keys.release(&keys);
            }
            keys.advance();
            let mut output = Sum::new();
            // Whether the output of the query tile before is still being sent.
            let mut is_sending = false;
            loop {
                let order = ReceivedOrder(self.orders.letter(&orders));
                let tiles = Self::part(order, note);
                let apply = |scores: &mut [f32; S], tile: i32, tiles: &TileRange| {
                    let is_masked = tile < tiles.full_begin || tile >= tiles.full_end;
                    score::apply::<MmaFragment, 2, S>(scores, &scale, is_masked, || {
                        let (lane, row) = place();
                        let block = order.block(p, Self::TILES);
                        (lane, block.score_tile(row, tile * KEYS as i32))
                    });
                };
                output.restart();
                let mut softmax = OnlineSoftmax::<2>::new(p.is_exact());
                let mut tile = tiles.end - 1;
                apply(&mut scores, tile, &tiles);
                let (mut probabilities, _) = if Self::GUESSES_MAXIMUM {
                    softmax.first_probabilities::<MmaFragment, E, S, P>(&scores, &scale)
                } else {
                    softmax.probabilities_of_new_max::<MmaFragment, E, S, P>(&scores, &scale)
                };

                if Self::sends_output(O) && Self::KEEPS_QUERIES {
                    // Nobody waits for this now: beside the exponentials its rows have been read.
                    self.release_sent_queries(&queries.previous(), lane == 0 && is_sending);
                }
                if Self::HAS_PARTS {
                    let unseen = Self::unseen(order, note);
                    self.values.pass(&mut values, unseen, lane == 0);
                    turns.skip(unseen);
                }
                let mut first_tile = tiles.begin;
                while tile > first_tile {
                    tile -= 1;
                    self.keys.wait(&keys);
                    turns.wait();
                    scores = E::start_scores::<QUERIES>(&q, key(&keys));
                    self.values.wait(&values);
                    E::start_output(&mut output, &probabilities, value(&values));
                    turns.pass();

                    let tiles = Self::part(order, note);
                    first_tile = tiles.begin;
                    scores.wait::<1>();
                    if lane == 0 {
                        self.keys.release(&keys);
                    }
                    keys.advance();
                    apply(&mut scores, tile, &tiles);

                    output.values.wait::<0>();
                    if lane == 0 {
                        self.values.release(&values);
                    }
                    values.advance();
                    let rescale;
                    (probabilities, rescale) =
                        softmax.probabilities::<MmaFragment, E, S, P>(&scores, &scale);
                    rescale.apply::<MmaFragment, O>(&mut output.values);
                }
                if !Self::KEEPS_QUERIES {
                    self.release_shared_queries::<A>(&queries, lane == 0);
                }
                let used = queries;
                queries.advance();
                let block = order.block(p, Self::TILES);
                if Self::HAS_PARTS {
                    Self::note_left(order, first_tile, note, lane);
                }
                if Self::sends_output(O) && Self::KEEPS_OUTPUT_APART && lane == 0 {
                    // What left through the rows that this output will leave through.
                    bulk_copy::wait_read::<0>();
                }
                self.orders.discard(&mut orders, lane);

                if Self::WAITS_EARLY {
                    self.values.wait(&values);
                }
                if Self::VALUES_FIRST {
                    E::start_output(&mut output, &probabilities, value(&values));
                }
                if Self::HAS_PARTS {
                    let left = Self::left(note);
                    self.keys.pass(&mut keys, left, lane == 0);
                    turns.skip(left);
                }
                if Self::LOOKS_AHEAD {
                    next = self.next_order::<E, O>(p, &mut orders, warpgroup, place);
                    if next == Next::Work {
                        let order = ReceivedOrder(self.orders.letter(&orders));
                        q = receive(order, &queries, &mut keys);
                    }
                    turns.wait();
                    // Without a next query tile: any product, of no consequence, of a tile that nobody writes
                    // to. A branch around it would make the assembler wait for each product.
                    let tile = if next == Next::Work {
                        key(&keys)
                    } else if Self::GOES_PAST {
                        value(&values)
                    } else {
                        self.key(0).descriptor(0)
                    };
                    if next != Next::Work && !Self::KEEPS_QUERIES {
                        q.leave(tile);
                    }
                    scores = E::start_scores::<QUERIES>(&q, tile);
                }
                if !Self::WAITS_EARLY {
                    self.values.wait(&values);
                }
                if !Self::VALUES_FIRST {
                    E::start_output(&mut output, &probabilities, value(&values));
                }
                if Self::LOOKS_AHEAD {
                    turns.pass();
                    self.release_loaded_queries::<A>(&queries, lane == 0 && next == Next::Work);
                }
                let (lane, row) = place();
                let (normalisation, lse) =
                    softmax.finalize_early::<MmaFragment, O>(&scale, is_split(p, QUERIES), |half| {
                        block.is_dead(row + <MmaFragment as Fragment<2, O>>::row(lane, half))
                    });
                // Of the four lanes that share two rows, each of the first two writes one.
                let half = (lane % 4) as usize;
                if half < 2 {
                    let row = row + <MmaFragment as Fragment<2, O>>::row(lane, half);
                    let own = |of_rows: [f32; 2]| if half == 0 { of_rows[0] } else { of_rows[1] };
                    let (row_max, lse) = (own(softmax.row_max()), own(lse));
                    block.store_statistics(p, is_split(p, QUERIES), row, row_max, lse);
                }
                let target = block.o_of_heads::<2>(p).now();
                // Scores that are still on their way use one of the two tiles.
                if Self::VALUES_FIRST {
                    output.values.wait::<1>();
                } else {
                    output.values.wait::<0>();
                }
                if lane == 0 && (!Self::VALUES_FIRST || next == Next::Work) {
                    self.values.release(&values);
                }
                if Self::LOOKS_AHEAD && !Self::VALUES_FIRST {
                    scores.wait::<0>();
                    if lane == 0 && next == Next::Work {
                        self.keys.release(&keys);
                    }
                }
                let result = &mut output.values;
                normalisation.apply::<MmaFragment, O>(result);
                if p.output_f32 != 0 {
                    store::store_pairs::<E, O, true>(
                        lane,
                        result,
                        row,
                        0,
                        &block.o_of_heads::<4>(p),
                        true,
                    );
                } else if p.value_dim % 8 != 0 {
                    store::store_pairs::<E, O, true>(lane, result, row, 0, &target, false);
                } else if Self::STAGES_OUTPUT {
                    // The warp has met since it read what was there: when it discarded the order. Products of
                    // the queries that stand there are those of all four warps.
                    if Self::KEEPS_QUERIES {
                        barrier::sync(1 + warpgroup, 128);
                    }
                    let rows = self.output_rows(query_stage(&used));
                    Self::write_output::<E, O>(p, o_map, &block, (lane, row), result, rows, &target);
                } else {
                    store::store_exchanged::<E, O>(lane, result, row, &target);
                }
                if Self::VALUES_FIRST {
                    scores.wait::<0>();
                    if lane == 0 {
                        if next == Next::Work {
                            self.keys.release(&keys);
                        } else {
                            self.release_last_values(&values);
                        }
                    }
                }
                if Self::sends_output(O) {
                    is_sending = next == Next::Work;
                    if !is_sending && lane == 0 {
                        bulk_copy::wait_read::<0>();
                        if Self::KEEPS_QUERIES {
                            self.queries.release(&used);
                        }
                    }
                } else if Self::KEEPS_QUERIES {
                    self.release_queries(&used, lane == 0);
                }
                values.advance();
                if Self::HAS_PARTS {
                    self.values.pass(&mut values, Self::left(note), lane == 0);
                }
                // Two warpgroups never go on behind another message than work: without a condition the
                // assembler sees that stages are uniform.
                if Self::LOOKS_AHEAD && (!Self::GOES_PAST || next == Next::Work) {
                    keys.advance();
                }
                if !Self::LOOKS_AHEAD || next != Next::Work {
                    break;
                }
            }
            if !Self::LOOKS_AHEAD {
                next = Next::Unknown;
            } else if !Self::GOES_PAST {
                return;
            }
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
    const KEY_STAGES: u32,
    const VALUE_STAGES: u32,
    const GATHERS_HEADS: bool,
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
    let room = Room::<
        QUERIES,
        KEYS,
        ROW_BYTES,
        WARPGROUPS,
        QUERY_STAGES,
        KEY_STAGES,
        VALUE_STAGES,
        GATHERS_HEADS,
    >::new();
    room.open(&p.forward);
    let warp = Recruit::<WARPGROUPS>::new();
    if warp.helps() {
        let helper =
            if WARPGROUPS == 2 { warp.become_helper::<40>() } else { warp.become_helper::<32>() };
        match helper {
            Helper::Producer => {
                room.produce(p, &maps);
                if tiles_split_keys(QUERIES) {
                    grid::allow_next();
                }
            }
            Helper::Repairer if room.may_need_repair(&p.forward) => {
                room.repair::<E>(p, thread::thread_idx_x() % 32)
            }
            _ => {}
        }
    } else {
        let warpgroup =
            if WARPGROUPS == 2 { warp.become_consumer::<232>() } else { warp.become_consumer::<160>() };
        room.consume::<E, A, S, P, O>(p, maps.o, warpgroup);
    }
}

macro_rules! entries {
    ($gathers_heads:literal,
        $(($name:ident, $dtype:ident, $dim:literal, $queries:literal, $keys:literal, $warpgroups:literal))*
    ) => {
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
                    element::$dtype, $queries, $keys, { panel_columns($dim) * 2 }, $warpgroups,
                    { forward_sm90a_query_stages($dim, $queries) },
                    { forward_sm90a_key_and_value_stages($dim, $queries, $keys)[0] },
                    { forward_sm90a_key_and_value_stages($dim, $queries, $keys)[1] },
                    $gathers_heads,
                    { query_registers($dim, $queries) }, { $keys / 2 }, { $keys / 4 }, { $dim / 2 },
                >(&p, maps);
            }
        )*
    };
}

macro_rules! entries_for_queries { ($($row:tt)*) => { entries!(false, $($row)*); } }
crate::for_each_forward_sm90a!(entries_for_queries);

macro_rules! entries_for_heads { ($($row:tt)*) => { entries!(true, $($row)*); } }
crate::for_each_forward_heads_sm90a!(entries_for_heads);
