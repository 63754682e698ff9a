//! What a block of threads works on, read from the launch parameters once.

use crate::abi::ForwardParams;
use crate::arch::{global, math, thread};
use crate::geometry::schedule::Schedule;
use crate::geometry::visible::{TileRange, Visible};
use crate::tile::global_rows::GlobalRows;

/// One block of query rows of one head of one batch.
#[derive(Clone, Copy)]
pub struct QueryBlock {
    /// Batch.
    pub batch: u32,
    /// Query head.
    pub head: u32,
    /// Key head.
    pub key_head: u32,
    /// First query row.
    pub first_row: i32,
    /// What its rows may see.
    pub visible: Visible,
}

impl QueryBlock {
    /// The work of this block of threads, with `ROWS` query rows.
    #[inline(always)]
    pub fn of_this_block<const ROWS: u32>(p: &ForwardParams) -> Self {
        let schedule = Schedule {
            tiles: p.query_rows.div_ceil(ROWS),
            heads: p.query_heads,
            batches: p.batches,
            heads_per_wave: p.heads_per_wave,
        };
        let work = schedule.work(thread::block_idx_x(), math::divide);
        QueryBlock {
            batch: work.batch,
            head: work.head,
            key_head: math::divide(work.head, p.group_size),
            first_row: (work.tile * ROWS) as i32,
            visible: Visible {
                key_rows: p.key_rows as i32,
                diagonal: p.diagonal,
                left: p.window_left,
                right: p.window_right,
            },
        }
    }

    /// The tiles of `keys` keys that its (at most `rows`) rows visit.
    #[inline(always)]
    pub fn key_tiles(&self, p: &ForwardParams, rows: u32, keys: u32) -> TileRange {
        let last = self.first_row + rows as i32 - 1;
        let last = if last < p.query_rows as i32 { last } else { p.query_rows as i32 - 1 };
        self.visible.tiles(self.first_row, last, keys as i32)
    }

    /// Its rows of q.
    #[inline(always)]
    pub fn q<const ELEMENT_BYTES: i64>(&self, p: &ForwardParams) -> GlobalRows {
        let rows = p.query_rows as i32;
        GlobalRows::new::<ELEMENT_BYTES>(&p.q, self.batch, self.head, self.first_row, rows, p.head_dim)
    }

    /// All rows of k.
    #[inline(always)]
    pub fn k<const ELEMENT_BYTES: i64>(&self, p: &ForwardParams) -> GlobalRows {
        GlobalRows::new::<ELEMENT_BYTES>(
            &p.k,
            self.batch,
            self.key_head,
            0,
            p.key_rows as i32,
            p.head_dim,
        )
    }

    /// All rows of v.
    #[inline(always)]
    pub fn v<const ELEMENT_BYTES: i64>(&self, p: &ForwardParams) -> GlobalRows {
        GlobalRows::new::<ELEMENT_BYTES>(
            &p.v,
            self.batch,
            self.key_head,
            0,
            p.key_rows as i32,
            p.value_dim,
        )
    }

    /// Its rows of o.
    #[inline(always)]
    pub fn o<const ELEMENT_BYTES: i64>(&self, p: &ForwardParams) -> GlobalRows {
        let rows = p.query_rows as i32;
        GlobalRows::new::<ELEMENT_BYTES>(&p.o, self.batch, self.head, self.first_row, rows, p.value_dim)
    }

    /// Writes lse of the block's row `row`, if that row exists and lse is wanted.
    ///
    /// # Safety
    /// `p.lse` is 0 or as [`ForwardParams::lse`] says.
    #[inline(always)]
    pub unsafe fn store_lse(&self, p: &ForwardParams, row: u32, lse: f32) {
        let row = self.first_row as u32 + row;
        if p.lse != 0 && row < p.query_rows {
            let pair = self.batch as u64 * p.query_heads as u64 + self.head as u64;
            global::store_f32(p.lse.wrapping_add(4 * (pair * p.query_rows as u64 + row as u64)), lse);
        }
    }
}

/// `scale` as the kernels use it: a positive factor for scores in powers of two, and a factor -1, 0 or 1 for q.
///
/// The online maximum is taken of unscaled scores, which is right for positive scales only.
#[derive(Clone, Copy)]
pub struct Scale {
    /// `|scale| * log2(e)`, or 1 when scale is 0.
    pub log2: f32,
    /// What q is multiplied by, exactly.
    pub q_factor: f32,
}

impl Scale {
    /// Splits `scale`, which is finite.
    #[inline(always)]
    pub fn new(scale: f32) -> Self {
        if scale > 0.0 {
            Scale { log2: scale * core::f32::consts::LOG2_E, q_factor: 1.0 }
        } else if scale < 0.0 {
            Scale { log2: -scale * core::f32::consts::LOG2_E, q_factor: -1.0 }
        } else {
            Scale { log2: 1.0, q_factor: 0.0 }
        }
    }
}
