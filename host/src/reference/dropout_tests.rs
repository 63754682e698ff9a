//! Dropout in the reference.

use super::*;

const BATCHES: usize = 2;
const HEADS: usize = 4;
const ROWS: usize = 21;
const KEYS: usize = 19;

/// Values have a column for each key.
fn sizes() -> Sizes {
    Sizes {
        batches: BATCHES,
        query_rows: ROWS,
        key_rows: KEYS,
        query_heads: HEADS,
        key_heads: 2,
        head_dim: 3,
        value_dim: KEYS,
        scale: 0.7,
        softcap: None,
        mask: Mask::Causal(CausalAlignment::BottomRight),
    }
}

fn numbers(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|at| ((at * 37 + seed * 11) % 19) as f32 / 8.0 - 1.0).collect()
}

fn dropping(rate: f32, seed: u64) -> Scores<'static, f32> {
    let dropout = DropoutNumbers { rate, seed, offset: 1 << 33 | 5, first_batch: 0 };
    Scores { dropout: Some(dropout), ..Scores::default() }
}

/// q, k and values of which key j is unit vector j: o is what dropout leaves of p.
fn tensors() -> [Vec<f32>; 3] {
    let one_hot = |at: usize| f32::from(u8::from(at % KEYS == at / KEYS / 2 % KEYS));
    let v = (0..BATCHES * KEYS * 2 * KEYS).map(one_hot).collect();
    [numbers(BATCHES * ROWS * HEADS * 3, 1), numbers(BATCHES * KEYS * 2 * 3, 2), v]
}

/// `[batch, row, head, key]`, as o is.
fn places() -> impl Iterator<Item = [usize; 4]> {
    (0..BATCHES * ROWS * HEADS * KEYS)
        .map(|at| [at / (ROWS * HEADS * KEYS), at / KEYS % HEADS, at / (HEADS * KEYS) % ROWS, at % KEYS])
}

#[test]
fn o_is_of_what_is_kept_and_lse_of_everything() {
    let (sizes, [q, k, v]) = (sizes(), tensors());
    let scores = dropping(0.5, 9);
    let dropout = scores.dropout.unwrap();
    let whole = exact(&sizes, &q, &k, &v);
    let dropped = exact_with(&sizes, &scores, &q, &k, &v);
    assert_eq!(whole.lse, dropped.lse);
    let unfused = naive_with(&sizes, &scores, [Precision::F32; 2], [&q, &k, &v]);
    let mut kinds = [0; 2];
    for (at, place) in places().enumerate() {
        let keeps = dropout.keeps(place, HEADS);
        let expected = if keeps { 2.0 * whole.o[at] } else { 0.0 };
        assert_eq!(dropped.o[at], expected, "{place:?}");
        assert!((f64::from(unfused.o[at]) - expected).abs() < 1e-6, "{place:?}");
        kinds[usize::from(keeps)] += usize::from(whole.o[at] > 0.0);
    }
    assert!(kinds.iter().all(|&kind| kind > 500), "{kinds:?}");
}

/// Of dO with one row of ones, dv is what the row's dropped probabilities are.
#[test]
fn gradients_drop_what_the_forward_did() {
    let (sizes, [q, k, v]) = (sizes(), tensors());
    let scores = dropping(0.3, 4);
    let o = exact_with(&sizes, &scores, &q, &k, &v).o;
    let given: Vec<f32> = o.iter().map(|&o| o as f32).collect();
    for (batch, row, head) in [(0, 20, 0), (1, 7, 3), (1, 16, 2)] {
        let first = ((batch * ROWS + row) * HEADS + head) * KEYS;
        let mut d_o = vec![0.0; o.len()];
        d_o[first..first + KEYS].fill(1.0);
        let exact = exact_backward_with(&sizes, &scores, [&q, &k, &v], &d_o, None);
        let precisions = [Precision::F32; 2];
        let naive = naive_backward_with(&sizes, &scores, precisions, [&q, &k, &v], [&given, &d_o], None);
        for key in 0..KEYS {
            let at = ((batch * KEYS + key) * 2 + head / 2) * KEYS;
            assert!((exact.dv[at] - o[first + key]).abs() < 1e-12, "{row} {key}");
            assert_eq!(exact.dv[at] == 0.0, o[first + key] == 0.0, "{row} {key}");
            assert!((f64::from(naive.dv[at]) - o[first + key]).abs() < 1e-6, "{row} {key}");
        }
        let worst = |naive: &[f32], exact: &[f64]| {
            let differences = naive.iter().zip(exact).map(|(&n, e)| (f64::from(n) - e).abs());
            differences.fold(0.0, f64::max)
        };
        assert!(worst(&naive.dq, &exact.dq) < 1e-5 && worst(&naive.dk, &exact.dk) < 1e-5);
    }
}

#[test]
fn a_rate_of_0_changes_no_bit() {
    let (sizes, [q, k, v]) = (sizes(), tensors());
    let d_o = numbers(BATCHES * ROWS * HEADS * KEYS, 3);
    let of = |scores: &Scores<'_, f32>| {
        let exact_o = exact_with(&sizes, scores, &q, &k, &v);
        let naive_o = naive_with(&sizes, scores, [Precision::Bf16; 2], [&q, &k, &v]);
        let gradients = exact_backward_with(&sizes, scores, [&q, &k, &v], &d_o, None);
        let precisions = [Precision::Bf16; 2];
        let given = [&naive_o.o[..], &d_o];
        let unfused = naive_backward_with(&sizes, scores, precisions, [&q, &k, &v], given, None);
        (exact_o, naive_o.o.clone(), gradients, unfused)
    };
    assert_eq!(of(&dropping(0.0, 1)), of(&Scores::default()));
    assert_ne!(of(&dropping(0.1, 1)), of(&Scores::default()));
}

/// The mean over seeds comes near what there is without dropout.
#[test]
fn what_is_expected_is_attention_without_dropout() {
    let (sizes, [q, k, v]) = (sizes(), tensors());
    let without = exact(&sizes, &q, &k, &v).o;
    let (rate, seeds) = (0.25, 1000);
    let mut mean = vec![0.0; without.len()];
    for seed in 0..seeds {
        let with = exact_with(&sizes, &dropping(rate, seed), &q, &k, &v).o;
        mean.iter_mut().zip(with).for_each(|(mean, o)| *mean += o / seeds as f64);
    }
    for (mean, without) in mean.into_iter().zip(without) {
        // Six deviations of a mean of numbers that are 0 or 4/3.
        let allowed = 6.0 * without * (f64::from(rate) / (1.0 - f64::from(rate)) / seeds as f64).sqrt();
        assert!((mean - without).abs() <= allowed, "{mean}, {without}");
    }
}

/// A packed sequence that is computed alone drops what it does among others, and other ones drop other pairs.
#[test]
fn batches_count_from_the_first() {
    let (both, [q, k, v]) = (sizes(), tensors());
    let alone = Sizes { batches: 1, ..both };
    let whole = exact_with(&both, &dropping(0.5, 3), &q, &k, &v).o;
    let second = [&q, &k, &v].map(|tensor| &tensor[tensor.len() / 2..]);
    let of = |first_batch| {
        let dropout = dropping(0.5, 3).dropout.map(|dropout| DropoutNumbers { first_batch, ..dropout });
        let scores = Scores { dropout, ..Scores::default() };
        exact_with(&alone, &scores, second[0], second[1], second[2]).o
    };
    assert_eq!(whole[whole.len() / 2..], of(1));
    assert_ne!(whole[whole.len() / 2..], of(0));
}
