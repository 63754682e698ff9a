//! A multiplication by a warpgroup whose results are looked at.

use super::multiply::{Left, VECTOR, WARP_ROWS};
use super::{left_of, right_of};
use crate::exec::check::trace::Found;
use crate::exec::state::context::Context;
use crate::exec::state::warp::Warp;
use crate::exec::state::wgmma::Pending;
use crate::exec::values::registers::LANES;
use crate::isa::{WGMMA_K, WgmmaShape};
use crate::report::trace::OriginKind;

/// Lets a multiplication happen, and notes accumulators that become not finite from finite operands.
pub fn run(c: &mut Context<'_>, w: &mut Warp, pending: &Pending) {
    let code = c.environment.code();
    let i = &code.instructions[pending.pc as usize];
    if !WgmmaShape::decode(i.e).is_usual() {
        return (c.environment.families.wgmma)(c, w, pending);
    }
    let rows = &code.lists[i.d as usize..][..WgmmaShape::decode(i.e).columns as usize / 2];
    let before: Vec<[u32; LANES]> = rows.iter().map(|&row| *w.registers.row32(row)).collect();
    (c.environment.families.wgmma)(c, w, pending);
    let is_finite = |bits: &u32| f32::from_bits(*bits).is_finite();
    if rows.iter().all(|&row| w.registers.row32(row).iter().all(is_finite)) {
        return;
    }
    let mut left: Left = [[[0.0; LANES]; WGMMA_K]; 2];
    left_of(c, w, pending, &mut left);
    let right = right_of(c, w.id, pending).to_vec();
    for (register, &row) in rows.iter().enumerate() {
        let (j, half, e) = (register / 4, register / 2 % 2, register % 2);
        for lane in 0..LANES {
            let result = f64::from(f32::from_bits(w.registers.row32(row)[lane]));
            if result.is_finite() {
                continue;
            }
            let a = left[half].map(|row| f64::from(row[lane]));
            let column = &right[(2 * j + e) * WGMMA_K * VECTOR..];
            let b: [f64; WGMMA_K] = std::array::from_fn(|k| f64::from(column[k * VECTOR + lane % 4]));
            let sum = match pending.accumulates {
                true => f64::from(f32::from_bits(before[register][lane])),
                false => 0.0,
            };
            let row = (w.id as usize % 4) * WARP_ROWS + 8 * half + lane / 4;
            let element = Some([row as u32, (8 * j + lane % 4 * 2 + e) as u32]);
            let (kind, pc, warp) = (OriginKind::Overflow, pending.pc, w.id);
            let found = Found { kind, pc, warp, lane, result, element };
            c.trace_sum(found, &[("a", &a), ("b", &b), ("c", &[sum])]);
        }
    }
}
