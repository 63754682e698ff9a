//! The formats f16 and bf16.

use super::map::Element;
use super::registers::{LANES, Registers};
use super::rounding::to_odd;

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

/// A subnormal f16 becomes a zero of its sign.
#[inline(always)]
pub fn flush16<T: Format>(value: T) -> T {
    let bits = value.bits();
    T::from_bits(if bits & 0x7c00 == 0 { bits & 0x8000 } else { bits })
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
