//! Multiplications of other types than 16-bit ones with sums in f32, element by element: A and B of 1, 8 or
//! 32 bits, sums in f16 and integers; and those whose A is sparse. Registers hold sums of f32 and i32 as
//! those of f32; of f16, two columns each.

use super::multiply::WARP_ROWS;
use crate::exec::check::trace::Found;
use crate::exec::state::context::Context;
use crate::exec::state::warp::Warp;
use crate::exec::state::wgmma::Pending;
use crate::exec::values::matrix::{Number, accumulate, bits_of, element, number};
use crate::exec::values::registers::LANES;
use crate::isa::{MatrixType, Rounding, WgmmaShape};
use crate::report::trace::OriginKind;

/// The opposite of a number.
fn negative(value: Number) -> Number {
    match value {
        Number::Single(value) => Number::Single(-value),
        Number::Double(value) => Number::Double(-value),
        Number::Integer(value) => Number::Integer(-value),
    }
}

/// Lets a multiplication happen.
#[inline(never)]
pub fn run(c: &mut Context<'_>, w: &mut Warp, pending: &Pending) {
    let code = &c.environment.kernel.data.code;
    let i = &code.instructions[pending.pc as usize];
    let shape = WgmmaShape::decode(i.e);
    let (k, kept) = (shape.k(), shape.kept());
    let columns = if shape.selector.is_some() { w.wgmma.columns.pop_front() } else { None };
    let left: Vec<Number> = match pending.left {
        None => {
            let list = &code.lists[i.a as usize..][..4];
            let places = (0..WARP_ROWS).flat_map(|row| (0..kept).map(move |k| (row, k)));
            places.map(|place| element(&w.registers, list, (shape.a, 2), place)).collect()
        }
        Some(place) => {
            let each = (kept, shape.a.bits());
            let bits = c.tiles.elements(place, shape.transpose_a, each, &mut c.shared);
            let first = (w.id % 4) as usize * WARP_ROWS * kept;
            bits[first..first + WARP_ROWS * kept].iter().map(|&bits| number(shape.a, bits)).collect()
        }
    };
    let left: Vec<Number> = if shape.negate { left.into_iter().map(negative).collect() } else { left };
    let right = c.tiles.elements(pending.right, shape.transpose_b, (k, shape.b.bits()), &mut c.shared);
    let right: Vec<Number> = right.into_iter().map(|bits| number(shape.b, bits)).collect();
    let packed = shape.d == MatrixType::F16;
    let rows = &code.lists[i.d as usize..][..shape.accumulators()];
    for (register, &row) in rows.iter().enumerate() {
        let before = *w.registers.row32(row);
        let out: [u32; LANES] = std::array::from_fn(|lane| {
            let before = if pending.accumulates { before[lane] } else { 0 };
            let sum = |half: usize, column: usize, before: u32| {
                let line = (lane / 4 + 8 * half) * kept;
                let start = number(shape.d, u64::from(before));
                let sum = left[line..line + kept].iter().enumerate().fold(start, |sum, (index, &a)| {
                    let along = columns.as_ref().map_or(index, |columns| columns[line + index]);
                    accumulate(false, Rounding::NearestEven, sum, a, right[column * k + along])
                });
                bits_of(shape.d, sum, shape.clamps) as u32
            };
            match packed {
                true => {
                    let (half, column) = (register % 2, register / 2 * 8 + lane % 4 * 2);
                    sum(half, column, before & 0xffff) | sum(half, column + 1, before >> 16) << 16
                }
                false => sum(register / 2 % 2, register / 4 * 8 + lane % 4 * 2 + register % 2, before),
            }
        });
        w.registers.set32(row, !0, &out);
        if c.trace.is_none() {
            continue;
        }
        for lane in 0..LANES {
            for part in 0..1 + usize::from(packed) {
                let value = |word: u32| number(shape.d, u64::from(word) >> (16 * part)).as_f64();
                let result = value(out[lane]);
                if result.is_finite() {
                    continue;
                }
                let (half, column) = match packed {
                    true => (register % 2, register / 2 * 8 + lane % 4 * 2 + part),
                    false => (register / 2 % 2, register / 4 * 8 + lane % 4 * 2 + register % 2),
                };
                let line = (lane / 4 + 8 * half) * kept;
                let a: Vec<f64> = left[line..line + kept].iter().map(|value| value.as_f64()).collect();
                let along =
                    |index: usize| columns.as_ref().map_or(index, |columns| columns[line + index]);
                let b: Vec<f64> =
                    (0..kept).map(|index| right[column * k + along(index)].as_f64()).collect();
                let sum = if pending.accumulates { value(before[lane]) } else { 0.0 };
                let row = (w.id as usize % 4) * WARP_ROWS + 8 * half + lane / 4;
                let element = Some([row as u32, column as u32]);
                let (kind, pc, warp) = (OriginKind::Overflow, pending.pc, w.id);
                let found = Found { kind, pc, warp, lane, result, element };
                c.trace_sum(found, &[("a", &a), ("b", &b), ("c", &[sum])]);
            }
        }
    }
}
