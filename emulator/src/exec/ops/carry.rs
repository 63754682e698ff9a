//! Integer arithmetic that passes a carry on: `add.cc`, `addc` and the like.

use crate::exec::values::registers::{LANES, Registers, lanes};
use crate::isa::{CarryOp, FLAG_OPTIONAL, FLAG_SATURATE, Instruction};

/// A sum of 64 bits and what is carried.
fn sum(a: u64, b: u64, carry: bool) -> (u64, bool) {
    let (sum, first) = a.overflowing_add(b);
    let (sum, second) = sum.overflowing_add(u64::from(carry));
    (sum, first | second)
}

/// One lane, of so many bits.
fn one(op: CarryOp, bits: u32, [a, b, c]: [u64; 3], carry: bool) -> (u64, bool) {
    let product = u128::from(a) * u128::from(b);
    let extended = |value: u64| i128::from((value << (64 - bits)) as i64 >> (64 - bits));
    let mask = if bits == 64 { !0 } else { (1 << bits) - 1 };
    let (a, b) = match op {
        CarryOp::Add => (a, b),
        CarryOp::Sub => (a, !b & mask),
        CarryOp::Mad => (product as u64 & mask, c),
        CarryOp::MadHighUnsigned => ((product >> bits) as u64, c),
        CarryOp::MadHighSigned => (((extended(a) * extended(b)) >> bits) as u64 & mask, c),
    };
    let (result, overflows) = sum(a, b, carry);
    (result & mask, overflows || bits == 32 && result >> 32 != 0)
}

/// Every operation.
pub fn run(r: &mut Registers, i: &Instruction, m: u32, op: CarryOp) {
    let wide = i.count == 2;
    let read = |row: u32| if wide { *r.row64(row) } else { r.row32(row).map(u64::from) };
    let adds_product = !matches!(op, CarryOp::Add | CarryOp::Sub);
    let (a, b, c) = (read(i.a), read(i.b), if adds_product { read(i.c) } else { [0; LANES] });
    // A difference is the sum with the other's complement and 1.
    let none = if op == CarryOp::Sub { !0 } else { 0 };
    let before = if i.has(FLAG_OPTIONAL) { r.predicate(i.e) } else { none };
    let (mut out, mut after) = ([0; LANES], 0);
    for lane in lanes(m) {
        let carry = before >> lane & 1 != 0;
        let bits = if wide { 64 } else { 32 };
        let (result, carry) = one(op, bits, [a[lane], b[lane], c[lane]], carry);
        out[lane] = result;
        after |= u32::from(carry) << lane;
    }
    if wide {
        r.set64(i.d, m, &out);
    } else {
        r.set32(i.d, m, &out.map(|value| value as u32));
    }
    if i.has(FLAG_SATURATE) {
        r.set_predicate(i.e, m, after);
    }
}
