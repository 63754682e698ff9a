//! Elementary functions.
//!
//! The `approx` instructions are specified by error bounds. These implementations stay well inside:
//! `ex2` within 1 ulp of the exact value, the others (through f64) within half an ulp of it.

/// 2 to the power of `x`, subnormal results included.
///
/// The integer part goes to the exponent, the rest, in [-1/2, 1/2], through a polynomial: the Taylor
/// series of 2^f to degree 7, whose remainder is below 2^-27.
#[inline(always)]
pub fn exp2(x: f32) -> f32 {
    // Beyond these bounds the result is 0 or infinite. NaN passes through both.
    let clamped = if x > 130.0 { 130.0 } else { x };
    let clamped = if clamped < -160.0 { -160.0 } else { clamped };
    let integer = clamped.round_ties_even();
    let f = clamped - integer;
    let p = 1.525_273_4e-5_f32;
    let p = p.mul_add(f, 1.540_353e-4);
    let p = p.mul_add(f, 1.333_355_8e-3);
    let p = p.mul_add(f, 9.618_129e-3);
    let p = p.mul_add(f, 5.550_411e-2);
    let p = p.mul_add(f, 2.402_265e-1);
    let p = p.mul_add(f, std::f32::consts::LN_2);
    let p = p.mul_add(f, 1.0);
    // In two factors, so that neither overflows and a subnormal result is rounded once. The cast of a
    // NaN does not matter: the polynomial is NaN too.
    // SAFETY: a NaN would be undefined here, so it is replaced by 0 first.
    let integer: i32 = unsafe { (if integer.is_nan() { 0.0 } else { integer }).to_int_unchecked() };
    let half = integer >> 1;
    let power = |exponent: i32| f32::from_bits(((exponent + 127) as u32) << 23);
    p * power(half) * power(integer - half)
}

/// Logarithm to base 2.
#[inline(always)]
pub fn log2(x: f32) -> f32 {
    f64::from(x).log2() as f32
}

/// Hyperbolic tangent.
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    f64::from(x).tanh() as f32
}

/// Sine.
#[inline(always)]
pub fn sin(x: f32) -> f32 {
    f64::from(x).sin() as f32
}

/// Cosine.
#[inline(always)]
pub fn cos(x: f32) -> f32 {
    f64::from(x).cos() as f32
}

/// Reciprocal square root.
#[inline(always)]
pub fn rsqrt(x: f32) -> f32 {
    (1.0 / f64::from(x).sqrt()) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp2_is_within_an_ulp() {
        let mut worst = 0f64;
        let mut x = -149.0f32;
        while x < 128.0 {
            let exact = f64::from(x).exp2();
            let ulp = (2f64).powf(exact.log2().floor().max(-126.0) - 23.0);
            worst = worst.max((f64::from(exp2(x)) - exact).abs() / ulp);
            x += 0.001_37;
        }
        assert!(worst <= 1.0, "{worst} ulp");
    }

    #[test]
    fn exp2_of_special_values() {
        assert_eq!(exp2(0.0), 1.0);
        assert_eq!(exp2(f32::INFINITY), f32::INFINITY);
        assert_eq!(exp2(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp2(-1e30), 0.0);
        assert_eq!(exp2(1e30), f32::INFINITY);
        assert!(exp2(f32::NAN).is_nan());
        for exponent in -149..128 {
            assert_eq!(f64::from(exp2(exponent as f32)), 2f64.powi(exponent));
        }
    }
}
