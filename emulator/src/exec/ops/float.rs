//! Arithmetic on f32 and f64.
//!
//! Results that are NaN have one bit pattern, as on the hardware.

use crate::exec::values::float::{canonical, extreme, flush, maximum, minimum, nan_or};
use crate::exec::values::map::{Element, map1, map2, map3};
use crate::exec::values::math;
use crate::exec::values::one_side::{self, DOUBLE, SINGLE};
use crate::exec::values::registers::Registers;
use crate::isa::{FLAG_FTZ, FLAG_SATURATE, FLAG_VARIANT, FLAG_XOR_SIGN, FloatOp, Instruction, Rounding};

const NAN64: u64 = 0x7fff_ffff_ffff_ffff;

#[inline(always)]
fn canonical64(value: f64) -> u64 {
    let bits = value.to_bits();
    if bits & NAN64 > 0x7ff0_0000_0000_0000 { NAN64 } else { bits }
}

/// NaN becomes 0.
#[inline(always)]
fn saturate(value: f32) -> f32 {
    if value > 1.0 {
        1.0
    } else if value > 0.0 {
        value
    } else {
        0.0
    }
}

#[inline(always)]
fn unary(r: &mut Registers, i: &Instruction, m: u32, f: impl Fn(f32) -> f32) {
    if i.has(FLAG_FTZ) {
        map1(r, i, m, |a: f32| canonical(flush(f(flush(a)))));
    } else {
        map1(r, i, m, |a: f32| canonical(f(a)));
    }
}

#[inline(always)]
fn binary(r: &mut Registers, i: &Instruction, m: u32, f: impl Fn(f32, f32) -> f32) {
    if i.flags & (FLAG_FTZ | FLAG_SATURATE) == 0 {
        map2(r, i, m, |a: f32, b: f32| canonical(f(a, b)));
        return;
    }
    let (ftz, sat) = (i.has(FLAG_FTZ), i.has(FLAG_SATURATE));
    let input = |value: f32| if ftz { flush(value) } else { value };
    map2(r, i, m, |a: f32, b: f32| {
        let value = input(f(input(a), input(b)));
        if sat { saturate(value).to_bits() } else { canonical(value) }
    });
}

#[inline(always)]
fn fused(r: &mut Registers, i: &Instruction, m: u32) {
    if i.flags & (FLAG_FTZ | FLAG_SATURATE) == 0 {
        map3(r, i, m, |a: f32, b: f32, c: f32| canonical(a.mul_add(b, c)));
        return;
    }
    let (ftz, sat) = (i.has(FLAG_FTZ), i.has(FLAG_SATURATE));
    let input = |value: f32| if ftz { flush(value) } else { value };
    map3(r, i, m, |a: f32, b: f32, c: f32| {
        let value = input(input(a).mul_add(input(b), input(c)));
        if sat { saturate(value).to_bits() } else { canonical(value) }
    });
}

/// What is not rounded to the nearest value.
#[inline(never)]
fn to_one_side32(r: &mut Registers, i: &Instruction, m: u32, op: FloatOp) {
    let rounding = Rounding::ALL[usize::from(i.count)];
    let (ftz, sat) = (i.has(FLAG_FTZ), i.has(FLAG_SATURATE));
    let input = |value: f32| if ftz { flush(value) } else { value };
    by_operands(r, i, m, op, |operands: [f32; 3]| {
        let bits = one_side::round(op, operands.map(|value| input(value).into()), SINGLE, rounding);
        let value = input(f32::from_bits(bits as u32));
        if sat { saturate(value).to_bits() } else { canonical(value) }
    });
}

/// The same of f64.
#[inline(never)]
fn to_one_side64(r: &mut Registers, i: &Instruction, m: u32, op: FloatOp) {
    let rounding = Rounding::ALL[usize::from(i.count)];
    by_operands(r, i, m, op, |operands: [f64; 3]| {
        canonical64(f64::from_bits(one_side::round(op, operands, DOUBLE, rounding)))
    });
}

/// As many operands as an operation has, the last of them as often as there are places.
fn by_operands<T: Element, D: Element>(
    r: &mut Registers,
    i: &Instruction,
    m: u32,
    op: FloatOp,
    f: impl Fn([T; 3]) -> D,
) {
    match op {
        FloatOp::Fma => map3(r, i, m, |a: T, b: T, c: T| f([a, b, c])),
        FloatOp::Rcp | FloatOp::Sqrt => map1(r, i, m, |a: T| f([a, a, a])),
        _ => map2(r, i, m, |a: T, b: T| f([a, b, b])),
    }
}

/// f32.
#[inline(always)]
pub fn run32(r: &mut Registers, i: &Instruction, m: u32, op: FloatOp) {
    if i.count != Rounding::NearestEven as u8 {
        return to_one_side32(r, i, m, op);
    }
    match op {
        FloatOp::Add => binary(r, i, m, |a, b| a + b),
        FloatOp::Sub => binary(r, i, m, |a, b| a - b),
        FloatOp::Mul => binary(r, i, m, |a, b| a * b),
        FloatOp::Div => binary(r, i, m, |a, b| a / b),
        FloatOp::Fma => fused(r, i, m),
        FloatOp::Min if i.has(FLAG_XOR_SIGN) => binary(r, i, m, |a, b| extreme(i.flags, a, b, minimum)),
        FloatOp::Max if i.has(FLAG_XOR_SIGN) => binary(r, i, m, |a, b| extreme(i.flags, a, b, maximum)),
        FloatOp::Min if i.has(FLAG_VARIANT) => binary(r, i, m, |a, b| nan_or(a, b, minimum(a, b))),
        FloatOp::Max if i.has(FLAG_VARIANT) => binary(r, i, m, |a, b| nan_or(a, b, maximum(a, b))),
        FloatOp::Min => binary(r, i, m, minimum),
        FloatOp::Max => binary(r, i, m, maximum),
        FloatOp::Neg => unary(r, i, m, |a| -a),
        FloatOp::Abs => unary(r, i, m, f32::abs),
        FloatOp::Rcp => unary(r, i, m, |a| 1.0 / a),
        FloatOp::Sqrt => unary(r, i, m, f32::sqrt),
        FloatOp::Rsqrt => unary(r, i, m, math::rsqrt),
        FloatOp::Ex2 => unary(r, i, m, math::exp2),
        FloatOp::Lg2 => unary(r, i, m, math::log2),
        FloatOp::Tanh => unary(r, i, m, math::tanh),
        FloatOp::Sin => unary(r, i, m, math::sin),
        FloatOp::Cos => unary(r, i, m, math::cos),
        FloatOp::CopySign => {
            map2(r, i, m, |a: u32, b: u32| b & 0x7fff_ffff | a & 0x8000_0000);
        }
    }
}

/// f64.
#[inline(always)]
pub fn run64(r: &mut Registers, i: &Instruction, m: u32, op: FloatOp) {
    if i.count != Rounding::NearestEven as u8 {
        return to_one_side64(r, i, m, op);
    }
    match op {
        FloatOp::Add => map2(r, i, m, |a: f64, b: f64| canonical64(a + b)),
        FloatOp::Sub => map2(r, i, m, |a: f64, b: f64| canonical64(a - b)),
        FloatOp::Mul => map2(r, i, m, |a: f64, b: f64| canonical64(a * b)),
        FloatOp::Div => map2(r, i, m, |a: f64, b: f64| canonical64(a / b)),
        FloatOp::Fma => map3(r, i, m, |a: f64, b: f64, c: f64| canonical64(a.mul_add(b, c))),
        FloatOp::Min => map2(r, i, m, |a: f64, b: f64| canonical64(ordered64(a, b, precedes(a, b)))),
        FloatOp::Max => map2(r, i, m, |a: f64, b: f64| canonical64(ordered64(a, b, precedes(b, a)))),
        FloatOp::Neg => map1(r, i, m, |a: u64| a ^ 1 << 63),
        FloatOp::Abs => map1(r, i, m, |a: u64| a & !(1 << 63)),
        FloatOp::Rcp => map1(r, i, m, |a: f64| canonical64(1.0 / a)),
        FloatOp::Sqrt => map1(r, i, m, |a: f64| canonical64(a.sqrt())),
        FloatOp::Rsqrt => map1(r, i, m, |a: f64| canonical64(1.0 / a.sqrt())),
        FloatOp::CopySign => map2(r, i, m, |a: f64, b: f64| b.copysign(a)),
        FloatOp::Ex2 | FloatOp::Lg2 | FloatOp::Tanh | FloatOp::Sin | FloatOp::Cos => {
            unreachable!("the decoder makes {op:?} for f32 alone")
        }
    }
}

/// Whether `a` is smaller than `b`, of which neither is NaN; -0 is smaller than +0.
#[inline(always)]
fn precedes(a: f64, b: f64) -> bool {
    a < b || a == b && a.is_sign_negative() && !b.is_sign_negative()
}

/// `a` if it comes first or `b` is NaN.
#[inline(always)]
fn ordered64(a: f64, b: f64, first: bool) -> f64 {
    if a.is_nan() {
        b
    } else if b.is_nan() || first {
        a
    } else {
        b
    }
}
