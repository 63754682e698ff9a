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
//! **What is asked** beside shapes says the last argument, with the builders of [`ForwardProblem`]: causal
//! masks, windows, scale, softcap, dropout. A query that sees no key has o = 0, and gives no gradients.
//!
//! **Tensors beside q, k and v** are given to [`Attention`]: a bias and sinks, which have gradients, a
//! boolean mask, slopes of ALiBi, and the offsets of packed sequences.
//!
//! ```
//! use candle_core::{DType, Device, Tensor, Var};
//! use finite_attention_candle::Attention;
//!
//! # fn main() -> candle_core::Result<()> {
//! let qkv = Tensor::randn(0f32, 1.0, (1, 5, 4, 8), &Device::Cpu)?;
//! let bias = Var::zeros((4, 5, 5), DType::F32, &Device::Cpu)?; // heads, queries, keys: of all batches
//! let visible = Tensor::from_slice(&[1u8, 1, 1, 1, 0], 5, &Device::Cpu)?; // the last key is hidden
//! let attention = Attention::default().with_bias(&bias).with_mask(&visible);
//! let o = attention.apply(&qkv, &qkv, &qkv, |problem| problem.with_dropout(0.1, 42, 0))?;
//! let gradients = o.sqr()?.sum_all()?.backward()?;
//! assert_eq!(gradients.get(&bias).unwrap().dims(), [4, 5, 5]);
//! # Ok(())
//! # }
//! ```
//!
//! An operator of candle has no more than three inputs. Where bias or sinks have gradients q, k and v are
//! one of them: they are copied, once, into a tensor that holds them one after another.
//!
//! **Errors** are candle's, with the texts of [`finite_attention::Error`]: the argument, what was expected
//! and what came. What a backward pass could not do is refused by the forward pass.

#[cfg(feature = "cuda")]
mod cuda;
mod host;
mod pass;
mod scores;

pub use finite_attention;

use candle_core::{DType, Result, Tensor};
use finite_attention::problem::{Bias, ScoreLayout, common_dtype};
use finite_attention::{
    BackwardProblem, Device, Dtype, Error, ForwardProblem, Layout as ProblemLayout, Mode, Sequences,
};
use pass::{Apart, Joined, Pass};
use scores::{Scores, same_device};
use std::sync::Arc;

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

/// How attention is computed, and the tensors that it has beside q, k and v.
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
    scores: Scores,
    /// `cu_seqlens_q` and `cu_seqlens_k`.
    offsets: Option<[Arc<[i32]>; 2]>,
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

    /// Adds a bias to scores, once they are scaled and capped: `[B|1, Hq|Hk|1, Sq|1, Sk|1]` or the last of
    /// these dimensions, of the dtype of q, or f32. It has a gradient, of its own shape and dtype. Minus
    /// infinity hides a key.
    ///
    /// Of packed sequences B is how many they are, and Sq and Sk are the longest.
    pub fn with_bias(self, bias: &Tensor) -> Self {
        Attention { scores: Scores { bias: Some(bias.clone()), ..self.scores }, ..self }
    }

    /// Shows a query the keys alone where this is not 0: u8 `[B|1, Hq|Hk|1, Sq|1, Sk|1]`, or the last of
    /// these dimensions; of packed sequences as a bias. A causal mask or a window hides more.
    ///
    /// Candle has no rule of its own. A mask that is 1 where a key is hidden, as for `masked_fill` in many
    /// models, is turned around first: `mask.eq(0u8)?`.
    pub fn with_mask(self, mask: &Tensor) -> Self {
        Attention { scores: Scores { mask: Some(mask.clone()), ..self.scores }, ..self }
    }

    /// Subtracts slopes times the distance of query and key from scores (ALiBi): f32 `[Hq]` or `[B, Hq]`; of
    /// packed sequences B is how many they are. Slopes get no gradient.
    pub fn with_alibi(self, slopes: &Tensor) -> Self {
        Attention { scores: Scores { slopes: Some(slopes.clone()), ..self.scores }, ..self }
    }

    /// Adds `exp(sink)` of its head to the denominator of each softmax: f32 `[Hq]`, with a gradient.
    pub fn with_sinks(self, sinks: &Tensor) -> Self {
        Attention { scores: Scores { sinks: Some(sinks.clone()), ..self.scores }, ..self }
    }

    /// Sequences stand one after another along the rows, from one of these offsets to the next: q `[Tq, Hq,
    /// D]`, k `[Tk, Hk, D]`, v `[Tk, Hk, Dv]` and o `[Tq, Hq, Dv]`. Offsets ascend from 0 to Tq and Tk, and
    /// are numbers of the host, so that they can be checked.
    pub fn packed(self, cu_seqlens_q: &[i32], cu_seqlens_k: &[i32]) -> Self {
        Attention { offsets: Some([cu_seqlens_q.into(), cu_seqlens_k.into()]), ..self }
    }

    /// o `[B, Sq, Hq, Dv]` of q `[B, Sq, Hq, D]`, k `[B, Sk, Hk, D]` and v `[B, Sk, Hk, Dv]`, all of one
    /// dtype: bf16, f16 or f32. `ask` gets the problem of full attention with the default scale, `D^-0.5`,
    /// and returns what is asked; the layouts and dtypes in it are those of the tensors, whatever it says.
    ///
    /// If a gradient of q, k, v, bias or sinks can be asked for, lse is kept for the backward pass: f32
    /// `[B, Hq, Sq]`.
    ///
    /// # Errors
    /// What [`ForwardProblem::validate`] and [`BackwardProblem::validate`] refuse, and
    /// [`Sequences::check_offsets`]; tensors of other dtypes, ranks, sizes and devices, and what is asked for
    /// and has no tensor; errors of the device.
    pub fn apply(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        ask: impl FnOnce(ForwardProblem) -> ForwardProblem,
    ) -> Result<Tensor> {
        let dtype = lift(dtype_of([("q", q), ("k", k), ("v", v)]))?;
        same_device("k", k, q)?;
        same_device("v", v, q)?;
        let (q, k, v) = (self.batched("q", q)?, self.batched("k", k)?, self.batched("v", v)?);
        let whole = ForwardProblem::new(dtype, layout("q", &q)?, layout("k", &k)?, layout("v", &v)?);
        let whole = match &self.offsets {
            None => whole,
            Some([of_q, of_k]) => whole.with_sequences(lift(Sequences::from_offsets(of_q, of_k))?),
        };
        let asked = ask(whole);
        let ForwardProblem { q: of_q, k: of_k, v: of_v, o, .. } = whole;
        let sequences = if self.offsets.is_some() { whole.sequences } else { asked.sequences };
        let shapes = ForwardProblem {
            q: of_q,
            k: of_k,
            v: of_v,
            o,
            dtype,
            output_dtype: dtype,
            sequences,
            ..asked
        };
        let offsets = self.offsets.clone().unwrap_or_default();
        lift(sequences.check_offsets(of_q.shape[1], of_k.shape[1], &offsets[0], &offsets[1]))?;
        let (scores, problem) = self.scores.checked(shapes, &q)?;
        let differentiable = scores.differentiable();
        let is_joined = differentiable.iter().any(Option::is_some);
        let wants_lse = is_joined || [&q, &k, &v].into_iter().any(Tensor::track_op);
        let dense = |layout: ProblemLayout| match is_joined {
            true => ProblemLayout::bshd(layout.shape),
            false => layout,
        };
        let (of_q, of_k, of_v) = (dense(of_q), dense(of_k), dense(of_v));
        let problem = ForwardProblem { q: of_q, k: of_k, v: of_v, wants_lse, ..problem };
        let backward = BackwardProblem {
            d_bias: problem.bias.filter(|_| differentiable[0].is_some()).map(dense_bias),
            wants_d_sinks: differentiable[1].is_some(),
            ..BackwardProblem::new(problem).with_mode(self.mode)
        };
        lift(backward.validate())?;
        let pass = Pass::new(backward, scores.detached(), offsets, self.device.clone());
        let o = if is_joined {
            let parts = [q.flatten_all()?, k.flatten_all()?, v.flatten_all()?];
            let none = Tensor::zeros(1, DType::F32, q.device())?;
            let [bias, sinks] = differentiable.map(|tensor| tensor.unwrap_or(&none));
            Tensor::cat(&parts, 0)?.apply_op3(bias, sinks, Joined(pass))?
        } else {
            q.apply_op3(&k, &v, Apart(pass))?
        };
        if self.offsets.is_some() { o.squeeze(0) } else { Ok(o) }
    }

    /// The tensor `[batch, row, head, column]`, with columns side by side.
    fn batched(&self, argument: &'static str, tensor: &Tensor) -> Result<Tensor> {
        let tensor = columns_together(tensor)?;
        if self.offsets.is_none() {
            return Ok(tensor);
        }
        let (got, names) = (tensor.dims().len(), "[row, head, column]");
        if got != 3 {
            return lift(Err(Error::WrongRank { argument, expected: 3, names, got }));
        }
        tensor.unsqueeze(0)
    }
}

/// The same shape and dtype, dense.
fn dense_bias(bias: Bias) -> Bias {
    Bias { layout: ScoreLayout::dense(bias.layout.shape), ..bias }
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
