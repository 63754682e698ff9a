//! Online softmax (Milakov and Gimelshein 2018; FlashAttention-2, algorithm 1), in powers of two.
//!
//! For each row a reference value `r` is kept, near the largest score so far, and everything is relative
//! to it: `sum = sum_j 2^(c (s_j - r))`, `o = sum_j 2^(c (s_j - r)) v_j`, with `c = scale * log2(e)`.
//! `r` follows the maximum only when that has grown by more than [`SLACK`], which is a factor of
//! probabilities: the result is the same, since o and the sum share r, and the multiplication of o by the
//! correction is skipped for nearly every tile.
//!
//! Probabilities, their sums and o are in units of a power of two ([`Element::UNIT_LOG2`]), which changes no
//! bit of any of them, but that finite values never add up to infinity.
//!
//! Rows that have seen no key have `r = -inf` and `sum = 0`; what `-inf - (-inf)` gives for them is not used.

use super::score::Scale;
use crate::arch::{math, warp};
use crate::tile::element::{Element, TensorCoreElement};
use crate::tile::fragment::Fragment;
use core::f32::consts::LN_2;

/// How far scores may exceed the reference before it follows, as a factor of probabilities. 2^13 is below
/// the largest f16, 65504, and a sum of 2^30 keys stays far below the largest f32.
const SLACK: f32 = 8192.0;

/// The same in powers of two.
const SLACK_LOG2: f32 = 13.0;

/// How exponents are made of scores: in one step, see [`FUSED_LIMIT`]; by subtracting first; or so, and
/// probabilities are brought to their unit at the end, which costs an instruction, and no bits of f32.
const FUSED: u32 = 0;
const SUBTRACTED: u32 = 1;
const EXACT: u32 = 2;

/// `2^exponent`, of a normal number.
const fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits(((127 + exponent) as u32) << 23)
}

/// Scores are made relative in one fused step, `c s - (c r)` with `c r` rounded: what they are relative to
/// is then the rounded product, here, in the correction and in lse alike. The largest probability is off
/// from 1 by that rounding, which must stay far below that of probabilities to 16 bits (and from 2^24 on
/// could overflow): above this limit, subtract first and scale then.
const FUSED_LIMIT: f32 = 256.0;

/// The running softmax of a lane's `ROWS` rows.
#[derive(Clone, Copy)]
pub struct OnlineSoftmax<const ROWS: usize> {
    reference: [f32; ROWS],
    sum: [f32; ROWS],
    /// Up to which sum of a lane's probabilities none has outgrown the reference; -1 where there is none.
    limit: [f32; ROWS],
    /// Scores are so large that they must be subtracted before they are scaled.
    steep: bool,
    /// They are subtracted first in any case: the largest one then has a probability of exactly one unit.
    exact: bool,
}

impl<const ROWS: usize> OnlineSoftmax<ROWS> {
    /// Nothing seen yet. `exact` is for results in f32: one instruction more per score.
    #[inline(always)]
    pub fn new(exact: bool) -> Self {
        OnlineSoftmax {
            reference: [f32::NEG_INFINITY; ROWS],
            sum: [0.0; ROWS],
            limit: [-1.0; ROWS],
            steep: exact,
            exact,
        }
    }

    /// What exponentials of each row are relative to, an unscaled score: see [`OnlineSoftmax::close`].
    #[inline(always)]
    pub const fn reference(&self) -> [f32; ROWS] {
        self.reference
    }

    /// Turns a tile of scores into unnormalised probabilities, and corrects `output` if the reference
    /// moved.
    ///
    /// # Safety
    /// All 32 lanes call it together.
    #[inline(always)]
    pub unsafe fn update<F, E, const N: usize, const O: usize>(
        &mut self,
        scores: &mut [f32; N],
        output: &mut [f32; O],
        scale_log2: f32,
    ) where
        F: Fragment<ROWS, N> + Fragment<ROWS, O>,
        E: Element,
    {
        self.follow::<F, E, N>(scores, scale_log2).apply::<F, O>(output);
        let sums = if self.steep {
            self.exponentiate::<F, E, N, EXACT>(scores, scale_log2)
        } else {
            self.exponentiate::<F, E, N, FUSED>(scores, scale_log2)
        };
        self.add(&sums);
    }

    /// Unnormalised probabilities of a tile of scores, rounded and packed by pairs of registers (`P = N /
    /// 2`), and what the output must be corrected by.
    ///
    /// Scores are compared with nothing: if some have outgrown the reference, the sum of what a lane makes
    /// of its own shows it. Then all is done anew with a reference that has followed.
    ///
    /// # Safety
    /// All 32 lanes call it together.
    #[inline(always)]
    pub unsafe fn probabilities<F, E, const N: usize, const P: usize>(
        &mut self,
        scores: &[f32; N],
        scale_log2: f32,
    ) -> ([u32; P], Correction<ROWS>)
    where
        F: Fragment<ROWS, N>,
        E: TensorCoreElement,
    {
        let (packed, sums) = self.exponentials::<F, E, N, P>(scores, scale_log2);
        let mut outgrown = false;
        let mut row = 0;
        while row < ROWS {
            // NaN counts as outgrown.
            outgrown |= !(sums[row] <= self.limit[row]);
            row += 1;
        }
        if warp::any(outgrown) {
            return self.probabilities_anew::<F, E, N, P>(scores, scale_log2);
        }
        self.add(&sums);
        (packed, Correction { factors: [1.0; ROWS], needed: false })
    }

    /// As [`OnlineSoftmax::probabilities`] for the first tile: the reference is the largest score in the
    /// first quarter of each lane's columns, where every row has one that is not minus infinity there.
    ///
    /// # Safety
    /// All 32 lanes call it together.
    #[inline(always)]
    pub unsafe fn first_probabilities<F, E, const N: usize, const P: usize>(
        &mut self,
        scores: &[f32; N],
        scale_log2: f32,
    ) -> ([u32; P], Correction<ROWS>)
    where
        F: Fragment<ROWS, N>,
        E: TensorCoreElement,
    {
        let maximum = row_maxima::<F, ROWS, N>(scores, F::COLUMNS / 4);
        let mut none = false;
        let mut row = 0;
        while row < ROWS {
            none |= !(maximum[row] > f32::NEG_INFINITY);
            row += 1;
        }
        if warp::any(none) {
            return self.probabilities_anew::<F, E, N, P>(scores, scale_log2);
        }
        self.move_reference::<E>(&maximum, scale_log2);
        self.probabilities::<F, E, N, P>(scores, scale_log2)
    }

    /// As [`OnlineSoftmax::probabilities`], with a reference that has followed: for the first tile, too.
    ///
    /// # Safety
    /// All 32 lanes call it together.
    #[inline(always)]
    pub unsafe fn probabilities_anew<F, E, const N: usize, const P: usize>(
        &mut self,
        scores: &[f32; N],
        scale_log2: f32,
    ) -> ([u32; P], Correction<ROWS>)
    where
        F: Fragment<ROWS, N>,
        E: TensorCoreElement,
    {
        let maximum = row_maxima::<F, ROWS, N>(scores, F::COLUMNS);
        let factors = self.move_reference::<E>(&maximum, scale_log2);
        let (packed, sums) = self.exponentials::<F, E, N, P>(scores, scale_log2);
        self.add(&sums);
        (packed, Correction { factors, needed: true })
    }

    #[inline(always)]
    fn add(&mut self, sums: &[f32; ROWS]) {
        let mut row = 0;
        while row < ROWS {
            self.sum[row] += sums[row];
            row += 1;
        }
    }

    /// Probabilities relative to the reference as it is, packed, and their sums.
    ///
    /// Packing stands in each of the two branches, between exponentials: these take four times as long as
    /// anything else, and what follows a branch would have to wait for all of them.
    #[inline(always)]
    fn exponentials<F: Fragment<ROWS, N>, E: TensorCoreElement, const N: usize, const P: usize>(
        &self,
        scores: &[f32; N],
        scale_log2: f32,
    ) -> ([u32; P], [f32; ROWS]) {
        let mut values = *scores;
        if self.steep {
            let sums = self.exponentiate::<F, E, N, SUBTRACTED>(&mut values, scale_log2);
            (pack::<E, N, P>(&values), sums)
        } else {
            let sums = self.exponentiate::<F, E, N, FUSED>(&mut values, scale_log2);
            (pack::<E, N, P>(&values), sums)
        }
    }

    /// Moves the reference up to the largest scores where they have grown by more than the slack, and scales
    /// the sum. The output is the caller's to correct.
    ///
    /// # Safety
    /// All 32 lanes call it together.
    #[inline(always)]
    pub unsafe fn follow<F: Fragment<ROWS, N>, E: Element, const N: usize>(
        &mut self,
        scores: &[f32; N],
        scale_log2: f32,
    ) -> Correction<ROWS> {
        let maximum = row_maxima::<F, ROWS, N>(scores, F::COLUMNS);
        let mut grown = false;
        let mut row = 0;
        while row < ROWS {
            // NaN (both minus infinity) compares false.
            grown |= (maximum[row] - self.reference[row]) * scale_log2 > SLACK_LOG2;
            row += 1;
        }
        let mut correction = Correction { factors: [1.0; ROWS], needed: warp::any(grown) };
        if correction.needed {
            correction.factors = self.move_reference::<E>(&maximum, scale_log2);
        }
        correction
    }

    /// Moves the reference up to `maximum`, scales the sum, and gives the factors.
    #[inline(always)]
    unsafe fn move_reference<E: Element>(
        &mut self,
        maximum: &[f32; ROWS],
        scale_log2: f32,
    ) -> [f32; ROWS] {
        let mut new = [0.0; ROWS];
        let mut steep = false;
        let mut row = 0;
        while row < ROWS {
            new[row] = math::max(self.reference[row], maximum[row]);
            steep |= new[row] > f32::NEG_INFINITY && !(new[row].abs() * scale_log2 < FUSED_LIMIT);
            row += 1;
        }
        self.steep = self.exact || warp::any(steep);
        let mut factors = [1.0; ROWS];
        let mut row = 0;
        while row < ROWS {
            let (old, new) = (self.reference[row], new[row]);
            let exponent =
                if self.steep { (old - new) * scale_log2 } else { old * scale_log2 - new * scale_log2 };
            // 1 where the reference stays (also at minus infinity), 0 where the first key appears now.
            factors[row] = if new == old { 1.0 } else { math::exp2(exponent) };
            self.reference[row] = new;
            self.sum[row] *= factors[row];
            let slack = const { SLACK * power_of_two(E::UNIT_LOG2) };
            self.limit[row] = if new > f32::NEG_INFINITY { slack } else { -1.0 };
            row += 1;
        }
        factors
    }

    /// `scores = 2^(scale_log2 (scores - reference))` in their unit, and their sums per row. `HOW` is one of
    /// [`FUSED`], [`SUBTRACTED`], [`EXACT`].
    #[inline(always)]
    fn exponentiate<F: Fragment<ROWS, N>, E: Element, const N: usize, const HOW: u32>(
        &self,
        scores: &mut [f32; N],
        scale_log2: f32,
    ) -> [f32; ROWS] {
        let mut sums = [0.0; ROWS];
        let mut row = 0;
        while row < ROWS {
            let seen = self.reference[row] > f32::NEG_INFINITY;
            // A row that has seen no key has scores of minus infinity (or NaN) only: 2^(-inf - 0) = 0.
            let reference = if seen { self.reference[row] } else { 0.0 };
            let unit = const { E::UNIT_LOG2 as f32 };
            let shift = math::fma(-reference, scale_log2, unit);
            let (mut even, mut odd) = (0.0, 0.0);
            let mut column = 0;
            while column < F::COLUMNS {
                let register = F::register(row, column);
                let score = scores[register];
                let p = match HOW {
                    FUSED => math::exp2(math::fma(score, scale_log2, shift)),
                    SUBTRACTED => math::exp2(math::fma(score - reference, scale_log2, unit)),
                    _ => {
                        let p = math::exp2((score - reference) * scale_log2);
                        p * const { power_of_two(E::UNIT_LOG2) }
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

    /// Ends the softmax: normalises `output` and gives lse (natural logarithm) of each row, or `of_range`,
    /// where keys are a range of those that there are, the sum that [`OnlineSoftmax::reference`] belongs to.
    /// lse, rounded, would not say how many keys with large scores there are.
    ///
    /// A row that sees no key (`is_dead`) gives output 0 and lse `-inf`, or a sum of [`DEAD_SUM`]. One whose
    /// scores are all `-inf`, because of an infinite input, gives NaN, or a sum of 0 and values times 0.
    ///
    /// # Safety
    /// All 32 lanes call it together.
    #[inline(always)]
    pub unsafe fn finish<F: Fragment<ROWS, O>, E: Element, const O: usize>(
        &self,
        output: &mut [f32; O],
        scale: &Scale,
        of_range: bool,
        is_dead: impl Fn(usize) -> bool,
    ) -> [f32; ROWS] {
        let (normalisation, lse) = self.close::<F, E, O>(scale, of_range, is_dead);
        normalisation.apply::<F, O>(output);
        lse
    }

    /// The same where the output is still being computed.
    ///
    /// # Safety
    /// All 32 lanes call it together.
    #[inline(always)]
    pub unsafe fn close<F: Fragment<ROWS, O>, E: Element, const O: usize>(
        &self,
        scale: &Scale,
        of_range: bool,
        is_dead: impl Fn(usize) -> bool,
    ) -> (Correction<ROWS>, [f32; ROWS]) {
        let mut lse = [if of_range { DEAD_SUM } else { f32::NEG_INFINITY }; ROWS];
        let most = if of_range { f32::MAX } else { f32::INFINITY };
        let mut normalisation = Correction { factors: [0.0; ROWS], needed: true };
        let mut row = 0;
        while row < ROWS {
            let sum = F::row_sum(self.sum[row]);
            if !is_dead(row) {
                let reference =
                    if self.reference[row] > f32::NEG_INFINITY { self.reference[row] } else { 0.0 };
                normalisation.factors[row] = math::min_or_nan(math::reciprocal(sum), most);
                let sum = sum * const { power_of_two(-E::UNIT_LOG2) };
                lse[row] = if of_range {
                    sum
                } else if self.steep {
                    math::fma(reference, scale.natural, math::log2(sum) * LN_2)
                } else {
                    (reference * scale.log2 + math::log2(sum)) * LN_2
                };
            }
            row += 1;
        }
        (normalisation, lse)
    }
}

/// The sum of a row that sees no key.
pub const DEAD_SUM: f32 = -1.0;

/// What an output must be multiplied by, row by row: because the reference moved, or at the end.
#[derive(Clone, Copy)]
pub struct Correction<const ROWS: usize> {
    factors: [f32; ROWS],
    /// The same in all lanes of the warp.
    needed: bool,
}

impl<const ROWS: usize> Correction<ROWS> {
    /// Corrects an output that was summed before the reference moved.
    #[inline(always)]
    pub fn apply<F: Fragment<ROWS, O>, const O: usize>(&self, output: &mut [f32; O]) {
        if !self.needed {
            return;
        }
        let mut row = 0;
        while row < ROWS {
            let mut column = 0;
            while column < F::COLUMNS {
                output[F::register(row, column)] *= self.factors[row];
                column += 1;
            }
            row += 1;
        }
    }
}

/// Neighbouring registers rounded to the element type.
#[inline(always)]
fn pack<E: TensorCoreElement, const N: usize, const P: usize>(values: &[f32; N]) -> [u32; P] {
    let mut packed = [0; P];
    let mut i = 0;
    while i < P {
        packed[i] = E::pack(values[2 * i], values[2 * i + 1]);
        i += 1;
    }
    packed
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
