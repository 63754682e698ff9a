//! Conversions.
//!
//! The frequent pairs of types have loops of their own; the rest goes through exact wide values, one
//! lane at a time.

use crate::exec::values::float::{canonical, flush};
use crate::exec::values::half::{Bfloat, Format, Half};
use crate::exec::values::map::{map1, map2};
use crate::exec::values::registers::{LANES, Registers};
use crate::exec::values::rounding::{direct32, direct64};
use crate::isa::types::tf32;
use crate::isa::{
    ConvertType, FLAG_FINITE, FLAG_FTZ, FLAG_SATURATE, FLAG_VARIANT, Instruction, Op, Rounding,
};

/// Every conversion.
#[inline(always)]
pub fn run(r: &mut Registers, i: &Instruction, m: u32, op: Op) {
    match op {
        Op::ConvertU32ToU64 => map1(r, i, m, |a: u32| u64::from(a)),
        Op::ConvertS32ToS64 => map1(r, i, m, |a: i32| i64::from(a)),
        Op::ConvertU64ToU32 => map1(r, i, m, |a: u64| a as u32),
        Op::ConvertU32ToU16 => map1(r, i, m, |a: u32| a & 0xffff),
        Op::ConvertBfloatToF32 => map1(r, i, m, |a: Bfloat| a.to_f32()),
        Op::ConvertHalfToF32 => map1(r, i, m, |a: Half| canonical(a.to_f32())),
        Op::ConvertTf32 => tf32(r, i, m),
        Op::ConvertPairBfloat => pair::<Bfloat>(r, i, m),
        Op::ConvertPairHalf => pair::<Half>(r, i, m),
        _ => typed(r, i, m),
    }
}

/// 10 of the 23 bits of f32. What is cut off rounds by what is added first, of which the carry stays: half of
/// it, away from 0 in the middle; or less, where the last bit that stays is even; or nothing. Then `.relu`
/// and `.satfinite`. Away from 0 a NaN keeps its upper bits alone, and may so become infinite, as on a GPU.
#[inline(always)]
fn tf32(r: &mut Registers, i: &Instruction, m: u32) {
    const INFINITY: u32 = 0x7f80_0000;
    // Canonical, of the bits that the type has: the lower ones are 0 on a GPU, too.
    let nan = canonical(f32::NAN) & !0x1fff;
    let (relu, finite) = (i.has(FLAG_VARIANT), i.has(FLAG_FINITE));
    map1(r, i, m, |a: u32| {
        let added = match i.immediate {
            tf32::EVEN => 0xfff + (a >> 13 & 1),
            tf32::ZERO => 0,
            _ => 0x1000,
        };
        let (sign, size) = (a & 1 << 31, a & !(1 << 31));
        match size.wrapping_add(added) & !0x1fff {
            _ if size > INFINITY && i.immediate == tf32::AWAY && !finite => a & !0x1fff,
            _ if size > INFINITY => nan,
            _ if relu && sign != 0 => 0,
            INFINITY.. if finite => sign | (INFINITY - 0x2000),
            rounded => sign | rounded,
        }
    });
}

#[inline(always)]
fn pair<T: Format>(r: &mut Registers, i: &Instruction, m: u32) {
    if i.count == Rounding::NearestEven as u8 && i.flags & (FLAG_VARIANT | FLAG_FINITE) == 0 {
        map2(r, i, m, |high: f32, low: f32| {
            u32::from(T::from_f32(high).bits()) << 16 | u32::from(T::from_f32(low).bits())
        });
        return;
    }
    let rounding = Rounding::ALL[usize::from(i.count)];
    map2(r, i, m, |high: f32, low: f32| {
        let one = |value: f32| u32::from(narrow::<T>(f64::from(value), rounding, i.flags).bits());
        one(high) << 16 | one(low)
    });
}

#[inline(always)]
fn typed(r: &mut Registers, i: &Instruction, m: u32) {
    use ConvertType::{Bf16, F16, F32, S32, U32};
    let (from, to) = (ConvertType::ALL[i.b as usize], ConvertType::ALL[i.c as usize]);
    let rounding = Rounding::ALL[usize::from(i.count)];
    if i.flags & (FLAG_FTZ | FLAG_SATURATE | FLAG_VARIANT | FLAG_FINITE) == 0 && i.immediate == 0 {
        match (from, to, rounding) {
            (U32, F32, Rounding::NearestEven) => return map1(r, i, m, |a: u32| a as f32),
            (S32, F32, Rounding::NearestEven) => return map1(r, i, m, |a: i32| a as f32),
            (F32, S32, Rounding::IntegerZero) => return map1(r, i, m, |a: f32| a as i32),
            (F32, U32, Rounding::IntegerZero) => return map1(r, i, m, |a: f32| a as u32),
            (F32, Bf16, Rounding::NearestEven) => return map1(r, i, m, Bfloat::from_f32),
            (F32, F16, Rounding::NearestEven) => return map1(r, i, m, Half::from_f32),
            _ => {}
        }
    }
    let job = Job { from, to, rounding, flags: i.flags };
    general(r, i, m, job);
}

/// One conversion, whatever the types.
#[derive(Clone, Copy)]
struct Job {
    from: ConvertType,
    to: ConvertType,
    rounding: Rounding,
    flags: u8,
}

#[inline(never)]
fn general(r: &mut Registers, i: &Instruction, m: u32, job: Job) {
    let (wide_result, wide_source) = (i.immediate & 1 != 0, i.immediate & 2 != 0);
    let mut out = [0u64; LANES];
    for (lane, value) in out.iter_mut().enumerate() {
        let raw = if wide_source { r.row64(i.a)[lane] } else { u64::from(r.row32(i.a)[lane]) };
        *value = job.convert(raw);
    }
    if wide_result {
        r.set64(i.d, m, &out);
    } else {
        r.set32(i.d, m, &out.map(|value| value as u32));
    }
}

/// A value without loss.
#[derive(Clone, Copy)]
enum Exact {
    Integer(i128),
    Float(f64),
}

impl Job {
    fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    fn convert(self, raw: u64) -> u64 {
        let value = self.read(raw);
        match (value, self.to.is_float()) {
            (Exact::Integer(value), false) => self.integer(value),
            (Exact::Float(value), false) if value.is_nan() => self.of_nan(),
            (Exact::Float(value), false) => self.integer(integral(value, self.rounding) as i128),
            (Exact::Integer(value), true) => self.float_from_integer(value),
            (Exact::Float(value), true) => self.float(value),
        }
    }

    fn read(self, raw: u64) -> Exact {
        // A GPU rounds to f16 what it would flush of another type.
        let flushes = self.has(FLAG_FTZ) && self.to != ConvertType::F16;
        let float = |value: f32| Exact::Float(f64::from(if flushes { flush(value) } else { value }));
        match self.from {
            ConvertType::U8 => Exact::Integer(i128::from(raw as u8)),
            ConvertType::S8 => Exact::Integer(i128::from(raw as i8)),
            ConvertType::U16 => Exact::Integer(i128::from(raw as u16)),
            ConvertType::S16 => Exact::Integer(i128::from(raw as i16)),
            ConvertType::U32 => Exact::Integer(i128::from(raw as u32)),
            ConvertType::S32 => Exact::Integer(i128::from(raw as i32)),
            ConvertType::U64 => Exact::Integer(i128::from(raw)),
            ConvertType::S64 => Exact::Integer(i128::from(raw as i64)),
            ConvertType::F16 => Exact::Float(f64::from(Half(raw as u16).to_f32())),
            ConvertType::Bf16 => Exact::Float(f64::from(Bfloat(raw as u16).to_f32())),
            ConvertType::F32 => float(f32::from_bits(raw as u32)),
            ConvertType::F64 => Exact::Float(f64::from_bits(raw)),
        }
    }

    /// What NaN becomes as an integer: 0, or where 64 bits are involved, only the highest bit.
    fn of_nan(self) -> u64 {
        if self.from != ConvertType::F64 && !self.to.is_wide() {
            return 0;
        }
        let (bits, signed) = self.width();
        let highest = 1i128 << (bits - 1);
        self.integer(if signed { -highest } else { highest })
    }

    /// Bits of the result, an integer, and whether it is signed.
    fn width(self) -> (u32, bool) {
        match self.to {
            ConvertType::U8 => (8, false),
            ConvertType::S8 => (8, true),
            ConvertType::U16 => (16, false),
            ConvertType::S16 => (16, true),
            ConvertType::U32 => (32, false),
            ConvertType::S32 => (32, true),
            ConvertType::U64 => (64, false),
            _ => (64, true),
        }
    }

    /// The bits of an integer of the result type, extended to 64 bits. What is beyond the type and comes
    /// from a float is clamped.
    fn integer(self, value: i128) -> u64 {
        let (bits, signed) = self.width();
        let (low, high) = if signed {
            (-(1i128 << (bits - 1)), (1 << (bits - 1)) - 1)
        } else {
            (0, (1i128 << bits) - 1)
        };
        let clamps = self.from.is_float() || self.has(FLAG_SATURATE);
        let value = if clamps { value.clamp(low, high) } else { value };
        let unused = 128 - bits;
        let extended = if signed {
            value << unused >> unused
        } else {
            ((value as u128) << unused >> unused) as i128
        };
        extended as u64
    }

    fn float_from_integer(self, value: i128) -> u64 {
        match self.to {
            ConvertType::F64 => {
                let nearest = value as f64;
                let order = (nearest as i128).cmp(&value);
                let result = direct64(nearest, order, value < 0, self.rounding);
                if self.has(FLAG_SATURATE) { saturated(result) } else { result }.to_bits()
            }
            ConvertType::F32 => {
                let nearest = value as f32;
                let order = (nearest as i128).cmp(&value);
                let result = direct32(nearest, order, value < 0, self.rounding);
                u64::from(self.limit(result))
            }
            // Magnitudes beyond 2^53 lose bits here, far above f16 and far below the last bit of bf16.
            _ => self.float(odd_f64(value)),
        }
    }

    fn float(self, value: f64) -> u64 {
        let value = if self.rounding as u8 >= Rounding::IntegerNearestEven as u8 {
            integral(value, self.rounding)
        } else {
            value
        };
        let keeps_nan = value.is_nan() && self.from == ConvertType::F64 && !self.has(FLAG_SATURATE);
        let kept = || u64::from(quiet(value.to_bits()));
        match self.to {
            ConvertType::F64 if self.has(FLAG_SATURATE) => saturated(value).to_bits(),
            ConvertType::F64 if value.is_nan() => 0x7fff_ffff_ffff_ffff,
            ConvertType::F64 => value.to_bits(),
            ConvertType::F32 if keeps_nan => kept(),
            ConvertType::F32 => {
                let nearest = value as f32;
                let order = f64::from(nearest).partial_cmp(&value).unwrap_or(std::cmp::Ordering::Equal);
                let result = direct32(nearest, order, value < 0.0, self.rounding);
                let result = if self.has(FLAG_FTZ) { flush(result) } else { result };
                u64::from(self.limit(result))
            }
            ConvertType::F16 if keeps_nan => kept() >> 16 & 0xfc00 | kept() >> 13 & 0x3ff,
            ConvertType::F16 => u64::from(self.narrow::<Half>(value).bits()),
            _ if keeps_nan => kept() >> 16,
            _ => u64::from(self.narrow::<Bfloat>(value).bits()),
        }
    }

    fn narrow<T: Format>(self, value: f64) -> T {
        let value = if self.has(FLAG_SATURATE) { saturated(value) } else { value };
        narrow(value, self.rounding, self.flags)
    }

    /// The bits of an f32 result.
    fn limit(self, value: f32) -> u32 {
        if self.has(FLAG_SATURATE) {
            (saturated(f64::from(value)) as f32).to_bits()
        } else {
            canonical(value)
        }
    }
}

/// A NaN of f64 as f32: its sign and the upper bits of its payload stay (unlike those of any other NaN).
fn quiet(bits: u64) -> u32 {
    let sign = (bits >> 32) as u32 & 0x8000_0000;
    sign | 0x7fc0_0000 | (bits >> 29) as u32 & 0x003f_ffff
}

fn saturated(value: f64) -> f64 {
    if value > 0.0 { value.min(1.0) } else { 0.0 }
}

fn integral(value: f64, rounding: Rounding) -> f64 {
    match rounding {
        Rounding::IntegerNearestEven => value.round_ties_even(),
        Rounding::IntegerDown => value.floor(),
        Rounding::IntegerUp => value.ceil(),
        _ => value.trunc(),
    }
}

/// An f64 that rounds on to any shorter format as the integer itself would.
fn odd_f64(value: i128) -> f64 {
    let nearest = value as f64;
    let back = nearest as i128;
    if back == value {
        return nearest;
    }
    let bits = nearest.to_bits();
    f64::from_bits(if back.abs() > value.abs() { bits - 1 } else { bits } | 1)
}

/// To a 16-bit format with any rounding; `.relu` and `.satfinite` as the flags say.
fn narrow<T: Format>(value: f64, rounding: Rounding, flags: u8) -> T {
    let value = if flags & FLAG_VARIANT != 0 && value <= 0.0 { 0.0 } else { value };
    let rounded: T = rounded(value, rounding);
    let is_infinite = rounded.to_f32().is_infinite();
    // The largest number stands before infinity.
    T::from_bits(rounded.bits() - u16::from(flags & FLAG_FINITE != 0 && is_infinite))
}

fn rounded<T: Format>(value: f64, rounding: Rounding) -> T {
    let nearest = T::from_f64(value);
    let back = f64::from(nearest.to_f32());
    let towards_zero = match rounding {
        Rounding::Zero => back.abs() > value.abs(),
        Rounding::Down => back > value && value > 0.0,
        Rounding::Up => back < value && value < 0.0,
        _ => false,
    };
    let away = match rounding {
        Rounding::Down => back > value && value <= 0.0,
        Rounding::Up => back < value && value >= 0.0,
        _ => false,
    };
    // Neighbours in a sign-magnitude format differ by one.
    match (towards_zero, away) {
        (true, _) => T::from_bits(nearest.bits() - 1),
        (_, true) => T::from_bits(nearest.bits() + 1),
        _ => nearest,
    }
}
