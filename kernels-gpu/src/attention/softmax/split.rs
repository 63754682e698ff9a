//! Probabilities in two parts, and what these lose.
//!
//! The smallest steps of f16 are 2^-24: a probability below 1/2 has a low part with fewer bits, and is off
//! by up to 2^-25. That is nothing beside the others, unless their values are so much smaller that the
//! output of the row is made of small probabilities. How many there are is counted as m moves; an output
//! that is not far above what they may be off by is left to kernels that compute in f32.

use super::{EXACT, OnlineSoftmax, Rescale};
use crate::arch::{math, warp};
use crate::attention::score::Scale;
use crate::tile::element::TensorCoreElement;
use crate::tile::fragment::Fragment;

/// Below this, a probability is not the sum of its parts to 24 bits.
const SMALL: f32 = 0.5;

/// How far the largest output of a row must be above the root of [`OnlineSoftmax::loss`]. A probability is
/// off by 2^-26.8 in the mean, which is multiplied by values of at most 2^15, of a normal distribution
/// about 2^13: with 2^10 the row is then off by 2^-23.8 of its largest output in the mean, and by 2^-21 if
/// all values were as large as the largest.
const MARGIN: f32 = 1024.0;

impl<const ROWS: usize> OnlineSoftmax<ROWS> {
    /// As [`OnlineSoftmax::probabilities`], of probabilities in parts: m is the row max of all tiles, but
    /// for a factor of [`Element::RESCALE_THRESHOLD`](crate::tile::element::Element::RESCALE_THRESHOLD), so
    /// that these are as large as f16 has them.
    ///
    /// # Safety
    /// All 32 lanes call it together.
    #[inline(always)]
    pub(super) unsafe fn split_probabilities<F, E, const N: usize, const P: usize>(
        &mut self,
        scores: &[f32; N],
        scale: &Scale,
    ) -> ([u32; P], Rescale<ROWS>)
    where
        F: Fragment<ROWS, N>,
        E: TensorCoreElement,
    {
        let rescale = self.follow_row_max::<F, N>(scores, scale);
        let mut values = *scores;
        let sums = self.exponentiate::<F, N, EXACT>(&mut values, scale);
        self.add(&sums);
        let packed = E::pack_all(&values);
        self.count_small(&values);
        (packed, rescale)
    }

    /// Counts probabilities of a tile that are too small for their parts.
    #[inline(always)]
    pub fn count_small<const N: usize>(&mut self, probabilities: &[f32; N]) {
        let mut small = 0;
        let mut i = 0;
        while i < N {
            // 0 is no small one: below all others as an unsigned number, it becomes the largest.
            small += (probabilities[i].to_bits().wrapping_sub(1) < SMALL.to_bits() - 1) as u32;
            i += 1;
        }
        self.loss += small as f32;
    }

    /// What small probabilities were off by grows or shrinks with their rows: with the one of which most is
    /// left.
    #[inline(always)]
    pub(super) fn rescale_loss(&mut self, factors: &[f32; ROWS]) {
        let mut most = 0.0;
        let mut row = 0;
        while row < ROWS {
            most = math::max(most, factors[row]);
            row += 1;
        }
        self.loss *= most * most;
    }

    /// Whether a row's output, before it is normalised, is so small that the parts of small probabilities are
    /// not as exact as f32 would be.
    ///
    /// # Safety
    /// All 32 lanes call it together.
    #[inline(always)]
    pub unsafe fn has_lost<F: Fragment<ROWS, O>, const O: usize>(&self, output: &[f32; O]) -> bool {
        // Of all rows of the lanes: one register, not one for each.
        let loss = F::row_sum(self.loss);
        let mut has_lost = false;
        let mut row = 0;
        while row < ROWS {
            let mut largest = 0.0;
            let mut column = 0;
            while column < F::COLUMNS {
                largest = math::max(largest, output[F::register(row, column)].abs());
                column += 1;
            }
            let largest = F::row_max(largest);
            // A row that sees no key has lost nothing, whatever the other rows of its lanes have.
            let sees_some = self.row_max[row] > f32::NEG_INFINITY;
            has_lost |= sees_some && largest * largest < loss * (MARGIN * MARGIN);
            row += 1;
        }
        warp::any(has_lost)
    }
}
