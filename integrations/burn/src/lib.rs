//! finite-attention for [burn](https://github.com/tracel-ai/burn): exact attention with gradients.
//!
//! Tensors are `[batch, head, row, column]`, as in `burn::tensor::module::attention`: q `[B, Hq, Sq, D]`, k
//! `[B, Hk, Sk, D]`, v `[B, Hk, Sk, Dv]`, all of one dtype (bf16, f16 or f32), and o `[B, Hq, Sq, Dv]` of
//! that dtype. Hq is a multiple of Hk.
//!
//! ```
//! use burn::tensor::{Device, Distribution, Tensor};
//! use finite_attention_burn::attention;
//!
//! # fn main() -> finite_attention_burn::finite_attention::Result<()> {
//! let device = Device::flex().autodiff();
//! let random = |shape: [usize; 4]| Tensor::<4>::random(shape, Distribution::Default, &device);
//! let (q, k, v) = (random([1, 4, 5, 8]).require_grad(), random([1, 2, 7, 8]), random([1, 2, 7, 8]));
//! let o = attention(q.clone(), k, v, |problem| problem.causal().with_softcap(30.0))?;
//! let gradients = o.sum().backward();
//! assert_eq!(q.grad(&gradients).unwrap().dims(), [1, 4, 5, 8]);
//! # Ok(())
//! # }
//! ```
//!
//! **Where it runs.** Tensors of a CUDA device stay there (feature `cuda`): see below. Those of `Flex`,
//! `NdArray` (feature `ndarray`) and of CubeCL's other runtimes are copied to the host and computed in the
//! emulator, which checks every access and is slower by far, or on the device that [`Attention::on`] names.
//! Burn panics where a tensor is of another backend.
//!
//! **On a GPU** kernels read and write CubeCL's memory by its addresses. CubeCL does not say which stream it
//! queues on, so that a pass waits for what was queued before it, and is done when it returns.
//!
//! **What is asked** beside shapes says the last argument, with the builders of [`ForwardProblem`]: causal
//! masks, windows, scale, softcap, dropout. A query that sees no key has o = 0, and gives no gradients.
//!
//! **Tensors beside q, k and v** are given to [`Attention`]: a bias and sinks, which have gradients, a
//! boolean mask, slopes of ALiBi, and the offsets of packed sequences.
//!
//! ```
//! use burn::tensor::{Device, Distribution, Tensor};
//! use finite_attention_burn::Attention;
//!
//! # fn main() -> finite_attention_burn::finite_attention::Result<()> {
//! let device = Device::flex().autodiff();
//! let qkv = Tensor::<4>::random([1, 4, 5, 8], Distribution::Default, &device);
//! let bias = Tensor::<4>::zeros([1, 4, 5, 5], &device).require_grad(); // of all batches
//! let shown = Tensor::<1>::from_data([1., 1., 1., 1., 0.], &device).greater_elem(0); // not the last
//! let attention = Attention::default().with_bias(bias.clone()).with_mask(shown.unsqueeze());
//! let o = attention.apply(qkv.clone(), qkv.clone(), qkv, |problem| problem.with_dropout(0.1, 42, 0))?;
//! let gradients = o.powi_scalar(2).sum().backward();
//! assert_eq!(bias.grad(&gradients).unwrap().dims(), [1, 4, 5, 5]);
//! # Ok(())
//! # }
//! ```
//!
//! **Errors** are the library's: the argument, what was expected and what came. What a backward pass could
//! not do is refused by the forward pass; burn's backward passes return no errors, so that there a device
//! that fails is a panic, with the same text.

mod autodiff;
#[cfg(feature = "cuda")]
mod cube;
mod host;
mod ops;
mod pass;
mod scores;

pub use finite_attention;

use burn::backend::Dispatch;
use burn::tensor::{Bool, DType, Device as BurnDevice, Tensor};
use finite_attention::problem::common_dtype;
use finite_attention::{
    BackwardProblem, Device, Dtype, Error, ForwardProblem, Layout, Mode, Result, Sequences,
};
use ops::{AttentionOps, Inputs, Outcome};
use pass::Pass;
use scores::Scores;
use std::sync::Arc;

/// Attention of q to k and v, with gradients of all three; as [`Attention::apply`] of the default.
///
/// # Errors
/// Those of [`Attention::apply`].
pub fn attention(
    q: Tensor<4>,
    k: Tensor<4>,
    v: Tensor<4>,
    ask: impl FnOnce(ForwardProblem) -> ForwardProblem,
) -> Result<Tensor<4>> {
    Attention::default().apply(q, k, v, ask)
}

/// How attention is computed, and the tensors that it has beside q, k and v.
///
/// ```
/// use finite_attention_burn::{Attention, finite_attention::Device};
/// let attention = Attention::default().deterministic().on(Device::parse("emulated:sm_90a")?);
/// # Ok::<(), finite_attention_burn::finite_attention::Error>(())
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

    /// Tensors that are not on a CUDA device are computed on this device: a GPU, to which they are copied and
    /// back, or another emulator.
    pub fn on(self, device: Device) -> Self {
        Attention { device: Some(device), ..self }
    }

    /// Adds a bias to scores, once they are scaled and capped: `[B|1, Hq|Hk|1, Sq|1, Sk|1]`, of the dtype of
    /// q, or f32. It has a gradient, of its own shape and dtype. Minus infinity hides a key.
    ///
    /// Of packed sequences B is how many they are, and Sq and Sk are the longest.
    pub fn with_bias(self, bias: Tensor<4>) -> Self {
        Attention { scores: Scores { bias: Some(bias), ..self.scores }, ..self }
    }

    /// Shows a query the keys alone where this is true: `[B|1, Hq|Hk|1, Sq|1, Sk|1]`, of packed sequences as
    /// a bias. A causal mask or a window hides more. For masks of burn there is [`Attention::with_hidden`].
    pub fn with_mask(self, visible: Tensor<4, Bool>) -> Self {
        Attention { scores: Scores { mask: Some(visible), ..self.scores }, ..self }
    }

    /// As [`Attention::with_mask`], with the rule of burn's own `attention` and of its autoregressive masks:
    /// true where a key is hidden.
    pub fn with_hidden(self, hidden: Tensor<4, Bool>) -> Self {
        self.with_mask(hidden.bool_not())
    }

    /// Subtracts slopes times the distance of query and key from scores (ALiBi): f32 `[Hq]` or `[B, Hq]`; of
    /// packed sequences B is how many they are. Slopes get no gradient.
    pub fn with_alibi<const D: usize>(self, slopes: Tensor<D>) -> Self {
        let dims = slopes.dims().to_vec();
        let slopes = slopes.reshape([dims.iter().product::<usize>()]);
        Attention { scores: Scores { slopes: Some((slopes, dims)), ..self.scores }, ..self }
    }

    /// Adds `exp(sink)` of its head to the denominator of each softmax: f32 `[Hq]`, with a gradient.
    pub fn with_sinks(self, sinks: Tensor<1>) -> Self {
        Attention { scores: Scores { sinks: Some(sinks), ..self.scores }, ..self }
    }

    /// Sequences stand one after another along the rows, from one of these offsets to the next: q `[1, Hq,
    /// Tq, D]`, k `[1, Hk, Tk, D]`, v `[1, Hk, Tk, Dv]` and o `[1, Hq, Tq, Dv]`. Offsets ascend from 0 to Tq
    /// and Tk, and are numbers of the host, so that they can be checked.
    pub fn packed(self, cu_seqlens_q: &[i32], cu_seqlens_k: &[i32]) -> Self {
        Attention { offsets: Some([cu_seqlens_q.into(), cu_seqlens_k.into()]), ..self }
    }

    /// o `[B, Hq, Sq, Dv]` of q `[B, Hq, Sq, D]`, k `[B, Hk, Sk, D]` and v `[B, Hk, Sk, Dv]`, all of one
    /// dtype: bf16, f16 or f32. `ask` gets the problem of full attention with the default scale, `D^-0.5`,
    /// and returns what is asked; the layouts and dtypes in it are those of the tensors, whatever it says.
    ///
    /// If a gradient of q, k, v, bias or sinks can be asked for, burn's graph keeps o and lse, f32
    /// `[B, Hq, Sq]`, for the backward pass.
    ///
    /// # Errors
    /// What [`ForwardProblem::validate`] and [`BackwardProblem::validate`] refuse, and
    /// [`Sequences::check_offsets`]; tensors of other dtypes, sizes and devices, and what is asked for and
    /// has no tensor; errors of the device.
    pub fn apply(
        &self,
        q: Tensor<4>,
        k: Tensor<4>,
        v: Tensor<4>,
        ask: impl FnOnce(ForwardProblem) -> ForwardProblem,
    ) -> Result<Tensor<4>> {
        let dtype = common_dtype(&[dtype("q", &q)?, dtype("k", &k)?, dtype("v", &v)?])?;
        let device = q.device();
        same_device("k", &k.device(), &device)?;
        same_device("v", &v.device(), &device)?;
        let whole = ForwardProblem::new(dtype, layout(&q), layout(&k), layout(&v));
        let whole = match &self.offsets {
            None => whole,
            Some([of_q, of_k]) => whole.with_sequences(Sequences::from_offsets(of_q, of_k)?),
        };
        let o = Layout::bhsd(whole.o.shape);
        let asked = ask(whole.with_output(o));
        let ForwardProblem { q: of_q, k: of_k, v: of_v, .. } = whole;
        let sequences = if self.offsets.is_some() { whole.sequences } else { asked.sequences };
        let shapes = ForwardProblem {
            q: of_q,
            k: of_k,
            v: of_v,
            o,
            dtype,
            output_dtype: dtype,
            sequences,
            wants_lse: true,
            ..asked
        };
        let offsets = self.offsets.clone().unwrap_or_default();
        sequences.check_offsets(of_q.shape[1], of_k.shape[1], &offsets[0], &offsets[1])?;
        let problem = self.scores.checked(shapes, &device)?;
        let backward = BackwardProblem {
            d_bias: problem.bias,
            wants_d_sinks: problem.has_sinks,
            ..BackwardProblem::new(problem)
        };
        let backward = backward.with_d_o(o).with_gradients(of_q, of_k, of_v).with_mode(self.mode);
        backward.validate()?;
        let pass = Pass::new(backward, offsets, self.device.clone());
        let [q, k, v] = [q, k, v].map(Tensor::into_dispatch);
        let Scores { bias, mask, slopes, sinks } = self.scores.clone();
        let inputs = Inputs {
            q,
            k,
            v,
            bias: bias.map(Tensor::into_dispatch).into(),
            sinks: sinks.map(Tensor::into_dispatch).into(),
            slopes: slopes.map(|(slopes, _)| slopes.into_dispatch()).into(),
            mask: mask.map(Tensor::into_dispatch).into(),
        };
        match Dispatch::attention_forward(inputs, pass) {
            Outcome::Done { o, .. } => Ok(Tensor::from_dispatch(o)),
            Outcome::Failed(error) => Err(error),
        }
    }
}

/// A tensor is on the device of q, with gradients or without.
fn same_device(argument: &'static str, got: &BurnDevice, of_q: &BurnDevice) -> Result<()> {
    if got == of_q {
        return Ok(());
    }
    let name = |device: &BurnDevice| format!("{:?}", device.clone().without_autodiff().as_dispatch());
    Err(Error::WrongDevice(argument, name(of_q), "q", name(got)))
}

/// The dtype of a tensor, with its name.
fn dtype(argument: &'static str, tensor: &Tensor<4>) -> Result<(&'static str, Dtype)> {
    match tensor.dtype() {
        DType::BF16 => Ok((argument, Dtype::Bf16)),
        DType::F16 => Ok((argument, Dtype::F16)),
        DType::F32 => Ok((argument, Dtype::F32)),
        other => Err(Error::UnsupportedDtype {
            argument,
            expected: "bf16, f16 or f32".to_owned(),
            got: other.name().to_owned(),
        }),
    }
}

/// Dense, of a tensor `[batch, head, row, column]`.
fn layout(tensor: &Tensor<4>) -> Layout {
    let [batches, heads, rows, columns] = tensor.dims();
    Layout::bhsd([batches, rows, heads, columns])
}
