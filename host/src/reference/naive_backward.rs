//! Gradients as unfused code in the low precision computes them: the yardstick of the tolerance rule.

use super::accumulate::Accumulator;
use super::scores::{BiasGradient, ScoreRow};
use super::{Precision, Scores, Sizes};
use rayon::prelude::*;

/// Gradients of the unfused computation, rounded to the output precision.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NaiveGradients {
    /// `[B, Sq, Hq, D]`.
    pub dq: Vec<f32>,
    /// `[B, Sk, Hk, D]`.
    pub dk: Vec<f32>,
    /// `[B, Sk, Hk, Dv]`.
    pub dv: Vec<f32>,
    /// In the shape of the bias, f32 sums that are not rounded yet: of packed sequences it is their sum that
    /// is. Empty without a bias.
    pub d_bias: Vec<f32>,
    /// `[Hq]`, f32; empty without sinks.
    pub d_sinks: Vec<f32>,
}

/// Gradients of one key head: dq and the sink's of each query head of its group.
struct HeadGradients {
    dq: Vec<Vec<f32>>,
    dk: Vec<f32>,
    dv: Vec<f32>,
    d_bias: Option<BiasGradient<f32>>,
    d_sinks: Vec<f32>,
}

/// The inputs of a backward pass.
struct Tensors<'t> {
    scores: &'t Scores<'t, f32>,
    q: &'t [f32],
    k: &'t [f32],
    v: &'t [f32],
    o: &'t [f32],
    d_o: &'t [f32],
    d_lse: Option<&'t [f32]>,
}

/// [`naive_backward_with`] nothing but q, k and v.
pub fn naive_backward(
    sizes: &Sizes,
    precisions: [Precision; 2],
    tensors: [&[f32]; 3],
    given: [&[f32]; 2],
    d_lse: Option<&[f32]>,
) -> NaiveGradients {
    naive_backward_with(sizes, &Scores::default(), precisions, tensors, given, d_lse)
}

/// Every tensor that unfused code writes to memory is rounded: scores, probabilities and dp (as they are, and
/// as dropout leaves what was rounded) and ds (before and after the derivative of a softcap,
/// which comes from the rounded capped score) to `input`, gradients to `gradient`; lse, delta and sums (see
/// `Accumulator`) are f32. Probabilities come from lse: in f32 the rounding of lse is what limits them. Delta
/// comes from `o`, `[B, Sq, Hq, Dv]`, that of the forward, rounded to its type: whoever computes gradients is
/// given it. Gradients of the bias are sums of ds in f32.
///
/// Shapes as in [`super::exact_backward()`].
pub fn naive_backward_with(
    sizes: &Sizes,
    scores: &Scores<'_, f32>,
    [input, gradient]: [Precision; 2],
    [q, k, v]: [&[f32]; 3],
    [o, d_o]: [&[f32]; 2],
    d_lse: Option<&[f32]>,
) -> NaiveGradients {
    let tensors = Tensors { scores, q, k, v, o, d_o, d_lse };
    let pairs = sizes.key_pairs();
    let mut done: Vec<HeadGradients> =
        pairs.par_iter().map(|&pair| head_gradients(sizes, input, &tensors, pair)).collect();
    let dq: Vec<_> = done.iter_mut().flat_map(|head| std::mem::take(&mut head.dq)).collect();
    let d_bias = BiasGradient::summed(scores, done.iter_mut().map(|head| head.d_bias.take()));
    let d_sinks = sizes.summed_sinks(scores, done.iter().map(|head| head.d_sinks.as_slice()));
    let (dk, dv): (Vec<_>, Vec<_>) = done.into_iter().map(|head| (head.dk, head.dv)).unzip();
    let rounded = |mut tensor: Vec<f32>| {
        tensor.iter_mut().for_each(|value| *value = gradient.round(*value));
        tensor
    };
    NaiveGradients {
        dq: rounded(Sizes::interleave(&dq, sizes.query_rows, sizes.query_heads, sizes.head_dim)),
        dk: rounded(Sizes::interleave(&dk, sizes.key_rows, sizes.key_heads, sizes.head_dim)),
        dv: rounded(Sizes::interleave(&dv, sizes.key_rows, sizes.key_heads, sizes.value_dim)),
        d_bias,
        d_sinks,
    }
}

fn head_gradients(
    sizes: &Sizes,
    input: Precision,
    tensors: &Tensors<'_>,
    (batch, key_head): (usize, usize),
) -> HeadGradients {
    let &Sizes { query_rows, key_rows, query_heads, key_heads, head_dim, value_dim, scale, .. } = sizes;
    let k_shape = [sizes.batches, key_rows, key_heads, head_dim];
    let v_shape = [sizes.batches, key_rows, key_heads, value_dim];
    let key = |row| Sizes::row(tensors.k, k_shape, batch, row, key_head);
    let value = |row| Sizes::row(tensors.v, v_shape, batch, row, key_head);
    let sums = |columns| (0..key_rows).map(move |_| Accumulator::new(input, columns)).collect();
    let (mut dk, mut dv): (Vec<_>, Vec<_>) = (sums(head_dim), sums(value_dim));
    let (mut dq, mut d_sinks) = (Vec::new(), Vec::new());
    let mut d_bias = BiasGradient::of_group(tensors.scores, sizes, batch, key_head);
    for head in sizes.group(key_head) {
        let (mut head_dq, mut d_sink) = (vec![0.0; query_rows * head_dim], 0.0);
        for (row, dq) in head_dq.chunks_exact_mut(head_dim).enumerate() {
            let q_shape = [sizes.batches, query_rows, query_heads, head_dim];
            let o_shape = [sizes.batches, query_rows, query_heads, value_dim];
            let query = Sizes::row(tensors.q, q_shape, batch, row, head);
            let [o, d_o] =
                [tensors.o, tensors.d_o].map(|rows| Sizes::row(rows, o_shape, batch, row, head));
            let at = (batch * query_heads + head) * query_rows + row;
            let d_lse = tensors.d_lse.map_or(0.0, |d_lse| d_lse[at]);
            let row_scores = ScoreRow::new(sizes, tensors.scores, [batch, head, row]);
            let visible = row_scores.keys();
            let score = |&at: &usize| {
                let (score, capped) = row_scores.score_f32(dot(query, key(at)), at);
                (input.round(score), sizes.slope_f32(input.round(capped)))
            };
            let (scores, slopes): (Vec<_>, Vec<_>) = visible.iter().map(score).unzip();
            let sink = row_scores.sink_f32();
            let Some(lse) = log_sum(&scores, sink) else { continue };
            let probability = |score: f32| input.round((score - lse).exp());
            let p: Vec<f32> = scores.iter().copied().map(probability).collect();
            let kept: Vec<f32> = visible.iter().map(|&row| row_scores.kept(row) as f32).collect();
            let weights: Vec<f32> = p.iter().zip(&kept).map(|(p, kept)| input.round(p * kept)).collect();
            let dp =
                |(&row, &kept): (&usize, &f32)| input.round(input.round(dot(d_o, value(row))) * kept);
            let dp: Vec<f32> = visible.iter().zip(&kept).map(dp).collect();
            let mut dq_sums = Accumulator::new(input, head_dim);
            let delta = dot(d_o, o) - d_lse;
            d_sink -= probability(sink) * delta;
            let rows = p.iter().zip(&weights).zip(&dp).zip(&slopes).zip(&visible);
            for ((((&p, &weight), &dp), slope), &key_row) in rows {
                let ds = input.round(p * (dp - delta));
                if let Some(d_bias) = &mut d_bias {
                    *d_bias.at(head, row, key_row) += ds;
                }
                let ds = input.round(ds * slope);
                dq_sums.add(ds * scale, key(key_row));
                dk[key_row].add(ds * scale, query);
                dv[key_row].add(weight, d_o);
            }
            dq.copy_from_slice(&dq_sums.finish());
        }
        dq.push(head_dq);
        d_sinks.push(d_sink);
    }
    let rows = |sums: Vec<Accumulator>| sums.into_iter().flat_map(Accumulator::finish).collect();
    HeadGradients { dq, dk: rows(dk), dv: rows(dv), d_bias, d_sinks }
}

/// `ln(exp(sink) + sum exp(s))` of a row's visible scores; none where it sees no key.
fn log_sum(scores: &[f32], sink: f32) -> Option<f32> {
    let largest = scores.iter().copied().reduce(f32::max)?.max(sink);
    let sum: f32 = scores.iter().map(|score| (score - largest).exp()).sum();
    Some(largest + (sum + (sink - largest).exp()).ln())
}

fn dot(left: &[f32], right: &[f32]) -> f32 {
    left.iter().zip(right).map(|(left, right)| left * right).sum()
}
