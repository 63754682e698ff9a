//! Softcap: `s = cap tanh(s / cap)` (Gemma 2; docs/semantics.md, section 1).
//!
//! The hardware's `tanh.approx` is off by 2^-11, which lse and probabilities show. With s = q . k,
//! f = scale / cap and x = f s:
//!
//! ```text
//! form                                          of                        operations         off by
//! s (f + w (c3 + w (c5 + w c7))), w = s^2       forward, |x| below 1/2    5                  8e-7
//! s (f + w (c3 + w c5))                         gradients, |x| below 0.3  4                  1.4e-6
//! x P(u) / Q(u), u = x^2, |x| at most 8         16 bits, forward          13, a reciprocal   5e-7
//! x (1 + u (c1 + ...)), |x| below 1,            16 bits, gradients        14, two special    2e-7
//!     else 1 - 2 / (1 + e^2|x|), with its sign  f32                       19, two special    1e-7
//! ```
//!
//! Logits are mostly far below the cap: a warp whose tile has only such takes one of the first two forms
//! alone ([`SoftcapPolynomial`](crate::abi::SoftcapPolynomial)), in 16 bits. The last one is 1 where tanh is,
//! so that nothing is left of the derivative there, and as exact as f32; in the forward of 16 bits it spilled
//! registers.
//! Polynomials are fitted to the smallest largest relative error, by Lawson's weights.

use crate::abi::{BackwardParams, ForwardParams};
use crate::arch::{math, warp};
use crate::tile::element::Element;

/// Where the polynomial of the third form ends.
const NEAR: f32 = 1.0;
/// Its coefficients from the highest on, of x^15, x^13, ... x^3.
const COEFFICIENTS: [f32; 7] = [
    -3.584_477e-4,
    2.301_350_5e-3,
    -7.946_089e-3,
    2.148_664_7e-2,
    -5.387_98e-2,
    0.133_323_45,
    -0.333_332_96,
];

/// `2 log2(e)`, and what f32 lacks of it.
const TWO_LOG2_E: f32 = 2.0 * core::f32::consts::LOG2_E;
const TWO_LOG2_E_REST: f32 = (2.0 * core::f64::consts::LOG2_E - TWO_LOG2_E as f64) as f32;

/// From here on tanh is 1 in f32.
const ONE_FROM: f32 = 20.0;

/// From here on tanh is 1 in f32, but for 2e-7.
const FAR: f32 = 8.0;
/// P and Q from the highest power of u on.
const P: [f32; 5] = [-6.142_329_8e-9, 7.162_518_6e-6, 2.696_411_9e-3, 0.127_123_13, 0.999_999_76];
const Q: [f32; 4] = [1.967_455e-4, 2.285_031e-2, 0.460_454_73, 1.0];

/// How products become scores in units of the cap, as the kernels use it: the short form has `C`
/// coefficients.
#[derive(Clone, Copy)]
pub struct Softcap<const C: usize> {
    /// `scale / cap`.
    pub factor: f32,
    /// Products below this size take the short form.
    pub near: f32,
    /// Its coefficients from the highest power of the square on.
    pub short: [f32; C],
}

/// That of the forward, and that of gradients.
pub type ForwardSoftcap = Softcap<4>;
pub type GradientSoftcap = Softcap<3>;

impl ForwardSoftcap {
    /// That of a launch.
    #[inline(always)]
    pub fn of_forward(p: &ForwardParams) -> Self {
        // The sign of the scale is in q.
        let factor = p.softcap_factor.abs();
        let [c3, c5, c7] = p.softcap_polynomial;
        Softcap { factor, near: p.softcap_near, short: [c7, c5, c3, factor] }
    }
}

impl GradientSoftcap {
    /// That of a launch.
    #[inline(always)]
    pub fn of_backward(p: &BackwardParams) -> Self {
        let (factor, [c3, c5]) = (p.softcap_factor, p.softcap_polynomial);
        Softcap { factor, near: p.softcap_near, short: [c5, c3, factor] }
    }
}

impl<const C: usize> Softcap<C> {
    /// Turns products q . k into scores in units of the cap, whose [`derivative`] is wanted or not, in the
    /// long form if one of them needs that or `needs_long`. NaN stays NaN.
    ///
    /// # Safety
    /// All 32 lanes call it together.
    #[inline(always)]
    pub unsafe fn apply<E: Element, const HAS_DERIVATIVE: bool, const N: usize>(
        &self,
        products: &mut [f32; N],
        needs_long: bool,
    ) {
        if E::NATURAL_EXPONENTS {
            let mut i = 0;
            while i < N {
                products[i] = self.score::<E>(products[i]);
                i += 1;
            }
            return;
        }
        let (mut even, mut odd) = (0.0, 0.0);
        let mut i = 0;
        while i < N {
            // NaN is passed over: both forms keep it.
            even = math::max(even, products[i].abs());
            odd = math::max(odd, products[i + 1].abs());
            i += 2;
        }
        if warp::any(needs_long | !(math::max(even, odd) < self.near)) {
            let mut i = 0;
            while i < N {
                let product = products[i];
                products[i] = if HAS_DERIVATIVE {
                    self.score::<E>(product)
                } else {
                    tanh_of_16_bits(product * self.factor)
                };
                i += 1;
            }
            return;
        }
        let mut i = 0;
        while i < N {
            products[i] *= horner(&self.short, products[i] * products[i]);
            i += 1;
        }
    }

    /// The score of a product q . k in units of the cap, in the long form of gradients.
    #[inline(always)]
    pub fn score<E: Element>(&self, product: f32) -> f32 {
        let x = product * self.factor;
        if E::NATURAL_EXPONENTS { exact_tanh(x) } else { tanh(x) }
    }
}

/// `1 - tanh^2` of a score in units of the cap: by how much less than a product the score changes. 0 of a
/// score that is hidden, minus infinity, and of NaN: the probability that it is multiplied by is NaN then.
#[inline(always)]
pub fn derivative(score: f32) -> f32 {
    math::fma_saturated(-score, score, 1.0)
}

/// tanh of any x: of an infinite power it is 1.
#[inline(always)]
fn tanh(x: f32) -> f32 {
    select(x, math::exp2(x.abs() * TWO_LOG2_E))
}

/// [`tanh`], as exact as f32: what rounding leaves of the exponent is made up for.
#[inline(always)]
fn exact_tanh(x: f32) -> f32 {
    let x = math::clamp_or_nan(x, ONE_FROM);
    let exponent = x.abs() * TWO_LOG2_E;
    let rest = math::fma(x.abs(), TWO_LOG2_E, -exponent) + x.abs() * TWO_LOG2_E_REST;
    let power = math::exp2(exponent);
    select(x, math::fma(power, rest * core::f32::consts::LN_2, power))
}

/// tanh of x, of which `power` is `e^2|x|`: of a power below 1 the reciprocal would be near 1, and twice as
/// coarse as what is left of it.
#[inline(always)]
fn select(x: f32, power: f32) -> f32 {
    let far = math::fma(-2.0, math::reciprocal(1.0 + power), 1.0);
    let u = x * x;
    let near = math::fma(x * u, horner(&COEFFICIENTS, u), x);
    if x.abs() < NEAR { near } else { far.copysign(x) }
}

/// tanh of any x, as exact as 16 bits of probabilities need.
#[inline(always)]
fn tanh_of_16_bits(x: f32) -> f32 {
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
