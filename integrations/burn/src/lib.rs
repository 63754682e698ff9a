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
//! **What is asked** beside shapes says the last argument, with the builders of [`ForwardProblem`]: masks,
//! windows, scale, softcap, dropout. A query that sees no key has o = 0, and gives no gradients.
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

pub use finite_attention;

use burn::backend::Dispatch;
use burn::tensor::{DType, Tensor};
use finite_attention::problem::common_dtype;
use finite_attention::{BackwardProblem, Device, Dtype, Error, ForwardProblem, Layout, Mode, Result};
use ops::{AttentionOps, Outcome};
use pass::Pass;

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

/// How attention is computed, beside what is asked of it.
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

    /// o `[B, Hq, Sq, Dv]` of q `[B, Hq, Sq, D]`, k `[B, Hk, Sk, D]` and v `[B, Hk, Sk, Dv]`, all of one
    /// dtype: bf16, f16 or f32. `ask` gets the problem of full attention with the default scale, `D^-0.5`,
    /// and returns what is asked; the layouts and dtypes in it are those of the tensors, whatever it says.
    ///
    /// If a gradient of q, k or v can be asked for, burn's graph keeps o and lse, f32 `[B, Hq, Sq]`, for the
    /// backward pass.
    ///
    /// # Errors
    /// What [`ForwardProblem::validate`] and [`BackwardProblem::validate`] refuse, other dtypes, bias, masks
    /// of bits, slopes, sinks and packed sequences, for which there is no tensor here, and errors of the
    /// device.
    pub fn apply(
        &self,
        q: Tensor<4>,
        k: Tensor<4>,
        v: Tensor<4>,
        ask: impl FnOnce(ForwardProblem) -> ForwardProblem,
    ) -> Result<Tensor<4>> {
        let dtype = common_dtype(&[dtype("q", &q)?, dtype("k", &k)?, dtype("v", &v)?])?;
        let whole = ForwardProblem::new(dtype, layout(&q), layout(&k), layout(&v));
        let o = Layout::bhsd(whole.o.shape);
        let ForwardProblem { q: of_q, k: of_k, v: of_v, .. } = whole;
        let problem = ForwardProblem {
            q: of_q,
            k: of_k,
            v: of_v,
            o,
            dtype,
            output_dtype: dtype,
            wants_lse: true,
            ..ask(whole.with_output(o))
        };
        let backward = BackwardProblem::new(problem)
            .with_d_o(o)
            .with_gradients(of_q, of_k, of_v)
            .with_mode(self.mode);
        backward.validate()?;
        let pass = Pass::new(backward, self.device.clone());
        let [q, k, v] = [q, k, v].map(Tensor::into_dispatch);
        match Dispatch::attention_forward(q, k, v, pass) {
            Outcome::Done { o, .. } => Ok(Tensor::from_dispatch(o)),
            Outcome::Failed(error) => Err(error),
        }
    }
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
