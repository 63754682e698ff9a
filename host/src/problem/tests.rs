//! What problems are accepted, and the sizes derived from them.

use super::*;
use kernels_gpu::abi::WINDOW_OPEN;
use proptest::prelude::*;

#[test]
fn the_sizes_of_a_grouped_causal_problem() {
    let q = Layout::bshd([2, 5, 6, 40]);
    let k = Layout::bhsd([2, 9, 3, 40]);
    let v = Layout::bshd([2, 9, 3, 24]);
    let valid = ForwardProblem::new(Dtype::F16, q, k, v).causal().validate().unwrap();
    assert_eq!((valid.batches, valid.query_rows, valid.key_rows), (2, 5, 9));
    assert_eq!((valid.query_heads, valid.key_heads, valid.group_size), (6, 3, 2));
    assert_eq!((valid.head_dim, valid.value_dim, valid.lse_elements()), (40, 24, 60));
    assert_eq!((valid.bottom_right, valid.window_left, valid.window_right), (true, WINDOW_OPEN, 0));
    assert_eq!(valid.scale, 40f32.sqrt().recip());
    assert_eq!(valid.problem.o.shape, [2, 5, 6, 24]);
}

#[test]
fn masks_become_an_alignment_and_a_window() {
    let problem = |mask| {
        let (q, k) = (Layout::bshd([1, 9, 1, 8]), Layout::bshd([1, 4, 1, 8]));
        let valid = ForwardProblem::new(Dtype::F32, q, k, k).with_mask(mask).validate().unwrap();
        (valid.bottom_right, valid.window_right)
    };
    assert_eq!(problem(Mask::Full), (false, WINDOW_OPEN));
    assert_eq!(problem(Mask::Causal(CausalAlignment::BottomRight)), (true, 0));
    assert_eq!(problem(Mask::Causal(CausalAlignment::TopLeft)), (false, 0));
}

/// Distances are of the mask's diagonal, and of the bottom right under a full mask, which has none without.
#[test]
fn slopes_give_a_full_mask_a_diagonal() {
    let layout = Layout::bshd([1, 9, 1, 8]);
    let problem = ForwardProblem::new(Dtype::F32, layout, layout, layout);
    let (bottom_right, top_left) = (CausalAlignment::BottomRight, CausalAlignment::TopLeft);
    let window = |alignment| Mask::Window { left: None, right: None, alignment };
    for (mask, expected) in [
        (Mask::Full, bottom_right),
        (Mask::Causal(bottom_right), bottom_right),
        (Mask::Causal(top_left), top_left),
        (window(bottom_right), bottom_right),
        (window(top_left), top_left),
    ] {
        assert_eq!(mask.distance_alignment(), expected, "{mask}");
        let valid = problem.with_mask(mask).with_alibi(AlibiSlopes::PerHead).validate().unwrap();
        assert_eq!(valid.bottom_right, expected == bottom_right, "{mask}");
    }
}

/// What a shape of bits refuses, before anything is multiplied that could overflow.
#[test]
fn shapes_of_masks_are_what_a_kernel_can_count() {
    let of = |shape, keys| MaskShape::of(&ScoreLayout { shape, strides: [0; 4] }, keys);
    let text = |shape, keys| of(shape, keys).unwrap_err().to_string();
    assert_eq!(text([1, 1, 5, 8], 9), "mask: expected keys 1 or 9, got 8");
    assert_eq!(text([1; 4], 1 << 33), "mask: expected keys 0..=1073741568, got 8589934592");
    let most = u32::MAX as usize;
    assert_eq!(of([1, 1, most, 32], 32).unwrap().words(), u128::from(u32::MAX));
    assert_eq!(
        text([1, 1, most, 33], 33),
        format!(
            "mask: expected at most 4294967295 words of 32 keys, got {} for shape [1, 1, {most}, 33]",
            2 * u64::from(u32::MAX)
        )
    );
    let (all, saturated) = (usize::MAX, u128::MAX);
    assert_eq!(
        text([all, all, all, 1], 40),
        format!(
            "mask: expected at most 4294967295 words of 32 keys, got {saturated} for shape \
             [{all}, {all}, {all}, 40]"
        )
    );
    assert_eq!(of([all, all, all, 1], 0).unwrap().words(), 0);
    let layout = ScoreLayout { shape: [1, 1, 5, 9], strides: [0, 0, 1 << 62, 1] };
    assert_eq!(
        MaskShape::of(&layout, 9).unwrap_err().to_string(),
        "mask: expected a tensor of less than 2^63 bytes, got shape [1, 1, 5, 9] with strides [0, 0, \
         4611686018427387904, 1]"
    );
}

#[test]
fn sides_of_a_window_are_clamped_to_what_kernels_can_add() {
    let sides = |left, right, alignment| {
        let layout = Layout::bshd([1, 9, 1, 8]);
        let mask = Mask::Window { left, right, alignment };
        let problem = ForwardProblem::new(Dtype::F32, layout, layout, layout).with_mask(mask);
        let valid = problem.validate().unwrap();
        (valid.bottom_right, valid.window_left, valid.window_right)
    };
    assert_eq!(sides(Some(3), Some(0), CausalAlignment::BottomRight), (true, 3, 0));
    assert_eq!(sides(None, Some(5), CausalAlignment::TopLeft), (false, WINDOW_OPEN, 5));
    let (bottom_right, most) = (CausalAlignment::BottomRight, WINDOW_OPEN);
    assert_eq!(sides(Some(u32::MAX), Some(1 << 30), bottom_right), (true, most, most));
    let mask = Mask::Window { left: Some(3), right: None, alignment: CausalAlignment::TopLeft };
    assert_eq!(mask.to_string(), "window-top-left(3,open)");
    assert_eq!(Mask::Causal(bottom_right).to_string(), "causal");
}

/// Whatever the order in which they are asked for, kernels get the smaller side of each, and one alignment.
#[test]
fn causal_and_a_window_hold_together() {
    let layout = Layout::bshd([1, 9, 1, 8]);
    let problem = ForwardProblem::new(Dtype::F32, layout, layout, layout);
    let sides = |problem: ForwardProblem| {
        let valid = problem.validate().unwrap();
        (valid.bottom_right, valid.window_left, valid.window_right)
    };
    assert_eq!(sides(problem.causal().with_window(Some(3), Some(5))), (true, 3, 0));
    assert_eq!(sides(problem.with_window(Some(3), Some(5)).causal()), (true, 3, 0));
    assert_eq!(sides(problem.with_window(Some(3), None).causal()), (true, 3, 0));
    assert_eq!(sides(problem.with_window(None, Some(5)).causal()), (true, WINDOW_OPEN, 0));
    assert_eq!(sides(problem.with_window(Some(3), Some(5)).with_window(Some(4), Some(2))), (true, 3, 2));
    let top_left = problem.with_mask(Mask::Causal(CausalAlignment::TopLeft));
    assert_eq!(sides(top_left.with_window(Some(3), Some(5))), (false, 3, 0));
    assert_eq!(sides(top_left.causal()), (false, WINDOW_OPEN, 0));
    assert_eq!(sides(problem.causal()), (true, WINDOW_OPEN, 0));
}

#[test]
fn masks_are_described_by_the_keys_that_a_query_sees() {
    let window = |left, right, alignment| Mask::Window { left, right, alignment }.describe();
    let (bottom_right, top_left) = (CausalAlignment::BottomRight, CausalAlignment::TopLeft);
    assert_eq!(Mask::Full.describe(), "full: every query sees every key of its sequence");
    assert_eq!(
        Mask::Causal(bottom_right).describe(),
        "causal, aligned bottom right: query i sees the keys j with j <= i + Sk - Sq"
    );
    assert_eq!(
        Mask::Causal(top_left).describe(),
        "causal, aligned top left: query i sees the keys j with j <= i"
    );
    assert_eq!(
        window(Some(3), Some(5), top_left),
        "a window, aligned top left: query i sees the keys j with i - 3 <= j <= i + 5"
    );
    assert_eq!(
        window(Some(3), Some(0), bottom_right),
        "causal and a window, aligned bottom right: query i sees the keys j with \
         i + Sk - Sq - 3 <= j <= i + Sk - Sq"
    );
    assert_eq!(
        window(Some(0), None, bottom_right),
        "a window, aligned bottom right: query i sees the keys j with i + Sk - Sq <= j"
    );
    assert_eq!(window(None, None, top_left), "a window: every query sees every key of its sequence");
}

#[test]
fn packed_sequences_are_as_long_as_the_longest_and_lse_as_all() {
    let (q, k) = (Layout::packed([7, 4, 8]), Layout::packed([0, 2, 8]));
    let problem = ForwardProblem::new(Dtype::F32, q, k, k);
    let offsets = Sequences::from_offsets(&[0, 2, 2, 7], &[0; 4]).unwrap();
    assert_eq!(offsets, Sequences::Packed { count: 3, max_query_rows: 5, max_key_rows: 0 });
    let valid = problem.with_sequences(offsets).validate().unwrap();
    assert_eq!((valid.batches, valid.query_rows, valid.key_rows), (3, 5, 0));
    assert_eq!((valid.lse_elements(), valid.lse_strides()), (28, [0, 7]));
    let max_query_rows = MAX_ROWS as usize;
    let loose = Sequences::Packed { count: 3, max_query_rows, max_key_rows: 100 };
    let valid = problem.with_sequences(loose).validate().unwrap();
    assert_eq!((valid.query_rows, valid.key_rows), (7, 0));
    let strided = problem.with_sequences(Sequences::Strided).validate().unwrap();
    assert_eq!((strided.lse_elements(), strided.lse_strides()), (28, [28, 7]));
}

#[test]
fn nothing_may_be_anything_but_the_head_dimension() {
    for (batches, query_rows, key_rows, heads) in
        [(0, 1, 1, 1), (1, 0, 1, 1), (1, 1, 0, 1), (1, 1, 1, 0)]
    {
        let q = Layout::bshd([batches, query_rows, heads, 8]);
        let k = Layout::bshd([batches, key_rows, heads, 8]);
        let valid = ForwardProblem::new(Dtype::F32, q, k, k).validate().unwrap();
        assert_eq!(valid.is_empty(), key_rows != 0);
        assert_eq!(valid.group_size, 1);
    }
}

#[test]
fn inputs_may_repeat_and_run_backwards() {
    let mut k = Layout::bshd([4, 5, 2, 8]);
    k.strides = [0, -8, 0, 1];
    let problem = ForwardProblem::new(Dtype::Bf16, Layout::bshd([4, 3, 2, 8]), k, k);
    assert!(problem.validate().is_ok());
    assert_eq!((k.span(), k.origin(), k.offset([3, 4, 1, 7])), (40, 32, -25));
}

/// Small or anything.
fn extent() -> impl Strategy<Value = usize> {
    prop_oneof![0usize..300, any::<usize>()]
}

proptest! {
    /// Whatever passes as an output holds each element once: counted, on small layouts.
    #[test]
    fn an_accepted_output_has_no_two_elements_at_one_address(
        shape in proptest::array::uniform4(1usize..4),
        strides in proptest::array::uniform3(-2i64..20),
    ) {
        let [batch, row, head] = strides;
        let layout = Layout { shape, strides: [batch, row, head, 1] };
        if layout.check_output("o").is_ok() {
            let mut seen = std::collections::HashSet::new();
            for index in 0..shape.iter().product::<usize>() {
                let column = index % shape[3];
                let head = index / shape[3] % shape[2];
                let row = index / shape[3] / shape[2] % shape[1];
                let batch = index / shape[3] / shape[2] / shape[1];
                prop_assert!(seen.insert(layout.offset([batch, row, head, column])));
            }
        }
    }

    #[test]
    fn dense_orders_and_slices_of_them_are_accepted_as_outputs(
        shape in proptest::array::uniform4(1usize..6), cut in proptest::array::uniform4(0usize..3),
    ) {
        for mut layout in [Layout::bshd(shape), Layout::bhsd(shape)] {
            for (size, cut) in layout.shape.iter_mut().zip(cut) {
                *size -= cut.min(*size - 1);
            }
            prop_assert_eq!(layout.check_output("o"), Ok(()));
        }
    }

    /// No input, however large, makes validation panic.
    #[test]
    fn validation_never_panics(
        shapes in proptest::array::uniform3(proptest::array::uniform4(extent())),
        strides in proptest::array::uniform3(proptest::array::uniform4(any::<i64>())),
        scale in any::<f32>(),
        softcap in any::<Option<f32>>(),
    ) {
        let layout = |i: usize| Layout { shape: shapes[i], strides: strides[i] };
        let problem = ForwardProblem::new(Dtype::F16, layout(0), layout(1), layout(2)).with_scale(scale);
        let problem = ForwardProblem { softcap, ..problem };
        let _ = problem.validate();
        let _ = problem.q.check_span("q", Dtype::F16);
        let _ = problem.o.check_output("o");
        let mut fitting = problem;
        (fitting.k.shape, fitting.v.shape) = (fitting.q.shape, fitting.q.shape);
        fitting.o = fitting.q;
        let _ = fitting.validate();
    }
}
