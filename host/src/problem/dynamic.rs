//! Dynamic masks: which keys a bias chooses.

use super::{Bias, ForwardProblem, MaskShape, ScoreLayout, Sequences};
use crate::error::{Error, Result};
use kernels_gpu::abi::Dtype;

/// How a boolean mask is made of a bias (Flash-DMAttn): the keys that matter are kept, and attention is paid
/// to these alone. `docs/semantics.md`, section 4.
///
/// A row is what the bias, or a padding mask beside it, has one entry for: a query, or all queries. Its keys
/// are those that causal mask and window, the padding mask and the length of the sequence show to one of its
/// queries; of a row that is a single query, those are the ones that it sees. A bias of minus infinity hides
/// a key, too.
///
/// ```
/// use finite_attention::problem::DynamicMask;
/// let mask = DynamicMask::top_k(1024).with_block_size(64);
/// assert_eq!(mask.to_string(), "topk:1024, in blocks of 64");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DynamicMask {
    /// Which keys are kept.
    pub rule: DynamicRule,
    /// Keys that are kept or dropped together: a block is kept if more than half of it is, the last one by
    /// its own length. 1 is each key for itself; at least 1.
    pub block_size: usize,
    /// How attention goes about it; what costs less if none is given.
    pub way: Option<DynamicWay>,
}

/// How attention goes about a dynamic mask. Results differ by rounding alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DynamicWay {
    /// As under any boolean mask: tiles without a kept key are skipped.
    Mask,
    /// Kept keys are gathered, and attention runs over these alone. It needs a bias that has one row of keys
    /// for all queries, and for a key head's query heads, and whatever knows positions of keys to be
    /// elsewhere: no dropout, no ALiBi, no packed sequences, and a rule that says how many keys are kept.
    Gather,
}

impl DynamicWay {
    /// The name used in plans and errors: `mask`, `gather`.
    pub const fn name(self) -> &'static str {
        match self {
            DynamicWay::Mask => "mask",
            DynamicWay::Gather => "gather",
        }
    }
}

/// Which keys of a row a dynamic mask keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DynamicRule {
    /// The `window` largest of the bias, the first of equal ones (0 and -0 are equal, and so are all NaN,
    /// which are the largest); all, where a sequence has no more keys. The lowest finite number of the
    /// bias's type is not kept where keys are chosen.
    TopK {
        /// How many; at least 1.
        window: usize,
    },
    /// Those above 0, and NaN, so that it shows.
    Relu,
}

impl DynamicMask {
    /// The `window` largest.
    pub const fn top_k(window: usize) -> Self {
        DynamicMask { rule: DynamicRule::TopK { window }, block_size: 1, way: None }
    }

    /// Those above 0.
    pub const fn relu() -> Self {
        DynamicMask { rule: DynamicRule::Relu, block_size: 1, way: None }
    }

    /// Keeps and drops so many keys together.
    #[must_use]
    pub const fn with_block_size(self, block_size: usize) -> Self {
        DynamicMask { block_size, ..self }
    }

    /// Says how attention goes about it.
    #[must_use]
    pub const fn with_way(self, way: DynamicWay) -> Self {
        DynamicMask { way: Some(way), ..self }
    }

    /// The most keys of a row of `keys` that can be kept, if that is known without the bias's numbers.
    ///
    /// Of a block of b keys that is kept, more than b / 2 are among the `window` largest: twice as many less
    /// one key are no fewer than b.
    pub fn most_kept(&self, keys: usize) -> Option<usize> {
        let DynamicRule::TopK { window } = self.rule else { return None };
        let most =
            if self.block_size == 1 { window } else { window.saturating_mul(2).saturating_sub(1) };
        Some(most.min(keys))
    }

    /// The numbers are such that something can be kept.
    ///
    /// # Errors
    /// [`Error::DynamicMask`].
    pub fn check(&self) -> Result<()> {
        let refused = |expected| Err(Error::DynamicMask(expected, "0".to_owned()));
        match *self {
            DynamicMask { rule: DynamicRule::TopK { window: 0 }, .. } => {
                refused("a window of at least 1")
            }
            DynamicMask { block_size: 0, .. } => refused("a block_size of at least 1"),
            _ => Ok(()),
        }
    }
}

impl std::fmt::Display for DynamicMask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.rule {
            DynamicRule::TopK { window } => write!(f, "topk:{window}")?,
            DynamicRule::Relu => f.write_str("relu")?,
        }
        match self.block_size {
            1 => Ok(()),
            keys => write!(f, ", in blocks of {keys}"),
        }
    }
}

/// Of a dynamic mask without a bias.
pub(crate) fn no_bias() -> Error {
    Error::DynamicMask("a bias, of which it is made", "none".to_owned())
}

/// The lowest finite number of a type.
pub(crate) fn lowest(dtype: Dtype) -> f32 {
    match dtype {
        Dtype::Bf16 => half::bf16::MIN.to_f32(),
        Dtype::F16 => half::f16::MIN.to_f32(),
        Dtype::F32 => f32::MIN,
    }
}

impl ForwardProblem {
    /// The shape of the boolean mask that a dynamic one becomes, of this problem's bias and its
    /// [`ForwardProblem::attn_mask`], which is a padding mask then: a dimension is 1 if both have it as 1;
    /// that of packed sequences has all of them, as their lengths differ.
    ///
    /// # Errors
    /// What [`ForwardProblem::validate`] refuses, [`Error::DynamicMask`], and [`Error::MaskWords`].
    pub fn dynamic_mask_shape(&self, mask: &DynamicMask) -> Result<MaskShape> {
        mask.check()?;
        let Some(Bias { layout, .. }) = &self.bias else { return Err(no_bias()) };
        self.validate()?;
        let [count, _, _, keys] = self.score_shape();
        let padding = self.attn_mask.unwrap_or(MaskShape { batches: 1, heads: 1, queries: 1, keys });
        let [batches, heads, queries, _] = layout.shape;
        let both = |a: usize, b: usize| match (a, b) {
            (1, other) | (other, 1) => other,
            (one, other) => one.max(other),
        };
        let batches = match self.sequences {
            Sequences::Strided => both(batches, padding.batches),
            Sequences::Packed { .. } => count,
        };
        let (heads, queries) = (both(heads, padding.heads), both(queries, padding.queries));
        MaskShape::of(&ScoreLayout::dense([batches, heads, queries, keys]), keys)
    }
}
