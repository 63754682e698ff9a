//! What is left of keys that are taken apart: side by side, in ranges, or one pass after the other.

use super::TensorView;

/// Where a forward pass over some of the keys finds what those before it have left of the same queries, and
/// where it leaves that for the next one: a state, in memory of its own. The last pass has no
/// [`split_keys`](super::ForwardParams::split_keys), and writes o and lse of all keys.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PreviousParams {
    /// f32, as o but not normalised, in units of [`ForwardParams::unit`](super::ForwardParams::unit), which
    /// is that of all passes. Aligned to 16, rows a multiple of 4 elements apart.
    pub o: TensorView,
    /// Device address of the reference and the sum of each row, side by side, f32 `[B, Hq, Sq, 2]`, packed
    /// `[Hq, rows, 2]`, aligned to 8; 0 in the first pass, which has none before it.
    pub statistics: u64,
    /// Rows from one batch of the statistics to the next.
    pub batch_stride: i64,
    /// Rows from one head of the statistics to the next.
    pub head_stride: i64,
}

/// Parameters of the kernels that combine the parts of a split forward, passed by value as the only kernel
/// parameter.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CombineParams {
    /// `[B, Sq, Hq, Dv]`; packed `[1, Tq, Hq, Dv]`: then B and Sq of the workspace are 1 and Tq.
    pub o: TensorView,
    /// Device address of lse, as in [`ForwardParams`](super::ForwardParams); 0 when not wanted.
    pub lse: u64,
    /// As in [`ForwardParams`](super::ForwardParams).
    pub lse_batch_stride: i64,
    /// As in [`ForwardParams`](super::ForwardParams).
    pub lse_head_stride: i64,
    /// Workspace: f32 `[B, splits, Hq, Sq, Dv rounded up to a multiple of 4]`, aligned to 16: o of each range
    /// of keys; columns from Dv on hold anything, as do ranges that a packed sequence does not have.
    pub part_o: u64,
    /// Workspace: f32 `[B, splits, Hq, Sq, 2]`, aligned to 8: reference and sum of each range of keys.
    pub part_statistics: u64,
    /// As in [`ForwardParams`](super::ForwardParams).
    pub cu_seqlens_q: u64,
    /// As in [`ForwardParams`](super::ForwardParams).
    pub cu_seqlens_k: u64,
    /// Rows of o, those of all batches and heads.
    pub rows: u32,
    /// B; how many there are of packed sequences.
    pub batches: u32,
    /// Hq.
    pub query_heads: u32,
    /// Sq; Tq of packed sequences.
    pub query_rows: u32,
    /// Dv.
    pub value_dim: u32,
    /// Softmax scale.
    pub scale: f32,
    /// Device address of the sinks, f32 `[Hq]`; 0 when there are none.
    pub sinks: u64,
    /// As in [`ForwardParams`](super::ForwardParams); at most [`MAX_SPLITS`](super::MAX_SPLITS).
    pub splits: u32,
    /// As in [`ForwardParams`](super::ForwardParams).
    pub split_keys: u32,
    /// As in [`ForwardParams`](super::ForwardParams).
    pub output_f32: u32,
    /// 1: rows of o start on 16 bytes.
    pub is_aligned: u32,
    /// What o is multiplied by: [`DropoutParams::scale`](super::DropoutParams::scale).
    pub kept: f32,
    /// Nothing.
    pub reserved: u32,
}
