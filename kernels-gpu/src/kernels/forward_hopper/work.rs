//! What a consumer warpgroup has of a work tile, and what comes next for it.

use super::tile::{ForwardKernel, QueryStages};
use crate::arch::specialize;
use crate::attention::query_block::QueryBlock;
use crate::attention::score::Scale;
use crate::attention::softmax::OnlineSoftmax;
use crate::geometry::visible::TileRange;
use crate::pipeline::stages::Cursor;
use crate::tile::element::TensorCoreElement;
use crate::tile::fragment::MmaFragment;
use crate::tile::warpgroup::Queries;

/// What comes next for a warpgroup.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Whatever the next message says.
    Unknown,
    /// A work tile.
    Work,
    /// A work tile of which it has no row.
    Idle,
    /// Nothing.
    End,
}

/// How a warpgroup goes through its key tiles: last to first or, with ALiBi, from
/// [another one](crate::attention::query_block::QueryBlock::first_key_tile) to the first, and then from the
/// last one to the one behind that.
pub(super) struct Turn {
    begin: i32,
    end: i32,
    /// The one behind that which came first; none below `end` if that is the last one.
    behind: i32,
}

impl Turn {
    /// Through `range`, `first` first.
    #[inline(always)]
    pub(super) fn new(range: &TileRange, first: i32) -> Self {
        Turn { begin: range.begin, end: range.end, behind: first + 1 }
    }

    /// Whether `tile` comes last, if `first` is the first one of all.
    #[inline(always)]
    pub(super) fn is_last(&self, tile: i32, first: i32) -> bool {
        if specialize::alibi() && self.behind < self.end { tile == self.behind } else { tile <= first }
    }

    /// The one that comes after `tile`.
    #[inline(always)]
    pub(super) fn next(&self, tile: i32) -> i32 {
        if specialize::alibi() && tile == self.begin { self.end - 1 } else { tile - 1 }
    }
}

/// What a warpgroup has of a work tile in registers.
pub(super) struct Accumulators<C, T, const A: usize, const P: usize> {
    pub(super) q: Queries<A>,
    /// `s = q k^T` of a key tile.
    pub(super) scores: C,
    /// `p` of the key tile before, packed.
    pub(super) probabilities: [u32; P],
    /// `o`, the sum of `p v`.
    pub(super) output: T,
}

/// A work tile whose last products are on their way: its message has been discarded.
pub(super) struct Last<K: ForwardKernel> {
    pub(super) block: QueryBlock,
    pub(super) query: Cursor<QueryStages<K>>,
    pub(super) softmax: OnlineSoftmax<2>,
}

/// Probabilities of the first key tile, of which `estimates` says whether the row max is estimated.
///
/// # Safety
/// All 32 lanes call it together.
#[inline(always)]
pub(super) unsafe fn first_probabilities<E: TensorCoreElement, const S: usize, const P: usize>(
    estimates: bool,
    softmax: &mut OnlineSoftmax<2>,
    scores: &[f32; S],
    scale: &Scale,
) -> [u32; P] {
    let (probabilities, _) = if estimates {
        softmax.first_probabilities::<MmaFragment, E, S, P>(scores, scale)
    } else {
        softmax.probabilities_of_new_max::<MmaFragment, E, S, P>(scores, scale)
    };
    probabilities
}
