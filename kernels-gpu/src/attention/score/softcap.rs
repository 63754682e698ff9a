//! Softcap: `s = cap tanh(s / cap)` (Gemma 2; docs/semantics.md, section 1).
//!
//! The hardware's `tanh.approx` is off by 2^-11, which lse and probabilities show. Two forms are as exact as
//! f32 needs, with x = s / cap and u = x^2:
//!
//! ```text
//! |x| < 1/2     s (f + w (c3 + w (c5 + w c7))), w = s^2     five operations, off by 8e-7 of the value
//! any x         x P(u) / Q(u), |x| at most 8                thirteen and a reciprocal, off by 4.8e-7
//! ```
//!
//! with s = q . k and f = scale / cap. Logits are mostly far below the cap: a warp whose tile has only such
//! takes the first form alone ([`SoftcapPolynomial`](crate::abi::SoftcapPolynomial)). Both are fitted to the
//! smallest largest relative error, by Lawson's weights. Powers of e instead of the second form took two
//! operations of the special function unit, which exponentials keep busy, and spilled registers.

use crate::arch::{math, warp};

/// From here on tanh is 1 in f32, but for 4e-7.
const FAR: f32 = 8.0;
/// P and Q from the highest power of u on.
const P: [f32; 5] = [-6.142_329_8e-9, 7.162_518_6e-6, 2.696_411_9e-3, 0.127_123_13, 0.999_999_76];
const Q: [f32; 4] = [1.967_455e-4, 2.285_031e-2, 0.460_454_73, 1.0];

/// How products become scores in units of the cap, as the kernels use it.
#[derive(Clone, Copy)]
pub struct Softcap {
    /// `scale / cap`.
    pub factor: f32,
    /// Products below this size take the short form.
    pub near: f32,
    /// Its coefficients: see [`SoftcapPolynomial`](crate::abi::SoftcapPolynomial).
    pub polynomial: [f32; 3],
}

impl Softcap {
    /// Turns products q . k into scores in units of the cap. NaN stays NaN.
    ///
    /// # Safety
    /// All 32 lanes call it together.
    #[inline(always)]
    pub unsafe fn apply<const N: usize>(&self, products: &mut [f32; N]) {
        let (mut even, mut odd) = (0.0, 0.0);
        let mut i = 0;
        while i < N {
            // NaN is passed over: both forms keep it.
            even = math::max(even, products[i].abs());
            odd = math::max(odd, products[i + 1].abs());
            i += 2;
        }
        if warp::any(!(math::max(even, odd) < self.near)) {
            let mut i = 0;
            while i < N {
                products[i] = tanh(products[i] * self.factor);
                i += 1;
            }
            return;
        }
        let [c3, c5, c7] = self.polynomial;
        let mut i = 0;
        while i < N {
            products[i] *= horner(&[c7, c5, c3, self.factor], products[i] * products[i]);
            i += 1;
        }
    }
}

/// `1 - tanh^2` of a score in units of the cap: by how much less than a product the score changes. 0 of a
/// score that is hidden, minus infinity, and of NaN: the probability that it is multiplied by is NaN then.
#[inline(always)]
pub fn derivative(score: f32) -> f32 {
    math::fma_saturated(-score, score, 1.0)
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
