//! One case: a problem, where its tensors stand, and the numbers in them.

use super::Placement;
use crate::problem::{ForwardProblem, Mask};
use crate::reference::Sizes;
use kernels_gpu::abi::Dtype;

/// One case. The same case gives the same numbers on every machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// Position in the sweep.
    pub id: usize,
    /// Seed of the numbers.
    pub seed: u64,
    /// B.
    pub batches: usize,
    /// Sq.
    pub query_rows: usize,
    /// Sk.
    pub key_rows: usize,
    /// Hq.
    pub query_heads: usize,
    /// Hk.
    pub key_heads: usize,
    /// D.
    pub head_dim: usize,
    /// Dv.
    pub value_dim: usize,
    /// Element type of q, k and v.
    pub dtype: Dtype,
    /// Element type of o.
    pub output_dtype: Dtype,
    /// Which keys a query sees.
    pub mask: Mask,
    /// Softmax scale; `D^-0.5` when none is given.
    pub scale: Option<f32>,
    /// Standard deviation of the numbers in q and k (v has 1).
    pub amplitude: f32,
    /// Added to every logit (with the default scale): beyond 88 in size, where `exp` leaves the range of
    /// f32. It comes from one column, not from a large amplitude: that would cancel, and lse with it
    /// lose more than its tolerance.
    pub logit_shift: f32,
    /// Where the tensors stand.
    pub placement: Placement,
    /// No guard bytes after the inputs: a device that checks bounds then sees the first element read
    /// past the end.
    pub tight: bool,
}

impl Case {
    /// A small bf16 case to change with struct update syntax.
    pub fn small() -> Self {
        Case {
            id: 0,
            seed: 0,
            batches: 1,
            query_rows: 17,
            key_rows: 33,
            query_heads: 2,
            key_heads: 1,
            head_dim: 64,
            value_dim: 64,
            dtype: Dtype::Bf16,
            output_dtype: Dtype::Bf16,
            mask: Mask::Full,
            scale: None,
            amplitude: 1.0,
            logit_shift: 0.0,
            placement: Placement::Bshd,
            tight: false,
        }
    }

    /// The problem that the library is asked.
    pub fn problem(&self) -> ForwardProblem {
        let key_shape = [self.batches, self.key_rows, self.key_heads, self.head_dim];
        let value_shape = [self.batches, self.key_rows, self.key_heads, self.value_dim];
        let query_shape = [self.batches, self.query_rows, self.query_heads, self.head_dim];
        let output_shape = [self.batches, self.query_rows, self.query_heads, self.value_dim];
        let place = self.placement;
        ForwardProblem {
            scale: self.scale,
            mask: self.mask,
            output_dtype: self.output_dtype,
            o: place.query(output_shape),
            ..ForwardProblem::new(
                self.dtype,
                place.input(query_shape),
                place.key(key_shape),
                place.key(value_shape),
            )
        }
    }

    /// The problem that the reference is asked.
    pub fn sizes(&self) -> Sizes {
        Sizes {
            batches: self.batches,
            query_rows: self.query_rows,
            key_rows: self.key_rows,
            query_heads: self.query_heads,
            key_heads: self.key_heads,
            head_dim: self.head_dim,
            value_dim: self.value_dim,
            scale: self.scale.unwrap_or((self.head_dim as f32).sqrt().recip()),
            mask: self.mask,
        }
    }

    /// `B1 Q17x2 K33x1 D64`, with `Dv` where it differs.
    pub fn shape_text(&self) -> String {
        let Case { batches, query_rows, query_heads, key_rows, key_heads, head_dim, value_dim, .. } =
            self;
        let value = if value_dim == head_dim { String::new() } else { format!("/{value_dim}") };
        format!("B{batches} Q{query_rows}x{query_heads} K{key_rows}x{key_heads} D{head_dim}{value}")
    }
}
