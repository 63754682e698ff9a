//! Arithmetic rounded to one side, of f32 and f64: no bit that counts is lost before it is rounded.

use crate::isa::{FloatOp, Rounding};

/// A format of floating-point numbers.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    /// Bits of a normal number's mantissa, the one that is not stored among them.
    precision: u32,
    /// The lowest bit of all is this power of 2.
    lowest: i32,
    /// The bits of infinity: the next ones above the largest number.
    infinity: u64,
}

/// f32.
pub const SINGLE: Format = Format { precision: 24, lowest: -149, infinity: 0x7f80_0000 };
/// f64.
pub const DOUBLE: Format = Format { precision: 53, lowest: -1074, infinity: 0x7ff0_0000_0000_0000 };

/// A number other than 0, `mantissa * 2^exponent` in size. Where bits do not fit, the lowest one of them is
/// set for whatever is below it: far enough below those of any format to be taken for none of them.
#[derive(Clone, Copy, Debug)]
struct Exact {
    negative: bool,
    mantissa: u128,
    exponent: i32,
}

impl Exact {
    /// A finite number; `None` for 0.
    fn new(value: f64) -> Option<Self> {
        let bits = value.to_bits();
        let (field, low) = ((bits >> 52 & 0x7ff) as i32, bits & ((1 << 52) - 1));
        let mantissa = if field == 0 { low } else { low | 1 << 52 };
        let exponent = DOUBLE.lowest + (field - 1).max(0);
        (mantissa != 0).then_some(Exact {
            negative: value.is_sign_negative(),
            mantissa: mantissa.into(),
            exponent,
        })
    }

    /// With the highest bit where bit `at` is.
    fn aligned(self, at: u32) -> Self {
        let shift = at - self.mantissa.ilog2();
        Exact { mantissa: self.mantissa << shift, exponent: self.exponent - shift as i32, ..self }
    }

    /// Of two numbers of 53 bits.
    fn product(self, other: Self) -> Self {
        Exact {
            negative: self.negative != other.negative,
            mantissa: self.mantissa * other.mantissa,
            exponent: self.exponent + other.exponent,
        }
    }

    /// Of numbers of up to 106 bits: where any are cut off, the smaller one lies too far below for the
    /// highest bits of the larger one to go.
    fn sum(self, other: Self) -> Option<Self> {
        let (a, b) = (self.aligned(125), other.aligned(125));
        let (large, small) = if a.exponent >= b.exponent { (a, b) } else { (b, a) };
        let below = cut(small.mantissa, large.exponent.abs_diff(small.exponent));
        let (negative, mantissa) = if large.negative == small.negative {
            (large.negative, large.mantissa + below)
        } else {
            (large.negative != (large.mantissa < below), large.mantissa.abs_diff(below))
        };
        (mantissa != 0).then_some(Exact { negative, mantissa, exponent: large.exponent })
    }

    fn quotient(self, other: Self) -> Self {
        let (a, b) = (self.aligned(126), other.aligned(62));
        let rest = a.mantissa % b.mantissa;
        Exact {
            negative: a.negative != b.negative,
            mantissa: (a.mantissa / b.mantissa) | u128::from(rest != 0),
            exponent: a.exponent - b.exponent,
        }
    }

    /// Of a positive number.
    fn root(self) -> Self {
        let mut of = self.aligned(125);
        if of.exponent % 2 != 0 {
            of = self.aligned(126);
        }
        let root = of.mantissa.isqrt();
        let is_exact = root * root == of.mantissa;
        Exact { mantissa: root | u128::from(!is_exact), exponent: of.exponent / 2, ..of }
    }

    /// The bits of the next number of a format in a direction.
    fn rounded(self, format: Format, rounding: Rounding) -> u64 {
        let Format { precision, lowest, infinity } = format;
        let length = self.mantissa.ilog2() as i32 + 1;
        // The place of the last bit that stays.
        let last = (self.exponent + length - precision as i32).max(lowest);
        let dropped = last - self.exponent;
        let kept = match u32::try_from(dropped) {
            Ok(dropped) => self.mantissa.checked_shr(dropped).unwrap_or(0),
            Err(_) => self.mantissa << dropped.unsigned_abs(),
        };
        let is_exact = dropped <= self.mantissa.trailing_zeros() as i32;
        let away = rounding == if self.negative { Rounding::Down } else { Rounding::Up };
        // The bit that is not stored, or the carry of all ones, counts the exponent up.
        let size = ((last - lowest) as u128) << (precision - 1);
        let size = size + kept + u128::from(away && !is_exact);
        let limit = infinity - u64::from(!away);
        let size = u64::try_from(size).map_or(limit, |size| size.min(limit));
        let sign = infinity & infinity.wrapping_neg();
        size | if self.negative { sign << (format.exponent_bits()) } else { 0 }
    }
}

impl Format {
    fn exponent_bits(self) -> u32 {
        self.infinity.count_ones()
    }

    /// The bits of a number that it has, an infinity, or a NaN.
    fn bits(self, value: f64) -> u64 {
        if self.precision == SINGLE.precision {
            u64::from((value as f32).to_bits())
        } else {
            value.to_bits()
        }
    }
}

/// So many bits cut off, of which the last that stays tells whether any were set.
fn cut(mantissa: u128, bits: u32) -> u128 {
    let kept = mantissa.checked_shr(bits).unwrap_or(0);
    kept | u128::from(bits > mantissa.trailing_zeros())
}

/// The bits of a result, of numbers that the format has.
pub fn round(op: FloatOp, [a, b, c]: [f64; 3], format: Format, rounding: Rounding) -> u64 {
    let (nearest, operands) = match op {
        FloatOp::Add => (a + b, [a, b, 0.0]),
        FloatOp::Sub => (a - b, [a, b, 0.0]),
        FloatOp::Mul => (a * b, [a, b, 0.0]),
        FloatOp::Div => (a / b, [a, b, 0.0]),
        FloatOp::Rcp => (1.0 / a, [a, a, 0.0]),
        FloatOp::Sqrt => (a.sqrt(), [a, a, 0.0]),
        _ => (a.mul_add(b, c), [a, b, c]),
    };
    if operands.iter().any(|operand| !operand.is_finite()) {
        return format.bits(nearest);
    }
    let of = Exact::new;
    let sum = |a: Option<Exact>, b: Option<Exact>| match (a, b) {
        (Some(a), Some(b)) => a.sum(b),
        (a, b) => a.or(b),
    };
    let product = || Some(of(a)?.product(of(b)?));
    let exact = match op {
        FloatOp::Add => sum(of(a), of(b)),
        FloatOp::Sub => sum(of(a), of(-b)),
        FloatOp::Mul => product(),
        FloatOp::Div => of(a).zip(of(b)).map(|(a, b)| a.quotient(b)),
        FloatOp::Rcp => of(1.0).zip(of(a)).map(|(one, a)| one.quotient(a)),
        FloatOp::Sqrt => of(a).filter(|a| !a.negative).map(Exact::root),
        _ => sum(product(), of(c)),
    };
    if let Some(exact) = exact {
        return exact.rounded(format, rounding);
    }
    // 0, or what dividing by it gives. Of addends of different signs it is +0, or downwards -0.
    let signs = match op {
        FloatOp::Add => [a.is_sign_negative(), b.is_sign_negative()],
        FloatOp::Sub => [a.is_sign_negative(), b.is_sign_positive()],
        FloatOp::Fma => [a.is_sign_negative() != b.is_sign_negative(), c.is_sign_negative()],
        _ => [false; 2],
    };
    let opposite = signs[0] != signs[1];
    format.bits(if opposite && rounding == Rounding::Down { -0.0 } else { nearest })
}
