//! Numbers of tensors that are f32 or of the element type of value, as a launch says.

use super::strip::{Strip, Strips};
use crate::abi::TensorView;
use crate::arch::{global, math};

/// Element `column` of row `row` of (`batch`, `head`), counted in elements from the first one.
#[inline(always)]
pub fn element_offset(view: &TensorView, batch: u32, row: u32, head: u32) -> i64 {
    batch as i64 * view.batch_stride + row as i64 * view.row_stride + head as i64 * view.head_stride
}

/// The address of row `row` of (`batch`, `head`), of elements of `bytes` bytes.
#[inline(always)]
pub fn row_address(view: &TensorView, batch: u32, row: u32, head: u32, bytes: u32) -> u64 {
    view.address.wrapping_add((element_offset(view, batch, row, head) * bytes as i64) as u64)
}

/// A row of a tensor whose elements are f32, or else `E`.
#[derive(Clone, Copy)]
pub struct Row {
    address: u64,
    /// Of an element.
    bytes: u32,
}

impl Row {
    /// Row `row` of (`batch`, `head`).
    #[inline(always)]
    pub fn new<E: Strips>(view: &TensorView, batch: u32, row: u32, head: u32, is_f32: bool) -> Self {
        let bytes = if is_f32 { 4 } else { <E::Element as Strip>::ELEMENT_BYTES };
        Row { address: row_address(view, batch, row, head, bytes), bytes }
    }

    /// Whether elements are f32, not 16 bits.
    #[inline(always)]
    fn is_f32<E: Strips>(self) -> bool {
        <E::Element as Strip>::ELEMENT_BYTES == 4 || self.bytes == 4
    }

    /// Where element `column` stands. The compiler adds four times a column to an address in fewer
    /// instructions than a product takes, and a product of what only the launch knows in more, everywhere.
    #[inline(always)]
    fn place<E: Strips>(self, column: u32) -> u64 {
        if <E::Element as Strip>::ELEMENT_BYTES == 4 {
            self.address.wrapping_add(4 * column as u64)
        } else {
            math::mad_wide_u32(column, self.bytes, self.address)
        }
    }

    /// Element `column`.
    ///
    /// # Safety
    /// It is readable, and not written during the kernel.
    #[inline(always)]
    pub unsafe fn load<E: Strips<Element: Strip<Values = [f32; 1]>>>(self, column: u32) -> f32 {
        let at = self.place::<E>(column);
        if self.is_f32::<E>() {
            global::load_f32(at)
        } else {
            E::Element::values(E::Element::load_if(at, true))[0]
        }
    }

    /// Writes element `column`, rounded.
    ///
    /// # Safety
    /// It is writable.
    #[inline(always)]
    pub unsafe fn store<E: Strips<Element: Strip<Values = [f32; 1]>>>(self, column: u32, value: f32) {
        let at = self.place::<E>(column);
        if self.is_f32::<E>() {
            global::store_f32(at, value);
        } else {
            E::Element::store(at, &[value]);
        }
    }
}
