//! What a block that makes the gradient of the bias works on, and what it sums over.

use crate::abi::{BackwardParams, ScoreParams, ScoreView};
use crate::arch::{math, specialize};
use crate::attention::score::{ScorePlace, ScoreTile, dropout, mask_map};
use crate::attention::sequence::Sequence;
use crate::geometry::mask_map::Shown;
use crate::geometry::row_heads::RowHeads;
use crate::tile::fragment::Fragment;

/// Which of a dimension a block sums over: `begin..end`.
#[derive(Clone, Copy)]
pub(super) struct Range {
    pub begin: u32,
    pub end: u32,
}

impl Range {
    /// Item `index` alone or, of one for all, all `count`.
    #[inline(always)]
    pub fn of(index: u32, extent: u32, count: u32) -> Self {
        if extent == 1 { Range { begin: 0, end: count } } else { Range { begin: index, end: index + 1 } }
    }
}

/// Some elements of the gradient: a tile of one batch and head of it.
#[derive(Clone, Copy)]
pub(super) struct Part {
    pub batch: u32,
    pub head: u32,
    pub query_tile: u32,
    pub key_tile: u32,
}

impl Part {
    /// How many there are, of tiles of `rows` queries and keys.
    #[inline(always)]
    pub fn count(p: &BackwardParams, rows: u32) -> u32 {
        let [batches, heads, queries, keys] = p.d_bias_shape;
        batches * heads * queries.div_ceil(rows) * keys.div_ceil(rows)
    }

    /// Number `index` of them.
    #[inline(always)]
    pub fn nth(p: &BackwardParams, rows: u32, index: u32) -> Self {
        let [_, heads, queries, keys] = p.d_bias_shape;
        let (query_tiles, key_tiles) = (queries.div_ceil(rows), keys.div_ceil(rows));
        let row = math::divide(index, key_tiles);
        let pair = math::divide(row, query_tiles);
        let batch = math::divide(pair, heads);
        Part {
            batch,
            head: pair - batch * heads,
            query_tile: row - pair * query_tiles,
            key_tile: index - row * key_tiles,
        }
    }

    /// The batches that share them.
    #[inline(always)]
    pub fn batches(&self, p: &BackwardParams) -> Range {
        Range::of(self.batch, p.d_bias_shape[0], p.batches)
    }

    /// The query heads that share them.
    #[inline(always)]
    pub fn heads(&self, p: &BackwardParams) -> Range {
        let heads_of_one = math::divide(p.query_heads, p.d_bias_shape[1]);
        let begin = self.head * heads_of_one;
        Range { begin, end: begin + heads_of_one }
    }

    /// Where its first element stands, counted in elements from that of the tensor.
    #[inline(always)]
    pub fn offset(&self, p: &BackwardParams, rows: u32) -> i64 {
        let ScoreView { batch_stride, head_stride, key_head_stride, query_stride, key_stride, .. } =
            p.d_bias;
        self.batch as i64 * batch_stride
            + self.head as i64 * (head_stride + key_head_stride)
            + (self.query_tile * rows) as i64 * query_stride
            + (self.key_tile * rows) as i64 * key_stride
    }
}

/// What positions show of the pairs of a tile of `rows` queries, from `first_query` on, and key tile
/// `key_tile` of as many keys.
#[inline(always)]
pub(super) fn shown_by_positions(
    sequence: &Sequence,
    first_query: i32,
    rows: u32,
    key_tile: u32,
) -> Shown {
    if first_query >= sequence.query_rows {
        return Shown::NOTHING;
    }
    let last = first_query + rows as i32;
    let last = if last < sequence.query_rows { last } else { sequence.query_rows } - 1;
    let tiles = sequence.visible.tiles(first_query, last, rows as i32);
    let key_tile = key_tile as i32;
    Shown { some: key_tile >= tiles.begin && key_tile < tiles.end, all: !tiles.is_masked(key_tile) }
}

/// What a boolean mask, if there is one, shows of the pairs of a tile of `rows` queries and keys from these
/// on.
///
/// # Safety
/// `p` is as [`BackwardParams`] says.
#[inline(always)]
pub(super) unsafe fn shown_by_mask(
    p: &BackwardParams,
    sequence: &Sequence,
    place: &ScorePlace,
    (first_query, first_key): (i32, i32),
    rows: u32,
) -> Shown {
    if !specialize::attn_mask() {
        return Shown { some: true, all: true };
    }
    let tile = |first: i32, all: i32| {
        let end = first + rows as i32;
        (first, if end < all { end } else { all } - 1)
    };
    let queries = tile(first_query, sequence.query_rows);
    let keys = tile(first_key, sequence.visible.key_rows);
    mask_map::shown(&p.score, place, 1, queries, keys)
}

/// Where a tile of scores stands whose rows are queries from `first_query` on, and columns keys from
/// `first_key` on.
#[inline(always)]
pub(super) fn score_tile(sequence: &Sequence, first_query: i32, first_key: i32) -> ScoreTile {
    ScoreTile {
        first_row: first_query,
        first_column: first_key,
        end_row: sequence.query_rows,
        visible: sequence.visible,
        row_heads: RowHeads::One,
    }
}

/// Multiplies dp by what dropout divides by, and makes it 0 where dropout drops the pair; without dropout,
/// nothing.
///
/// # Safety
/// All 32 lanes call it together.
#[inline(always)]
pub(super) unsafe fn drop_dp<F: Fragment<ROWS, N>, const ROWS: usize, const N: usize>(
    lane: u32,
    score: &ScoreParams,
    tile: &ScoreTile,
    place: &ScorePlace,
    dp: &mut [f32; N],
) {
    if specialize::dropout() {
        dropout::each::<F, ROWS, N, false>(lane, score, tile, place, |register, is_kept| {
            let kept = dp[register] * score.dropout.dp_scale;
            dp[register] = if is_kept { kept } else { 0.0 };
        });
    }
}
