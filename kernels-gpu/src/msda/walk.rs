//! Which queries a warp takes, and in which order.
//!
//! A tile is what a warp takes at a time: consecutive queries of one head, a group of lanes each. Tiles are
//! numbered head by head, and each block takes consecutive ones. Blocks that are meant to share a
//! multiprocessor take ranges that follow on each other: so its cache holds one head's value at a time, and
//! not those of as many heads as it has blocks.

use crate::abi::MsdaParams;
use crate::arch::{math, thread};

/// The tiles of a warp, of a block of `WARPS`.
pub struct Walk<const WARPS: u32> {
    /// Tiles of a head.
    tiles: u32,
    /// (batch, head) pair of the next tile.
    pair: u32,
    /// The next tile, counted within the pair; those of the next pair may follow.
    tile: u64,
    /// Tiles of the block from the next one on; not above 0 when there are no more.
    left: i64,
}

/// A query of a head, for a group of lanes.
#[derive(Clone, Copy)]
pub struct Query {
    /// Its batch.
    pub batch: u32,
    /// Its head.
    pub head: u32,
    /// Which query; there is none if it is not less than N.
    pub query: u32,
}

impl<const WARPS: u32> Walk<WARPS> {
    /// That of this warp.
    #[inline(always)]
    pub fn new(p: &MsdaParams) -> Self {
        let per_tile = 32 >> p.lanes_log2;
        let tiles = math::divide(p.queries + per_tile - 1, per_tile);
        let all = (p.batches * p.heads) as u64 * tiles as u64;
        let block = thread::block_idx_x();
        let row = math::divide(block, p.block_columns);
        let rank = ((block - row * p.block_columns) * p.block_rows + row) as u64;
        let ranks = (p.block_columns * p.block_rows) as u64;
        let share = math::divide_u64(all, ranks);
        let more = all - share * ranks;
        let first = rank * share + if rank < more { rank } else { more };
        let warp = (thread::thread_idx_x() / 32) as u64;
        let pair = math::divide_u64(first, tiles as u64);
        let tile = first - pair * tiles as u64 + warp;
        let left = (share + (rank < more) as u64) as i64 - warp as i64;
        Walk { tiles, pair: pair as u32, tile, left }
    }

    /// The query of this lane's group in the next tile.
    #[inline(always)]
    pub fn next(&mut self, p: &MsdaParams) -> Option<Query> {
        if self.left <= 0 {
            return None;
        }
        while self.tile >= self.tiles as u64 {
            self.tile -= self.tiles as u64;
            self.pair += 1;
        }
        let batch = math::divide(self.pair, p.heads);
        let head = self.pair - batch * p.heads;
        let group = (thread::thread_idx_x() & 31) >> p.lanes_log2;
        let query = self.tile as u32 * (32 >> p.lanes_log2) + group;
        self.left -= WARPS as i64;
        self.tile += WARPS as u64;
        Some(Query { batch, head, query })
    }
}
