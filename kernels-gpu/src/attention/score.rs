//! What happens to a score: the one seam between the product q k^T and the softmax, forward and backward.
//!
//! ```text
//! s = scale (q . k)              products with q and k as they are in memory
//! s = cap tanh(s / cap)          softcap, where that switch is on
//! s = -inf                       where the mask hides the key
//! ```
//!
//! in this order (docs/semantics.md, section 1), over any [`Fragment`]: rows are queries and columns keys in
//! the forward, and the other way round in the backward. Kernels call [`apply`], or its parts, between their
//! products and their exponentials and say where a tile stands ([`ScoreTile`]); they know of no feature.
//!
//! The scale is not multiplied into scores: it is a part of the exponent (see [`Scale`]). With a softcap,
//! scores are in units of the cap instead, and the cap takes the place of the scale.

pub mod backward;
pub mod mask;
pub mod scale;
pub mod softcap;

pub use backward::BackwardScale;
pub use scale::{Scale, split_sign};

use crate::arch::specialize;
use crate::geometry::row_heads::RowHeads;
use crate::geometry::visible::Visible;
use crate::tile::element::Element;
use crate::tile::fragment::Fragment;

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

/// Makes scores of the products q k^T of a tile of the forward. `is_masked`: some pair of it is hidden; only
/// then is `tile` asked where it stands, and in which lane this is.
///
/// # Safety
/// All 32 lanes call it together.
#[inline(always)]
pub unsafe fn apply<E: Element, F: Fragment<ROWS, N>, const ROWS: usize, const N: usize>(
    scores: &mut [f32; N],
    scale: &Scale,
    is_masked: bool,
    tile: impl FnOnce() -> (u32, ScoreTile),
) {
    if specialize::softcap() {
        scale.softcap.apply::<E, false, N>(scores);
    }
    if is_masked {
        let (lane, tile) = tile();
        tile.apply_mask::<F, ROWS, N>(lane, scores);
    }
}
