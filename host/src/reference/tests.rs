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
