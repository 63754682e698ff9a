//! The problem and the pointers of one part: rows of the tensors of a rank, and of those that have come from
//! another one.

use super::layout::{Chunk, ContextLayout};
use super::problem::ValidContext;
use super::schedule::{Part, Piece, Rows};
use super::scores::Slice;
use super::sharing::ContextExchange;
use crate::buffer::{DeviceBuffer, InDeviceMemory as _};
use crate::device::Device;
use crate::driver::DevicePointer;
use crate::error::Result;
use crate::problem::{Bias, ForwardProblem, Layout, Mask, MaskShape, Sequences, ValidForward};
use kernels_gpu::abi::Dtype;
use std::ops::Range;

/// Where each packed sequence begins within one chunk of all of them, in device memory.
pub(super) struct Offsets {
    /// Of this rank's q, by chunk.
    queries: Vec<ChunkOffsets>,
    /// Of every rank's k, by rank and chunk.
    keys: Vec<Vec<ChunkOffsets>>,
    ranks: usize,
    rank: usize,
}

struct ChunkOffsets {
    memory: DeviceBuffer<i32>,
    longest: usize,
    count: usize,
}

impl Offsets {
    pub fn new(
        device: &Device,
        valid: &ValidContext,
        (layout, exchange): (ContextLayout, ContextExchange),
        (ranks, rank): (usize, usize),
    ) -> Result<Self> {
        let of = |offsets: &[usize], rank: usize| -> Result<Vec<ChunkOffsets>> {
            (0..layout.chunks_per_rank())
                .map(|chunk| {
                    let lengths: Vec<usize> = offsets
                        .windows(2)
                        .map(|pair| layout.chunks(ranks, rank, pair[1] - pair[0])[chunk].rows)
                        .collect();
                    let mut starts = vec![0_i32];
                    for length in &lengths {
                        // No more than the rows of a tensor.
                        starts.push(starts[starts.len() - 1] + *length as i32);
                    }
                    let memory = DeviceBuffer::from_slice(device, &starts)?;
                    let longest = lengths.iter().copied().max().unwrap_or(0);
                    Ok(ChunkOffsets { memory, longest, count: lengths.len() })
                })
                .collect()
        };
        if !valid.is_packed || exchange == ContextExchange::Heads {
            return Ok(Offsets { queries: Vec::new(), keys: Vec::new(), ranks, rank });
        }
        let lengths = valid.lengths();
        let keys = (0..ranks).map(|rank| of(lengths.keys, rank)).collect::<Result<_>>()?;
        Ok(Offsets { queries: of(lengths.queries, rank)?, keys, ranks, rank })
    }

    /// Addresses of the offsets of a part, and how its sequences stand.
    fn of(&self, piece: &Piece, part: &Part) -> ([DevicePointer; 2], Sequences) {
        let (Some(queries), Some(keys)) = (piece.queries.chunk, part.keys.chunk) else {
            return ([0; 2], Sequences::Strided);
        };
        let source = (self.rank + self.ranks - part.step) % self.ranks;
        let (queries, keys) = (&self.queries[queries], &self.keys[source][keys]);
        let sequences = Sequences::Packed {
            count: queries.count,
            max_query_rows: queries.longest,
            max_key_rows: keys.longest,
        };
        ([&queries.memory, &keys.memory].map(|memory| memory.device_pointer()), sequences)
    }
}

/// A tensor in device memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct View {
    pub pointer: DevicePointer,
    pub layout: Layout,
    pub dtype: Dtype,
}

impl View {
    /// Dense `[B, S, H, D]`.
    pub fn dense(pointer: DevicePointer, shape: [usize; 4], dtype: Dtype) -> Self {
        View { pointer, layout: Layout::bshd(shape), dtype }
    }

    /// Some of its rows.
    pub fn rows(&self, rows: &Rows) -> View {
        let mut layout = self.layout;
        layout.shape[1] = rows.count;
        let bytes = rows.first as i64 * layout.strides[1] * i64::from(self.dtype.bytes());
        View { pointer: self.pointer.wrapping_add_signed(bytes), layout, dtype: self.dtype }
    }

    /// Some of its heads.
    pub fn heads(&self, heads: &Range<usize>) -> View {
        let mut layout = self.layout;
        layout.shape[2] = heads.len();
        let bytes = heads.start as i64 * layout.strides[2] * i64::from(self.dtype.bytes());
        View { pointer: self.pointer.wrapping_add_signed(bytes), layout, dtype: self.dtype }
    }

    /// The same rows of a dense tensor of its own.
    pub fn bytes(&self) -> u64 {
        self.layout.elements() as u64 * u64::from(self.dtype.bytes())
    }
}

/// Where a part's tensors stand.
pub(super) struct PartPlace {
    pub q: View,
    pub k: View,
    pub v: View,
    pub o: View,
    pub cu_seqlens: [DevicePointer; 2],
    /// Where the bias of the part begins, in elements from that of the rank.
    pub bias_offset: i64,
    pub valid: ValidForward,
}

/// The problem of one part: its own rows of q and o, and the rows of `keys` and `values` that it sees, which
/// stand at these `places`.
///
/// # Errors
/// What a problem of these sizes is refused for.
pub(super) fn of_part(
    valid: &ValidContext,
    offsets: &Offsets,
    [q, o]: [View; 2],
    [keys, values]: [View; 2],
    (piece, part): (&Piece, &Part),
    places: [&Chunk; 2],
) -> Result<PartPlace> {
    let (cu_seqlens, sequences) = offsets.of(piece, part);
    let (q, o) = (q.rows(&piece.queries), o.rows(&piece.queries));
    let (k, v) = (keys.rows(&part.keys), values.rows(&part.keys));
    let local = &valid.local;
    // Every field has a name here: of one that is new it must be said what it becomes.
    let ForwardProblem {
        q: _,
        k: _,
        v: _,
        o: _,
        dtype,
        output_dtype,
        scale: _,
        softcap,
        mask: _,
        bias: _,
        attn_mask: _,
        alibi,
        has_sinks,
        dropout,
        sequences: _,
        wants_lse,
        num_splits: _,
        pack_gqa,
        precision,
    } = local.problem;
    let mut bias_offset = 0;
    let bias = valid.scores.bias.map(|Bias { layout, dtype }| {
        let slice = Slice::of(&layout, places);
        bias_offset = slice.offset;
        Bias { layout: slice.layout, dtype }
    });
    let attn_mask = valid.scores.mask.map(|shape| MaskShape {
        queries: if shape.queries == 1 { 1 } else { piece.queries.count },
        keys: part.keys.count,
        ..shape
    });
    let problem = ForwardProblem {
        q: q.layout,
        k: k.layout,
        v: v.layout,
        o: o.layout,
        dtype,
        output_dtype,
        scale: Some(local.scale),
        softcap,
        mask: Mask::Full,
        bias,
        attn_mask,
        alibi,
        has_sinks,
        dropout,
        sequences,
        wants_lse,
        num_splits: Some(1),
        pack_gqa,
        precision,
    };
    let valid = problem.validate()?.seen_between(part.sides.left, part.sides.right);
    Ok(PartPlace { q, k, v, o, cu_seqlens, bias_offset, valid })
}
