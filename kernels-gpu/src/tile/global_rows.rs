//! A block of rows of one head of a tensor in global memory.

use crate::abi::TensorView;
use crate::arch::global;
use crate::geometry::row_heads::RowHeads;

/// `rows` valid rows of `columns` valid elements; nothing else may be touched.
#[derive(Clone, Copy)]
pub struct GlobalRows {
    /// Device address of row 0, column 0.
    pub address: u64,
    /// Bytes from a row to the next; may be zero or negative.
    pub row_bytes: i64,
    /// Valid rows, counted from row 0 of the block; may be zero or negative.
    pub rows: i32,
    /// Valid elements of each row.
    pub columns: u32,
}

impl GlobalRows {
    /// `rows` rows of `view` from device address `address` on.
    #[inline(always)]
    pub fn new<const ELEMENT_BYTES: i64>(
        view: &TensorView,
        address: u64,
        rows: i32,
        columns: u32,
    ) -> Self {
        GlobalRows { address, row_bytes: view.row_stride * ELEMENT_BYTES, rows, columns }
    }

    /// Device address of row `row` of (`batch`, `head`).
    #[inline(always)]
    pub fn address<const ELEMENT_BYTES: i64>(view: &TensorView, batch: u32, head: u32, row: i32) -> u64 {
        let offset = batch as i64 * view.batch_stride
            + head as i64 * view.head_stride
            + row as i64 * view.row_stride;
        view.address.wrapping_add((offset * ELEMENT_BYTES) as u64)
    }

    /// The same, and its address is known here: the compiler does not put its computation off.
    #[inline(always)]
    pub fn now(mut self) -> Self {
        self.address = global::known(self.address);
        self
    }

    /// The same, `count` rows further on.
    #[inline(always)]
    pub fn skip(self, count: i32) -> Self {
        GlobalRows { address: self.row(count), rows: self.rows - count, ..self }
    }

    /// The same from column `count` on.
    #[inline(always)]
    pub fn skip_columns<const ELEMENT_BYTES: u32>(self, count: u32) -> Self {
        GlobalRows {
            address: self.address.wrapping_add((count * ELEMENT_BYTES) as u64),
            columns: self.columns.saturating_sub(count),
            ..self
        }
    }

    /// Address of row `row`.
    #[inline(always)]
    pub fn row(&self, row: i32) -> u64 {
        self.address.wrapping_add((row as i64 * self.row_bytes) as u64)
    }
}

/// Rows of a block of several heads side by side.
#[derive(Clone, Copy)]
pub struct HeadRows {
    /// The rows of the first head, of which there are as many as of all heads together.
    pub first: GlobalRows,
    /// Bytes from a head to the next.
    pub head_bytes: i64,
    /// What is counted from `first` on is this row of the block's first one.
    pub first_row: i32,
    /// Which query and which head a row is.
    pub row_heads: RowHeads,
}

impl HeadRows {
    /// The same, and its address is known here: as [`GlobalRows::now`].
    #[inline(always)]
    pub fn now(self) -> Self {
        HeadRows { first: self.first.now(), ..self }
    }
}

/// Rows of a block that are written.
pub trait Rows {
    /// Valid rows, counted from row 0 of the block; may be zero or negative.
    fn count(&self) -> i32;
    /// Valid elements of each row.
    fn columns(&self) -> u32;
    /// Device address of row `row`.
    fn row(&self, row: i32) -> u64;
    /// The address of what is `count` rows behind `address`, in row `row`.
    fn behind(&self, address: u64, row: i32, count: i32) -> u64;
}

impl Rows for GlobalRows {
    #[inline(always)]
    fn count(&self) -> i32 {
        self.rows
    }

    #[inline(always)]
    fn columns(&self) -> u32 {
        self.columns
    }

    #[inline(always)]
    fn row(&self, row: i32) -> u64 {
        GlobalRows::row(self, row)
    }

    #[inline(always)]
    fn behind(&self, address: u64, _: i32, count: i32) -> u64 {
        address.wrapping_add((count as i64 * self.row_bytes) as u64)
    }
}

impl Rows for HeadRows {
    #[inline(always)]
    fn count(&self) -> i32 {
        self.first.rows - self.first_row
    }

    #[inline(always)]
    fn columns(&self) -> u32 {
        self.first.columns
    }

    #[inline(always)]
    fn row(&self, row: i32) -> u64 {
        let (query, head) = self.row_heads.place(self.first_row + row);
        self.first.row(query).wrapping_add((head as i64 * self.head_bytes) as u64)
    }

    #[inline(always)]
    fn behind(&self, address: u64, row: i32, count: i32) -> u64 {
        match self.row_heads {
            RowHeads::One => self.first.behind(address, row, count),
            RowHeads::Several { .. } => {
                address.wrapping_add(self.row(row + count).wrapping_sub(self.row(row)))
            }
        }
    }
}
