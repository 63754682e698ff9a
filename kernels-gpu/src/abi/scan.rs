//! Launch parameters of the kernels that scan a tensor.

/// Threads of a block of these kernels.
pub const SCAN_THREADS: u32 = 256;
/// Pieces of rows that a lane has in flight.
pub const SCAN_PIECES: u32 = 4;
/// Bytes that a lane reads at a time.
pub const SCAN_GROUP_BYTES: u32 = 16;

/// Parameters of the kernels that scan a tensor, passed by value as the only kernel parameter.
///
/// The tensor is `[.., .., rows.., columns]`: up to three dimensions of rows, in logical order. A row is cut
/// into pieces of `2^piece_groups_log2` groups of [`SCAN_GROUP_BYTES`] bytes, a warp takes as many pieces as
/// it has lanes for side by side, [`SCAN_PIECES`] times, which is a step; block after block takes steps. So
/// which thread adds what depends on the tensor and the number of blocks alone.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScanParams {
    /// Device address of element (0, 0, 0, 0), aligned to it.
    pub address: u64,
    /// Elements from one index to the next, of each dimension.
    pub strides: [i64; 4],
    /// Columns of a row.
    pub columns: u64,
    /// Device address of a [`ScanRecord`] for each block, aligned to 16.
    pub records: u64,
    /// Sizes of the second and third dimension.
    pub sizes: [u32; 2],
    /// Rows, of all three dimensions.
    pub rows: u32,
    /// Pieces of a row.
    pub row_pieces: u32,
    /// Steps; with those of one round more, below 2^32, and so are their pieces.
    pub steps: u32,
    /// Lanes of a piece, as a power of two: 0 to 5.
    pub piece_groups_log2: u32,
    /// 1: columns are contiguous, and every row begins on a multiple of 16 bytes.
    pub is_aligned: u32,
    /// 1: minus infinity is no finding.
    pub allows_negative_infinity: u32,
    /// 1: elements are replaced by their products with `factor`, rounded once.
    pub writes: u32,
    /// What elements are multiplied by, after they were looked at.
    pub factor: f32,
    /// What products are multiplied by before they are squared: a power of two.
    pub unit: f32,
    /// Nothing.
    pub reserved: u32,
}

/// What a block has found.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ScanRecord {
    /// Sum of squares, in f32, of all elements times `factor` (rounded, if they are written) times `unit`.
    pub squares: f32,
    /// Elements that are NaN.
    pub nan: u32,
    /// Elements that are infinity.
    pub positive_infinity: u32,
    /// Elements that are minus infinity, unless these are no finding.
    pub negative_infinity: u32,
    /// Index of the first of them in logical order, low and high half; all bits set if there is none.
    pub first: [u32; 2],
    /// Nothing: 0.
    pub reserved: [u32; 2],
}
