//! The mask: the score of a key that a query does not see is minus infinity.

use super::ScoreTile;
use crate::tile::fragment::Fragment;

/// Sets scores to `-inf` where the column is not visible to the row, and everywhere in rows that are not the
/// tile's own.
#[inline(always)]
pub fn apply_mask<F: Fragment<ROWS, N>, const ROWS: usize, const N: usize>(
    lane: u32,
    scores: &mut [f32; N],
    tile: &ScoreTile,
) {
    const { assert!(F::COLUMNS <= u32::BITS as usize) };
    let &ScoreTile { first_row, first_column, end_row, visible, row_heads, .. } = tile;
    let first_column = first_column + F::first_column(lane) as i32;
    let mut row = 0;
    while row < ROWS {
        let this_row = first_row + F::row(lane, row) as i32;
        let row_is_there = this_row < end_row;
        let query = row_heads.query(this_row);
        let last = if row_is_there { visible.end(query) } else { 0 };
        // A bit for each column that is visible: the assembler makes predicates of seven of them at once, a
        // third of the instructions that comparisons of every column would take.
        let bits = F::columns_before(last - first_column)
            .zip(F::columns_before(visible.begin(query) - first_column))
            .map(|(end, begin)| low_bits(end) & !low_bits(begin));
        let (begin, end) = (visible.begin(query), visible.end(query));
        let count = if end > begin && row_is_there { (end - begin) as u32 } else { 0 };
        let relative = first_column.wrapping_sub(begin);
        let mut column = 0;
        while column < F::COLUMNS {
            let is_visible = match bits {
                Some(bits) => bits & 1 << column != 0,
                // One unsigned comparison tests both ends.
                None => (relative.wrapping_add(F::column_offset(column) as i32) as u32) < count,
            };
            if !is_visible {
                scores[F::register(row, column)] = f32::NEG_INFINITY;
            }
            column += 1;
        }
        row += 1;
    }
}

/// The lowest `count` bits, of at most 32.
#[inline(always)]
const fn low_bits(count: u32) -> u32 {
    ((1u64 << count) - 1) as u32
}
