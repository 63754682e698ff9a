//! The Hopper backward for head dims 192 and 256: one warpgroup makes dV, the other dK.
//!
//! 64 keys of dV, or of dK, fill half of a warpgroup's registers. So each has one of them, and computes what
//! feeds it: score tiles are transposed (rows are keys), p and ds reach their products from registers. What
//! the other one needs goes through shared memory. dQ is shared out by columns: the first 128, and the rest.
//!
//! ```text
//! for each query tile:
//!     warpgroup 0                               warpgroup 1
//!     s = k q^T                                 dp = v dO^T
//!     p = 2^(c s - lse)            -- p ->      ds = p (dp - delta)
//!     start dv += p dO
//!                                 <- ds --
//!     start dq = ds^T k (128 columns)           start dq = ds^T k (the rest)     start dk += ds q
//!     wait for dv, dq; dq to shared memory      wait for dq; dq to shared memory
//!                                               wait for dk
//! ```
//!
//! Products of one warpgroup run beside the exponentials, waits and copies of the other: while ds is made, dv
//! is added to, and while dk is added to, the next s begins. p goes in f32, in the order in which lanes hold
//! it, through the memory of warpgroup 0's dQ, which is free until ds is there. It is overwritten with dQ
//! after ds came, and ds after the next p came: two barriers are enough.

use super::consumer::hand_over;
use super::helpers::Maps;
use super::room::Room;
use super::tile::{BackwardKernel, DsTile, Instance, KeyTile, OutputGradientStages};
use crate::abi::{BackwardHopperParams, BackwardParams};
use crate::arch::{barrier, bulk_copy, shared, specialize, thread, warp};
use crate::attention::gradient::{multiply_all, range_factor, scale_all, subtract_delta};
use crate::attention::key_order::KeyOrder;
use crate::attention::key_stretch::{KeyGradient, final_scale};
use crate::attention::score::backward::{BackwardScale, StepScores};
use crate::attention::score::bias_tile::FromGlobal;
use crate::attention::score::dropout;
use crate::attention::score::references::References;
use crate::pipeline::roles::{Recruit, WARPGROUP};
use crate::pipeline::stages::Cursor;
use crate::tile::element::{self, TensorCoreElement};
use crate::tile::fragment::MmaFragment;
use crate::tile::mma::pack;
use crate::tile::warpgroup::{
    DQ_REGISTERS, GradientElement, QueryGradientElement, Wait, store_transposed,
};

/// Keys of a block.
const KEYS: u32 = 64;
/// Queries of a step.
const QUERIES: u32 = 64;
/// Warpgroups that compute, and their threads.
const WARPGROUPS: u32 = 2;
const CONSUMERS: u32 = WARPGROUPS * WARPGROUP;
/// Registers of scores, and of packed probabilities.
const S: usize = 32;
const P: usize = 16;
/// Registers of warpgroup 0's columns of dQ.
const FIRST_DQ: usize = 2 * DQ_REGISTERS;
/// Barrier at which p is there.
const P_READY: u32 = 1;
/// Barrier at which ds is there.
const DS_READY: u32 = 2;
/// Barrier of warpgroup 1 alone.
const ALONE: u32 = 3;

impl<E: TensorCoreElement, K: BackwardKernel<Element = E>> Room<K> {
    /// A warp of warpgroup 0. `O` registers of dV.
    #[inline(always)]
    unsafe fn make_dv<const O: usize>(&self, p: &BackwardParams)
    where
        E: GradientElement<S, P, O> + QueryGradientElement<KEYS, FIRST_DQ>,
        [f32; O]: Wait,
    {
        let thread = thread::thread_idx_x() % WARPGROUP;
        let lane = thread % 32;
        let scale = BackwardScale::new::<E>(p);
        let keys = self.key.descriptor(0);
        let ds = self.ds(0).descriptor(0);
        let slot = self.dq(0) + 16 * thread;
        let dq_stage = self.dq_stage(0);
        let mut orders = Cursor::start();
        let mut stages = Cursor::start();
        loop {
            let letter = self.orders.wait(&orders);
            if KeyOrder::ends(letter) {
                break;
            }
            self.keys.wait(&orders.in_step());
            let KeyOrder { walk, .. } = KeyOrder::read(letter, p, KEYS);
            let steps = warp::uniform(walk.steps);
            let mut dv = [0.0; O];
            if steps > 0 {
                let mut at = walk.start();
                loop {
                    let stage = stages.stage();
                    self.queries.wait(&stages);
                    let mut shows_all = false;
                    if Self::skips_steps() {
                        let visited = self.visited(&stages);
                        (at, shows_all) = (visited.step(steps), visited.tile.shows_all);
                    }
                    let mut scores =
                        E::start_scores::<KeyTile<K>>(keys, self.query(stage).descriptor(0));
                    let lse = self.lse(stage);
                    let references = || self.references(p, self.orders.letter_here(&orders), &at);
                    let step = StepScores {
                        lane,
                        lse,
                        scale: &scale,
                        references: &References::find::<E>(p, QUERIES, lse, references),
                        score: &p.score,
                        bias: FromGlobal,
                        shows_all,
                        tile: || self.tile(p, letter, &at),
                        place: || self.place_of(p, letter, &at),
                    };
                    scores.wait::<0>();
                    step.references.subtract_if_needed::<E, MmaFragment, 2, S>(&mut scores);
                    step.exponents::<E, MmaFragment, 2, S>(&mut scores);
                    if !step.reads_lse_again::<E>() {
                        self.queries.release_together(lane, &stages);
                    }
                    let probability =
                        step.probabilities::<E, MmaFragment, 2, S>(&mut scores, walk.hides(&at));
                    if step.reads_lse_again::<E>() {
                        self.queries.release_together(lane, &stages);
                    }
                    let dq_turn = stages.in_step();
                    dq_stage.acquire(&dq_turn);
                    let mut i = 0;
                    while i < S / 4 {
                        let four = [0, 1, 2, 3].map(|e| scores[4 * i + e].to_bits());
                        shared::store_u32x4(slot + i as u32 * 16 * WARPGROUP, four);
                        i += 1;
                    }
                    barrier::arrive_constant::<P_READY, CONSUMERS>();
                    let probability: [u32; P] = pack::<E, S, P>(&probability);
                    let d_o_turn = stages.in_step::<OutputGradientStages<K>>();
                    self.d_os.wait(&d_o_turn);
                    let d_o = self.d_o(d_o_turn.stage()).descriptor(0);
                    E::start_gradient(&mut dv, &probability, d_o);

                    barrier::sync_constant::<DS_READY, CONSUMERS>();
                    let mut dq = E::start_dq::<DsTile<K>>(ds, keys);
                    dv.wait::<1>();
                    if lane == 0 {
                        self.d_os.release(&d_o_turn);
                    }
                    at = walk.next(&at);
                    dq.wait::<0>();
                    if E::NARROW {
                        let factor = f32::from_bits(shared::load_u32(self.factor()));
                        if factor != 1.0 {
                            scale_all(&mut dq, 1.0 / factor);
                        }
                    }
                    hand_over::<FIRST_DQ, 0, FIRST_DQ>(lane, &dq, slot, dq_stage, &dq_turn);
                    stages.advance();
                    if at.step == steps {
                        break;
                    }
                }
            }
            if lane == 0 {
                self.keys.release(&orders.in_step());
            }
            let order = KeyOrder::read(letter, p, KEYS);
            self.orders.discard(&mut orders, lane);
            if specialize::dropout() {
                scale_all(&mut dv, dropout::scale(&p.score));
            }
            self.store(p, &order, 0, &dv, KeyGradient::Dv);
        }
    }

    /// A warp of warpgroup 1. Registers: `O` of dK, `DQ` of dQ.
    #[inline(always)]
    unsafe fn make_dk<const O: usize, const DQ: usize>(&self, p: &BackwardParams)
    where
        E: GradientElement<S, P, O> + QueryGradientElement<KEYS, DQ>,
        [f32; O]: Wait,
        [f32; DQ]: Wait,
    {
        let thread = thread::thread_idx_x() % WARPGROUP;
        let (lane, warp) = (thread % 32, thread / 32);
        let values = self.value.descriptor(0);
        let ds_tile = self.ds(0);
        let dq_keys = self.key.panel(2).descriptor(0);
        let probabilities = self.dq(0) + 16 * thread;
        let slot = self.dq(1) + 16 * thread;
        let dq_stage = self.dq_stage(1);
        let mut orders = Cursor::start();
        let mut stages = Cursor::start();
        let mut dq_turn = Cursor::start();
        loop {
            let letter = self.orders.wait(&orders);
            if KeyOrder::ends(letter) {
                break;
            }
            self.keys.wait(&orders.in_step());
            self.values.wait(&orders.in_step());
            let KeyOrder { walk, .. } = KeyOrder::read(letter, p, KEYS);
            let steps = warp::uniform(walk.steps);
            let mut dk = [0.0; O];
            if steps > 0 {
                let mut step = 0;
                let mut largest_value = 0.0;
                if E::NARROW {
                    largest_value = self.largest_value::<ALONE, WARPGROUP>(p, thread);
                }
                loop {
                    let d_o_turn = stages.in_step::<OutputGradientStages<K>>();
                    let stage = d_o_turn.stage();
                    self.d_os.wait(&d_o_turn);
                    let mut dp = E::start_scores::<KeyTile<K>>(values, self.d_o(stage).descriptor(0));
                    // What ds is multiplied by to be in the range of E, and sums of it in that of f32; nearly
                    // always 1.
                    let mut factor = p.ds_scale;
                    if E::NARROW {
                        let (norm, delta) = (self.norm(stage), self.delta(stage));
                        factor = range_factor(lane, QUERIES, largest_value, norm, delta);
                    }
                    dp.wait::<0>();
                    let subtract_delta = |dp: &mut [f32; S]| {
                        subtract_delta::<MmaFragment, 2, S>(lane, dp, self.delta(stage));
                        self.d_os.release_together(lane, &d_o_turn);
                    };
                    if !specialize::dropout() {
                        subtract_delta(&mut dp);
                    }
                    barrier::sync_constant::<P_READY, CONSUMERS>();
                    let mut probability = [0.0; S];
                    let mut i = 0;
                    while i < S / 4 {
                        let four = shared::load_u32x4(probabilities + i as u32 * 16 * WARPGROUP);
                        let mut e = 0;
                        while e < 4 {
                            probability[4 * i + e] = f32::from_bits(four[e]);
                            e += 1;
                        }
                        i += 1;
                    }
                    if specialize::dropout() {
                        dropout::apply_to_dp(&mut dp, &mut probability, &p.score);
                        subtract_delta(&mut dp);
                    }
                    multiply_all(&mut dp, &probability);
                    if E::NARROW {
                        if thread == 0 {
                            shared::store_u32(self.factor(), factor.to_bits());
                        }
                    }
                    if factor != 1.0 {
                        scale_all(&mut dp, factor);
                        if E::NARROW {
                            scale_all(&mut dk, factor);
                        }
                    }
                    let ds: [u32; P] = pack::<E, S, P>(&dp);
                    store_transposed(lane, &ds, ds_tile, warp);
                    bulk_copy::fence();
                    barrier::sync_constant::<DS_READY, CONSUMERS>();

                    let mut dq = E::start_dq::<DsTile<K>>(ds_tile.descriptor(0), dq_keys);
                    self.queries.wait(&stages);
                    if Self::skips_steps() {
                        step = self.visited(&stages).step(steps).step;
                    }
                    let queries = self.query(stages.stage()).descriptor(0);
                    E::start_gradient(&mut dk, &ds, queries);
                    dq.wait::<1>();
                    if E::NARROW && factor != 1.0 {
                        scale_all(&mut dq, 1.0 / factor);
                    }
                    dq_stage.acquire(&dq_turn);
                    hand_over::<DQ, 0, DQ_REGISTERS>(lane, &dq, slot, dq_stage, &dq_turn);
                    dq_turn.advance();
                    if DQ > DQ_REGISTERS {
                        dq_stage.acquire(&dq_turn);
                        hand_over::<DQ, { DQ_REGISTERS }, DQ_REGISTERS>(
                            lane, &dq, slot, dq_stage, &dq_turn,
                        );
                        dq_turn.advance();
                    }
                    dk.wait::<0>();
                    if lane == 0 {
                        self.queries.release(&stages);
                    }
                    if E::NARROW && factor != 1.0 {
                        scale_all(&mut dk, 1.0 / factor);
                    }
                    stages.advance();
                    step += 1;
                    if step == steps {
                        break;
                    }
                }
            }
            if lane == 0 {
                self.keys.release(&orders.in_step());
                self.values.release(&orders.in_step());
            }
            let order = KeyOrder::read(letter, p, KEYS);
            self.orders.discard(&mut orders, lane);
            scale_all(&mut dk, final_scale(p, &order.stretch));
            self.store(p, &order, 0, &dk, KeyGradient::Dk);
        }
    }
}

/// One block: a warpgroup of helpers and two that compute.
#[inline(always)]
unsafe fn backward<E, K, const O: usize, const DQ: usize>(p: &BackwardHopperParams, maps: Maps)
where
    K: BackwardKernel<Element = E>,
    E: GradientElement<S, P, O> + QueryGradientElement<KEYS, FIRST_DQ> + QueryGradientElement<KEYS, DQ>,
    [f32; O]: Wait,
    [f32; DQ]: Wait,
{
    const { assert!(K::KEYS == KEYS && K::QUERIES == QUERIES) };
    let room = Room::<K>::new();
    room.open(&p.backward);
    let warp = Recruit::new();
    if warp.helps() {
        room.help(p, &maps, warp);
    } else if warp.become_consumer::<240>() == 0 {
        room.make_dv::<O>(&p.backward);
    } else {
        room.make_dk::<O, DQ>(&p.backward);
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
                backward::<
                    _, Instance<element::$dtype, $dim, $queries, $keys>, { $dim / 2 }, { ($dim - 128) / 2 },
                >(&p, maps);
            }
        )*
    };
}
crate::for_each_backward_wide_sm90a!(entries);
