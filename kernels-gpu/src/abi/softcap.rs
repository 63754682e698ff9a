//! The short form of tanh for scores far below their cap.

/// `tanh(factor s)` of small products s, as `s (factor + w (c3 + w (c5 + w c7)))` with `w = s^2`: powers of
/// the factor are in the coefficients, which saves two operations a score.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SoftcapPolynomial {
    /// Products below this size are small; 0, and none are, where the factor is so small or so large that
    /// its powers leave the range of f32.
    pub near: f32,
    /// c3, c5 and c7.
    pub coefficients: [f32; 3],
}

impl SoftcapPolynomial {
    /// Arguments of tanh below this one are small.
    pub const NEAR: f64 = 0.5;

    /// The odd polynomial of degree 7 whose largest relative error, up to [`SoftcapPolynomial::NEAR`], is
    /// smallest: 6.4e-7, and 8e-7 as f32 evaluates it.
    const COEFFICIENTS: [f64; 3] = [-0.333_281_587_5, 0.132_053_503_1, -0.044_750_320_3];

    /// Factors of this size and up to its reciprocal have powers that f32 holds.
    const SMALLEST: f64 = 1.0 / 262_144.0;

    /// For `scale / softcap`.
    pub const fn new(factor: f64) -> Self {
        let size = if factor < 0.0 { -factor } else { factor };
        if !(size >= Self::SMALLEST && size <= 1.0 / Self::SMALLEST) {
            return SoftcapPolynomial { near: 0.0, coefficients: [0.0; 3] };
        }
        let [c3, c5, c7] = Self::COEFFICIENTS;
        let (cube, square) = (factor * factor * factor, factor * factor);
        let coefficients =
            [(c3 * cube) as f32, (c5 * cube * square) as f32, (c7 * cube * square * square) as f32];
        SoftcapPolynomial { near: (Self::NEAR / size) as f32, coefficients }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    extern crate std;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_short_form_is_tanh(factor in prop_oneof![4e-6..1.0, -1.0..-4e-6, 1.0..2e5], at in -1.0..1.0) {
            let polynomial = SoftcapPolynomial::new(factor);
            let [c3, c5, c7] = polynomial.coefficients;
            let s = at as f32 * polynomial.near;
            let w = s * s;
            let tanh = s * w.mul_add(w.mul_add(w.mul_add(c7, c5), c3), factor as f32);
            let exact = (f64::from(s) * factor).tanh();
            prop_assert!((f64::from(tanh) - exact).abs() <= 1e-6 * exact.abs(), "{tanh} {exact}");
        }
    }

    #[test]
    fn factors_whose_powers_leave_the_range_have_none() {
        for factor in [0.0, 1e-12, -1e-12, 1e7, f64::NAN] {
            assert_eq!(SoftcapPolynomial::new(factor).near, 0.0);
        }
    }
}
