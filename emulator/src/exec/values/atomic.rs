//! What atomic operations make of numbers.

use crate::exec::values::float::add_flushed;
use crate::exec::values::half::{Bfloat, Format, Half};
use crate::isa::{AtomicOp, AtomicType};

/// What an operation makes of a value and its operands; sums of f32 flush subnormal numbers where `ftz`.
pub fn apply(op: AtomicOp, ty: AtomicType, ftz: bool, old: u64, operand: u64, second: u64) -> u64 {
    match op {
        AtomicOp::Exchange => operand,
        AtomicOp::CompareExchange => {
            if old == operand {
                second
            } else {
                old
            }
        }
        AtomicOp::And => old & operand,
        AtomicOp::Or => old | operand,
        AtomicOp::Xor => old ^ operand,
        AtomicOp::Increment => {
            if old as u32 >= operand as u32 {
                0
            } else {
                old + 1
            }
        }
        AtomicOp::Decrement => {
            if old as u32 == 0 || old as u32 > operand as u32 {
                operand
            } else {
                old - 1
            }
        }
        AtomicOp::Min | AtomicOp::Max if is_half(ty) => extreme(ty, op == AtomicOp::Min, old, operand),
        AtomicOp::Min => {
            if less(ty, operand, old) {
                operand
            } else {
                old
            }
        }
        AtomicOp::Max => {
            if less(ty, old, operand) {
                operand
            } else {
                old
            }
        }
        AtomicOp::Add => add(ty, ftz, old, operand),
    }
}

fn is_half(ty: AtomicType) -> bool {
    matches!(ty, AtomicType::F16 | AtomicType::Bf16 | AtomicType::F16x2 | AtomicType::Bf16x2)
}

/// The smaller or the larger of two numbers of 16 bits, or of two pairs of them. NaN is neither, if it can
/// be.
fn extreme(ty: AtomicType, smaller: bool, old: u64, operand: u64) -> u64 {
    fn one<T: Format>(smaller: bool, a: u64, b: u64) -> u64 {
        let (x, y) = (T::from_bits(a as u16).to_f32(), T::from_bits(b as u16).to_f32());
        // Of two zeros the negative one is the smaller.
        let x_is_less = x < y || x == y && x.is_sign_negative();
        u64::from(match (x.is_nan(), y.is_nan()) {
            (true, true) => 0x7fff,
            (true, false) => b as u16,
            (false, true) => a as u16,
            _ if x_is_less == smaller => a as u16,
            _ => b as u16,
        })
    }
    let pick = match ty {
        AtomicType::F16 | AtomicType::F16x2 => one::<Half>,
        _ => one::<Bfloat>,
    };
    match ty {
        AtomicType::F16 | AtomicType::Bf16 => pick(smaller, old, operand),
        _ => pick(smaller, old, operand) | pick(smaller, old >> 16, operand >> 16) << 16,
    }
}

fn less(ty: AtomicType, a: u64, b: u64) -> bool {
    match ty {
        AtomicType::S32 => (a as i32) < b as i32,
        AtomicType::S64 => (a as i64) < b as i64,
        AtomicType::U32 => (a as u32) < b as u32,
        _ => a < b,
    }
}

/// The sum, `ftz` with subnormal numbers of f32 flushed.
fn add(ty: AtomicType, ftz: bool, old: u64, operand: u64) -> u64 {
    fn one<T: Format>(a: u16, b: u16) -> u16 {
        T::from_f32(T::from_bits(a).to_f32() + T::from_bits(b).to_f32()).bits()
    }
    fn two<T: Format>(a: u64, b: u64) -> u64 {
        u64::from(one::<T>(a as u16, b as u16))
            | u64::from(one::<T>((a >> 16) as u16, (b >> 16) as u16)) << 16
    }
    match ty {
        AtomicType::F32 if ftz => u64::from(add_flushed(old as u32, operand as u32)),
        AtomicType::F32 => {
            u64::from((f32::from_bits(old as u32) + f32::from_bits(operand as u32)).to_bits())
        }
        AtomicType::F64 => (f64::from_bits(old) + f64::from_bits(operand)).to_bits(),
        AtomicType::F16 => u64::from(one::<Half>(old as u16, operand as u16)),
        AtomicType::Bf16 => u64::from(one::<Bfloat>(old as u16, operand as u16)),
        AtomicType::F16x2 => two::<Half>(old, operand),
        AtomicType::Bf16x2 => two::<Bfloat>(old, operand),
        _ => old.wrapping_add(operand),
    }
}
