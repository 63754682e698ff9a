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
use super::room::Room;
use super::tile::{BackwardKernel, DsTile, Instance, KeyTile};
use crate::abi::layout::WRITERS;
use crate::abi::{BackwardHopperParams, BackwardParams};
use crate::arch::{barrier, bulk_copy, thread, warp};
use crate::attention::gradient::{multiply_all, range_factor, scale_all, subtract_delta};
use crate::attention::key_order::KeyOrder;
use crate::attention::score::backward::{BackwardScale, StepScores};
use crate::attention::score::dropout;
use crate::attention::score::references::References;
use crate::geometry::size::Count;
use crate::pipeline::roles::{Recruit, WARPGROUP};
use crate::pipeline::stages::Cursor;
use crate::tile::element::{self, TensorCoreElement};
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

impl<E: TensorCoreElement, K: BackwardKernel<Element = E>> Room<K> {
    /// A warp of a computing warpgroup.
    #[inline(always)]
    unsafe fn compute(&self, p: &BackwardParams, warpgroup: u32)
    where
        E: GradientElement<S, P, O> + QueryGradientElement<KEYS, DQ_REGISTERS>,
    {
        let thread = thread::thread_idx_x() % WARPGROUP;
        let (lane, warp) = (thread % 32, thread / 32);
        // The warp's first key in the tile.
        let first_row = 64 * warpgroup + 16 * warp;
        let scale = BackwardScale::new::<E>(p);
        let keys = self.key.descriptor(64 * warpgroup);
        let values = self.value.descriptor(64 * warpgroup);
        let mut orders = Cursor::start();
        let mut stages = Cursor::start();
        let mut turns = Cursor::<Count<WARPGROUPS>>::start();
        loop {
            let letter = self.orders.wait(&orders);
            if KeyOrder::ends(letter) {
                break;
            }
            self.keys.wait(&orders.in_step());
            self.values.wait(&orders.in_step());
            let KeyOrder { walk, .. } = KeyOrder::read(letter, p, KEYS);
            let steps = warp::uniform(walk.steps);
            let (mut dk, mut dv) = ([0.0; O], [0.0; O]);
            if steps > 0 {
                let mut at = walk.start();
                let mut largest_value = 0.0;
                if E::NARROW {
                    let thread = warpgroup * WARPGROUP + thread;
                    largest_value = self.largest_value::<MEET, CONSUMERS>(p, thread);
                }
                loop {
                    let stage = stages.stage();
                    self.queries.wait(&stages);
                    let query = self.query(stage).descriptor(0);
                    let mut scores = E::start_scores::<KeyTile<K>>(keys, query);
                    let turn = warp::uniform(turns.stage());
                    let d_o_turn = stages.in_step();
                    self.d_os.wait(&d_o_turn);
                    let bias = self.bias(turn, first_row);
                    self.fetch_bias(p, bias, letter, &at);
                    let d_o_stage = d_o_turn.stage();
                    let d_o = self.d_o(d_o_stage).descriptor(0);
                    let mut dp = E::start_scores::<KeyTile<K>>(values, d_o);
                    // What ds is multiplied by to be in the range of E, and sums of it in that of f32; nearly
                    // always 1.
                    let mut factor = p.ds_scale;
                    if E::NARROW {
                        let (norm, delta) = (self.norm(d_o_stage), self.delta(d_o_stage));
                        factor = range_factor(lane, QUERIES, largest_value, norm, delta);
                    }
                    let lse = self.lse(stage);
                    let references = || self.references(p, self.orders.letter_here(&orders), &at);
                    let step = StepScores {
                        lane,
                        lse,
                        scale: &scale,
                        references: &References::find::<E>(p, QUERIES, lse, references),
                        score: &p.score,
                        bias: Some(bias),
                        shows_all: false,
                        tile: || self.tile(p, letter, &at),
                        place: || self.place_of(p, letter, &at),
                    };
                    scores.wait::<1>();
                    step.references.subtract_if_needed::<E, MmaFragment, 2, S>(&mut scores);
                    step.exponents::<E, MmaFragment, 2, S>(&mut scores);
                    let probability =
                        step.probabilities::<E, MmaFragment, 2, S>(&mut scores, walk.hides(&at));
                    let probability: [u32; P] = pack::<E, S, P>(&probability);
                    dp.wait::<0>();
                    let delta = self.delta(d_o_stage);
                    dropout::apply_to_dp(&mut dp, &mut scores, &p.score);
                    subtract_delta::<MmaFragment, 2, S>(lane, &mut dp, delta);
                    multiply_all(&mut dp, &scores);
                    if factor != 1.0 {
                        scale_all(&mut dp, factor);
                        if E::NARROW {
                            scale_all(&mut dk, factor);
                        }
                    }
                    let ds: [u32; P] = pack::<E, S, P>(&dp);
                    store_transposed(lane, &ds, self.ds(turn), first_row / 16);
                    E::start_gradient(&mut dv, &probability, d_o);
                    bulk_copy::fence();
                    if turn == warpgroup {
                        E::start_gradient(&mut dk, &ds, query);
                        dv.wait::<1>();
                        self.d_os.release_together(lane, &d_o_turn);
                        barrier::sync(DS_READY + turn, CONSUMERS);
                        let all_ds = self.ds(turn).descriptor(0);
                        let mut dq = E::start_dq::<DsTile<K>>(all_ds, self.key.descriptor(0));
                        dk.wait::<1>();
                        dq.wait::<0>();
                        if E::NARROW && factor != 1.0 {
                            scale_all(&mut dq, 1.0 / factor);
                        }
                        let (writer, dq_turn) = (stage % WRITERS, stages.dealt::<WRITERS>());
                        let dq_stage = self.dq_stage(writer);
                        dq_stage.acquire(&dq_turn);
                        let slot = self.dq(writer) + 16 * thread;
                        hand_over::<DQ_REGISTERS, 0, DQ_REGISTERS>(lane, &dq, slot, dq_stage, &dq_turn);
                    } else {
                        barrier::arrive(DS_READY + turn, CONSUMERS);
                        E::start_gradient(&mut dk, &ds, query);
                        dv.wait::<1>();
                        self.d_os.release_together(lane, &d_o_turn);
                    }
                    at = walk.next(&at);
                    dk.wait::<0>();
                    if lane == 0 {
                        self.queries.release(&stages);
                    }
                    if E::NARROW && factor != 1.0 {
                        scale_all(&mut dk, 1.0 / factor);
                    }
                    stages.advance();
                    turns.advance();
                    if at.step == steps {
                        break;
                    }
                }
                dv.wait::<0>();
            }
            self.end_tile(p, &mut orders, warpgroup, &mut dk, &mut dv);
        }
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
        room.compute(&p.backward, warp.become_consumer::<160>());
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
