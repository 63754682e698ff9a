//! Online softmax (Milakov and Gimelshein 2018; FlashAttention-2, algorithm 1), in powers of two.
//!
//! For each row a value `m` is kept, the row max or somewhat less, and everything is relative to it:
//! `sum = sum_j 2^(c (s_j - m))`, `o = sum_j 2^(c (s_j - m)) v_j`, with `c = scale * log2(e)`. `m` is moved
//! up to the row max only when that has grown by more than
//! [a threshold](crate::tile::element::Element::RESCALE_THRESHOLD), a factor of probabilities: the result
//! is the same, since o and the sum share m, and o is rescaled for hardly any tile (FlashAttention-4 does
//! so, too).
//!
//! Probabilities, their sums and o are in units of a power of two, [`ForwardParams::unit`], which changes no
//! bit of any of them, but that as many finite values as there are keys never add up to infinity. It is no
//! smaller than that needs, since what is below 2^-126 units is lost.
//!
//! Rows that have seen no key have `m = -inf` and `sum = 0`; what `-inf - (-inf)` gives for them is not used.
//!
//! [`ForwardParams::unit`]: crate::abi::ForwardParams::unit

mod finish;
mod merge;
mod split;

pub use finish::{DEAD_SUM, Finished, with_sink};
pub use merge::SeenKeys;

use super::score::Scale;
use crate::arch::{math, warp};
use crate::tile::element::TensorCoreElement;
use crate::tile::fragment::Fragment;

/// How exponents are made of scores: in one step, see [`FUSED_LIMIT`]; by subtracting first; or so, and
/// probabilities are brought to their unit at the end, which costs an instruction, and no bits of f32.
const FUSED: u32 = 0;
const SUBTRACTED: u32 = 1;
const EXACT: u32 = 2;

/// How much the score of a key exceeds m, halved: the difference of scores that f32 holds may be too large
/// for it, half of it is not. Not more operations than the difference, and as exact.
#[inline(always)]
pub fn half_difference(score: f32, row_max: f32) -> f32 {
    math::fma(score, 0.5, -0.5 * row_max)
}

/// Scores are made relative in one fused step, `c s - (c m)` with `c m` rounded: what they are relative to
/// is then the rounded product, here, in the factors of rescaling and in lse alike. The largest probability
/// is off from 1 by that rounding, which must stay far below that of probabilities to 16 bits (and from
/// 2^24 on could overflow): above this limit, subtract first and scale then.
const FUSED_LIMIT: f32 = 256.0;

/// The running softmax of a lane's `ROWS` rows.
#[derive(Clone, Copy)]
pub struct OnlineSoftmax<const ROWS: usize> {
    row_max: [f32; ROWS],
    row_sum: [f32; ROWS],
    /// Up to which sum of a lane's probabilities none has outgrown m; -1 where there is none.
    limit: [f32; ROWS],
    /// Scores are so large that m must be subtracted before they are scaled.
    subtract_first: bool,
    /// How many probabilities of the lane's rows were too small for their parts, each times the square of
    /// what its row was rescaled by since: as errors of many add up. 0 where probabilities have no parts.
    loss: f32,
    /// It is subtracted first in any case: the largest score then has a probability of exactly one unit.
    exact: bool,
}

impl<const ROWS: usize> OnlineSoftmax<ROWS> {
    /// Nothing seen yet. `exact` is for results in f32: one instruction more per score.
    #[inline(always)]
    pub fn new(exact: bool) -> Self {
        OnlineSoftmax {
            row_max: [f32::NEG_INFINITY; ROWS],
            row_sum: [0.0; ROWS],
            limit: [-1.0; ROWS],
            loss: 0.0,
            subtract_first: exact,
            exact,
        }
    }

    /// What exponentials of each row are relative to, an unscaled score: see [`OnlineSoftmax::finalize`].
    #[inline(always)]
    pub const fn row_max(&self) -> [f32; ROWS] {
        self.row_max
    }

    /// Turns a tile of scores into unnormalised probabilities, and rescales `output` if m
    /// moved.
    ///
    /// # Safety
    /// All 32 lanes call it together.
    #[inline(always)]
    pub unsafe fn update<F, const N: usize, const O: usize>(
        &mut self,
        scores: &mut [f32; N],
        output: &mut [f32; O],
        scale: &Scale,
    ) where
        F: Fragment<ROWS, N> + Fragment<ROWS, O>,
    {
        self.follow_row_max::<F, N>(scores, scale).apply::<F, O>(output);
        let sums = if self.subtract_first {
            self.exponentiate::<F, N, EXACT>(scores, scale)
        } else {
            self.exponentiate::<F, N, FUSED>(scores, scale)
        };
        self.add(&sums);
    }

    /// Unnormalised probabilities of a tile of scores, rounded and packed by pairs of registers (`P = N /
    /// 2`), and what the output must be rescaled by.
    ///
    /// Scores are compared with nothing: if some have outgrown m, the sum of what a lane makes of its own
    /// shows it. Then all is done anew with an m that is the row max.
    ///
    /// # Safety
    /// All 32 lanes call it together.
    #[inline(always)]
    pub unsafe fn probabilities<F, E, const N: usize, const P: usize>(
        &mut self,
        scores: &[f32; N],
        scale: &Scale,
    ) -> ([u32; P], Rescale<ROWS>)
    where
        F: Fragment<ROWS, N>,
        E: TensorCoreElement,
    {
        if E::WORDS_OF_PAIR > 1 {
            return self.split_probabilities::<F, E, N, P>(scores, scale);
        }
        let (packed, sums) = self.exponentials::<F, E, N, P>(scores, scale);
        let mut outgrown = false;
        let mut row = 0;
        while row < ROWS {
            // NaN counts as outgrown.
            outgrown |= !(sums[row] <= self.limit[row]);
            row += 1;
        }
        if warp::any(outgrown) {
            return self.probabilities_of_new_max::<F, E, N, P>(scores, scale);
        }
        self.add(&sums);
        (packed, Rescale { factors: [1.0; ROWS], needed: false, cleared: [false; ROWS] })
    }

    /// As [`OnlineSoftmax::probabilities`] for the first tile: m is the largest score in the
    /// first quarter of each lane's columns, where every row has one that is not minus infinity there.
    ///
    /// # Safety
    /// All 32 lanes call it together.
    #[inline(always)]
    pub unsafe fn first_probabilities<F, E, const N: usize, const P: usize>(
        &mut self,
        scores: &[f32; N],
        scale: &Scale,
    ) -> ([u32; P], Rescale<ROWS>)
    where
        F: Fragment<ROWS, N>,
        E: TensorCoreElement,
    {
        if E::WORDS_OF_PAIR > 1 {
            return self.split_probabilities::<F, E, N, P>(scores, scale);
        }
        let maximum = row_maxima::<F, ROWS, N>(scores, F::COLUMNS / 4);
        let mut none = false;
        let mut row = 0;
        while row < ROWS {
            none |= !(maximum[row] > f32::NEG_INFINITY);
            row += 1;
        }
        if warp::any(none) {
            return self.probabilities_of_new_max::<F, E, N, P>(scores, scale);
        }
        self.move_row_max(&maximum, scale);
        self.probabilities::<F, E, N, P>(scores, scale)
    }

    /// As [`OnlineSoftmax::probabilities`], with an m that is the row max: for the first tile, too.
    ///
    /// # Safety
    /// All 32 lanes call it together.
    #[inline(always)]
    pub unsafe fn probabilities_of_new_max<F, E, const N: usize, const P: usize>(
        &mut self,
        scores: &[f32; N],
        scale: &Scale,
    ) -> ([u32; P], Rescale<ROWS>)
    where
        F: Fragment<ROWS, N>,
        E: TensorCoreElement,
    {
        if E::WORDS_OF_PAIR > 1 {
            return self.split_probabilities::<F, E, N, P>(scores, scale);
        }
        let maximum = row_maxima::<F, ROWS, N>(scores, F::COLUMNS);
        let factors = self.move_row_max(&maximum, scale);
        let (packed, sums) = self.exponentials::<F, E, N, P>(scores, scale);
        self.add(&sums);
        (packed, Rescale { factors, needed: true, cleared: [false; ROWS] })
    }

    #[inline(always)]
    fn add(&mut self, sums: &[f32; ROWS]) {
        let mut row = 0;
        while row < ROWS {
            self.row_sum[row] += sums[row];
            row += 1;
        }
    }

    /// Probabilities relative to m as it is, packed, and their sums.
    ///
    /// Packing stands in each of the two branches, between exponentials: these take four times as long as
    /// anything else, and what follows a branch would have to wait for all of them.
    #[inline(always)]
    fn exponentials<F: Fragment<ROWS, N>, E: TensorCoreElement, const N: usize, const P: usize>(
        &self,
        scores: &[f32; N],
        scale: &Scale,
    ) -> ([u32; P], [f32; ROWS]) {
        let mut values = *scores;
        if self.subtract_first {
            let sums = self.exponentiate::<F, N, SUBTRACTED>(&mut values, scale);
            (E::pack_all(&values), sums)
        } else {
            let sums = self.exponentiate::<F, N, FUSED>(&mut values, scale);
            (E::pack_all(&values), sums)
        }
    }

    /// Moves m up to the row max where that has grown by more than the threshold, and rescales the sum. The
    /// output is the caller's to rescale.
    ///
    /// # Safety
    /// All 32 lanes call it together.
    #[inline(always)]
    pub unsafe fn follow_row_max<F: Fragment<ROWS, N>, const N: usize>(
        &mut self,
        scores: &[f32; N],
        scale: &Scale,
    ) -> Rescale<ROWS> {
        let maximum = row_maxima::<F, ROWS, N>(scores, F::COLUMNS);
        let mut grown = false;
        let mut row = 0;
        while row < ROWS {
            // NaN (both minus infinity) compares false.
            grown |= (maximum[row] - self.row_max[row]) * scale.log2 > scale.threshold_log2;
            row += 1;
        }
        let mut rescale =
            Rescale { factors: [1.0; ROWS], needed: warp::any(grown), cleared: [false; ROWS] };
        if rescale.needed {
            rescale.factors = self.move_row_max(&maximum, scale);
        }
        rescale
    }

    /// Moves m up to `maximum`, rescales the sum, and gives the factors.
    #[inline(always)]
    unsafe fn move_row_max(&mut self, maximum: &[f32; ROWS], scale: &Scale) -> [f32; ROWS] {
        let mut new = [0.0; ROWS];
        let mut subtract_first = false;
        let mut row = 0;
        while row < ROWS {
            new[row] = math::max(self.row_max[row], maximum[row]);
            subtract_first |=
                new[row] > f32::NEG_INFINITY && !(new[row].abs() * scale.log2 < FUSED_LIMIT);
            row += 1;
        }
        self.subtract_first = self.exact || warp::any(subtract_first);
        let mut factors = [1.0; ROWS];
        let mut row = 0;
        while row < ROWS {
            let (old, new) = (self.row_max[row], new[row]);
            let exponent = if self.subtract_first {
                half_difference(old, new) * (2.0 * scale.log2)
            } else {
                old * scale.log2 - new * scale.log2
            };
            // 1 where m stays (also at minus infinity), 0 where the first key appears now.
            factors[row] = if new == old { 1.0 } else { math::exp2(exponent) };
            self.row_max[row] = new;
            self.row_sum[row] *= factors[row];
            let limit = scale.threshold * scale.unit;
            self.limit[row] = if new > f32::NEG_INFINITY { limit } else { -1.0 };
            row += 1;
        }
        self.rescale_loss(&factors);
        factors
    }

    /// `scores = 2^(c (scores - m))` in their unit, and their sums per row. `HOW` is one of
    /// [`FUSED`], [`SUBTRACTED`], [`EXACT`].
    #[inline(always)]
    fn exponentiate<F: Fragment<ROWS, N>, const N: usize, const HOW: u32>(
        &self,
        scores: &mut [f32; N],
        scale: &Scale,
    ) -> [f32; ROWS] {
        let mut sums = [0.0; ROWS];
        let mut row = 0;
        while row < ROWS {
            let seen = self.row_max[row] > f32::NEG_INFINITY;
            // A row that has seen no key has scores of minus infinity (or NaN) only: 2^(-inf - 0) = 0.
            let row_max = if seen { self.row_max[row] } else { 0.0 };
            let shift = math::fma(-row_max, scale.log2, scale.unit_log2);
            let (mut even, mut odd) = (0.0, 0.0);
            let mut column = 0;
            while column < F::COLUMNS {
                let register = F::register(row, column);
                let score = scores[register];
                let p = match HOW {
                    FUSED => math::exp2(math::fma(score, scale.log2, shift)),
                    SUBTRACTED => {
                        let half = half_difference(score, row_max);
                        math::exp2(math::fma(half, 2.0 * scale.log2, scale.unit_log2))
                    }
                    _ => {
                        let half = half_difference(score, row_max);
                        math::exp2(half * (2.0 * scale.log2)) * scale.unit
                    }
                };
                scores[register] = p;
                if column % 2 == 0 {
                    even += p;
                } else {
                    odd += p;
                }
                column += 1;
            }
            sums[row] = even + odd;
            row += 1;
        }
        sums
    }
}

/// What an output must be multiplied by, row by row: because m moved, or at the end.
#[derive(Clone, Copy)]
pub struct Rescale<const ROWS: usize> {
    factors: [f32; ROWS],
    /// The same in all lanes of the warp.
    needed: bool,
    /// Rows of which nothing is left, whatever there was: those that a bias hides all keys from may have NaN.
    cleared: [bool; ROWS],
}

impl<const ROWS: usize> Rescale<ROWS> {
    /// Rescales an output that was summed before m moved.
    #[inline(always)]
    pub fn apply<F: Fragment<ROWS, O>, const O: usize>(&self, output: &mut [f32; O]) {
        if !self.needed {
            return;
        }
        let mut row = 0;
        while row < ROWS {
            let mut column = 0;
            while column < F::COLUMNS {
                let register = F::register(row, column);
                let value = output[register] * self.factors[row];
                output[register] = if self.cleared[row] { 0.0 } else { value };
                column += 1;
            }
            row += 1;
        }
    }
}

/// The largest score of each row in every lane's first `columns` columns of it.
#[inline(always)]
unsafe fn row_maxima<F: Fragment<ROWS, N>, const ROWS: usize, const N: usize>(
    scores: &[f32; N],
    columns: usize,
) -> [f32; ROWS] {
    let mut maxima = [0.0; ROWS];
    let mut row = 0;
    while row < ROWS {
        maxima[row] = row_maximum::<F, ROWS, N>(scores, row, columns);
        row += 1;
    }
    maxima
}

/// The largest score in a lane's first `columns` columns of its `row`-th row, over all lanes that share it.
/// NaN is passed over: it stays in the scores.
#[inline(always)]
unsafe fn row_maximum<F: Fragment<ROWS, N>, const ROWS: usize, const N: usize>(
    scores: &[f32; N],
    row: usize,
    columns: usize,
) -> f32 {
    let mut even = scores[F::register(row, 0)];
    let mut odd = scores[F::register(row, 1)];
    let mut column = 2;
    while column < columns {
        even = math::max(even, scores[F::register(row, column)]);
        odd = math::max(odd, scores[F::register(row, column + 1)]);
        column += 2;
    }
    F::row_max(math::max(even, odd))
}
