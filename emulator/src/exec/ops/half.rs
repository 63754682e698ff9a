//! Arithmetic on f16 and bf16, single and in pairs.
//!
//! Arithmetic goes through f32 and rounds once more at the end. For sums, differences and products that
//! is exact rounding: f32 has more than twice the bits of either format plus two. A fused multiply-add
//! goes through f64, rounded to odd: a small addend decides a tie from far below its last bit.

use crate::exec::values::float::{extreme, flush, maximum, minimum};
use crate::exec::values::half::{Bfloat, Format, Half, flush16};
use crate::exec::values::map::{Element, map1, map2, map3};
use crate::exec::values::math;
use crate::exec::values::registers::Registers;
use crate::exec::values::rounding::sum_to_odd;
use crate::isa::{FLAG_FTZ, FLAG_OUT_OF_BOUNDS, FLAG_SATURATE, FLAG_VARIANT, FloatOp, Instruction, Op};

/// Arithmetic on single values and pairs of both formats.
#[inline(always)]
pub fn run(r: &mut Registers, i: &Instruction, m: u32, op: Op) {
    match op {
        Op::Half(op) => single::<Half>(r, i, m, op),
        Op::Bfloat(op) => single::<Bfloat>(r, i, m, op),
        Op::HalfPair(op) => pair::<Half>(r, i, m, op),
        Op::BfloatPair(op) => pair::<Bfloat>(r, i, m, op),
        _ => unreachable!("no operation on 16-bit floats: {op:?}"),
    }
}

#[inline(always)]
fn operands(op: FloatOp) -> u32 {
    match op {
        FloatOp::Fma => 3,
        FloatOp::Add | FloatOp::Sub | FloatOp::Mul | FloatOp::Min | FloatOp::Max => 2,
        _ => 1,
    }
}

#[inline(always)]
fn single<T: Format + Element<Cell = u32>>(r: &mut Registers, i: &Instruction, m: u32, op: FloatOp) {
    let flags = i.flags;
    match operands(op) {
        3 => map3(r, i, m, |a: T, b: T, c: T| apply(op, flags, [a, b, c])),
        2 => map2(r, i, m, |a: T, b: T| apply(op, flags, [a, b, b])),
        _ => map1(r, i, m, |a: T| apply(op, flags, [a, a, a])),
    }
}

#[inline(always)]
fn pair<T: Format>(r: &mut Registers, i: &Instruction, m: u32, op: FloatOp) {
    let flags = i.flags;
    let both = |a: u32, b: u32, c: u32| {
        let part = |shift: u32| {
            let value = |word: u32| T::from_bits((word >> shift) as u16);
            u32::from(apply(op, flags, [value(a), value(b), value(c)]).bits()) << shift
        };
        part(0) | part(16)
    };
    match operands(op) {
        3 => map3(r, i, m, both),
        2 => map2(r, i, m, |a, b| both(a, b, b)),
        _ => map1(r, i, m, |a| both(a, a, a)),
    }
}

#[inline(always)]
fn apply<T: Format>(op: FloatOp, flags: u8, [a, b, c]: [T; 3]) -> T {
    let ftz = flags & FLAG_FTZ != 0;
    if ftz && op != FloatOp::Ex2 {
        // Only f16 has this form of the others.
        let [a, b, c] = [a, b, c].map(flush16);
        return flush16(apply(op, flags & !FLAG_FTZ, [a, b, c]));
    }
    if flags & FLAG_OUT_OF_BOUNDS != 0 && op == FloatOp::Fma && [a, b].iter().any(is_out_of_bounds) {
        return T::from_bits(0);
    }
    let (x, y, z) = (a.to_f32(), b.to_f32(), c.to_f32());
    let value = match op {
        FloatOp::Neg => -x,
        FloatOp::Abs => x.abs(),
        FloatOp::Add => x + y,
        FloatOp::Sub => x - y,
        FloatOp::Mul => x * y,
        FloatOp::Fma => {
            let fused = sum_to_odd(f64::from(x) * f64::from(y), f64::from(z));
            return finish(T::from_f64(fused), flags);
        }
        FloatOp::Min => extreme(flags, x, y, minimum),
        FloatOp::Max => extreme(flags, x, y, maximum),
        FloatOp::Ex2 if ftz => flush(math::exp2(flush(x))),
        FloatOp::Ex2 => math::exp2(x),
        _ => math::tanh(x),
    };
    finish(T::from_f32(value), if matches!(op, FloatOp::Min | FloatOp::Max) { 0 } else { flags })
}

/// The NaN of which `.oob` makes 0, of f16 and bf16 alike and with any sign. PTX does not say which it is; of
/// all of them a GPU takes this one.
#[inline(always)]
fn is_out_of_bounds<T: Format>(value: &T) -> bool {
    value.bits() & 0x7fff == 0x7ff7
}

/// Clamping to [0, 1] and `relu`.
#[inline(always)]
fn finish<T: Format>(value: T, flags: u8) -> T {
    if flags & FLAG_SATURATE != 0 {
        let x = value.to_f32();
        return T::from_f32(if x > 1.0 { 1.0 } else { maximum(x, 0.0) });
    }
    if flags & FLAG_VARIANT != 0 && value.to_f32() <= 0.0 {
        return T::from_f32(0.0);
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The product is a tie of bf16, and the addend is 2^-70 of it.
    #[test]
    fn far_addend_decides_a_tie_of_a_fused_multiply_add() {
        let bits = |value: f32| Bfloat::from_f32(value);
        for sign in [1.0, -1.0] {
            let (a, b) = (bits(1.0625), bits(sign * 1.0625)); // 1.12890625, a tie of 1.125 and 1.1328125
            for (far, expected) in [(0.0, 1.125), (-1.0, 1.125), (1.0, 1.132_812_5)] {
                let c = bits(far * sign * 2f32.powi(-70));
                assert_eq!(apply(FloatOp::Fma, 0, [a, b, c]), bits(sign * expected), "{sign} {far}");
            }
        }
    }
}
