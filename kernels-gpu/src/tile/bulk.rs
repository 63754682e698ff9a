//! Tiles moved by the tensor memory accelerator, and what is done to them before `wgmma` reads them.

use super::shared_tile::SharedTileOf;
use crate::arch::{bulk_copy, shared};
use crate::geometry::descriptor;
use crate::geometry::size::TileSize;

/// Columns of one box: a panel of 128 bytes of 16-bit elements.
const BOX_COLUMNS: u32 = 64;

/// Where a tile stands in a tensor: the coordinates of its first row, as they follow the columns in the
/// tensor's map. In packed tensors rows are those of all sequences, and the batch is 0.
#[derive(Clone, Copy)]
pub struct Place([i32; 3]);

impl Place {
    /// In a map of rows, then heads.
    #[inline(always)]
    pub fn of_rows(row: i32, head: u32, batch: u32) -> Self {
        Place([row, head as i32, batch as i32])
    }

    /// In a map of heads, then rows.
    #[inline(always)]
    pub fn of_heads(head: u32, row: i32, batch: u32) -> Self {
        Place([head as i32, row, batch as i32])
    }

    #[inline(always)]
    fn coordinates(&self, panel: u32) -> [i32; 4] {
        [(panel * BOX_COLUMNS) as i32, self.0[0], self.0[1], self.0[2]]
    }
}

impl<S: TileSize> SharedTileOf<S> {
    const PANELS: u32 = S::ROW_BYTES / 128;

    /// Starts copies of the whole tile, a box per panel; [`SharedTileOf::BYTES`] arrive at `barrier`, or
    /// fewer where boxes have fewer rows than the tile.
    ///
    /// # Safety
    /// As [`bulk_copy::load`]; the map's boxes have at most the tile's rows.
    #[inline(always)]
    pub unsafe fn request(self, map: u64, place: &Place, barrier: u32) {
        let mut panel = 0;
        while panel < Self::PANELS {
            let address = self.address + panel * S::ROWS * 128;
            bulk_copy::load(address, map, place.coordinates(panel), barrier);
            panel += 1;
        }
    }

    /// Starts copies of rows from `first_row` (a multiple of 8) on, as many as the map's boxes have, in the
    /// thread's open group. `place` is that of the first of them.
    ///
    /// # Safety
    /// As [`bulk_copy::store`].
    #[inline(always)]
    pub unsafe fn send(self, map: u64, place: &Place, first_row: u32) {
        let mut panel = 0;
        while panel < Self::PANELS {
            let address = self.address + (panel * S::ROWS + first_row) * 128;
            bulk_copy::store(map, place.coordinates(panel), address);
            panel += 1;
        }
    }

    /// The descriptor of the tile from row `first_row` (a multiple of 8) on.
    #[inline(always)]
    pub fn descriptor(self, first_row: u32) -> u64 {
        descriptor::descriptor(self.address + first_row * 128, S::ROWS * 128)
    }

    /// Fills rows `first..` with zeros; `first` is at most the number of rows.
    ///
    /// # Safety
    /// One warp calls it; nobody else uses these rows.
    #[inline(always)]
    pub unsafe fn clear_rows(self, lane: u32, first: u32) {
        // The swizzle stays inside a row.
        let mut offset = first * 128 + lane * 16;
        while offset < S::ROWS * 128 {
            let mut panel = 0;
            while panel < Self::PANELS {
                shared::store_u32x4(self.address + panel * S::ROWS * 128 + offset, [0; 4]);
                panel += 1;
            }
            offset += 32 * 16;
        }
    }
}
