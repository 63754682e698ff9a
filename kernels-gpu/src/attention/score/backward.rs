//! Scores of the backward: from products q . k to probabilities, with lse given, over transposed tiles.
//!
//! ```text
//! p  = e^(s - lse)               for dV
//! p' = p ds/d(scale q . k)       what dp - delta is multiplied by for dQ and dK: p, or, of capped scores,
//!                                p (1 - tanh^2)
//! ```
//!
//! Kernels call [`exponents`], hide what the mask hides, and call [`probabilities`]; between the two they may
//! start products and wait for others. Columns are queries, and -lse of the columns stands in shared memory,
//! as [`BackwardScale::statistic`] makes it.

use super::softcap::{self, Softcap};
use crate::abi::BackwardParams;
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
    /// The scale; the cap of capped scores, which are in units of it.
    factor: f32,
    /// How scores are capped.
    softcap: Softcap,
}

impl BackwardScale {
    /// The scale of a launch.
    #[inline(always)]
    pub fn new<E: Element>(p: &BackwardParams) -> Self {
        let natural = if specialize::softcap() { p.softcap } else { p.scale };
        let softcap =
            Softcap { factor: p.softcap_factor, near: p.softcap_near, polynomial: p.softcap_polynomial };
        BackwardScale { factor: in_unit::<E>(natural), softcap }
    }

    /// What the kernels read of a row with this lse: its negative, which saves the instruction that would
    /// negate it, in the unit of exponents. `-inf` for a row that sees no key: its probabilities are 0. A NaN
    /// stays one.
    #[inline(always)]
    pub fn statistic<E: Element>(lse: f32) -> f32 {
        if lse == f32::NEG_INFINITY { lse } else { -in_unit::<E>(lse) }
    }
}

/// A natural exponent in the unit of those of an element type.
#[inline(always)]
fn in_unit<E: Element>(natural: f32) -> f32 {
    if E::NATURAL_EXPONENTS { natural } else { natural * LOG2_E }
}

/// An exponent in the unit of an element type, in powers of two.
#[inline(always)]
fn in_powers_of_two<E: Element>(exponent: f32) -> f32 {
    if E::NATURAL_EXPONENTS { exponent * LOG2_E } else { exponent }
}

/// Turns products q . k into exponents `s - lse`; with a softcap, of whose derivative
/// [`probabilities`] needs them, into scores in units of the cap. What a mask hides may be set to minus
/// infinity in either. `lse` is the shared address of the columns' statistics.
///
/// # Safety
/// The statistics of all columns are written and visible; all 32 lanes call it together.
#[inline(always)]
pub unsafe fn exponents<E: Element, F: Fragment<ROWS, N>, const ROWS: usize, const N: usize>(
    lane: u32,
    products: &mut [f32; N],
    lse: u32,
    scale: &BackwardScale,
) {
    if specialize::softcap() {
        scale.softcap.apply::<E, true, N>(products);
    } else {
        each_element::<F, ROWS, N, 0>(lane, lse, |register, value| {
            products[register] = exponent::<E>(products[register], scale, value);
        });
    }
}

/// Makes probabilities of exponents; with a softcap, which has none yet, nothing. `power` is
/// [`math::exp2_down`], or that at a place of its own.
///
/// No exponent exceeds 0, and p must not overflow: where a score is so large that rounding says otherwise,
/// the exponent is taken to be as far below.
#[inline(always)]
pub fn exponentiate<E: Element, const N: usize>(scores: &mut [f32; N], power: impl Fn(f32) -> f32) {
    if !specialize::softcap() {
        let mut i = 0;
        while i < N {
            scores[i] = power(in_powers_of_two::<E>(scores[i]));
            i += 1;
        }
    }
}

/// The probabilities p of what [`exponents`] and [`exponentiate`] made; leaves in `scores` what dp - delta is
/// multiplied by: p, or p'.
///
/// # Safety
/// As [`exponents`], with the same arguments.
#[inline(always)]
pub unsafe fn probabilities<E: Element, F: Fragment<ROWS, N>, const ROWS: usize, const N: usize>(
    lane: u32,
    scores: &mut [f32; N],
    lse: u32,
    scale: &BackwardScale,
) -> [f32; N] {
    if !specialize::softcap() {
        return *scores;
    }
    let mut p = [0.0; N];
    each_element::<F, ROWS, N, 0>(lane, lse, |register, value| {
        let score = scores[register];
        let exponent = in_powers_of_two::<E>(exponent::<E>(score, scale, value));
        p[register] = math::exp2_down(exponent);
        scores[register] = p[register] * softcap::derivative(score);
    });
    p
}

/// Whether [`probabilities`] reads lse, too: until then its memory is in use.
#[inline(always)]
pub fn reads_lse_again() -> bool {
    specialize::softcap()
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
