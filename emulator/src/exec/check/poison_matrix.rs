//! Values that are not defined in matrices: of a product, the rows of A and the columns of B that have any.

use super::poison::undefined_place;
use crate::exec::state::context::Context;
use crate::exec::state::poison::{Cause, Origin, Poison, Taint};
use crate::exec::state::warp::Warp;
use crate::exec::state::window::Window;
use crate::exec::values::registers::{LANES, lanes};
use crate::isa::{
    FLAG_TRANSPOSE, FLAG_WIDE_ADDRESS, Fragments, Instruction, MatrixOp, MatrixShape, VoltaShape,
};
use crate::shadow::State;
use crate::space::Space;

/// Before a matrix instruction: what of it is used here and now. What it makes of the rest is noted.
pub fn touch(
    poison: &mut Poison,
    w: &Warp,
    i: &Instruction,
    op: MatrixOp,
    context: &Context<'_>,
) -> Taint {
    let lists = &context.environment.code().lists;
    match op {
        MatrixOp::LoadMatrix | MatrixOp::StoreMatrix => {
            // Lane 8j + r has the address of row r of matrix j.
            let owners = if i.count >= 4 { !0 } else { (1 << (8 * i.count)) - 1 };
            let rows = if i.has(FLAG_WIDE_ADDRESS) { 2 } else { 1 };
            let address = poison.of(i.a, rows).only(owners & w.live);
            if op == MatrixOp::LoadMatrix {
                poison.write(i, !0, &Taint::NONE);
            }
            address
        }
        MatrixOp::MoveTransposed => {
            let source = poison.of(i.a, 1);
            let mut moved = Taint::NONE;
            for lane in 0..LANES {
                let row = 2 * (lane % 4);
                for from in [4 * row + lane / 8, 4 * (row + 1) + lane / 8] {
                    moved.join(&at_lane(&source, from, 1 << lane));
                }
            }
            poison.write(i, !0, &moved);
            Taint::NONE
        }
        MatrixOp::MultiplyVolta => multiply_volta(poison, i, lists),
        _ => match Fragments::of_instruction(i) {
            Some(fragments) if op == MatrixOp::MultiplySparse => {
                // Where values of A stand is used at once.
                let shape = MatrixShape::decode(i.immediate);
                let (first, count) = shape.metadata_lanes(usize::from(i.count));
                let of_row = ((1u32 << count) - 1) << first;
                let metadata = poison.of(i.e, 1).only(of_row * 0x1111_1111);
                multiply(poison, i, lists, &fragments);
                metadata
            }
            Some(fragments) => multiply(poison, i, lists, &fragments),
            None => {
                let read = poison.read(&w.registers, i);
                poison.write(i, !0, &Taint::NONE);
                read
            }
        },
    }
}

/// What one lane has of a value, for other lanes.
fn at_lane(taint: &Taint, lane: usize, to: u32) -> Taint {
    match taint.mask >> lane & 1 {
        0 => Taint::NONE,
        _ => Taint::of(to, taint.origins[lane]),
    }
}

/// `mma`: row `lane / 4` of A and of D, and 8 rows more in every other register of A; column `lane / 4` of B.
fn multiply(poison: &mut Poison, i: &Instruction, lists: &[u32], fragments: &Fragments) -> Taint {
    let Fragments { a, b, d, rows, value_rows, packed } = *fragments;
    let halves = rows / 8;
    let list = |at: u32, index: usize| lists[at as usize + index];
    let mut of_row = [Taint::NONE; 16];
    for register in 0..a {
        let taint = poison.of(list(i.a, register), value_rows);
        for lane in lanes(taint.mask) {
            of_row[lane / 4 + register % halves * 8].join(&at_lane(&taint, lane, !0));
        }
    }
    let mut of_column = [Taint::NONE; 8];
    for register in 0..b {
        let taint = poison.of(list(i.b, register), value_rows);
        for lane in lanes(taint.mask) {
            of_column[lane / 4].join(&at_lane(&taint, lane, !0));
        }
    }
    let per_row = if packed { 1 } else { 2 };
    for register in 0..d {
        let mut result = poison.of(list(i.c, register), value_rows);
        for lane in 0..LANES {
            let row = lane / 4 + register / per_row * 8;
            result.join(&of_row[row].only(1 << lane));
            let first = lane % 4 * 2;
            match packed {
                true => {
                    (first..first + 2).for_each(|column| result.join(&of_column[column].only(1 << lane)))
                }
                false => result.join(&of_column[first + register % 2].only(1 << lane)),
            }
        }
        poison.set(list(i.d, register), value_rows, !0, &result);
    }
    Taint::NONE
}

/// The `mma` of m8n8k4 of f16: what a product has that is not defined, all of its results have.
fn multiply_volta(poison: &mut Poison, i: &Instruction, lists: &[u32]) -> Taint {
    let shape = VoltaShape::decode(i.immediate);
    let mut results = Taint::NONE;
    for (at, count) in [(i.a, VoltaShape::FACTOR), (i.b, VoltaShape::FACTOR), (i.c, shape.sums())] {
        for &row in &lists[at as usize..][..count] {
            let taint = poison.of(row, 1);
            for lane in lanes(taint.mask) {
                let product = VoltaShape::members(lane % 16 / 4);
                let mask = product.into_iter().fold(0u32, |mask, lane| mask | 1 << lane);
                results.join(&at_lane(&taint, lane, mask));
            }
        }
    }
    for &row in &lists[i.d as usize..][..shape.results()] {
        poison.set(row, 1, !0, &results);
    }
    Taint::NONE
}

impl Context<'_> {
    /// `ldmatrix` has loaded rows of 16 bytes, of which those of the lanes `unwritten` are not all defined.
    #[cold]
    #[inline(never)]
    pub fn poison_matrix_loaded(
        &mut self,
        w: &mut Warp,
        i: &Instruction,
        window: &Window,
        unwritten: u32,
    ) {
        let code = self.environment.code();
        let mut poison = w.take_poison(code);
        for lane in lanes(unwritten) {
            let place = window.offsets[lane] as usize;
            // SAFETY: the window was checked for 16 bytes at each offset.
            let Some((byte, state)) = (unsafe { window.shadow.first_unwritten(place, 16) }) else {
                continue;
            };
            if !matches!(state, State::Unwritten | State::Undefined) {
                continue;
            }
            let offset = super::poison::offset_in_space(self, w, window, lane);
            let (byte, written) = (byte as u32, state == State::Undefined);
            let cause = Cause::Memory { space: Space::Shared, byte, bytes: 16, offset, written };
            let own = Origin { cause, pc: w.pc, lane: lane as u32, warp: w.id };
            let carried = self.undefined.get(&undefined_place(w, window, place + byte as usize));
            let number = poison.number(carried.copied().filter(|_| written).unwrap_or(own));
            let (matrix, row) = (lane / 8, lane % 8);
            // A row belongs to four lanes; transposed it is a column, of which each row of lanes has one
            // element.
            let owner = |lane: &usize| match i.has(FLAG_TRANSPOSE) {
                true => lane % 4 == row / 2,
                false => lane / 4 == row,
            };
            let owners = (0..LANES).filter(owner).fold(0u32, |mask, lane| mask | 1 << lane);
            let register = code.lists[i.d as usize + matrix];
            let mut taint = poison.of(register, 1);
            taint.join(&Taint::of(owners, number));
            poison.set(register, 1, !0, &taint);
        }
        w.poison = Some(poison);
    }

    /// `stmatrix` has stored what may not be defined.
    #[cold]
    #[inline(never)]
    pub fn poison_matrix_stored(&mut self, w: &Warp, i: &Instruction, window: &Window) {
        let Some(poison) = &w.poison else { return };
        let lists = &self.environment.code().lists;
        for matrix in 0..usize::from(i.count) {
            let taint = poison.of(lists[i.d as usize + matrix], 1);
            for row in (0..8).filter(|row| window.tracked && window.mask >> (matrix * 8 + row) & 1 != 0)
            {
                for word in 0..4 {
                    // Transposed, lane 4c + q holds rows 2q and 2q + 1 of column c.
                    let sources = match i.has(FLAG_TRANSPOSE) {
                        true => [8 * word + row / 2, 8 * word + 4 + row / 2],
                        false => [4 * row + word; 2],
                    };
                    let source = sources.into_iter().find(|&lane| taint.mask >> lane & 1 != 0);
                    if let Some(lane) = source {
                        let place = window.offsets[matrix * 8 + row] as usize + 4 * word;
                        // SAFETY: the window was checked for 16 bytes at each offset.
                        unsafe { window.shadow.set(place, 4, State::Undefined) };
                        let origin = poison.origin(taint.origins[lane]);
                        self.undefined.insert(undefined_place(w, window, place), origin);
                    }
                }
            }
        }
    }
}
