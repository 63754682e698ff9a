//! Dropout: which probabilities are dropped ([`philox`]), forward and backward.
//!
//! ```text
//! o = sum of keep c p v                      c = 1 / (1 - rate), as far as rate is a number of 16 bits
//! dv = sum of keep c p dO                    ds = c p (keep dO v - delta / c)
//! ```
//!
//! The sum of probabilities, and so lse, is that of all. c is multiplied into o and dv at their end, and so
//! it is into the other gradients but those of f16 ([`DropoutParams::dp_scale`]): it costs them no range. A
//! lane's eight pairs of a call are dealt with together where rows are queries; where rows are keys, the
//! lanes of two neighbouring keys make a call each and give each other half of it.

use super::{ScorePlace, ScoreTile};
use crate::abi::{DropoutParams, ScoreParams};
use crate::arch::convert::permute;
use crate::arch::{specialize, warp};
use crate::geometry::philox::{call, philox};
use crate::tile::fragment::Fragment;

/// Columns of a lane in a block of 16 x 16, of tensor-core fragments.
const BLOCK_COLUMNS: usize = 4;

/// The calls of one head.
struct Calls<'p> {
    p: &'p DropoutParams,
    pair: u32,
}

impl<'p> Calls<'p> {
    #[inline(always)]
    fn new(p: &'p ScoreParams, place: &ScorePlace) -> Self {
        Calls { p: &p.dropout, pair: place.sequence * p.dropout.query_heads + place.head }
    }

    /// The words of a call.
    #[inline(always)]
    fn words(&self, [x0, x1]: [u32; 2]) -> [u32; 4] {
        philox([x0, x1, self.pair, self.p.offset], self.p.key)
    }

    /// Whether a pair is kept whose number is the upper half of `scaled`.
    #[inline(always)]
    fn keeps(&self, scaled: u32) -> bool {
        scaled >= self.p.threshold
    }
}

/// Calls `apply(register, is kept)` for all registers of a tile. `TRANSPOSED`: rows are keys and columns
/// queries. The tile begins at multiples of 16.
///
/// # Safety
/// All 32 lanes call it together.
#[inline(always)]
pub unsafe fn each<F: Fragment<ROWS, N>, const ROWS: usize, const N: usize, const TRANSPOSED: bool>(
    lane: u32,
    p: &ScoreParams,
    tile: &ScoreTile,
    place: &ScorePlace,
    mut apply: impl FnMut(usize, bool),
) {
    let calls = Calls::new(p, place);
    let (row, column) = (tile.first_row as u32, tile.first_column as u32);
    let first_key = place.first_key as u32;
    if !F::PAIRED {
        each_of_columns::<F, ROWS, N, TRANSPOSED>(lane, &calls, (row, column), first_key, apply);
        return;
    }
    const { assert!(!F::PAIRED || (ROWS == 2 && F::COLUMNS % BLOCK_COLUMNS == 0)) };
    let mut block = 0;
    while block < F::COLUMNS / BLOCK_COLUMNS {
        // By column of the block and row, in the upper half.
        let numbers = if TRANSPOSED {
            numbers_transposed(lane, &calls, (row + first_key, column + 16 * block as u32))
        } else {
            numbers(lane, &calls, (row, column + first_key + 16 * block as u32))
        };
        let mut i = 0;
        while i < 2 * BLOCK_COLUMNS {
            let (column, row) = (i / 2, i % 2);
            let register = F::register(row, BLOCK_COLUMNS * block + column);
            apply(register, calls.keeps(numbers[column][row]));
            i += 1;
        }
        block += 1;
    }
}

/// The numbers of a lane in a block, whose rows are queries.
#[inline(always)]
fn numbers(lane: u32, calls: &Calls, (query, key): (u32, u32)) -> [[u32; 2]; BLOCK_COLUMNS] {
    let [w0, w1, w2, w3] = calls.words([query / 2 + lane / 4, key / 4 + lane % 4]);
    [[w0 << 16, w2 << 16], [w0, w2], [w1 << 16, w3 << 16], [w1, w3]]
}

/// The numbers of a lane in a block, whose rows are keys: of one key and that 8 further on, and of two
/// queries and those 8 further on. Which half of a word is its own depends on whether its key is even.
///
/// # Safety
/// All 32 lanes call it together.
#[inline(always)]
unsafe fn numbers_transposed(
    lane: u32,
    calls: &Calls,
    (key, query): (u32, u32),
) -> [[u32; 2]; BLOCK_COLUMNS] {
    let is_odd = lane / 4 % 2;
    let [w0, w1, w2, w3] = calls.words([query / 2 + 2 * (lane % 4) + is_odd, key / 4 + lane / 8]);
    // Halves of two words side by side: its own, and its neighbour's.
    let (own, others) = if is_odd != 0 { (0x7632, 0x5410) } else { (0x5410, 0x7632) };
    let own = [permute(w0, w1, own), permute(w2, w3, own)];
    let given = [permute(w0, w1, others), permute(w2, w3, others)];
    let taken = [warp::exchange(given[0], 4), warp::exchange(given[1], 4)];
    let (even, odd) = if is_odd != 0 { (taken, own) } else { (own, taken) };
    [[even[0] << 16, even[0]], [odd[0] << 16, odd[0]], [even[1] << 16, even[1]], [odd[1] << 16, odd[1]]]
}

/// [`each`] of a fragment whose columns are 8 apart: a call for two of a row.
#[inline(always)]
fn each_of_columns<F: Fragment<ROWS, N>, const ROWS: usize, const N: usize, const TRANSPOSED: bool>(
    lane: u32,
    calls: &Calls,
    (first_row, first_column): (u32, u32),
    first_key: u32,
    mut apply: impl FnMut(usize, bool),
) {
    let mut row = 0;
    while row < ROWS {
        let mut column = 0;
        while column < F::COLUMNS {
            let at_row = first_row + F::row(lane, row);
            let at_column = first_column + F::first_column(lane) + F::column_offset(column);
            let (query, key) = if TRANSPOSED { (at_column, at_row) } else { (at_row, at_column) };
            let key = key + first_key;
            let [w0, w1, w2, w3] = calls.words(call(query, key));
            let [near, far] = match (TRANSPOSED, if TRANSPOSED { key } else { query } / 8 % 2 == 0) {
                (false, true) => [w0, w1],
                (false, false) => [w2, w3],
                (true, true) => [w0, w2],
                (true, false) => [w1, w3],
            };
            let shift = if key % 2 == 0 { 16 } else { 0 };
            apply(F::register(row, column), calls.keeps(near << shift));
            if column + 1 < F::COLUMNS {
                apply(F::register(row, column + 1), calls.keeps(far << shift));
            }
            column += 2;
        }
        row += 1;
    }
}

/// What gradients of bias and sinks are multiplied by at the end: what [`DropoutParams::dp_scale`] lacks of
/// c. For kernels without switches.
#[inline(always)]
pub fn gradient_scale(p: &ScoreParams) -> f32 {
    if p.dropout.dp_scale == 1.0 { p.dropout.scale } else { 1.0 }
}

/// [`DropoutParams::dp_scale`], by the switch.
#[inline(always)]
pub fn dp_scale(p: &ScoreParams) -> f32 {
    if specialize::dropout() { p.dropout.dp_scale } else { 1.0 }
}

/// c: what o and dv are multiplied by at the end; 1 without dropout.
#[inline(always)]
pub fn scale(p: &ScoreParams) -> f32 {
    if specialize::dropout() { p.dropout.scale } else { 1.0 }
}

/// Makes dp of `dO v`, where probabilities are dropped: 0 where `scores`, what dp - delta is multiplied by,
/// has a sign. That is then taken away.
#[inline(always)]
pub fn apply_to_dp<const N: usize>(dp: &mut [f32; N], scores: &mut [f32; N], p: &ScoreParams) {
    if specialize::dropout() {
        let mut i = 0;
        while i < N {
            let is_dropped = scores[i] < 0.0;
            dp[i] = if is_dropped { 0.0 } else { dp[i] * p.dropout.dp_scale };
            scores[i] = scores[i].abs();
            i += 1;
        }
    }
}
