//! Errors are the library's.

use burn::tensor::{Bool, DType, Device, Tensor};
use finite_attention_burn::finite_attention::problem::{Bias, ScoreLayout};
use finite_attention_burn::finite_attention::{Dtype, Error, ForwardProblem, Sequences};
use finite_attention_burn::{Attention, attention};

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
    let sinks = of(|problem| problem.with_sinks());
    assert_eq!(sinks.to_string(), "sinks: expected 2 elements for shape [2], got 0");
    let dropout = of(|problem| problem.with_dropout(1.0, 0, 0));
    assert_eq!(dropout, Error::DropoutRate { got: 1.0 });
}

/// f32 zeros.
fn single<const D: usize>(shape: [usize; D]) -> Tensor<D> {
    Tensor::zeros(shape, (&Device::flex().autodiff(), DType::F32))
}

#[test]
fn tensors_beside_q_k_and_v_that_do_not_fit_are_named() {
    let (q, kv) = (zeros([3, 6, 4, 8], DType::F16), zeros([3, 2, 5, 8], DType::F16));
    let of = |attention: Attention, expected: &str| {
        let result = attention.apply(q.clone(), kv.clone(), kv.clone(), |problem| problem);
        assert_eq!(result.expect_err("it should be refused").to_string(), expected);
    };
    let door = Attention::default;
    let bias = |shape, dtype| door().with_bias(zeros(shape, dtype));
    of(bias([1, 1, 3, 5], DType::F32), "bias: expected queries 1 or 4, got 3");
    of(bias([3, 3, 4, 5], DType::F32), "bias: expected heads 1, 2 or 6, got 3");
    of(bias([2, 1, 1, 5], DType::F32), "bias: expected batch 1 or 3, got 2");
    of(bias([1, 1, 4, 5], DType::F64), "bias: expected dtype f16 like q, or f32, got f64");
    of(bias([1, 1, 4, 5], DType::BF16), "bias: expected dtype f16 like q, or f32, got bf16");
    let mask = |shape: [usize; 4]| {
        door().with_mask(Tensor::<4, Bool>::empty(shape, &Device::flex().autodiff()))
    };
    of(mask([1, 1, 4, 4]), "mask: expected keys 1 or 5, got 4");
    of(mask([1, 1, 3, 5]), "mask: expected queries 1 or 4, got 3");
    of(door().with_alibi(single([2])), "alibi_slopes: expected heads 6 like q, got 2");
    of(door().with_alibi(single([1, 6])), "alibi_slopes: expected batch 3 like q, got 1");
    let rank = "alibi_slopes: expected 1 dimension [head], or 2 [batch, head], got 3";
    of(door().with_alibi(single([1, 1, 6])), rank);
    let half = |tensor: Tensor<1>| tensor.cast(DType::F16);
    of(door().with_alibi(half(single([6]))), "alibi_slopes: expected dtype f32, got f16");
    of(door().with_sinks(single([2])), "sinks: expected heads 6 like q, got 2");
    of(door().with_sinks(half(single([6]))), "sinks: expected dtype f32, got f16");
}

#[test]
fn packed_sequences_that_do_not_fit_are_named() {
    let of = |of_q: &[i32], of_k: &[i32], batches| {
        let tensor = single([batches, 2, 4, 8]);
        let attention = Attention::default().packed(of_q, of_k);
        let result = attention.apply(tensor.clone(), tensor.clone(), tensor, |problem| problem);
        result.expect_err("it should be refused").to_string()
    };
    assert_eq!(of(&[0, 4], &[0, 4], 2), "q: expected batch 1 like packed sequences, got 2");
    assert_eq!(of(&[0, 4], &[0, 1, 4], 1), "cu_seqlens_k: expected 2 offsets, got 3");
    assert_eq!(of(&[], &[], 1), "cu_seqlens_q: expected 1 offsets, got 0");
    assert_eq!(of(&[1, 4], &[0, 4], 1), "cu_seqlens_q: expected offset 0 to be 0, got 1");
    let beyond = "cu_seqlens_k: expected offset 1 to be 4 like the rows that are there, got 5";
    assert_eq!(of(&[0, 4], &[0, 5], 1), beyond);
}

#[cfg(feature = "ndarray")]
#[test]
#[allow(deprecated)]
fn tensors_of_other_devices_are_named() {
    let q = single([1, 2, 4, 8]);
    let elsewhere = |shape: [usize; 4]| Tensor::<4>::zeros(shape, &Device::ndarray().autodiff());
    let of_k = error([&q, &elsewhere([1, 2, 4, 8]), &q], |problem| problem);
    assert_eq!(of_k.to_string(), "k: expected device Flex(Cpu) like q, got NdArray(Cpu)");
    let attention = Attention::default().with_bias(elsewhere([1, 1, 4, 4]));
    let result = attention.apply(q.clone(), q.clone(), q, |problem| problem);
    let of_bias = result.expect_err("it should be refused").to_string();
    assert_eq!(of_bias, "bias: expected device Flex(Cpu) like q, got NdArray(Cpu)");
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
