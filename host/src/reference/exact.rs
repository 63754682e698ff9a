//! Attention in f64, by the text of `docs/semantics.md`, section 1.

use super::scores::ScoreRow;
use super::{Scores, Sizes};
use rayon::prelude::*;

/// Results in f64.
#[derive(Clone, Debug, PartialEq)]
pub struct Exact {
    /// `[B, Sq, Hq, Dv]`.
    pub o: Vec<f64>,
    /// `[B, Hq, Sq]`.
    pub lse: Vec<f64>,
}

/// [`exact_with`] nothing but q, k and v.
pub fn exact<T: Copy + Into<f64> + Sync>(sizes: &Sizes, q: &[T], k: &[T], v: &[T]) -> Exact {
    exact_with(sizes, &Scores::default(), q, k, v)
}

/// `s = scale * (q . k)`, capped where there is a softcap, plus the bias, minus slope times distance, `lse =
/// ln(exp(sink) + sum exp(s))` and `o = sum kept exp(s - lse) v` over the visible keys, where kept is 1 or
/// what dropout makes of it. A row that sees none has o = 0 and lse = -inf.
///
/// `q [B, Sq, Hq, D]`, `k [B, Sk, Hk, D]`, `v [B, Sk, Hk, Dv]`, dense.
pub fn exact_with<T: Copy + Into<f64> + Sync>(
    sizes: &Sizes,
    scores: &Scores<'_, T>,
    q: &[T],
    k: &[T],
    v: &[T],
) -> Exact {
    let pairs = sizes.pairs();
    let done: Vec<(Vec<f64>, Vec<f64>)> =
        pairs.par_iter().map(|&pair| exact_head(sizes, scores, [q, k, v], pair)).collect();
    let (o, lse): (Vec<_>, Vec<_>) = done.into_iter().unzip();
    let o = Sizes::interleave(&o, sizes.query_rows, sizes.query_heads, sizes.value_dim);
    Exact { o, lse: lse.concat() }
}

/// o `[Sq, Dv]` and lse `[Sq]` of one (batch, query head).
fn exact_head<T: Copy + Into<f64>>(
    sizes: &Sizes,
    scores: &Scores<'_, T>,
    [q, k, v]: [&[T]; 3],
    (batch, head): (usize, usize),
) -> (Vec<f64>, Vec<f64>) {
    let q_shape = [sizes.batches, sizes.query_rows, sizes.query_heads, sizes.head_dim];
    let v_shape = [sizes.batches, sizes.key_rows, sizes.key_heads, sizes.value_dim];
    let key_head = sizes.key_head(head);
    let keys: Vec<f64> = sizes.transposed_keys(k, batch, key_head);
    let mut o = vec![0.0; sizes.query_rows * sizes.value_dim];
    let mut lse = vec![f64::NEG_INFINITY; sizes.query_rows];
    for (row, output) in o.chunks_exact_mut(sizes.value_dim).enumerate() {
        let within = sizes.visible_keys(row);
        let mut products = vec![0.0; within.len()];
        for (column, &factor) in Sizes::row(q, q_shape, batch, row, head).iter().enumerate() {
            let (keys, factor) = (&keys[column * sizes.key_rows + within.start..], factor.into());
            products.iter_mut().zip(keys).for_each(|(product, key)| *product += factor * key);
        }
        let row_scores = ScoreRow::new(sizes, scores, [batch, head, row]);
        let visible = row_scores.keys();
        let score = |&key: &usize| row_scores.score(products[key - within.start], key).0;
        let scores: Vec<f64> = visible.iter().map(score).collect();
        let Some(denominator) = Denominator::new(&scores, row_scores.sink()) else { continue };
        lse[row] = denominator.lse();
        for (key_row, score) in visible.into_iter().zip(&scores) {
            let probability = row_scores.kept(key_row) * denominator.probability(*score);
            let value = Sizes::row(v, v_shape, batch, key_row, key_head);
            output.iter_mut().zip(value).for_each(|(o, &v)| *o += probability * v.into());
        }
    }
    (o, lse)
}

/// The denominator of a row's softmax, relative to its largest score: lse holds less of it where scores are
/// large.
#[derive(Clone, Copy)]
pub(super) struct Denominator {
    largest: f64,
    sum: f64,
}

impl Denominator {
    /// `exp(sink) + sum exp(s)` of the scores of a row's visible keys; none where it sees none.
    pub fn new(scores: &[f64], sink: f64) -> Option<Self> {
        let largest = scores.iter().copied().reduce(f64::max)?.max(sink);
        let sum: f64 = scores.iter().map(|score| (score - largest).exp()).sum();
        Some(Denominator { largest, sum: sum + (sink - largest).exp() })
    }

    /// Its logarithm.
    pub fn lse(&self) -> f64 {
        self.largest + self.sum.ln()
    }

    /// `exp(score - lse)`.
    pub fn probability(&self, score: f64) -> f64 {
        (score - self.largest).exp() / self.sum
    }
}
