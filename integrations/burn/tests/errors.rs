//! Errors are the library's.

use burn::tensor::{DType, Device, Tensor};
use finite_attention_burn::attention;
use finite_attention_burn::finite_attention::problem::{Bias, ScoreLayout};
use finite_attention_burn::finite_attention::{Dtype, Error, ForwardProblem, Sequences};

fn zeros(shape: [usize; 4], dtype: DType) -> Tensor<4> {
    Tensor::zeros(shape, (&Device::flex().autodiff(), dtype))
}

/// The error of a call.
fn error([q, k, v]: [&Tensor<4>; 3], ask: impl FnOnce(ForwardProblem) -> ForwardProblem) -> Error {
    attention(q.clone(), k.clone(), v.clone(), ask).expect_err("it should be refused")
}

#[test]
fn shapes_and_dtypes_that_do_not_fit_are_named() {
    let q = zeros([1, 2, 4, 8], DType::F32);
    let of = |tensors, text: &str| assert_eq!(error(tensors, |problem| problem).to_string(), text);
    let wide = zeros([1, 2, 4, 9], DType::F32);
    of([&q, &wide, &q], "k: expected head_dim 8 like q, got 9");
    let short = zeros([1, 2, 3, 8], DType::F32);
    of([&q, &q, &short], "v: expected rows 4 like k, got 3");
    let heads = zeros([1, 3, 4, 8], DType::F32);
    of([&heads, &q, &q], "q: expected heads to be a multiple of the 2 of k, got 3");
    let large = zeros([1, 2, 4, 257], DType::F32);
    of([&large, &large, &large], "q: expected head_dim 1..=256, got 257");
    let half = zeros([1, 2, 4, 8], DType::F16);
    of([&q, &q, &half], "v: expected dtype f32 like q, got f16");
    let double = zeros([1, 2, 4, 8], DType::F64);
    of([&double, &double, &double], "q: expected dtype bf16, f16 or f32, got f64");
}

#[test]
fn what_cannot_be_asked_is_refused() {
    let q = zeros([1, 2, 4, 8], DType::F32).require_grad();
    let of = |ask: fn(ForwardProblem) -> ForwardProblem| error([&q, &q, &q], ask);
    assert!(matches!(of(|problem| problem.with_scale(f32::NAN)), Error::Scale { got } if got.is_nan()));
    let bias = |problem: ForwardProblem| {
        problem.with_bias(Bias { layout: ScoreLayout::dense([1, 1, 4, 4]), dtype: Dtype::F32 })
    };
    assert_eq!(of(bias).to_string(), "bias: expected 16 elements for shape [1, 1, 4, 4], got 0");
    let packed = |problem: ForwardProblem| {
        problem.with_sequences(Sequences::Packed { count: 2, max_query_rows: 2, max_key_rows: 2 })
    };
    assert_eq!(of(packed), Error::OffsetCount { argument: "cu_seqlens_q", expected: 3, got: 0 });
}

#[test]
fn layouts_are_those_of_the_tensors_whatever_is_asked() {
    let q = zeros([1, 2, 4, 8], DType::F32).require_grad();
    let o = attention(q.clone(), q.clone(), q.clone(), |problem| {
        let mut other = problem;
        other.q.shape[1] = 9;
        other.output_dtype = Dtype::Bf16;
        other.without_lse()
    });
    let o = o.expect("attention");
    assert_eq!((o.dims(), o.dtype()), ([1, 2, 4, 8], DType::F32));
    assert!(q.grad(&o.sum().backward()).is_some());
}
