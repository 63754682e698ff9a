//! The softmax scale and the unit of probabilities, ready for use.

use super::softcap::ForwardSoftcap;
use super::{dropout, features};
use crate::abi::ForwardParams;
use crate::arch::specialize;
use crate::tile::element::Element;

/// What scores are multiplied by, as the forward uses it, and what probabilities are counted in.
///
/// The online maximum is taken of scores without the scale, which is right for positive scales only. Of
/// capped scores, which are in units of the cap, the cap is the scale.
#[derive(Clone, Copy)]
pub struct Scale {
    /// `|scale|`, or 1 when scale is 0; the cap of capped scores; 1 of natural ones.
    pub natural: f32,
    /// The same times `log2(e)`.
    pub log2: f32,
    /// How scores are capped.
    pub softcap: ForwardSoftcap,
    /// The unit of probabilities: see [`ForwardParams::unit`].
    pub unit: f32,
    /// Its exponent.
    pub unit_log2: f32,
    /// How far, as a factor of probabilities, scores may exceed what they are relative to.
    pub threshold: f32,
    /// The same in powers of two.
    pub threshold_log2: f32,
    /// What outputs are multiplied by where probabilities are dropped: see [`dropout`].
    pub kept: f32,
    /// Whether a bias is added to scores.
    pub has_bias: bool,
}

impl Scale {
    /// The scale of a launch, for elements of type `E`.
    #[inline(always)]
    pub fn new<E: Element>(p: &ForwardParams) -> Self {
        Scale {
            natural: p.score_unit,
            log2: p.score_unit_log2,
            softcap: ForwardSoftcap::of_forward(p),
            unit: if E::NEEDS_UNIT { p.unit } else { E::UNIT },
            unit_log2: if E::NEEDS_UNIT { p.unit_log2 } else { const { log2_of(E::UNIT) } },
            threshold: E::RESCALE_THRESHOLD,
            threshold_log2: const { log2_of(E::RESCALE_THRESHOLD) },
            kept: dropout::scale(&p.score),
            has_bias: features::have_bias::<E>(),
        }
    }
}

/// The exponent of a power of two from 1 on.
const fn log2_of(power: f32) -> f32 {
    ((power.to_bits() >> 23) as i32 - 127) as f32
}

/// What makes natural scores of products, or of scores in units of the cap: the scale, or the cap.
#[inline(always)]
pub fn natural_factor(p: &ForwardParams) -> f32 {
    if specialize::softcap() { p.softcap } else { split_sign(p.scale).0 }
}

/// `scale`, which is finite, as a positive factor of scores and a factor -1, 0 or 1 of q, which is exact.
#[inline(always)]
pub fn split_sign(scale: f32) -> (f32, f32) {
    if scale > 0.0 {
        (scale, 1.0)
    } else if scale < 0.0 {
        (-scale, -1.0)
    } else {
        (1.0, 0.0)
    }
}
