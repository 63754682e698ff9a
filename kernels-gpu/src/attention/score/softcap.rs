//! Softcap: `s = cap tanh(s / cap)` (Gemma 2; docs/semantics.md, section 1).
//!
//! The hardware's `tanh.approx` is off by 2^-11, which lse and probabilities show. Two forms are as exact as
//! f32 needs, to 2e-7 of the value:
//!
//! ```text
//! |x| < 5/8     x (1 + u (c1 + u (c2 + u (c3 + u c4)))), u = x^2     seven operations on the FMA units
//! any x         1 - 2 / (1 + e^(2 |x|)), with the sign of x          two on the special function unit, too
//! ```
//!
//! Logits are mostly far below the cap: a warp whose tile has only such takes the first form alone. The
//! coefficients are those of the smallest largest relative error, 1.2e-7.

use crate::arch::{math, warp};

/// Where the polynomial ends.
const NEAR: f32 = 0.625;

/// Its coefficients, of x^3, x^5, x^7, x^9.
const COEFFICIENTS: [f32; 4] = [-0.333_323_42, 0.133_081_73, -0.051_947_818, 0.015_195_239];

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
    let [c1, c2, c3, c4] = COEFFICIENTS;
    let polynomial = math::fma(u, math::fma(u, math::fma(u, c4, c3), c2), c1);
    math::fma(x * u, polynomial, x)
}

/// tanh of any x.
#[inline(always)]
fn tanh(x: f32) -> f32 {
    // e^(2 |x|) is infinite from |x| = 44.4 on: then 2 / infinity = 0.
    let power = math::exp2(x.abs() * (2.0 * core::f32::consts::LOG2_E));
    let far = math::fma(-2.0, math::reciprocal(1.0 + power), 1.0);
    if x.abs() < NEAR { tanh_near(x) } else { far.copysign(x) }
}
