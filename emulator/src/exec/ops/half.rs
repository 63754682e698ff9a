//! f16 and bf16: the formats, and arithmetic on them, single and in pairs.
//!
//! Arithmetic goes through f32 and rounds once more at the end. For sums, differences and products that
//! is exact rounding: f32 has more than twice the bits of either format plus two. A fused multiply-add
//! goes through f64, rounded to odd: a small addend decides a tie from far below its last bit.

use super::float::{extreme, flush, maximum, minimum};
use super::math;
use crate::exec::lanes::{Element, map1, map2, map3};
use crate::exec::registers::{LANES, Registers};
use crate::isa::{FLAG_FTZ, FLAG_SATURATE, FLAG_VARIANT, FloatOp, Instruction, Op};

/// The bits of an f16 in the lower half of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Half(pub u16);

/// The bits of a bf16 in the lower half of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bfloat(pub u16);

const NAN16: u16 = 0x7fff;

/// A 16-bit format.
pub trait Format: Copy {
    /// The exact value.
    fn to_f32(self) -> f32;
    /// The nearest value, ties to even.
    fn from_f32(value: f32) -> Self;
    /// The nearest value to the result of an f64 operation.
    fn from_f64(value: f64) -> Self;
    /// From bits.
    fn from_bits(bits: u16) -> Self;
    /// The bits.
    fn bits(self) -> u16;
}

impl Half {
    /// The exact value.
    #[inline(always)]
    pub fn to_f32(self) -> f32 {
        let bits = u32::from(self.0);
        let magnitude = (bits & 0x7fff) << 13;
        // Moves the exponent; subnormals come out right because the product is exact.
        let scaled = (f32::from_bits(magnitude) * f32::from_bits(0x7780_0000)).to_bits();
        let special = if bits & 0x7c00 == 0x7c00 { 0x7f80_0000 | magnitude } else { scaled };
        f32::from_bits(special | (bits & 0x8000) << 16)
    }

    /// The nearest value, ties to even; NaN becomes the one NaN.
    #[inline(always)]
    pub fn from_f32(value: f32) -> Self {
        let bits = value.to_bits();
        let sign = bits >> 16 & 0x8000;
        let magnitude = bits & 0x7fff_ffff;
        // Normal results: round off 13 bits, moving the exponent from bias 127 to 15.
        let odd = magnitude >> 13 & 1;
        let normal = magnitude.wrapping_add(0xc800_0fff).wrapping_add(odd) >> 13;
        // Subnormal results: adding 1/2 puts the unit in the last place where f16 has it.
        let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0x3f00_0000);
        let rounded = if magnitude < 0x3880_0000 { subnormal } else { normal };
        let limited = if magnitude >= 0x477f_f000 { 0x7c00 } else { rounded };
        let result = if magnitude > 0x7f80_0000 { u32::from(NAN16) } else { limited | sign };
        Half(result as u16)
    }
}

impl Bfloat {
    /// The exact value.
    #[inline(always)]
    pub fn to_f32(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }

    /// The nearest value, ties to even; NaN becomes the one NaN.
    #[inline(always)]
    pub fn from_f32(value: f32) -> Self {
        let bits = value.to_bits();
        let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
        let nan = bits & 0x7fff_ffff > 0x7f80_0000;
        Bfloat(if nan { NAN16 } else { rounded as u16 })
    }
}

/// Rounds an f64 to f32 such that rounding again to fewer bits gives the nearest value of all: to odd.
#[inline(always)]
fn to_odd(value: f64) -> f32 {
    let nearest = value as f32;
    let back = f64::from(nearest);
    if back == value || !nearest.is_finite() || value.is_nan() {
        return nearest;
    }
    // Truncate towards zero, then set the last bit.
    let bits = nearest.to_bits();
    let truncated = if back.abs() > value.abs() { bits - 1 } else { bits };
    f32::from_bits(truncated | 1)
}

/// The sum, exact or rounded to its odd neighbour, which no later rounding takes for a tie. The error of a
/// sum is exact: Knuth, The Art of Computer Programming, volume 2, section 4.2.2, theorem B.
#[inline(always)]
pub fn sum_to_odd(a: f64, b: f64) -> f64 {
    let sum = a + b;
    let of_b = sum - a;
    let error = (a - (sum - of_b)) + (b - of_b);
    let is_exact = error == 0.0 || !error.is_finite();
    if is_exact || sum.to_bits() & 1 == 1 {
        sum
    } else if error > 0.0 {
        sum.next_up()
    } else {
        sum.next_down()
    }
}

macro_rules! format {
    ($type:ident) => {
        impl Format for $type {
            #[inline(always)]
            fn to_f32(self) -> f32 {
                $type::to_f32(self)
            }
            #[inline(always)]
            fn from_f32(value: f32) -> Self {
                $type::from_f32(value)
            }
            #[inline(always)]
            fn from_f64(value: f64) -> Self {
                $type::from_f32(to_odd(value))
            }
            #[inline(always)]
            fn from_bits(bits: u16) -> Self {
                $type(bits)
            }
            #[inline(always)]
            fn bits(self) -> u16 {
                self.0
            }
        }

        impl Element for $type {
            type Cell = u32;
            #[inline(always)]
            fn from_cell(cell: u32) -> Self {
                $type(cell as u16)
            }
            #[inline(always)]
            fn into_cell(self) -> u32 {
                u32::from(self.0)
            }
            #[inline(always)]
            fn row(registers: &Registers, row: u32) -> &[u32; LANES] {
                registers.row32(row)
            }
            #[inline(always)]
            fn row_mut(registers: &mut Registers, row: u32) -> &mut [u32; LANES] {
                registers.row32_mut(row)
            }
        }
    };
}

format!(Half);
format!(Bfloat);

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

/// A subnormal f16 becomes a zero of its sign.
fn flush16<T: Format>(value: T) -> T {
    let bits = value.bits();
    T::from_bits(if bits & 0x7c00 == 0 { bits & 0x8000 } else { bits })
}

#[inline(always)]
fn apply<T: Format>(op: FloatOp, flags: u8, [a, b, c]: [T; 3]) -> T {
    match op {
        FloatOp::Neg => return T::from_bits(a.bits() ^ 0x8000),
        FloatOp::Abs => return T::from_bits(a.bits() & 0x7fff),
        _ => {}
    }
    let ftz = flags & FLAG_FTZ != 0;
    if ftz && op != FloatOp::Ex2 {
        // Only f16 has this form of the others.
        let [a, b, c] = [a, b, c].map(flush16);
        return flush16(apply(op, flags & !FLAG_FTZ, [a, b, c]));
    }
    let (x, y, z) = (a.to_f32(), b.to_f32(), c.to_f32());
    let value = match op {
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

/// Clamping to [0, 1] and `relu`.
#[inline(always)]
fn finish<T: Format>(value: T, flags: u8) -> T {
    if flags & FLAG_SATURATE != 0 {
        let x = value.to_f32();
        return T::from_f32(if x > 1.0 { 1.0 } else { maximum(x, 0.0) });
    }
    if flags & FLAG_VARIANT != 0 && value.to_f32() < 0.0 {
        return T::from_f32(0.0);
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_f16_and_bf16_comes_back() {
        for bits in 0..=u16::MAX {
            let (half, brain) = (Half(bits).to_f32(), Bfloat(bits).to_f32());
            let known = half::f16::from_bits(bits).to_f32();
            assert!(half.to_bits() == known.to_bits() || half.is_nan() && known.is_nan(), "{bits:#x}");
            assert_eq!(Half::from_f32(half).0, if half.is_nan() { NAN16 } else { bits });
            assert_eq!(Bfloat::from_f32(brain).0, if brain.is_nan() { NAN16 } else { bits });
        }
    }

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

    #[test]
    fn rounding_to_f16_and_bf16_is_to_nearest_even() {
        let mut bits = 0u32;
        loop {
            let value = f32::from_bits(bits);
            if value.is_nan() {
                assert_eq!((Half::from_f32(value).0, Bfloat::from_f32(value).0), (NAN16, NAN16));
            } else {
                assert_eq!(Half::from_f32(value).0, half::f16::from_f32(value).to_bits(), "{value:e}");
                assert_eq!(
                    Bfloat::from_f32(value).0,
                    half::bf16::from_f32(value).to_bits(),
                    "{value:e}"
                );
            }
            match bits.checked_add(4093) {
                Some(next) => bits = next,
                None => break,
            }
        }
    }
}
