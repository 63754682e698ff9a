//! The bias: each lane reads the elements of the scores that it holds, two neighbouring keys at once where it
//! can.

use super::features::{LaneTile, elements};
use super::{ScorePlace, ScoreTile};
use crate::abi::ScoreParams;
use crate::arch::math;
use crate::tile::element::Element;
use crate::tile::fragment::Fragment;

/// `scores = scores factor + bias`, of a bias of type `B`. A product that is NaN stays one beside a bias of
/// minus infinity: what telling them apart costs is more than the bias itself, and rows that see no key are
/// told apart in the end.
///
/// # Safety
/// The tensors are as [`ScoreParams`] says.
#[inline(always)]
pub(super) unsafe fn add<
    B: Element,
    F: Fragment<ROWS, N>,
    const ROWS: usize,
    const N: usize,
    const TRANSPOSED: bool,
>(
    lane: u32,
    scores: &mut [f32; N],
    p: &ScoreParams,
    tile: &ScoreTile,
    place: &ScorePlace,
    factor: f32,
) {
    let of_lane = LaneTile::new::<F, ROWS, N>(tile, lane);
    let columns = of_lane.columns();
    let last_column = F::column_offset(F::COLUMNS - 1) as i32;
    let mut row = 0;
    while row < ROWS {
        let (this_row, is_there) = of_lane.row::<F, ROWS, N>(row);
        let (query_or_key, head) = tile.row_heads.place(this_row);
        let (query, key) = if TRANSPOSED {
            (of_lane.first_column, query_or_key)
        } else {
            (query_or_key, of_lane.first_column)
        };
        let bias = elements::<B>(&p.bias, place, head).from(query, place.first_key + key);
        let pairs = F::PAIRED && !TRANSPOSED && p.bias_in_pairs != 0;
        if pairs && is_there && last_column < columns {
            let mut column = 0;
            while column < F::COLUMNS {
                let address = bias.address.wrapping_add((F::column_offset(column) * B::BYTES) as u64);
                let (even, odd) = B::load_pair(address);
                let (first, second) = (F::register(row, column), F::register(row, column + 1));
                scores[first] = math::fma(scores[first], factor, even);
                scores[second] = math::fma(scores[second], factor, odd);
                column += 2;
            }
        } else {
            let mut column = 0;
            while column < F::COLUMNS {
                let offset = F::column_offset(column);
                let is_there = is_there && (offset as i32) < columns;
                let address = if TRANSPOSED { bias.query(offset) } else { bias.key(offset) };
                let value = B::load_if(address, is_there);
                let register = F::register(row, column);
                scores[register] = math::fma(scores[register], factor, value);
                column += 1;
            }
        }
        row += 1;
    }
}
