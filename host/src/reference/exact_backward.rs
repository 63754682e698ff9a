//! The gradients of attention in f64, by the text of `docs/semantics.md`, section 1.

use super::exact::Denominator;
use super::scores::{BiasGradient, ScoreRow};
use super::{Scores, Sizes};
use rayon::prelude::*;

/// Gradients in f64.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExactGradients {
    /// `[B, Sq, Hq, D]`.
    pub dq: Vec<f64>,
    /// `[B, Sk, Hk, D]`.
    pub dk: Vec<f64>,
    /// `[B, Sk, Hk, Dv]`.
    pub dv: Vec<f64>,
    /// In the shape of the bias; empty without one.
    pub d_bias: Vec<f64>,
    /// `[Hq]`; empty without sinks.
    pub d_sinks: Vec<f64>,
}

/// Gradients of one key head: dq and the sink's of each query head of its group.
struct HeadGradients {
    dq: Vec<Vec<f64>>,
    dk: Vec<f64>,
    dv: Vec<f64>,
    d_bias: Option<BiasGradient<f64>>,
    d_sinks: Vec<f64>,
}

/// The inputs of a backward pass.
struct Tensors<'t, T> {
    scores: &'t Scores<'t, T>,
    q: &'t [T],
    k: &'t [T],
    v: &'t [T],
    d_o: &'t [T],
    d_lse: Option<&'t [T]>,
}

/// [`exact_backward_with`] nothing but q, k and v.
pub fn exact_backward<T: Copy + Into<f64> + Sync>(
    sizes: &Sizes,
    q: &[T],
    k: &[T],
    v: &[T],
    d_o: &[T],
    d_lse: Option<&[T]>,
) -> ExactGradients {
    exact_backward_with(sizes, &Scores::default(), [q, k, v], d_o, d_lse)
}

/// `delta = dO . o - dLSE`, `ds = p (kept dO . v - delta)`, where kept is 1 or what dropout makes of it; ds
/// summed over the dimensions that are broadcast is the gradient of the bias, and then times `1 - tanh^2`
/// where there is a softcap, `dv = (kept p)^T dO`, `dq = scale ds k`, `dk = scale ds^T q` and `dsink = -sum
/// exp(sink - lse) delta`, with p, lse and o from the inputs. A row that sees no key, and a key that no row
/// sees, get 0 and give none to bias and sinks.
///
/// `q [B, Sq, Hq, D]`, `k [B, Sk, Hk, D]`, `v [B, Sk, Hk, Dv]`, `d_o [B, Sq, Hq, Dv]` and
/// `d_lse [B, Hq, Sq]` are dense.
pub fn exact_backward_with<T: Copy + Into<f64> + Sync>(
    sizes: &Sizes,
    scores: &Scores<'_, T>,
    [q, k, v]: [&[T]; 3],
    d_o: &[T],
    d_lse: Option<&[T]>,
) -> ExactGradients {
    let tensors = Tensors { scores, q, k, v, d_o, d_lse };
    let pairs = sizes.key_pairs();
    let mut done: Vec<HeadGradients> =
        pairs.par_iter().map(|&(batch, head)| head_gradients(sizes, &tensors, batch, head)).collect();
    let dq: Vec<_> = done.iter_mut().flat_map(|head| std::mem::take(&mut head.dq)).collect();
    let d_bias = BiasGradient::summed(scores, done.iter_mut().map(|head| head.d_bias.take()));
    let d_sinks = sizes.summed_sinks(scores, done.iter().map(|head| head.d_sinks.as_slice()));
    let (dk, dv): (Vec<_>, Vec<_>) = done.into_iter().map(|head| (head.dk, head.dv)).unzip();
    ExactGradients {
        dq: Sizes::interleave(&dq, sizes.query_rows, sizes.query_heads, sizes.head_dim),
        dk: Sizes::interleave(&dk, sizes.key_rows, sizes.key_heads, sizes.head_dim),
        dv: Sizes::interleave(&dv, sizes.key_rows, sizes.key_heads, sizes.value_dim),
        d_bias,
        d_sinks,
    }
}

/// Gradients of the sinks, `[Hq]`, of the o that a backward was given: `dsink = -sum exp(sink - lse)
/// (dO . o - dLSE)`, with the exact `lse [B, Hq, Sq]`; `o` and `d_o` as in [`exact_backward_with`].
/// What o has lost to its rounding is no error of the backward. A row that sees no key (lse is `-inf`)
/// gives nothing.
pub fn exact_d_sinks_of(
    sizes: &Sizes,
    sinks: &[f32],
    lse: &[f64],
    [o, d_o]: [&[f32]; 2],
    d_lse: Option<&[f32]>,
) -> Vec<f64> {
    let shape = [sizes.batches, sizes.query_rows, sizes.query_heads, sizes.value_dim];
    let mut d_sinks = vec![0.0; sizes.query_heads];
    for (at, &lse) in lse.iter().enumerate().filter(|(_, lse)| **lse != f64::NEG_INFINITY) {
        let (row, head) = (at % sizes.query_rows, at / sizes.query_rows % sizes.query_heads);
        let batch = at / sizes.query_rows / sizes.query_heads;
        let [o, d_o] = [o, d_o].map(|rows| widened(Sizes::row(rows, shape, batch, row, head)));
        let delta = dot(&d_o, &o) - d_lse.map_or(0.0, |d_lse| f64::from(d_lse[at]));
        d_sinks[head] -= (f64::from(sinks[head]) - lse).exp() * delta;
    }
    d_sinks
}

fn head_gradients<T: Copy + Into<f64>>(
    sizes: &Sizes,
    tensors: &Tensors<'_, T>,
    batch: usize,
    key_head: usize,
) -> HeadGradients {
    let &Sizes { query_rows, key_rows, query_heads, key_heads, head_dim, value_dim, .. } = sizes;
    let k_shape = [sizes.batches, key_rows, key_heads, head_dim];
    let v_shape = [sizes.batches, key_rows, key_heads, value_dim];
    let k: Vec<Vec<f64>> =
        (0..key_rows).map(|row| widened(Sizes::row(tensors.k, k_shape, batch, row, key_head))).collect();
    let v: Vec<Vec<f64>> =
        (0..key_rows).map(|row| widened(Sizes::row(tensors.v, v_shape, batch, row, key_head))).collect();
    let (mut dk, mut dv) = (vec![0.0; key_rows * head_dim], vec![0.0; key_rows * value_dim]);
    let (mut dq, mut d_sinks) = (Vec::new(), Vec::new());
    let mut d_bias = BiasGradient::of_group(tensors.scores, sizes, batch, key_head);
    for head in sizes.group(key_head) {
        let (mut head_dq, mut d_sink) = (vec![0.0; query_rows * head_dim], 0.0);
        for (row, dq) in head_dq.chunks_exact_mut(head_dim).enumerate() {
            let q_shape = [sizes.batches, query_rows, query_heads, head_dim];
            let o_shape = [sizes.batches, query_rows, query_heads, value_dim];
            let query = widened(Sizes::row(tensors.q, q_shape, batch, row, head));
            let d_o = widened(Sizes::row(tensors.d_o, o_shape, batch, row, head));
            let at = (batch * query_heads + head) * query_rows + row;
            let d_lse = tensors.d_lse.map_or(0.0, |d_lse| d_lse[at].into());
            let row_scores = ScoreRow::new(sizes, tensors.scores, [batch, head, row]);
            let (visible, scale) = (row_scores.keys(), f64::from(sizes.scale));
            let score = |&key: &usize| row_scores.score(dot(&query, &k[key]), key);
            let (scores, slopes): (Vec<_>, Vec<_>) = visible.iter().map(score).unzip();
            let sink = row_scores.sink();
            let Some(denominator) = Denominator::new(&scores, sink) else { continue };
            let p: Vec<f64> = scores.iter().map(|&score| denominator.probability(score)).collect();
            let kept: Vec<f64> = visible.iter().map(|&key| row_scores.kept(key)).collect();
            let mut o = vec![0.0; value_dim];
            let weighted = p.iter().zip(&kept).zip(&visible);
            weighted.for_each(|((&p, &kept), &key)| add(&mut o, kept * p, &v[key]));
            let delta = dot(&d_o, &o) - d_lse;
            d_sink -= denominator.probability(sink) * delta;
            for (((&p, &kept), slope), &key) in p.iter().zip(&kept).zip(&slopes).zip(&visible) {
                let ds = p * (kept * dot(&d_o, &v[key]) - delta);
                if let Some(d_bias) = &mut d_bias {
                    *d_bias.at(head, row, key) += ds;
                }
                let ds = ds * slope;
                add(dq, scale * ds, &k[key]);
                add(&mut dk[key * head_dim..][..head_dim], scale * ds, &query);
                add(&mut dv[key * value_dim..][..value_dim], kept * p, &d_o);
            }
        }
        dq.push(head_dq);
        d_sinks.push(d_sink);
    }
    HeadGradients { dq, dk, dv, d_bias, d_sinks }
}

fn widened<T: Copy + Into<f64>>(row: &[T]) -> Vec<f64> {
    row.iter().map(|&value| value.into()).collect()
}

/// In eight sums side by side: each waits for its own last addition alone.
fn dot(left: &[f64], right: &[f64]) -> f64 {
    let ((lefts, left), (rights, right)) = (left.as_chunks::<8>(), right.as_chunks::<8>());
    let mut sums = [0.0; 8];
    for (left, right) in lefts.iter().zip(rights) {
        sums.iter_mut().zip(left).zip(right).for_each(|((sum, left), right)| *sum += left * right);
    }
    let rest = left.iter().zip(right).map(|(left, right)| left * right);
    sums.into_iter().sum::<f64>() + rest.sum::<f64>()
}

/// `target += factor * row`.
fn add(target: &mut [f64], factor: f64, row: &[f64]) {
    target.iter_mut().zip(row).for_each(|(target, value)| *target += factor * value);
}
