//! What a consumer warpgroup has of a work tile, and what comes next for it.

use super::tile::{ForwardKernel, QueryStages};
use crate::attention::query_block::QueryBlock;
use crate::attention::score::Scale;
use crate::attention::softmax::OnlineSoftmax;
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
