//! What the result should be: plain loops, in f64 and in the low precision, and the rule that compares
//! with them.
//!
//! Shares no code with the kernels: an oracle must not repeat the mistakes of what it judges. All
//! tensors here are dense, `[batch, row, head, column]`, with values that the low precision holds
//! exactly.

mod accumulate;
mod dropout;
#[cfg(test)]
mod dropout_tests;
mod dynamic;
mod exact;
mod exact_backward;
mod msda;
mod naive;
mod naive_backward;
mod precision;
#[cfg(test)]
mod score_tests;
mod scores;
#[cfg(test)]
mod tests;
mod tolerance;

pub use dropout::DropoutNumbers;
pub use dynamic::dynamic_mask;
pub use exact::{Exact, exact, exact_with};
pub use exact_backward::{ExactGradients, exact_backward, exact_backward_with, exact_d_sinks_of};
pub use msda::{
    ExactMsdaGradients, MsdaSizes, MsdaTensors, NaiveMsdaGradients, exact_msda, exact_msda_backward,
    naive_msda, naive_msda_backward,
};
pub use naive::{Naive, naive, naive_with};
pub use naive_backward::{NaiveGradients, naive_backward, naive_backward_with};
pub use precision::Precision;
pub use scores::{OverScores, Scores};
pub use tolerance::{
    LSE_TOLERANCE, Verdict, judge_gradient, judge_lse, judge_output, output_allowance, rounding_error,
    unfused_error,
};

use crate::problem::{CausalAlignment, Mask};
use std::ops::Range;

/// The problem as the reference sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sizes {
    /// B.
    pub batches: usize,
    /// Sq.
    pub query_rows: usize,
    /// Sk.
    pub key_rows: usize,
    /// Hq.
    pub query_heads: usize,
    /// Hk; divides Hq.
    pub key_heads: usize,
    /// D.
    pub head_dim: usize,
    /// Dv.
    pub value_dim: usize,
    /// Softmax scale, as the f32 that the kernels get.
    pub scale: f32,
    /// Cap of scores, as the f32 that the kernels get; none where they are not capped.
    pub softcap: Option<f32>,
    /// Which keys a query sees.
    pub mask: Mask,
}

impl Sizes {
    /// The score of a product `q . k`: `docs/semantics.md`, section 1, steps 1 and 2.
    fn score(&self, product: f64) -> f64 {
        let score = f64::from(self.scale) * product;
        self.softcap.map(f64::from).map_or(score, |cap| cap * (score / cap).tanh())
    }

    /// By how much a score changes with `scale q . k`: 1, or `1 - tanh^2` where it is capped.
    fn slope(&self, score: f64) -> f64 {
        self.softcap.map(f64::from).map_or(1.0, |cap| 1.0 - (score / cap).powi(2))
    }

    /// The score in f32, as unfused code computes it from a product.
    fn score_f32(&self, product: f32) -> f32 {
        let score = product * self.scale;
        self.softcap.map_or(score, |cap| cap * (score / cap).tanh())
    }

    /// As [`Sizes::slope`], of a score as it was rounded.
    fn slope_f32(&self, score: f32) -> f32 {
        self.softcap.map_or(1.0, |cap| 1.0 - (score / cap).powi(2))
    }

    /// How many keys query `row` sees, as far as positions say.
    pub fn visible(&self, row: usize) -> usize {
        self.visible_keys(row).len()
    }

    /// Which keys query `row` sees by causal mask and window: `docs/semantics.md`, section 1.
    pub fn visible_keys(&self, row: usize) -> Range<usize> {
        let diagonal = match self.mask.alignment() {
            CausalAlignment::BottomRight => row as i64 + self.key_rows as i64 - self.query_rows as i64,
            CausalAlignment::TopLeft => row as i64,
        };
        let (left, right) = self.mask.sides();
        let first = left.map_or(0, |keys| diagonal - i64::from(keys));
        let end = right.map_or(i64::MAX, |keys| diagonal + i64::from(keys) + 1);
        let within = |key: i64| key.clamp(0, self.key_rows as i64) as usize;
        within(first)..within(end).max(within(first))
    }

    /// The (batch, query head) pairs, in the order of lse.
    fn pairs(&self) -> Vec<(usize, usize)> {
        let heads = self.query_heads;
        (0..self.batches).flat_map(|batch| (0..heads).map(move |head| (batch, head))).collect()
    }

    /// The (batch, key head) pairs.
    fn key_pairs(&self) -> Vec<(usize, usize)> {
        let heads = self.key_heads;
        (0..self.batches).flat_map(|batch| (0..heads).map(move |head| (batch, head))).collect()
    }

    /// The query heads that use a key head.
    fn group(&self, key_head: usize) -> Range<usize> {
        let size = self.query_heads / self.key_heads;
        key_head * size..(key_head + 1) * size
    }

    /// The key head of a query head.
    fn key_head(&self, query_head: usize) -> usize {
        query_head / (self.query_heads / self.key_heads)
    }

    /// Row `row` of head `head` of `tensor`, `[batch, rows, heads, columns]`.
    fn row<T>(tensor: &[T], shape: [usize; 4], batch: usize, row: usize, head: usize) -> &[T] {
        let [_, rows, heads, columns] = shape;
        let start = ((batch * rows + row) * heads + head) * columns;
        &tensor[start..start + columns]
    }

    /// The keys of one head, transposed to `[column, row]`, so that scores of all keys grow side by
    /// side.
    fn transposed_keys<T: Copy + Into<U>, U>(&self, k: &[T], batch: usize, head: usize) -> Vec<U> {
        let shape = [self.batches, self.key_rows, self.key_heads, self.head_dim];
        let keys: Vec<&[T]> =
            (0..self.key_rows).map(|row| Sizes::row(k, shape, batch, row, head)).collect();
        (0..self.head_dim).flat_map(|column| keys.iter().map(move |key| key[column].into())).collect()
    }

    /// Puts per-pair rows `[pair][row, column]` of `heads` heads into `[batch, row, head, column]` order.
    fn interleave<T: Copy + Default>(
        pairs: &[Vec<T>],
        rows: usize,
        heads: usize,
        columns: usize,
    ) -> Vec<T> {
        let mut tensor = vec![T::default(); pairs.len() * rows * columns];
        for (pair, values) in pairs.iter().enumerate() {
            let (batch, head) = (pair / heads, pair % heads);
            for (row, source) in values.chunks_exact(columns).enumerate() {
                let start = ((batch * rows + row) * heads + head) * columns;
                tensor[start..start + columns].copy_from_slice(source);
            }
        }
        tensor
    }
}
