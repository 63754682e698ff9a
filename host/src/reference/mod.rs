//! What the result should be: plain loops, in f64 and in the low precision, and the rule that compares
//! with them.
//!
//! Shares no code with the kernels: an oracle must not repeat the mistakes of what it judges. All
//! tensors here are dense, `[batch, row, head, column]`, with values that the low precision holds
//! exactly.

mod exact;
mod naive;
mod precision;
#[cfg(test)]
mod tests;
mod tolerance;

pub use exact::{Exact, exact};
pub use naive::{Naive, naive};
pub use precision::Precision;
pub use tolerance::{LSE_TOLERANCE, Verdict, judge_lse, judge_output, output_allowance};

use crate::problem::{CausalAlignment, Mask};

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
    /// Which keys a query sees.
    pub mask: Mask,
}

impl Sizes {
    /// How many keys, from key 0 on, query `row` sees: SEMANTICS section 1.
    pub fn visible(&self, row: usize) -> usize {
        let last = match self.mask {
            Mask::Full => return self.key_rows,
            Mask::Causal(CausalAlignment::BottomRight) => {
                row as i64 + self.key_rows as i64 - self.query_rows as i64
            }
            Mask::Causal(CausalAlignment::TopLeft) => row as i64,
        };
        (last + 1).clamp(0, self.key_rows as i64) as usize
    }

    /// The (batch, query head) pairs, in the order of lse.
    fn pairs(&self) -> Vec<(usize, usize)> {
        let heads = self.query_heads;
        (0..self.batches).flat_map(|batch| (0..heads).map(move |head| (batch, head))).collect()
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

    /// Puts per-pair rows `[pair][row, column]` into `[batch, row, head, column]` order.
    fn interleave<T: Copy + Default>(&self, pairs: &[Vec<T>], columns: usize) -> Vec<T> {
        let mut tensor = vec![T::default(); pairs.len() * self.query_rows * columns];
        for (pair, values) in pairs.iter().enumerate() {
            let (batch, head) = (pair / self.query_heads, pair % self.query_heads);
            for (row, source) in values.chunks_exact(columns).enumerate() {
                let start = ((batch * self.query_rows + row) * self.query_heads + head) * columns;
                tensor[start..start + columns].copy_from_slice(source);
            }
        }
        tensor
    }
}
