//! What is asked of a backward pass.

use super::{Bias, ForwardProblem, Layout, ValidForward, check_size};
use crate::error::{Error, Result};
use kernels_gpu::abi::Dtype;

/// Whether the same call gives the same bits again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// dk and dv are the same from run to run; the f32 sums of dq are taken in any order.
    #[default]
    Fast,
    /// All gradients are the same from run to run. Slower, and but for Hopper's own kernels takes more
    /// workspace.
    Deterministic,
}

impl Mode {
    /// The name used in tables and JSON: `fast`, `deterministic`.
    pub const fn name(self) -> &'static str {
        match self {
            Mode::Fast => "fast",
            Mode::Deterministic => "deterministic",
        }
    }
}

/// The gradients of one forward pass: dq, dk and dv from dO, and from dLSE where there is one.
///
/// Logical shapes: dO `[B, Sq, Hq, Dv]` (of the dtype of q), dq `[B, Sq, Hq, D]`, dk `[B, Sk, Hk, D]`, dv
/// `[B, Sk, Hk, Dv]`, dLSE like lse. o and lse are inputs: what the forward pass gave. Packed sequences as in
/// [`ForwardProblem`].
///
/// ```
/// use finite_attention::{BackwardProblem, Dtype, ForwardProblem, Layout, Mode};
/// let q = Layout::bshd([2, 100, 8, 64]);
/// let kv = Layout::bshd([2, 300, 2, 64]);
/// let forward = ForwardProblem::new(Dtype::Bf16, q, kv, kv).causal();
/// let problem = BackwardProblem::new(forward)
///     .with_gradient_dtype(Dtype::F32)
///     .with_mode(Mode::Deterministic);
/// assert!(problem.validate().is_ok());
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BackwardProblem {
    /// The forward pass. Whether lse is wanted does not matter here: the backward needs it.
    pub forward: ForwardProblem,
    /// `[B, Sq, Hq, Dv]`: the gradient of o.
    pub d_o: Layout,
    /// `[B, Sq, Hq, D]`.
    pub dq: Layout,
    /// `[B, Sk, Hk, D]`.
    pub dk: Layout,
    /// `[B, Sk, Hk, Dv]`.
    pub dv: Layout,
    /// Element type of dq, dk and dv: that of q, or f32.
    pub gradient_dtype: Dtype,
    /// Where the gradient of the bias goes, in the bias's shape, and its element type: that of the bias, or
    /// f32. `None` if it is not wanted.
    pub d_bias: Option<Bias>,
    /// Whether the gradient of the sinks, f32 `[Hq]`, is wanted.
    pub wants_d_sinks: bool,
    /// Whether lse has a gradient.
    pub has_d_lse: bool,
    /// Whether the same call gives the same bits again.
    pub mode: Mode,
}

impl BackwardProblem {
    /// dO and all gradients dense in BSHD order and of the dtype of q; no dLSE; [`Mode::Fast`].
    pub fn new(forward: ForwardProblem) -> Self {
        let dense = |layout: &Layout| Layout::bshd(layout.shape);
        BackwardProblem {
            forward,
            d_o: dense(&forward.o),
            dq: dense(&forward.q),
            dk: dense(&forward.k),
            dv: dense(&forward.v),
            gradient_dtype: forward.dtype,
            d_bias: None,
            wants_d_sinks: false,
            has_d_lse: false,
            mode: Mode::Fast,
        }
    }

    /// Sets the element type of dq, dk and dv: that of q, or f32.
    pub fn with_gradient_dtype(self, gradient_dtype: Dtype) -> Self {
        BackwardProblem { gradient_dtype, ..self }
    }

    /// Sets the layouts of dq, dk and dv.
    pub fn with_gradients(self, dq: Layout, dk: Layout, dv: Layout) -> Self {
        BackwardProblem { dq, dk, dv, ..self }
    }

    /// Sets the layout of dO.
    pub fn with_d_o(self, d_o: Layout) -> Self {
        BackwardProblem { d_o, ..self }
    }

    /// Says that the gradient of the bias is wanted, and where it goes.
    pub fn with_d_bias(self, d_bias: Bias) -> Self {
        BackwardProblem { d_bias: Some(d_bias), ..self }
    }

    /// Says that the gradient of the sinks is wanted.
    pub fn with_d_sinks(self) -> Self {
        BackwardProblem { wants_d_sinks: true, ..self }
    }

    /// Says that lse has a gradient.
    pub fn with_d_lse(self) -> Self {
        BackwardProblem { has_d_lse: true, ..self }
    }

    /// Sets the mode.
    pub fn with_mode(self, mode: Mode) -> Self {
        BackwardProblem { mode, ..self }
    }

    /// Checks everything that can be checked without a device, and derives the sizes.
    ///
    /// # Errors
    /// Those of [`ForwardProblem::validate`], and the same for `do`, `dq`, `dk` and `dv`.
    pub fn validate(&self) -> Result<ValidBackward> {
        let forward = self.forward.validate()?;
        let ForwardProblem { q, k, v, o, dtype, .. } = &self.forward;
        let inputs = [("do", &self.d_o, "o", o)];
        let outputs = [("dq", &self.dq, "q", q), ("dk", &self.dk, "k", k), ("dv", &self.dv, "v", v)];
        for (argument, layout, like, other) in inputs.into_iter().chain(outputs) {
            for ((dimension, got), expected) in
                super::DIMENSIONS.into_iter().zip(layout.shape).zip(other.shape)
            {
                check_size(argument, dimension, expected, like, got)?;
            }
            layout.check_columns(argument)?;
        }
        self.d_o.check_span("do", *dtype)?;
        for (argument, layout, ..) in outputs {
            layout.check_span(argument, self.gradient_dtype)?;
            layout.check_output(argument)?;
        }
        if self.gradient_dtype != *dtype && self.gradient_dtype != Dtype::F32 {
            return Err(Error::UnsupportedDtype {
                argument: "dq, dk, dv",
                expected: format!("{} like q, or f32", dtype.name()),
                got: self.gradient_dtype.name().to_owned(),
            });
        }
        self.check_score_gradients()?;
        Ok(ValidBackward { problem: *self, forward })
    }
}

/// A backward problem that passed [`BackwardProblem::validate`], with its sizes. Only `validate` makes one.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct ValidBackward {
    /// The problem as it was asked.
    pub problem: BackwardProblem,
    /// Its forward pass, and the sizes.
    pub forward: ValidForward,
}
