//! What a block of threads of the forward works on.

use super::score::{ScorePlace, ScoreTile, features, mask_map};
use super::sequence::{Sequence, Sequences};
use super::softmax::SeenKeys;
use super::visited::NextTile;
use crate::abi::{ForwardParams, PreviousParams, TensorView, WINDOW_OPEN, tiles_split_keys};
use crate::arch::{global, math, specialize, thread};
use crate::geometry::mask_map::Shown;
use crate::geometry::row_heads::RowHeads;
use crate::geometry::schedule::{Schedule, Work, missing_rows, tile_rows};
use crate::geometry::visible::TileRange;
use crate::tile::element::Element;
use crate::tile::fragment::Fragment;
use crate::tile::global_rows::{GlobalRows, HeadRows};

/// One block of query rows of one head of one sequence, or of several heads that share keys.
#[derive(Clone, Copy)]
pub struct QueryBlock {
    /// The sequence.
    pub sequence: Sequence,
    /// Query head, the first one of several.
    pub head: u32,
    /// Which query and which head a row is.
    pub row_heads: RowHeads,
    /// First row in the sequence, all heads of a query counted. May lie past its end, in a packed batch: then
    /// there is nothing to do.
    pub first_row: i32,
    /// Its tile's rows from here on are not its own: past the sequence's end or, in the first block of a
    /// sequence, those of the next block.
    pub end_row: i32,
    /// Key head.
    pub key_head: u32,
    /// Where o and lse stand: the batch or, if keys are split, the number of this range of keys of this
    /// batch.
    pub part: u32,
    /// Batch, or which packed sequence.
    pub index: u32,
    /// Which key of its sequence the first one is, if keys are split.
    pub first_key: i32,
}

/// The query tiles of a kernel for Hopper.
#[derive(Clone, Copy)]
pub struct QueryTiles {
    /// Rows.
    pub rows: u32,
    /// The first tile of a sequence may lack rows, so many at a time: see [`missing_rows`].
    pub step: u32,
    /// Whether rows are of several heads, `p.row_heads` of `p.tile_queries` queries.
    pub gathers_heads: bool,
}

impl QueryTiles {
    /// How many of them `queries` queries are.
    #[inline(always)]
    pub fn count(self, p: &ForwardParams, queries: u32) -> u32 {
        if self.gathers_heads {
            math::divide(queries + p.tile_queries - 1, p.tile_queries)
        } else {
            queries.div_ceil(self.rows)
        }
    }

    /// In what order a launch works on them.
    #[inline(always)]
    pub fn schedule(self, p: &ForwardParams) -> Schedule {
        // Known to the host: a number in a register less.
        let tiles = if self.gathers_heads { p.query_tiles } else { p.query_rows.div_ceil(self.rows) };
        schedule(p, self.rows, tiles)
    }

    /// Which query and which head a row is.
    #[inline(always)]
    pub fn row_heads(self, p: &ForwardParams) -> RowHeads {
        if self.gathers_heads {
            RowHeads::Several { count: p.row_heads, reciprocal: p.row_heads_reciprocal }
        } else {
            RowHeads::One
        }
    }

    /// Rows `begin..end` of tile `tile` in a sequence of `queries` queries.
    #[inline(always)]
    fn rows_of(self, p: &ForwardParams, tile: u32, queries: u32) -> (u32, u32) {
        if self.gathers_heads {
            return tile_rows(tile, p.tile_rows(), 0, queries * p.row_heads);
        }
        let missing = missing_rows(self.rows, self.step, queries, p.window_right);
        tile_rows(tile, self.rows, missing, queries)
    }
}

/// In what order a launch works on its query blocks of `rows` rows, of which a head has `tiles`.
#[inline(always)]
fn schedule(p: &ForwardParams, rows: u32, tiles: u32) -> Schedule {
    Schedule {
        tiles,
        heads: p.query_heads,
        batches: if tiles_split_keys(rows) { p.batches * p.splits } else { p.batches },
        heads_per_wave: p.heads_per_wave,
        batches_are_neighbours: features::bias_is_of_all_batches(&p.score),
    }
}

/// Whether a kernel with `rows` query rows a tile works on ranges of keys, or on keys that are not all there
/// are.
#[inline(always)]
pub fn is_split(p: &ForwardParams, rows: u32) -> bool {
    tiles_split_keys(rows) && p.split_keys != 0
}

impl QueryBlock {
    /// The work of this block of threads, with `rows` query rows. The last block of a sequence may lack some.
    ///
    /// # Safety
    /// `p` is as [`ForwardParams`] says.
    #[inline(always)]
    pub unsafe fn of_this_block(p: &ForwardParams, rows: u32) -> Self {
        let schedule = schedule(p, rows, p.query_rows.div_ceil(rows));
        let work = schedule.work(thread::block_idx_x(), math::divide);
        let is_split = is_split(p, rows);
        QueryBlock::at(p, is_split, RowHeads::One, work, |query_rows| (work.tile * rows, query_rows))
    }

    /// The query tile of a kernel for Hopper that `work` names.
    ///
    /// # Safety
    /// `p` is as [`ForwardParams`] says.
    #[inline(always)]
    pub unsafe fn new(p: &ForwardParams, tiles: QueryTiles, work: Work) -> Self {
        let place = |queries| tiles.rows_of(p, work.tile, queries);
        QueryBlock::at(p, is_split(p, tiles.rows), tiles.row_heads(p), work, place)
    }

    /// The query block with the head and batch of `work`, and the first row and end that
    /// `place` gives for a number of query rows.
    #[inline(always)]
    unsafe fn at(
        p: &ForwardParams,
        is_split: bool,
        row_heads: RowHeads,
        work: Work,
        place: impl FnOnce(u32) -> (u32, u32),
    ) -> Self {
        let sequences = Sequences {
            cu_seqlens_q: p.cu_seqlens_q,
            cu_seqlens_k: p.cu_seqlens_k,
            query_rows: p.query_rows,
            key_rows: p.key_rows,
            bottom_right: p.bottom_right,
            window_left: p.window_left,
            window_right: p.window_right,
        };
        let batch = if is_split { math::divide(work.batch, p.splits) } else { work.batch };
        let mut sequence = Sequence::new(&sequences, batch);
        let (mut part, mut range_begin) = (sequence.batch, 0);
        if is_split {
            let range = work.batch - batch * p.splits;
            range_begin = (range * p.split_keys) as i32;
            sequence = sequence.of_keys(range_begin, p.split_keys as i32);
            part = sequence.batch * p.splits + range;
            sequence.query_rows = if sequence.has_range(range) { sequence.query_rows } else { 0 };
        }
        let (first_row, end_row) = place(sequence.query_rows as u32);
        QueryBlock {
            sequence,
            head: row_heads.first_head(work.head),
            row_heads,
            first_row: first_row as i32,
            end_row: end_row as i32,
            key_head: math::divide(work.head, p.group_size),
            part,
            index: batch,
            first_key: range_begin,
        }
    }

    /// Whether there is nothing to do.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.first_row >= self.end_row
    }

    /// Whether its row `row` exists.
    #[inline(always)]
    pub fn has_row(&self, row: u32) -> bool {
        self.first_row + (row as i32) < self.end_row
    }

    /// Whether its row `row` sees no key of its range.
    #[inline(always)]
    pub fn is_dead(&self, row: u32) -> bool {
        let query = self.row_heads.query(self.first_row + row as i32);
        self.sequence.visible.begin(query) >= self.sequence.visible.end(query)
    }

    /// Whether its row `row` sees no key of its range: by position or, if `row_max`, its largest score, is
    /// minus infinity, because bias and boolean mask hide all. `F` are fragments whose lanes share rows.
    ///
    /// # Safety
    /// All 32 lanes call it together; `p` is as [`ForwardParams`] says.
    #[inline(always)]
    pub unsafe fn sees_nothing<E: Element, F: Fragment<ROWS, N>, const ROWS: usize, const N: usize>(
        &self,
        p: &ForwardParams,
        lane: u32,
        row: u32,
        row_max: f32,
    ) -> bool {
        let mut sees = !self.is_dead(row);
        if sees && self.has_row(row) && !(row_max > f32::NEG_INFINITY) {
            let place = self.row_heads.place(self.first_row + row as i32);
            let lanes = (lane % F::LANES_PER_ROW, F::LANES_PER_ROW);
            let visible = &self.sequence.visible;
            sees = features::sees_a_key::<E>(&p.score, &self.score_place(p), place, visible, lanes);
        }
        F::row_max(if sees { 1.0 } else { 0.0 }) == 0.0
    }

    /// The sink of its row `row`; minus infinity where there is none.
    ///
    /// # Safety
    /// `p` is as [`ForwardParams`] says.
    #[inline(always)]
    pub unsafe fn sink(&self, p: &ForwardParams, row: u32) -> f32 {
        if !specialize::sinks() {
            return f32::NEG_INFINITY;
        }
        let (_, head) = self.row_heads.place(self.first_row + row as i32);
        global::load_f32(p.score.sinks.wrapping_add(4 * (self.head + head) as u64))
    }

    /// What passes before have seen of its row `row`, if it exists.
    ///
    /// # Safety
    /// `p` is as [`ForwardParams`] says.
    #[inline(always)]
    pub unsafe fn previous(&self, p: &ForwardParams, row: u32) -> SeenKeys {
        let PreviousParams { statistics, batch_stride, head_stride, .. } = p.previous;
        if statistics == 0 || !self.has_row(row) {
            return SeenKeys::NONE;
        }
        let index = self.index_of_row(row, [batch_stride, head_stride]);
        let address = statistics.wrapping_add((8 * index) as u64);
        let [reference, sum] = global::load_written_f32x2_if(address, true);
        SeenKeys { reference, sum }
    }

    /// Where a tile of scores stands whose rows are the block's from `row` on, and columns keys from
    /// `first_key` on.
    #[inline(always)]
    pub fn score_tile(&self, row: u32, first_key: i32) -> ScoreTile {
        ScoreTile {
            first_row: self.first_row + row as i32,
            first_column: first_key,
            end_row: self.end_row,
            visible: self.sequence.visible,
            row_heads: self.row_heads,
        }
    }

    /// Which scores of the problem its are.
    #[inline(always)]
    pub fn score_place(&self, p: &ForwardParams) -> ScorePlace {
        ScorePlace {
            sequence: self.index,
            head: self.head,
            key_head: math::divide(self.head, p.group_size * self.row_heads.count()),
            first_key: self.first_key,
        }
    }

    /// The tiles of `keys` keys that its (at most `rows`) rows visit.
    #[inline(always)]
    pub fn key_tiles(&self, rows: u32, keys: u32) -> TileRange {
        let last = self.first_row + rows as i32;
        let last = if last < self.end_row { last } else { self.end_row } - 1;
        let (first, last) = (self.row_heads.query(self.first_row), self.row_heads.query(last));
        self.sequence.visible.tiles(first, last, keys as i32)
    }

    /// The key tile that a kernel for Hopper visits first, of those that its `rows` rows visit: it goes from
    /// there down to the first one, and then from the last one down to here. That is the last one; where
    /// scores sink with the distance from a diagonal that hides nothing, the one on the diagonal: from the
    /// last one on they would rise, and outgrow what exponentials are relative to, tile by tile.
    #[inline(always)]
    pub fn first_key_tile(&self, p: &ForwardParams, rows: u32, keys: u32, tiles: &TileRange) -> i32 {
        let last = tiles.end - 1;
        let sees_all = p.window_left == WINDOW_OPEN && p.window_right == WINDOW_OPEN;
        // Of packed sequences the last tile is the first one: its tail is zeroed in the first stage.
        let may_be_other = specialize::alibi() && sees_all && p.cu_seqlens_q == 0 && p.row_heads == 1;
        if !may_be_other {
            return last;
        }
        let middle = self.first_row + (rows / 2) as i32 + self.sequence.visible.diagonal;
        (middle / keys as i32).max(tiles.begin).min(last)
    }

    /// What the boolean mask shows its (at most `rows`) rows of key tile `tile`, of `keys` keys. The block
    /// has its key head.
    ///
    /// # Safety
    /// `p` is as [`ForwardParams`] says.
    #[inline(always)]
    pub unsafe fn shown(&self, p: &ForwardParams, rows: u32, keys: u32, tile: i32) -> Shown {
        let (rows, keys, key_rows) = (rows as i32, keys as i32, self.sequence.visible.key_rows);
        let end = self.first_row + rows;
        let end = if end < self.end_row { end } else { self.end_row };
        let queries = (self.row_heads.query(self.first_row), self.row_heads.query(end - 1));
        let (first, end) = (tile * keys, (tile + 1) * keys);
        let last = if end < key_rows { end } else { key_rows } - 1;
        let place = ScorePlace {
            sequence: self.index,
            head: self.head,
            key_head: self.key_head,
            first_key: self.first_key,
        };
        mask_map::shown(&p.score, &place, self.row_heads.count(), queries, (first, last))
    }

    /// The last key tile of `begin..end` of which the boolean mask shows the rows something; below `begin` if
    /// there is none. As [`QueryBlock::shown`].
    ///
    /// # Safety
    /// `p` is as [`ForwardParams`] says.
    #[inline(always)]
    pub unsafe fn last_shown(
        &self,
        p: &ForwardParams,
        (rows, keys): (u32, u32),
        begin: i32,
        end: i32,
    ) -> NextTile {
        let mut next = NextTile { tile: end, shown: Shown::NOTHING };
        while next.tile >= begin && !next.shown.some {
            next.tile -= 1;
            if next.tile >= begin {
                next.shown = self.shown(p, rows, keys, next.tile);
            }
        }
        next
    }

    /// Its rows of q.
    #[inline(always)]
    pub fn q<const ELEMENT_BYTES: i64>(&self, p: &ForwardParams) -> GlobalRows {
        self.rows::<ELEMENT_BYTES>(&p.q, self.sequence.batch, p.head_dim)
    }

    /// All rows of k.
    #[inline(always)]
    pub fn k<const ELEMENT_BYTES: i64>(&self, p: &ForwardParams) -> GlobalRows {
        self.sequence.key_rows::<ELEMENT_BYTES>(&p.k, self.key_head, 0, p.head_dim)
    }

    /// All rows of v.
    #[inline(always)]
    pub fn v<const ELEMENT_BYTES: i64>(&self, p: &ForwardParams) -> GlobalRows {
        self.sequence.key_rows::<ELEMENT_BYTES>(&p.v, self.key_head, 0, p.value_dim)
    }

    /// Its rows of o, of several heads.
    #[inline(always)]
    pub fn o_of_heads<const ELEMENT_BYTES: i64>(&self, p: &ForwardParams) -> HeadRows {
        self.rows_of_heads::<ELEMENT_BYTES>(&p.o, p.value_dim)
    }

    /// What passes before have left of its rows of o, of several heads.
    #[inline(always)]
    pub fn previous_o_of_heads(&self, p: &ForwardParams) -> HeadRows {
        self.rows_of_heads::<4>(&p.previous.o, p.value_dim)
    }

    #[inline(always)]
    fn rows_of_heads<const ELEMENT_BYTES: i64>(&self, view: &TensorView, columns: u32) -> HeadRows {
        // Where rows are queries, from the first one on; otherwise from the sequence's first one on.
        let first_row = if let RowHeads::One = self.row_heads { 0 } else { self.first_row };
        let first = QueryBlock { first_row: self.first_row - first_row, ..*self };
        HeadRows {
            first: first.rows::<ELEMENT_BYTES>(view, self.part, columns),
            head_bytes: view.head_stride * ELEMENT_BYTES,
            first_row,
            row_heads: self.row_heads,
        }
    }

    /// Its rows of o.
    #[inline(always)]
    pub fn o<const ELEMENT_BYTES: i64>(&self, p: &ForwardParams) -> GlobalRows {
        self.rows::<ELEMENT_BYTES>(&p.o, self.part, p.value_dim)
    }

    /// What passes before have left of its rows of o.
    #[inline(always)]
    pub fn previous_o(&self, p: &ForwardParams) -> GlobalRows {
        self.rows::<4>(&p.previous.o, self.part, p.value_dim)
    }

    /// Its rows of q or o, in batch `batch`.
    #[inline(always)]
    fn rows<const ELEMENT_BYTES: i64>(&self, view: &TensorView, batch: u32, columns: u32) -> GlobalRows {
        let sequence = Sequence { batch, query_rows: self.end_row, ..self.sequence };
        sequence.query_rows::<ELEMENT_BYTES>(view, self.head, self.first_row, columns)
    }

    /// Writes what is kept of the softmax of the block's row `row`, if that row exists and lse is wanted: lse
    /// or, where keys are split, the row max of a range of keys and its sum.
    ///
    /// # Safety
    /// `p.lse` is 0 or as [`ForwardParams::lse`] says.
    #[inline(always)]
    pub unsafe fn store_statistics(
        &self,
        p: &ForwardParams,
        is_split: bool,
        row: u32,
        row_max: f32,
        lse_or_sum: f32,
    ) {
        let Some(index) = self.lse_index(p, row) else { return };
        if is_split {
            global::store_f32x2(p.lse.wrapping_add((8 * index) as u64), [row_max, lse_or_sum]);
        } else {
            global::store_f32(p.lse.wrapping_add((4 * index) as u64), lse_or_sum);
        }
    }

    /// Where lse of the block's row `row` stands, if that row exists and lse is wanted.
    #[inline(always)]
    fn lse_index(&self, p: &ForwardParams, row: u32) -> Option<i64> {
        if p.lse == 0 || !self.has_row(row) {
            return None;
        }
        Some(self.index_of_row(row, [p.lse_batch_stride, p.lse_head_stride]))
    }

    /// Where row `row` stands in a tensor `[batch, head, query]` with these strides.
    #[inline(always)]
    fn index_of_row(&self, row: u32, [batch_stride, head_stride]: [i64; 2]) -> i64 {
        let (query, head) = self.row_heads.place(self.first_row + row as i32);
        let (query, head) = (self.sequence.first_query + query, self.head + head);
        self.part as i64 * batch_stride + head as i64 * head_stride + query as i64
    }
}
