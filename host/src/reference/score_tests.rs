//! Bias, boolean mask, slopes and sinks in the reference, on problems worked by hand.

use super::*;

fn sizes(query_rows: usize, key_rows: usize) -> Sizes {
    Sizes {
        batches: 1,
        query_rows,
        key_rows,
        query_heads: 1,
        key_heads: 1,
        head_dim: 1,
        value_dim: 1,
        scale: 1.0,
        softcap: None,
        mask: Mask::Full,
    }
}

fn over<T>(shape: [usize; 4], values: &[T]) -> OverScores<'_, T> {
    assert_eq!(shape.iter().product::<usize>(), values.len());
    OverScores { shape, values }
}

fn near(got: &[f64], expected: &[f64]) -> bool {
    got.len() == expected.len()
        && got.iter().zip(expected).all(|(got, expected)| (got - expected).abs() < 1e-6)
}

/// Gradients of unfused code in f32, which is given the o that there should be.
fn naive_gradients(
    sizes: &Sizes,
    scores: &Scores<'_, f32>,
    tensors: [&[f32]; 3],
    d_o: &[f32],
    d_lse: Option<&[f32]>,
) -> NaiveGradients {
    let [q, k, v] = tensors;
    let o: Vec<f32> = exact_with(sizes, scores, q, k, v).o.into_iter().map(|o| o as f32).collect();
    naive_backward_with(sizes, scores, [Precision::F32; 2], tensors, [&o, d_o], d_lse)
}

/// q is 0, so that scores are the bias.
#[test]
fn a_bias_worked_by_hand() {
    let sizes = sizes(1, 2);
    let bias = [1f32.ln(), 3f32.ln()];
    let scores = Scores { bias: Some(over([1, 1, 1, 2], &bias)), ..Scores::default() };
    let (q, k, v, d_o) = ([0f32], [5.0, 6.0], [8.0, 4.0], [2.0]);
    let forward = exact_with(&sizes, &scores, &q, &k, &v);
    assert!(near(&forward.o, &[5.0]) && near(&forward.lse, &[4f64.ln()]), "{forward:?}");
    let backward = exact_backward_with(&sizes, &scores, [&q, &k, &v], &d_o, None);
    // p (dO v - dO o) = (1/4 2 (8 - 5), 3/4 2 (4 - 5)).
    assert!(near(&backward.d_bias, &[1.5, -1.5]), "{backward:?}");
    assert!(near(&backward.dq, &[1.5 * 5.0 - 1.5 * 6.0]), "{backward:?}");
    let naive = naive_gradients(&sizes, &scores, [&q, &k, &v], &d_o, None);
    assert!(near(&naive.d_bias.map_f64(), &[1.5, -1.5]), "{naive:?}");
    let naive = naive_with(&sizes, &scores, [Precision::F32; 2], [&q, &k, &v]);
    assert!((naive.o[0] - 5.0).abs() < 1e-5);
}

/// The gradient of a bias is that after the cap, without the cap's slope and without the scale.
#[test]
fn the_gradient_of_a_bias_has_neither_scale_nor_slope() {
    let with = |scale, softcap, bias: &[f32; 2]| {
        let sizes = Sizes { scale, softcap, ..sizes(1, 2) };
        let scores = Scores { bias: Some(over([1, 1, 1, 2], bias)), ..Scores::default() };
        exact_backward_with(&sizes, &scores, [&[1f32], &[2.0, -1.0], &[8.0, 4.0]], &[2.0], None)
    };
    // Scores 2 and -1 of whatever origin.
    let plain = with(0.0, None, &[2.0, -1.0]);
    let scaled = with(0.5, None, &[1.0, -0.5]);
    assert!(near(&plain.d_bias, &scaled.d_bias), "{plain:?} {scaled:?}");
    let capped = [2.0, -1.0].map(|score: f64| score - 2.0 * (0.5 * score / 2.0).tanh());
    let capped = with(0.5, Some(2.0), &capped.map(|bias| bias as f32));
    assert!(near(&plain.d_bias, &capped.d_bias), "{plain:?} {capped:?}");
    assert!((capped.dq[0] - scaled.dq[0]).abs() > 1e-3);
}

#[test]
fn minus_infinity_hides_a_key_and_the_lowest_number_does_not() {
    let sizes = sizes(3, 2);
    let (q, k, v) = ([1f32, 2.0, -3.0], [5.0, 6.0], [8.0, 4.0]);
    let (hidden, lowest) = (f32::NEG_INFINITY, half::bf16::MIN.to_f32());
    let bias = [0.0, hidden, hidden, hidden, lowest, lowest];
    let scores = Scores { bias: Some(over([1, 1, 3, 2], &bias)), ..Scores::default() };
    let forward = exact_with(&sizes, &scores, &q, &k, &v);
    assert!(near(&forward.o, &[8.0, 0.0, 6.0]), "{forward:?}");
    assert_eq!((forward.lse[0], forward.lse[1]), (5.0, f64::NEG_INFINITY));
    assert_eq!(forward.lse[2] as f32, lowest);
    for input in [Precision::Bf16, Precision::F32] {
        assert_eq!(naive_with(&sizes, &scores, [input; 2], [&q, &k, &v]).o, [8.0, 0.0, 6.0]);
    }
    let backward = exact_backward_with(&sizes, &scores, [&q, &k, &v], &[1.0; 3], Some(&[1.0; 3]));
    assert!(near(&backward.d_bias, &[1.0, 0.0, 0.0, 0.0, 1.5, -0.5]), "{backward:?}");
    assert_eq!(backward.dq[1], 0.0);
    // Unfused code has p from lse, which holds nothing beside the lowest number.
    let naive = naive_gradients(&sizes, &scores, [&q, &k, &v], &[1.0; 3], Some(&[1.0; 3]));
    assert!(near(&naive.d_bias.map_f64()[..4], &backward.d_bias[..4]), "{naive:?}");
}

#[test]
fn a_mask_hides_and_a_row_without_keys_is_dead_also_with_a_sink() {
    let sizes = sizes(2, 2);
    let shown = [false, true, false, false];
    let sinks = [0f32];
    let mask = Some(over([1, 1, 2, 2], &shown));
    let scores = Scores { mask, sinks: Some(&sinks), ..Scores::default() };
    let (q, k, v) = ([0f32, 7.0], [f32::NAN, 1.0], [f32::NAN, 4.0]);
    let forward = exact_with(&sizes, &scores, &q, &k, &v);
    assert!(near(&forward.o, &[2.0, 0.0]), "{forward:?}");
    assert_eq!(forward.lse, [2f64.ln(), f64::NEG_INFINITY]);
    assert_eq!(naive_with(&sizes, &scores, [Precision::F16; 2], [&q, &k, &v]).o, [2.0, 0.0]);
    let d_lse = [0.5f32, 100.0];
    let backward = exact_backward_with(&sizes, &scores, [&q, &k, &v], &[1.0, 100.0], Some(&d_lse));
    // Probabilities of key and sink 1/2 each; delta = 2 - 1/2.
    assert!(near(&backward.d_sinks, &[-0.75]), "{backward:?}");
    assert!(near(&backward.dv, &[0.0, 0.5]) && backward.dq[1] == 0.0, "{backward:?}");
    let naive = naive_gradients(&sizes, &scores, [&q, &k, &v], &[1.0, 100.0], Some(&d_lse));
    assert!(near(&naive.d_sinks.map_f64(), &[-0.75]) && naive.dk[0] == 0.0, "{naive:?}");
}

#[test]
fn a_sink_of_minus_infinity_is_none() {
    let sizes = sizes(1, 3);
    let (q, k, v, d_o) = ([1f32], [5.0, 6.0, 4.0], [8.0, 4.0, 1.0], [2.0]);
    let sinks = [f32::NEG_INFINITY];
    let scores = Scores { sinks: Some(&sinks), ..Scores::default() };
    assert_eq!(exact_with(&sizes, &scores, &q, &k, &v), exact(&sizes, &q, &k, &v));
    let with = exact_backward_with(&sizes, &scores, [&q, &k, &v], &d_o, None);
    let without = exact_backward(&sizes, &q, &k, &v, &d_o, None);
    assert_eq!(with.d_sinks, [0.0]);
    assert_eq!(ExactGradients { d_sinks: vec![], ..with }, without);
}

/// Scores are what slopes make of distances: o is the key that the row is near, as values are positions.
#[test]
fn slopes_follow_the_alignment_of_the_mask() {
    let (bottom_right, top_left) = (CausalAlignment::BottomRight, CausalAlignment::TopLeft);
    let window = |alignment| Mask::Window { left: Some(9), right: Some(9), alignment };
    for (mask, at) in [
        (Mask::Full, [1.0, 2.0]),
        (Mask::Causal(bottom_right), [1.0, 2.0]),
        (window(bottom_right), [1.0, 2.0]),
        (Mask::Causal(top_left), [0.0, 1.0]),
        (window(top_left), [0.0, 1.0]),
    ] {
        let sizes = Sizes { mask, ..sizes(2, 3) };
        let slopes = [30f32];
        let scores = Scores { alibi_slopes: Some(&slopes), ..Scores::default() };
        let (q, k, v) = ([0f32; 2], [0.0; 3], [0.0, 1.0, 2.0]);
        let forward = exact_with(&sizes, &scores, &q, &k, &v);
        assert!(near(&forward.o, &at), "{mask}: {forward:?}");
        let naive = naive_with(&sizes, &scores, [Precision::F32; 2], [&q, &k, &v]);
        assert!(near(&naive.o.map_f64(), &at), "{mask}: {naive:?}");
    }
    let slopes = [0.5f32];
    let scores = Scores { alibi_slopes: Some(&slopes), ..Scores::default() };
    let lse = exact_with(&sizes(1, 3), &scores, &[0f32], &[0.0; 3], &[0.0; 3]).lse;
    let expected = (1.0 + (-0.5f64).exp() + (-1f64).exp()).ln();
    assert!(near(&lse, &[expected]), "{lse:?}");
}

/// Two batches, four query heads, two key heads: each shape is the full one with repeated numbers, and its
/// gradient the sum over what repeats.
#[test]
fn broadcast_dimensions_repeat_and_their_gradients_are_sums() {
    let sizes = Sizes { batches: 2, query_heads: 4, key_heads: 2, ..sizes(2, 3) };
    let numbers = |count: usize, seed: usize| -> Vec<f32> {
        (0..count).map(|at| ((at * 37 + seed * 11) % 19) as f32 / 8.0 - 1.0).collect()
    };
    let (q, k, v, d_o) = (numbers(16, 1), numbers(12, 2), numbers(12, 3), numbers(16, 4));
    for (batches, heads, queries, keys) in [
        (2, 4, 2, 3),
        (1, 4, 2, 3),
        (2, 2, 2, 3),
        (2, 1, 1, 3),
        (1, 2, 2, 1),
        (1, 1, 1, 3),
        (2, 4, 2, 1),
        (1, 1, 1, 1),
    ] {
        let shape = [batches, heads, queries, keys];
        let small = numbers(shape.iter().product(), 5);
        let place = |[batch, head, query, key]: [usize; 4]| {
            let at = |size: usize, index: usize| if size == 1 { 0 } else { index };
            let head = if heads == 4 { head } else { at(heads, head / 2) };
            let outer = at(batches, batch) * heads + head;
            (outer * queries + at(queries, query)) * keys + at(keys, key)
        };
        let full_shape = [2, 4, 2, 3];
        let indices: Vec<[usize; 4]> =
            (0..48).map(|at| [at / 24, at / 6 % 4, at / 3 % 2, at % 3]).collect();
        let full: Vec<f32> = indices.iter().map(|&index| small[place(index)]).collect();
        let scores = |shape, values| Scores { bias: Some(over(shape, values)), ..Scores::default() };
        let (small_scores, full_scores) = (scores(shape, &small), scores(full_shape, &full));
        assert_eq!(
            exact_with(&sizes, &small_scores, &q, &k, &v),
            exact_with(&sizes, &full_scores, &q, &k, &v)
        );
        let gradients =
            |scores| exact_backward_with(&sizes, scores, [&q[..], &k, &v], &d_o, None).d_bias;
        let mut expected = vec![0.0; small.len()];
        for (index, gradient) in indices.iter().zip(gradients(&full_scores)) {
            expected[place(*index)] += gradient;
        }
        let got = gradients(&small_scores);
        assert!(near(&got, &expected), "{shape:?}: {got:?}, {expected:?}");
        let naive = naive_gradients(&sizes, &small_scores, [&q, &k, &v], &d_o, None).d_bias;
        let worst = naive
            .map_f64()
            .iter()
            .zip(&expected)
            .fold(0f64, |worst, (naive, expected)| worst.max((naive - expected).abs()));
        assert!(worst < 1e-5, "{shape:?}: {worst}");
    }
}

/// For comparison with what is exact.
trait MapF64 {
    fn map_f64(&self) -> Vec<f64>;
}

impl MapF64 for Vec<f32> {
    fn map_f64(&self) -> Vec<f64> {
        self.iter().copied().map(f64::from).collect()
    }
}
