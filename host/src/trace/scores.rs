//! What scores have beside q and k, on the host, and the part of it that a part of a problem needs.

use crate::attention::{BiasSlice, Element, MaskSlice, ScoreSlices};
use crate::error::Result;
use crate::problem::{AlibiSlopes, Bias, ForwardProblem, MaskShape, ScoreLayout};
use kernels_gpu::abi::Dtype;
use std::ops::Range;

/// Elements of what scores have beside q and k.
#[derive(Clone, Debug)]
pub struct ScoreElements<T> {
    /// The bias: the span of its layout.
    pub bias: Option<(ScoreLayout, BiasElements<T>)>,
    /// The boolean mask: the span of its layout.
    pub mask: Option<(ScoreLayout, Vec<bool>)>,
    /// Slopes of ALiBi, `[Hq]` or `[B, Hq]`; empty without.
    pub alibi_slopes: Vec<f32>,
    /// Sinks, `[Hq]`; empty without.
    pub sinks: Vec<f32>,
}

/// Elements of a bias.
#[derive(Clone, Debug)]
pub enum BiasElements<T> {
    /// Of the type of q.
    LikeQ(Vec<T>),
    /// f32.
    F32(Vec<f32>),
}

/// A part of scores: a batch or packed sequence, and ranges within it.
pub(super) struct Corner {
    pub batch: usize,
    pub query_heads: Range<usize>,
    pub queries: Range<usize>,
    pub keys: Range<usize>,
}

impl<T: Element> ScoreElements<T> {
    /// What the library takes.
    pub fn slices(&self) -> ScoreSlices<'_, T> {
        let bias = self.bias.as_ref().map(|(_, elements)| match elements {
            BiasElements::LikeQ(elements) => BiasSlice::LikeQ(elements.as_slice()),
            BiasElements::F32(elements) => BiasSlice::F32(elements),
        });
        let mask = self.mask.as_ref();
        let mask = mask.map(|(layout, elements)| MaskSlice { layout: *layout, elements });
        let (alibi_slopes, sinks) = (self.alibi_slopes.as_slice(), self.sinks.as_slice());
        ScoreSlices { bias, mask, alibi_slopes, sinks, dynamic_mask: None }
    }

    /// Whether mask or bias hide a key from a query, `[batch, head, query, key]`.
    pub(super) fn hides(&self, [batch, head, query, key]: [usize; 4], query_heads: usize) -> bool {
        let at =
            |layout: &ScoreLayout| place(layout, [batch, layout.head(head, query_heads), query, key]);
        let by_mask = self.mask.as_ref().is_some_and(|(layout, shown)| !shown[at(layout)]);
        let by_bias = self.bias.as_ref().is_some_and(|(layout, elements)| {
            let value = match elements {
                BiasElements::LikeQ(elements) => elements[at(layout)].to_f32(),
                BiasElements::F32(elements) => elements[at(layout)],
            };
            value == f32::NEG_INFINITY
        });
        by_mask || by_bias
    }

    /// What a part has of them: heads of its own, and one batch.
    pub(super) fn corner(&self, corner: &Corner, query_heads: usize) -> Self {
        let bias = self.bias.as_ref().map(|(layout, elements)| {
            let (shape, places) = corner.places(layout, query_heads);
            let elements = match elements {
                BiasElements::LikeQ(elements) => {
                    BiasElements::LikeQ(places.into_iter().map(|place| elements[place]).collect())
                }
                BiasElements::F32(elements) => {
                    BiasElements::F32(places.into_iter().map(|place| elements[place]).collect())
                }
            };
            (ScoreLayout::dense(shape), elements)
        });
        let mask = self.mask.as_ref().map(|(layout, shown)| {
            let (shape, places) = corner.places(layout, query_heads);
            (ScoreLayout::dense(shape), places.into_iter().map(|place| shown[place]).collect())
        });
        // `[Hq]` is the same for each batch.
        let rows = (self.alibi_slopes.len() / query_heads.max(1)).max(1);
        let first = corner.batch % rows * query_heads;
        let of_heads = |numbers: &[f32], first: usize| match numbers.is_empty() {
            true => vec![],
            false => numbers[first..][corner.query_heads.clone()].to_vec(),
        };
        let (alibi_slopes, sinks) = (of_heads(&self.alibi_slopes, first), of_heads(&self.sinks, 0));
        ScoreElements { bias, mask, alibi_slopes, sinks }
    }

    /// A problem of one batch with the layouts of these.
    pub(super) fn add_to(&self, problem: ForwardProblem) -> Result<ForwardProblem> {
        let bias = self.bias.as_ref().map(|(layout, elements)| Bias {
            layout: *layout,
            dtype: match elements {
                BiasElements::LikeQ(_) => T::DTYPE,
                BiasElements::F32(_) => Dtype::F32,
            },
        });
        let keys = problem.k.shape[1];
        let attn_mask = self.mask.as_ref().map(|(layout, _)| MaskShape::of(layout, keys)).transpose()?;
        let alibi = (!self.alibi_slopes.is_empty()).then_some(AlibiSlopes::PerHead);
        let has_sinks = !self.sinks.is_empty();
        Ok(ForwardProblem { bias, attn_mask, alibi, has_sinks, ..problem })
    }
}

impl Corner {
    /// The shape of this part of a dense tensor, with an entry for each head of the part if it has any for
    /// each, and where its elements stand.
    fn places(&self, layout: &ScoreLayout, query_heads: usize) -> ([usize; 4], Vec<usize>) {
        let one = |dimension: usize, range: &Range<usize>| {
            if layout.shape[dimension] == 1 { 0..1 } else { range.clone() }
        };
        let (heads, queries, keys) =
            (one(1, &self.query_heads), one(2, &self.queries), one(3, &self.keys));
        let shape = [1, heads.len(), queries.len(), keys.len()];
        let mut places = Vec::with_capacity(shape.iter().product());
        for head in heads {
            let head = layout.head(head, query_heads);
            for query in queries.clone() {
                let at = |key| place(layout, [self.batch, head, query, key]);
                places.extend(keys.clone().map(at));
            }
        }
        (shape, places)
    }
}

/// Where an element stands in the span of a tensor.
fn place(layout: &ScoreLayout, index: [usize; 4]) -> usize {
    (layout.origin() as isize + layout.offset(index)) as usize
}
