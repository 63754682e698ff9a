//! What a block of threads of the backward works on.

use super::sequence::{Sequence, Sequences};
use crate::abi::{
    BackwardParams, TICKETS, TURN_ROWS, TensorView, workspace_row_packed, workspace_row_strided,
};
use crate::arch::{math, thread};
use crate::geometry::schedule::{Schedule, Work};
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
    /// First key tile; the others are [`BackwardParams::key_blocks`] apart.
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
        KeyBlock::ascending(p, schedule(p).work(thread::block_idx_x(), math::divide))
    }

    /// The work that `work` names, where the last tile stands for the first key tile.
    ///
    /// # Safety
    /// `p` is as [`BackwardParams`] says.
    #[inline(always)]
    pub unsafe fn ascending(p: &BackwardParams, work: Work) -> Self {
        KeyBlock::descending(p, Work { tile: p.key_blocks - 1 - work.tile, ..work })
    }

    /// The work that `work` names, where tiles are key tiles: the last comes first.
    ///
    /// # Safety
    /// `p` is as [`BackwardParams`] says.
    #[inline(always)]
    pub unsafe fn descending(p: &BackwardParams, work: Work) -> Self {
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
        Walk { tiles, ragged, steps: (tiles.end - tiles.begin) as u32 * p.group_size }
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
            lse: statistics(p, 0, head, workspace_row),
            delta: statistics(p, 1, head, workspace_row),
            norm: if with_norms { statistics(p, 2, head, workspace_row) } else { 0 },
        }
    }

    /// Where dQ of a step is added up.
    #[inline(always)]
    pub fn dq_accumulator(&self, p: &BackwardParams, at: &Step, queries: u32) -> u64 {
        let head = self.key_head * p.group_size + at.head;
        dq_accumulator(p, self.first_tile, head, self.workspace_row + at.tile as u32 * queries)
    }

    /// Where it is noted which key tile was the last to add to a half, 0 or 1, of dQ of a step.
    #[inline(always)]
    pub fn turn(&self, p: &BackwardParams, at: &Step, queries: u32, half: u32) -> u64 {
        let head = self.key_head * p.group_size + at.head;
        turn(p, head, self.workspace_row + at.tile as u32 * queries + half * TURN_ROWS)
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
    /// Tiles times heads.
    pub steps: u32,
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
    /// The first step.
    #[inline(always)]
    pub fn start(&self) -> Step {
        Step { step: 0, head: 0, tile: self.tiles.begin }
    }

    /// The step after `at`.
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

/// In what order a launch works on its key tiles.
#[inline(always)]
pub unsafe fn schedule(p: &BackwardParams) -> Schedule {
    Schedule {
        tiles: p.key_blocks,
        heads: math::divide(p.query_heads, p.group_size),
        batches: p.batches,
        heads_per_wave: p.heads_per_wave,
    }
}

/// The note of which key tile was the last to add to dQ, for the [`TURN_ROWS`] rows from row `row` on.
#[inline(always)]
pub fn turn(p: &BackwardParams, head: u32, row: u32) -> u64 {
    let index = head as u64 * (p.workspace_rows / TURN_ROWS) as u64 + (row / TURN_ROWS) as u64;
    p.turns.wrapping_add(4 * (TICKETS as u64 + index))
}

/// The ticket for blocks of dQ that are to be zeroed.
#[inline(always)]
pub fn zero_ticket(p: &BackwardParams) -> u64 {
    p.turns.wrapping_add(4)
}

/// The count of zeroed blocks of dQ of a (batch, query head).
#[inline(always)]
pub fn zeroed(p: &BackwardParams, batch: u32, head: u32) -> u64 {
    let turns = p.query_heads as u64 * (p.workspace_rows / TURN_ROWS) as u64;
    let index = (batch * p.query_heads + head) as u64;
    p.turns.wrapping_add(4 * (TICKETS as u64 + turns + index))
}

/// Sequence `batch` of a backward.
///
/// # Safety
/// `p` is as [`BackwardParams`] says.
#[inline(always)]
pub unsafe fn sequence(p: &BackwardParams, batch: u32) -> Sequence {
    let sequences = Sequences {
        cu_seqlens_q: p.cu_seqlens_q,
        cu_seqlens_k: p.cu_seqlens_k,
        query_rows: p.query_rows,
        key_rows: p.key_rows,
        bottom_right: p.bottom_right,
        window_left: p.window_left,
        window_right: p.window_right,
    };
    Sequence::new(&sequences, batch)
}

/// First row of the sequence in the workspace.
#[inline(always)]
pub fn workspace_row(p: &BackwardParams, sequence: &Sequence, batch: u32) -> u32 {
    if p.cu_seqlens_q != 0 {
        workspace_row_packed(sequence.first_query as u32, batch)
    } else {
        workspace_row_strided(p.query_rows, batch)
    }
}

/// Device address of lse (`which` 0), delta (1) or the norm of dO (2) of row `row` in the workspace.
#[inline(always)]
pub fn statistics(p: &BackwardParams, which: u32, head: u32, row: u32) -> u64 {
    let index = (which * p.query_heads + head) as u64 * p.workspace_rows as u64 + row as u64;
    p.statistics.wrapping_add(4 * index)
}

/// Device address of the first element of row `row` in split `split` of the dQ accumulator.
#[inline(always)]
pub fn dq_accumulator(p: &BackwardParams, split: u32, head: u32, row: u32) -> u64 {
    let in_split = (head as u64 * p.workspace_rows as u64 + row as u64) * p.padded_dim as u64;
    p.dq_accumulator.wrapping_add(4 * (split as u64 * p.split_stride + in_split))
}
