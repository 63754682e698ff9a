//! One case: a problem, where its tensors stand, and the numbers in them.

use super::{Features, Placement};
use crate::problem::{BackwardProblem, ForwardProblem, Mask, Mode, Precision, Sequences};
use crate::reference::Sizes;
use kernels_gpu::abi::Dtype;

/// What of a backward pass is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Gradients {
    /// Element type of dq, dk and dv.
    pub dtype: Dtype,
    /// Whether lse has a gradient.
    pub has_d_lse: bool,
    /// Whether the same call gives the same bits again.
    pub mode: Mode,
}

/// Sequences of a case that the reference can compute at once, and where they begin in the rows of
/// packed tensors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Part {
    /// The problem that the reference is asked.
    pub sizes: Sizes,
    /// Its first batch, or its packed sequence.
    pub first_batch: usize,
    /// First row of q.
    pub first_query: usize,
    /// First row of k.
    pub first_key: usize,
}

/// One case. The same case gives the same numbers on every machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// Position in the sweep.
    pub id: usize,
    /// Seed of the numbers.
    pub seed: u64,
    /// B.
    pub batches: usize,
    /// Sq; of packed sequences, the most.
    pub query_rows: usize,
    /// Sk; of packed sequences, the most.
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
    /// Cap of scores, if they are capped.
    pub softcap: Option<f32>,
    /// Standard deviation of the numbers in q and k (v has 1).
    pub amplitude: f32,
    /// Added to every logit (with the default scale): beyond 88 in size, where `exp` leaves the range of
    /// f32. It comes from one column, not from a large amplitude: that would cancel, and lse with it
    /// lose more than its tolerance.
    pub logit_shift: f32,
    /// What scores have beside q and k.
    pub features: Features,
    /// Where the tensors stand.
    pub placement: Placement,
    /// No guard bytes after the inputs: a device that checks bounds then sees the first element read
    /// past the end.
    pub tight: bool,
    /// Whether sequences of different lengths are packed one after another: see [`Case::lengths`].
    pub packed: bool,
    /// How many ranges of keys the forward works on side by side, if that is given.
    pub num_splits: Option<u32>,
    /// Whether the forward works on query heads that share a key head together, if that is given.
    pub pack_gqa: Option<bool>,
    /// How products of f32 are made, if that is given.
    pub precision: Option<Precision>,
    /// Whether a backward pass follows, and which.
    pub gradients: Option<Gradients>,
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
            softcap: None,
            amplitude: 1.0,
            logit_shift: 0.0,
            features: Features::default(),
            placement: Placement::Bshd,
            tight: false,
            packed: false,
            num_splits: None,
            pack_gqa: None,
            precision: None,
            gradients: None,
        }
    }

    /// Query rows and keys of each sequence. Packed ones have lengths drawn from the seed: one of them
    /// is as long as can be, others may be empty on either side.
    pub fn lengths(&self) -> Vec<[usize; 2]> {
        let longest = [self.query_rows, self.key_rows];
        if !self.packed {
            return vec![longest; self.batches];
        }
        let longest_at = self.seed as usize % self.batches.max(1);
        let drawn = |sequence: usize, side: usize| {
            let mixed =
                (self.seed ^ (2 * sequence + side) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
            if mixed.is_multiple_of(5) { 0 } else { (mixed / 5) as usize % (longest[side] + 1) }
        };
        let length = |sequence| {
            if sequence == longest_at { longest } else { [drawn(sequence, 0), drawn(sequence, 1)] }
        };
        (0..self.batches).map(length).collect()
    }

    /// Offsets of packed sequences in the rows of q and of k; those of the batches otherwise.
    pub fn offsets(&self) -> [Vec<i32>; 2] {
        let mut offsets = [vec![0], vec![0]];
        for lengths in self.lengths() {
            for (offsets, length) in offsets.iter_mut().zip(lengths) {
                offsets.push(offsets[offsets.len() - 1] + length as i32);
            }
        }
        offsets
    }

    /// What the reference computes one after the other: all batches at once, packed sequences one by one.
    pub fn parts(&self) -> Vec<Part> {
        if !self.packed {
            return vec![Part { sizes: self.sizes(), first_batch: 0, first_query: 0, first_key: 0 }];
        }
        let [q, k] = self.offsets();
        let part = |(sequence, [query_rows, key_rows]): (usize, [usize; 2])| Part {
            sizes: Sizes { batches: 1, query_rows, key_rows, ..self.sizes() },
            first_batch: sequence,
            first_query: q[sequence] as usize,
            first_key: k[sequence] as usize,
        };
        self.lengths().into_iter().enumerate().map(part).collect()
    }

    /// The problem that the library is asked.
    pub fn problem(&self) -> ForwardProblem {
        let (query, key) = (self.query_shape(self.head_dim), self.key_shape(self.head_dim));
        let (output, value) = (self.query_shape(self.value_dim), self.key_shape(self.value_dim));
        let place = self.placement;
        let packed = Sequences::Packed {
            count: self.batches,
            max_query_rows: self.query_rows,
            max_key_rows: self.key_rows,
        };
        ForwardProblem {
            scale: self.scale,
            softcap: self.softcap,
            mask: self.mask,
            bias: self.bias(),
            attn_mask: self.mask_shape(),
            alibi: self.features.alibi,
            has_sinks: self.features.has_sinks,
            dropout: self.dropout(),
            sequences: if self.packed { packed } else { Sequences::Strided },
            output_dtype: self.output_dtype,
            o: place.query(output),
            num_splits: self.num_splits,
            pack_gqa: self.pack_gqa,
            precision: self.precision,
            ..ForwardProblem::new(self.dtype, place.input(query), place.key(key), place.key(value))
        }
    }

    /// The backward problem that the library is asked, if one is.
    pub fn backward_problem(&self) -> Option<BackwardProblem> {
        let Gradients { dtype, has_d_lse, mode } = self.gradients?;
        let place = self.placement;
        Some(BackwardProblem {
            forward: self.problem(),
            d_o: place.input(self.query_shape(self.value_dim)),
            dq: place.query(self.query_shape(self.head_dim)),
            dk: place.query(self.key_shape(self.head_dim)),
            dv: place.query(self.key_shape(self.value_dim)),
            gradient_dtype: dtype,
            d_bias: self.d_bias(),
            wants_d_sinks: self.features.has_sinks && self.features.wants_d_sinks,
            has_d_lse,
            mode,
        })
    }

    /// The shape of q or o.
    fn query_shape(&self, columns: usize) -> [usize; 4] {
        let [batches, rows] = self.batch_and_rows(0);
        [batches, rows, self.query_heads, columns]
    }

    /// The shape of k or v.
    fn key_shape(&self, columns: usize) -> [usize; 4] {
        let [batches, rows] = self.batch_and_rows(1);
        [batches, rows, self.key_heads, columns]
    }

    /// On the side of the queries (0) or keys (1).
    fn batch_and_rows(&self, side: usize) -> [usize; 2] {
        if self.packed {
            [1, self.lengths().iter().map(|lengths| lengths[side]).sum()]
        } else {
            [self.batches, [self.query_rows, self.key_rows][side]]
        }
    }

    /// The problem that the reference is asked, with the longest of packed sequences (see [`Case::parts`]).
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
            softcap: self.softcap,
            mask: self.mask,
        }
    }

    /// `B1 Q17x2 K33x1 D64`, with `Dv` where it differs; `P` instead of `B` for packed sequences.
    pub fn shape_text(&self) -> String {
        let Case { batches, query_rows, query_heads, key_rows, key_heads, head_dim, value_dim, .. } =
            self;
        let value = if value_dim == head_dim { String::new() } else { format!("/{value_dim}") };
        let kind = if self.packed { "P" } else { "B" };
        format!("{kind}{batches} Q{query_rows}x{query_heads} K{key_rows}x{key_heads} D{head_dim}{value}")
    }
}
