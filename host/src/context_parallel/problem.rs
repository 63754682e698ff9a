//! What is asked of a group of ranks, and every error in it that a rank can see.

use super::layout::ContextLayout;
use super::schedule::Lengths;
use super::sharing::Chosen;
use crate::error::{Error, Result};
use crate::problem::{
    Bias, ForwardProblem, Layout, Mask, MaskShape, Sequences, ValidForward, sequence_offsets,
};

/// A forward pass whose sequences are shared out among ranks, as one of them sees it.
///
/// `local` describes the rank's own tensors: q `[B, rows of q here, Hq, D]` and so on, in any strides but for
/// k and v, which must be dense. Its mask is that of the whole. Which rows are here says
/// [`ContextLayout::positions`]. lse is dense `[B, Hq, rows of q here]`.
///
/// Packed sequences have a batch size of 1; their rows stand as [`ContextLayout::positions`] says: the first
/// chunk of every sequence, then the second one of every sequence. lse is `[Hq, rows of q here]`.
///
/// Softcap and sinks are as usual. A bias is `[B|1, Hq|Hk|1, rows of q here|1, Sk of the whole|1]`, with the
/// keys in the order of the whole, and so is a boolean mask, which
/// [`ContextPass::prepare_mask`](super::ContextPass::prepare_mask) takes. Gradients of bias and sinks are
/// those of this rank's queries: whoever trains adds them over the ranks, as those of other parameters.
/// Packed sequences have neither bias nor mask, and ALiBi and dropout are refused
/// ([`Error::NotInContext`]), as is the gradient of a bias that all queries or all keys share.
#[derive(Clone, Debug, PartialEq)]
pub struct ContextProblem {
    /// The rank's own tensors, and the mask of the whole.
    pub local: ForwardProblem,
    /// Where each sequence begins in the whole q, and all end.
    pub query_offsets: Vec<usize>,
    /// The same of k and v.
    pub key_offsets: Vec<usize>,
}

impl ContextProblem {
    /// One sequence a batch, of `query_rows` queries and `key_rows` keys in all.
    pub fn new(local: ForwardProblem, query_rows: usize, key_rows: usize) -> Self {
        let (query_offsets, key_offsets) = (vec![0, query_rows], vec![0, key_rows]);
        ContextProblem { local, query_offsets, key_offsets }
    }

    /// Packed sequences, which begin in the whole where `cu_seqlens_q` and `cu_seqlens_k` say. `local` has a
    /// batch size of 1; its `sequences` do not matter.
    ///
    /// # Errors
    /// [`Error::OffsetCount`] and [`Error::Offset`], unless both ascend from 0 and are as many.
    pub fn packed(local: ForwardProblem, cu_seqlens_q: &[i32], cu_seqlens_k: &[i32]) -> Result<Self> {
        let (query_offsets, key_offsets) = sequence_offsets(cu_seqlens_q, cu_seqlens_k)?;
        Ok(ContextProblem { local, query_offsets, key_offsets })
    }

    /// Everything that a rank can check by itself.
    pub(super) fn validate(
        &self,
        layout: ContextLayout,
        ranks: usize,
        rank: usize,
    ) -> Result<ValidContext> {
        let asked = ForwardProblem { sequences: Sequences::Strided, ..self.local };
        let is_packed = self.query_offsets.len() != 2;
        let scores = ContextScores { bias: asked.bias, mask: asked.attn_mask };
        let local = ForwardProblem { bias: None, attn_mask: None, ..asked };
        let valid = local.validate()?;
        let refused = [
            ("bias", is_packed && scores.bias.is_some()),
            ("mask", is_packed && scores.mask.is_some()),
            ("alibi_slopes", local.alibi.is_some()),
            ("dropout_rate", local.dropout.is_some()),
        ];
        if let Some((argument, _)) = refused.into_iter().find(|(_, is_there)| *is_there) {
            return Err(Error::NotInContext { argument });
        }
        let sequences = self.query_offsets.len().saturating_sub(1);
        if self.key_offsets.len() != self.query_offsets.len() || self.query_offsets.is_empty() {
            let (expected, got) = (sequences + 1, self.key_offsets.len());
            return Err(Error::OffsetCount { argument: "cu_seqlens_k", expected, got });
        }
        if is_packed && local.q.shape[0] != 1 {
            let (argument, dimension, like) = ("q", "batch", "packed sequences");
            return Err(Error::WrongSize {
                argument,
                dimension,
                expected: 1,
                like,
                got: local.q.shape[0],
            });
        }
        for (argument, offsets, tensor) in
            [("q", &self.query_offsets, &local.q), ("k", &self.key_offsets, &local.k)]
        {
            let expected: usize =
                offsets.windows(2).map(|pair| layout.rows_of_rank(ranks, rank, pair[1] - pair[0])).sum();
            let (dimension, like, got) = ("rows", "the layout on this rank", tensor.shape[1]);
            if got != expected {
                return Err(Error::WrongSize { argument, dimension, expected, like, got });
            }
        }
        for (argument, tensor) in [("k", &local.k), ("v", &local.v)] {
            let expected = Layout::bshd(tensor.shape).strides;
            let differs =
                (0..4).any(|index| tensor.shape[index] > 1 && tensor.strides[index] != expected[index]);
            if differs && tensor.elements() > 0 {
                return Err(Error::NotDense { argument, expected, got: tensor.strides });
            }
        }
        let (query_offsets, key_offsets) = (self.query_offsets.clone(), self.key_offsets.clone());
        let valid = ValidContext {
            asked: self.local,
            local: valid,
            scores,
            query_offsets,
            key_offsets,
            is_packed,
            layout,
            ranks,
        };
        if !scores.are_none() {
            valid.over_all_keys(&asked).validate()?;
        }
        Ok(valid)
    }
}

/// Tensors over the queries of a rank and all keys.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ContextScores {
    pub bias: Option<Bias>,
    pub mask: Option<MaskShape>,
}

impl ContextScores {
    pub fn are_none(&self) -> bool {
        self.bias.is_none() && self.mask.is_none()
    }
}

/// A problem that a rank has checked.
#[derive(Clone, Debug)]
pub(super) struct ValidContext {
    /// The problem as it was asked.
    pub asked: ForwardProblem,
    /// That of the rank's own tensors, as if they were all there is, without what is over all keys.
    pub local: ValidForward,
    pub scores: ContextScores,
    query_offsets: Vec<usize>,
    key_offsets: Vec<usize>,
    pub is_packed: bool,
    layout: ContextLayout,
    ranks: usize,
}

impl ValidContext {
    pub fn lengths(&self) -> Lengths<'_> {
        Lengths { queries: &self.query_offsets, keys: &self.key_offsets }
    }

    /// The problem of this rank's queries and all keys, dense.
    pub fn over_all_keys(&self, asked: &ForwardProblem) -> ForwardProblem {
        let all = |tensor: &Layout| {
            let [batches, _, heads, columns] = tensor.shape;
            Layout::bshd([batches, self.all_key_rows(), heads, columns])
        };
        ForwardProblem { k: all(&asked.k), v: all(&asked.v), ..*asked }
    }

    pub fn mask(&self) -> Mask {
        self.local.problem.mask
    }

    /// Rows of k that a rank has.
    pub fn key_rows_of(&self, rank: usize) -> usize {
        let rows = |pair: &[usize]| self.layout.rows_of_rank(self.ranks, rank, pair[1] - pair[0]);
        self.key_offsets.windows(2).map(rows).sum()
    }

    /// Rows of k that there are.
    pub fn all_key_rows(&self) -> usize {
        self.key_offsets.last().map_or(0, |&rows| rows)
    }

    /// Keys of the longest sequence.
    pub fn most_keys(&self) -> u32 {
        let keys = self.key_offsets.windows(2).map(|pair| pair[1] - pair[0]).max();
        keys.map_or(0, |keys| u32::try_from(keys).unwrap_or(u32::MAX))
    }

    /// What all ranks must have the same of.
    pub fn description(&self, chosen: &Chosen) -> Vec<(&'static str, String)> {
        let ForwardProblem { q, k, v, dtype, mask, has_sinks, .. } = &self.local.problem;
        let scale = self.local.scale.to_bits();
        let softcap = self.local.softcap.map_or(0, |softcap| softcap.cap.to_bits());
        vec![
            ("layout", self.layout.name().to_owned()),
            ("exchange", chosen.to_string()),
            ("dtype", dtype.name().to_owned()),
            ("batch", q.shape[0].to_string()),
            ("heads of q", q.shape[2].to_string()),
            ("heads of k", k.shape[2].to_string()),
            ("head_dim of k", k.shape[3].to_string()),
            ("head_dim of v", v.shape[3].to_string()),
            ("mask", format!("{mask:?}")),
            ("bias", self.scores.bias.is_some().to_string()),
            ("boolean mask", self.scores.mask.is_some().to_string()),
            ("sinks", has_sinks.to_string()),
            ("scale", f32::from_bits(scale).to_string()),
            ("softcap", f32::from_bits(softcap).to_string()),
            ("cu_seqlens_q", shortened(&self.query_offsets)),
            ("cu_seqlens_k", shortened(&self.key_offsets)),
        ]
    }
}

/// The numbers, or of many of them a few and a number for all.
fn shortened(offsets: &[usize]) -> String {
    const FEW: usize = 16;
    if offsets.len() <= FEW {
        return format!("{offsets:?}");
    }
    // FNV-1a.
    let hash = offsets
        .iter()
        .flat_map(|offset| (*offset as u64).to_le_bytes())
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
    format!("{:?}... {} in all, {hash:016x}", &offsets[..FEW], offsets.len())
}
