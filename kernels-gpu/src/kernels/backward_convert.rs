//! Last kernel of the backward: dQ from its accumulators, `dq = scale * sum over splits`, rounded once; 0 for
//! rows that see no key, whose NaN of q or dO a sum of zeros holds. Where gradients are merged, with what
//! passes over other keys have left.
//!
//! The accumulator holds each query tile in the order in which the lanes of [`super::backward_mma`] had
//! it. The same warps and lanes read it back, and write rows; [`convert_hopper_transposed`] does otherwise.

use super::backward_mma::dq_row_groups;
use crate::abi::layout::{DQ_TRANSPOSED_ROWS, dq_is_transposed};
use crate::abi::{Access, BackwardFmaParams, BackwardParams, BackwardPartsParams, RowStatistic};
use crate::arch::{global, grid, math, specialize, thread, warp};
use crate::attention::key_block::{self, UNTOUCHED};
use crate::attention::key_stretch;
use crate::attention::sequence::Sequence;
use crate::tile::add::{add_pairs, add_row};
use crate::tile::element::{self, SplitF32, TensorCoreElement};
use crate::tile::fma::outer;
use crate::tile::fragment::{Fragment, MmaFragment};
use crate::tile::global_rows::GlobalRows;
use crate::tile::store::{store_eight, store_exchanged, store_four_f32, store_pairs};
use crate::tile::warpgroup::DQ_REGISTERS;

/// Adds a warp's part of dQ to an accumulator, in the order in which lanes hold it: a register of all
/// lanes is 128 contiguous bytes.
///
/// # Safety
/// `tile` is the accumulator's address of the query tile.
#[inline(always)]
pub unsafe fn add_in_lane_order(lane: u32, warp: u32, dq: &[f32], tile: u64) {
    let start = tile.wrapping_add(4 * (warp as u64 * dq.len() as u64 * 32 + lane as u64));
    let mut i = 0;
    while i < dq.len() {
        global::add_f32(start.wrapping_add(128 * i as u64), *dq.get_unchecked(i));
        i += 1;
    }
}

/// Which query tile of which (batch, query head) a block works on.
struct QueryTile {
    batch: u32,
    sequence: Sequence,
    head: u32,
    first_row: i32,
    workspace_row: u32,
}

impl QueryTile {
    /// From the last to the first: what was added last is still in L2.
    #[inline(always)]
    unsafe fn of_this_block(p: &BackwardParams, queries: u32) -> Self {
        let index = thread::grid_dim_x() - 1 - thread::block_idx_x();
        QueryTile::new(p, queries, index)
    }

    /// In the order in which a main kernel for Hopper, of `keys` keys a tile, completes them; it is complete.
    ///
    /// The main kernel may still be at work on those of other heads, by multiprocessors that others of its
    /// blocks have left.
    #[inline(always)]
    unsafe fn completed(p: &BackwardParams, queries: u32, keys: u32) -> Self {
        let (index, blocks) = (thread::block_idx_x(), thread::grid_dim_x());
        let tile = QueryTile::new(p, queries, index);
        let key_tiles = (tile.sequence.visible.key_rows as u32).div_ceil(keys);
        let halves = 2 * key_stretch::division(p).tile_units() * key_tiles;
        let counter = key_block::finished_halves(p, tile.batch, math::divide(tile.head, p.group_size));
        // Without keys there was no main kernel. One block waits for its end in any case: what follows this
        // kernel in the stream does not wait for the main one.
        if halves == 0 || global::load_acquire_u32(counter) != halves || index == blocks - 1 {
            grid::wait_for_previous();
        }
        tile
    }

    /// Tile `index`, counted head by head.
    #[inline(always)]
    unsafe fn new(p: &BackwardParams, queries: u32, index: u32) -> Self {
        let tiles = p.query_rows.div_ceil(queries);
        let pair = math::divide(index, tiles);
        let first_row = (index - pair * tiles) * queries;
        let batch = math::divide(pair, p.query_heads);
        let sequence = key_block::sequence(p, batch);
        let workspace_row = key_block::workspace_row(p, &sequence, batch) + first_row;
        QueryTile {
            batch,
            sequence,
            head: pair - batch * p.query_heads,
            first_row: first_row as i32,
            workspace_row,
        }
    }

    /// Whether there is nothing to do, as past the end of a packed sequence.
    #[inline(always)]
    fn is_empty(&self) -> bool {
        self.first_row >= self.sequence.query_rows
    }

    /// Whether row `row` of the tile sees no key: then its gradient is 0, whatever its q and dO hold.
    #[inline(always)]
    unsafe fn is_dead(&self, p: &BackwardParams, row: u32) -> bool {
        let lse = key_block::statistics(p, RowStatistic::Lse, self.head, self.workspace_row + row);
        global::load_f32(lse) == f32::NEG_INFINITY
    }

    /// Sets dQ of rows that see no key to 0, in the fragment whose first row is `first_row`.
    #[inline(always)]
    unsafe fn clear_dead_rows<F: Fragment<ROWS, N>, const ROWS: usize, const N: usize>(
        &self,
        p: &BackwardParams,
        lane: u32,
        first_row: u32,
        dq: &mut [f32; N],
    ) {
        let mut row = 0;
        while row < ROWS {
            let is_dead = self.is_dead(p, first_row + F::row(lane, row));
            let mut column = 0;
            while column < F::COLUMNS {
                let value = &mut dq[F::register(row, column)];
                *value = if is_dead { 0.0 } else { *value };
                column += 1;
            }
            row += 1;
        }
    }

    #[inline(always)]
    fn dq<const ELEMENT_BYTES: i64>(&self, p: &BackwardParams) -> GlobalRows {
        self.sequence.query_rows::<ELEMENT_BYTES>(&p.dq, self.head, self.first_row, p.head_dim)
    }

    /// What passes over other keys have left.
    #[inline(always)]
    fn previous_dq(&self, p: &BackwardParams) -> GlobalRows {
        self.sequence.query_rows::<4>(&p.previous_dq, self.head, self.first_row, p.head_dim)
    }

    /// The accumulator that a main kernel for Hopper adds to, and whether it has stored anything there: all
    /// parts of a tile, or none, since a query that sees no key has no gradient.
    #[inline(always)]
    unsafe fn accumulator(&self, p: &BackwardParams) -> (u64, bool) {
        let tile = key_block::dq_tile(p, &self.sequence, self.head, self.workspace_row);
        let note = global::load_acquire_u32(key_block::dq_note(p, self.head, self.workspace_row));
        (tile, note != UNTOUCHED)
    }

    /// The sum over all accumulators of what [`add_in_lane_order`] put there, in a fixed order.
    #[inline(always)]
    unsafe fn sum_in_lane_order(&self, p: &BackwardParams, lane: u32, warp: u32, dq: &mut [f32]) {
        let mut split = 0;
        while split < p.splits {
            let tile = key_block::dq_accumulator(p, split, self.head, self.workspace_row);
            let start = tile.wrapping_add(4 * (warp as u64 * dq.len() as u64 * 32 + lane as u64));
            let mut i = 0;
            while i < dq.len() {
                *dq.get_unchecked_mut(i) += global::load_f32(start.wrapping_add(128 * i as u64));
                i += 1;
            }
            split += 1;
        }
    }
}

/// One query tile of one (batch, query head). Sizes as in [`super::backward_mma`].
#[inline(always)]
unsafe fn convert<
    E: TensorCoreElement,
    const VECTOR: bool,
    const QUERIES: u32,
    const ROW_GROUPS: u32,
    const DM: usize,
    const DO: usize,
>(
    p: &BackwardParams,
) {
    let (lane, warp) = (thread::thread_idx_x() % 32, thread::thread_idx_x() / 32);
    let block = QueryTile::of_this_block(p, QUERIES);
    if block.is_empty() {
        return;
    }
    let mut dq = [[0.0; DO]; DM];
    block.sum_in_lane_order(p, lane, warp, dq.as_flattened_mut());
    let target = if p.dq_f32 != 0 { block.dq::<4>(p) } else { block.dq::<2>(p) };
    let (row_group, column_group) = (warp % ROW_GROUPS, warp / ROW_GROUPS);
    let mut m = 0;
    while m < DM {
        let mut i = 0;
        while i < DO {
            dq[m][i] *= p.gradient_scale;
            i += 1;
        }
        let row = (row_group * DM as u32 + m as u32) * 16;
        block.clear_dead_rows::<MmaFragment, 2, DO>(p, lane, row, &mut dq[m]);
        let column = column_group * DO as u32 * 2;
        if specialize::merge() {
            let source = block.previous_dq(p);
            add_pairs::<DO, true>(lane, &mut dq[m], [1.0; 2], row, column, &source);
        }
        store_pairs::<E, DO, VECTOR>(lane, &dq[m], row, column, &target, p.dq_f32 != 0);
        m += 1;
    }
}

/// The same for the lanes of [`super::backward_fma`].
#[inline(always)]
unsafe fn convert_fma<const VECTOR: bool, const QUERIES: u32, const C: usize, const N: usize>(
    p: &BackwardParams,
) {
    let (lane, warp) = (thread::thread_idx_x() % 32, thread::thread_idx_x() / 32);
    let block = QueryTile::of_this_block(p, QUERIES);
    if block.is_empty() {
        return;
    }
    let mut dq = [0.0; N];
    block.sum_in_lane_order(p, lane, warp, &mut dq);
    let target = block.dq::<4>(p);
    let mut four = 0;
    while four < N / 4 {
        let (chunk, row) = (four % C, four / C);
        let row = outer::row(lane, row / 4) + row as u32 % 4;
        let column = (warp * 4 * C as u32 + outer::chunk(lane, chunk)) * 4;
        let is_dead = block.is_dead(p, row);
        let mut values = [0, 1, 2, 3].map(|e| {
            let value = dq[4 * four + e] * p.gradient_scale;
            if is_dead { 0.0 } else { value }
        });
        if specialize::merge() {
            add_row::<4, true>(&mut values, &block.previous_dq(p), row as i32, column);
        }
        store_four_f32::<VECTOR>(&target, row as i32, column, values);
        four += 1;
    }
}

/// One query tile of one (batch, query head), for the lanes of [`super::backward_hopper`]: each
/// warpgroup holds 64 x 64 elements, below each other, side by side or alone, 16 bytes of a lane at a time.
#[inline(always)]
unsafe fn convert_hopper<E: TensorCoreElement, const QUERIES: u32, const KEYS: u32>(p: &BackwardParams) {
    let thread = thread::thread_idx_x();
    let (lane, warpgroup) = (thread % 32, thread / 128);
    let block = QueryTile::completed(p, QUERIES, KEYS);
    if block.is_empty() {
        return;
    }
    let (tile, is_stored) = block.accumulator(p);
    let start =
        tile.wrapping_add(16 * (thread % 128 + warpgroup * 128 * DQ_REGISTERS as u32 / 4) as u64);
    let mut dq = [0.0; DQ_REGISTERS];
    let mut i = 0;
    while i < DQ_REGISTERS / 4 {
        let four = global::load_written_u32x4_if(start.wrapping_add(16 * 128 * i as u64), is_stored);
        let mut e = 0;
        while e < 4 {
            dq[4 * i + e] = f32::from_bits(four[e]) * p.gradient_scale;
            e += 1;
        }
        i += 1;
    }
    let row = thread / 32 % 4 * 16 + if QUERIES == 128 { 64 * warpgroup } else { 0 };
    let column = if QUERIES == 128 { 0 } else { 64 * warpgroup };
    block.clear_dead_rows::<MmaFragment, 2, DQ_REGISTERS>(p, lane, row, &mut dq);
    if specialize::merge() {
        let source = block.previous_dq(p);
        add_pairs::<DQ_REGISTERS, true>(lane, &mut dq, [1.0; 2], row, column, &source);
    }
    if p.dq_f32 != 0 {
        store_pairs::<E, DQ_REGISTERS, true>(lane, &dq, row, column, &block.dq::<4>(p), true);
    } else if p.head_dim % 8 != 0 {
        store_pairs::<E, DQ_REGISTERS, true>(lane, &dq, row, column, &block.dq::<2>(p), false);
    } else {
        let target = block.dq::<2>(p).skip_columns::<2>(column);
        store_exchanged::<E, DQ_REGISTERS>(lane, &dq, row, &target);
    }
}

/// The same where dQ is transposed ([`dq_is_transposed`]). Eight warps held 16 columns of all queries each;
/// of each eight queries, lane `4 c + i` columns `c` and `c + 8` of queries `2 i` and `2 i + 1` in its 16
/// bytes. Here a lane reads those of every other `c`, and exchanges half of them for what is missing of eight
/// columns.
#[inline(always)]
unsafe fn convert_hopper_transposed<E: TensorCoreElement, const QUERIES: u32, const KEYS: u32>(
    p: &BackwardParams,
) {
    let thread = thread::thread_idx_x();
    let (lane, group) = (thread % 32, thread / 32);
    let block = QueryTile::completed(p, QUERIES, KEYS);
    if block.is_empty() {
        return;
    }
    let rows = key_block::dq_rows(p, block.first_row as u32, QUERIES);
    if DQ_TRANSPOSED_ROWS * group >= rows {
        return;
    }
    let (pair, odd, holder) = (lane % 4, lane / 4 % 2, lane / 8);
    let (tile, is_stored) = block.accumulator(p);
    let start = tile.wrapping_add((group * 2048 + holder * 512 + odd * 64 + pair * 16) as u64);
    let mut held = [[[0; 4]; 4]; 2];
    let mut i = 0;
    while i < 8 {
        let at = i as u32 / 4 * (rows * 64 * 4) + i as u32 % 4 * 128;
        held[i / 4][i % 4] = global::load_written_u32x4_if(start.wrapping_add(at as u64), is_stored);
        i += 1;
    }
    let as_f32 = p.dq_f32 != 0;
    let target = if as_f32 { block.dq::<4>(p) } else { block.dq::<2>(p) };
    let row = DQ_TRANSPOSED_ROWS * group + 2 * pair;
    let is_dead = [block.is_dead(p, row), block.is_dead(p, row + 1)];
    let mut half = 0;
    while half < 2 {
        let mut rows = [[0.0; 8]; 2];
        let mut i = 0;
        while i < 8 {
            // Two columns of one row.
            let [a, b, c, d] = held[half][i / 2];
            let (low, high) = if i % 2 == 0 { (a, c) } else { (b, d) };
            let (own, other) = if odd != 0 { (high, low) } else { (low, high) };
            let received = warp::exchange(other, 4);
            let (first, second) = if odd != 0 { (received, own) } else { (own, received) };
            let column = i / 2 * 2;
            let pair = [first, second].map(f32::from_bits);
            let pair = if is_dead[i % 2] { [0.0; 2] } else { pair };
            rows[i % 2][column] = pair[0] * p.gradient_scale;
            rows[i % 2][column + 1] = pair[1] * p.gradient_scale;
            i += 1;
        }
        let column = 64 * half as u32 + 16 * holder + 8 * odd;
        if specialize::merge() {
            let source = block.previous_dq(p);
            add_row::<8, true>(&mut rows[0], &source, row as i32, column);
            add_row::<8, true>(&mut rows[1], &source, row as i32 + 1, column);
        }
        store_eight::<E>(rows[0], &target, row as i32, column, as_f32);
        store_eight::<E>(rows[1], &target, row as i32 + 1, column, as_f32);
        half += 1;
    }
}

macro_rules! hopper_entries {
    ($(($main:ident, $name:ident, $dtype:ident, $dim:literal, $queries:literal, $keys:literal))*) => {
        $(
            /// An instance of [`convert_hopper`] or [`convert_hopper_transposed`], chosen in [`crate::abi`].
            ///
            /// # Safety
            /// `p` is as [`BackwardParams`] says, for the main kernel of the same head dim.
            #[unsafe(no_mangle)]
            pub unsafe extern "ptx-kernel" fn $name(p: BackwardParams) {
                if const { dq_is_transposed($queries) } {
                    convert_hopper_transposed::<element::$dtype, $queries, $keys>(&p);
                } else {
                    convert_hopper::<element::$dtype, $queries, $keys>(&p);
                }
            }
        )*
    };
}
crate::for_each_backward_sm90a!(hopper_entries);
crate::for_each_backward_three_sm90a!(hopper_entries);
crate::for_each_backward_wide_sm90a!(hopper_entries);

macro_rules! entries {
    ($(($name:ident, $dtype:ident, $dim:literal, $access:ident, $queries:literal, $keys:literal,
        $warps:literal,
        $blocks:literal))*) => {
        $(
            /// An instance of [`convert`], chosen in [`crate::abi`].
            ///
            /// # Safety
            /// `p` is as [`BackwardParams`] says, for the main kernel of the same head dim.
            #[unsafe(no_mangle)]
            pub unsafe extern "ptx-kernel" fn $name(p: BackwardParams) {
                const ROW_GROUPS: u32 = dq_row_groups($dim, $queries);
                convert::<
                    element::$dtype, { matches!(Access::$access, Access::Vector16) }, $queries, ROW_GROUPS,
                    { ($queries / ROW_GROUPS / 16) as usize }, { ($dim / (8 / ROW_GROUPS) / 2) as usize },
                >(&p);
            }
        )*
    };
}
crate::for_each_backward_convert_mma_sm80!(entries);

macro_rules! parts_entries {
    ($(($name:ident, $dtype:ident, $dim:literal, $access:ident, $queries:literal, $keys:literal,
        $warps:literal,
        $blocks:literal))*) => {
        $(
            /// An instance of [`convert`] for f32 in two parts, chosen in [`crate::abi`].
            ///
            /// # Safety
            /// `p` is as [`BackwardPartsParams`] says, for the main kernel of the same head dim.
            #[unsafe(no_mangle)]
            pub unsafe extern "ptx-kernel" fn $name(p: BackwardPartsParams) {
                const ROW_GROUPS: u32 = dq_row_groups($dim, $queries);
                if global::load_u32(p.turn) != 0 {
                    return;
                }
                convert::<
                    SplitF32, { matches!(Access::$access, Access::Vector16) }, $queries, ROW_GROUPS,
                    { ($queries / ROW_GROUPS / 16) as usize }, { ($dim / (8 / ROW_GROUPS) / 2) as usize },
                >(&p.backward);
            }
        )*
    };
}
crate::for_each_backward_convert_parts_sm80!(parts_entries);

macro_rules! fma_entries {
    ($(($name:ident, $dtype:ident, $dim:literal, $access:ident, $queries:literal, $keys:literal,
        $warps:literal,
        $blocks:literal))*) => {
        $(
            /// An instance of [`convert_fma`], chosen in [`crate::abi`].
            ///
            /// # Safety
            /// `p` is as [`BackwardFmaParams`] says, for the main kernel of the same head dim.
            #[unsafe(no_mangle)]
            pub unsafe extern "ptx-kernel" fn $name(p: BackwardFmaParams) {
                if p.turn != 0 && global::load_u32(p.turn) == 0 {
                    return;
                }
                convert_fma::<
                    { matches!(Access::$access, Access::Vector16) }, $queries, { $dim / 64 },
                    { $queries / 32 * 16 * ($dim / 64) },
                >(&p.backward);
            }
        )*
    };
}
crate::for_each_backward_convert_fma_sm80!(fma_entries);
