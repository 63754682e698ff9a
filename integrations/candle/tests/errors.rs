//! Errors are candle's, with the library's texts.

use candle_core::{DType, Device, Result, Tensor, Var};
use finite_attention_candle::attention;
use finite_attention_candle::finite_attention::problem::{Bias, ScoreLayout};
use finite_attention_candle::finite_attention::{Dtype, ForwardProblem, Sequences};

fn zeros(shape: &[usize], dtype: DType) -> Result<Tensor> {
    Tensor::zeros(shape, dtype, &Device::Cpu)
}

/// The error of a call.
fn error([q, k, v]: [&Tensor; 3], ask: impl FnOnce(ForwardProblem) -> ForwardProblem) -> String {
    let error = attention(q, k, v, ask).expect_err("it should be refused").to_string();
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
