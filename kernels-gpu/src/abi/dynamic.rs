//! Launch parameters of the kernels of dynamic masks: which keys a bias chooses, and the gathering of these.

use super::{Dtype, ScoreView, TensorView};

/// Words of 32 keys that a thread of the selecting kernels has in registers, as bit planes.
pub const fn select_words(dtype: Dtype) -> u32 {
    match dtype {
        Dtype::Bf16 | Dtype::F16 => 4,
        Dtype::F32 => 2,
    }
}

/// Parameters of the kernels that choose keys of each row of a bias, passed by value as the only kernel
/// parameter.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SelectParams {
    /// The bias, `[batch, head, query, key]`. Heads are the tensor's own: see `bias_group`.
    pub bias: ScoreView,
    /// Bits of a padding mask, elements of u32; likewise. Its address is 0 if there is none.
    pub padding: ScoreView,
    /// Device address of the bits: u32 `[batch, head, query, words]`, dense; bits behind the last key are 0.
    pub bits: u64,
    /// Device address of the positions of kept keys, ascending: u32 `[rows, capacity]`, of which there are as
    /// many as `counts` says; 0 if they are not wanted.
    pub positions: u64,
    /// Device address of how many keys each row keeps, at most `capacity`: u32 `[rows]`.
    pub counts: u64,
    /// Device address of B + 1 offsets of packed queries, or 0.
    pub cu_seqlens_q: u64,
    /// The same of keys.
    pub cu_seqlens_k: u64,
    /// Rows of bits: batches times heads times queries.
    pub rows: u32,
    /// Heads of the bits.
    pub heads: u32,
    /// Queries of the bits.
    pub queries: u32,
    /// Keys of the bits.
    pub keys: u32,
    /// Words of a row: keys divided by 32 and rounded up.
    pub words: u32,
    /// Heads of the bits that share one of the bias.
    pub bias_group: u32,
    /// Heads of the bits that share one of the padding mask.
    pub padding_group: u32,
    /// How many keys are kept of each row.
    pub window: u32,
    /// 1: keys above 0 are kept instead.
    pub relu: u32,
    /// 1: a row is that of all queries; 0: of its own.
    pub of_all_queries: u32,
    /// Sq, unless packed.
    pub query_rows: u32,
    /// As in [`ForwardParams`](super::ForwardParams).
    pub bottom_right: u32,
    /// As in [`ForwardParams`](super::ForwardParams).
    pub window_left: i32,
    /// As in [`ForwardParams`](super::ForwardParams).
    pub window_right: i32,
    /// 1: keys of the bias stand side by side, and every row begins on a multiple of 16 bytes.
    pub is_aligned: u32,
    /// 1: blocks of keys are made of the bits, which have therefore all keys where all are kept, those that
    /// the padding mask hides included.
    pub blocks_follow: u32,
    /// Positions of a row.
    pub capacity: u32,
    /// Nothing.
    pub reserved: u32,
}

/// Parameters of the kernel that keeps and drops blocks of keys whole, passed by value as the only kernel
/// parameter.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaskBlocksParams {
    /// Device address of the chosen bits, as [`SelectParams::bits`].
    pub chosen: u64,
    /// Device address of the bits that are made, likewise.
    pub bits: u64,
    /// As [`SelectParams::padding`].
    pub padding: ScoreView,
    /// As [`SelectParams::cu_seqlens_k`]: the last block of a packed sequence ends with it.
    pub cu_seqlens_k: u64,
    /// As in [`SelectParams`], and so on.
    pub rows: u32,
    /// Heads of the bits.
    pub heads: u32,
    /// Queries of the bits.
    pub queries: u32,
    /// Keys.
    pub keys: u32,
    /// Words of a row.
    pub words: u32,
    /// Heads of the bits that share one of the padding mask.
    pub padding_group: u32,
    /// Keys of a block.
    pub block_size: u32,
    /// Nothing.
    pub reserved: u32,
}

/// Parameters of the kernels around attention over gathered keys, passed by value as the only kernel
/// parameter: which keys these are, their k, v and bias, which of them a query sees, and the way back of
/// gradients.
///
/// A choice is that of a batch, or of all, and of a key head, or of all: `choice_batches` times
/// `choice_heads` of them.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GatherParams {
    /// Device address of the bits of all choices: u32 `[choices, words]`.
    pub bits: u64,
    /// Device address of the positions of the kept keys, ascending: u32 `[choices, capacity]`.
    pub positions: u64,
    /// Device address of how many there are: u32 `[choices]`.
    pub counts: u64,
    /// Device address of the bits of what queries see of the gathered keys: u32 `[choices, seen_queries,
    /// seen_words]`.
    pub seen: u64,
    /// k, and dK when gradients are scattered: `[B, Sk, Hk, D]`.
    pub k: TensorView,
    /// v, and dV.
    pub v: TensorView,
    /// The gathered k and dK: `[B, capacity, Hk, D]`.
    pub gathered_k: TensorView,
    /// The gathered v and dV.
    pub gathered_v: TensorView,
    /// The bias, or dBias, of which each choice has a row. Its address is 0 where it is not wanted.
    pub bias: ScoreView,
    /// Device address of the gathered bias, `[B, Hq, capacity]`, or of the gathered dBias, which is f32: rows
    /// of their own for query heads, so that their gradients are worked on side by side, and added up when
    /// they are scattered.
    pub gathered_bias: u64,
    /// B.
    pub batches: u32,
    /// Hk.
    pub key_heads: u32,
    /// B or 1.
    pub choice_batches: u32,
    /// Hk or 1.
    pub choice_heads: u32,
    /// Sk.
    pub keys: u32,
    /// Words of a row of bits.
    pub words: u32,
    /// Gathered keys of a choice.
    pub capacity: u32,
    /// Bytes of a row of k, in units of `unit_log2`.
    pub k_units: u32,
    /// The same of v.
    pub v_units: u32,
    /// Bytes that are copied at once, as a power of two: 1, 2 or 4.
    pub unit_log2: u32,
    /// Bytes of an element of k and v, as a power of two.
    pub element_log2: u32,
    /// Element type of the bias, or of dBias: 0 is bf16, 1 f16, 2 f32.
    pub bias_type: u32,
    /// Queries that see different keys: Sq, or 1.
    pub seen_queries: u32,
    /// Words of a row of what is seen.
    pub seen_words: u32,
    /// Key that query 0 is aligned with.
    pub diagonal: i32,
    /// As in [`ForwardParams`](super::ForwardParams).
    pub window_left: i32,
    /// As in [`ForwardParams`](super::ForwardParams).
    pub window_right: i32,
    /// Blocks that gather rows; those behind them say what queries see.
    pub gather_blocks: u32,
    /// Hq / Hk.
    pub group_size: u32,
    /// Nothing.
    pub reserved: u32,
}

/// Threads of a block of the kernels around attention over gathered keys, but for the one that finds their
/// positions.
pub const GATHER_THREADS: u32 = 256;

/// Threads of a block of the kernel that finds positions, which is that of a choice.
pub const POSITIONS_THREADS: u32 = 512;
