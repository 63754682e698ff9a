//! The 64-bit word that tells `wgmma` where a shared operand stands and how it is laid out (PTX ISA,
//! "Asynchronous Warpgroup Level Matrix Shared Memory Layout").
//!
//! All tiles here are 128-byte panels with the 128-byte swizzle of [`super::swizzle`], eight rows of which
//! are the unit of the layout: 1024 bytes, at a multiple of 1024.
//!
//! ```text
//! bits  0..14   address / 16
//! bits 16..30   leading offset / 16:  from one panel to the next, where the operand's outer dimension runs
//!                                     along the row (v: columns of the output); unused where it runs
//!                                     across rows (q, k)
//! bits 32..46   stride offset / 16:   from eight rows to the next eight, 1024 bytes
//! bits 62..64   1: 128-byte swizzle
//! ```

const SWIZZLE_128_BYTES: u64 = 1 << 62;
const EIGHT_ROWS_BYTES: u64 = 1024;
/// The same where rows are of 16 bytes, without a swizzle.
const EIGHT_SHORT_ROWS_BYTES: u64 = 128;

/// An operand at shared address `address` (a multiple of 1024) in panels that are `panel_bytes` apart.
#[inline(always)]
pub const fn descriptor(address: u32, panel_bytes: u32) -> u64 {
    let address = (address & 0x3_ffff) as u64 >> 4;
    address | (panel_bytes as u64 >> 4) << 16 | (EIGHT_ROWS_BYTES >> 4) << 32 | SWIZZLE_128_BYTES
}

/// An operand of 8 columns of tf32, of which the last four are the first four once more: rows of 16 bytes
/// side by side from shared address `address` on, a multiple of 16, without a swizzle. From four columns to
/// the next four it is no step (leading offset), from eight rows to the next eight 128 bytes.
#[inline(always)]
pub const fn repeated_columns_descriptor(address: u32) -> u64 {
    (address & 0x3_ffff) as u64 >> 4 | (EIGHT_SHORT_ROWS_BYTES >> 4) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_stand_where_the_isa_says() {
        let word = descriptor(0x1_2400, 128 * 128);
        assert_eq!(word & 0x3fff, 0x1240);
        assert_eq!(word >> 16 & 0x3fff, 1024);
        assert_eq!(word >> 32 & 0x3fff, 64);
        assert_eq!(word >> 62, 1);
    }

    #[test]
    fn addresses_of_all_shared_memory_fit_and_move_nothing_else() {
        let (first, last) = (descriptor(0, 1024), descriptor(226 << 10, 1024));
        assert_eq!(last - first, (226 << 10) / 16);
    }
}
