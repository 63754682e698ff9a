//! Where a 16-byte chunk of a tile stands in shared memory.
//!
//! A tile is stored as panels, one after another: each holds 128 bytes of every row (64 when the row is
//! no multiple of 128 bytes long). Inside a panel the chunk number is XORed with bits of the row, so
//! that the eight rows which `ldmatrix` reads at once, or eight lanes that each read 16 bytes of their
//! own row, hit eight different bank groups:
//!
//! ```text
//! 128-byte panels: chunk ^ (row & 7)        64-byte panels: chunk ^ (row >> 1 & 3)
//!   row 0: 0 1 2 3 4 5 6 7                    row 0: 0 1 2 3   row 1: 0 1 2 3
//!   row 1: 1 0 3 2 5 4 7 6                    row 2: 1 0 3 2   row 3: 1 0 3 2
//! ```
//!
//! These are the tensor-memory-accelerator's own SWIZZLE_128B and SWIZZLE_64B: a tile looks the same
//! whoever wrote it.

/// Bytes of a chunk: what `ldmatrix` and `cp.async` move for one row.
pub const CHUNK_BYTES: u32 = 16;

/// Bytes of a row inside one panel, for a tile with rows of `row_bytes` (a multiple of 64).
#[inline(always)]
pub const fn panel_bytes(row_bytes: u32) -> u32 {
    if row_bytes.is_multiple_of(128) { 128 } else { 64 }
}

/// What the chunk number is XORed with in row `row`, in panels of `panel_bytes`.
#[inline(always)]
pub const fn row_xor(panel_bytes: u32, row: u32) -> u32 {
    if panel_bytes == 128 { row & 7 } else { row >> 1 & 3 }
}

/// Byte offset of chunk `chunk` of row `row` in a tile of `rows` rows of `row_bytes` bytes.
#[inline(always)]
pub const fn chunk_offset(rows: u32, row_bytes: u32, row: u32, chunk: u32) -> u32 {
    let panel = panel_bytes(row_bytes);
    let per_row = panel / CHUNK_BYTES;
    let (panel_index, inner) = (chunk / per_row, chunk % per_row);
    (panel_index * rows + row) * panel + (inner ^ row_xor(panel, row)) * CHUNK_BYTES
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::collections::HashSet;

    /// Rows of the head dims 32, 64, 96, 128, 192, 256 in 16 bits, and 256 in 32 bits.
    const ROW_BYTES: [u32; 7] = [64, 128, 192, 256, 384, 512, 1024];

    #[test]
    fn every_chunk_has_a_place_of_its_own_inside_the_tile() {
        for row_bytes in ROW_BYTES {
            let rows = 64;
            let mut seen = HashSet::new();
            for row in 0..rows {
                for chunk in 0..row_bytes / CHUNK_BYTES {
                    let offset = chunk_offset(rows, row_bytes, row, chunk);
                    assert!(offset.is_multiple_of(CHUNK_BYTES) && offset < rows * row_bytes);
                    assert!(seen.insert(offset));
                }
            }
        }
    }

    #[test]
    fn eight_rows_of_one_chunk_touch_every_bank_once() {
        for row_bytes in ROW_BYTES {
            for chunk in 0..row_bytes / CHUNK_BYTES {
                for first in (0..64).step_by(8) {
                    let groups: HashSet<u32> = (first..first + 8)
                        .map(|row| chunk_offset(64, row_bytes, row, chunk) / 16 % 8)
                        .collect();
                    assert_eq!(
                        groups.len(),
                        8,
                        "rows of {row_bytes} bytes, chunk {chunk}, first row {first}"
                    );
                }
            }
        }
    }
}
