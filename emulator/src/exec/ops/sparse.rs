//! `mma.sp`: A with half of its values left out, which are zero.

use crate::exec::check::sparse::columns;
use crate::exec::state::context::{Context, Flow};
use crate::exec::state::warp::Warp;
use crate::exec::values::matrix::{Number, accumulate, bits_of, element, number};
use crate::exec::values::registers::LANES;
use crate::isa::{FLAG_VARIANT, Fragments, Instruction, MatrixShape, Rounding};

/// `d = a * b + c`.
pub fn run(c: &mut Context<'_>, w: &mut Warp, i: &Instruction, m: u32) -> Flow {
    let lists = &c.environment.kernel.data.code.lists;
    let shape = MatrixShape::decode(i.immediate);
    let Some(Fragments { a, b, d, packed, .. }) = Fragments::of_instruction(i) else { return Ok(()) };
    let list = |at: u32, count: usize| &lists[at as usize..at as usize + count];
    let (list_a, list_b, list_c, list_d) = (list(i.a, a), list(i.b, b), list(i.c, d), list(i.d, d));
    let metadata = *w.registers.row32(i.e);
    let how = (usize::from(i.count), i.has(FLAG_VARIANT));
    let columns = columns(c, w, &metadata, &shape, how)?;
    let places = (0..shape.rows).flat_map(|row| (0..shape.k / 2).map(move |kept| (row, kept)));
    let values = places.map(|place| element(&w.registers, list_a, (shape.a, 2), place));
    let left: Vec<(usize, Number)> = columns.into_iter().zip(values).collect();
    let per_row = if packed { 1 } else { 2 };
    let mut out = vec![[0u32; LANES]; d];
    for (register, out) in out.iter_mut().enumerate() {
        let before = *w.registers.row32(list_c[register]);
        for (lane, out) in out.iter_mut().enumerate() {
            let row = lane / 4 + register / per_row * 8;
            let one = |line: usize, before: u32| {
                let mut sum = number(shape.d, u64::from(before));
                for &(k, a) in &left[row * shape.k / 2..][..shape.k / 2] {
                    let b = element(&w.registers, list_b, (shape.b, 1), (line, k));
                    sum = accumulate(false, Rounding::NearestEven, sum, a, b);
                }
                bits_of(shape.d, sum, shape.clamps) as u32
            };
            let line = lane % 4 * 2;
            *out = match packed {
                true => one(line, before[lane] & 0xffff) | one(line + 1, before[lane] >> 16) << 16,
                false => one(line + register % 2, before[lane]),
            };
        }
    }
    out.iter().zip(list_d).for_each(|(out, &row)| w.registers.set32(row, m, out));
    Ok(())
}
