//! First kernel of the backward: `delta = sum(dO o) - dLSE` and lse as the main kernel wants it
//! ([`RowStatistic`]), per query row. For f16 also the norm `sum |dO|` of each row, which bounds dS. And it
//! zeroes dQ's accumulators, or the notes of how far these are. A block takes one or two tiles of 64 rows of
//! the padded workspace, each of its warps 16 rows of a tile.
//!
//! The main kernel subtracts delta from `dp = dO v`. For a row that sees one key, `o = v`, and the
//! difference must be 0, not the difference of two roundings: so delta is summed by the same
//! instructions in the same order as dp, tensor cores for 16-bit elements (the diagonal of `o dO^T`),
//! chains of fused multiply-adds for f32.

mod coarse;
mod sums;

use self::coarse::RowSoftmax;
use self::sums::{RowSums, Steps, Sums};
use crate::abi::layout::backward_delta_tiles;
use crate::abi::{BackwardParams, NOTE_ROWS, ROW_PADDING, RowStatistic, TensorView};
use crate::arch::{global, math, thread, warp};
use crate::attention::key_block::{self, UNTOUCHED};
use crate::attention::score::BackwardScale;
use crate::attention::score::references::{self, STEEP};
use crate::attention::sequence::Sequence;
use crate::tile::element::{self, Element, TensorCoreElement};
use crate::tile::global_rows::GlobalRows;

/// Rows of a warp.
const WARP_ROWS: u32 = 16;
/// Rows of a tile, of four warps.
const ROWS: u32 = 4 * WARP_ROWS;

/// The rows of a warp, of one (batch, query head): 16 of each of the block's tiles of [`ROWS`] rows.
struct DeltaRows<'p> {
    p: &'p BackwardParams,
    sequence: Sequence,
    /// Batch, or which packed sequence.
    index: u32,
    head: u32,
    /// First row in the sequence.
    first_row: i32,
    /// The same row in the workspace.
    workspace_row: u32,
    /// Tiles of the block.
    tiles: u32,
}

impl<'p> DeltaRows<'p> {
    /// The rows of this warp, the last ones first: what the main kernel begins with is then in L2. Some
    /// threads also zero the counters of the launch.
    #[inline(always)]
    unsafe fn of_this_warp(p: &'p BackwardParams, tiles: u32) -> Self {
        let warp = thread::thread_idx_x() / 32;
        let blocks_per_pair = math::divide(p.padded_rows, tiles * ROWS);
        let index = thread::grid_dim_x() - 1 - thread::block_idx_x();
        let pair = math::divide(index, blocks_per_pair);
        let first_row = (index - pair * blocks_per_pair) * tiles * ROWS + warp * WARP_ROWS;
        let batch = math::divide(pair, p.query_heads);
        let sequence = key_block::sequence(p, batch);
        let workspace_row = key_block::workspace_row(p, &sequence, batch) + first_row;
        let (head, first_row) = (pair - batch * p.query_heads, first_row as i32);
        if p.counter != 0 && thread::thread_idx_x() == 0 {
            if thread::block_idx_x() == 0 {
                global::store_u32(p.counter, 0);
            }
            let key_head = math::divide(head, p.group_size);
            if first_row == 0 && head == key_head * p.group_size {
                global::store_u32(key_block::finished_halves(p, batch, key_head), 0);
            }
        }
        DeltaRows { p, sequence, index: batch, head, first_row, workspace_row, tiles }
    }

    /// Whether they are past the end of a packed sequence's padding: there is nothing to do.
    #[inline(always)]
    fn is_empty(&self) -> bool {
        self.p.cu_seqlens_q != 0
            && self.first_row as u32 >= (self.sequence.query_rows as u32).next_multiple_of(ROW_PADDING)
    }

    #[inline(always)]
    fn rows<const ELEMENT_BYTES: i64>(&self, view: &TensorView) -> GlobalRows {
        self.sequence.query_rows::<ELEMENT_BYTES>(view, self.head, self.first_row, self.p.value_dim)
    }

    /// The rows of the block, of which `rows` are those from this warp's on.
    #[inline(always)]
    fn of_block(&self, rows: &GlobalRows) -> GlobalRows {
        rows.skip(-((thread::thread_idx_x() / 32 * WARP_ROWS) as i32))
    }

    /// Whether lane `lane` answers for a row: 16 lanes do for each tile.
    #[inline(always)]
    fn has_row(&self, lane: u32) -> bool {
        lane < self.tiles * WARP_ROWS
    }

    /// Which row that is, counted from the first of the warp.
    #[inline(always)]
    fn row_of(lane: u32) -> u32 {
        lane / WARP_ROWS * ROWS + lane % WARP_ROWS
    }

    /// What is given of the row of lane `lane`. Padding rows are like dead ones.
    #[inline(always)]
    unsafe fn given(&self, lane: u32) -> Given {
        let in_sequence = self.first_row + Self::row_of(lane) as i32;
        let is_valid = self.has_row(lane) && in_sequence < self.sequence.query_rows;
        let in_head = self.sequence.batch as i64 * self.p.lse_batch_stride
            + (self.sequence.first_query + in_sequence) as i64;
        let index = 4 * (self.head as i64 * self.p.lse_head_stride + in_head) as u64;
        let lse = f32::from_bits(global::load_u32_if(self.p.lse.wrapping_add(index), is_valid));
        let has_gradient = is_valid && self.p.d_lse != 0;
        let d_lse = global::load_u32_if(self.p.d_lse.wrapping_add(index), has_gradient);
        Given { lse: if is_valid { lse } else { f32::NEG_INFINITY }, d_lse: f32::from_bits(d_lse) }
    }

    /// Writes the statistics of the row of lane `lane`, whose `sum(dO o)` is `sum`. Also the norm of dO, if
    /// there is one. `softmax` is that of the row's scores, if its lse is coarse.
    #[inline(always)]
    unsafe fn store<E: Element>(
        &self,
        lane: u32,
        given: Given,
        softmax: &RowSoftmax,
        sum: f32,
        norm: Option<f32>,
    ) {
        if !self.has_row(lane) {
            return;
        }
        let row = self.workspace_row + Self::row_of(lane);
        let store = |which, value| {
            global::store_f32(key_block::statistics(self.p, which, self.head, row), value)
        };
        store(RowStatistic::Delta, (sum - given.d_lse) * self.p.score.dropout.delta_scale);
        if let Some(norm) = norm {
            store(RowStatistic::Norm, norm);
        }
        let factor = references::factor(self.p);
        let (reference, log_sum) = softmax.relative_to(given.lse, coarse::lse_tolerance(self.p));
        // Of a cap whose reciprocal is infinite no row is steep.
        let rest = if log_sum == 0.0 { 0.0 } else { -log_sum * math::reciprocal(factor) };
        let (lse, reference) = if references::all_rows_have_one(self.p) {
            (BackwardScale::statistic::<E>(self.p, given.lse), [reference, rest])
        } else if BackwardScale::is_steep(given.lse, factor) {
            (STEEP, [reference, rest])
        } else {
            (BackwardScale::statistic::<E>(self.p, given.lse), [0.0; 2])
        };
        store(RowStatistic::Lse, lse);
        global::store_f32x2(key_block::references(self.p, self.head, row), reference);
    }

    /// Zeroes the accumulators of these rows, which are contiguous in each tile; or, for main kernels that
    /// store the first share and add only the others, the notes of that.
    #[inline(always)]
    unsafe fn zero(&self, lane: u32) {
        let mut row = self.workspace_row;
        let end = row + self.tiles * ROWS;
        while row < end {
            if self.p.dq_notes == 0 {
                self.zero_accumulators(lane, row);
            } else if row % NOTE_ROWS == 0 && lane == 0 {
                global::store_u32(key_block::dq_note(self.p, self.head, row), UNTOUCHED);
            }
            row += ROWS;
        }
    }

    /// Zeroes the accumulators of 16 rows of the workspace.
    #[inline(always)]
    unsafe fn zero_accumulators(&self, lane: u32, first_row: u32) {
        let mut split = 0;
        while split < self.p.splits {
            let start = key_block::dq_accumulator(self.p, split, self.head, first_row);
            let mut offset = 16 * lane;
            while offset < 4 * WARP_ROWS * self.p.padded_dim {
                global::store_u32x4(start.wrapping_add(offset as u64), [0; 4]);
                offset += 16 * 32;
            }
            split += 1;
        }
    }
}

/// What is given of a row: lse and its gradient.
#[derive(Clone, Copy)]
struct Given {
    lse: f32,
    d_lse: f32,
}

/// For 16-bit elements: the diagonal of `o dO^T` on tensor cores.
#[inline(always)]
unsafe fn delta_mma<E: TensorCoreElement>(p: &BackwardParams) {
    let tiles = backward_delta_tiles(E::BYTES, p.value_dim);
    let rows = DeltaRows::of_this_warp(p, tiles);
    if rows.is_empty() {
        return;
    }
    let lane = thread::thread_idx_x() % 32;
    let (d_o, o_16) = (rows.rows::<2>(&p.d_o), rows.rows::<2>(&p.o));
    let steps = Steps::new(rows.of_block(&o_16), rows.of_block(&d_o), tiles);
    let through_shared = p.output_f32 == 0 && has_whole_chunks(&d_o) && has_whole_chunks(&o_16);
    if through_shared {
        steps.request::<E>(0);
        steps.request::<E>(1);
    }
    let given = rows.given(lane);
    rows.zero(lane);
    let mut sums = RowSums::NONE;
    if through_shared {
        sums = steps.sums::<E>();
    } else {
        let o_32 = rows.rows::<4>(&p.o);
        let mut tile = 0;
        while tile < tiles {
            let skipped = (tile * ROWS) as i32;
            let (d_o, o_32, o_16) = (d_o.skip(skipped), o_32.skip(skipped), o_16.skip(skipped));
            let of_tile = Sums::of_pairs::<E>(p.value_dim, lane, |row, column| {
                load_products::<E>(&d_o, &o_32, &o_16, p.output_f32 != 0, row, column)
            });
            sums.take::<E>(lane, tile, &of_tile);
            tile += 1;
        }
    }
    let norm = if E::NARROW { Some(sums.norm) } else { None };
    let softmax = rows.softmax_mma::<E>(lane, given);
    rows.store::<E>(lane, given, &softmax, sums.product, norm);
}

/// o and dO of two columns of a row, and what rounding an o in f32 to 16 bits leaves over of their
/// product.
#[inline(always)]
unsafe fn load_products<E: TensorCoreElement>(
    d_o: &GlobalRows,
    o_32: &GlobalRows,
    o_16: &GlobalRows,
    o_is_f32: bool,
    row: u32,
    column: u32,
) -> (u32, u32, f32) {
    let d_o = load_pair(d_o, row as i32, column);
    if !o_is_f32 {
        return (load_pair(o_16, row as i32, column), d_o, 0.0);
    }
    let exact = load_pair_f32(o_32, row as i32, column);
    let packed = E::pack(exact[0], exact[1]);
    let (rounded, factor) = (E::unpack(packed), E::unpack(d_o));
    let rest = math::fma(factor.0, exact[0] - rounded.0, factor.1 * (exact[1] - rounded.1));
    (packed, d_o, rest)
}

/// For f32: one chain of fused multiply-adds per 32 columns of a row, 8 columns in each lane.
#[inline(always)]
unsafe fn delta_fma(p: &BackwardParams) {
    let rows = DeltaRows::of_this_warp(p, backward_delta_tiles(element::F32::BYTES, p.value_dim));
    if rows.is_empty() {
        return;
    }
    let lane = thread::thread_idx_x() % 32;
    let given = rows.given(lane);
    let mut lane_sum = 0.0;
    let (d_o, o) = (rows.rows::<4>(&p.d_o), rows.rows::<4>(&p.o));
    let mut row = 0;
    while row < thread::opaque(WARP_ROWS) {
        let (mut left, mut right) = ([0.0; 8], [0.0; 8]);
        let mut i = 0;
        while i < 8 {
            let [first, second] = load_pair_f32(&d_o, row as i32, 8 * lane + i as u32);
            (left[i], left[i + 1]) = (first, second);
            let [first, second] = load_pair_f32(&o, row as i32, 8 * lane + i as u32);
            (right[i], right[i + 1]) = (first, second);
            i += 2;
        }
        // A chain of 32 columns goes through four lanes.
        let mut sum = 0.0;
        let mut chain = 0.0;
        let mut owner = 0;
        while 8 * owner < p.value_dim {
            let mut i = 0;
            while i < 8 {
                chain = math::fma(left[i], right[i], chain);
                i += 1;
            }
            chain = warp::shuffle(chain, owner);
            owner += 1;
            if owner % 4 == 0 {
                sum += chain;
                chain = 0.0;
            }
        }
        if lane == row {
            lane_sum = sum + chain;
        }
        row += 1;
    }
    let softmax = rows.softmax_fma(lane, given);
    rows.store::<element::F32>(lane, given, &softmax, lane_sum, None);
    rows.zero(lane);
}

/// Whether rows start on 16-byte boundaries.
#[inline(always)]
fn has_whole_chunks(rows: &GlobalRows) -> bool {
    (rows.address | rows.row_bytes as u64) % 16 == 0
}

/// Two neighbouring 16-bit elements from an even column on, 0 where there are none.
#[inline(always)]
unsafe fn load_pair(rows: &GlobalRows, row: i32, column: u32) -> u32 {
    let address = rows.row(row).wrapping_add(2 * column as u64);
    let valid = row < rows.rows;
    let both = valid && column + 1 < rows.columns;
    if both && address % 4 == 0 {
        return global::load_u32(address);
    }
    let low = global::load_u16_if(address, valid && column < rows.columns);
    let high = global::load_u16_if(address.wrapping_add(2), both);
    low as u32 | (high as u32) << 16
}

/// Two neighbouring f32 from an even column on, 0 where there are none.
#[inline(always)]
unsafe fn load_pair_f32(rows: &GlobalRows, row: i32, column: u32) -> [f32; 2] {
    let address = rows.row(row).wrapping_add(4 * column as u64);
    let valid = row < rows.rows;
    let first = global::load_u32_if(address, valid && column < rows.columns);
    let second = global::load_u32_if(address.wrapping_add(4), valid && column + 1 < rows.columns);
    [f32::from_bits(first), f32::from_bits(second)]
}

macro_rules! entries {
    ($(($name:ident, $dtype:ident))*) => {
        $(
            /// The delta kernel of one element type.
            ///
            /// # Safety
            /// `p` is as [`BackwardParams`] says.
            #[unsafe(no_mangle)]
            pub unsafe extern "ptx-kernel" fn $name(p: BackwardParams) {
                element::$dtype::delta(&p);
            }
        )*
    };
}
crate::for_each_backward_delta_mma_sm80!(entries);
crate::for_each_backward_delta_fma_sm80!(entries);

/// Which of the two an element type takes.
trait Delta: Element {
    unsafe fn delta(p: &BackwardParams);
}

impl Delta for element::Bf16 {
    #[inline(always)]
    unsafe fn delta(p: &BackwardParams) {
        delta_mma::<element::Bf16>(p);
    }
}

impl Delta for element::F16 {
    #[inline(always)]
    unsafe fn delta(p: &BackwardParams) {
        delta_mma::<element::F16>(p);
    }
}

impl Delta for element::F32 {
    #[inline(always)]
    unsafe fn delta(p: &BackwardParams) {
        delta_fma(p);
    }
}
