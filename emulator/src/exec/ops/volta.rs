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
fn sum_place(member: usize, index: usize, singles: bool) -> (usize, usize) {
    match singles {
        true => (member / 4 * 4 + (member & 1) + (index & 2), (index & 4) + (member & 2) + (index & 1)),
        false => (member, index),
    }
}

fn half(word: u32, index: usize) -> f32 {
    Half((word >> (index % 2 * 16)) as u16).to_f32()
}

/// `d = a * b + c`.
pub fn run(r: &mut Registers, i: &Instruction, m: u32, lists: &[u32]) {
    let shape = VoltaShape::decode(i.immediate);
    let read =
        |r: &Registers, at: u32, index: usize, lane: usize| r.row32(lists[at as usize + index])[lane];
    let mut out = vec![[0u32; LANES]; shape.results()];
    for product in 0..4 {
        let (mut a, mut b, mut sums) = ([[0f32; 4]; 8], [[0f32; 4]; 8], [[0f32; 8]; 8]);
        for (member, lane) in VoltaShape::members(product).into_iter().enumerate() {
            for index in 0..4 {
                let (row, k) = place(member, index, !shape.a_by_columns);
                a[row][k] = half(read(r, i.a, index / 2, lane), index);
                let (column, k) = place(member, index, shape.b_by_columns);
                b[column][k] = half(read(r, i.b, index / 2, lane), index);
            }
            for index in 0..8 {
                let (row, column) = sum_place(member, index, shape.adds_singles);
                sums[row][column] = match shape.adds_singles {
                    true => f32::from_bits(read(r, i.c, index, lane)),
                    false => half(read(r, i.c, index / 2, lane), index),
                };
            }
        }
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
