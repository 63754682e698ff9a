//! The backward for Hopper: dV, dK and a share of dQ (docs/semantics.md, section 1), at the rate of its
//! tensor cores.
//!
//! A block stays on its multiprocessor and takes key tiles, or stretches of some
//! ([`crate::attention::key_stretch`]), until there are none left: 128 keys of one key head. It walks over
//! the query tiles that see them, of every query head of the group. Each of two warpgroups computes 64
//! keys. Score tiles are transposed (rows are keys): then p and ds feed the products with dO and q from
//! registers. For dq, ds goes through shared memory, since it sums over the keys of both warpgroups:
//!
//! ```text
//! for each query tile:
//!     start s = k q^T
//!     wait for s;            exponents c s - lse
//!     start dp = v dO^T;     p = 2^exponents
//!     wait for dp;           ds = p (dp - delta), to shared memory
//!     start dv += p dO
//!     meet the other warpgroup
//!     start dq = ds^T k (half of it)       start dk += ds q
//!     wait for dq, dv;       dq to shared memory: two threads have it stored or added (writer.rs)
//!     wait for dk
//! ```
//!
//! Products with both operands in shared memory keep it busy: what is read from it meanwhile comes late. So
//! lse is read before dp is started, and all exponentials, which need nothing more, are beside it. Measured:
//! 1.3 % faster than to start dp at once.
//!
//! With 128 queries a step (head dim 64) dp is started at once (2 % faster), and the warpgroups take turns:
//! one multiplies dq of a whole step, the other of the next, and goes on meanwhile. Measured: 2 % faster than
//! halves; with 64 queries a step (head dim 128), 2 % slower.
//!
//! At head dim 128, long sequences take 80 queries a step: 20 % fewer steps, and 5 % less shared memory
//! traffic a query. As 80 is no multiple of 64, dq is then multiplied transposed, 64 columns by each
//! warpgroup, and the last kernel turns it.
//!
//! From head dim 192 on the warpgroups divide the work otherwise: see [`wide`]. At head dim 64 there are
//! three where that is less to do: see [`three`].
//!
//! What lies outside of a tensor arrives as zeros: such queries have p = 0 through their lse, and the
//! products of such keys are not stored. In packed sequences the rows after a sequence's end are those of the
//! next one: one warp, the repairer, overwrites them with zeros before anybody uses the tile.

mod helpers;
mod key_tile;
mod room;
mod three;
mod tile;
mod wide;
mod writer;

use crate::abi::{BackwardHopperParams, BackwardParams};
use crate::arch::{barrier, bulk_copy, shared, thread, warp, wgmma};
use crate::attention::gradient::{
    load_delta, multiply_all, range_factor, scale_all, subtract_delta, subtract_loaded_delta,
};
use crate::attention::key_order::KeyOrder;
use crate::attention::score::backward::{BackwardScale, StepScores};
use crate::attention::score::dropout;
use crate::attention::score::references::References;
use crate::geometry::size::Count;
use crate::pipeline::roles::{Recruit, WARPGROUP};
use crate::pipeline::stages::{Cursor, Stages};
use crate::tile::element::{self, TensorCoreElement};
use crate::tile::fragment::MmaFragment;
use crate::tile::mma::pack;
use crate::tile::warpgroup::{GradientElement, QueryGradientElement, Wait, store_transposed};
pub(super) use helpers::Maps;
use room::Room;
use tile::{BackwardKernel, DsTile, Instance, KeyTile, QueryStages};

/// Warpgroups that compute, and their threads.
const WARPGROUPS: u32 = 2;
const CONSUMERS: u32 = WARPGROUPS * WARPGROUP;

/// Keys of a block.
const KEYS: u32 = 128;

/// Columns whose delta is there before dp is.
const EARLY_DELTAS: usize = 8;

/// Where the computing warpgroups meet, once a step; if they take turns, for steps of stage 0, and for those
/// of stage 1 at the next barrier.
const MEET: u32 = 1;

impl<E: TensorCoreElement, K: BackwardKernel<Element = E>> Room<K> {
    /// Whether a warpgroup multiplies dq of every other step, its own stage's, rather than half of every one.
    const TAKES_TURNS: bool = K::QUERIES == 128;

    /// Whether dp waits for the exponents. With 80 queries of f16 there are no registers for that.
    const EXPONENTS_FIRST: bool = !Self::TAKES_TURNS && (K::QUERIES == 64 || !E::NARROW);

    /// Whether the writer is told of a share in the next step, beside that one's s: with 80 queries 0.5 %
    /// faster, with 64 no faster.
    const HANDS_OVER_LATE: bool = Self::EXPONENTS_FIRST && K::QUERIES == 80;

    /// Both warpgroups have written ds of a step. Only the one that `multiplies` it waits for the other.
    #[inline(always)]
    unsafe fn meet_in_turn(&self, warpgroup: u32, multiplies: bool) {
        match (multiplies, warpgroup) {
            (true, 0) => barrier::sync_constant::<MEET, CONSUMERS>(),
            (true, _) => barrier::sync_constant::<{ MEET + 1 }, CONSUMERS>(),
            (false, 0) => barrier::arrive_constant::<{ MEET + 1 }, CONSUMERS>(),
            (false, _) => barrier::arrive_constant::<MEET, CONSUMERS>(),
        }
    }

    /// The descriptor of rows (queries) of dS, from `first` on.
    #[inline(always)]
    fn ds_rows(&self, stage: u32, first: u32) -> u64 {
        self.ds(stage).descriptor(first)
    }

    /// Writes the `half`-th half of a tile of dQ for its writer, who is told now or in the next step.
    #[inline(always)]
    unsafe fn hand_over_half<const DQ: usize>(
        &self,
        dq: &mut [f32; DQ],
        factor: f32,
        half: u32,
        stages: &Cursor<QueryStages<K>>,
    ) {
        if E::NARROW && factor != 1.0 {
            scale_all(dq, 1.0 / factor);
        }
        let thread = thread::thread_idx_x() % WARPGROUP;
        let (stage, turn) = (self.dq_stage(half), stages.in_step());
        stage.acquire(&turn);
        put::<DQ, 0, DQ>(dq, self.dq(half) + 16 * thread);
        if !Self::HANDS_OVER_LATE {
            announce(thread % 32 == 0, stage, &turn);
        }
    }

    /// A warp is done with dO of a step. Not a closure: the compiler inlines those by how long they are, and
    /// where it does not, the softcap spills more.
    #[inline(always)]
    unsafe fn release_d_o(&self, lane: u32, stages: &Cursor<QueryStages<K>>) {
        if lane == 0 {
            self.d_os.counted_by().release(stages);
        }
    }

    /// A warp of a computing warpgroup. Registers per thread: `S` of scores, `P` of packed probabilities, `O`
    /// of a gradient.
    #[inline(always)]
    unsafe fn consume<const S: usize, const P: usize, const O: usize, const DQ: usize>(
        &self,
        p: &BackwardParams,
        warpgroup: u32,
    ) where
        E: GradientElement<S, P, O> + QueryGradientElement<KEYS, DQ>,
        [f32; S]: Wait,
        [f32; O]: Wait,
        [f32; DQ]: Wait,
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
                // 1 while dq of the step before is written and not yet handed over.
                let mut written = 0;
                let mut largest_value = 0.0;
                if E::NARROW {
                    let thread = warpgroup * WARPGROUP + thread;
                    largest_value = self.largest_value::<1, CONSUMERS>(p, thread);
                }
                loop {
                    let stage = stages.stage();
                    self.queries.wait(&stages);
                    let mut shows_all = false;
                    if Self::skips_steps() {
                        let visited = self.visited(&stages);
                        (at, shows_all) = (visited.step(steps), visited.tile.shows_all);
                    }
                    let bias = self.bias(stage, first_row);
                    self.fetch_bias(p, bias, self.orders.letter_here(&orders), &at);
                    let mut scores =
                        E::start_scores::<KeyTile<K>>(keys, self.query(stage).descriptor(0));
                    if Self::HANDS_OVER_LATE {
                        let turn = stages.previous().in_step();
                        announce(lane == 0 && written != 0, self.dq_stage(warpgroup), &turn);
                        written = wgmma::one();
                    }
                    let lse = self.lse(stage);
                    let references = || self.references(p, self.orders.letter_here(&orders), &at);
                    let step = StepScores {
                        lane,
                        lse,
                        scale: &scale,
                        references: &References::find::<E>(p, K::QUERIES, lse, references),
                        score: &p.score,
                        bias: Some(bias),
                        shows_all,
                        tile: || self.tile(p, self.orders.letter_here(&orders), &at),
                        place: || self.place_of(p, self.orders.letter_here(&orders), &at),
                    };
                    if Self::EXPONENTS_FIRST {
                        scores.wait::<0>();
                        if K::QUERIES == 80 {
                            step.exponents_of_either::<E, MmaFragment, 2, S>(&mut scores);
                        } else {
                            step.references.subtract_if_needed::<E, MmaFragment, 2, S>(&mut scores);
                            step.exponents::<E, MmaFragment, 2, S>(&mut scores);
                        }
                    }
                    self.d_os.counted_by().wait(&stages);
                    let mut dp = E::start_scores::<KeyTile<K>>(values, self.d_o(stage).descriptor(0));
                    // What ds is multiplied by to be in the range of E, and sums of it in that of f32; nearly
                    // always 1. Where exponents come late, so does this: f16 with 80 queries spills
                    // otherwise.
                    let factor_of_step = || {
                        if E::NARROW {
                            let (norm, delta) = (self.norm(stage), self.delta(stage));
                            range_factor(lane, K::QUERIES, largest_value, norm, delta)
                        } else {
                            p.ds_scale
                        }
                    };
                    let mut factor = 1.0;
                    if Self::EXPONENTS_FIRST {
                        factor = factor_of_step();
                    }
                    if !Self::EXPONENTS_FIRST {
                        scores.wait::<1>();
                        step.references.subtract_if_needed::<E, MmaFragment, 2, S>(&mut scores);
                        step.exponents::<E, MmaFragment, 2, S>(&mut scores);
                    }
                    let probability = step
                        .probabilities_of_either::<E, MmaFragment, 2, S>(&mut scores, walk.hides(&at));
                    if !Self::EXPONENTS_FIRST {
                        factor = factor_of_step();
                    }
                    let probability: [u32; P] = pack::<E, S, P>(&probability);
                    let delta = self.delta(stage);
                    if Self::EXPONENTS_FIRST {
                        let early = load_delta::<MmaFragment, 2, S, EARLY_DELTAS>(lane, delta);
                        dp.wait::<0>();
                        dropout::apply_to_dp(&mut dp, &mut scores, &p.score);
                        subtract_loaded_delta::<MmaFragment, 2, S, EARLY_DELTAS>(
                            lane, &mut dp, &early, delta,
                        );
                    } else {
                        dp.wait::<0>();
                        dropout::apply_to_dp(&mut dp, &mut scores, &p.score);
                        subtract_delta::<MmaFragment, 2, S>(lane, &mut dp, delta);
                    }
                    multiply_all(&mut dp, &scores);
                    if factor != 1.0 {
                        scale_all(&mut dp, factor);
                        if E::NARROW {
                            scale_all(&mut dk, factor);
                        }
                    }
                    let ds: [u32; P] = pack::<E, S, P>(&dp);
                    store_transposed(lane, &ds, self.ds(stage), first_row / 16);
                    E::start_gradient(&mut dv, &probability, self.d_o(stage).descriptor(0));
                    bulk_copy::fence();
                    let query = self.query(stage).descriptor(0);
                    if !Self::TAKES_TURNS {
                        barrier::sync_constant::<MEET, CONSUMERS>();
                        // Which 64 columns of dQ are this warpgroup's.
                        let dq_keys = self.key.panel(warpgroup).descriptor(0);
                        let mut dq = E::start_dq::<DsTile<K>>(self.ds_rows(stage, 0), dq_keys);
                        E::start_gradient(&mut dk, &ds, query);
                        dq.wait::<1>();
                        self.release_d_o(lane, &stages);
                        self.hand_over_half(&mut dq, factor, warpgroup, &stages);
                    } else if warp::uniform(stage) == warpgroup {
                        dv.wait::<0>();
                        self.release_d_o(lane, &stages);
                        self.meet_in_turn(warpgroup, true);
                        let dq_keys = self.key.panel(0).descriptor(0);
                        let mut first = E::start_dq::<DsTile<K>>(self.ds_rows(stage, 0), dq_keys);
                        let mut second = E::start_dq::<DsTile<K>>(self.ds_rows(stage, 64), dq_keys);
                        E::start_gradient(&mut dk, &ds, query);
                        first.wait::<2>();
                        self.hand_over_half(&mut first, factor, 0, &stages);
                        second.wait::<1>();
                        self.hand_over_half(&mut second, factor, 1, &stages);
                    } else {
                        self.meet_in_turn(warpgroup, false);
                        E::start_gradient(&mut dk, &ds, query);
                        dv.wait::<1>();
                        self.release_d_o(lane, &stages);
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
                    if at.step == steps {
                        break;
                    }
                }
                dv.wait::<0>();
                if Self::HANDS_OVER_LATE {
                    announce(lane == 0, self.dq_stage(warpgroup), &stages.previous().in_step());
                }
            }
            self.end_tile(p, &mut orders, warpgroup, &mut dk, &mut dv);
        }
    }
}

/// Gives `COUNT` registers of dQ, from `FIRST` on, to the writer, by the thread's `slot` in shared memory,
/// which must have been acquired.
#[inline(always)]
unsafe fn hand_over<const N: usize, const FIRST: usize, const COUNT: usize>(
    lane: u32,
    dq: &[f32; N],
    slot: u32,
    stage: Stages<Count<1>>,
    turn: &Cursor<Count<1>>,
) {
    put::<N, FIRST, COUNT>(dq, slot);
    announce(lane == 0, stage, turn);
}

/// The first half of [`hand_over`]: writes the registers, four at a time.
#[inline(always)]
unsafe fn put<const N: usize, const FIRST: usize, const COUNT: usize>(dq: &[f32; N], slot: u32) {
    let mut i = 0;
    while i < COUNT / 4 {
        let four = [0, 1, 2, 3].map(|e| dq[FIRST + 4 * i + e].to_bits());
        shared::store_u32x4(slot + i as u32 * 16 * WARPGROUP, four);
        i += 1;
    }
}

/// The second half of [`hand_over`]: the one lane of a warp that `tells` says that the warp has written.
#[inline(always)]
unsafe fn announce(tells: bool, stage: Stages<Count<1>>, turn: &Cursor<Count<1>>) {
    bulk_copy::fence();
    warp::warp_sync();
    if tells {
        stage.fill(turn);
    }
}

/// One block: a warpgroup of helpers and two that compute.
#[inline(always)]
unsafe fn backward<K, const S: usize, const P: usize, const O: usize, const DQ: usize>(
    p: &BackwardHopperParams,
    maps: Maps,
) where
    K: BackwardKernel<Element: GradientElement<S, P, O> + QueryGradientElement<KEYS, DQ>>,
    [f32; S]: Wait,
    [f32; O]: Wait,
    [f32; DQ]: Wait,
{
    const { assert!(K::KEYS == KEYS) };
    let room = Room::<K>::new();
    room.open(&p.backward);
    let warp = Recruit::new();
    if warp.helps() {
        room.help(p, &maps, warp);
    } else {
        room.consume::<S, P, O, DQ>(&p.backward, warp.become_consumer::<240>());
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
                    Instance<element::$dtype, $dim, $queries, $keys>,
                    { $queries / 2 }, { $queries / 4 }, { $dim / 2 }, { $queries * $dim / 256 },
                >(&p, maps);
            }
        )*
    };
}
crate::for_each_backward_sm90a!(entries);
