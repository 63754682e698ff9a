//! Metadata of sparse products: where in a row of A the values stand that are kept. Each warp has that of its
//! rows, also of a `wgmma.mma_async.sp`.
//!
//! Of each four values of a row two are kept, of tf32 one of each two, and of 4 bits two pairs of each four
//! pairs. Each has an index of two bits, in the order of k; tf32 has two of them, the halves of the number. A
//! register of a lane holds the indices of 16 bits of types of 16 and 32 bits of row `lane / 4` and, above
//! them, of the row 8 further down; of smaller types 32 bits of one row. The selector says which of the four
//! lanes of a row count.

use crate::exec::state::context::{Context, Stop};
use crate::exec::state::warp::Warp;
use crate::exec::values::registers::LANES;
use crate::isa::{MatrixShape, MatrixType};
use crate::report::FindingKind;

/// The `index`th index of a row of 16, and the lane that has it.
fn index_of(
    metadata: &[u32; LANES],
    shape: &MatrixShape,
    selector: usize,
    row: usize,
    index: usize,
) -> (usize, usize) {
    let (first, _) = shape.metadata_lanes(selector);
    let (group, half) = (row % 8 * 4, row / 8);
    let (lane, bit) = match shape.a {
        MatrixType::Tf32 | MatrixType::F16 | MatrixType::Bf16 => {
            (first + index / 8, 16 * half + index % 8 * 2)
        }
        _ => (first + index / 16 * 2 + half, index % 16 * 2),
    };
    (metadata[group + lane] as usize >> bit & 3, group + lane)
}

/// The column of A in which the `kept`th value of a row stands. The lane whose metadata is not valid, if it
/// is not.
fn column(
    metadata: &[u32; LANES],
    shape: &MatrixShape,
    (selector, ordered): (usize, bool),
    row: usize,
    kept: usize,
) -> Result<usize, usize> {
    let at = |index: usize| index_of(metadata, shape, selector, row, index);
    // Both indices of four bits, and which of them is asked for.
    let index = match shape.a {
        MatrixType::Tf32 => 2 * kept,
        MatrixType::S4 | MatrixType::U4 => kept / 2,
        _ => kept,
    };
    let ((low, lane), (high, _)) = (at(index & !1), at(index | 1));
    let chosen = if index % 2 == 0 { low } else { high };
    match shape.a {
        // The two halves of the first number, or of the second.
        MatrixType::Tf32 if low % 2 == 0 && high == low + 1 => Ok(2 * kept + low / 2),
        MatrixType::Tf32 => Err(lane),
        _ if low == high || (ordered && low > high) => Err(lane),
        MatrixType::S4 | MatrixType::U4 => Ok(index / 2 * 8 + 2 * chosen + kept % 2),
        _ => Ok(index / 2 * 4 + chosen),
    }
}

/// The columns of A in which the values of its rows stand, row after row. Metadata that is not valid is a
/// finding.
pub fn columns(
    c: &mut Context<'_>,
    w: &Warp,
    metadata: &[u32; LANES],
    shape: &MatrixShape,
    how: (usize, bool),
) -> Result<Vec<usize>, Stop> {
    let mut columns = Vec::with_capacity(shape.rows * shape.k / 2);
    for row in 0..shape.rows {
        for kept in 0..shape.k / 2 {
            match column(metadata, shape, how, row, kept) {
                Ok(column) => columns.push(column),
                Err(lane) => {
                    let word = metadata[lane];
                    c.report(FindingKind::InvalidOperand, w.pc, w.id, lane as u32, |_| {
                        format!(
                            "metadata {word:#010x} of lane {lane}: the indices of value {kept} of row {row} \
                             are no {}",
                            if how.1 { "two that grow" } else { "two different ones" }
                        )
                    });
                    return Err(Stop);
                }
            }
        }
    }
    Ok(columns)
}
