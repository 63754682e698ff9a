//! finite-attention for [candle](https://github.com/huggingface/candle): exact attention with gradients.
//!
//! Tensors are `[batch, row, head, column]`, as candle-flash-attn has them: q `[B, Sq, Hq, D]`, k
//! `[B, Sk, Hk, D]`, v `[B, Sk, Hk, Dv]`, all of one dtype (bf16, f16 or f32), and o `[B, Sq, Hq, Dv]` of
//! that dtype. Hq is a multiple of Hk. Any strides do: only where columns do not stand side by side is a
//! tensor copied.
//!
//! ```
//! use candle_core::{Device, Tensor, Var};
//! use finite_attention_candle::attention;
//!
//! # fn main() -> candle_core::Result<()> {
//! let q = Var::randn(0f32, 1.0, (1, 5, 4, 8), &Device::Cpu)?;
//! let kv = Tensor::randn(0f32, 1.0, (1, 7, 2, 8), &Device::Cpu)?;
//! let o = attention(&q, &kv, &kv, |problem| problem.causal().with_softcap(30.0))?;
//! let gradients = o.sqr()?.sum_all()?.backward()?;
//! assert_eq!(gradients.get(&q).unwrap().dims(), [1, 5, 4, 8]);
//! # Ok(())
//! # }
//! ```
//!
//! **Where it runs.** Tensors on a CUDA device stay there (feature `cuda`): kernels are queued on candle's
//! stream, and nothing waits. Tensors of the host are computed in the emulator, which checks every access and
//! is slower by far, or on the device that [`Attention::on`] names.
//!
//! **What is asked** beside shapes says the last argument, with the builders of [`ForwardProblem`]: masks,
//! windows, scale, softcap, dropout. A query that sees no key has o = 0, and gives no gradients.
//!
//! **Errors** are candle's, with the texts of [`finite_attention::Error`]: the argument, what was expected
//! and what came. What a backward pass could not do is refused by the forward pass.

#[cfg(feature = "cuda")]
mod cuda;
mod host;
mod pass;

pub use finite_attention;

use candle_core::{DType, Result, Tensor};
use finite_attention::problem::common_dtype;
use finite_attention::{
    BackwardProblem, Device, Dtype, Error, ForwardProblem, Layout as ProblemLayout, Mode,
};
use pass::Pass;

/// Attention of q to k and v, with gradients of all three; as [`Attention::apply`] of the default.
///
/// # Errors
/// Those of [`Attention::apply`].
pub fn attention(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    ask: impl FnOnce(ForwardProblem) -> ForwardProblem,
) -> Result<Tensor> {
    Attention::default().apply(q, k, v, ask)
}

/// How attention is computed, beside what is asked of it.
///
/// ```
/// use finite_attention_candle::{Attention, finite_attention::Device};
/// let attention = Attention::default().deterministic().on(Device::parse("emulated:sm_90a")?);
/// # Ok::<(), finite_attention_candle::finite_attention::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Attention {
    mode: Mode,
    device: Option<Device>,
}

impl Attention {
    /// All gradients are the same bits in every run.
    pub fn deterministic(self) -> Self {
        Attention { mode: Mode::Deterministic, ..self }
    }

    /// Tensors of the host are computed on this device: a GPU, to which they are copied and back, or another
    /// emulator. Tensors on a GPU stay where they are.
    pub fn on(self, device: Device) -> Self {
        Attention { device: Some(device), ..self }
    }

    /// o `[B, Sq, Hq, Dv]` of q `[B, Sq, Hq, D]`, k `[B, Sk, Hk, D]` and v `[B, Sk, Hk, Dv]`, all of one
    /// dtype: bf16, f16 or f32. `ask` gets the problem of full attention with the default scale, `D^-0.5`,
    /// and returns what is asked; the layouts and dtypes in it are those of the tensors, whatever it says.
    ///
    /// If a gradient of q, k or v can be asked for, lse is kept for the backward pass: f32 `[B, Hq, Sq]`.
    ///
    /// # Errors
    /// What [`ForwardProblem::validate`] and [`BackwardProblem::validate`] refuse, other dtypes, bias, masks
    /// of bits, slopes, sinks and packed sequences, for which there is no tensor here, and errors of the
    /// device.
    pub fn apply(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        ask: impl FnOnce(ForwardProblem) -> ForwardProblem,
    ) -> Result<Tensor> {
        let dtype = lift(dtype_of([("q", q), ("k", k), ("v", v)]))?;
        let (q, k, v) = (columns_together(q)?, columns_together(k)?, columns_together(v)?);
        let whole = ForwardProblem::new(dtype, layout("q", &q)?, layout("k", &k)?, layout("v", &v)?);
        let has_gradient = [&q, &k, &v].into_iter().any(Tensor::track_op);
        let ForwardProblem { q: of_q, k: of_k, v: of_v, o, .. } = whole;
        let problem = ForwardProblem {
            q: of_q,
            k: of_k,
            v: of_v,
            o,
            dtype,
            output_dtype: dtype,
            wants_lse: has_gradient,
            ..ask(whole)
        };
        let backward = BackwardProblem::new(problem).with_mode(self.mode);
        lift(backward.validate())?;
        q.apply_op3(&k, &v, Pass::new(backward, self.device.clone()))
    }
}

/// An error of the library as candle's, with its text.
fn lift<T>(result: finite_attention::Result<T>) -> Result<T> {
    result.map_err(candle_core::Error::wrap)
}

/// The dtype that all have.
fn dtype_of(tensors: [(&'static str, &Tensor); 3]) -> finite_attention::Result<Dtype> {
    let known = |(argument, tensor): (&'static str, &Tensor)| match tensor.dtype() {
        DType::BF16 => Ok((argument, Dtype::Bf16)),
        DType::F16 => Ok((argument, Dtype::F16)),
        DType::F32 => Ok((argument, Dtype::F32)),
        other => Err(Error::UnsupportedDtype {
            argument,
            expected: "bf16, f16 or f32".to_owned(),
            got: other.as_str().to_owned(),
        }),
    };
    let [q, k, v] = tensors;
    common_dtype(&[known(q)?, known(k)?, known(v)?])
}

/// Where the elements of a tensor stand.
fn layout(argument: &'static str, tensor: &Tensor) -> Result<ProblemLayout> {
    let strides: Vec<i64> = tensor.stride().iter().map(|&stride| stride as i64).collect();
    lift(ProblemLayout::from_slices(argument, tensor.dims(), &strides))
}

/// The tensor, or a copy of it if columns do not stand side by side, which kernels want.
fn columns_together(tensor: &Tensor) -> Result<Tensor> {
    match (tensor.dims().last(), tensor.stride().last()) {
        (Some(&columns), Some(&stride)) if columns > 1 && stride != 1 => tensor.contiguous(),
        _ => Ok(tensor.clone()),
    }
}
