//! Sizes as types: of tiles in shared memory, and of rings of stages.
//!
//! Where a kernel is a type parameter, its constants cannot be arguments of other types. Types that have them
//! can.

/// The size of a tile in shared memory.
pub trait TileSize: Copy {
    /// Rows.
    const ROWS: u32;
    /// Bytes of a row.
    const ROW_BYTES: u32;
}

/// `ROWS` rows of `ROW_BYTES` bytes.
#[derive(Clone, Copy)]
pub struct Size<const ROWS: u32, const ROW_BYTES: u32>;

impl<const ROWS: u32, const ROW_BYTES: u32> TileSize for Size<ROWS, ROW_BYTES> {
    const ROWS: u32 = ROWS;
    const ROW_BYTES: u32 = ROW_BYTES;
}

/// How many stages a ring has.
pub trait StageCount: Copy {
    /// Stages.
    const COUNT: u32;
}

/// `COUNT` stages.
#[derive(Clone, Copy)]
pub struct Count<const COUNT: u32>;

impl<const COUNT: u32> StageCount for Count<COUNT> {
    const COUNT: u32 = COUNT;
}
