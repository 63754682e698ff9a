//! The formats of 8 bits with a floating point: e4m3, which has no infinities, and e5m2.

/// One of the two formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fp8 {
    /// 4 bits of exponent, 3 of mantissa: up to 448.
    E4m3,
    /// 5 bits of exponent, 2 of mantissa: up to 57344.
    E5m2,
}

/// NaN in either.
const NAN: u8 = 0x7f;

impl Fp8 {
    /// Bits of the mantissa, and the bias of the exponent.
    const fn layout(self) -> (u32, i32) {
        match self {
            Fp8::E4m3 => (3, 7),
            Fp8::E5m2 => (2, 15),
        }
    }

    /// The bits of the largest number.
    const fn largest(self) -> u8 {
        match self {
            Fp8::E4m3 => 0x7e,
            Fp8::E5m2 => 0x7b,
        }
    }

    /// The exact value.
    pub fn to_f32(self, bits: u8) -> f32 {
        let (mantissa_bits, bias) = self.layout();
        let magnitude = bits & 0x7f;
        let (exponent, mantissa) = (magnitude >> mantissa_bits, magnitude & ((1 << mantissa_bits) - 1));
        let unit = |exponent: i32| 2f32.powi(exponent - bias - mantissa_bits as i32);
        let value = match (self, magnitude) {
            (Fp8::E4m3, 0x7f) | (Fp8::E5m2, 0x7d..) => f32::NAN,
            (Fp8::E5m2, 0x7c) => f32::INFINITY,
            _ if exponent == 0 => f32::from(mantissa) * unit(1),
            _ => f32::from(mantissa | 1 << mantissa_bits) * unit(i32::from(exponent)),
        };
        if bits & 0x80 == 0 { value } else { -value }
    }

    /// The nearest value, ties to even; beyond the largest number, that (`.satfinite`).
    pub fn nearest(self, value: f32) -> u8 {
        if value.is_nan() {
            return NAN;
        }
        let sign = if value.is_sign_negative() { 0x80 } else { 0 };
        let magnitude = f64::from(value.abs());
        // Values grow with their bits: the two around this one, by bisection.
        let number = |bits: u8| f64::from(self.to_f32(bits));
        let (mut below, mut above) = (0, self.largest());
        if magnitude >= number(above) {
            return sign | above;
        }
        while above - below > 1 {
            let middle = below.midpoint(above);
            if number(middle) <= magnitude {
                below = middle;
            } else {
                above = middle;
            }
        }
        let (down, up) = (magnitude - number(below), number(above) - magnitude);
        let takes_below = down < up || down == up && below % 2 == 0;
        sign | if takes_below { below } else { above }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_comes_back_and_the_middle_of_two_goes_to_the_even_one() {
        for format in [Fp8::E4m3, Fp8::E5m2] {
            for bits in 0..format.largest() {
                let (value, next) = (format.to_f32(bits), format.to_f32(bits + 1));
                assert!(value < next, "{format:?} {bits:#x}");
                assert_eq!(format.nearest(value), bits);
                assert_eq!(format.nearest(-value), bits | 0x80);
                let middle = (value + next) / 2.0; // exact in f32
                assert_eq!(format.nearest(middle), bits + bits % 2);
                assert_eq!(format.nearest(middle.next_up()), bits + 1);
                assert_eq!(format.nearest(middle.next_down()), bits);
            }
            assert_eq!(format.nearest(f32::INFINITY), format.largest());
            assert_eq!(format.nearest(f32::NAN), 0x7f);
        }
        // By the tables of the formats (OCP 8-bit Floating Point Specification).
        let known = [(Fp8::E4m3, 0x7e, 448.0), (Fp8::E4m3, 1, 2f32.powi(-9)), (Fp8::E4m3, 0x38, 1.0)];
        known.iter().for_each(|&(format, bits, value)| assert_eq!(format.to_f32(bits), value));
        let known = [(Fp8::E5m2, 0x7b, 57344.0), (Fp8::E5m2, 1, 2f32.powi(-16)), (Fp8::E5m2, 0x3c, 1.0)];
        known.iter().for_each(|&(format, bits, value)| assert_eq!(format.to_f32(bits), value));
    }
}
