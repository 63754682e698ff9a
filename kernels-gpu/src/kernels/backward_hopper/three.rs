//! The Hopper backward at head dim 64 with three warpgroups that compute: 192 keys, 64 queries a step.
//!
//! A third warpgroup keeps the tensor cores busy while two others are at their exponentials, and 192 keys
//! share what arrives of a query and what leaves of its dq: both are a third less than with 128. A step has
//! 64 queries, since a warpgroup of three has but 160 registers a thread.
//!
//! The warpgroups take turns at dq: of each step one multiplies it for all, and waits for the others' dS.
//! These go on meanwhile:
//!
//! ```text
//! start s = k q^T                  start dp = v dO^T
//! wait for s;                      p = 2^exponents
//! wait for dp;                     ds = p (dp - delta), to shared memory
//! start dv += p dO
//! not its turn: tell of ds         start dk += ds q
//! its turn:                        start dk += ds q
//!                                  wait for the others' ds; dq = ds^T k; dq to shared memory
//! wait for dk
//! ```
//!
//! There are as many tiles of dS as warpgroups, and two of dO. Who writes ds of a step overwrites that of the
//! third step before. It was multiplied: dO of this step has come, so that all warps have released dO of the
//! second step before, which they do after a product of the third.

use super::consumer::hand_over;
use super::helpers::Maps;
use super::key_tile::{apply_factor, undo_factor};
use super::room::Room;
use super::tile::{BackwardKernel, DsTile, Instance, KeyTile, QueryStages};
use crate::abi::layout::WRITERS;
use crate::abi::{BackwardHopperParams, BackwardParams};
use crate::arch::{barrier, bulk_copy, thread, warp};
use crate::attention::gradient::{multiply_all, subtract_delta};
use crate::attention::key_block::Step;
use crate::attention::key_order::KeyOrder;
use crate::attention::score::backward::{BackwardScale, StepScores};
use crate::attention::score::bias_tile::WarpBias;
use crate::attention::score::dropout;
use crate::attention::score::references::References;
use crate::geometry::size::Count;
use crate::pipeline::mailbox::{Letter, MessageCursor};
use crate::pipeline::roles::{Recruit, WARPGROUP};
use crate::pipeline::stages::Cursor;
use crate::tile::element;
use crate::tile::fragment::MmaFragment;
use crate::tile::mma::pack;
use crate::tile::warpgroup::{
    DQ_REGISTERS, GradientElement, QueryGradientElement, Wait, store_transposed,
};

/// Warpgroups that compute, and their threads.
const WARPGROUPS: u32 = 3;
const CONSUMERS: u32 = WARPGROUPS * WARPGROUP;
/// Keys of a block.
const KEYS: u32 = 64 * WARPGROUPS;
/// Queries of a step.
const QUERIES: u32 = 64;
/// Registers of scores, of packed probabilities and of a gradient.
const S: usize = 32;
const P: usize = 16;
const O: usize = 32;

/// Where it is told of ds: at this barrier and the next two, one for each turn.
const DS_READY: u32 = 1;
/// Barrier at which all meet.
const MEET: u32 = DS_READY + WARPGROUPS;

/// A warp of a computing warpgroup: what does not change.
struct Consumer<'a, K: BackwardKernel> {
    room: &'a Room<K>,
    p: &'a BackwardParams,
    scale: &'a BackwardScale,
    warpgroup: u32,
    thread: u32,
    lane: u32,
    /// The warp's first key in the tile.
    first_row: u32,
    /// Descriptors of the warpgroup's keys and values.
    keys: u64,
    values: u64,
}

impl<'a, E, K> Consumer<'a, K>
where
    K: BackwardKernel<Element = E>,
    E: GradientElement<S, P, O> + QueryGradientElement<KEYS, DQ_REGISTERS>,
{
    /// This warp, of computing warpgroup `warpgroup`.
    #[inline(always)]
    fn new(room: &'a Room<K>, p: &'a BackwardParams, scale: &'a BackwardScale, warpgroup: u32) -> Self {
        let thread = thread::thread_idx_x() % WARPGROUP;
        let (lane, warp) = (thread % 32, thread / 32);
        Consumer {
            room,
            p,
            scale,
            warpgroup,
            thread,
            lane,
            first_row: 64 * warpgroup + 16 * warp,
            keys: room.key.descriptor(64 * warpgroup),
            values: room.value.descriptor(64 * warpgroup),
        }
    }

    /// Computes key tiles until there are none left.
    #[inline(always)]
    unsafe fn consume(&self) {
        let &Consumer { room, p, warpgroup, lane, first_row, keys, values, .. } = self;
        let mut orders = Cursor::start();
        let mut stages = Cursor::start();
        let mut turns = Cursor::<Count<WARPGROUPS>>::start();
        loop {
            let letter = room.orders.wait(&orders);
            if KeyOrder::ends(letter) {
                break;
            }
            room.keys.wait(&orders.in_step());
            room.values.wait(&orders.in_step());
            let KeyOrder { walk, .. } = KeyOrder::read(letter, p, KEYS);
            let steps = warp::uniform(walk.steps);
            let (mut dk, mut dv) = ([0.0; O], [0.0; O]);
            if steps > 0 {
                let mut at = walk.start();
                let mut largest_value = 0.0;
                if E::NARROW {
                    let thread = warpgroup * WARPGROUP + self.thread;
                    largest_value = room.largest_value::<MEET, CONSUMERS>(p, thread);
                }
                loop {
                    let stage = stages.stage();
                    room.queries.wait(&stages);
                    let query = room.query(stage).descriptor(0);
                    let mut scores = E::start_scores::<KeyTile<K>>(keys, query);
                    let turn = warp::uniform(turns.stage());
                    let d_o_turn = stages.in_step();
                    room.d_os.wait(&d_o_turn);
                    let bias = room.bias(turn, first_row);
                    room.fetch_bias(p, bias, letter, &at);
                    let d_o_stage = d_o_turn.stage();
                    let d_o = room.d_o(d_o_stage).descriptor(0);
                    let mut dp = E::start_scores::<KeyTile<K>>(values, d_o);
                    let factor = room.ds_factor(p, lane, d_o_stage, largest_value);
                    let of_step = (stage, bias, walk.hides(&at));
                    let probability = self.probabilities_of(&orders, letter, &at, of_step, &mut scores);
                    let delta = room.delta(d_o_stage);
                    dp.wait::<0>();
                    dropout::apply_to_dp(&mut dp, &mut scores, &p.score);
                    subtract_delta::<MmaFragment, 2, S>(lane, &mut dp, delta);
                    multiply_all(&mut dp, &scores);
                    apply_factor::<E>(factor, &mut dp, &mut dk);
                    let ds: [u32; P] = pack::<E, S, P>(&dp);
                    store_transposed(lane, &ds, room.ds(turn), first_row / 16);
                    E::start_gradient(&mut dv, &probability, d_o);
                    bulk_copy::fence();
                    if turn == warpgroup {
                        E::start_gradient(&mut dk, &ds, query);
                        dv.wait::<1>();
                        room.d_os.release_together(lane, &d_o_turn);
                        self.multiply_dq(turn, &stages, factor, &mut dk);
                    } else {
                        barrier::arrive(DS_READY + turn, CONSUMERS);
                        E::start_gradient(&mut dk, &ds, query);
                        dv.wait::<1>();
                        room.d_os.release_together(lane, &d_o_turn);
                    }
                    at = walk.next(&at);
                    dk.wait::<0>();
                    if lane == 0 {
                        room.queries.release(&stages);
                    }
                    undo_factor::<E>(factor, &mut dk);
                    stages.advance();
                    turns.advance();
                    if at.step == steps {
                        break;
                    }
                }
                dv.wait::<0>();
            }
            room.end_tile(p, &mut orders, warpgroup, &mut dk, &mut dv);
        }
    }

    /// Waits for scores, and makes `p = e^(s - lse)` of them, with lse of stage `stage`, where positions hide
    /// something if `hides`. Leaves in `scores` what dp - delta is multiplied by.
    #[inline(always)]
    unsafe fn probabilities_of(
        &self,
        orders: &MessageCursor,
        letter: Letter,
        at: &Step,
        (stage, bias, hides): (u32, WarpBias, bool),
        scores: &mut [f32; S],
    ) -> [u32; P] {
        let &Consumer { room, p, .. } = self;
        let lse = room.lse(stage);
        let references = || room.references(p, room.orders.letter_here(orders), at);
        let step = StepScores {
            lane: self.lane,
            lse,
            scale: self.scale,
            references: &References::find::<E>(p, QUERIES, lse, references),
            score: &p.score,
            bias: Some(bias),
            shows_all: false,
            tile: || room.tile(p, letter, at),
            place: || room.place_of(p, letter, at),
        };
        scores.wait::<1>();
        step.references.subtract_if_needed::<E, MmaFragment, 2, S>(scores);
        step.exponents::<E, MmaFragment, 2, S>(scores);
        let probability = step.probabilities::<E, MmaFragment, 2, S>(scores, hides);
        pack::<E, S, P>(&probability)
    }

    /// Waits for ds of all keys, and multiplies and hands over `dq = ds^T k` of a step whose turn is this
    /// warpgroup's.
    #[inline(always)]
    unsafe fn multiply_dq(
        &self,
        turn: u32,
        stages: &Cursor<QueryStages<K>>,
        factor: f32,
        dk: &mut [f32; O],
    ) {
        let &Consumer { room, .. } = self;
        barrier::sync(DS_READY + turn, CONSUMERS);
        let all_ds = room.ds(turn).descriptor(0);
        let mut dq = E::start_dq::<DsTile<K>>(all_ds, room.key.descriptor(0));
        dk.wait::<1>();
        dq.wait::<0>();
        undo_factor::<E>(factor, &mut dq);
        let (writer, dq_turn) = (stages.stage() % WRITERS, stages.dealt::<WRITERS>());
        let dq_stage = room.dq_stage(writer);
        dq_stage.acquire(&dq_turn);
        let slot = room.dq(writer) + 16 * self.thread;
        hand_over::<DQ_REGISTERS, 0, DQ_REGISTERS>(self.lane, &dq, slot, dq_stage, &dq_turn);
    }
}

/// One block: a warpgroup of helpers and three that compute.
#[inline(always)]
unsafe fn backward<K>(p: &BackwardHopperParams, maps: Maps)
where
    K: BackwardKernel<Element: GradientElement<S, P, O> + QueryGradientElement<KEYS, DQ_REGISTERS>>,
{
    const { assert!(K::KEYS == KEYS && K::QUERIES == QUERIES && K::COLUMNS == 64) };
    let room = Room::<K>::new();
    room.open(&p.backward);
    let warp = Recruit::new();
    if warp.helps() {
        room.help(p, &maps, warp);
    } else {
        let warpgroup = warp.become_consumer::<160>();
        let scale = BackwardScale::new::<K::Element>(&p.backward);
        Consumer::new(&room, &p.backward, &scale, warpgroup).consume();
    }
}

macro_rules! entries {
    ($(($name:ident, $convert:ident, $dtype:ident, $dim:literal, $queries:literal, $keys:literal))*) => {
        $(
            /// An instance of [`backward`], chosen in [`crate::abi`].
            ///
            /// # Safety
            /// `p` is as [`BackwardHopperParams`] says, for this kernel's row of the table.
            #[unsafe(no_mangle)]
            pub unsafe extern "ptx-kernel" fn $name(p: BackwardHopperParams) {
                let maps = Maps::at(crate::parameter_address!($name));
                backward::<Instance<element::$dtype, $dim, $queries, $keys>>(&p, maps);
            }
        )*
    };
}
crate::for_each_backward_three_sm90a!(entries);
