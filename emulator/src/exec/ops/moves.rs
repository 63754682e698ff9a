//! Moves, packing, selections, predicates and changes of address space.

use crate::exec::values::map::{map1, map2};
use crate::exec::values::registers::{LANES, Registers, blend, lanes};
use crate::isa::{FLAG_NEGATE_SOURCE, Instruction, MoveOp, PREDICATE_TRUE, PredicateOp};
use crate::space::WINDOW_SHIFT;

/// `mov`, `cvta` and `isspacep`. `lists` are the kernel's operand lists.
pub fn run(r: &mut Registers, i: &Instruction, m: u32, op: MoveOp, lists: &[u32]) {
    match op {
        MoveOp::Bits32 => {
            let row = *r.row32(i.a);
            r.set32(i.d, m, &row);
        }
        MoveOp::Bits64 => copy64(r, i.d, i.a, m),
        MoveOp::Bits128 => {
            copy64(r, i.d, i.a, m);
            copy64(r, i.d + 2, i.a + 2, m);
        }
        MoveOp::Pack => pack(r, i, m, lists),
        MoveOp::Unpack => unpack(r, i, m, lists),
        MoveOp::ToGeneric => map2(r, i, m, |a: u64, window: u64| a.wrapping_add(window)),
        MoveOp::FromGeneric => map2(r, i, m, |a: u64, window: u64| a.wrapping_sub(window)),
        MoveOp::IsSpace => {
            let space = i.immediate as u64;
            let a = r.row64(i.a);
            let inside = (0..LANES)
                .fold(0, |mask, lane| mask | u32::from(a[lane] >> WINDOW_SHIFT == space) << lane);
            r.set_predicate(i.d, m, inside);
        }
    }
}

fn copy64(r: &mut Registers, d: u32, a: u32, m: u32) {
    let row = *r.row64(a);
    r.set64(d, m, &row);
}

fn mask_of(bytes: u32) -> u64 {
    if bytes >= 8 { !0 } else { (1 << (8 * bytes)) - 1 }
}

/// The bytes of a register: one 64-bit half, of a 128-bit register the `half`th.
fn read(r: &Registers, row: u32, bytes: u32, half: u32, lane: usize) -> u64 {
    if bytes >= 8 { r.row64(row + 2 * half)[lane] } else { u64::from(r.row32(row)[lane]) }
}

fn pack(r: &mut Registers, i: &Instruction, m: u32, lists: &[u32]) {
    let elements = &lists[i.a as usize..i.a as usize + usize::from(i.count)];
    if let ([low, high], 4) = (elements, i.b) {
        let (low, high) = (*r.row32(*low), *r.row32(*high));
        let mut out = [0; LANES];
        for lane in 0..LANES {
            out[lane] = u64::from(high[lane]) << 32 | u64::from(low[lane]);
        }
        return r.set64(i.d, m, &out);
    }
    let mut out = [[0u64; LANES]; 2];
    for lane in lanes(m) {
        for (position, &element) in elements.iter().enumerate() {
            let at = 8 * i.b * position as u32;
            let value = read(r, element, i.b, 0, lane) & mask_of(i.b);
            out[at as usize / 64][lane] |= value << (at % 64);
        }
    }
    match i.c {
        16 => {
            r.set64(i.d, m, &out[0]);
            r.set64(i.d + 2, m, &out[1]);
        }
        8 => r.set64(i.d, m, &out[0]),
        _ => r.set32(i.d, m, &out[0].map(|value| value as u32)),
    }
}

fn unpack(r: &mut Registers, i: &Instruction, m: u32, lists: &[u32]) {
    let elements = &lists[i.d as usize..i.d as usize + usize::from(i.count)];
    // The source may be among the destinations.
    let mut source = [[0u64; LANES]; 2];
    for lane in 0..LANES {
        source[0][lane] = read(r, i.a, i.c, 0, lane);
        if i.c == 16 {
            source[1][lane] = read(r, i.a, i.c, 1, lane);
        }
    }
    for (position, &element) in elements.iter().enumerate() {
        let at = 8 * i.b * position as u32;
        let values = source[at as usize / 64].map(|value| value >> (at % 64) & mask_of(i.b));
        if i.b == 8 {
            r.set64(element, m, &values);
        } else {
            r.set32(element, m, &values.map(|value| value as u32));
        }
    }
}

/// `selp` of 32 bits.
pub fn select32(r: &mut Registers, i: &Instruction, m: u32) {
    let choose = chosen(r, i);
    let mut out = *r.row32(i.b);
    blend(&mut out, choose, r.row32(i.a));
    r.set32(i.d, m, &out);
}

/// `selp` of 64 bits.
pub fn select64(r: &mut Registers, i: &Instruction, m: u32) {
    let choose = chosen(r, i);
    let mut out = *r.row64(i.b);
    blend(&mut out, choose, r.row64(i.a));
    r.set64(i.d, m, &out);
}

fn chosen(r: &Registers, i: &Instruction) -> u32 {
    r.predicate(i.c) ^ if i.has(FLAG_NEGATE_SOURCE) { !0 } else { 0 }
}

/// Logic on predicates.
pub fn predicate(r: &mut Registers, i: &Instruction, m: u32, op: PredicateOp) {
    let a = r.predicate(i.a) ^ if i.has(FLAG_NEGATE_SOURCE) { !0 } else { 0 };
    let b = r.predicate(i.b) ^ if i.immediate != 0 { !0 } else { 0 };
    let value = match op {
        PredicateOp::Move => a,
        PredicateOp::Not => !a,
        PredicateOp::And => a & b,
        PredicateOp::Or => a | b,
        PredicateOp::Xor => a ^ b,
    };
    debug_assert_ne!(i.d, PREDICATE_TRUE);
    r.set_predicate(i.d, m, value);
}

/// A clock: the number of instructions executed so far.
pub fn clock(r: &mut Registers, i: &Instruction, m: u32, now: u64, wide: bool) {
    if wide {
        map1(r, i, m, |_: u32| now);
    } else {
        map1(r, i, m, |_: u32| now as u32);
    }
}
