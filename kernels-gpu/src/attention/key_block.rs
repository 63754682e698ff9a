//! What a block of threads of the backward works on.

use super::score::{ScorePlace, ScoreTile, features, mask_map};
use super::sequence::{Sequence, Sequences};
use crate::abi::{
    BackwardParams, DQ_STAGGERED, NOTE_ROWS, RowStatistic, TensorView, packed_batch,
    workspace_row_packed,
};
use crate::arch::{math, specialize, thread};
use crate::geometry::mask_map::Shown;
use crate::geometry::row_heads::RowHeads;
use crate::geometry::schedule::{Schedule, Work};
use crate::geometry::stretch::Stretch;
use crate::geometry::visible::{TileRange, Visible};
use crate::pipeline::query_ring::QuerySource;
use crate::tile::global_rows::GlobalRows;

/// One key head of one batch, and which of its key tiles are this block's.
#[derive(Clone, Copy)]
pub struct KeyBlock {
    /// The sequence.
    pub sequence: Sequence,
    /// First row of the sequence in the workspace.
    pub(super) workspace_row: u32,
    /// Key head.
    pub key_head: u32,
    /// First key tile; the others are [`BackwardParams::key_blocks`] apart. On Hopper the only one.
    pub first_tile: u32,
    /// Which queries see a key.
    pub visible: Visible,
}

impl KeyBlock {
    /// The work of this block of threads. Key tiles come in ascending order: with a causal mask, the
    /// first is the longest.
    ///
    /// # Safety
    /// `p` is as [`BackwardParams`] says.
    #[inline(always)]
    pub unsafe fn of_this_block(p: &BackwardParams) -> Self {
        let shares_bias = features::bias_is_of_all_batches(&p.score);
        let work = schedule(p, shares_bias).work(thread::block_idx_x(), math::divide);
        KeyBlock::of(p, Work { tile: p.key_blocks - 1 - work.tile, ..work })
    }

    /// The work that `work` names, whose tile and head are those of keys.
    ///
    /// # Safety
    /// `p` is as [`BackwardParams`] says.
    #[inline(always)]
    pub unsafe fn of(p: &BackwardParams, work: Work) -> Self {
        let sequence = sequence(p, work.batch);
        KeyBlock {
            sequence,
            workspace_row: workspace_row(p, &sequence, work.batch),
            key_head: work.head,
            first_tile: work.tile,
            visible: sequence.visible.transposed(sequence.query_rows),
        }
    }

    /// How this block walks over the query tiles of `queries` rows that see keys `first_key..first_key +
    /// keys`.
    #[inline(always)]
    pub fn walk(&self, p: &BackwardParams, first_key: i32, keys: u32, queries: u32) -> Walk {
        let end = first_key + keys as i32;
        let ragged = end > self.sequence.visible.key_rows;
        let last = if ragged { self.sequence.visible.key_rows } else { end } - 1;
        let tiles = self.visible.tiles(first_key, last, queries as i32);
        Walk::all(p, tiles, ragged)
    }

    /// Where a tile of scores stands whose rows are keys from `first_key` on, and columns queries from
    /// `first_query` on.
    #[inline(always)]
    pub fn score_tile(&self, first_key: i32, first_query: i32) -> ScoreTile {
        ScoreTile {
            first_row: first_key,
            first_column: first_query,
            end_row: self.sequence.visible.key_rows,
            visible: self.visible,
            row_heads: RowHeads::One,
        }
    }

    /// Which scores of the problem those of query head `head` are.
    #[inline(always)]
    pub fn score_place(&self, p: &BackwardParams, head: u32) -> ScorePlace {
        ScorePlace { sequence: self.index(p), head, key_head: self.key_head, first_key: 0 }
    }

    /// What the boolean mask shows of the pairs of key tile `key_tile`, of `keys` keys, and query tile
    /// `query_tile`, of `queries` queries, for query head `head` of all.
    ///
    /// # Safety
    /// `p` is as [`BackwardParams`] says.
    #[inline(always)]
    pub unsafe fn shown(
        &self,
        p: &BackwardParams,
        (key_tile, keys): (u32, u32),
        (query_tile, queries): (i32, u32),
        head: u32,
    ) -> Shown {
        let range = |tile: i32, rows: i32, all: i32| {
            let end = (tile + 1) * rows;
            (tile * rows, if end < all { end } else { all } - 1)
        };
        let place = ScorePlace { sequence: self.index(p), head, key_head: self.key_head, first_key: 0 };
        let of_queries = range(query_tile, queries as i32, self.sequence.query_rows);
        let of_keys = range(key_tile as i32, keys as i32, self.sequence.visible.key_rows);
        mask_map::shown(&p.score, &place, 1, of_queries, of_keys)
    }

    /// From step `at` on, the first one of `walk`, over the query tiles of key tile `key_tile`, of which a
    /// boolean mask shows something, and whether it shows all; past the walk if there is none. Without a mask
    /// that is `at`.
    ///
    /// # Safety
    /// `p` is as [`BackwardParams`] says.
    #[inline(always)]
    pub unsafe fn first_shown(
        &self,
        p: &BackwardParams,
        key_tile: (u32, u32),
        queries: u32,
        walk: &Walk,
        mut at: Step,
    ) -> (Step, bool) {
        let mut shown = Shown::NOTHING;
        if specialize::attn_mask() {
            while at.step < walk.steps && !shown.some {
                let head = self.key_head * p.group_size + at.head;
                shown = self.shown(p, key_tile, (at.tile, queries), head);
                if !shown.some {
                    at = walk.next(&at);
                }
            }
        }
        (at, shown.all)
    }

    /// The next key tile behind its first one, of `keys` keys, that visits query tile `query_tile` for query
    /// head `head` of all: by position, and by the boolean mask.
    ///
    /// # Safety
    /// `p` is as [`BackwardParams`] says.
    #[inline(always)]
    pub unsafe fn next_visitor(
        &self,
        p: &BackwardParams,
        keys: u32,
        (query_tile, queries): (i32, u32),
        head: u32,
    ) -> Option<u32> {
        let mut key_tile = self.first_tile + 1;
        while self.has_key(key_tile * keys) {
            let TileRange { begin, end, .. } =
                self.walk(p, (key_tile * keys) as i32, keys, queries).tiles;
            // Key tiles further on see no earlier queries.
            if begin > query_tile {
                return None;
            }
            if query_tile < end && self.shown(p, (key_tile, keys), (query_tile, queries), head).some {
                return Some(key_tile);
            }
            key_tile += 1;
        }
        None
    }

    /// Where the tiles of a step come from, with `queries` rows of q and dO; `with_norms` if dO's norms are
    /// needed.
    #[inline(always)]
    pub fn source<const ELEMENT_BYTES: i64>(
        &self,
        p: &BackwardParams,
        at: &Step,
        queries: u32,
        with_norms: bool,
    ) -> QuerySource {
        let head = self.key_head * p.group_size + at.head;
        let row = at.tile * queries as i32;
        let workspace_row = self.workspace_row + row as u32;
        QuerySource {
            q: self.sequence.query_rows::<ELEMENT_BYTES>(&p.q, head, row, p.head_dim),
            d_o: self.sequence.query_rows::<ELEMENT_BYTES>(&p.d_o, head, row, p.value_dim),
            lse: statistics(p, RowStatistic::Lse, head, workspace_row),
            delta: statistics(p, RowStatistic::Delta, head, workspace_row),
            norm: if with_norms { statistics(p, RowStatistic::Norm, head, workspace_row) } else { 0 },
        }
    }

    /// Device address of the references of a step's rows.
    #[inline(always)]
    pub fn references(&self, p: &BackwardParams, at: &Step, queries: u32) -> u64 {
        let head = self.key_head * p.group_size + at.head;
        references(p, head, self.workspace_row + at.tile as u32 * queries)
    }

    /// Where dQ of a step is added up.
    #[inline(always)]
    pub fn dq_accumulator(&self, p: &BackwardParams, at: &Step, queries: u32) -> u64 {
        let head = self.key_head * p.group_size + at.head;
        dq_accumulator(p, self.first_tile, head, self.workspace_row + at.tile as u32 * queries)
    }

    /// The same on Hopper.
    #[inline(always)]
    pub fn dq_tile(&self, p: &BackwardParams, at: &Step, queries: u32) -> u64 {
        let head = self.key_head * p.group_size + at.head;
        dq_tile(p, &self.sequence, head, self.workspace_row + at.tile as u32 * queries)
    }

    /// Where it is noted how far a half, 0 or 1, of dQ of a step is: see [`dq_note`].
    #[inline(always)]
    pub fn dq_note(&self, p: &BackwardParams, at: &Step, queries: u32, half: u32) -> u64 {
        let head = self.key_head * p.group_size + at.head;
        dq_note(p, head, self.workspace_row + at.tile as u32 * queries + half * NOTE_ROWS)
    }

    /// The counter of what has been added to dQ of the key head's queries: see [`finished_halves`].
    #[inline(always)]
    pub fn finished_halves(&self, p: &BackwardParams) -> u64 {
        finished_halves(p, self.index(p), self.key_head)
    }

    /// Batch, or which packed sequence.
    #[inline(always)]
    fn index(&self, p: &BackwardParams) -> u32 {
        let sequence = &self.sequence;
        if p.cu_seqlens_q != 0 {
            packed_batch(self.workspace_row, sequence.first_query as u32)
        } else {
            sequence.batch
        }
    }

    /// Whether key `row` exists.
    #[inline(always)]
    pub fn has_key(&self, row: u32) -> bool {
        (row as i32) < self.sequence.visible.key_rows
    }

    /// The rows of k, v, dk or dv from `first_row` on.
    #[inline(always)]
    pub fn key_rows<const ELEMENT_BYTES: i64>(
        &self,
        view: &TensorView,
        first_row: i32,
        columns: u32,
    ) -> GlobalRows {
        self.sequence.key_rows::<ELEMENT_BYTES>(view, self.key_head, first_row, columns)
    }
}

/// The query tiles that see a tile of keys, once for each query head of the group.
#[derive(Clone, Copy)]
pub struct Walk {
    /// Tiles of each head.
    pub tiles: TileRange,
    /// Whether the key tile reaches past the last key.
    pub ragged: bool,
    /// Tiles times heads, or as many of these steps as are this block's.
    pub steps: u32,
    /// Query head, in the group, of the first step.
    pub first_head: u32,
    /// The query tile of the first step.
    pub first_tile: i32,
    /// The query tile that each head begins with.
    pub head_begins_with: i32,
}

/// One step of a [`Walk`].
#[derive(Clone, Copy)]
pub struct Step {
    /// Counts from 0.
    pub step: u32,
    /// Query head in the group.
    pub head: u32,
    /// Query tile.
    pub tile: i32,
}

impl Walk {
    /// Over all of these tiles.
    #[inline(always)]
    pub fn all(p: &BackwardParams, tiles: TileRange, ragged: bool) -> Self {
        let (begin, steps) = (tiles.begin, (tiles.end - tiles.begin) as u32 * p.group_size);
        Walk { tiles, ragged, steps, first_head: 0, first_tile: begin, head_begins_with: begin }
    }

    /// The first step.
    #[inline(always)]
    pub fn start(&self) -> Step {
        Step { step: 0, head: self.first_head, tile: self.first_tile }
    }

    /// This walk, where every query sees every key: then it does not matter to those who compute which
    /// query tile comes first. Queries past the end need no mask: with a finite key, their p is 0 through
    /// their lse.
    #[inline(always)]
    pub fn hiding_nothing(self) -> Self {
        let TileRange { begin, end, .. } = self.tiles;
        Walk { tiles: TileRange { begin, full_begin: begin, full_end: end, end }, ..self }
    }

    /// A stretch of this walk, whose heads begin with query tile `head_begins_with` each.
    ///
    /// # Safety
    /// `p` is as [`BackwardParams`] says.
    #[inline(always)]
    pub unsafe fn part(self, p: &BackwardParams, stretch: &Stretch, head_begins_with: i32) -> Walk {
        let (first, end) = (self.unit_begins(p, stretch.begin), self.unit_begins(p, stretch.end));
        let tiles = (self.tiles.end - self.tiles.begin) as u32;
        let first_head = math::divide(first, if tiles > 0 { tiles } else { 1 });
        let mut first_tile = head_begins_with + (first - first_head * tiles) as i32;
        if first_tile >= self.tiles.end {
            first_tile -= tiles as i32;
        }
        Walk { steps: end - first, first_head, first_tile, head_begins_with, ..self }
    }

    /// The step that unit `unit` of the tile begins with.
    #[inline(always)]
    fn unit_begins(&self, p: &BackwardParams, unit: u32) -> u32 {
        (self.steps * unit) >> p.unit_bits
    }

    /// The step after `at`. Those who compute have no register for the head, nor for the tile that it begins
    /// with, and do with [`Walk::next`].
    #[inline(always)]
    pub fn next_of_head(&self, at: &Step) -> Step {
        let tile = if at.tile + 1 < self.tiles.end { at.tile + 1 } else { self.tiles.begin };
        let begins = tile == self.head_begins_with;
        Step { step: at.step + 1, head: at.head + begins as u32, tile }
    }

    /// The step after `at`, of heads that begin with the first query tile.
    #[inline(always)]
    pub fn next(&self, at: &Step) -> Step {
        let same_head = at.tile + 1 < self.tiles.end;
        Step {
            step: at.step + 1,
            head: if same_head { at.head } else { at.head + 1 },
            tile: if same_head { at.tile + 1 } else { self.tiles.begin },
        }
    }

    /// Whether some pair of the step's tile is not visible.
    #[inline(always)]
    pub fn is_masked(&self, at: &Step) -> bool {
        self.ragged || self.hides(at)
    }

    /// Whether some pair of the step's tile is not visible whose query and key exist.
    #[inline(always)]
    pub fn hides(&self, at: &Step) -> bool {
        at.tile < self.tiles.full_begin || at.tile >= self.tiles.full_end
    }
}

/// The query tile that key tile `key_tile` begins each head with, of those of `tiles`. If they are
/// staggered, key tiles that start together come to different ones first: each stores the first shares of
/// some.
///
/// # Safety
/// `p` is as [`BackwardParams`] says.
#[inline(always)]
pub unsafe fn first_query_tile(p: &BackwardParams, key_tile: u32, tiles: &TileRange) -> i32 {
    if p.dq_order != DQ_STAGGERED {
        return tiles.begin;
    }
    tiles.begin + math::divide(key_tile * (tiles.end - tiles.begin) as u32, p.key_blocks) as i32
}

/// In what order a launch works on its key tiles; `batches_are_neighbours` as in [`Schedule`].
#[inline(always)]
pub unsafe fn schedule(p: &BackwardParams, batches_are_neighbours: bool) -> Schedule {
    Schedule {
        tiles: p.key_blocks,
        heads: math::divide(p.query_heads, p.group_size),
        batches: p.batches,
        heads_per_wave: p.heads_per_wave,
        batches_are_neighbours,
    }
}

/// The note of how far half `h` of the query tile at row `r` is, which is kept for `row = r + h NOTE_ROWS`:
/// [`UNTOUCHED`], and then, in no order, [`CLAIMED`] and [`STORED`], or, in order, what [`added_by`] says of
/// the last key tile that added.
#[inline(always)]
pub fn dq_note(p: &BackwardParams, head: u32, row: u32) -> u64 {
    let index = head as u64 * (p.workspace_rows / NOTE_ROWS) as u64 + (row / NOTE_ROWS) as u64;
    p.dq_notes.wrapping_add(4 * index)
}

/// Nothing was stored: dQ's accumulator holds anything.
pub const UNTOUCHED: u32 = 0;
/// Somebody is about to store the first share.
pub const CLAIMED: u32 = 1;
/// The first share is stored: others may be added.
pub const STORED: u32 = 2;

/// All key tiles from `key_tile` on have added their shares.
#[inline(always)]
pub const fn added_by(key_tile: u32) -> u32 {
    key_tile + 1
}

/// Where it is counted how much of dQ the key tiles of a key head have added for good, in
/// `Division::tile_units` of halves: each adds two, also where it has no step. When all have, dQ of the
/// head's queries is complete.
#[inline(always)]
pub fn finished_halves(p: &BackwardParams, batch: u32, key_head: u32) -> u64 {
    let key_heads = math::divide(p.query_heads, p.group_size);
    p.counter.wrapping_add(4 * (1 + batch * key_heads + key_head) as u64)
}

/// Rows in the dQ accumulator of the query tile of `queries` rows that begins with row `first_row` of its
/// sequence. Nothing is packed.
#[inline(always)]
pub fn dq_rows(p: &BackwardParams, first_row: u32, queries: u32) -> u32 {
    let rows = p.padded_rows - p.dq_gap - first_row;
    if rows < queries { rows } else { queries }
}

/// Sequence `batch` of a backward.
///
/// # Safety
/// `p` is as [`BackwardParams`] says.
#[inline(always)]
pub unsafe fn sequence(p: &BackwardParams, batch: u32) -> Sequence {
    Sequence::new(&sequences(p), batch)
}

/// What a backward's parameters say of all of them.
#[inline(always)]
pub fn sequences(p: &BackwardParams) -> Sequences {
    Sequences {
        cu_seqlens_q: p.cu_seqlens_q,
        cu_seqlens_k: p.cu_seqlens_k,
        query_rows: p.query_rows,
        key_rows: p.key_rows,
        bottom_right: p.bottom_right,
        window_left: p.window_left,
        window_right: p.window_right,
    }
}

/// First row of the sequence in the workspace.
#[inline(always)]
pub fn workspace_row(p: &BackwardParams, sequence: &Sequence, batch: u32) -> u32 {
    if p.cu_seqlens_q != 0 {
        workspace_row_packed(sequence.first_query as u32, batch)
    } else {
        p.padded_rows * batch
    }
}

/// Device address of a statistic of row `row` in the workspace.
#[inline(always)]
pub fn statistics(p: &BackwardParams, which: RowStatistic, head: u32, row: u32) -> u64 {
    let index = (which as u32 * p.query_heads + head) as u64 * p.workspace_rows as u64 + row as u64;
    p.statistics.wrapping_add(4 * index)
}

/// Device address of the [`RowStatistic::Reference`] of row `row` in the workspace.
#[inline(always)]
pub fn references(p: &BackwardParams, head: u32, row: u32) -> u64 {
    const { assert!(RowStatistic::Reference as u32 == 2) };
    let index = (p.query_heads + head) as u64 * p.workspace_rows as u64 + row as u64;
    p.statistics.wrapping_add(8 * index)
}

/// Device address of the first element of row `row` in split `split` of the dQ accumulator. Not on Hopper.
#[inline(always)]
pub fn dq_accumulator(p: &BackwardParams, split: u32, head: u32, row: u32) -> u64 {
    let in_split = (head as u64 * p.workspace_rows as u64 + row as u64) * p.padded_dim as u64;
    p.dq_accumulator.wrapping_add(4 * (split as u64 * p.split_stride + in_split))
}

/// Device address on Hopper, where there is one accumulator of dQ, of the query tile that begins with row
/// `row` of the rest of the workspace.
#[inline(always)]
pub fn dq_tile(p: &BackwardParams, sequence: &Sequence, head: u32, row: u32) -> u64 {
    let row = row - sequence.batch * p.dq_gap;
    let first = (head as u64 * p.accumulator_rows as u64 + row as u64) * p.padded_dim as u64;
    p.dq_accumulator.wrapping_add(4 * first)
}
