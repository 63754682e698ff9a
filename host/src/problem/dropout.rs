//! Dropout: which probabilities are left out, told by a seed and an offset.

use super::ForwardProblem;
use crate::error::{Error, Result};
use kernels_gpu::abi::{Dtype, ScoreParams};

/// Of so many equally likely numbers a pair of query and key has one.
const NUMBERS: u32 = 1 << 16;

/// Probabilities are dropped at random and those that are kept grow in proportion: lse is what it is without.
/// Which are dropped depends on seed, offset, batch, query head, query and key alone, as section 8 of
/// `docs/semantics.md` says, so that a backward pass with the same numbers drops the same ones.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    /// The share that is dropped: from 0 to below 1, rounded to a multiple of 2^-16. One that rounds to 0 is
    /// no dropout.
    pub rate: f32,
    /// Seed of the numbers.
    pub seed: u64,
    /// Which numbers of the seed, such as the count of calls before.
    pub offset: u64,
}

impl Dropout {
    /// `2^16 rate`, rounded: how many of 2^16 numbers drop a pair.
    ///
    /// # Errors
    /// [`Error::DropoutRate`].
    pub fn dropped(&self) -> Result<u32> {
        let dropped = (f64::from(NUMBERS) * f64::from(self.rate)).round();
        if self.rate >= 0.0 && dropped < f64::from(NUMBERS) {
            return Ok(dropped as u32);
        }
        Err(Error::DropoutRate { got: self.rate })
    }

    /// Tells kernels of one that was validated, in a problem of this type with so many query heads.
    pub(crate) fn tell(&self, dtype: Dtype, query_heads: u32, params: &mut ScoreParams) {
        let dropped = self.dropped().unwrap_or(0);
        let Dropout { seed, offset, .. } = *self;
        let told = &mut params.dropout;
        told.threshold = dropped << 16;
        told.scale = NUMBERS as f32 / (NUMBERS - dropped) as f32;
        (told.dp_scale, told.delta_scale) = match dtype {
            Dtype::F16 => (told.scale, 1.0),
            Dtype::Bf16 | Dtype::F32 => (1.0, (NUMBERS - dropped) as f32 / NUMBERS as f32),
        };
        told.key = [seed as u32, (seed >> 32) as u32 ^ (offset >> 32) as u32];
        (told.offset, told.query_heads) = (offset as u32, query_heads);
    }
}

impl ForwardProblem {
    /// Drops this share of the probabilities, by the numbers of a seed and an offset. A backward pass needs
    /// the same three.
    pub fn with_dropout(self, rate: f32, seed: u64, offset: u64) -> Self {
        ForwardProblem { dropout: Some(Dropout { rate, seed, offset }), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::{BackwardProblem, Layout, ValidForward};
    use crate::reference::DropoutNumbers;
    use kernels_gpu::abi::Switch;
    use kernels_gpu::geometry::philox;

    fn valid(rate: f32) -> Result<ValidForward> {
        let layout = Layout::bshd([2, 9, 3, 8]);
        let problem = ForwardProblem::new(Dtype::Bf16, layout, layout, layout);
        problem.with_dropout(rate, 1, 2).validate()
    }

    #[test]
    fn a_rate_is_from_0_to_where_something_is_kept() {
        for (rate, dropped) in [
            (0.0, 0),
            (-0.0, 0),
            (7e-6, 0),
            (1e-5, 1),
            (0.1, 6554),
            (0.5, 32768),
            (0.999, 65470),
            (65535.25 / 65536.0, 65535),
        ] {
            let valid = valid(rate).unwrap();
            assert_eq!(valid.problem.dropout.unwrap().dropped(), Ok(dropped), "{rate}");
            assert_eq!(valid.switches().contains(Switch::Dropout), dropped > 0, "{rate}");
            assert_eq!(valid.dropout().is_some(), dropped > 0, "{rate}");
        }
        for got in [-1e-9, 1.0, 0.999_999, 2.0, f32::NAN, f32::INFINITY, -f32::INFINITY] {
            let error = valid(got).unwrap_err();
            let text = "dropout_rate: expected a number of at least 0 and below 0.9999924, so that something \
                        is kept, got ";
            assert!(error.to_string().starts_with(text), "{error}");
            assert!(matches!(error, Error::DropoutRate { .. }), "{error}");
        }
    }

    #[test]
    fn kernels_are_told_a_threshold_a_scale_and_a_key() {
        let told_of = |dtype, rate, seed, offset| {
            let mut params = ScoreParams::default();
            Dropout { rate, seed, offset }.tell(dtype, 6, &mut params);
            params.dropout
        };
        let told = |rate, seed, offset| told_of(Dtype::Bf16, rate, seed, offset);
        let quarter = told(0.25, 0x0123_4567_89ab_cdef, 0x1122_3344_5566_7788);
        assert_eq!((quarter.threshold, quarter.scale), (0x4000_0000, 4.0 / 3.0));
        assert_eq!(quarter.key, [0x89ab_cdef, 0x0123_4567 ^ 0x1122_3344]);
        assert_eq!((quarter.offset, quarter.query_heads), (0x5566_7788, 6));
        let most = told(65535.0 / 65536.0, 0, 0);
        assert_eq!((most.threshold, most.scale), (0xffff_0000, 65536.0));
        assert_eq!((most.dp_scale, most.delta_scale), (1.0, 1.0 / 65536.0));
        let f16 = told_of(Dtype::F16, 0.5, 0, 0);
        assert_eq!((f16.dp_scale, f16.delta_scale), (2.0, 1.0));
    }

    /// The formula of the kernels, with what they are told, is that of the reference.
    #[test]
    fn kernels_and_the_reference_keep_the_same_pairs() {
        let (rate, seed, offset) = (0.3, 0x1234_5678_9abc_def0, 0x9_8000_0001);
        let mut params = ScoreParams::default();
        Dropout { rate, seed, offset }.tell(Dtype::F32, 5, &mut params);
        let told = params.dropout;
        let reference = DropoutNumbers { rate, seed, offset, first_batch: 3 };
        assert_eq!(f64::from(told.scale), f64::from(reference.scale() as f32));
        for (query, key) in (0..40u32).flat_map(|query| (0..40).map(move |key| (query, key))) {
            let [x0, x1] = philox::call(query, key);
            let (batch, head) = (4, 2);
            let counter = [x0, x1, batch * told.query_heads + head, told.offset];
            let words = philox::philox(counter, told.key);
            let keeps = philox::scaled(words, philox::number(query, key)) >= told.threshold;
            let at = [1, head as usize, query as usize, key as usize];
            assert_eq!(reference.keeps(at, 5), keeps, "{query} {key}");
        }
    }

    /// The kernels of a backward make the same probabilities; they need no sinks, which lse has.
    #[test]
    fn a_backward_drops_what_the_forward_did() {
        let layout = Layout::bshd([2, 9, 3, 8]);
        let problem = ForwardProblem::new(Dtype::Bf16, layout, layout, layout).with_sinks();
        let backward = BackwardProblem::new(problem.with_dropout(0.5, 1, 2)).validate().unwrap();
        let switches = backward.forward.switches().of_scores();
        assert!(switches.contains(Switch::Dropout) && !switches.contains(Switch::Sinks));
    }
}
