//! The low precisions, as rounding functions.

use half::{bf16, f16};

/// An element type, seen as the set of numbers that it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// bfloat16.
    Bf16,
    /// IEEE binary16.
    F16,
    /// IEEE binary32.
    F32,
}

impl Precision {
    /// The nearest number that the type holds, ties to even; infinity beyond its range.
    pub fn round(self, value: f32) -> f32 {
        match self {
            Precision::Bf16 => bf16::from_f32(value).to_f32(),
            Precision::F16 => f16::from_f32(value).to_f32(),
            Precision::F32 => value,
        }
    }

    /// As [`Precision::round`], from f64 in one step.
    pub fn round_f64(self, value: f64) -> f64 {
        match self {
            Precision::Bf16 => bf16::from_f64(value).to_f64(),
            Precision::F16 => f16::from_f64(value).to_f64(),
            Precision::F32 => f64::from(value as f32),
        }
    }
}
