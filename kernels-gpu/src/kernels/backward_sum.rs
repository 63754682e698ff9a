//! The last kernel of a backward for Hopper that has divided key tiles: dK and dV of these, summed over their
//! stretches in the order of the steps, and rounded once or, where gradients are merged, added to what is
//! there.
//!
//! It reads what [`super::backward_hopper`] left in slots ([`crate::attention::key_stretch`]). A block has
//! [`ROWS`] rows of one gradient of one tile, a thread eight columns of a row at a time.

use crate::abi::{BackwardParams, DQ_IN_ORDER};
use crate::arch::{global, math, specialize, thread};
use crate::attention::key_schedule::KeySchedule;
use crate::attention::key_stretch::{KeyGradient, division};
use crate::attention::score::features;
use crate::tile::add::add_row;
use crate::tile::element::{self, TensorCoreElement};
use crate::tile::store::store_eight;

/// Rows of a block.
const ROWS: u32 = 16;
/// Threads of a block.
const THREADS: u32 = 128;

#[inline(always)]
unsafe fn sum<E: TensorCoreElement>(p: &BackwardParams) {
    let blocks_per_gradient = math::divide(p.tile_keys, ROWS);
    let rank = math::divide(thread::block_idx_x(), 2 * blocks_per_gradient);
    let within = thread::block_idx_x() - rank * 2 * blocks_per_gradient;
    let (gradient, first_row) = if within < blocks_per_gradient {
        (KeyGradient::Dk, within * ROWS)
    } else {
        (KeyGradient::Dv, (within - blocks_per_gradient) * ROWS)
    };

    let tile = p.whole_tiles + rank;
    let mut schedule =
        KeySchedule::new(p, p.tile_keys, features::bias_of_all_batches_is_there(&p.score));
    let Some(block) = schedule.block(p, p.tile_keys, tile, p.dq_order == DQ_IN_ORDER) else { return };
    let (view, columns) = gradient.of(p);
    let first_key = (block.first_tile * p.tile_keys + first_row) as i32;
    let as_f32 = p.gradients_f32 != 0;
    let target = if as_f32 {
        block.key_rows::<4>(view, first_key, columns)
    } else {
        block.key_rows::<2>(view, first_key, columns)
    };
    let scale = if matches!(gradient, KeyGradient::Dk) { p.gradient_scale } else { 1.0 };
    let chunks = p.padded_dim / 8;
    let mut item = thread::thread_idx_x();
    while item < ROWS * chunks {
        let row = math::divide(item, chunks);
        let column = (item - row * chunks) * 8;
        if (row as i32) < target.rows && column < columns {
            let mut sums = [0.0; 8];
            let mut stretch = division(p).first_stretch(tile, math::divide);
            loop {
                let rows = gradient.slot_rows(p, &stretch, &target);
                let address = rows.row((first_row + row) as i32).wrapping_add(4 * column as u64);
                let halves = [global::load_u32x4(address), global::load_u32x4(address.wrapping_add(16))];
                let mut i = 0;
                while i < 8 {
                    sums[i] += f32::from_bits(halves[i / 4][i % 4]);
                    i += 1;
                }
                if division(p).is_last(&stretch) {
                    break;
                }
                stretch = division(p).stretch(stretch.turn + 1, tile);
            }
            let mut scaled = sums.map(|sum| sum * scale);
            if specialize::merge() {
                add_row::<8, true>(&mut scaled, &target, row as i32, column);
            }
            store_eight::<E>(scaled, &target, row as i32, column, as_f32);
        }
        item += THREADS;
    }
}

macro_rules! entries {
    ($(($name:ident, $dtype:ident))*) => {
        $(
            /// The kernel of one element type that adds up dK and dV.
            ///
            /// # Safety
            /// `p` is as [`BackwardParams`] says, for a main kernel that has divided key tiles.
            #[unsafe(no_mangle)]
            pub unsafe extern "ptx-kernel" fn $name(p: BackwardParams) {
                sum::<element::$dtype>(&p);
            }
        )*
    };
}
crate::for_each_backward_sum_sm90a!(entries);
