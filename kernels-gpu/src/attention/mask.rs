//! Hiding keys: the score of an invisible key is minus infinity.

use crate::geometry::visible::Visible;
use crate::tile::fragment::Fragment;

/// Sets scores to `-inf` where the column is not visible to the row, for a tile whose first element is
/// (`first_row`, `first_column`); and everywhere in rows from `rows` on.
///
/// Rows are queries and columns keys, or, with [`Visible::transposed`], the other way round.
#[inline(always)]
pub fn hide<F: Fragment<ROWS, N>, const ROWS: usize, const N: usize>(
    lane: u32,
    scores: &mut [f32; N],
    visible: &Visible,
    first_row: i32,
    first_column: i32,
    rows: i32,
) {
    let first_column = first_column + F::first_column(lane) as i32;
    let mut row = 0;
    while row < ROWS {
        let this_row = first_row + F::row(lane, row) as i32;
        let begin = visible.begin(this_row);
        let end = visible.end(this_row);
        let count = if end > begin && this_row < rows { (end - begin) as u32 } else { 0 };
        let relative = first_column.wrapping_sub(begin);
        let mut column = 0;
        while column < F::COLUMNS {
            // One unsigned comparison tests both ends.
            if (relative.wrapping_add(F::column_offset(column) as i32)) as u32 >= count {
                scores[F::register(row, column)] = f32::NEG_INFINITY;
            }
            column += 1;
        }
        row += 1;
    }
}
