//! What happens to a score: the one seam between the product q k^T and the softmax, forward and backward.
//!
//! ```text
//! s = scale (q . k)              products with q and k as they are in memory
//! s = cap tanh(s / cap)          softcap, where that switch is on
//! s = s + bias - slope distance  likewise (features)
//! s = -inf                       where a mask hides the key
//! ```
//!
//! in this order (docs/semantics.md, section 1), over any [`Fragment`]: rows are queries and columns keys in
//! the forward, and the other way round in the backward. Kernels call [`apply`], or its parts, between their
//! products and their exponentials and say where a tile stands ([`ScoreTile`]); they know of no feature.
//!
//! The scale is not multiplied into scores: it is a part of the exponent (see [`Scale`]). With a softcap,
//! scores are in units of the cap instead, and the cap takes the place of the scale. With what is added to
//! them they are natural.

pub mod backward;
mod bias;
pub mod bias_tile;
pub mod dropout;
pub mod features;
pub mod mask;
pub mod mask_map;
pub mod references;
pub mod scale;
pub mod softcap;

pub use backward::BackwardScale;
pub use scale::{Scale, split_sign};

use crate::abi::ForwardParams;
use crate::arch::specialize;
use crate::geometry::row_heads::RowHeads;
use crate::geometry::visible::Visible;
use crate::tile::element::Element;
use crate::tile::fragment::Fragment;
use bias_tile::BiasSource;

/// Where a tile of scores stands in its sequence, and what is visible there.
#[derive(Clone, Copy)]
pub struct ScoreTile {
    /// First row of the tile: a query (or a head of one, as `row_heads` says), or a key if it is transposed.
    pub first_row: i32,
    /// First column: a key, or a query if it is transposed.
    pub first_column: i32,
    /// Rows from this one on are not the tile's own.
    pub end_row: i32,
    /// Which columns a row sees; [`Visible::transposed`] if the tile is.
    pub visible: Visible,
    /// Which query and which head a row is.
    pub row_heads: RowHeads,
}

/// Which scores of the problem those of a tile are.
#[derive(Clone, Copy)]
pub struct ScorePlace {
    /// Batch, or which packed sequence.
    pub sequence: u32,
    /// Query head, the first one of several.
    pub head: u32,
    /// Key head.
    pub key_head: u32,
    /// Which key of its sequence key 0 is, where keys are a range of those that there are.
    pub first_key: i32,
}

impl ScoreTile {
    /// Sets the scores of pairs that are not visible to minus infinity.
    #[inline(always)]
    pub fn apply_mask<F: Fragment<ROWS, N>, const ROWS: usize, const N: usize>(
        &self,
        lane: u32,
        scores: &mut [f32; N],
    ) {
        mask::apply_mask::<F, ROWS, N>(lane, scores, self);
    }
}

/// Drops probabilities of a tile of the forward, packed by pairs of registers, where that switch is on; `at`
/// is asked then where the tile stands, and in which lane this is.
///
/// # Safety
/// All 32 lanes call it together.
#[inline(always)]
pub unsafe fn drop_packed<F: Fragment<ROWS, N>, const ROWS: usize, const N: usize, const P: usize>(
    packed: &mut [u32; P],
    p: &ForwardParams,
    at: impl FnOnce() -> (u32, ScoreTile, ScorePlace),
) {
    if specialize::dropout() {
        let (lane, tile, place) = at();
        dropout::each::<F, ROWS, N, false>(lane, &p.score, &tile, &place, |register, is_kept| {
            let other = if register % 2 == 0 { 0xffff_0000 } else { 0xffff };
            let mut word = register / 2;
            // Of parts of numbers both.
            while word < P {
                packed[word] &= if is_kept { u32::MAX } else { other };
                word += N / 2;
            }
        });
    }
}

/// The same of probabilities in f32.
///
/// # Safety
/// As [`drop_packed`].
#[inline(always)]
pub unsafe fn drop<F: Fragment<ROWS, N>, const ROWS: usize, const N: usize>(
    probabilities: &mut [f32; N],
    p: &ForwardParams,
    at: impl FnOnce() -> (u32, ScoreTile, ScorePlace),
) {
    if specialize::dropout() {
        let (lane, tile, place) = at();
        dropout::each::<F, ROWS, N, false>(lane, &p.score, &tile, &place, |register, is_kept| {
            probabilities[register] = if is_kept { probabilities[register] } else { 0.0 };
        });
    }
}

/// Makes scores of the products q k^T of a tile of the forward. `is_masked`: some pair of it is hidden by
/// positions; only then, and with features, is `tile` asked where it stands, and in which lane this is. With
/// features alone `place` is asked for the rest. `shows_all`: the boolean mask, if there is one, hides
/// nothing. The bias, if there is one, comes from `bias`.
///
/// # Safety
/// All 32 lanes call it together; the tensors are as [`ForwardParams`] says.
#[inline(always)]
pub unsafe fn apply<E: Element, F: Fragment<ROWS, N>, const ROWS: usize, const N: usize>(
    scores: &mut [f32; N],
    scale: &Scale,
    p: &ForwardParams,
    bias: &impl BiasSource<E>,
    is_masked: bool,
    shows_all: bool,
    tile: impl Fn() -> (u32, ScoreTile),
    place: impl FnOnce() -> ScorePlace,
) {
    if specialize::softcap() {
        scale.softcap.apply::<E, false, N>(scores, false);
    }
    if features::are_on::<E>() {
        let (lane, tile) = tile();
        let factor = scale::natural_factor(p);
        let place = place();
        features::apply::<E, F, ROWS, N>(lane, scores, &p.score, bias, &tile, &place, factor, shows_all);
    }
    if is_masked {
        let (lane, tile) = tile();
        tile.apply_mask::<F, ROWS, N>(lane, scores);
    }
}

/// The last part of [`apply`], whose arguments these are: hides scores, by the boolean mask and by positions.
///
/// # Safety
/// As [`apply`].
#[inline(always)]
pub unsafe fn hide<F: Fragment<ROWS, N>, const ROWS: usize, const N: usize>(
    scores: &mut [f32; N],
    p: &ForwardParams,
    is_masked: bool,
    shows_all: bool,
    tile: impl Fn() -> (u32, ScoreTile),
    place: impl FnOnce() -> ScorePlace,
) {
    if specialize::attn_mask() && !shows_all {
        let (lane, tile) = tile();
        features::hide::<F, ROWS, N>(lane, scores, &p.score, &tile, &place());
    }
    if is_masked {
        let (lane, tile) = tile();
        tile.apply_mask::<F, ROWS, N>(lane, scores);
    }
}
