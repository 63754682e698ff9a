//! What the host and the kernels agree on: launch parameters and the table of kernels.

mod accumulate;
mod combine;
mod dynamic;
#[macro_use]
mod instances;
mod kernel;
pub mod layout;
mod marker;
mod msda;
pub mod regions;
mod scan;
mod score;
mod shared_bytes;
mod softcap;
mod split;
mod table;
mod variant;

pub use accumulate::{ACCUMULATE_THREADS, AccumulateParams};
pub use combine::{CombineParams, PreviousParams};
pub use dynamic::*;
pub use kernel::*;
pub use layout::{
    backward_sm90a_d_o_stages, backward_sm90a_query_stages, backward_sm90a_warpgroups,
    forward_sm90a_keeps_output_apart, forward_sm90a_key_and_value_stages, forward_sm90a_query_stages,
    panel_columns,
};
pub use marker::{BadMarker, Marker};
pub use msda::{
    MSDA_BACKWARD_THREADS, MSDA_BLOCKS, MSDA_FORWARD_THREADS, MSDA_MAX_LEVELS, MSDA_MAX_SIDE,
    MSDA_POINT_BYTES, MSDA_SCAN_THREADS, MSDA_SMALL_THREADS, MSDA_TABLE_BYTES, MsdaEntry, MsdaLevel,
    MsdaParams,
};
pub use scan::{SCAN_GROUP_BYTES, SCAN_PIECES, SCAN_THREADS, ScanParams, ScanRecord};
pub use score::*;
pub use softcap::{STEEP_CAP, SoftcapPolynomial};
pub use split::*;
pub use table::KERNELS;
pub use variant::{KernelVariant, Switch, Switches, VariantKey};

/// A four-dimensional tensor `[batch, row, head, column]` in device memory; columns are contiguous.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TensorView {
    /// Device address of element (0, 0, 0, 0).
    pub address: u64,
    /// Elements from one batch to the next. May be zero (broadcast) or negative for inputs.
    pub batch_stride: i64,
    /// Elements from one row to the next.
    pub row_stride: i64,
    /// Elements from one head to the next.
    pub head_stride: i64,
}

/// An open side of the attention window (see [`ForwardParams::window_left`]).
///
/// Large enough to hide no key, small enough that `row + diagonal + WINDOW_OPEN` fits an `i32`.
pub const WINDOW_OPEN: i32 = 1 << 30;

/// No more rows than this in a query or key sequence: row arithmetic in the kernels is 32-bit, and runs
/// up to a tile past the end.
pub const MAX_ROWS: u32 = (1 << 30) - 256;

/// The largest head dimension.
pub const MAX_HEAD_DIM: u32 = 256;

/// Parameters of the forward kernels, passed by value as the only kernel parameter.
///
/// Key `j` is visible to query `i` of a sequence of Sq queries and Sk keys iff `j < Sk` and
/// `i + diagonal - window_left <= j <= i + diagonal + window_right`, where the diagonal is `Sk - Sq` if
/// `bottom_right`, else 0.
///
/// Packed sequences ("varlen"): q, k, v and o are `[rows, heads, columns]` with the sequences one after
/// another, and `cu_seqlens_q`, `cu_seqlens_k` say where each begins. Batch strides are not used then.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ForwardParams {
    /// `[B, Sq, Hq, D]`.
    pub q: TensorView,
    /// `[B, Sk, Hk, D]`.
    pub k: TensorView,
    /// `[B, Sk, Hk, Dv]`.
    pub v: TensorView,
    /// `[B, Sq, Hq, Dv]`.
    pub o: TensorView,
    /// Device address of lse, f32, rows contiguous (`[B, Hq, Sq]`, packed `[Hq, rows]`); 0 when not
    /// wanted.
    pub lse: u64,
    /// f32 elements of lse from one batch to the next.
    pub lse_batch_stride: i64,
    /// f32 elements of lse from one head to the next.
    pub lse_head_stride: i64,
    /// Device address of B + 1 offsets (i32, ascending from 0) of the sequences in packed q and o; 0
    /// when not packed.
    pub cu_seqlens_q: u64,
    /// The same for k and v; 0 iff `cu_seqlens_q` is.
    pub cu_seqlens_k: u64,
    /// B.
    pub batches: u32,
    /// Hq.
    pub query_heads: u32,
    /// Hq / Hk: how many query heads share a key head.
    pub group_size: u32,
    /// Sq; the largest one of packed sequences.
    pub query_rows: u32,
    /// Sk; the largest one of packed sequences.
    pub key_rows: u32,
    /// D.
    pub head_dim: u32,
    /// Dv.
    pub value_dim: u32,
    /// 1: the last query is aligned with the last key; 0: the first with the first.
    pub bottom_right: u32,
    /// Keys visible to the left of the diagonal, or [`WINDOW_OPEN`].
    pub window_left: i32,
    /// Keys visible to the right of the diagonal, or [`WINDOW_OPEN`]; 0 is causal.
    pub window_right: i32,
    /// Softmax scale: the score is `scale * (q . k)`.
    pub scale: f32,
    /// [`OUTPUT_F32`] or [`OUTPUT_F32_FOR_NOW`]: o is f32; 0: o has the dtype of q.
    pub output_f32: u32,
    /// How many (batch, head) pairs are worked on together; see [`crate::geometry::schedule`].
    pub heads_per_wave: u32,
    /// Whether [`ForwardHopperParams::o_map`] describes o, in 16 bits. Other kernels do not look at it.
    pub o_is_mapped: u32,
    /// Ranges of keys that are worked on apart, each with an o of its own, and in place of lse two numbers a
    /// row, side by side: see `OnlineSoftmax::close`. Those of range r of batch b stand where batch
    /// `b splits + r` would, those of packed sequences where batch r would. A packed sequence has as many as
    /// its keys fill, one at least; of others there is nothing. 1: all keys at once, as kernels that do not
    /// [split keys](KernelSpec::splits_keys) need it.
    pub splits: u32,
    /// Keys of a range, a multiple of [`KernelSpec::key_rows`]; the last range has what is left, one at
    /// least if there are any keys. 0: o and lse are those of all keys. Not 0 with one range, which then has
    /// all keys that are here: other keys of the same queries are elsewhere, and o and the numbers in place
    /// of lse are what a combining kernel takes or, with [`Switch::Merge`], the next pass.
    pub split_keys: u32,
    /// Query heads that stand side by side as rows of a query tile ([`crate::geometry::row_heads`]), a
    /// divisor of Hq / Hk: `query_heads`, `group_size` and `heads_per_wave` count so many heads as one. 1
    /// for all kernels but those that [gather heads](KernelSpec::gathers_heads), which alone look at this and
    /// what follows.
    pub row_heads: u32,
    /// `row_heads::reciprocal(row_heads)`; rows are exact as [`crate::geometry::row_heads::EXACT_BELOW`]
    /// says.
    pub row_heads_reciprocal: u32,
    /// Queries of a query tile, at least 1: [`KernelSpec::query_rows`], divided by `row_heads` and rounded
    /// down.
    pub tile_queries: u32,
    /// Query tiles of `row_heads` heads: `query_rows` divided by `tile_queries` and rounded up.
    pub query_tiles: u32,
    /// Cap of scores, `s = softcap tanh(s / softcap)`; looked at where [`Switch::Softcap`] is on.
    pub softcap: f32,
    /// `scale / softcap`: what a product q . k is multiplied by for the argument of `tanh`. Likewise.
    pub softcap_factor: f32,
    /// Products below this size take the short form of `tanh`, [`SoftcapPolynomial::of_forward`]. Likewise.
    pub softcap_near: f32,
    /// Coefficients of that form, for the size of the factor. Likewise.
    pub softcap_polynomial: [f32; 3],
    /// The unit of probabilities before they are normalised, a power of two: [`probability_unit_log2`] of the
    /// most keys that a query has.
    pub unit: f32,
    /// Its exponent.
    pub unit_log2: f32,
    /// What scores are in units of, as kernels have them: `|scale|`, or 1 where that is 0; the cap of capped
    /// scores; 1 of those to which something is added.
    pub score_unit: f32,
    /// The same times `log2(e)`.
    pub score_unit_log2: f32,
    /// What else is done to scores.
    pub score: ScoreParams,
    /// What passes over other keys have left; looked at where [`Switch::Merge`] is on.
    pub previous: PreviousParams,
}

/// How far, in powers of two, an unnormalised probability may exceed 1: see `attention::softmax`.
pub const RESCALE_THRESHOLD_LOG2: u32 = 13;

/// The exponent of the largest unit of probabilities in which those of `keys` keys, multiplied by finite
/// values and added up, stay below the largest f32: each is at most 2^[`RESCALE_THRESHOLD_LOG2`], but for the
/// rounding of 16 bits. That of a single key is 1.
pub const fn probability_unit_log2(keys: u32) -> i32 {
    if keys <= 1 { 0 } else { -((RESCALE_THRESHOLD_LOG2 + 1 + (keys - 1).ilog2() + 1) as i32) }
}

/// Warps of a block of the combining kernels.
pub const COMBINE_WARPS: u32 = 4;

/// No more ranges of keys than this: what the lanes of a warp hold four weights each of.
pub const MAX_SPLITS: u32 = 128;

/// o is f32.
pub const OUTPUT_F32: u32 = 1;
/// o is f32, and will be rounded to the dtype of q when ranges of keys are combined: as exact as that needs.
pub const OUTPUT_F32_FOR_NOW: u32 = 2;

impl ForwardParams {
    /// Rows of a query tile that are queries of heads.
    #[inline(always)]
    pub const fn tile_rows(&self) -> u32 {
        self.tile_queries * self.row_heads
    }

    /// Whether o is to be as exact as f32 can be.
    #[inline(always)]
    pub const fn is_exact(&self) -> bool {
        self.output_f32 == OUTPUT_F32
    }
}

/// Rows of the boxes in which the Hopper forward stores o: those of a warp.
pub const OUTPUT_BOX_ROWS: u32 = 16;

/// What the tensor memory accelerator knows of a tensor: opaque, made by the driver. 64-byte aligned
/// wherever the device reads it.
pub type TensorMap = [u64; 16];

/// Parameters of the Hopper forward, passed by value as the only kernel parameter (which the build aligns
/// to 64 for the maps).
///
/// The maps have the dimensions (columns, rows, heads, batches), innermost first, with one batch for packed
/// sequences; their boxes are 64 columns of as many rows as [`KernelSpec`] says. Kernels that
/// [gather heads](KernelSpec::gathers_heads) have heads before rows in that of q, and its boxes are
/// [`ForwardParams::tile_queries`] rows of [`ForwardParams::row_heads`] heads.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ForwardHopperParams {
    /// Map of q.
    pub q_map: TensorMap,
    /// Map of k; not used when there are no keys.
    pub k_map: TensorMap,
    /// Map of v; not used when there are no keys.
    pub v_map: TensorMap,
    /// Map of o, in boxes of [`OUTPUT_BOX_ROWS`] rows; not used unless [`ForwardParams::o_is_mapped`].
    pub o_map: TensorMap,
    /// Everything else.
    pub forward: ForwardParams,
    /// Device address of two u32 that are 0 before and after: tiles taken beyond the first of each block,
    /// and blocks that are done. 0: blocks take tiles in a fixed order.
    pub counter: u64,
}

/// Parameters of the three backward kernels (delta, main, convert), passed by value as the only kernel
/// parameter.
///
/// Visibility is as in [`ForwardParams`].
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BackwardParams {
    /// `[B, Sq, Hq, D]`.
    pub q: TensorView,
    /// `[B, Sk, Hk, D]`.
    pub k: TensorView,
    /// `[B, Sk, Hk, Dv]`.
    pub v: TensorView,
    /// `[B, Sq, Hq, Dv]`, what the forward gave.
    pub o: TensorView,
    /// `[B, Sq, Hq, Dv]`, the gradient of o.
    pub d_o: TensorView,
    /// `[B, Sq, Hq, D]`, the gradient of q.
    pub dq: TensorView,
    /// `[B, Sk, Hk, D]`, the gradient of k.
    pub dk: TensorView,
    /// `[B, Sk, Hk, Dv]`, the gradient of v.
    pub dv: TensorView,
    /// Device address of lse, f32, what the forward gave.
    pub lse: u64,
    /// Device address of the gradient of lse, f32, strided like lse; 0 when there is none.
    pub d_lse: u64,
    /// As in [`ForwardParams`].
    pub lse_batch_stride: i64,
    /// As in [`ForwardParams`].
    pub lse_head_stride: i64,
    /// As in [`ForwardParams`].
    pub cu_seqlens_q: u64,
    /// As in [`ForwardParams`].
    pub cu_seqlens_k: u64,
    /// Workspace: f32 `[statistics, Hq, workspace_rows]`, aligned to 16: see [`RowStatistic`].
    pub statistics: u64,
    /// Workspace: f32 `[splits, Hq, accumulator_rows, padded_dim]`, aligned to 16: dQ before scaling, in
    /// the order in which the main kernel's lanes hold it.
    pub dq_accumulator: u64,
    /// Workspace: u32 `[Hq, workspace_rows / NOTE_ROWS]`, aligned to 4, for main kernels for Hopper, else 0:
    /// how far dQ is, see `attention::key_block::dq_note`. Where nothing was added to dQ, its
    /// accumulator holds anything. Without these, the delta kernel zeroes it.
    pub dq_notes: u64,
    /// Workspace: u32 `[1 + B Hk]`, aligned to 4, for main kernels for Hopper, else 0: how many key tiles, or
    /// turns of [`crate::geometry::stretch`], have been taken, where dQ has no order, beyond the first of
    /// each block; then, for each (batch, key head), how much of dQ is there for good, see
    /// `attention::key_block::finished_halves`.
    pub counter: u64,
    /// Workspace: f32 `[slots, 2, tile_keys, padded_dim]`, aligned to 16: sums of dK and dV over stretches
    /// of key tiles, before scaling. 0 where none is divided.
    pub stretch_sums: u64,
    /// f32 elements from one split of `dq_accumulator` to the next; 0 when all key tiles add to the
    /// same one.
    pub split_stride: u64,
    /// B.
    pub batches: u32,
    /// Hq.
    pub query_heads: u32,
    /// Hq / Hk.
    pub group_size: u32,
    /// Sq; the largest one of packed sequences.
    pub query_rows: u32,
    /// Sk; the largest one of packed sequences.
    pub key_rows: u32,
    /// D.
    pub head_dim: u32,
    /// Dv.
    pub value_dim: u32,
    /// Query rows per head in the workspace, of all batches together: see [`workspace_row_packed`].
    pub workspace_rows: u32,
    /// As in [`ForwardParams`].
    pub bottom_right: u32,
    /// As in [`ForwardParams`].
    pub window_left: i32,
    /// As in [`ForwardParams`].
    pub window_right: i32,
    /// Softmax scale.
    pub scale: f32,
    /// 1: o is f32; 0: o has the dtype of q.
    pub output_f32: u32,
    /// 1: dk and dv are f32; 0: they have the dtype of q. 1 where they are merged ([`Switch::Merge`]).
    pub gradients_f32: u32,
    /// The same of dq.
    pub dq_f32: u32,
    /// Nothing.
    pub reserved: u32,
    /// Blocks per key head: block b takes key tiles b, b + key_blocks, ... On Hopper, where blocks stay, its
    /// key tiles.
    pub key_blocks: u32,
    /// Accumulators of dQ: 1, or, where they are kept apart for a fixed order of summation,
    /// `key_blocks`.
    pub splits: u32,
    /// How many (batch, key head) pairs are worked on together; see [`crate::geometry::schedule`].
    pub heads_per_wave: u32,
    /// Elements per row of a dQ accumulator: the head dim of the main kernel.
    pub padded_dim: u32,
    /// Rows of a sequence in the workspace, where the next one's begin: room for whole query tiles, rounded
    /// up to whole blocks of the delta kernel. Of packed sequences, those of the largest one.
    pub padded_rows: u32,
    /// In which order key tiles add their shares of dQ: [`DQ_UNORDERED`], [`DQ_STAGGERED`] or
    /// [`DQ_IN_ORDER`]. Main kernels for Hopper alone.
    pub dq_order: u32,
    /// Query rows per head in `dq_accumulator`: `workspace_rows - B dq_gap`.
    pub accumulator_rows: u32,
    /// Rows that a sequence has less in `dq_accumulator` than in the rest of the workspace: rows of padding
    /// that nobody stores. 0 where sequences are packed, and where the delta kernel zeroes accumulators.
    pub dq_gap: u32,
    /// As in [`crate::geometry::stretch::Division`], for main kernels for Hopper.
    pub whole_tiles: u32,
    /// As in [`crate::geometry::stretch::Division`]. The units of twice the key tiles of a head, and of all
    /// tiles that are divided with what blocks ask for beyond them, are less than 2^31, and so is the
    /// product with the most steps of a tile.
    pub unit_bits: u32,
    /// As in [`crate::geometry::stretch::Division`].
    pub turn_units: u32,
    /// Keys of a tile of the main kernel, if it is for Hopper.
    pub tile_keys: u32,
    /// As in [`ForwardParams`].
    pub softcap: f32,
    /// As in [`ForwardParams`].
    pub softcap_factor: f32,
    /// As in [`ForwardParams`], of [`SoftcapPolynomial::of_gradients`].
    pub softcap_near: f32,
    /// Likewise, for the factor with its sign.
    pub softcap_polynomial: [f32; 2],
    /// What ds is multiplied by before it is summed up to dq and dk, a power of two: 1, or about the scale,
    /// where sums without it could be too large for f32 though the gradients are not.
    pub ds_scale: f32,
    /// What the sums are multiplied by at the end: `scale / ds_scale`.
    pub gradient_scale: f32,
    /// 1: lse of the statistics is natural, whatever the element type.
    pub lse_is_natural: u32,
    /// 1: the gradient of the bias is f32; 0: it has the dtype of q.
    pub d_bias_f32: u32,
    /// As in [`ForwardParams`].
    pub score: ScoreParams,
    /// The gradient of the bias; its address is 0 when it is not wanted.
    pub d_bias: ScoreView,
    /// Extents of the gradient of the bias: batches, heads, queries, keys.
    pub d_bias_shape: [u32; 4],
    /// Device address of the gradient of the sinks, f32 `[Hq]`; 0 when it is not wanted.
    pub d_sinks: u64,
    /// What passes over other keys have left of dq, f32, aligned to 16, rows a multiple of 4 elements apart;
    /// looked at where the last kernel has [`Switch::Merge`] on.
    pub previous_dq: TensorView,
}

/// Shares of dQ are added as they come; every key tile begins with the first query tile that sees it.
pub const DQ_UNORDERED: u32 = 0;
/// They are added as they come, and the key tiles of a head begin with different query tiles. Every query
/// sees every key, nothing is packed, and `key_blocks` times the query tiles of a head is below 2^32.
pub const DQ_STAGGERED: u32 = 1;
/// They are added one after the other, so that sums are the same in every run.
pub const DQ_IN_ORDER: u32 = 2;

/// Parameters of the main kernel of the Hopper backward, passed by value as the only kernel parameter (which
/// the build aligns to 64 for the maps). The kernels before and after it get [`BackwardParams`].
///
/// The maps are as in [`ForwardHopperParams`].
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BackwardHopperParams {
    /// Map of q.
    pub q_map: TensorMap,
    /// Map of k.
    pub k_map: TensorMap,
    /// Map of v.
    pub v_map: TensorMap,
    /// Map of dO.
    pub d_o_map: TensorMap,
    /// Everything else.
    pub backward: BackwardParams,
}

/// What the backward's workspace has of each query row: f32 `[Hq, workspace_rows]` each, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowStatistic {
    /// -lse, in powers of two for 16-bit elements; `-inf` for rows that see no key and for padding. Where
    /// scores are not capped, of steep rows, whose lse is too large for that, the smallest normal number,
    /// next to nothing.
    Lse = 0,
    /// `sum(dO o) - dLSE`.
    Delta = 1,
    /// Two side by side: of steep rows what scores are relative to, in natural units, and what is added then,
    /// in units of products q . k (`p = e^(scale (q . k) - reference + scale rest)`), or of the cap. Of
    /// others 0 and 0; lse and 0 where scores are capped.
    Reference = 2,
    /// `sum |dO|`, for f16 alone.
    Norm = 4,
}

/// Statistics per query row in the backward's workspace.
pub const fn backward_statistics(dtype: Dtype) -> u32 {
    match dtype {
        Dtype::F16 => RowStatistic::Norm as u32 + 1,
        Dtype::Bf16 | Dtype::F32 => RowStatistic::Reference as u32 + 2,
    }
}

/// Rows of the workspace that share one of the [`BackwardParams::dq_notes`].
pub const NOTE_ROWS: u32 = 32;

/// A packed sequence's rows in the backward's workspace are padded to a multiple of this: a whole number of
/// query tiles of all kernels that take packed sequences.
pub const ROW_PADDING: u32 = 128;

/// First row of sequence `batch` in the backward's workspace, for packed sequences (`first_query` is its
/// offset in the packed rows): the padding of those before it fits in between, and its end is where
/// `batch + 1` may begin.
#[inline(always)]
pub const fn workspace_row_packed(first_query: u32, batch: u32) -> u32 {
    (first_query / ROW_PADDING + batch) * ROW_PADDING
}

/// The sequence whose [`workspace_row_packed`] this is.
#[inline(always)]
pub const fn packed_batch(workspace_row: u32, first_query: u32) -> u32 {
    workspace_row / ROW_PADDING - first_query / ROW_PADDING
}
