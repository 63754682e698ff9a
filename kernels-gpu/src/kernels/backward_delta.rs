//! First kernel of the backward: `delta = sum(dO o) - dLSE` and lse as the main kernel wants it, per
//! query row. For f16 also the norm `sum |dO|` of each row, which bounds dS. And it zeroes dQ's
//! accumulators, or the notes of how far these are. Each warp takes 16 rows of the padded workspace.
//!
//! The main kernel subtracts delta from `dp = dO v`. For a row that sees one key, `o = v`, and the
//! difference must be 0, not the difference of two roundings: so delta is summed by the same
//! instructions in the same order as dp, tensor cores for 16-bit elements (the diagonal of `o dO^T`),
//! chains of fused multiply-adds for f32.

use crate::abi::layout::{DELTA_COLUMNS, backward_delta_tile_bytes};
use crate::abi::{BackwardParams, NOTE_ROWS, ROW_PADDING, TensorView};
use crate::arch::{async_copy, barrier, global, math, matrix, shared, thread, warp};
use crate::attention::key_block::{self, UNTOUCHED};
use crate::attention::sequence::Sequence;
use crate::tile::element::{self, Element, TensorCoreElement};
use crate::tile::global_rows::GlobalRows;
use crate::tile::mma::LaneAddress;
use crate::tile::shared_tile::SharedTile;

/// Rows of a warp.
const WARP_ROWS: u32 = 16;
/// Rows of a block of four warps.
const ROWS: u32 = 4 * WARP_ROWS;
/// Threads of a block.
const THREADS: u32 = 4 * 32;

/// The rows of a warp, of one (batch, query head).
struct DeltaRows<'p> {
    p: &'p BackwardParams,
    sequence: Sequence,
    head: u32,
    /// First row in the sequence.
    first_row: i32,
    /// The same row in the workspace.
    workspace_row: u32,
}

impl<'p> DeltaRows<'p> {
    /// The rows of this warp, the last ones first: what the main kernel begins with is then in L2. The first
    /// thread of all also zeroes the launch's counter.
    #[inline(always)]
    unsafe fn of_this_warp(p: &'p BackwardParams) -> Self {
        let warp = thread::thread_idx_x() / 32;
        let blocks_per_pair = p.query_rows.div_ceil(ROW_PADDING) * (ROW_PADDING / ROWS);
        let index = thread::grid_dim_x() - 1 - thread::block_idx_x();
        let pair = math::divide(index, blocks_per_pair);
        let first_row = (index - pair * blocks_per_pair) * ROWS + warp * WARP_ROWS;
        let batch = math::divide(pair, p.query_heads);
        let sequence = key_block::sequence(p, batch);
        let workspace_row = key_block::workspace_row(p, &sequence, batch) + first_row;
        let (head, first_row) = (pair - batch * p.query_heads, first_row as i32);
        if p.counter != 0 && thread::block_idx_x() == 0 && thread::thread_idx_x() == 0 {
            global::store_u32(p.counter, 0);
        }
        DeltaRows { p, sequence, head, first_row, workspace_row }
    }

    /// Whether they are past the end of the sequence's padding: there is nothing to do.
    #[inline(always)]
    fn is_empty(&self) -> bool {
        self.first_row as u32 >= (self.sequence.query_rows as u32).next_multiple_of(ROW_PADDING)
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

    /// Writes the statistics of row `row` (of 16), whose `sum(dO o)` is `sum`: lse as it is given, or,
    /// unless `NATURAL`, in powers of two.
    #[inline(always)]
    unsafe fn store<const NATURAL: bool>(&self, row: u32, sum: f32) {
        // Padding rows, like dead ones: probabilities of exp(s - inf) = 0.
        let (mut lse, mut delta) = (f32::INFINITY, 0.0);
        let in_sequence = self.first_row + row as i32;
        if in_sequence < self.sequence.query_rows {
            let in_head = self.sequence.batch as i64 * self.p.lse_batch_stride
                + (self.sequence.first_query + in_sequence) as i64;
            let index = 4 * (self.head as i64 * self.p.lse_head_stride + in_head) as u64;
            let given = global::load_f32(self.p.lse.wrapping_add(index));
            // A NaN stays one.
            if given != f32::NEG_INFINITY {
                lse = if NATURAL { given } else { given * core::f32::consts::LOG2_E };
            }
            delta = sum;
            if self.p.d_lse != 0 {
                delta -= global::load_f32(self.p.d_lse.wrapping_add(index));
            }
        }
        let workspace_row = self.workspace_row + row;
        global::store_f32(key_block::statistics(self.p, 0, self.head, workspace_row), -lse);
        global::store_f32(key_block::statistics(self.p, 1, self.head, workspace_row), delta);
    }

    /// Writes the norm of dO of row `row` (of 16).
    #[inline(always)]
    unsafe fn store_norm(&self, row: u32, norm: f32) {
        global::store_f32(key_block::statistics(self.p, 2, self.head, self.workspace_row + row), norm);
    }

    /// Zeroes the accumulators of these rows, which are contiguous; or, for main kernels that store the first
    /// share and add only the others, the notes of that.
    #[inline(always)]
    unsafe fn zero(&self, lane: u32) {
        if self.p.dq_notes != 0 {
            if self.workspace_row % NOTE_ROWS == 0 && lane == 0 {
                let note = key_block::dq_note(self.p, self.head, self.workspace_row);
                global::store_u32(note, UNTOUCHED);
            }
            return;
        }
        let mut split = 0;
        while split < self.p.splits {
            let start = key_block::dq_accumulator(self.p, split, self.head, self.workspace_row);
            let mut offset = 16 * lane;
            while offset < 4 * WARP_ROWS * self.p.padded_dim {
                global::store_u32x4(start.wrapping_add(offset as u64), [0; 4]);
                offset += 16 * 32;
            }
            split += 1;
        }
    }
}

/// What a lane sums up of the 16 rows of a warp.
struct Sums {
    /// The upper and the lower eight columns of `o dO^T`.
    upper: [f32; 4],
    lower: [f32; 4],
    /// What rounding an o in f32 leaves over, of rows `group` and `group + 8`.
    rests: [f32; 2],
    /// `sum |dO|` of the same rows.
    norms: [f32; 2],
}

impl Sums {
    const NONE: Sums = Sums { upper: [0.0; 4], lower: [0.0; 4], rests: [0.0; 2], norms: [0.0; 2] };

    /// Adds 16 columns: o and dO as fragments of 16 rows.
    #[inline(always)]
    unsafe fn add<E: TensorCoreElement>(&mut self, o: [u32; 4], d_o: [u32; 4]) {
        E::mma(&mut self.upper, o, [d_o[0], d_o[2]]);
        E::mma(&mut self.lower, o, [d_o[1], d_o[3]]);
        if E::NARROW {
            self.norms[0] += size::<E>(d_o[0]) + size::<E>(d_o[2]);
            self.norms[1] += size::<E>(d_o[1]) + size::<E>(d_o[3]);
        }
    }

    /// Over all columns, `COLUMNS` at a time through shared memory.
    ///
    /// # Safety
    /// All threads of the block call it, with the rows of the block, which start on 16-byte boundaries.
    #[inline(always)]
    unsafe fn of_tiles<E: TensorCoreElement, const COLUMNS: u32, const ROW_BYTES: u32>(
        columns: u32,
        o: &GlobalRows,
        d_o: &GlobalRows,
    ) -> Self {
        const { assert!(ROW_BYTES == 2 * COLUMNS && COLUMNS <= DELTA_COLUMNS) };
        let thread = thread::thread_idx_x();
        let (lane, first_row) = (thread % 32, thread / 32 * WARP_ROWS);
        let o_tile = SharedTile::<ROWS, ROW_BYTES> { address: shared::dynamic_base() };
        let d_o_tile =
            SharedTile::<ROWS, ROW_BYTES> { address: o_tile.address + backward_delta_tile_bytes(ROWS) };
        let at = LaneAddress::<ROW_BYTES>::rows_first(lane);
        let mut sums = Sums::NONE;
        let mut first = 0;
        loop {
            o_tile.load::<E, THREADS, true>(thread, &some_columns(o, first, COLUMNS));
            d_o_tile.load::<E, THREADS, true>(thread, &some_columns(d_o, first, COLUMNS));
            async_copy::commit();
            async_copy::wait::<0>();
            barrier::block_sync();
            let mut block = 0;
            while block < COLUMNS / 16 && first + 16 * block < columns {
                let o = matrix::load_matrix_x4(at.of(o_tile, first_row, block));
                let d_o = matrix::load_matrix_x4(at.of(d_o_tile, first_row, block));
                sums.add::<E>(o, d_o);
                block += 1;
            }
            first += COLUMNS;
            if first >= columns {
                return sums;
            }
            barrier::block_sync();
        }
    }

    /// Over all columns, wherever rows start; `load` gives two columns of a row of the warp.
    #[inline(always)]
    unsafe fn of_pairs<E: TensorCoreElement>(
        columns: u32,
        lane: u32,
        load: impl Fn(u32, u32) -> (u32, u32, f32),
    ) -> Self {
        let (group, pair) = (lane / 4, lane % 4);
        let mut sums = Sums::NONE;
        let mut first = 0;
        while first < columns {
            let column = first + 2 * pair;
            let products = [
                load(group, column),
                load(group + 8, column),
                load(group, column + 8),
                load(group + 8, column + 8),
            ];
            sums.add::<E>(products.map(|(o, ..)| o), products.map(|(_, d_o, _)| d_o));
            sums.rests[0] += products[0].2 + products[2].2;
            sums.rests[1] += products[1].2 + products[3].2;
            first += 16;
        }
        sums
    }
}

/// For 16-bit elements: the diagonal of `o dO^T` on tensor cores.
#[inline(always)]
unsafe fn delta_mma<E: TensorCoreElement>(p: &BackwardParams) {
    let rows = DeltaRows::of_this_warp(p);
    if rows.is_empty() {
        return;
    }
    let lane = thread::thread_idx_x() % 32;
    let (group, pair) = (lane / 4, lane % 4);
    let (d_o, o_16) = (rows.rows::<2>(&p.d_o), rows.rows::<2>(&p.o));
    rows.zero(lane);
    let Sums { upper, lower, rests, norms } =
        if p.output_f32 == 0 && has_whole_chunks(&d_o) && has_whole_chunks(&o_16) {
            let (o, d_o) = (rows.of_block(&o_16), rows.of_block(&d_o));
            if p.value_dim <= 64 {
                Sums::of_tiles::<E, 64, 128>(p.value_dim, &o, &d_o)
            } else {
                Sums::of_tiles::<E, DELTA_COLUMNS, { 2 * DELTA_COLUMNS }>(p.value_dim, &o, &d_o)
            }
        } else {
            let o_32 = rows.rows::<4>(&p.o);
            Sums::of_pairs::<E>(p.value_dim, lane, |row, column| {
                load_products::<E>(&d_o, &o_32, &o_16, p.output_f32 != 0, row, column)
            })
        };
    let (upper_rest, lower_rest) = (quad_sum(rests[0]), quad_sum(rests[1]));
    if E::NARROW {
        let (upper_norm, lower_norm) = (quad_sum(norms[0]), quad_sum(norms[1]));
        if pair == 0 {
            rows.store_norm(group, upper_norm);
            rows.store_norm(group + 8, lower_norm);
        }
    }
    // Lane (group, pair) holds columns 2 pair and 2 pair + 1 of rows group and group + 8.
    if pair == group / 2 {
        let is_even = group % 2 == 0;
        rows.store::<false>(group, (if is_even { upper[0] } else { upper[1] }) + upper_rest);
        rows.store::<false>(group + 8, (if is_even { lower[2] } else { lower[3] }) + lower_rest);
    }
}

/// The sum over the four lanes of a row, the same for all.
#[inline(always)]
unsafe fn quad_sum(mut value: f32) -> f32 {
    value += warp::shuffle_xor(value, 1);
    value + warp::shuffle_xor(value, 2)
}

/// The sum of the absolute values of two elements.
#[inline(always)]
fn size<E: TensorCoreElement>(pair: u32) -> f32 {
    let (low, high) = E::unpack(pair);
    low.abs() + high.abs()
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
    let rows = DeltaRows::of_this_warp(p);
    if rows.is_empty() {
        return;
    }
    let lane = thread::thread_idx_x() % 32;
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
        if lane == 0 {
            rows.store::<true>(row, sum + chain);
        }
        row += 1;
    }
    rows.zero(lane);
}

/// Columns `first..first + count`, or as many of these as there are.
#[inline(always)]
fn some_columns(rows: &GlobalRows, first: u32, count: u32) -> GlobalRows {
    let left = rows.skip_columns::<2>(first);
    GlobalRows { columns: if left.columns < count { left.columns } else { count }, ..left }
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
