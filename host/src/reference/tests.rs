//! The reference on problems worked by hand, and the tolerance rule.

use super::*;

fn sizes(query_rows: usize, key_rows: usize, mask: Mask) -> Sizes {
    let (batches, query_heads, key_heads, head_dim, value_dim) = (1, 1, 1, 2, 1);
    Sizes {
        batches,
        query_rows,
        key_rows,
        query_heads,
        key_heads,
        head_dim,
        value_dim,
        scale: 1.0,
        softcap: None,
        mask,
    }
}

#[test]
fn two_keys_worked_by_hand() {
    // Scores ln 1 and ln 3: probabilities 1/4 and 3/4.
    let sizes = sizes(1, 2, Mask::Full);
    let (q, k, v) = ([1.0, 0.0], [0.0, 9.0, 3f32.ln(), 9.0], [8.0, 4.0]);
    let exact = exact(&sizes, &q, &k, &v);
    assert!((exact.o[0] - 5.0).abs() < 1e-6 && (exact.lse[0] - 4f64.ln()).abs() < 1e-6);
    let naive = naive(&sizes, Precision::Bf16, Precision::Bf16, &q, &k, &v);
    assert!((naive.o[0] - 5.0).abs() < 0.05);
}

#[test]
fn causal_rows_see_what_the_alignment_says() {
    let bottom_right = sizes(5, 3, Mask::Causal(CausalAlignment::BottomRight));
    assert_eq!((0..5).map(|row| bottom_right.visible(row)).collect::<Vec<_>>(), [0, 0, 1, 2, 3]);
    let top_left = sizes(5, 3, Mask::Causal(CausalAlignment::TopLeft));
    assert_eq!((0..5).map(|row| top_left.visible(row)).collect::<Vec<_>>(), [1, 2, 3, 3, 3]);
    let full = sizes(2, 3, Mask::Full);
    assert_eq!((full.visible(0), full.visible(1)), (3, 3));
}

#[test]
fn windowed_rows_see_what_is_near_the_diagonal() {
    let keys = |left, right, alignment| {
        let sizes = sizes(4, 6, Mask::Window { left, right, alignment });
        (0..4).map(|row| sizes.visible_keys(row)).collect::<Vec<_>>()
    };
    let (bottom_right, top_left) = (CausalAlignment::BottomRight, CausalAlignment::TopLeft);
    assert_eq!(keys(Some(1), Some(0), bottom_right), [1..3, 2..4, 3..5, 4..6]);
    assert_eq!(keys(Some(1), Some(2), top_left), [0..3, 0..4, 1..5, 2..6]);
    assert_eq!(keys(None, Some(0), bottom_right), [0..3, 0..4, 0..5, 0..6]);
    assert_eq!(keys(Some(u32::MAX), None, top_left), [0..6, 0..6, 0..6, 0..6]);
    let beyond = sizes(9, 2, Mask::Window { left: Some(1), right: Some(1), alignment: top_left });
    assert_eq!((0..5).map(|row| beyond.visible(row)).collect::<Vec<_>>(), [2, 2, 1, 0, 0]);
}

/// Counted key by key: one is visible under both masks if and only if it is under each.
#[test]
fn rows_under_a_causal_mask_and_a_window_see_what_both_show() {
    for (query_rows, key_rows) in [(7, 7), (7, 4), (4, 7), (1, 9), (9, 1)] {
        for alignment in [CausalAlignment::BottomRight, CausalAlignment::TopLeft] {
            for (left, right) in
                [(Some(2), Some(3)), (None, Some(1)), (Some(0), None), (Some(1), Some(0))]
            {
                let window = Mask::Window { left, right, alignment };
                let keys = |mask| {
                    let sizes = sizes(query_rows, key_rows, mask);
                    move |row, key| sizes.visible_keys(row).contains(&key)
                };
                let (causal, both) = (keys(Mask::Causal(alignment)), keys(window.and_causal()));
                let (window, reversed) =
                    (keys(window), keys(Mask::Causal(alignment).and_window(left, right)));
                for (row, key) in
                    (0..query_rows).flat_map(|row| (0..key_rows).map(move |key| (row, key)))
                {
                    let expected = causal(row, key) && window(row, key);
                    assert_eq!(both(row, key), expected, "query {row} of {query_rows}, key {key}");
                    assert_eq!(reversed(row, key), expected, "query {row} of {query_rows}, key {key}");
                }
            }
        }
    }
}

#[test]
fn gradients_worked_by_hand() {
    // Probabilities 1/4 and 3/4, o = 5, dO v = (8, 4) dO: ds = p (dO v - dO o) = (3/4, -3/4) dO.
    let sizes = sizes(1, 2, Mask::Full);
    let (q, k, v, d_o) = ([1.0, 2.0], [0.0, 9.0, 3f32.ln(), 9.0], [8.0, 4.0], [2.0]);
    let exact = exact_backward(&sizes, &q, &k, &v, &d_o, None);
    let near = |got: &[f64], expected: &[f64]| {
        got.iter().zip(expected).all(|(got, expected)| (got - expected).abs() < 1e-6)
    };
    assert!(near(&exact.dv, &[0.5, 1.5]), "{exact:?}");
    assert!(near(&exact.dk, &[1.5, 3.0, -1.5, -3.0]), "{exact:?}");
    assert!(near(&exact.dq, &[-1.5 * 3f64.ln(), 0.0]), "{exact:?}");
    let naive = naive_backward(&sizes, [Precision::Bf16; 2], [&q, &k, &v], [&[5.0], &d_o], None);
    assert!((naive.dk[1] - 3.0).abs() < 0.1 && (naive.dv[1] - 1.5).abs() < 0.05, "{naive:?}");
    let more = exact_backward(&sizes, &q, &k, &v, &d_o, Some(&[4.0]));
    assert!(near(&more.dk, &[1.5 + 1.0, 3.0 + 2.0, -1.5 + 3.0, -3.0 + 6.0]), "{more:?}");
}

#[test]
fn a_cap_and_its_derivative_worked_by_hand() {
    // Scores 0 and 2 atanh(1/2) = ln 3, of which a cap of 2 leaves 2 tanh(ln 3 / 2) = 1: probabilities 1 and
    // e over 1 + e, and a derivative of 1 and 3/4.
    let sizes = Sizes { softcap: Some(2.0), ..sizes(1, 2, Mask::Full) };
    let (q, k, v, d_o) = ([1.0, 0.0], [0.0, 9.0, 3f32.ln(), 9.0], [8.0, 4.0], [1.0]);
    let one = 1f64.exp() / (1.0 + 1f64.exp());
    let near = |got: &[f64], expected: &[f64]| {
        got.iter().zip(expected).all(|(got, expected)| (got - expected).abs() < 1e-6)
    };
    let forward = exact(&sizes, &q, &k, &v);
    assert!(near(&forward.o, &[8.0 - 4.0 * one]) && near(&forward.lse, &[(1.0 + 1f64.exp()).ln()]));
    let ds = one * (4.0 - forward.o[0]);
    let backward = exact_backward(&sizes, &q, &k, &v, &d_o, None);
    assert!(near(&backward.dv, &[1.0 - one, one]), "{backward:?}");
    assert!(near(&backward.dk, &[-ds, 0.0, 0.75 * ds, 0.0]), "{backward:?}");
    assert!(near(&backward.dq, &[0.75 * ds * 3f64.ln(), 9.0 * (0.75 * ds - ds)]), "{backward:?}");
    let rounded = naive(&sizes, Precision::Bf16, Precision::Bf16, &q, &k, &v);
    assert!((f64::from(rounded.o[0]) - forward.o[0]).abs() < 0.03);
    let rounded = naive_backward(&sizes, [Precision::Bf16; 2], [&q, &k, &v], [&rounded.o, &d_o], None);
    assert!((f64::from(rounded.dk[2]) - 0.75 * ds).abs() < 0.01, "{rounded:?}");
}

#[test]
fn a_huge_cap_is_none() {
    let none = sizes(1, 3, Mask::Full);
    let huge = Sizes { softcap: Some(1e30), ..none };
    let (q, k, v) = ([1.0, 2.0], [0.5, -1.0, 3.0, 0.25, -2.0, 1.0], [8.0, 4.0, 1.0]);
    let near = |left: &[f64], right: &[f64]| left.iter().zip(right).all(|(l, r)| (l - r).abs() < 1e-12);
    let (none_o, huge_o) = (exact(&none, &q, &k, &v), exact(&huge, &q, &k, &v));
    assert!(near(&none_o.o, &huge_o.o) && near(&none_o.lse, &huge_o.lse));
    let of = |sizes| exact_backward(sizes, &q, &k, &v, &[2.0], None);
    assert!(near(&of(&none).dq, &of(&huge).dq) && near(&of(&none).dk, &of(&huge).dk));
}

#[test]
fn dead_rows_and_unseen_keys_get_no_gradient() {
    let sizes = sizes(2, 1, Mask::Causal(CausalAlignment::BottomRight));
    let sizes = Sizes { key_rows: 1, query_rows: 2, ..sizes };
    let exact = exact_backward(&sizes, &[1.0f32; 4], &[1.0; 2], &[7.0], &[1.0; 2], Some(&[1.0; 2]));
    assert_eq!((&exact.dq[..2], &exact.dv[..]), ([0.0, 0.0].as_slice(), [1.0].as_slice()));
    let unseen =
        Sizes { query_rows: 1, key_rows: 2, mask: Mask::Causal(CausalAlignment::TopLeft), ..sizes };
    let exact = exact_backward(&unseen, &[1.0f32; 2], &[1.0; 4], &[7.0; 2], &[1.0], None);
    assert_eq!((&exact.dk[2..], exact.dv[1]), ([0.0, 0.0].as_slice(), 0.0));
    let naive = naive_backward(
        &unseen,
        [Precision::F16; 2],
        [&[1.0; 2], &[1.0; 4], &[7.0; 2]],
        [&[7.0], &[1.0]],
        None,
    );
    assert_eq!((naive.dk[2], naive.dv[1]), (0.0, 0.0));
}

#[test]
fn a_gradient_beyond_the_range_must_be_infinity_with_its_sign() {
    let judge = |got| judge_gradient(&[got], &[-1e6], f64::INFINITY, Precision::F16).passes();
    assert!(judge(f32::NEG_INFINITY));
    assert!(!judge(f32::INFINITY) && !judge(-65504.0) && !judge(f32::NAN));
    assert!(!judge_gradient(&[f32::INFINITY], &[1.0], 1.0, Precision::F16).passes());
    assert!(output_allowance(&[f32::INFINITY], &[1.0], Precision::F16).is_finite());
}

#[test]
fn a_dead_row_is_zero_and_minus_infinity() {
    let sizes = sizes(2, 1, Mask::Causal(CausalAlignment::BottomRight));
    let (q, k, v) = ([1.0; 4], [1.0; 2], [7.0]);
    let exact = exact(&sizes, &q, &k, &v);
    assert_eq!(
        (exact.o.as_slice(), exact.lse.as_slice()),
        ([0.0, 7.0].as_slice(), [f64::NEG_INFINITY, 2.0].as_slice())
    );
    assert_eq!(naive(&sizes, Precision::F16, Precision::F32, &q, &k, &v).o, [0.0, 7.0]);
}

#[test]
fn heads_of_a_group_share_their_key_head() {
    let sizes = Sizes { query_heads: 4, key_heads: 2, batches: 2, ..sizes(1, 1, Mask::Full) };
    let v = [10.0, 11.0, 20.0, 21.0];
    let exact = exact(&sizes, &[1.0; 16], &[1.0; 8], &v);
    assert_eq!(exact.o, [10.0, 10.0, 11.0, 11.0, 20.0, 20.0, 21.0, 21.0]);
}

#[test]
fn the_allowance_is_twice_each_error() {
    let rounding = |exact: f64| {
        let up = half::bf16::from_f64(half::bf16::from_f64(exact).to_f64() + 0.3).to_f64();
        (half::bf16::from_f64(up - 0.3).to_f64() - half::bf16::from_f64(exact).to_f64()).abs()
    };
    let allowed = output_allowance(&[1.5, 2.0], &[1.0, 2.0], Precision::Bf16);
    assert_eq!(allowed, 2.0 * 0.5 + 2.0 * rounding(1.0).max(rounding(2.0)));
    let overflown = output_allowance(&[f32::NAN, 1.0], &[1.0, 1.0], Precision::F32);
    assert!(overflown < 1e-6, "{overflown}");
}

#[test]
fn one_nan_fails_wherever_it_stands() {
    for place in 0..3 {
        let mut got = [1.0f32; 3];
        assert!(judge_output(&got, &[1.0; 3], 0.0).passes());
        got[place] = f32::NAN;
        let verdict = judge_output(&got, &[1.0; 3], f64::INFINITY);
        assert_eq!((verdict.passes(), verdict.worst), (false, Some(place)));
        assert!(!judge_lse(&got, &[1.0; 3]).passes());
    }
    assert!(!judge_output(&[1.0], &[1.0; 2], 1.0).passes());
}

#[test]
fn a_dead_rows_lse_must_be_minus_infinity() {
    let dead = [f64::NEG_INFINITY];
    assert!(judge_lse(&[f32::NEG_INFINITY], &dead).passes());
    for got in [0.0, f32::MIN, f32::INFINITY, f32::NAN] {
        assert!(!judge_lse(&[got], &dead).passes(), "{got}");
    }
    assert!(!judge_lse(&[f32::NEG_INFINITY], &[0.0]).passes());
    assert!(judge_lse(&[100.001], &[100.0]).passes());
    assert!(!judge_lse(&[100.003], &[100.0]).passes());
}

#[test]
fn equal_scores_share_dv_however_large_they_are() {
    let sizes = sizes(1, 2, Mask::Full);
    let (q, k) = ([2f32.powi(60), 0.0], [2f32.powi(60), 0.0, 2f32.powi(60), 0.0]);
    let exact = exact_backward(&sizes, &q, &k, &[3.0, 1.0], &[1.0], None);
    assert_eq!((&exact.dv[..], &exact.dq[..]), ([0.5, 0.5].as_slice(), [0.0, 0.0].as_slice()));
}
