//! The short form of tanh for scores far below their cap, and caps with which no row is steep.

/// Rows whose scores have a smaller cap are not steep, of however many keys: their lse is below 256, if there
/// are no sinks and no bias.
pub const STEEP_CAP: f32 = 192.0;

/// `tanh(factor s)` of small products s, as `s (factor + w (c3 + w (c5 + ...)))` with `w = s^2`: powers of
/// the factor are in the coefficients, which saves two operations a score. Those are the odd polynomials
/// whose largest relative error, up to where arguments of tanh are small, is smallest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SoftcapPolynomial<const N: usize> {
    /// Products below this size are small; 0, and none are, where the factor is so small or so large that
    /// its powers leave the range of f32.
    pub near: f32,
    /// c3, c5 and so on.
    pub coefficients: [f32; N],
}

impl SoftcapPolynomial<3> {
    /// That of the forward, for `scale / softcap`: arguments up to 1/2 are off by 6.4e-7, and 8e-7 as f32
    /// evaluates it.
    pub const fn of_forward(factor: f64) -> Self {
        Self::new(factor, 0.5, [-0.333_281_587_5, 0.132_053_503_1, -0.044_750_320_3])
    }
}

impl SoftcapPolynomial<2> {
    /// That of gradients, an operation shorter, for `scale / softcap`: arguments up to 0.3 are off by 1.4e-6.
    pub const fn of_gradients(factor: f64) -> Self {
        Self::new(factor, 0.3, [-0.333_154_433, 0.126_831_206])
    }
}

impl<const N: usize> SoftcapPolynomial<N> {
    /// Factors of this size and up to its reciprocal have powers that f32 holds.
    const SMALLEST: f64 = 1.0 / 262_144.0;

    const fn new(factor: f64, near: f64, of_tanh: [f64; N]) -> Self {
        let size = if factor < 0.0 { -factor } else { factor };
        if !(size >= Self::SMALLEST && size <= 1.0 / Self::SMALLEST) {
            return SoftcapPolynomial { near: 0.0, coefficients: [0.0; N] };
        }
        let (mut coefficients, mut power, mut i) = ([0.0; N], factor * factor * factor, 0);
        while i < N {
            coefficients[i] = (of_tanh[i] * power) as f32;
            power *= factor * factor;
            i += 1;
        }
        SoftcapPolynomial { near: (near / size) as f32, coefficients }
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
            let forward = SoftcapPolynomial::of_forward(factor);
            let gradients = SoftcapPolynomial::of_gradients(factor);
            for (near, coefficients, off) in [
                (forward.near, &forward.coefficients[..], 1e-6),
                (gradients.near, &gradients.coefficients[..], 1.7e-6),
            ] {
                let s = at as f32 * near;
                let inner = coefficients.iter().rfold(0.0f32, |sum, &next| sum.mul_add(s * s, next));
                let tanh = s * inner.mul_add(s * s, factor as f32);
                let exact = (f64::from(s) * factor).tanh();
                prop_assert!((f64::from(tanh) - exact).abs() <= off * exact.abs(), "{tanh} {exact}");
            }
        }
    }

    #[test]
    fn factors_whose_powers_leave_the_range_have_none() {
        for factor in [0.0, 1e-12, -1e-12, 1e7, f64::NAN] {
            assert_eq!(SoftcapPolynomial::of_forward(factor).near, 0.0);
            assert_eq!(SoftcapPolynomial::of_gradients(factor).near, 0.0);
        }
    }
}
