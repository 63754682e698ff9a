//! Elements of matrices of any type: their values, their products, and where registers hold them.

use super::fp8::Fp8;
use super::half::{Bfloat, Half};
use super::one_side::{self, DOUBLE};
use super::registers::Registers;
use crate::isa::{FloatOp, MatrixType, Rounding};

/// An element.
#[derive(Clone, Copy, Debug)]
pub enum Number {
    /// A number of up to 32 bits with a floating point.
    Single(f32),
    /// One of 64 bits.
    Double(f64),
    /// An integer, or a bit.
    Integer(i64),
}

impl Number {
    /// As f64, which holds any of them.
    pub fn as_f64(self) -> f64 {
        match self {
            Number::Single(value) => value.into(),
            Number::Double(value) => value,
            Number::Integer(value) => value as f64,
        }
    }
}

/// The value of a matrix element by its bits.
pub fn number(ty: MatrixType, bits: u64) -> Number {
    match ty {
        MatrixType::Bf16 => Number::Single(Bfloat(bits as u16).to_f32()),
        MatrixType::F16 => Number::Single(Half(bits as u16).to_f32()),
        MatrixType::Tf32 => Number::Single(f32::from_bits(bits as u32 & !0x1fff)),
        MatrixType::F32 => Number::Single(f32::from_bits(bits as u32)),
        MatrixType::E4m3 => Number::Single(Fp8::E4m3.to_f32(bits as u8)),
        MatrixType::E5m2 => Number::Single(Fp8::E5m2.to_f32(bits as u8)),
        MatrixType::F64 => Number::Double(f64::from_bits(bits)),
        MatrixType::S8 => Number::Integer(i64::from(bits as u8 as i8)),
        MatrixType::S4 => Number::Integer(i64::from(((bits as u8) << 4) as i8 >> 4)),
        MatrixType::S32 => Number::Integer(i64::from(bits as u32 as i32)),
        MatrixType::U8 | MatrixType::U4 | MatrixType::B1 => Number::Integer(bits as i64),
    }
}

/// The bits of a sum.
pub fn bits_of(ty: MatrixType, value: Number, clamps: bool) -> u64 {
    match value {
        Number::Single(value) if ty == MatrixType::F16 => u64::from(Half::from_f32(value).0),
        Number::Single(value) => u64::from(value.to_bits()),
        Number::Double(value) => value.to_bits(),
        Number::Integer(value) if clamps => {
            value.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as u32 as u64
        }
        Number::Integer(value) => u64::from(value as u32),
    }
}

/// One more product. `xors`: of two bits, the exclusive or.
pub fn accumulate(xors: bool, rounding: Rounding, sum: Number, a: Number, b: Number) -> Number {
    match (sum, a, b) {
        (Number::Double(sum), Number::Double(a), Number::Double(b))
            if rounding != Rounding::NearestEven =>
        {
            Number::Double(f64::from_bits(one_side::round(FloatOp::Fma, [a, b, sum], DOUBLE, rounding)))
        }
        (Number::Single(sum), Number::Single(a), Number::Single(b)) => Number::Single(a.mul_add(b, sum)),
        (Number::Double(sum), Number::Double(a), Number::Double(b)) => Number::Double(a.mul_add(b, sum)),
        (Number::Integer(sum), Number::Integer(a), Number::Integer(b)) => {
            Number::Integer(if xors { sum + (a ^ b) } else { sum + a * b })
        }
        _ => sum, // The decoder lets no such types pass.
    }
}

/// The element that stands in a register list for a row of A, or a column of B, and a value of k.
pub fn element(
    r: &Registers,
    list: &[u32],
    (ty, stride): (MatrixType, usize),
    (line, k): (usize, usize),
) -> Number {
    let bits = ty.bits();
    let in_lane = (32 / bits).max(1);
    let register = list[k / (4 * in_lane) * stride + line / 8];
    let lane = line % 8 * 4 + k % (4 * in_lane) / in_lane;
    let word = if bits == 64 { r.row64(register)[lane] } else { u64::from(r.row32(register)[lane]) };
    let mask = if bits == 64 { u64::MAX } else { (1 << bits) - 1 };
    number(ty, word >> (k % in_lane * bits % 64) & mask)
}
