//! The safe doors of the backward pass and of packed sequences.

mod support;

use finite_attention::{
    BackwardInputs, BackwardOutput, BackwardProblem, Dtype, ForwardOutput, ForwardProblem, Layout, Mode,
    ScoreSlices, Sequences, backward_host, forward_host, forward_packed_host,
};
use support::{Fault, device};

/// Deterministic numbers between -1 and 1.
fn numbers(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|at| ((at * 37 + seed * 101) % 64) as f32 / 32.0 - 1.0).collect()
}

fn backward(
    problem: BackwardProblem,
    [q, k, v, d_o]: [&[f32]; 4],
    d_lse: &[f32],
    [cu_seqlens_q, cu_seqlens_k]: [&[i32]; 2],
) -> BackwardOutput<f32> {
    let device = device(Fault::None);
    let ForwardOutput::<f32> { o, lse } =
        forward_packed_host(&device, &problem.forward, [q, k, v], cu_seqlens_q, cu_seqlens_k).unwrap();
    let (o, lse) = (&o, &lse);
    let scores = ScoreSlices::default();
    let inputs = BackwardInputs { q, k, v, o, lse, d_o, d_lse, scores, cu_seqlens_q, cu_seqlens_k };
    backward_host(&device, &problem, &inputs).unwrap()
}

/// Gradients of q, k and v alone.
fn output(dq: Vec<f32>, dk: Vec<f32>, dv: Vec<f32>) -> BackwardOutput<f32> {
    BackwardOutput { dq, dk, dv, d_bias: None, d_sinks: vec![] }
}

#[test]
fn packed_sequences_get_what_each_gets_alone() {
    let lengths = [[3, 5], [0, 2], [4, 0], [2, 2]];
    let (q, d_o) = (numbers(9 * 2 * 4, 1), numbers(9 * 2 * 4, 2));
    let (k, v) = (numbers(9 * 4, 3), numbers(9 * 4, 4));
    let offsets = [[0, 3, 3, 7, 9], [0, 5, 7, 7, 9]];
    let sequences = Sequences::from_offsets(&offsets[0], &offsets[1]).unwrap();
    let (query, key) = (Layout::packed([9, 2, 4]), Layout::packed([9, 1, 4]));
    let forward = ForwardProblem::new(Dtype::F32, query, key, key).causal();
    let whole = BackwardProblem::new(forward.with_sequences(sequences));
    let whole = backward(whole, [&q, &k, &v, &d_o], &[], [&offsets[0], &offsets[1]]);
    for (at, [queries, keys]) in lengths.into_iter().enumerate() {
        let (first_query, first_key) = (offsets[0][at] as usize, offsets[1][at] as usize);
        let (query, key) = (Layout::bshd([1, queries, 2, 4]), Layout::bshd([1, keys, 1, 4]));
        let problem = BackwardProblem::new(ForwardProblem::new(Dtype::F32, query, key, key).causal());
        let of_query = first_query * 8..(first_query + queries) * 8;
        let of_key = first_key * 4..(first_key + keys) * 4;
        let (q, d_o) = (&q[of_query.clone()], &d_o[of_query.clone()]);
        let alone = backward(problem, [q, &k[of_key.clone()], &v[of_key.clone()], d_o], &[], [&[], &[]]);
        assert_eq!(alone.dq, whole.dq[of_query]);
        assert_eq!(alone.dk, whole.dk[of_key.clone()]);
        assert_eq!(alone.dv, whole.dv[of_key]);
    }
}

#[test]
fn no_queries_give_zeros_and_no_keys_give_zeros() {
    for heads in [2, 0] {
        let (none, some) = (Layout::bshd([1, 0, heads, 4]), Layout::bshd([1, 3, 2, 4]));
        let problem = BackwardProblem::new(ForwardProblem::new(Dtype::F32, none, some, some));
        let gradients = backward(problem, [&[], &[1.0; 24], &[1.0; 24], &[]], &[], [&[], &[]]);
        assert_eq!(gradients, output(vec![], vec![0.0; 24], vec![0.0; 24]));
    }
    for mode in [Mode::Fast, Mode::Deterministic] {
        let (none, some) = (Layout::bshd([1, 0, 2, 4]), Layout::bshd([1, 3, 2, 4]));
        let problem = BackwardProblem::new(ForwardProblem::new(Dtype::F32, some, none, none));
        let problem = problem.with_mode(mode);
        let gradients = backward(problem, [&[1.0; 24], &[], &[], &[1.0; 24]], &[], [&[], &[]]);
        assert_eq!(gradients, output(vec![0.0; 24], vec![], vec![]));
    }
}

#[test]
fn no_packed_queries_at_all_give_zeros() {
    let (none, some) = (Layout::packed([0, 4, 4]), Layout::packed([3, 2, 4]));
    let sequences = Sequences::Packed { count: 2, max_query_rows: 9, max_key_rows: 2 };
    let forward = ForwardProblem::new(Dtype::F32, none, some, some).with_sequences(sequences);
    let offsets = [[0, 0, 0].as_slice(), &[0, 2, 3]];
    let gradients =
        backward(BackwardProblem::new(forward), [&[], &[1.0; 24], &[1.0; 24], &[]], &[], offsets);
    assert_eq!(gradients, output(vec![], vec![0.0; 24], vec![0.0; 24]));
}

#[test]
fn a_gradient_of_lse_alone_is_that_of_the_softmax() {
    // lse = ln(e^a + e^b): its gradient by the scores is (1/4, 3/4).
    let (query, key) = (Layout::bshd([1, 1, 1, 1]), Layout::bshd([1, 2, 1, 1]));
    let forward = ForwardProblem::new(Dtype::F32, query, key, key).with_scale(2.0);
    let keys = [0.0, 3f32.ln() / 2.0];
    let problem = BackwardProblem::new(forward).with_d_lse();
    let gradients = backward(problem, [&[1.0], &keys, &[5.0, 7.0], &[0.0]], &[1.0], [&[], &[]]);
    let near = |got: f32, exact: f32| (got - exact).abs() < 1e-6;
    assert!(near(gradients.dk[0], 0.5) && near(gradients.dk[1], 1.5), "{:?}", gradients.dk);
    assert!(near(gradients.dq[0], 2.0 * 0.75 * keys[1]), "{:?}", gradients.dq);
    assert_eq!(gradients.dv, [0.0, 0.0]);
}

#[test]
fn a_window_hides_what_is_far_from_the_diagonal() {
    use finite_attention::{CausalAlignment, Mask};
    let layout = Layout::bshd([1, 5, 1, 1]);
    let (zero, v) = ([0.0; 5], [1.0, 2.0, 4.0, 8.0, 16.0]);
    let o = |left, right| {
        let mask = Mask::Window { left, right, alignment: CausalAlignment::BottomRight };
        let problem = ForwardProblem::new(Dtype::F32, layout, layout, layout).with_mask(mask);
        let output: ForwardOutput<f32> =
            forward_host(&device(Fault::None), &problem, &zero, &zero, &v).unwrap();
        output.o
    };
    assert_eq!(o(Some(0), Some(0)), v);
    assert_eq!(o(Some(1), Some(0)), [1.0, 1.5, 3.0, 6.0, 12.0]);
    assert_eq!(o(None, Some(0))[1], 1.5);
    assert_eq!(o(Some(u32::MAX), None), [6.2; 5]);
}
