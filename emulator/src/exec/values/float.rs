//! f32, one value at a time: NaN, subnormal numbers, and the smaller or larger of two.

use crate::isa::{FLAG_VARIANT, FLAG_XOR_SIGN};

/// The f32 NaN that arithmetic produces.
const NAN32: u32 = 0x7fff_ffff;

/// A subnormal number becomes a zero of its sign.
#[inline(always)]
pub fn flush(value: f32) -> f32 {
    let bits = value.to_bits();
    f32::from_bits(if bits & 0x7f80_0000 == 0 { bits & 0x8000_0000 } else { bits })
}

/// A sum in global memory, of bits: subnormal numbers are flushed.
#[inline(always)]
pub fn add_flushed(a: u32, b: u32) -> u32 {
    flush(flush(f32::from_bits(a)) + flush(f32::from_bits(b))).to_bits()
}

/// The bits of a result. Compared as integers: in float arithmetic the compiler takes one NaN for another.
#[inline(always)]
pub fn canonical(value: f32) -> u32 {
    let bits = value.to_bits();
    if bits & 0x7fff_ffff > 0x7f80_0000 { NAN32 } else { bits }
}

/// The smaller one; the other one if one is NaN; -0 is smaller than +0.
#[inline(always)]
pub fn minimum(a: f32, b: f32) -> f32 {
    let smaller = if a < b { a } else { b };
    let equal = f32::from_bits(a.to_bits() | b.to_bits());
    let ordered = if a == b { equal } else { smaller };
    if a.is_nan() {
        b
    } else if b.is_nan() {
        a
    } else {
        ordered
    }
}

/// The larger one; the other one if one is NaN; +0 is larger than -0.
#[inline(always)]
pub fn maximum(a: f32, b: f32) -> f32 {
    let larger = if a > b { a } else { b };
    let equal = f32::from_bits(a.to_bits() & b.to_bits());
    let ordered = if a == b { equal } else { larger };
    if a.is_nan() {
        b
    } else if b.is_nan() {
        a
    } else {
        ordered
    }
}

/// A minimum or maximum of magnitudes, negative if the signs differ.
#[inline(always)]
fn of_magnitudes(a: f32, b: f32, f: impl Fn(f32, f32) -> f32) -> f32 {
    let sign = (a.to_bits() ^ b.to_bits()) & 1 << 31;
    f32::from_bits(f(a.abs(), b.abs()).to_bits() & !(1 << 31) | sign)
}

/// Minimum or maximum, with what their flags say.
#[inline(always)]
pub fn extreme(flags: u8, a: f32, b: f32, f: impl Fn(f32, f32) -> f32) -> f32 {
    let f = |a: f32, b: f32| if flags & FLAG_VARIANT != 0 { nan_or(a, b, f(a, b)) } else { f(a, b) };
    if flags & FLAG_XOR_SIGN != 0 { of_magnitudes(a, b, f) } else { f(a, b) }
}

/// NaN if one of two values is, else a value.
#[inline(always)]
pub fn nan_or(a: f32, b: f32, value: f32) -> f32 {
    if a.is_nan() | b.is_nan() { f32::NAN } else { value }
}
