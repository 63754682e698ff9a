//! First kernel of the backward: `delta = sum(dO o) - dLSE` and lse in powers of two, per query row;
//! zeroes dQ's accumulators. One warp per row of the padded workspace, 8 columns per lane.

use crate::abi::{BackwardParams, ROW_PADDING, TensorView};
use crate::arch::{global, math, thread, warp};
use crate::attention::key_block;
use crate::attention::sequence::Sequence;
use crate::tile::element::{self, Element};

/// Rows, and warps, of a block.
pub const ROWS: u32 = 4;

/// A block takes [`ROWS`] rows of one (batch, query head).
#[inline(always)]
unsafe fn delta<E: Element>(p: &BackwardParams) {
    let (lane, warp) = (thread::thread_idx_x() % 32, thread::thread_idx_x() / 32);
    let blocks_per_pair = p.query_rows.div_ceil(ROW_PADDING) * (ROW_PADDING / ROWS);
    let pair = math::divide(thread::block_idx_x(), blocks_per_pair);
    let row = ((thread::block_idx_x() - pair * blocks_per_pair) * ROWS + warp) as i32;
    let batch = math::divide(pair, p.query_heads);
    let head = pair - batch * p.query_heads;
    let sequence = key_block::sequence(p, batch);
    if row >= (sequence.query_rows as u32).next_multiple_of(ROW_PADDING) as i32 {
        return;
    }

    // Padding rows, like dead ones: probabilities of 2^(s - inf) = 0.
    let (mut lse_log2, mut delta) = (f32::INFINITY, 0.0);
    if row < sequence.query_rows {
        let d_o = load_columns::<E>(&sequence, &p.d_o, head, row, 8 * lane, p.value_dim);
        let o = if p.output_f32 != 0 {
            load_columns::<element::F32>(&sequence, &p.o, head, row, 8 * lane, p.value_dim)
        } else {
            load_columns::<E>(&sequence, &p.o, head, row, 8 * lane, p.value_dim)
        };
        let mut i = 0;
        while i < 8 {
            delta = math::fma(d_o[i], o[i], delta);
            i += 1;
        }
        let mut distance = 16;
        while distance > 0 {
            delta += warp::shuffle_xor(delta, distance);
            distance /= 2;
        }
        let in_head = sequence.batch as i64 * p.lse_batch_stride + (sequence.first_query + row) as i64;
        let index = 4 * (head as i64 * p.lse_head_stride + in_head) as u64;
        let lse = global::load_f32(p.lse.wrapping_add(index));
        // A NaN stays one.
        if lse != f32::NEG_INFINITY {
            lse_log2 = lse * core::f32::consts::LOG2_E;
        }
        if p.d_lse != 0 {
            delta -= global::load_f32(p.d_lse.wrapping_add(index));
        }
    }
    let workspace_row = key_block::workspace_row(p, &sequence, batch) + row as u32;
    if lane == 0 {
        global::store_f32(key_block::statistics(p, 0, head, workspace_row), lse_log2);
        global::store_f32(key_block::statistics(p, 1, head, workspace_row), delta);
    }
    let mut split = 0;
    while split < p.splits {
        let mut column = 4 * lane;
        while column < p.padded_dim {
            let address =
                key_block::dq_accumulator(p, split, head, workspace_row).wrapping_add(4 * column as u64);
            global::store_u32x4(address, [0; 4]);
            column += 4 * 32;
        }
        split += 1;
    }
}

/// Eight columns of a row from `first` on; 0 past the end.
#[inline(always)]
unsafe fn load_columns<E: Element>(
    sequence: &Sequence,
    view: &TensorView,
    head: u32,
    row: i32,
    first: u32,
    columns: u32,
) -> [f32; 8] {
    let mut values = [0.0; 8];
    let source = if E::BYTES == 4 {
        sequence.query_rows::<4>(view, head, row, columns)
    } else {
        sequence.query_rows::<2>(view, head, row, columns)
    };
    let address = source.address.wrapping_add((E::BYTES * first) as u64);
    if first + 8 <= columns && address % 16 == 0 {
        let low = global::load_u32x4(address);
        let high = if E::BYTES == 4 { global::load_u32x4(address.wrapping_add(16)) } else { low };
        let mut i = 0;
        while i < 8 {
            values[i] = if E::BYTES == 4 {
                f32::from_bits(if i < 4 { low[i] } else { high[i - 4] })
            } else {
                E::from_half_word(low[i / 2], i % 2 == 1)
            };
            i += 1;
        }
    } else {
        let mut i = 0;
        while i < 8 {
            let at = address.wrapping_add((E::BYTES as usize * i) as u64);
            let valid = first + (i as u32) < columns;
            values[i] = if E::BYTES == 4 {
                f32::from_bits(global::load_u32_if(at, valid))
            } else {
                E::from_half_word(global::load_u16_if(at, valid) as u32, false)
            };
            i += 1;
        }
    }
    values
}

macro_rules! entries {
    ($(($name:ident, $dtype:ident))*) => {
        $(
            /// [`delta`] for one element type.
            ///
            /// # Safety
            /// `p` is as [`BackwardParams`] says.
            #[unsafe(no_mangle)]
            pub unsafe extern "ptx-kernel" fn $name(p: BackwardParams) {
                delta::<element::$dtype>(&p);
            }
        )*
    };
}
crate::for_each_backward_delta_sm80!(entries);
