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

use super::consumer::{hand_over, put};
use super::helpers::Maps;
use super::key_tile::{apply_factor, undo_factor};
use super::room::Room;
use super::tile::{BackwardKernel, DsTile, Instance, KeyTile, OutputGradientStages, QueryStages};
use crate::abi::{BackwardHopperParams, BackwardParams};
use crate::arch::{barrier, bulk_copy, shared, specialize, thread, warp};
use crate::attention::gradient::{multiply_all, scale_all, subtract_delta};
use crate::attention::key_block::Step;
use crate::attention::key_order::KeyOrder;
use crate::attention::key_stretch::{KeyGradient, final_scale};
use crate::attention::score::backward::{BackwardScale, StepScores};
use crate::attention::score::bias_tile::FromGlobal;
use crate::attention::score::dropout;
use crate::attention::score::references::References;
use crate::geometry::size::Count;
use crate::pipeline::mailbox::{Letter, MessageCursor};
use crate::pipeline::roles::{Recruit, WARPGROUP};
use crate::pipeline::stages::{Cursor, Stages};
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
                    let probability = self.make_p(
                        p,
                        &scale,
                        (letter, &orders, &stages),
                        (&at, shows_all, walk.hides(&at)),
                        &mut scores,
                    );
                    let dq_turn = stages.in_step();
                    dq_stage.acquire(&dq_turn);
                    put::<S, 0, S>(&scores, slot);
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
                        undo_factor::<E>(f32::from_bits(shared::load_u32(self.factor())), &mut dq);
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
            self.end_gradient(p, (letter, &mut orders), &mut dv, KeyGradient::Dv);
        }
    }

    /// Waits for scores, and makes `p = e^(s - lse)` of them, where positions hide something if `hides`; lets
    /// go of queries and lse. Leaves in `scores` what dp - delta is multiplied by.
    #[inline(always)]
    unsafe fn make_p(
        &self,
        p: &BackwardParams,
        scale: &BackwardScale,
        (letter, orders, stages): (Letter, &MessageCursor, &Cursor<QueryStages<K>>),
        (at, shows_all, hides): (&Step, bool, bool),
        scores: &mut [f32; S],
    ) -> [f32; S] {
        let lane = thread::thread_idx_x() % 32;
        let lse = self.lse(stages.stage());
        let references = || self.references(p, self.orders.letter_here(orders), at);
        let step = StepScores {
            lane,
            lse,
            scale,
            references: &References::find::<E>(p, QUERIES, lse, references),
            score: &p.score,
            bias: FromGlobal,
            shows_all,
            tile: || self.tile(p, letter, at),
            place: || self.place_of(p, letter, at),
        };
        scores.wait::<0>();
        step.references.subtract_if_needed::<E, MmaFragment, 2, S>(scores);
        step.exponents::<E, MmaFragment, 2, S>(scores);
        if !step.reads_lse_again::<E>() {
            self.queries.release_together(lane, stages);
        }
        let probability = step.probabilities::<E, MmaFragment, 2, S>(scores, hides);
        if step.reads_lse_again::<E>() {
            self.queries.release_together(lane, stages);
        }
        probability
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
                    let factor = self.ds_factor(p, lane, stage, largest_value);
                    dp.wait::<0>();
                    self.make_ds(p, lane, &d_o_turn, probabilities, &mut dp);
                    if E::NARROW && thread == 0 {
                        shared::store_u32(self.factor(), factor.to_bits());
                    }
                    apply_factor::<E>(factor, &mut dp, &mut dk);
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
                    undo_factor::<E>(factor, &mut dq);
                    self.hand_over_parts(lane, &dq, slot, dq_stage, &mut dq_turn);
                    dk.wait::<0>();
                    if lane == 0 {
                        self.queries.release(&stages);
                    }
                    undo_factor::<E>(factor, &mut dk);
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
            self.end_gradient(p, (letter, &mut orders), &mut dk, KeyGradient::Dk);
        }
    }

    /// Gives warpgroup 1's columns of dQ to its writer, 64 at a time.
    #[inline(always)]
    unsafe fn hand_over_parts<const DQ: usize>(
        &self,
        lane: u32,
        dq: &[f32; DQ],
        slot: u32,
        dq_stage: Stages<Count<1>>,
        dq_turn: &mut Cursor<Count<1>>,
    ) {
        dq_stage.acquire(dq_turn);
        hand_over::<DQ, 0, DQ_REGISTERS>(lane, dq, slot, dq_stage, dq_turn);
        dq_turn.advance();
        if DQ > DQ_REGISTERS {
            dq_stage.acquire(dq_turn);
            hand_over::<DQ, DQ_REGISTERS, DQ_REGISTERS>(lane, dq, slot, dq_stage, dq_turn);
            dq_turn.advance();
        }
    }

    /// A warpgroup is done with the key tile of its order: writes its gradient.
    #[inline(always)]
    unsafe fn end_gradient<const O: usize>(
        &self,
        p: &BackwardParams,
        (letter, orders): (Letter, &mut MessageCursor),
        values: &mut [f32; O],
        gradient: KeyGradient,
    ) {
        let order = KeyOrder::read(letter, p, KEYS);
        self.orders.discard(orders, thread::thread_idx_x() % 32);
        match gradient {
            KeyGradient::Dk => scale_all(values, final_scale(p, &order.stretch)),
            KeyGradient::Dv if specialize::dropout() => scale_all(values, dropout::scale(&p.score)),
            KeyGradient::Dv => {}
        }
        self.store(p, &order, 0, values, gradient);
    }

    /// Makes `ds = p (dp - delta)` of dp, with p of the other warpgroup; lets go of dO and delta.
    #[inline(always)]
    unsafe fn make_ds(
        &self,
        p: &BackwardParams,
        lane: u32,
        d_o_turn: &Cursor<OutputGradientStages<K>>,
        probabilities: u32,
        dp: &mut [f32; S],
    ) {
        let subtract_delta = |dp: &mut [f32; S]| {
            subtract_delta::<MmaFragment, 2, S>(lane, dp, self.delta(d_o_turn.stage()));
            self.d_os.release_together(lane, d_o_turn);
        };
        if !specialize::dropout() {
            subtract_delta(dp);
        }
        barrier::sync_constant::<P_READY, CONSUMERS>();
        let mut probability = take(probabilities);
        if specialize::dropout() {
            dropout::apply_to_dp(dp, &mut probability, &p.score);
            subtract_delta(dp);
        }
        multiply_all(dp, &probability);
    }
}

/// What the thread of the other warpgroup has put at shared address `probabilities`.
#[inline(always)]
unsafe fn take(probabilities: u32) -> [f32; S] {
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
    probability
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
