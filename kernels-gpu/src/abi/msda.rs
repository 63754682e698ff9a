//! Launch parameters of multi-scale deformable attention (docs/semantics.md, section 5).

use super::TensorView;

/// No more levels than this: their table is a part of the parameters.
pub const MSDA_MAX_LEVELS: usize = 16;

/// No level is higher or wider than this: an f32 counts so far.
pub const MSDA_MAX_SIDE: u32 = 1 << 24;

/// Threads of a block of the forward, those of 32 / [`MsdaParams::lanes`] queries in a warp.
pub const MSDA_FORWARD_THREADS: u32 = 512;

/// Threads of a block of the main kernel of the backward: fewer, with more registers each.
pub const MSDA_BACKWARD_THREADS: u32 = 256;

/// Threads of a block of every other kernel of multi-scale deformable attention.
pub const MSDA_SMALL_THREADS: u32 = 256;

/// Threads of a block of the kernel that scans: as many warps as a warp has lanes.
pub const MSDA_SCAN_THREADS: u32 = 1024;

/// Blocks of kernels that sample, these two, on a multiprocessor.
pub const MSDA_BLOCKS: u32 = 2;

/// Shared bytes of a point between the lane that computes it and those that use it: four numbers, and which
/// cells they are for.
pub const MSDA_POINT_BYTES: [u32; 2] = [16, 8];

/// Shared bytes of the table of levels.
pub const MSDA_TABLE_BYTES: u32 = 16 * MSDA_MAX_LEVELS as u32;

/// One level of the pyramid.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MsdaLevel {
    /// Rows, 1 to [`MSDA_MAX_SIDE`].
    pub height: u32,
    /// Columns, 1 to [`MSDA_MAX_SIDE`].
    pub width: u32,
    /// Its first cell among those of all levels.
    pub start: u32,
    /// The first of its bins, `(height + 1) (width + 1)`: see `msda::bin`.
    pub first_bin: u32,
}

/// Parameters of all kernels of multi-scale deformable attention, passed by value as the only kernel
/// parameter.
///
/// Cells are the rows of value: those of level 0, row after row, then those of level 1 and so on. Points
/// are counted over all levels of a query.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MsdaParams {
    /// `[B, cells, H, C]`.
    pub value: TensorView,
    /// `[B, N, H, points * 2]`: x, y of each point.
    pub locations: TensorView,
    /// `[B, N, H, points]`.
    pub weights: TensorView,
    /// `[B, N, H, C]`: o, written by the forward; in a backward its gradient, read.
    pub output: TensorView,
    /// `[B, cells, H, C]`, of the element type of value.
    pub d_value: TensorView,
    /// Like locations.
    pub d_locations: TensorView,
    /// Like weights.
    pub d_weights: TensorView,
    /// f32 `[B, cells, H, C]`: where gradients of value are added up. That of d_value itself where it is f32;
    /// address 0 where they are not added up by the main kernel.
    pub sums: TensorView,
    /// Workspace of the deterministic mode: u32 `[B H, chunks, bins]`. How many points of a chunk are in a
    /// bin; then the place of the next one in `entries`.
    pub counts: u64,
    /// Likewise: u32 `[B H, bins + 1]`, where the entries of a bin begin.
    pub bin_starts: u64,
    /// Likewise: [`MsdaEntry`] `[B H, N points]`, aligned to 16, by bin, and in a bin by query and point.
    pub entries: u64,
    /// B.
    pub batches: u32,
    /// N.
    pub queries: u32,
    /// H.
    pub heads: u32,
    /// C.
    pub channels: u32,
    /// Rows of value.
    pub cells: u32,
    /// How many levels there are, 1 to [`MSDA_MAX_LEVELS`].
    pub levels: u32,
    /// Points of a query in each level.
    pub level_points: u32,
    /// Points of a query: `levels * level_points`.
    pub points: u32,
    /// Lanes of a query, a power of two, 2 to 32.
    pub lanes: u32,
    /// Its logarithm.
    pub lanes_log2: u32,
    /// Blocks are `block_columns` times `block_rows`: those with numbers `block_columns` apart are meant to
    /// share a multiprocessor, and work side by side.
    pub block_columns: u32,
    /// See `block_columns`.
    pub block_rows: u32,
    /// 1: the corners of a level are centres of cells; 0: corners of cells.
    pub align_corners: u32,
    /// 1: padding border; 0: padding zeros.
    pub border: u32,
    /// 1: locations and their gradients are f32; 0: they have the element type of value.
    pub locations_f32: u32,
    /// 1: weights and their gradients are f32; 0: they have the element type of value.
    pub weights_f32: u32,
    /// Bins of all levels; see `msda::bin`.
    pub bins: u32,
    /// Chunks of the points of a (batch, head) pair.
    pub chunks: u32,
    /// Points of a chunk, a multiple of 32; the last one has what is left.
    pub chunk_points: u32,
    /// 1: rows of `sums` start on 16 bytes, and C is a multiple of 4.
    pub sums_aligned: u32,
    /// The levels.
    pub level: [MsdaLevel; MSDA_MAX_LEVELS],
}

/// A point in the list of a bin.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MsdaEntry {
    /// Its query.
    pub query: u32,
    /// Fraction of the way from the left corners to the right ones.
    pub x: f32,
    /// From the upper ones to the lower ones.
    pub y: f32,
    /// Its weight.
    pub weight: f32,
}
