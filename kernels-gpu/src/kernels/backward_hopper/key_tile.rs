//! What the computing warps of all kernels for Hopper do with a key tile, beside the steps: where their part
//! of it stands, what bounds it, and where its gradients go.

use super::room::Room;
use super::tile::BackwardKernel;
use crate::abi::BackwardParams;
use crate::arch::{barrier, specialize, thread};
use crate::attention::gradient::{block_max, range_factor, scale_all};
use crate::attention::key_block::Step;
use crate::attention::key_order::KeyOrder;
use crate::attention::key_stretch::{KeyGradient, division, final_scale};
use crate::attention::score::bias_tile::{BiasPart, WarpBias};
use crate::attention::score::{ScorePlace, ScoreTile, dropout, features};
use crate::pipeline::mailbox::{Letter, MessageCursor};
use crate::pipeline::roles::{WARPGROUP, lane_and_first_row};
use crate::tile::add::add_pairs;
use crate::tile::element::TensorCoreElement;
use crate::tile::store::{store_exchanged, store_pairs};

/// Lane, and the warp's first row in the tile, worked out anew: registers are for what every step needs.
#[inline(always)]
pub(super) fn place(part: u32) -> (u32, u32) {
    lane_and_first_row(thread::thread_idx_x_here(), part)
}

/// Multiplies ds of a step by its factor and, in units of which it is added then, the sum of dK by that of a
/// narrow type.
#[inline(always)]
pub(super) fn apply_factor<E: TensorCoreElement>(factor: f32, ds: &mut [f32], dk: &mut [f32]) {
    if factor != 1.0 {
        scale_all(ds, factor);
        if E::NARROW {
            scale_all(dk, factor);
        }
    }
}

/// Sums of ds without its factor.
#[inline(always)]
pub(super) fn undo_factor<E: TensorCoreElement>(factor: f32, sums: &mut [f32]) {
    if E::NARROW && factor != 1.0 {
        scale_all(sums, 1.0 / factor);
    }
}

impl<E: TensorCoreElement, K: BackwardKernel<Element = E>> Room<K> {
    /// In which lane this is, and where the tile of a step stands. That is read again: registers are for what
    /// every step needs.
    #[inline(always)]
    pub(super) unsafe fn tile(&self, p: &BackwardParams, letter: Letter, at: &Step) -> (u32, ScoreTile) {
        let KeyOrder { block, .. } = KeyOrder::read(letter, p, K::KEYS);
        let (lane, first_row) = place(thread::thread_idx_x_here() / WARPGROUP - 1);
        let first_row = (block.first_tile * K::KEYS + first_row) as i32;
        (lane, block.score_tile(first_row, at.tile * K::QUERIES as i32))
    }

    /// Which scores of the problem those of a step are.
    #[inline(always)]
    pub(super) unsafe fn place_of(&self, p: &BackwardParams, letter: Letter, at: &Step) -> ScorePlace {
        let KeyOrder { block, .. } = KeyOrder::read(letter, p, K::KEYS);
        let head = if Self::skips_steps() { at.head } else { KeyOrder::head(letter, p, at) };
        block.score_place(p, head)
    }

    /// The warp's part of the bias of a step, which stands where its dS of this step will: keys `first_row..
    /// first_row + 16` of tile `stage` of dS.
    #[inline(always)]
    pub(super) fn bias(&self, stage: u32, first_row: u32) -> WarpBias {
        WarpBias::of_keys(self.ds(stage), first_row)
    }

    /// Starts to bring the bias of a step there, if there is one.
    ///
    /// # Safety
    /// All lanes of a warp call it together; what was dS before has been multiplied.
    #[inline(always)]
    pub(super) unsafe fn fetch_bias(
        &self,
        p: &BackwardParams,
        bias: WarpBias,
        letter: Letter,
        at: &Step,
    ) {
        if specialize::bias() {
            let (lane, tile) = self.tile(p, letter, at);
            let place = self.place_of(p, letter, at);
            let part = BiasPart {
                elements: features::elements::<E>(&p.score.bias, &place, 0)
                    .from(tile.first_column, tile.first_row),
                queries: tile.visible.key_rows - tile.first_column,
                keys: tile.end_row - tile.first_row,
            };
            bias.fetch::<2>(lane, K::QUERIES, &p.score, &part);
        }
    }

    /// Device address of the references of a step's rows.
    #[inline(always)]
    pub(super) unsafe fn references(&self, p: &BackwardParams, letter: Letter, at: &Step) -> u64 {
        if !Self::skips_steps() {
            return KeyOrder::references(letter, p, at, K::QUERIES);
        }
        let KeyOrder { mut block, .. } = KeyOrder::read(letter, p, K::KEYS);
        block.key_head = 0;
        block.references(p, at, K::QUERIES)
    }

    /// The largest value of the tile, times what dropout multiplies dp by, for `THREADS` threads that meet at
    /// barrier `BARRIER`, of whom the caller is number `thread`.
    #[inline(always)]
    pub(super) unsafe fn largest_value<const BARRIER: u32, const THREADS: u32>(
        &self,
        p: &BackwardParams,
        thread: u32,
    ) -> f32 {
        let meet = || barrier::sync_constant::<BARRIER, THREADS>();
        let own = self.value.largest::<E, THREADS>(thread);
        let largest = block_max::<THREADS>(thread, own, self.scratch, meet);
        meet();
        largest * dropout::dp_scale(&p.score)
    }

    /// What ds of a step is multiplied by to be in the range of E, and sums of it in that of f32; nearly
    /// always 1. Norms and delta of its queries stand in stage `stage`.
    #[inline(always)]
    pub(super) unsafe fn ds_factor(
        &self,
        p: &BackwardParams,
        lane: u32,
        stage: u32,
        largest_value: f32,
    ) -> f32 {
        if E::NARROW {
            let (norm, delta) = (self.norm(stage), self.delta(stage));
            range_factor(lane, K::QUERIES, largest_value, norm, delta)
        } else {
            p.ds_scale
        }
    }

    /// A warpgroup that holds dK and dV of 64 keys is done with the key tile of its order: lets go of it, and
    /// writes them.
    #[inline(always)]
    pub(super) unsafe fn end_tile<const O: usize>(
        &self,
        p: &BackwardParams,
        orders: &mut MessageCursor,
        warpgroup: u32,
        dk: &mut [f32; O],
        dv: &mut [f32; O],
    ) {
        let lane = thread::thread_idx_x() % 32;
        if lane == 0 {
            self.keys.release(&orders.in_step());
            self.values.release(&orders.in_step());
        }
        let order = KeyOrder::read(self.orders.letter_here(orders), p, K::KEYS);
        self.orders.discard(orders, lane);
        scale_all(dk, final_scale(p, &order.stretch));
        self.store(p, &order, warpgroup, dk, KeyGradient::Dk);
        if specialize::dropout() {
            scale_all(dv, dropout::scale(&p.score));
        }
        self.store(p, &order, warpgroup, dv, KeyGradient::Dv);
    }

    /// Writes a warp's 16 rows of a gradient of 64 keys, the `part`-th of the block: where they belong, or,
    /// of a stretch of a tile, to its slot. Where gradients are merged they are added to what is there.
    #[inline(always)]
    pub(super) unsafe fn store<const O: usize>(
        &self,
        p: &BackwardParams,
        order: &KeyOrder,
        part: u32,
        values: &[f32; O],
        gradient: KeyGradient,
    ) {
        let KeyOrder { block, stretch, .. } = order;
        let row = (block.first_tile * K::KEYS) as i32;
        let (lane, first_row) = place(part);
        let (target, columns) = gradient.of(p);
        let is_whole = division(p).is_whole(stretch);
        if p.gradients_f32 != 0 || !is_whole {
            let mut rows = block.key_rows::<4>(target, row, columns);
            if !is_whole {
                rows = gradient.slot_rows(p, stretch, &rows);
            }
            let mut values = *values;
            if specialize::merge() && is_whole {
                add_pairs::<O, true>(lane, &mut values, [1.0; 2], first_row, 0, &rows);
            }
            store_pairs::<E, O, true>(lane, &values, first_row, 0, &rows, true);
            return;
        }
        let rows = block.key_rows::<2>(target, row, columns);
        if columns % 8 != 0 {
            store_pairs::<E, O, true>(lane, values, first_row, 0, &rows, false);
        } else {
            store_exchanged::<E, O>(lane, values, first_row, &rows);
        }
    }
}
