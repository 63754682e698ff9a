//! What is asked: shapes, strides, dtypes and options, and the errors of every one of them.

mod layout;
#[cfg(test)]
mod tests;

pub use layout::{DIMENSIONS, Layout};

use crate::error::{Error, Result};
use kernels_gpu::abi::{Dtype, MAX_HEAD_DIM, MAX_ROWS, WINDOW_OPEN};

/// Which key the first query of a causal problem is aligned with when Sq and Sk differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CausalAlignment {
    /// The last query sees the last key: `j <= i + Sk - Sq`. The rule of FlashAttention since 2.1.
    #[default]
    BottomRight,
    /// The first query sees the first key alone: `j <= i`. The rule of PyTorch's `is_causal`.
    TopLeft,
}

/// Which keys a query sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mask {
    /// All of its sequence.
    #[default]
    Full,
    /// Those up to the diagonal.
    Causal(CausalAlignment),
}

impl Mask {
    /// The name used in tables and JSON: `full`, `causal`, `causal-top-left`.
    pub const fn name(self) -> &'static str {
        match self {
            Mask::Full => "full",
            Mask::Causal(CausalAlignment::BottomRight) => "causal",
            Mask::Causal(CausalAlignment::TopLeft) => "causal-top-left",
        }
    }
}

/// One forward pass: `o = softmax(scale * q k^T + mask) v` and `lse`, the logarithm of each row's
/// softmax denominator.
///
/// Logical shapes: q `[B, Sq, Hq, D]`, k `[B, Sk, Hk, D]`, v `[B, Sk, Hk, Dv]`, o `[B, Sq, Hq, Dv]`,
/// lse `[B, Hq, Sq]` (f32, dense). Hq is a multiple of Hk; query head h uses key head `h / (Hq / Hk)`.
/// B, Sq, Sk and the heads may be 0; D and Dv are 1 to 256.
///
/// ```
/// use finite_attention::{Dtype, ForwardProblem, Layout};
/// let q = Layout::bshd([2, 100, 8, 64]);
/// let kv = Layout::bshd([2, 300, 2, 64]);
/// let problem = ForwardProblem::new(Dtype::Bf16, q, kv, kv).causal().with_scale(0.1);
/// assert_eq!(problem.validate().unwrap().group_size, 4);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ForwardProblem {
    /// `[B, Sq, Hq, D]`.
    pub q: Layout,
    /// `[B, Sk, Hk, D]`.
    pub k: Layout,
    /// `[B, Sk, Hk, Dv]`.
    pub v: Layout,
    /// `[B, Sq, Hq, Dv]`.
    pub o: Layout,
    /// Element type of q, k and v.
    pub dtype: Dtype,
    /// Element type of o: that of q, or f32.
    pub output_dtype: Dtype,
    /// Softmax scale; `D^-0.5` when none is given.
    pub scale: Option<f32>,
    /// Which keys a query sees.
    pub mask: Mask,
    /// Whether lse is wanted.
    pub wants_lse: bool,
}

impl ForwardProblem {
    /// Full attention with the default scale; o dense in BSHD order and of the same dtype; lse wanted.
    pub fn new(dtype: Dtype, q: Layout, k: Layout, v: Layout) -> Self {
        let [batches, rows, heads, _] = q.shape;
        let o = Layout::bshd([batches, rows, heads, v.shape[3]]);
        let (scale, mask) = (None, Mask::Full);
        ForwardProblem { q, k, v, o, dtype, output_dtype: dtype, scale, mask, wants_lse: true }
    }

    /// Causal with bottom-right alignment.
    pub fn causal(self) -> Self {
        self.with_mask(Mask::Causal(CausalAlignment::BottomRight))
    }

    /// Sets the mask.
    pub fn with_mask(self, mask: Mask) -> Self {
        ForwardProblem { mask, ..self }
    }

    /// Sets the softmax scale.
    pub fn with_scale(self, scale: f32) -> Self {
        ForwardProblem { scale: Some(scale), ..self }
    }

    /// Sets the layout of o.
    pub fn with_output(self, o: Layout) -> Self {
        ForwardProblem { o, ..self }
    }

    /// Sets the element type of o: that of q, or f32.
    pub fn with_output_dtype(self, output_dtype: Dtype) -> Self {
        ForwardProblem { output_dtype, ..self }
    }

    /// Says that lse is not wanted.
    pub fn without_lse(self) -> Self {
        ForwardProblem { wants_lse: false, ..self }
    }

    /// Checks everything that can be checked without a device, and derives the sizes.
    ///
    /// # Errors
    /// One of the structured variants of [`Error`] for each thing that the kernels cannot do.
    pub fn validate(&self) -> Result<ValidForward> {
        let shapes = [("q", &self.q), ("k", &self.k), ("v", &self.v), ("o", &self.o)];
        let dtypes = [self.dtype, self.dtype, self.dtype, self.output_dtype];
        self.check_shapes()?;
        for ((argument, layout), dtype) in shapes.into_iter().zip(dtypes) {
            layout.check_extents(argument)?;
            layout.check_columns(argument)?;
            layout.check_span(argument, dtype)?;
        }
        self.o.check_output("o")?;
        if self.output_dtype != self.dtype && self.output_dtype != Dtype::F32 {
            return Err(Error::UnsupportedDtype {
                argument: "o",
                expected: format!("{} like q, or f32", self.dtype.name()),
                got: self.output_dtype.name().to_owned(),
            });
        }
        let scale = self.scale.unwrap_or((self.q.shape[3] as f32).sqrt().recip());
        if !scale.is_finite() {
            return Err(Error::Scale { got: scale });
        }
        Ok(self.derive(scale))
    }

    /// The shapes fit together.
    fn check_shapes(&self) -> Result<()> {
        let [batches, query_rows, query_heads, head_dim] = self.q.shape;
        let [_, key_rows, key_heads, _] = self.k.shape;
        check_size("k", "batch", batches, "q", self.k.shape[0])?;
        check_size("v", "batch", batches, "q", self.v.shape[0])?;
        check_size("o", "batch", batches, "q", self.o.shape[0])?;
        check_size("k", "head_dim", head_dim, "q", self.k.shape[3])?;
        check_size("v", "rows", key_rows, "k", self.v.shape[1])?;
        check_size("v", "heads", key_heads, "k", self.v.shape[2])?;
        check_size("o", "rows", query_rows, "q", self.o.shape[1])?;
        check_size("o", "heads", query_heads, "q", self.o.shape[2])?;
        check_size("o", "head_dim", self.v.shape[3], "v", self.o.shape[3])?;
        let divides = if key_heads == 0 { query_heads == 0 } else { query_heads % key_heads == 0 };
        if divides { Ok(()) } else { Err(Error::HeadRatio { query_heads, key_heads }) }
    }

    /// The derived sizes of a problem whose layouts have all been checked, so that every cast fits.
    fn derive(&self, scale: f32) -> ValidForward {
        let [batches, query_rows, query_heads, head_dim] = self.q.shape.map(|size| size as u32);
        let [_, key_rows, key_heads, value_dim] = self.v.shape.map(|size| size as u32);
        let (bottom_right, window_right) = match self.mask {
            Mask::Full => (false, WINDOW_OPEN),
            Mask::Causal(CausalAlignment::BottomRight) => (true, 0),
            Mask::Causal(CausalAlignment::TopLeft) => (false, 0),
        };
        ValidForward {
            problem: *self,
            batches,
            query_rows,
            key_rows,
            query_heads,
            key_heads,
            group_size: query_heads.checked_div(key_heads).unwrap_or(1).max(1),
            head_dim,
            value_dim,
            bottom_right,
            window_left: WINDOW_OPEN,
            window_right,
            scale,
        }
    }
}

/// A forward problem that passed [`ForwardProblem::validate`], with its sizes. Only `validate` makes
/// one.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct ValidForward {
    /// The problem as it was asked.
    pub problem: ForwardProblem,
    /// B.
    pub batches: u32,
    /// Sq.
    pub query_rows: u32,
    /// Sk.
    pub key_rows: u32,
    /// Hq.
    pub query_heads: u32,
    /// Hk.
    pub key_heads: u32,
    /// Hq / Hk; 1 when there are no heads.
    pub group_size: u32,
    /// D.
    pub head_dim: u32,
    /// Dv.
    pub value_dim: u32,
    /// Whether the last query is aligned with the last key, instead of the first with the first.
    pub bottom_right: bool,
    /// Keys visible to the left of the diagonal; [`WINDOW_OPEN`] is all.
    pub window_left: i32,
    /// Keys visible to the right of the diagonal; [`WINDOW_OPEN`] is all.
    pub window_right: i32,
    /// Softmax scale, finite.
    pub scale: f32,
}

impl ValidForward {
    /// Whether o and lse have no elements, so that there is nothing to launch.
    pub fn is_empty(&self) -> bool {
        self.batches == 0 || self.query_rows == 0 || self.query_heads == 0
    }

    /// Number of elements of lse `[B, Hq, Sq]`.
    pub fn lse_elements(&self) -> usize {
        self.batches as usize * self.query_heads as usize * self.query_rows as usize
    }
}

/// The one dtype that all tensors share.
///
/// # Errors
/// [`Error::WrongDtype`] names the first tensor whose dtype differs from that of the first.
pub fn common_dtype(tensors: &[(&'static str, Dtype)]) -> Result<Dtype> {
    let Some(&(like, expected)) = tensors.first() else {
        return Err(Error::WrongDtype {
            argument: "q",
            expected: "bf16",
            like: "q",
            got: "none".into(),
        });
    };
    match tensors.iter().find(|(_, dtype)| *dtype != expected) {
        None => Ok(expected),
        Some(&(argument, got)) => {
            let got = got.name().to_owned();
            Err(Error::WrongDtype { argument, expected: expected.name(), like, got })
        }
    }
}

fn check_size(
    argument: &'static str,
    dimension: &'static str,
    expected: usize,
    like: &'static str,
    got: usize,
) -> Result<()> {
    if got == expected {
        Ok(())
    } else {
        Err(Error::WrongSize { argument, dimension, expected, like, got })
    }
}

/// Inclusive limits of the four sizes, in the order of [`DIMENSIONS`].
const LIMITS: [(u64, u64); 4] =
    [(0, u32::MAX as u64), (0, MAX_ROWS as u64), (0, u32::MAX as u64), (1, MAX_HEAD_DIM as u64)];
