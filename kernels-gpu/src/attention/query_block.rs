//! What a block of threads of the forward works on.

use super::sequence::{Sequence, Sequences};
use crate::abi::ForwardParams;
use crate::arch::{global, math, thread};
use crate::geometry::schedule::{Schedule, Work};
use crate::geometry::visible::TileRange;
use crate::tile::global_rows::GlobalRows;

/// One block of query rows of one head of one sequence.
#[derive(Clone, Copy)]
pub struct QueryBlock {
    /// The sequence.
    pub sequence: Sequence,
    /// Query head.
    pub head: u32,
    /// First query row in the sequence. May lie past its end, in a packed batch: then there is nothing
    /// to do.
    pub first_row: i32,
    /// Key head.
    pub key_head: u32,
}

/// In what order a launch works on its query blocks.
#[inline(always)]
pub fn schedule(p: &ForwardParams, rows: u32) -> Schedule {
    Schedule {
        tiles: p.query_rows.div_ceil(rows),
        heads: p.query_heads,
        batches: p.batches,
        heads_per_wave: p.heads_per_wave,
    }
}

impl QueryBlock {
    /// The work of this block of threads, with `rows` query rows.
    ///
    /// # Safety
    /// `p` is as [`ForwardParams`] says.
    #[inline(always)]
    pub unsafe fn of_this_block(p: &ForwardParams, rows: u32) -> Self {
        QueryBlock::new(p, rows, schedule(p, rows).work(thread::block_idx_x(), math::divide))
    }

    /// The block of `rows` query rows that `work` names.
    ///
    /// # Safety
    /// `p` is as [`ForwardParams`] says.
    #[inline(always)]
    pub unsafe fn new(p: &ForwardParams, rows: u32, work: Work) -> Self {
        let sequences = Sequences {
            cu_seqlens_q: p.cu_seqlens_q,
            cu_seqlens_k: p.cu_seqlens_k,
            query_rows: p.query_rows,
            key_rows: p.key_rows,
            bottom_right: p.bottom_right,
            window_left: p.window_left,
            window_right: p.window_right,
        };
        QueryBlock {
            sequence: Sequence::new(&sequences, work.batch),
            head: work.head,
            first_row: (work.tile * rows) as i32,
            key_head: math::divide(work.head, p.group_size),
        }
    }

    /// Whether there is nothing to do.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.first_row >= self.sequence.query_rows
    }

    /// Whether its row `row` exists.
    #[inline(always)]
    pub fn has_row(&self, row: u32) -> bool {
        self.first_row + (row as i32) < self.sequence.query_rows
    }

    /// Whether its row `row` sees no key.
    #[inline(always)]
    pub fn is_dead(&self, row: u32) -> bool {
        let row = self.first_row + row as i32;
        self.sequence.visible.begin(row) >= self.sequence.visible.end(row)
    }

    /// The tiles of `keys` keys that its (at most `rows`) rows visit.
    #[inline(always)]
    pub fn key_tiles(&self, rows: u32, keys: u32) -> TileRange {
        let last = self.first_row + rows as i32;
        let last = if last < self.sequence.query_rows { last } else { self.sequence.query_rows } - 1;
        self.sequence.visible.tiles(self.first_row, last, keys as i32)
    }

    /// Its rows of q.
    #[inline(always)]
    pub fn q<const ELEMENT_BYTES: i64>(&self, p: &ForwardParams) -> GlobalRows {
        self.sequence.query_rows::<ELEMENT_BYTES>(&p.q, self.head, self.first_row, p.head_dim)
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

    /// Its rows of o.
    #[inline(always)]
    pub fn o<const ELEMENT_BYTES: i64>(&self, p: &ForwardParams) -> GlobalRows {
        self.sequence.query_rows::<ELEMENT_BYTES>(&p.o, self.head, self.first_row, p.value_dim)
    }

    /// Writes lse of the block's row `row`, if that row exists and lse is wanted.
    ///
    /// # Safety
    /// `p.lse` is 0 or as [`ForwardParams::lse`] says.
    #[inline(always)]
    pub unsafe fn store_lse(&self, p: &ForwardParams, row: u32, lse: f32) {
        let row = self.first_row + row as i32;
        if p.lse != 0 && row < self.sequence.query_rows {
            let row = (self.sequence.first_query + row) as i64;
            let index = self.sequence.batch as i64 * p.lse_batch_stride
                + self.head as i64 * p.lse_head_stride
                + row;
            global::store_f32(p.lse.wrapping_add((4 * index) as u64), lse);
        }
    }
}
