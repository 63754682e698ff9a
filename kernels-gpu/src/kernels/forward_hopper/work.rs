//! What a consumer warpgroup has of a work tile, and what comes next for it.

use super::tile::{ForwardKernel, QueryStages};
use crate::attention::query_block::QueryBlock;
use crate::attention::softmax::OnlineSoftmax;
use crate::pipeline::stages::Cursor;
use crate::tile::warpgroup::{Queries, Sum};

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
pub(super) struct Accumulators<const A: usize, const S: usize, const P: usize, const O: usize> {
    pub(super) q: Queries<A>,
    /// `s = q k^T` of a key tile.
    pub(super) scores: [f32; S],
    /// `p` of the key tile before, packed.
    pub(super) probabilities: [u32; P],
    /// `o`, the sum of `p v`.
    pub(super) output: Sum<O>,
}

/// A work tile whose last products are on their way: its message has been discarded.
pub(super) struct Last<K: ForwardKernel> {
    pub(super) block: QueryBlock,
    pub(super) query: Cursor<QueryStages<K>>,
    pub(super) softmax: OnlineSoftmax<2>,
}
