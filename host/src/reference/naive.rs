//! Attention as unfused code in the low precision computes it: the yardstick of the tolerance rule.

use super::accumulate::Accumulator;
use super::{Precision, Sizes};
use rayon::prelude::*;

/// Results of the unfused computation.
#[derive(Clone, Debug, PartialEq)]
pub struct Naive {
    /// `[B, Sq, Hq, Dv]`, rounded to the output precision.
    pub o: Vec<f32>,
}

/// Scores and probabilities are rounded to `input`, sums are taken in f32 as `Accumulator` says, o is
/// rounded to `output`.
///
/// Shapes as in [`super::exact()`].
pub fn naive(
    sizes: &Sizes,
    input: Precision,
    output: Precision,
    q: &[f32],
    k: &[f32],
    v: &[f32],
) -> Naive {
    let pairs = sizes.pairs();
    let o: Vec<Vec<f32>> =
        pairs.par_iter().map(|&pair| naive_head(sizes, input, output, [q, k, v], pair)).collect();
    Naive { o: Sizes::interleave(&o, sizes.query_rows, sizes.query_heads, sizes.value_dim) }
}

/// o `[Sq, Dv]` of one (batch, query head).
fn naive_head(
    sizes: &Sizes,
    input: Precision,
    output: Precision,
    [q, k, v]: [&[f32]; 3],
    (batch, head): (usize, usize),
) -> Vec<f32> {
    let q_shape = [sizes.batches, sizes.query_rows, sizes.query_heads, sizes.head_dim];
    let v_shape = [sizes.batches, sizes.key_rows, sizes.key_heads, sizes.value_dim];
    let key_head = sizes.key_head(head);
    let keys: Vec<f32> = sizes.transposed_keys(k, batch, key_head);
    let mut o = vec![0.0f32; sizes.query_rows * sizes.value_dim];
    for (row, result) in o.chunks_exact_mut(sizes.value_dim).enumerate() {
        let visible = sizes.visible_keys(row);
        let mut scores = vec![0.0f32; visible.len()];
        for (column, &factor) in Sizes::row(q, q_shape, batch, row, head).iter().enumerate() {
            let keys = &keys[column * sizes.key_rows + visible.start..];
            scores.iter_mut().zip(keys).for_each(|(score, key)| *score += factor * key);
        }
        scores.iter_mut().for_each(|score| *score = input.round(sizes.score_f32(*score)));
        let Some(largest) = scores.iter().copied().reduce(f32::max) else { continue };
        scores.iter_mut().for_each(|score| *score = (*score - largest).exp());
        let sum: f32 = scores.iter().sum();
        let mut sums = Accumulator::new(input, sizes.value_dim);
        for (key_row, weight) in visible.zip(&scores) {
            let probability = input.round(weight / sum);
            sums.add(probability, Sizes::row(v, v_shape, batch, key_row, key_head));
        }
        result.iter_mut().zip(sums.finish()).for_each(|(o, sum)| *o = output.round(sum));
    }
    o
}
