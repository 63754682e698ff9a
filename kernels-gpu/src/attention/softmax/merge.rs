//! What passes over other keys have left, merged in: o and the sum of a row are sums over keys, relative to a
//! reference, and so are those of all keys, relative to the larger one of two.
//!
//! ```text
//! m = max(m', m'')      sum = sum' 2^(c (m' - m)) + sum'' 2^(c (m'' - m))      o likewise
//! ```
//!
//! Nothing is normalised before the last pass, and one of the two factors is 1: a row whose reference stays
//! is added to, no more. As many passes as there are cost what as many key tiles would.

use super::finish::DEAD_SUM;
use super::half_difference;
use crate::arch::math;
use crate::attention::score::Scale;

/// Keys of a row: the reference of their scores, unscaled, and the sum that belongs to it, [`DEAD_SUM`] where
/// there are none.
#[derive(Clone, Copy)]
pub struct SeenKeys {
    /// What exponentials are relative to.
    pub reference: f32,
    /// Their sum, in units of probabilities.
    pub sum: f32,
}

impl SeenKeys {
    /// None.
    pub const NONE: SeenKeys = SeenKeys { reference: f32::NEG_INFINITY, sum: DEAD_SUM };

    /// Minus infinity where nothing is relative to it: there is no key, or all scores are minus infinity.
    #[inline(always)]
    fn reference(self) -> f32 {
        if self.sum == DEAD_SUM || self.sum == 0.0 { f32::NEG_INFINITY } else { self.reference }
    }

    #[inline(always)]
    fn exist(self) -> bool {
        self.sum != DEAD_SUM
    }
}

/// Keys of a row put together, and what o of either of the two must be multiplied by.
#[derive(Clone, Copy)]
pub struct MergedKeys {
    /// Of both.
    pub keys: SeenKeys,
    /// What o of this pass is multiplied by: 1, or less.
    pub own: f32,
    /// What o of the passes before is multiplied by: 1, or less.
    pub previous: f32,
}

impl MergedKeys {
    /// Those of this pass and of the passes before it.
    #[inline(always)]
    pub fn new(own: SeenKeys, previous: SeenKeys, scale: &Scale) -> Self {
        let reference = math::max(own.reference(), previous.reference());
        let base = if reference > f32::NEG_INFINITY { reference } else { 0.0 };
        let factor =
            |keys: SeenKeys| math::exp2(half_difference(keys.reference(), base) * (2.0 * scale.log2));
        let (of_own, of_previous) = (factor(own), factor(previous));
        let weight = |keys: SeenKeys, factor: f32| if keys.exist() { keys.sum * factor } else { 0.0 };
        let both = weight(own, of_own) + weight(previous, of_previous);
        let sum = if own.exist() || previous.exist() { both } else { DEAD_SUM };
        MergedKeys { keys: SeenKeys { reference, sum }, own: of_own, previous: of_previous }
    }
}
