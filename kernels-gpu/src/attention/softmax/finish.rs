//! The end of a softmax: normalisation and lse, or what is left to passes over other keys and to the kernel
//! that combines ranges.

use super::merge::{MergedKeys, SeenKeys};
use super::{OnlineSoftmax, Rescale};
use crate::arch::{math, specialize, warp};
use crate::attention::score::Scale;
use crate::tile::fragment::Fragment;
use core::f32::consts::{LN_2, LOG2_E};

impl<const ROWS: usize> OnlineSoftmax<ROWS> {
    /// Ends the softmax: normalises `output` and gives lse (natural logarithm) of each row, or `of_range`,
    /// where keys are a range of those that there are, the sum that belongs to the reference.
    /// lse, rounded, would not say how many keys with large scores there are.
    ///
    /// A row that sees no key (`is_dead`) gives output 0 and lse `-inf`, or a sum of [`DEAD_SUM`]. One whose
    /// scores are all `-inf`, because of an infinite input, gives NaN, or a sum of 0 and values times 0.
    /// `sink` gives that of each row, `previous` what passes before have seen, if any have: what they have
    /// left of the output is the caller's to add.
    ///
    /// # Safety
    /// All 32 lanes call it together.
    #[inline(always)]
    pub unsafe fn finalize<F: Fragment<ROWS, O>, const O: usize>(
        &self,
        output: &mut [f32; O],
        scale: &Scale,
        of_range: bool,
        is_dead: impl Fn(usize) -> bool,
        sink: impl Fn(usize) -> f32,
        previous: impl Fn(usize) -> SeenKeys,
    ) -> Finished<ROWS> {
        let finished = self.finalize_early::<F, O>(scale, of_range, is_dead, sink, previous);
        finished.normalisation.apply::<F, O>(output);
        finished
    }

    /// The same where the output is still being computed.
    ///
    /// # Safety
    /// All 32 lanes call it together.
    #[inline(always)]
    pub unsafe fn finalize_early<F: Fragment<ROWS, O>, const O: usize>(
        &self,
        scale: &Scale,
        of_range: bool,
        is_dead: impl Fn(usize) -> bool,
        sink: impl Fn(usize) -> f32,
        previous: impl Fn(usize) -> SeenKeys,
    ) -> Finished<ROWS> {
        let mut finished = Finished {
            normalisation: Rescale { factors: [0.0; ROWS], needed: true, cleared: [false; ROWS] },
            of_previous: [0.0; ROWS],
            references: self.row_max,
            lse_or_sum: [if of_range { DEAD_SUM } else { f32::NEG_INFINITY }; ROWS],
        };
        let mut row = 0;
        while row < ROWS {
            let sum = F::row_sum(self.row_sum[row]);
            let is_dead = is_dead(row);
            finished.normalisation.cleared[row] = is_dead && scale.has_bias;
            if specialize::merge() {
                let own = SeenKeys { reference: self.row_max[row], sum };
                let own = if is_dead { SeenKeys::NONE } else { own };
                let merged = MergedKeys::new(own, previous(row), scale);
                finished.merge(row, &merged, scale, of_range, || sink(row));
            } else if !is_dead {
                let (factor, lse_or_sum) = self.finalize_row(row, sum, scale, of_range, || sink(row));
                finished.normalisation.factors[row] = factor;
                finished.lse_or_sum[row] = lse_or_sum;
            }
            row += 1;
        }
        if specialize::merge() {
            // All lanes of a row have read what one of them is about to overwrite.
            warp::warp_sync();
        }
        finished
    }

    /// What a row's output is multiplied by, and its lse or its sum, of keys that are all that it sees.
    #[inline(always)]
    fn finalize_row(
        &self,
        row: usize,
        sum: f32,
        scale: &Scale,
        of_range: bool,
        sink: impl Fn() -> f32,
    ) -> (f32, f32) {
        let most = if of_range { f32::MAX } else { f32::INFINITY };
        let row_max = if self.row_max[row] > f32::NEG_INFINITY { self.row_max[row] } else { 0.0 };
        // Ranges are combined first, which costs no range so.
        let kept = if of_range { 1.0 } else { scale.kept };
        let mut factor = math::min_or_nan(math::reciprocal(sum) * kept, most);
        // Exact: powers of two.
        let sum = sum * math::reciprocal(scale.unit);
        let mut lse_or_sum = if of_range {
            sum
        } else if self.subtract_first {
            math::fma(row_max, scale.natural, math::log2(sum) * LN_2)
        } else {
            (row_max * scale.log2 + math::log2(sum)) * LN_2
        };
        if specialize::sinks() && !of_range {
            let share;
            (lse_or_sum, share) = with_sink((row_max, scale.natural), sum, sink());
            factor *= share;
        }
        (factor, lse_or_sum)
    }
}

/// How a softmax has ended.
#[derive(Clone, Copy)]
pub struct Finished<const ROWS: usize> {
    /// What the output must be multiplied by.
    pub normalisation: Rescale<ROWS>,
    /// What is left of passes before must be multiplied by this, and then added.
    pub of_previous: [f32; ROWS],
    /// What sums are relative to, unscaled scores.
    pub references: [f32; ROWS],
    /// lse or, of a range of keys, sums.
    pub lse_or_sum: [f32; ROWS],
}

impl<const ROWS: usize> Finished<ROWS> {
    /// No row sees a key in this pass: what is left are `previous`.
    ///
    /// # Safety
    /// All 32 lanes call it together.
    #[inline(always)]
    pub unsafe fn of_previous(
        scale: &Scale,
        of_range: bool,
        sink: impl Fn(usize) -> f32,
        previous: impl Fn(usize) -> SeenKeys,
    ) -> Self {
        let mut finished = Finished {
            normalisation: Rescale { factors: [0.0; ROWS], needed: true, cleared: [false; ROWS] },
            of_previous: [0.0; ROWS],
            references: [f32::NEG_INFINITY; ROWS],
            lse_or_sum: [DEAD_SUM; ROWS],
        };
        let mut row = 0;
        while row < ROWS {
            let merged = MergedKeys::new(SeenKeys::NONE, previous(row), scale);
            finished.merge(row, &merged, scale, of_range, || sink(row));
            row += 1;
        }
        // As in `finalize_early`.
        warp::warp_sync();
        finished
    }

    /// Row `row` has these keys: `of_range`, others are to come.
    #[inline(always)]
    fn merge(
        &mut self,
        row: usize,
        merged: &MergedKeys,
        scale: &Scale,
        of_range: bool,
        sink: impl Fn() -> f32,
    ) {
        let MergedKeys { keys: SeenKeys { reference, sum }, own, previous } = *merged;
        let (mut factor, mut lse_or_sum) = (1.0, sum);
        if !of_range {
            (factor, lse_or_sum) = (0.0, f32::NEG_INFINITY);
            if sum != DEAD_SUM {
                let reference = if reference > f32::NEG_INFINITY { reference } else { 0.0 };
                factor = math::reciprocal(sum) * scale.kept;
                let sum = sum * math::reciprocal(scale.unit);
                lse_or_sum = math::fma(reference, scale.natural, math::log2(sum) * LN_2);
                if specialize::sinks() {
                    let share;
                    (lse_or_sum, share) = with_sink((reference, scale.natural), sum, sink());
                    factor *= share;
                }
            }
        }
        self.normalisation.factors[row] = own * factor;
        self.of_previous[row] = previous * factor;
        (self.references[row], self.lse_or_sum[row]) = (reference, lse_or_sum);
    }
}

/// lse of a row with a sink, and what share of the sum is left to its keys: with `sum` of `e^(scale (s -
/// row_max))` over these, `share = sum / (sum + e^(sink - scale row_max))`. Not from the lse without the
/// sink: where scores are large, its rounding is no longer small next to 1.
#[inline(always)]
pub fn with_sink((row_max, scale): (f32, f32), sum: f32, sink: f32) -> (f32, f32) {
    let excess = math::fma(-row_max, scale, sink);
    let least = math::exp2(-excess.abs() * LOG2_E);
    let (of_keys, of_sink) = if excess > 0.0 { (sum * least, 1.0) } else { (sum, least) };
    let total = of_keys + of_sink;
    let log = math::log2(total) * LN_2;
    let lse = if excess > 0.0 { sink + log } else { math::fma(row_max, scale, log) };
    (lse, of_keys * math::reciprocal(total))
}

/// The sum of a row that sees no key.
pub const DEAD_SUM: f32 = -1.0;
