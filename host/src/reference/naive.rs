//! Attention as unfused code in the low precision computes it: the yardstick of the tolerance rule.

use super::accumulate::Accumulator;
use super::scores::ScoreRow;
use super::{Precision, Scores, Sizes};
use rayon::prelude::*;

/// Results of the unfused computation.
#[derive(Clone, Debug, PartialEq)]
pub struct Naive {
    /// `[B, Sq, Hq, Dv]`, rounded to the output precision.
    pub o: Vec<f32>,
}

/// [`naive_with`] nothing but q, k and v.
pub fn naive(
    sizes: &Sizes,
    input: Precision,
    output: Precision,
    q: &[f32],
    k: &[f32],
    v: &[f32],
) -> Naive {
    naive_with(sizes, &Scores::default(), [input, output], [q, k, v])
}

/// Scores, once they have bias and slopes, and probabilities, before and after dropout has dropped or scaled
/// them, are rounded to `input`, sums are taken in f32 as `Accumulator` says, o is rounded to `output`.
///
/// Shapes as in [`super::exact()`].
pub fn naive_with(
    sizes: &Sizes,
    scores: &Scores<'_, f32>,
    [input, output]: [Precision; 2],
    tensors: [&[f32]; 3],
) -> Naive {
    let pairs = sizes.pairs();
    let o: Vec<Vec<f32>> = pairs
        .par_iter()
        .map(|&pair| naive_head(sizes, scores, [input, output], tensors, pair))
        .collect();
    Naive { o: Sizes::interleave(&o, sizes.query_rows, sizes.query_heads, sizes.value_dim) }
}

/// o `[Sq, Dv]` of one (batch, query head).
fn naive_head(
    sizes: &Sizes,
    scores: &Scores<'_, f32>,
    [input, output]: [Precision; 2],
    [q, k, v]: [&[f32]; 3],
    (batch, head): (usize, usize),
) -> Vec<f32> {
    let q_shape = [sizes.batches, sizes.query_rows, sizes.query_heads, sizes.head_dim];
    let v_shape = [sizes.batches, sizes.key_rows, sizes.key_heads, sizes.value_dim];
    let key_head = sizes.key_head(head);
    let keys: Vec<f32> = sizes.transposed_keys(k, batch, key_head);
    let mut o = vec![0.0f32; sizes.query_rows * sizes.value_dim];
    for (row, result) in o.chunks_exact_mut(sizes.value_dim).enumerate() {
        let within = sizes.visible_keys(row);
        let mut products = vec![0.0f32; within.len()];
        for (column, &factor) in Sizes::row(q, q_shape, batch, row, head).iter().enumerate() {
            let keys = &keys[column * sizes.key_rows + within.start..];
            products.iter_mut().zip(keys).for_each(|(product, key)| *product += factor * key);
        }
        let row_scores = ScoreRow::new(sizes, scores, [batch, head, row]);
        let visible = row_scores.keys();
        let score =
            |&key: &usize| input.round(row_scores.score_f32(products[key - within.start], key).0);
        let mut scores: Vec<f32> = visible.iter().map(score).collect();
        let Some(largest) = scores.iter().copied().reduce(f32::max) else { continue };
        let sink = row_scores.sink_f32();
        let largest = largest.max(sink);
        scores.iter_mut().for_each(|score| *score = (*score - largest).exp());
        let sum = scores.iter().sum::<f32>() + (sink - largest).exp();
        let mut sums = Accumulator::new(input, sizes.value_dim);
        for (key_row, weight) in visible.into_iter().zip(&scores) {
            let probability = input.round(weight / sum);
            let probability = input.round(probability * row_scores.kept(key_row) as f32);
            sums.add(probability, Sizes::row(v, v_shape, batch, key_row, key_head));
        }
        result.iter_mut().zip(sums.finish()).for_each(|(o, sum)| *o = output.round(sum));
    }
    o
}
