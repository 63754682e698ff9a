//! `mma` of 8 x 8 x 4 numbers of f16, the one of sm_70: four products at once, each of two times four lanes.

use crate::exec::values::half::Half;
use crate::exec::values::registers::{LANES, Registers};
use crate::isa::{Instruction, VoltaShape};

/// Row and column, of the 8 x 4 numbers of A or, turned, of the 4 x 8 of B, of a lane's `index`th number.
/// `index` of `members` is the lane. If `along`, a lane has four numbers of one line.
fn place(member: usize, index: usize, along: bool) -> (usize, usize) {
    match along {
        true => (member, index),
        false => (member / 4 * 4 + index, member % 4),
    }
}

/// Row and column of a lane's `index`th number of C and D.
pub fn sum_place(member: usize, index: usize, singles: bool) -> (usize, usize) {
    match singles {
        true => (member / 4 * 4 + (member & 1) + (index & 2), (index & 4) + (member & 2) + (index & 1)),
        false => (member, index),
    }
}

fn half(word: u32, index: usize) -> f32 {
    Half((word >> (index % 2 * 16)) as u16).to_f32()
}

/// A lane's `index`th number of a list of registers for C or D.
pub fn sum_of(
    r: &Registers,
    (lists, at): (&[u32], u32),
    (index, lane): (usize, usize),
    singles: bool,
) -> f32 {
    let word = |register: usize| r.row32(lists[at as usize + register])[lane];
    if singles { f32::from_bits(word(index)) } else { half(word(index / 2), index) }
}

/// Operands of one of the four products: rows of A, columns of B, and rows of C.
pub struct Product {
    pub a: [[f32; 4]; 8],
    pub b: [[f32; 4]; 8],
    pub sums: [[f32; 8]; 8],
}

/// Those that the registers hold.
pub fn gather(r: &Registers, i: &Instruction, lists: &[u32], product: usize) -> Product {
    let shape = VoltaShape::decode(i.immediate);
    let mut of = Product { a: [[0.0; 4]; 8], b: [[0.0; 4]; 8], sums: [[0.0; 8]; 8] };
    for (member, lane) in VoltaShape::members(product).into_iter().enumerate() {
        let word = |at: u32, index: usize| half(r.row32(lists[at as usize + index / 2])[lane], index);
        for index in 0..4 {
            let (row, k) = place(member, index, !shape.a_by_columns);
            of.a[row][k] = word(i.a, index);
            let (column, k) = place(member, index, shape.b_by_columns);
            of.b[column][k] = word(i.b, index);
        }
        for index in 0..8 {
            let (row, column) = sum_place(member, index, shape.adds_singles);
            of.sums[row][column] = sum_of(r, (lists, i.c), (index, lane), shape.adds_singles);
        }
    }
    of
}

/// `d = a * b + c`.
pub fn run(r: &mut Registers, i: &Instruction, m: u32, lists: &[u32]) {
    let shape = VoltaShape::decode(i.immediate);
    let mut out = vec![[0u32; LANES]; shape.results()];
    for product in 0..4 {
        let Product { a, b, mut sums } = gather(r, i, lists, product);
        for (row, sums) in sums.iter_mut().enumerate() {
            for (column, sum) in sums.iter_mut().enumerate() {
                for k in 0..4 {
                    *sum = a[row][k].mul_add(b[column][k], *sum);
                }
            }
        }
        for (member, lane) in VoltaShape::members(product).into_iter().enumerate() {
            for index in 0..8 {
                let (row, column) = sum_place(member, index, shape.gives_singles);
                let sum = sums[row][column];
                match shape.gives_singles {
                    true => out[index][lane] = sum.to_bits(),
                    false => {
                        out[index / 2][lane] |= u32::from(Half::from_f32(sum).0) << (index % 2 * 16)
                    }
                }
            }
        }
    }
    for (index, out) in out.iter().enumerate() {
        r.set32(lists[i.d as usize + index], m, out);
    }
}
