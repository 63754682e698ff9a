//! Gradients as unfused code in the low precision computes them: the yardstick of the tolerance rule.

use super::accumulate::Accumulator;
use super::{Precision, Sizes};
use rayon::prelude::*;

/// Gradients of the unfused computation, rounded to the output precision.
#[derive(Clone, Debug, PartialEq)]
pub struct NaiveGradients {
    /// `[B, Sq, Hq, D]`.
    pub dq: Vec<f32>,
    /// `[B, Sk, Hk, D]`.
    pub dk: Vec<f32>,
    /// `[B, Sk, Hk, Dv]`.
    pub dv: Vec<f32>,
}

/// Gradients of one key head: dq of each query head of its group.
struct HeadGradients {
    dq: Vec<Vec<f32>>,
    dk: Vec<f32>,
    dv: Vec<f32>,
}

/// The inputs of a backward pass.
struct Tensors<'t> {
    q: &'t [f32],
    k: &'t [f32],
    v: &'t [f32],
    d_o: &'t [f32],
    d_lse: Option<&'t [f32]>,
}

/// Every tensor that unfused code writes to memory is rounded: scores, probabilities, dp and ds (before and
/// after the derivative of a softcap, which comes from the rounded score) to `input`, o, which delta comes
/// from, to `output`, gradients to `gradient`; lse, delta and sums (see `Accumulator`) are f32.
/// Probabilities come from lse: in f32 the rounding of lse is what limits them.
///
/// Shapes as in [`super::exact_backward()`].
pub fn naive_backward(
    sizes: &Sizes,
    [input, output, gradient]: [Precision; 3],
    [q, k, v]: [&[f32]; 3],
    d_o: &[f32],
    d_lse: Option<&[f32]>,
) -> NaiveGradients {
    let tensors = Tensors { q, k, v, d_o, d_lse };
    let pairs = sizes.key_pairs();
    let mut done: Vec<HeadGradients> =
        pairs.par_iter().map(|&pair| head_gradients(sizes, [input, output], &tensors, pair)).collect();
    let dq: Vec<_> = done.iter_mut().flat_map(|head| std::mem::take(&mut head.dq)).collect();
    let (dk, dv): (Vec<_>, Vec<_>) = done.into_iter().map(|head| (head.dk, head.dv)).unzip();
    let rounded = |mut tensor: Vec<f32>| {
        tensor.iter_mut().for_each(|value| *value = gradient.round(*value));
        tensor
    };
    NaiveGradients {
        dq: rounded(Sizes::interleave(&dq, sizes.query_rows, sizes.query_heads, sizes.head_dim)),
        dk: rounded(Sizes::interleave(&dk, sizes.key_rows, sizes.key_heads, sizes.head_dim)),
        dv: rounded(Sizes::interleave(&dv, sizes.key_rows, sizes.key_heads, sizes.value_dim)),
    }
}

fn head_gradients(
    sizes: &Sizes,
    [input, output]: [Precision; 2],
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
    let mut dq = Vec::new();
    for head in sizes.group(key_head) {
        let mut head_dq = vec![0.0; query_rows * head_dim];
        for (row, dq) in head_dq.chunks_exact_mut(head_dim).enumerate() {
            let q_shape = [sizes.batches, query_rows, query_heads, head_dim];
            let o_shape = [sizes.batches, query_rows, query_heads, value_dim];
            let query = Sizes::row(tensors.q, q_shape, batch, row, head);
            let d_o = Sizes::row(tensors.d_o, o_shape, batch, row, head);
            let at = (batch * query_heads + head) * query_rows + row;
            let d_lse = tensors.d_lse.map_or(0.0, |d_lse| d_lse[at]);
            let visible = sizes.visible_keys(row);
            let score = |row| input.round(sizes.score_f32(dot(query, key(row))));
            let scores: Vec<f32> = visible.clone().map(score).collect();
            let slopes: Vec<f32> = scores.iter().map(|&score| sizes.slope_f32(score)).collect();
            let p = softmax(input, scores);
            let dp: Vec<f32> = visible.clone().map(|row| input.round(dot(d_o, value(row)))).collect();
            let mut o = Accumulator::new(input, value_dim);
            p.iter().zip(visible.clone()).for_each(|(&p, row)| o.add(p, value(row)));
            let o: Vec<f32> = o.finish().into_iter().map(|o| output.round(o)).collect();
            let mut dq_sums = Accumulator::new(input, head_dim);
            let delta = dot(d_o, &o) - d_lse;
            for (((&p, &dp), slope), key_row) in p.iter().zip(&dp).zip(&slopes).zip(visible) {
                let ds = input.round(input.round(p * (dp - delta)) * slope);
                dq_sums.add(ds * scale, key(key_row));
                dk[key_row].add(ds * scale, query);
                dv[key_row].add(p, d_o);
            }
            dq.copy_from_slice(&dq_sums.finish());
        }
        dq.push(head_dq);
    }
    let rows = |sums: Vec<Accumulator>| sums.into_iter().flat_map(Accumulator::finish).collect();
    HeadGradients { dq, dk: rows(dk), dv: rows(dv) }
}

/// Probabilities of a row's visible scores, rounded.
fn softmax(input: Precision, scores: Vec<f32>) -> Vec<f32> {
    let Some(largest) = scores.iter().copied().reduce(f32::max) else { return scores };
    let sum: f32 = scores.iter().map(|score| (score - largest).exp()).sum();
    let lse = largest + sum.ln();
    scores.into_iter().map(|score| input.round((score - lse).exp())).collect()
}

fn dot(left: &[f32], right: &[f32]) -> f32 {
    left.iter().zip(right).map(|(left, right)| left * right).sum()
}
