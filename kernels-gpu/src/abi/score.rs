//! Tensors over scores, as kernels are told of them.

use crate::geometry::mask_map::LEVELS;

/// A tensor `[batch, head, query, key]`, of which each dimension may be broadcast: its stride is then 0.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScoreView {
    /// Device address of element (0, 0, 0, 0).
    pub address: u64,
    /// Elements from one batch, or packed sequence, to the next.
    pub batch_stride: i64,
    /// Elements from one query head to the next; 0 if there is one entry for each key head.
    pub head_stride: i64,
    /// Elements from one key head to the next; 0 if there is one entry for each query head.
    pub key_head_stride: i64,
    /// Elements from one query to the next.
    pub query_stride: i64,
    /// Elements from one key to the next.
    pub key_stride: i64,
}

/// What is done to scores beside scale, softcap and the mask of positions. Each part is looked at where its
/// [`Switch`](super::Switch) is on.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ScoreParams {
    /// The bias, of the dtype of q or f32.
    pub bias: ScoreView,
    /// The boolean mask as bits, [`MASK_BITS`] keys to an element of u16: bit `j % 16` of element `j / 16` is
    /// 1 where key j is visible.
    pub mask: ScoreView,
    /// The map of its tiles ([`mask_map`](crate::geometry::mask_map)): elements of two words of u32, a bit
    /// for each granule of keys, of those that show a pair, and of those that show all. Queries are granules
    /// of them, 0 apart if there is one query for all; keys are windows, of which each has
    /// [`LEVELS`] times as many elements as there are granules.
    pub mask_map: ScoreView,
    /// Device address of the slopes of ALiBi, f32 `[B, Hq]` or `[Hq]`.
    pub alibi_slopes: u64,
    /// f32 elements from one batch's slopes to the next; 0 if all have the same.
    pub alibi_batch_stride: i64,
    /// Device address of the sinks, f32 `[Hq]`.
    pub sinks: u64,
    /// 1: neighbouring elements of the bias, the first of them at an even key, can be read together.
    pub bias_in_pairs: u32,
    /// 1: the bias is f32, though q is not.
    pub bias_f32: u32,
    /// Which probabilities are dropped.
    pub dropout: DropoutParams,
}

/// Dropout (docs/semantics.md, section 8): a pair is kept iff its number of 16 bits, times 2^16, is at least
/// the threshold. [`Philox`](crate::geometry::philox) makes the numbers.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DropoutParams {
    /// `2^16 round(2^16 rate)`.
    pub threshold: u32,
    /// What probabilities that are kept are multiplied by, c: `2^16 / (2^16 - round(2^16 rate))`; 1 without
    /// dropout.
    pub scale: f32,
    /// What `dO v` of a pair that is kept is multiplied by: c of f16, whose ds would be too small without it,
    /// and else 1, since it may be too large with it. The rest of c comes at the end.
    pub dp_scale: f32,
    /// What delta is multiplied by: `dp_scale / c`.
    pub delta_scale: f32,
    /// The seed's low and high half, the latter xor the high half of the offset.
    pub key: [u32; 2],
    /// The low half of the offset.
    pub offset: u32,
    /// Hq, of the problem.
    pub query_heads: u32,
}

/// No dropout.
impl Default for DropoutParams {
    fn default() -> Self {
        let (scale, dp_scale, delta_scale) = (1.0, 1.0, 1.0);
        DropoutParams {
            threshold: 0,
            scale,
            dp_scale,
            delta_scale,
            key: [0; 2],
            offset: 0,
            query_heads: 0,
        }
    }
}

/// Keys of an element of the boolean mask's bits.
pub const MASK_BITS: u32 = 16;

/// Parameters of the kernel that makes bits of a boolean mask, passed by value as the only kernel parameter.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaskBitsParams {
    /// Bytes, `[batch, head, query, key]`: 0 hides a key. Heads are the tensor's own, whoever uses them.
    pub mask: ScoreView,
    /// Device address of the bits: u32 `[batch, head, query, words]`, dense; bits behind the last key are 0.
    pub bits: u64,
    /// Rows of bits: batches times heads times queries.
    pub rows: u32,
    /// Heads of the mask.
    pub heads: u32,
    /// Queries of the mask.
    pub queries: u32,
    /// Keys.
    pub keys: u32,
    /// Words of a row: keys divided by 32 and rounded up.
    pub words: u32,
    /// Nothing.
    pub reserved: u32,
}

/// Parameters of the kernel that makes the map of a boolean mask's tiles, passed by value as the only kernel
/// parameter.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaskMapParams {
    /// Device address of the bits, as [`MaskBitsParams::bits`].
    pub bits: u64,
    /// Device address of the map: u32 `[batch, head, window, level, granule of queries, 2]`, dense.
    pub map: u64,
    /// Batches times heads.
    pub pairs: u32,
    /// Granules of queries.
    pub granules: u32,
    /// Queries of the mask.
    pub queries: u32,
    /// Keys.
    pub keys: u32,
    /// Words of a row of bits.
    pub words: u32,
    /// Windows of keys.
    pub windows: u32,
}

/// Threads of a block of the kernel for the gradient of the sinks.
pub const SINK_GRADIENT_THREADS: u32 = 256;

/// Threads of a block of the kernels that make bits, and the map of their tiles.
pub const MASK_BITS_THREADS: u32 = 256;

/// Granules of queries that a block of the kernel for the map of a mask makes elements of: its other warps
/// look at what these reach further.
pub const MASK_MAP_GRANULES: u32 = MASK_BITS_THREADS / 32 - (LEVELS - 1);
