//! The tiles that a block of the gradient of the bias walks over.

use crate::abi::BackwardParams;
use crate::arch::{math, specialize, thread};
use crate::attention::key_block;
use crate::attention::score::{ScorePlace, mask_map};
use crate::attention::sequence::Sequence;

/// The elements of a block.
#[derive(Clone, Copy)]
pub(super) struct Part {
    pub(super) batch: u32,
    pub(super) head: u32,
    pub(super) query_tile: u32,
    pub(super) key_tile: u32,
}

impl Part {
    /// That of this block, of tiles of `rows` queries and keys.
    #[inline(always)]
    pub(super) fn of_this_block(p: &BackwardParams, rows: u32) -> Self {
        let [_, heads, queries, keys] = p.d_bias_shape;
        let (query_tiles, key_tiles) = (queries.div_ceil(rows), keys.div_ceil(rows));
        let index = thread::block_idx_x();
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
}

/// One step: a tile of queries and one of keys of a head.
#[derive(Clone, Copy)]
pub(super) struct Step {
    pub(super) batch: u32,
    pub(super) head: u32,
    pub(super) query_tile: u32,
    pub(super) key_tile: u32,
}

impl Step {
    #[inline(always)]
    pub(super) unsafe fn sequence(&self, p: &BackwardParams) -> Sequence {
        key_block::sequence(p, self.batch)
    }

    #[inline(always)]
    pub(super) fn place(&self, p: &BackwardParams) -> ScorePlace {
        let key_head = math::divide(self.head, p.group_size);
        ScorePlace { sequence: self.batch, head: self.head, key_head, first_key: 0 }
    }

    /// Whether tiles of `rows` rows have a pair that is visible.
    #[inline(always)]
    unsafe fn is_visible(&self, p: &BackwardParams, rows: u32) -> bool {
        let sequence = self.sequence(p);
        let (first_query, first_key) = ((self.query_tile * rows) as i32, (self.key_tile * rows) as i32);
        first_query < sequence.query_rows
            && first_key < sequence.visible.key_rows
            && is_visible(&sequence, first_query, rows, self.key_tile)
            && shows_some(p, &sequence, &self.place(p), (first_query, first_key), rows)
    }
}

/// The steps of a block of `ROWS` x `ROWS` elements: those whose tiles have a visible pair. Nothing that can
/// be worked out again is kept: registers are for sums.
pub(super) struct Steps<const ROWS: u32> {
    /// The next one to look at.
    next: Step,
}

impl<const ROWS: u32> Steps<ROWS> {
    #[inline(always)]
    pub(super) fn new(p: &BackwardParams) -> Self {
        let part = Part::of_this_block(p, ROWS);
        let [batches, heads, queries, keys] = p.d_bias_shape;
        let first = |index: u32, extent: u32| if extent == 1 { 0 } else { index };
        let heads_of_one = math::divide(p.query_heads, heads);
        Steps {
            next: Step {
                batch: first(part.batch, batches),
                head: part.head * heads_of_one,
                query_tile: first(part.query_tile, queries),
                key_tile: first(part.key_tile, keys),
            },
        }
    }

    /// The next step, if there is one.
    #[inline(always)]
    pub(super) unsafe fn next(&mut self, p: &BackwardParams) -> Option<Step> {
        let [batches, heads, queries, keys] = p.d_bias_shape;
        let heads_of_one = math::divide(p.query_heads, heads);
        // Ends of the dimensions that a block has one of are not asked for: it goes on from any.
        while self.next.batch < p.batches {
            let step = self.next;
            let sequence = step.sequence(p);
            let tiles = |rows: i32| (rows as u32).div_ceil(ROWS);
            self.next.key_tile += 1;
            if keys != 1 || self.next.key_tile >= tiles(sequence.visible.key_rows) {
                self.next.key_tile = if keys == 1 { 0 } else { step.key_tile };
                self.next.query_tile += 1;
                if queries != 1 || self.next.query_tile >= tiles(sequence.query_rows) {
                    self.next.query_tile = if queries == 1 { 0 } else { step.query_tile };
                    self.next.head += 1;
                    if math::divide(self.next.head, heads_of_one) * heads_of_one == self.next.head {
                        self.next.head -= heads_of_one;
                        self.next.batch = if batches == 1 { step.batch + 1 } else { p.batches };
                    }
                }
            }
            if step.is_visible(p, ROWS) {
                return Some(step);
            }
        }
        None
    }
}

/// Whether some query of a tile of `rows` sees some key of a tile of as many.
#[inline(always)]
fn is_visible(sequence: &Sequence, first_query: i32, rows: u32, key_tile: u32) -> bool {
    if first_query >= sequence.query_rows {
        return false;
    }
    let last = first_query + rows as i32;
    let last = if last < sequence.query_rows { last } else { sequence.query_rows } - 1;
    let tiles = sequence.visible.tiles(first_query, last, rows as i32);
    (key_tile as i32) >= tiles.begin && (key_tile as i32) < tiles.end
}

/// Whether a boolean mask, if there is one, shows some pair of a tile of `rows` queries and keys from these
/// on.
#[inline(always)]
unsafe fn shows_some(
    p: &BackwardParams,
    sequence: &Sequence,
    place: &ScorePlace,
    (first_query, first_key): (i32, i32),
    rows: u32,
) -> bool {
    if !specialize::attn_mask() {
        return true;
    }
    let tile = |first: i32, all: i32| {
        let end = first + rows as i32;
        (first, if end < all { end } else { all } - 1)
    };
    let queries = tile(first_query, sequence.query_rows);
    let keys = tile(first_key, sequence.visible.key_rows);
    mask_map::shown(&p.score, place, 1, queries, keys).some
}
