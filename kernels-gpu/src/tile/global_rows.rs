//! A block of rows of one head of a tensor in global memory.

use crate::abi::TensorView;
use crate::arch::global;

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
