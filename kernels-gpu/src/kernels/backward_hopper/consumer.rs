//! A computing warpgroup of the Hopper backward up to head dim 128, one of two: the steps of its keys.

use super::key_tile::{apply_factor, undo_factor};
use super::room::Room;
use super::tile::{BackwardKernel, DsTile, KeyTile, QueryStages};
use super::{CONSUMERS, KEYS};
use crate::abi::BackwardParams;
use crate::arch::{barrier, bulk_copy, shared, specialize, thread, warp, wgmma};
use crate::attention::gradient::{load_delta, multiply_all, subtract_delta, subtract_loaded_delta};
use crate::attention::key_block::{Step, Walk};
use crate::attention::key_order::KeyOrder;
use crate::attention::score::backward::{BackwardScale, StepScores};
use crate::attention::score::bias_tile::WarpBias;
use crate::attention::score::dropout;
use crate::attention::score::references::References;
use crate::geometry::size::Count;
use crate::pipeline::mailbox::MessageCursor;
use crate::pipeline::roles::WARPGROUP;
use crate::pipeline::stages::{Cursor, Stages};
use crate::tile::fragment::MmaFragment;
use crate::tile::mma::pack;
use crate::tile::warpgroup::{GradientElement, QueryGradientElement, Wait, store_transposed};

/// Columns whose delta is there before dp is.
const EARLY_DELTAS: usize = 8;

/// Where the computing warpgroups meet, once a step; if they take turns, for steps of stage 0, and for those
/// of stage 1 at the next barrier.
const MEET: u32 = 1;

/// A warp of a computing warpgroup: what does not change. Registers per thread: `S` of
/// scores, `P` of packed probabilities, `O` of a gradient, `DQ` of dQ.
pub(super) struct Consumer<
    'a,
    K: BackwardKernel,
    const S: usize,
    const P: usize,
    const O: usize,
    const DQ: usize,
> {
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

/// The order that is worked on, and the stage of the step.
type Cursors<'a, K> = (&'a MessageCursor, &'a Cursor<QueryStages<K>>);

/// A step, whose queries are there.
struct QueryStep {
    at: Step,
    /// Stage of its queries, dO and statistics.
    stage: u32,
    /// Whether the boolean mask, if there is one, hides nothing.
    shows_all: bool,
    bias: WarpBias,
}

impl<'a, E, K, const S: usize, const P: usize, const O: usize, const DQ: usize>
    Consumer<'a, K, S, P, O, DQ>
where
    K: BackwardKernel<Element = E>,
    E: GradientElement<S, P, O> + QueryGradientElement<KEYS, DQ>,
    [f32; S]: Wait,
    [f32; O]: Wait,
    [f32; DQ]: Wait,
{
    /// Whether a warpgroup multiplies dq of every other step, its own stage's, rather than half of every one.
    const TAKES_TURNS: bool = K::QUERIES == 128;

    /// Whether dp waits for the exponents. With 80 queries of f16 there are no registers for that.
    const EXPONENTS_FIRST: bool = !Self::TAKES_TURNS && (K::QUERIES == 64 || !E::NARROW);

    /// Whether the writer is told of a share in the next step, beside that one's s: with 80 queries 0.5 %
    /// faster, with 64 no faster.
    const HANDS_OVER_LATE: bool = Self::EXPONENTS_FIRST && K::QUERIES == 80;

    /// This warp, of computing warpgroup `warpgroup`, before its first key tile.
    #[inline(always)]
    pub unsafe fn new(
        room: &'a Room<K>,
        p: &'a BackwardParams,
        scale: &'a BackwardScale,
        warpgroup: u32,
    ) -> Self {
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
    ///
    /// # Safety
    /// All threads of the warpgroup call it together.
    #[inline(always)]
    pub unsafe fn consume(&self) {
        let &Consumer { room, p, warpgroup, lane, keys, .. } = self;
        let mut orders = Cursor::start();
        let mut stages = Cursor::start();
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
                // 1 while dq of the step before is written and not yet handed over.
                let mut written = 0;
                let mut largest_value = 0.0;
                // Whether the bias of the step has been asked for.
                let mut has_bias = false;
                if E::NARROW {
                    let thread = warpgroup * WARPGROUP + self.thread;
                    largest_value = room.largest_value::<1, CONSUMERS>(p, thread);
                }
                loop {
                    let step = self.wait_for_queries((&orders, &stages), steps, at, has_bias);
                    let stage = step.stage;
                    let query = room.query(stage).descriptor(0);
                    let mut scores = E::start_scores::<KeyTile<K>>(keys, query);
                    if Self::HANDS_OVER_LATE {
                        let turn = stages.previous().in_step();
                        announce(lane == 0 && written != 0, room.dq_stage(warpgroup), &turn);
                        written = wgmma::one();
                    }
                    let (probability, mut dp, factor) = self.probabilities_and_dp(
                        (&orders, &stages),
                        &walk,
                        &step,
                        &mut scores,
                        largest_value,
                    );
                    self.make_ds(stage, &mut scores, &mut dp);
                    apply_factor::<E>(factor, &mut dp, &mut dk);
                    let ds: [u32; P] = pack::<E, S, P>(&dp);
                    store_transposed(lane, &ds, room.ds(stage), self.first_row / 16);
                    E::start_gradient(&mut dv, &probability, room.d_o(stage).descriptor(0));
                    bulk_copy::fence();
                    self.multiply_ds(&stages, &ds, factor, &mut dk, &mut dv);
                    at = walk.next(&step.at);
                    has_bias = self.fetch_next_bias((&orders, &stages), steps, &at);
                    dk.wait::<0>();
                    if lane == 0 {
                        room.queries.release(&stages);
                    }
                    undo_factor::<E>(factor, &mut dk);
                    stages.advance();
                    if at.step == steps {
                        break;
                    }
                }
                dv.wait::<0>();
                if Self::HANDS_OVER_LATE {
                    announce(lane == 0, room.dq_stage(warpgroup), &stages.previous().in_step());
                }
            }
            room.end_tile(p, &mut orders, warpgroup, &mut dk, &mut dv);
        }
    }

    /// Waits for the queries of a step, `at` or the next one of which a boolean mask shows something, and
    /// starts to bring its bias.
    #[inline(always)]
    unsafe fn wait_for_queries(
        &self,
        (orders, stages): Cursors<K>,
        steps: u32,
        mut at: Step,
        has_bias: bool,
    ) -> QueryStep {
        let &Consumer { room, p, .. } = self;
        let stage = stages.stage();
        room.queries.wait(stages);
        let mut shows_all = false;
        if Room::<K>::skips_steps() {
            let visited = room.visited(stages);
            (at, shows_all) = (visited.step(steps), visited.tile.shows_all);
        }
        let bias = room.bias(stage, self.first_row);
        if !has_bias {
            room.fetch_bias(p, bias, room.orders.letter_here(orders), &at);
        }
        QueryStep { at, stage, shows_all, bias }
    }

    /// Starts to bring the bias of the next step, `at`, where it is known which that is. Behind the product
    /// of dQ of this one, before which all have met, the dS of the step before has been multiplied: the next
    /// one's, and its bias, will stand there. Where warpgroups take turns not all have.
    #[inline(always)]
    unsafe fn fetch_next_bias(&self, (orders, stages): Cursors<K>, steps: u32, at: &Step) -> bool {
        let &Consumer { room, p, .. } = self;
        let is_known = !Self::TAKES_TURNS && specialize::bias() && !Room::<K>::skips_steps();
        let is_known = is_known && at.step < steps;
        if is_known {
            // There are two: the next one is the one before.
            let bias = room.bias(stages.previous().stage(), self.first_row);
            room.fetch_bias(p, bias, room.orders.letter_here(orders), at);
        }
        is_known
    }

    /// Makes `p = e^(s - lse)` of scores that were started, and starts dp, which waits for the exponents or
    /// does not. Leaves in `scores` what dp - delta is multiplied by, and says what ds is multiplied by.
    #[inline(always)]
    unsafe fn probabilities_and_dp(
        &self,
        (orders, stages): Cursors<K>,
        walk: &Walk,
        step: &QueryStep,
        scores: &mut [f32; S],
        largest_value: f32,
    ) -> ([u32; P], [f32; S], f32) {
        let &Consumer { room, p, lane, values, .. } = self;
        let &QueryStep { ref at, stage, shows_all, bias } = step;
        let lse = room.lse(stage);
        let references = || room.references(p, room.orders.letter_here(orders), at);
        let step = StepScores {
            lane,
            lse,
            scale: self.scale,
            references: &References::find::<E>(p, K::QUERIES, lse, references),
            score: &p.score,
            bias: Some(bias),
            shows_all,
            tile: || room.tile(p, room.orders.letter_here(orders), at),
            place: || room.place_of(p, room.orders.letter_here(orders), at),
        };
        if Self::EXPONENTS_FIRST {
            scores.wait::<0>();
            if K::QUERIES == 80 {
                step.exponents_of_either::<E, MmaFragment, 2, S>(scores);
            } else {
                step.references.subtract_if_needed::<E, MmaFragment, 2, S>(scores);
                step.exponents::<E, MmaFragment, 2, S>(scores);
            }
        }
        room.d_os.counted_by().wait(stages);
        let dp = E::start_scores::<KeyTile<K>>(values, room.d_o(stage).descriptor(0));
        let mut factor = 1.0;
        if Self::EXPONENTS_FIRST {
            factor = room.ds_factor(p, lane, stage, largest_value);
        } else {
            scores.wait::<1>();
            step.references.subtract_if_needed::<E, MmaFragment, 2, S>(scores);
            step.exponents::<E, MmaFragment, 2, S>(scores);
        }
        let probability = step.probabilities_of_either::<E, MmaFragment, 2, S>(scores, walk.hides(at));
        // Where exponents come late, so does this: f16 with 80 queries spills otherwise.
        if !Self::EXPONENTS_FIRST {
            factor = room.ds_factor(p, lane, stage, largest_value);
        }
        (pack::<E, S, P>(&probability), dp, factor)
    }

    /// Waits for dp, and makes `ds = p (dp - delta)` of it.
    #[inline(always)]
    unsafe fn make_ds(&self, stage: u32, scores: &mut [f32; S], dp: &mut [f32; S]) {
        let &Consumer { p, lane, .. } = self;
        let delta = self.room.delta(stage);
        if Self::EXPONENTS_FIRST {
            let early = load_delta::<MmaFragment, 2, S, EARLY_DELTAS>(lane, delta);
            dp.wait::<0>();
            dropout::apply_to_dp(dp, scores, &p.score);
            subtract_loaded_delta::<MmaFragment, 2, S, EARLY_DELTAS>(lane, dp, &early, delta);
        } else {
            dp.wait::<0>();
            dropout::apply_to_dp(dp, scores, &p.score);
            subtract_delta::<MmaFragment, 2, S>(lane, dp, delta);
        }
        multiply_all(dp, scores);
    }

    /// Starts `dk += ds q`, and multiplies and hands over this warpgroup's share of `dq = ds^T k`. dO is
    /// released as soon as dv is there.
    #[inline(always)]
    unsafe fn multiply_ds(
        &self,
        stages: &Cursor<QueryStages<K>>,
        ds: &[u32; P],
        factor: f32,
        dk: &mut [f32; O],
        dv: &mut [f32; O],
    ) {
        let &Consumer { room, warpgroup, .. } = self;
        let stage = stages.stage();
        let query = room.query(stage).descriptor(0);
        if !Self::TAKES_TURNS {
            barrier::sync_constant::<MEET, CONSUMERS>();
            // Which 64 columns of dQ are this warpgroup's.
            let dq_keys = room.key.panel(warpgroup).descriptor(0);
            let mut dq = E::start_dq::<DsTile<K>>(self.ds_rows(stage, 0), dq_keys);
            E::start_gradient(dk, ds, query);
            dq.wait::<1>();
            self.release_d_o(stages);
            self.hand_over_half(&mut dq, factor, warpgroup, stages);
        } else if warp::uniform(stage) == warpgroup {
            dv.wait::<0>();
            self.release_d_o(stages);
            self.meet_in_turn(true);
            let dq_keys = room.key.panel(0).descriptor(0);
            let mut first = E::start_dq::<DsTile<K>>(self.ds_rows(stage, 0), dq_keys);
            let mut second = E::start_dq::<DsTile<K>>(self.ds_rows(stage, 64), dq_keys);
            E::start_gradient(dk, ds, query);
            first.wait::<2>();
            self.hand_over_half(&mut first, factor, 0, stages);
            second.wait::<1>();
            self.hand_over_half(&mut second, factor, 1, stages);
        } else {
            self.meet_in_turn(false);
            E::start_gradient(dk, ds, query);
            dv.wait::<1>();
            self.release_d_o(stages);
        }
    }

    /// Both warpgroups have written ds of a step. Only the one that `multiplies` it waits for the other.
    #[inline(always)]
    unsafe fn meet_in_turn(&self, multiplies: bool) {
        match (multiplies, self.warpgroup) {
            (true, 0) => barrier::sync_constant::<MEET, CONSUMERS>(),
            (true, _) => barrier::sync_constant::<{ MEET + 1 }, CONSUMERS>(),
            (false, 0) => barrier::arrive_constant::<{ MEET + 1 }, CONSUMERS>(),
            (false, _) => barrier::arrive_constant::<MEET, CONSUMERS>(),
        }
    }

    /// The descriptor of rows (queries) of dS, from `first` on.
    #[inline(always)]
    fn ds_rows(&self, stage: u32, first: u32) -> u64 {
        self.room.ds(stage).descriptor(first)
    }

    /// Writes the `half`-th half of a tile of dQ for its writer, who is told now or in the next step.
    #[inline(always)]
    unsafe fn hand_over_half(
        &self,
        dq: &mut [f32; DQ],
        factor: f32,
        half: u32,
        stages: &Cursor<QueryStages<K>>,
    ) {
        undo_factor::<E>(factor, dq);
        let thread = thread::thread_idx_x() % WARPGROUP;
        let (stage, turn) = (self.room.dq_stage(half), stages.in_step());
        stage.acquire(&turn);
        put::<DQ, 0, DQ>(dq, self.room.dq(half) + 16 * thread);
        if !Self::HANDS_OVER_LATE {
            announce(thread % 32 == 0, stage, &turn);
        }
    }

    /// The warp is done with dO of a step. Not a closure: the compiler inlines those by how long they are,
    /// and where it does not, the softcap spills more.
    #[inline(always)]
    unsafe fn release_d_o(&self, stages: &Cursor<QueryStages<K>>) {
        if self.lane == 0 {
            self.room.d_os.counted_by().release(stages);
        }
    }
}

/// Gives `COUNT` registers of dQ, from `FIRST` on, to the writer, by the thread's `slot` in shared memory,
/// which must have been acquired.
#[inline(always)]
pub(super) unsafe fn hand_over<const N: usize, const FIRST: usize, const COUNT: usize>(
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
pub(super) unsafe fn put<const N: usize, const FIRST: usize, const COUNT: usize>(
    dq: &[f32; N],
    slot: u32,
) {
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
