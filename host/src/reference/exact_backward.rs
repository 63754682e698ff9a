//! The gradients of attention in f64, by the text of `docs/semantics.md`, section 1.

use super::Sizes;
use rayon::prelude::*;

/// Gradients in f64.
#[derive(Clone, Debug, PartialEq)]
pub struct ExactGradients {
    /// `[B, Sq, Hq, D]`.
    pub dq: Vec<f64>,
    /// `[B, Sk, Hk, D]`.
    pub dk: Vec<f64>,
    /// `[B, Sk, Hk, Dv]`.
    pub dv: Vec<f64>,
}

/// Gradients of one key head: dq of each query head of its group.
struct HeadGradients {
    dq: Vec<Vec<f64>>,
    dk: Vec<f64>,
    dv: Vec<f64>,
}

/// The inputs of a backward pass.
struct Tensors<'t, T> {
    q: &'t [T],
    k: &'t [T],
    v: &'t [T],
    d_o: &'t [T],
    d_lse: Option<&'t [T]>,
}

/// `delta = dO . o - dLSE`, `ds = p (dO . v - delta)`, times `1 - tanh^2` where there is a softcap,
/// `dv = p^T dO`, `dq = scale ds k` and `dk = scale ds^T q`, with p and o from the inputs. A row that sees no
/// key, and a key that no row sees, get 0.
///
/// `q [B, Sq, Hq, D]`, `k [B, Sk, Hk, D]`, `v [B, Sk, Hk, Dv]`, `d_o [B, Sq, Hq, Dv]` and
/// `d_lse [B, Hq, Sq]` are dense.
pub fn exact_backward<T: Copy + Into<f64> + Sync>(
    sizes: &Sizes,
    q: &[T],
    k: &[T],
    v: &[T],
    d_o: &[T],
    d_lse: Option<&[T]>,
) -> ExactGradients {
    let tensors = Tensors { q, k, v, d_o, d_lse };
    let pairs = sizes.key_pairs();
    let mut done: Vec<HeadGradients> =
        pairs.par_iter().map(|&(batch, head)| head_gradients(sizes, &tensors, batch, head)).collect();
    let dq: Vec<_> = done.iter_mut().flat_map(|head| std::mem::take(&mut head.dq)).collect();
    let (dk, dv): (Vec<_>, Vec<_>) = done.into_iter().map(|head| (head.dk, head.dv)).unzip();
    ExactGradients {
        dq: Sizes::interleave(&dq, sizes.query_rows, sizes.query_heads, sizes.head_dim),
        dk: Sizes::interleave(&dk, sizes.key_rows, sizes.key_heads, sizes.head_dim),
        dv: Sizes::interleave(&dv, sizes.key_rows, sizes.key_heads, sizes.value_dim),
    }
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
    let mut dq = Vec::new();
    for head in sizes.group(key_head) {
        let mut head_dq = vec![0.0; query_rows * head_dim];
        for (row, dq) in head_dq.chunks_exact_mut(head_dim).enumerate() {
            let q_shape = [sizes.batches, query_rows, query_heads, head_dim];
            let o_shape = [sizes.batches, query_rows, query_heads, value_dim];
            let query = widened(Sizes::row(tensors.q, q_shape, batch, row, head));
            let d_o = widened(Sizes::row(tensors.d_o, o_shape, batch, row, head));
            let at = (batch * query_heads + head) * query_rows + row;
            let d_lse = tensors.d_lse.map_or(0.0, |d_lse| d_lse[at].into());
            let visible = sizes.visible_keys(row);
            let (scale, keys, values) =
                (f64::from(sizes.scale), &k[visible.clone()], &v[visible.clone()]);
            let scores: Vec<f64> = keys.iter().map(|key| sizes.score(dot(&query, key))).collect();
            let slopes: Vec<f64> = scores.iter().map(|&score| sizes.slope(score)).collect();
            let p = softmax(scores);
            let mut o = vec![0.0; value_dim];
            p.iter().zip(values).for_each(|(&p, value)| add(&mut o, p, value));
            let delta = dot(&d_o, &o) - d_lse;
            let pairs = p.iter().zip(&slopes).zip(visible).zip(keys.iter().zip(values));
            for (((&p, slope), key_row), (key, value)) in pairs {
                let ds = p * (dot(&d_o, value) - delta) * slope;
                add(dq, scale * ds, key);
                add(&mut dk[key_row * head_dim..][..head_dim], scale * ds, &query);
                add(&mut dv[key_row * value_dim..][..value_dim], p, &d_o);
            }
        }
        dq.push(head_dq);
    }
    HeadGradients { dq, dk, dv }
}

/// `exp(s - lse)` of a row's visible scores.
fn softmax(scores: Vec<f64>) -> Vec<f64> {
    let Some(largest) = scores.iter().copied().reduce(f64::max) else { return scores };
    let sum: f64 = scores.iter().map(|score| (score - largest).exp()).sum();
    let lse = largest + sum.ln();
    scores.into_iter().map(|score| (score - lse).exp()).collect()
}

fn widened<T: Copy + Into<f64>>(row: &[T]) -> Vec<f64> {
    row.iter().map(|&value| value.into()).collect()
}

fn dot(left: &[f64], right: &[f64]) -> f64 {
    left.iter().zip(right).map(|(left, right)| left * right).sum()
}

/// `target += factor * row`.
fn add(target: &mut [f64], factor: f64, row: &[f64]) {
    target.iter_mut().zip(row).for_each(|(target, value)| *target += factor * value);
}
