//! Softcap: `s = cap tanh(s / cap)` (Gemma 2; docs/semantics.md, section 1).
//!
//! The hardware's `tanh.approx` is off by 2^-11, which lse and probabilities show. Two forms are as exact as
//! f32 needs, with x = s / cap and u = x^2:
//!
//! ```text
//! |x| < 5/8     x (1 + u (c1 + u (c2 + u (c3 + u c4))))     seven operations, off by 1.9e-7 of the value
//! any x         x P(u) / Q(u), |x| at most 8                thirteen and a reciprocal, off by 4.8e-7
//! ```
//!
//! Logits are mostly far below the cap: a warp whose tile has only such takes the first form alone. Both are
//! fitted to the smallest largest relative error (the second one by Lawson's weights); powers of e instead
//! of the second form took two operations of the special function unit, which exponentials keep busy, and
//! spilled registers.

use crate::arch::{math, warp};

/// Where the polynomial ends.
const NEAR: f32 = 0.625;
/// Its coefficients from the highest on, of x^9, x^7, x^5, x^3.
const COEFFICIENTS: [f32; 4] = [0.015_195_239, -0.051_947_818, 0.133_081_73, -0.333_323_42];

/// From here on tanh is 1 in f32, but for 4e-7.
const FAR: f32 = 8.0;
/// P and Q from the highest power of u on.
const P: [f32; 5] = [-6.142_329_8e-9, 7.162_518_6e-6, 2.696_411_9e-3, 0.127_123_13, 0.999_999_76];
const Q: [f32; 4] = [1.967_455e-4, 2.285_031e-2, 0.460_454_73, 1.0];

/// Scores in units of the cap: `tanh(factor product)` of each product q . k. NaN stays NaN.
///
/// # Safety
/// All 32 lanes call it together.
#[inline(always)]
pub unsafe fn apply<const N: usize>(products: &mut [f32; N], factor: f32) {
    let (mut even, mut odd) = (0.0, 0.0);
    let mut i = 0;
    while i < N {
        // NaN is passed over: both forms keep it.
        even = math::max(even, products[i].abs());
        odd = math::max(odd, products[i + 1].abs());
        i += 2;
    }
    // An infinite product times a factor that underflowed is NaN, and not near.
    let is_near = math::max(even, odd) * factor.abs() < NEAR;
    if warp::any(!is_near) {
        let mut i = 0;
        while i < N {
            products[i] = tanh(products[i] * factor);
            i += 1;
        }
        return;
    }
    let mut i = 0;
    while i < N {
        products[i] = tanh_near(products[i] * factor);
        i += 1;
    }
}

/// `1 - tanh^2` of a score in units of the cap: by how much less than a product the score changes. 0 of a score
/// that is hidden, minus infinity, and of NaN, of which the probability that it is multiplied by is NaN.
#[inline(always)]
pub fn derivative(score: f32) -> f32 {
    math::fma_saturated(-score, score, 1.0)
}

/// tanh of `|x| < NEAR`.
#[inline(always)]
fn tanh_near(x: f32) -> f32 {
    let u = x * x;
    math::fma(x * u, horner(&COEFFICIENTS, u), x)
}

/// tanh of any x.
#[inline(always)]
fn tanh(x: f32) -> f32 {
    let x = math::clamp_or_nan(x, FAR);
    let u = x * x;
    x * horner(&P, u) * math::reciprocal(horner(&Q, u))
}

/// A polynomial of u, coefficients from the highest power on.
#[inline(always)]
fn horner<const N: usize>(coefficients: &[f32; N], u: f32) -> f32 {
    let mut sum = coefficients[0];
    let mut i = 1;
    while i < N {
        sum = math::fma(sum, u, coefficients[i]);
        i += 1;
    }
    sum
}
