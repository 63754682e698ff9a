//! `mma` of any types and shapes, element by element; the usual ones have loops of their own in `matrix`.
//!
//! Floating-point numbers of 8 and 16 bits are summed in the order of k by fused operations in f32, those of
//! 64 in f64; sums in f16 are rounded to it at the end. The hardware has an order and precision of its own.

use crate::exec::values::matrix::{accumulate, bits_of, element, number};
use crate::exec::values::registers::{LANES, Registers};
use crate::isa::{Fragments, Instruction, MatrixShape};

/// `d = a * b + c`.
pub fn run(r: &mut Registers, i: &Instruction, m: u32, lists: &[u32]) {
    let shape = MatrixShape::decode(i.immediate);
    let Fragments { a, b, d, value_rows, packed, .. } = shape.fragments();
    let list = |at: u32, count: usize| &lists[at as usize..at as usize + count];
    let (list_a, list_b, list_c) = (list(i.a, a), list(i.b, b), list(i.c, d));
    let per_row = if packed { 1 } else { 2 };
    let mut out = vec![[0u64; LANES]; d];
    for (register, out) in out.iter_mut().enumerate() {
        for (lane, out) in out.iter_mut().enumerate() {
            let row = lane / 4 + register / per_row * 8;
            let before = match value_rows {
                2 => r.row64(list_c[register])[lane],
                _ => u64::from(r.row32(list_c[register])[lane]),
            };
            let one = |column: usize, before: u64| {
                let mut sum = number(shape.d, before);
                for k in 0..shape.k {
                    let left = element(r, list_a, (shape.a, shape.rows / 8), (row, k));
                    let right = element(r, list_b, (shape.b, 1), (column, k));
                    sum = accumulate(shape.xors, shape.rounding, sum, left, right);
                }
                bits_of(shape.d, sum, shape.clamps)
            };
            let column = lane % 4 * 2;
            *out = match packed {
                true => one(column, before & 0xffff) | one(column + 1, before >> 16) << 16,
                false => one(column + register % 2, before),
            };
        }
    }
    for (out, &register) in out.iter().zip(list(i.d, d)) {
        match value_rows {
            2 => r.set64(register, m, out),
            _ => r.set32(register, m, &out.map(|value| value as u32)),
        }
    }
}
