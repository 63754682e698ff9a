//! Scores of the backward: from products q . k to probabilities, with lse given, over transposed tiles.
//!
//! ```text
//! p  = e^(s - lse)               for dV
//! p' = p ds/d(scale q . k)       what dp - delta is multiplied by for dQ and dK: p, or, of capped scores,
//!                                p (1 - tanh^2)
//! ```
//!
//! Kernels call [`StepScores::exponents`] and [`StepScores::probabilities`]; between these they may start
//! products and wait for others. Columns are queries, and -lse of the columns stands in shared memory, as
//! [`BackwardScale::statistic`] makes it. Of [steep rows](super::references) products are made relative to
//! their references before, in tiles that [have one](References::find) alone.

use super::bias_tile::BiasSource;
use super::references::{LARGEST_FACTOR, References, STEEP_LSE};
use super::softcap::{self, GradientSoftcap};
use super::{ScorePlace, ScoreTile, dropout, features};
use crate::abi::{BackwardParams, ScoreParams};
use crate::arch::{math, shared, specialize};
use crate::tile::element::Element;
use crate::tile::fragment::Fragment;
use core::f32::consts::LOG2_E;

/// What scores are multiplied by, as the backward uses it: with the sign of the scale, and in the unit of the
/// exponents of its element type.
///
/// Exponents of 16-bit elements are in powers of two: one fused multiply-add. Those of f32 are natural
/// ([`Element::NATURAL_EXPONENTS`]), two instructions more per score: the scaled score is then rounded as lse
/// was, so that where a query sees one key they are the same, and p is 1 exactly, however large they are.
#[derive(Clone, Copy)]
pub struct BackwardScale {
    /// The scale, or the cap of capped scores, which are in units of it; in the unit of exponents, but for
    /// natural scores.
    pub factor: f32,
    /// How scores are capped.
    pub softcap: GradientSoftcap,
}

impl BackwardScale {
    /// The scale of a launch.
    #[inline(always)]
    pub fn new<E: Element>(p: &BackwardParams) -> Self {
        let (natural, softcap) = (Self::natural(p), GradientSoftcap::of_backward(p));
        if features::are_natural::<E>() {
            return BackwardScale { factor: natural, softcap };
        }
        BackwardScale { factor: in_unit::<E>(natural), softcap }
    }

    /// The factor of natural exponents.
    #[inline(always)]
    pub(super) fn natural(p: &BackwardParams) -> f32 {
        if specialize::softcap() { p.softcap } else { p.scale }
    }

    /// Whether a row with this lse is steep. Not where products relative to a reference would be too small
    /// or too large for f32 for the sake of their `factor`, the scale or the cap.
    #[inline(always)]
    pub fn is_steep(lse: f32, factor: f32) -> bool {
        let is_usual = factor.abs() >= f32::MIN_POSITIVE && factor.abs() <= LARGEST_FACTOR;
        is_usual && lse.abs() >= STEEP_LSE && lse.abs() < f32::INFINITY
    }

    /// Whether lse is too coarse: the row's reference is then its largest score, and a sum beside it says
    /// what lse does not. Capped scores of the forward and of the backward are not the same in 16 bits
    /// ([`softcap`](super::softcap)): 2^-18 of lse, which is 128 times as much as its rounding.
    #[inline(always)]
    pub fn is_coarse<E: Element>(lse: f32, factor: f32, is_capped: bool) -> bool {
        const { assert!(E::COARSE_LSE >= STEEP_LSE) };
        let from = if is_capped { math::max(E::COARSE_LSE / 128.0, STEEP_LSE) } else { E::COARSE_LSE };
        Self::is_steep(lse, factor) && lse.abs() >= from
    }

    /// What the kernels read of a row with this lse that is not steep: its negative, which saves the
    /// instruction that would negate it, in the unit of exponents. `-inf` for a row that sees no key: its
    /// probabilities are 0. A NaN stays one.
    #[inline(always)]
    pub fn statistic<E: Element>(p: &BackwardParams, lse: f32) -> f32 {
        let natural = p.lse_is_natural != 0;
        if lse == f32::NEG_INFINITY { lse } else { -if natural { lse } else { in_unit::<E>(lse) } }
    }
}

/// A natural exponent in the unit of those of an element type.
#[inline(always)]
pub(super) fn in_unit<E: Element>(natural: f32) -> f32 {
    if E::NATURAL_EXPONENTS { natural } else { natural * LOG2_E }
}

/// An exponent in the unit of an element type, in powers of two.
#[inline(always)]
fn in_powers_of_two<E: Element>(exponent: f32) -> f32 {
    if E::NATURAL_EXPONENTS { exponent * LOG2_E } else { exponent }
}

/// What makes probabilities of the products q . k of a step.
///
/// `tile` says in which lane this is and where the tile stands, and `place` which scores of the problem its
/// are; they are asked only where something is hidden or added.
pub struct StepScores<'a, B, R, T, P>
where
    R: Fn() -> u64,
    T: Fn() -> (u32, ScoreTile),
    P: Fn() -> ScorePlace,
{
    /// This lane.
    pub lane: u32,
    /// Shared address of the statistics of the columns, [`BackwardScale::statistic`].
    pub lse: u32,
    /// What products are multiplied by.
    pub scale: &'a BackwardScale,
    /// What products of steep rows are relative to.
    pub references: &'a References<R>,
    /// What else is done to scores.
    pub score: &'a ScoreParams,
    /// Where the bias comes from.
    pub bias: B,
    /// Whether the boolean mask, if there is one, hides nothing.
    pub shows_all: bool,
    /// Where the tile stands.
    pub tile: T,
    /// And among all scores.
    pub place: P,
}

impl<B, R, T, P> StepScores<'_, B, R, T, P>
where
    R: Fn() -> u64,
    T: Fn() -> (u32, ScoreTile),
    P: Fn() -> ScorePlace,
{
    /// Turns products q . k, relative to their references, into exponents `s - lse`; with a softcap, of whose
    /// derivative [`StepScores::probabilities`] needs them, into scores in units of the cap. What a mask
    /// hides may be set to minus infinity in either. Products to which something is added stay as they are
    /// until that.
    ///
    /// # Safety
    /// The statistics of all columns are written and visible; all 32 lanes call it together.
    #[inline(always)]
    pub unsafe fn exponents<E: Element, F: Fragment<ROWS, N>, const ROWS: usize, const N: usize>(
        &self,
        products: &mut [f32; N],
    ) {
        if specialize::softcap() {
            self.scale.softcap.apply::<E, true, N>(products, self.references.are_needed);
            if self.references.are_needed && !features::are_natural::<E>() {
                self.references.subtract_from::<E, F, ROWS, N>(products);
            }
            return;
        }
        if features::are_natural::<E>() {
            return;
        }
        each_element::<F, ROWS, N, 0>(self.lane, self.lse, |register, value| {
            products[register] = exponent::<E>(products[register], self.scale, value);
        });
    }

    /// [`References::subtract_if_needed`] and [`StepScores::exponents`], the latter once for either case: of
    /// some shapes of tiles the assembler spills otherwise.
    ///
    /// # Safety
    /// As these.
    #[inline(always)]
    pub unsafe fn exponents_of_either<
        E: Element,
        F: Fragment<ROWS, N>,
        const ROWS: usize,
        const N: usize,
    >(
        &self,
        products: &mut [f32; N],
    ) {
        if self.references.are_needed::<E>() {
            self.references.subtract_from::<E, F, ROWS, N>(products);
            self.exponents::<E, F, ROWS, N>(products);
        } else {
            self.exponents::<E, F, ROWS, N>(products);
        }
    }

    /// The probabilities p of what [`StepScores::exponents`] made, where positions hide something if
    /// `is_masked`; leaves in `scores` what dp - delta is multiplied by: p, or p'.
    ///
    /// # Safety
    /// As [`StepScores::exponents`]; the tensors are as [`ScoreParams`] says.
    #[inline(always)]
    pub unsafe fn probabilities<E: Element, F: Fragment<ROWS, N>, const ROWS: usize, const N: usize>(
        &self,
        scores: &mut [f32; N],
        is_masked: bool,
    ) -> [f32; N]
    where
        B: BiasSource<E>,
    {
        self.add_features::<E, F, ROWS, N>(scores);
        if is_masked {
            self.apply_mask::<F, ROWS, N>(scores);
        }
        exponentiate::<E, N>(scores, math::exp2_down);
        self.finish::<E, F, ROWS, N>(scores)
    }

    /// The same, with exponentials at a place of their own in either case: the assembler would keep what it
    /// moves in front of both.
    ///
    /// # Safety
    /// As [`StepScores::probabilities`].
    #[inline(always)]
    pub unsafe fn probabilities_of_either<
        E: Element,
        F: Fragment<ROWS, N>,
        const ROWS: usize,
        const N: usize,
    >(
        &self,
        scores: &mut [f32; N],
        is_masked: bool,
    ) -> [f32; N]
    where
        B: BiasSource<E>,
    {
        self.add_features::<E, F, ROWS, N>(scores);
        if is_masked {
            self.apply_mask::<F, ROWS, N>(scores);
            exponentiate::<E, N>(scores, math::exp2_down_here::<1>);
        } else {
            exponentiate::<E, N>(scores, math::exp2_down_here::<0>);
        }
        self.finish::<E, F, ROWS, N>(scores)
    }

    /// What is left to do to what [`exponentiate`] made. Probabilities that are dropped are 0, and what dp -
    /// delta is multiplied by has a sign there, for [`dropout::apply_to_dp`].
    #[inline(always)]
    unsafe fn finish<E: Element, F: Fragment<ROWS, N>, const ROWS: usize, const N: usize>(
        &self,
        scores: &mut [f32; N],
    ) -> [f32; N]
    where
        B: BiasSource<E>,
    {
        let mut p = self.with_derivatives::<E, F, ROWS, N>(scores);
        if specialize::dropout() {
            let ((_, tile), place) = ((self.tile)(), (self.place)());
            dropout::each::<F, ROWS, N, true>(
                self.lane,
                self.score,
                &tile,
                &place,
                |register, is_kept| {
                    p[register] = if is_kept { p[register] } else { 0.0 };
                    scores[register] = if is_kept { scores[register] } else { -scores[register] };
                },
            );
        }
        p
    }

    /// Whether lse is read behind [`StepScores::exponents`], too: until [`StepScores::probabilities`] its
    /// memory is in use then.
    #[inline(always)]
    pub fn reads_lse_again<E: Element>(&self) -> bool {
        specialize::softcap() || features::are_natural::<E>()
    }

    /// Makes exponents of products to which bias and ALiBi are added (with a softcap,
    /// [`StepScores::with_derivatives`] does that), and hides what the boolean mask hides; without features,
    /// nothing.
    #[inline(always)]
    unsafe fn add_features<E: Element, F: Fragment<ROWS, N>, const ROWS: usize, const N: usize>(
        &self,
        scores: &mut [f32; N],
    ) where
        B: BiasSource<E>,
    {
        if features::are_on::<E>() {
            let ((_, tile), place) = ((self.tile)(), (self.place)());
            if features::are_natural::<E>() && !specialize::softcap() {
                self.natural_exponents::<E, F, ROWS, N>(scores, &tile, &place);
            }
            if specialize::attn_mask() && !self.shows_all {
                features::hide_transposed::<F, ROWS, N>(self.lane, scores, self.score, &tile, &place);
            }
        }
    }

    /// Exponents of products, or of scores in units of the cap, to which bias and ALiBi are added.
    #[inline(always)]
    unsafe fn natural_exponents<E: Element, F: Fragment<ROWS, N>, const ROWS: usize, const N: usize>(
        &self,
        scores: &mut [f32; N],
        tile: &ScoreTile,
        place: &ScorePlace,
    ) where
        B: BiasSource<E>,
    {
        let factor = self.scale.factor;
        let bias = &self.bias;
        features::add::<E, F, ROWS, N, true>(self.lane, scores, self.score, bias, tile, place, factor);
        each_element::<F, ROWS, N, 0>(self.lane, self.lse, |register, value| scores[register] += value);
        if self.references.are_needed {
            self.references.subtract_natural::<F, ROWS, N>(scores);
        }
    }

    /// Hides what positions hide.
    #[inline(always)]
    fn apply_mask<F: Fragment<ROWS, N>, const ROWS: usize, const N: usize>(
        &self,
        scores: &mut [f32; N],
    ) {
        let (lane, tile) = (self.tile)();
        tile.apply_mask::<F, ROWS, N>(lane, scores);
    }

    /// The probabilities of what [`exponentiate`] made; leaves in `scores` what dp - delta is multiplied by.
    #[inline(always)]
    unsafe fn with_derivatives<E: Element, F: Fragment<ROWS, N>, const ROWS: usize, const N: usize>(
        &self,
        scores: &mut [f32; N],
    ) -> [f32; N]
    where
        B: BiasSource<E>,
    {
        if !specialize::softcap() {
            return *scores;
        }
        // Scores that are relative to references lack lse already; for the derivative it is added again, in
        // units of the cap. Where a row sees no key that is `0 x inf`: NaN has no derivative, and p is 0.
        let is_relative = self.references.are_needed;
        let without_lse = if is_relative { -math::reciprocal(self.scale.factor) } else { 0.0 };
        let mut p = [0.0; N];
        if features::are_natural::<E>() {
            p = *scores;
            self.natural_exponents::<E, F, ROWS, N>(&mut p, &(self.tile)().1, &(self.place)());
            let mut i = 0;
            while i < N {
                p[i] = math::exp2_down(p[i] * LOG2_E);
                scores[i] = p[i] * softcap::derivative(scores[i]);
                i += 1;
            }
            return p;
        }
        each_element::<F, ROWS, N, 0>(self.lane, self.lse, |register, value| {
            let score = scores[register];
            let lse = if is_relative { 0.0 } else { value };
            p[register] = math::exp2_down(in_powers_of_two::<E>(exponent::<E>(score, self.scale, lse)));
            scores[register] = p[register] * softcap::derivative(math::fma(value, without_lse, score));
        });
        p
    }
}

/// Makes probabilities of exponents; with a softcap, which has none yet, nothing. `power` is
/// [`math::exp2_down`], or that at a place of its own.
///
/// No exponent exceeds 0, and p must not overflow: where a score is so large that rounding says otherwise,
/// the exponent is taken to be as far below.
#[inline(always)]
fn exponentiate<E: Element, const N: usize>(scores: &mut [f32; N], power: impl Fn(f32) -> f32) {
    if specialize::softcap() {
        return;
    }
    if features::are_natural::<E>() {
        let mut i = 0;
        while i < N {
            scores[i] = power(scores[i] * LOG2_E);
            i += 1;
        }
        return;
    }
    let mut i = 0;
    while i < N {
        scores[i] = power(in_powers_of_two::<E>(scores[i]));
        i += 1;
    }
}

/// `score factor + value`.
#[inline(always)]
fn exponent<E: Element>(score: f32, scale: &BackwardScale, value: f32) -> f32 {
    if E::NATURAL_EXPONENTS {
        score * scale.factor + value
    } else {
        math::fma(score, scale.factor, value)
    }
}

/// Calls `apply(register, value of its column)` for the registers of all columns from `FROM` on; the values
/// stand at shared address `values`.
///
/// # Safety
/// The values of all columns are written and visible.
#[inline(always)]
pub(in crate::attention) unsafe fn each_element<
    F: Fragment<ROWS, N>,
    const ROWS: usize,
    const N: usize,
    const FROM: usize,
>(
    lane: u32,
    values: u32,
    mut apply: impl FnMut(usize, f32),
) {
    let first = values + 4 * F::first_column(lane);
    let mut column = FROM;
    while column < F::COLUMNS {
        let address = first + 4 * F::column_offset(column);
        let pair = if F::PAIRED {
            shared::load_f32x2(address)
        } else {
            [f32::from_bits(shared::load_u32(address)), 0.0]
        };
        let mut row = 0;
        while row < ROWS {
            apply(F::register(row, column), pair[0]);
            if F::PAIRED {
                apply(F::register(row, column + 1), pair[1]);
            }
            row += 1;
        }
        column += if F::PAIRED { 2 } else { 1 };
    }
}
