//! Errors are candle's, with the library's texts.

use candle_core::{DType, Device, Result, Tensor, Var};
use finite_attention_candle::finite_attention::problem::{Bias, ScoreLayout};
use finite_attention_candle::finite_attention::{Dtype, ForwardProblem, Sequences};
use finite_attention_candle::{Attention, attention};

fn zeros(shape: &[usize], dtype: DType) -> Result<Tensor> {
    Tensor::zeros(shape, dtype, &Device::Cpu)
}

/// The error of a call.
fn error([q, k, v]: [&Tensor; 3], ask: impl FnOnce(ForwardProblem) -> ForwardProblem) -> String {
    text(attention(q, k, v, ask))
}

/// The text of an error.
fn text(result: Result<Tensor>) -> String {
    let error = result.expect_err("it should be refused").to_string();
    // Behind it there is a backtrace, if the environment asks for them.
    error.lines().next().unwrap_or_default().to_owned()
}

#[test]
fn shapes_and_dtypes_that_do_not_fit_are_named() -> Result<()> {
    let q = zeros(&[1, 4, 2, 8], DType::F32)?;
    let of = |tensors, text: &str| assert_eq!(error(tensors, |problem| problem), text);
    let flat = zeros(&[4, 2, 8], DType::F32)?;
    of([&flat, &q, &q], "q: expected 4 dimensions [batch, row, head, column], got 3");
    let wide = zeros(&[1, 4, 2, 9], DType::F32)?;
    of([&q, &wide, &q], "k: expected head_dim 8 like q, got 9");
    let heads = zeros(&[1, 4, 3, 8], DType::F32)?;
    of([&heads, &q, &q], "q: expected heads to be a multiple of the 2 of k, got 3");
    let large = zeros(&[1, 4, 2, 257], DType::F32)?;
    of([&large, &large, &large], "q: expected head_dim 1..=256, got 257");
    let half = zeros(&[1, 4, 2, 8], DType::F16)?;
    of([&q, &q, &half], "v: expected dtype f32 like q, got f16");
    let double = zeros(&[1, 4, 2, 8], DType::F64)?;
    of([&double, &double, &double], "q: expected dtype bf16, f16 or f32, got f64");
    Ok(())
}

#[test]
fn what_cannot_be_asked_is_refused() -> Result<()> {
    let q = Var::ones((1, 4, 2, 8), DType::F32, &Device::Cpu)?;
    let of = |ask: fn(ForwardProblem) -> ForwardProblem| error([&q, &q, &q], ask);
    assert_eq!(
        of(|problem| problem.with_scale(f32::NAN)),
        "scale: expected a number from -1.1793287e38 to 1.1793287e38, got NaN"
    );
    let bias = |problem: ForwardProblem| {
        problem.with_bias(Bias { layout: ScoreLayout::dense([1, 1, 4, 4]), dtype: Dtype::F32 })
    };
    assert_eq!(of(bias), "bias: expected 16 elements for shape [1, 1, 4, 4], got 0");
    let packed = |problem: ForwardProblem| {
        problem.with_sequences(Sequences::Packed { count: 2, max_query_rows: 2, max_key_rows: 2 })
    };
    assert_eq!(of(packed), "cu_seqlens_q: expected 3 offsets, got 0");
    assert_eq!(of(|problem| problem.with_sinks()), "sinks: expected 2 elements for shape [2], got 0");
    let dropout = of(|problem| problem.with_dropout(1.0, 0, 0));
    assert!(dropout.starts_with("dropout_rate: expected a number of at least 0 and below"), "{dropout}");
    Ok(())
}

#[test]
fn tensors_beside_q_k_and_v_that_do_not_fit_are_named() -> Result<()> {
    let q = zeros(&[3, 4, 6, 8], DType::F16)?;
    let kv = zeros(&[3, 5, 2, 8], DType::F16)?;
    let of = |attention: Attention, expected: &str| {
        assert_eq!(text(attention.apply(&q, &kv, &kv, |problem| problem)), expected);
    };
    let (door, f32) = (Attention::default, DType::F32);
    let bias =
        |shape: &[usize], dtype| Ok::<_, candle_core::Error>(door().with_bias(&zeros(shape, dtype)?));
    of(bias(&[3, 5], f32)?, "bias: expected queries 1 or 4, got 3");
    of(bias(&[3, 3, 4, 5], f32)?, "bias: expected heads 1, 2 or 6, got 3");
    of(bias(&[2, 1, 1, 5], f32)?, "bias: expected batch 1 or 3, got 2");
    of(bias(&[1; 5], f32)?, "bias: expected 4 dimensions [batch, head, query, key], got 5");
    of(bias(&[4, 5], DType::F64)?, "bias: expected dtype f16 like q, or f32, got f64");
    of(bias(&[4, 5], DType::BF16)?, "bias: expected dtype f16 like q, or f32, got bf16");
    let mask =
        |shape: &[usize], dtype| Ok::<_, candle_core::Error>(door().with_mask(&zeros(shape, dtype)?));
    of(mask(&[4, 5], f32)?, "mask: expected dtype u8, got f32");
    of(mask(&[4, 4], DType::U8)?, "mask: expected keys 1 or 5, got 4");
    of(mask(&[3, 5], DType::U8)?, "mask: expected queries 1 or 4, got 3");
    let alibi =
        |shape: &[usize], dtype| Ok::<_, candle_core::Error>(door().with_alibi(&zeros(shape, dtype)?));
    of(alibi(&[2], f32)?, "alibi_slopes: expected heads 6 like q, got 2");
    of(alibi(&[1, 6], f32)?, "alibi_slopes: expected batch 3 like q, got 1");
    of(alibi(&[1, 1, 6], f32)?, "alibi_slopes: expected 1 dimension [head], or 2 [batch, head], got 3");
    of(alibi(&[6], DType::F16)?, "alibi_slopes: expected dtype f32, got f16");
    let sinks =
        |shape: &[usize], dtype| Ok::<_, candle_core::Error>(door().with_sinks(&zeros(shape, dtype)?));
    of(sinks(&[2], f32)?, "sinks: expected heads 6 like q, got 2");
    of(sinks(&[1, 6], f32)?, "sinks: expected 1 dimension [head], got 2");
    of(sinks(&[6], DType::BF16)?, "sinks: expected dtype f32, got bf16");
    Ok(())
}

#[test]
fn packed_sequences_that_do_not_fit_are_named() -> Result<()> {
    let packed = zeros(&[4, 2, 8], DType::F32)?;
    let of = |of_q: &[i32], of_k: &[i32], tensor: &Tensor| {
        text(Attention::default().packed(of_q, of_k).apply(tensor, tensor, tensor, |problem| problem))
    };
    let batched = zeros(&[1, 4, 2, 8], DType::F32)?;
    assert_eq!(of(&[0, 4], &[0, 4], &batched), "q: expected 3 dimensions [row, head, column], got 4");
    assert_eq!(of(&[0, 4], &[0, 1, 4], &packed), "cu_seqlens_k: expected 2 offsets, got 3");
    assert_eq!(of(&[], &[], &packed), "cu_seqlens_q: expected 1 offsets, got 0");
    assert_eq!(of(&[1, 4], &[0, 4], &packed), "cu_seqlens_q: expected offset 0 to be 0, got 1");
    let descends = "cu_seqlens_k: expected offset 2 to be at least 5, the one before, got 4";
    assert_eq!(of(&[0, 1, 4], &[0, 5, 4], &packed), descends);
    let beyond = "cu_seqlens_k: expected offset 1 to be 4 like the rows that are there, got 5";
    assert_eq!(of(&[0, 4], &[0, 5], &packed), beyond);
    Ok(())
}

#[test]
fn layouts_are_those_of_the_tensors_whatever_is_asked() -> Result<()> {
    let q = Var::ones((1, 4, 2, 8), DType::F32, &Device::Cpu)?;
    let o = attention(&q, &q, &q, |problem| {
        let mut other = problem;
        other.q.shape[1] = 9;
        other.output_dtype = Dtype::Bf16;
        other.without_lse()
    })?;
    assert_eq!((o.dims(), o.dtype()), ([1, 4, 2, 8].as_slice(), DType::F32));
    assert!(o.sum_all()?.backward()?.get(&q).is_some());
    Ok(())
}
