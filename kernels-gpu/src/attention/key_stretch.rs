//! Key tiles that several blocks share ([`crate::geometry::stretch`]). Each stretch leaves its sums of dK
//! and dV in a slot of the workspace; a kernel of its own adds them up ([`crate::kernels::backward_sum`]).

use crate::abi::{BackwardParams, TensorView};
use crate::arch::thread;
use crate::geometry::stretch::{Division, Stretch};
use crate::tile::global_rows::GlobalRows;

/// How the key tiles of a launch are divided.
#[inline(always)]
pub fn division(p: &BackwardParams) -> Division {
    // Worked out anew where it is needed: the producer has few registers.
    let unit_bits = thread::opaque_here(p.unit_bits);
    Division { whole_tiles: p.whole_tiles, unit_bits, turn_units: p.turn_units }
}

/// What dK is multiplied by where it is summed up: who adds up stretches scales their sum.
#[inline(always)]
pub fn final_scale(p: &BackwardParams, stretch: &Stretch) -> f32 {
    if division(p).is_whole(stretch) { p.gradient_scale } else { 1.0 }
}

/// A gradient of keys or values.
#[derive(Clone, Copy)]
pub enum KeyGradient {
    /// dK.
    Dk,
    /// dV.
    Dv,
}

impl KeyGradient {
    /// Where it is written to, and its columns.
    #[inline(always)]
    pub fn of(self, p: &BackwardParams) -> (&TensorView, u32) {
        match self {
            KeyGradient::Dk => (&p.dk, p.head_dim),
            KeyGradient::Dv => (&p.dv, p.value_dim),
        }
    }

    /// Its rows in the slot of a stretch, as many as those of `target`: all columns of the main kernel,
    /// which are 0 past the head dim.
    #[inline(always)]
    pub fn slot_rows(self, p: &BackwardParams, stretch: &Stretch, target: &GlobalRows) -> GlobalRows {
        let row = (2 * division(p).slot(stretch) + self as u32) as u64 * p.tile_keys as u64;
        let row_bytes = 4 * p.padded_dim;
        let address = p.stretch_sums.wrapping_add(row * row_bytes as u64);
        GlobalRows { address, row_bytes: row_bytes as i64, rows: target.rows, columns: p.padded_dim }
    }
}
