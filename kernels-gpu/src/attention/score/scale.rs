//! The softmax scale, ready for use.

use crate::abi::ForwardParams;
use crate::arch::specialize;

/// What scores are multiplied by, as the forward uses it: a positive factor, and a factor -1, 0 or 1 for q.
///
/// The online maximum is taken of scores without the scale, which is right for positive scales only. Of capped
/// scores, which are in units of the cap, the cap is the scale.
#[derive(Clone, Copy)]
pub struct Scale {
    /// `|scale|`, or 1 when scale is 0; the cap of capped scores.
    pub natural: f32,
    /// The same times `log2(e)`.
    pub log2: f32,
    /// What q is multiplied by, exactly.
    pub q_factor: f32,
    /// What a product is multiplied by for the argument of tanh: see [`ForwardParams::softcap_factor`].
    pub softcap_factor: f32,
}

impl Scale {
    /// The scale of a launch.
    #[inline(always)]
    pub fn new(p: &ForwardParams) -> Self {
        let Scale { mut natural, mut log2, q_factor, .. } = Scale::of(p.scale);
        if specialize::softcap() {
            natural = p.softcap;
            log2 = p.softcap * core::f32::consts::LOG2_E;
        }
        // The sign of the scale is in q.
        Scale { natural, log2, q_factor, softcap_factor: p.softcap_factor.abs() }
    }

    /// Splits `scale`, which is finite, of scores that are not capped.
    #[inline(always)]
    pub fn of(scale: f32) -> Self {
        let (natural, q_factor) = if scale > 0.0 {
            (scale, 1.0)
        } else if scale < 0.0 {
            (-scale, -1.0)
        } else {
            (1.0, 0.0)
        };
        let log2 = natural * core::f32::consts::LOG2_E;
        Scale { natural, log2, q_factor, softcap_factor: 0.0 }
    }
}
