//! Attention in f64, by the text of `docs/semantics.md`, section 1.

use super::Sizes;
use rayon::prelude::*;

/// Results in f64.
#[derive(Clone, Debug, PartialEq)]
pub struct Exact {
    /// `[B, Sq, Hq, Dv]`.
    pub o: Vec<f64>,
    /// `[B, Hq, Sq]`.
    pub lse: Vec<f64>,
}

/// `s = scale * (q . k)`, capped where there is a softcap, `lse = ln(sum exp(s))` and
/// `o = sum exp(s - lse) v` over the visible keys. A row that sees none has o = 0 and lse = -inf.
///
/// `q [B, Sq, Hq, D]`, `k [B, Sk, Hk, D]`, `v [B, Sk, Hk, Dv]`, dense.
pub fn exact<T: Copy + Into<f64> + Sync>(sizes: &Sizes, q: &[T], k: &[T], v: &[T]) -> Exact {
    let pairs = sizes.pairs();
    let done: Vec<(Vec<f64>, Vec<f64>)> =
        pairs.par_iter().map(|&(batch, head)| exact_head(sizes, q, k, v, batch, head)).collect();
    let (o, lse): (Vec<_>, Vec<_>) = done.into_iter().unzip();
    let o = Sizes::interleave(&o, sizes.query_rows, sizes.query_heads, sizes.value_dim);
    Exact { o, lse: lse.concat() }
}

/// o `[Sq, Dv]` and lse `[Sq]` of one query head.
fn exact_head<T: Copy + Into<f64>>(
    sizes: &Sizes,
    q: &[T],
    k: &[T],
    v: &[T],
    batch: usize,
    head: usize,
) -> (Vec<f64>, Vec<f64>) {
    let q_shape = [sizes.batches, sizes.query_rows, sizes.query_heads, sizes.head_dim];
    let v_shape = [sizes.batches, sizes.key_rows, sizes.key_heads, sizes.value_dim];
    let key_head = sizes.key_head(head);
    let keys: Vec<f64> = sizes.transposed_keys(k, batch, key_head);
    let mut o = vec![0.0; sizes.query_rows * sizes.value_dim];
    let mut lse = vec![f64::NEG_INFINITY; sizes.query_rows];
    for (row, output) in o.chunks_exact_mut(sizes.value_dim).enumerate() {
        let visible = sizes.visible_keys(row);
        let mut scores = vec![0.0; visible.len()];
        for (column, &factor) in Sizes::row(q, q_shape, batch, row, head).iter().enumerate() {
            let (keys, factor) = (&keys[column * sizes.key_rows + visible.start..], factor.into());
            scores.iter_mut().zip(keys).for_each(|(score, key)| *score += factor * key);
        }
        scores.iter_mut().for_each(|score| *score = sizes.score(*score));
        let Some(largest) = scores.iter().copied().reduce(f64::max) else { continue };
        let sum: f64 = scores.iter().map(|score| (score - largest).exp()).sum();
        lse[row] = largest + sum.ln();
        for (key_row, score) in visible.zip(&scores) {
            let probability = (score - lse[row]).exp();
            let value = Sizes::row(v, v_shape, batch, key_row, key_head);
            output.iter_mut().zip(value).for_each(|(o, &v)| *o += probability * v.into());
        }
    }
    (o, lse)
}
