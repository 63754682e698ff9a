//! What a forward pass costs, by how its keys are split.

use super::{Split, part_row_bytes};
use crate::driver::DeviceProperties;
use crate::plan::forward::are_alike;
use crate::plan::lengths::{Alike, likely};
use crate::plan::row_heads::TileRows;
use crate::problem::ValidForward;
use kernels_gpu::abi::{Arch, KernelSpec};

// Costs are in hundredths of what a block takes for a key tile. Fitted to 23 shapes with up to 64 ranges
// each (H200): the number chosen takes 1.005 times as long as the best one on average, at most 1.05 times.
// Of 25 causal shapes of 256 to 8192 queries it is the best of 1 to 4 for 23, and takes 1.07 and 1.09 times
// as long for the others.

/// One more key tile.
const KEY_TILE: u64 = 100;
/// What a block does once for a query tile, or a range of it.
const QUERY_TILE: u64 = 200;
/// A block that has nothing to do.
const EMPTY_BLOCK: u64 = 30;
/// The kernel that combines.
const COMBINE: u64 = 300;
/// A megabyte of workspace, written and read.
const MEGABYTE: u64 = 30;

/// More query tiles than this to a multiprocessor keep all of them busy.
const MANY_TILES: u64 = 4;

/// What a forward pass has to do.
pub(super) struct Work {
    /// Bytes of o, reference and sum of one query of all heads.
    part_bytes: u64,
    /// Sequences.
    sequences: Vec<Alike>,
    /// Keys of a tile.
    tile_keys: u32,
    /// Query tiles of all heads that go through as many key tiles, and how many these are: the first ones,
    /// the others are not seen.
    tiles: Vec<(u64, u64)>,
    /// Whether they go through nearly as many as each other.
    are_alike: bool,
    /// Blocks that packed sequences have for each range, where there is a block for each that there could be.
    possible_blocks: u64,
    multiprocessors: u64,
}

impl Work {
    /// None where there are so many query tiles that nothing is to be gained.
    pub(super) fn new(
        valid: &ValidForward,
        kernel: &KernelSpec,
        rows: &TileRows,
        device: &DeviceProperties,
    ) -> Option<Self> {
        let keys = kernel.key_rows;
        let heads = u64::from(valid.query_heads / rows.heads);
        let multiprocessors = device.multiprocessors.max(1).into();
        // Without queries there is no work.
        let mut sequences = likely(valid);
        sequences.retain(|alike| alike.sequence.query_rows > 0);
        let count = |alike: &Alike| {
            (alike.count * heads).saturating_mul(rows.tiles(alike.sequence.query_rows).into())
        };
        let even_share = |sequences: &[Alike]| {
            let key_tiles = |alike: &Alike| alike.sequence.key_rows.div_ceil(keys).into();
            let all = |alike: &Alike| count(alike).saturating_mul(key_tiles(alike));
            sequences.iter().map(all).fold(0, u64::saturating_add) / multiprocessors
        };
        let longest = valid.key_rows.div_ceil(keys).into();
        if sequences.iter().map(count).fold(0, u64::saturating_add) > MANY_TILES * multiprocessors
            && (!valid.is_packed() || even_share(&sequences) >= longest)
        {
            return None;
        }
        let tiles = sequences.iter().flat_map(|alike| {
            let visible = alike.sequence.visible();
            let query_rows = alike.sequence.query_rows;
            (0..query_rows).step_by(rows.queries as usize).map(move |first| {
                let last = (first + rows.queries).min(query_rows) - 1;
                let visited = visible.tiles(first as i32, last as i32, keys as i32).end as u64;
                (alike.count * heads, visited)
            })
        });
        let tiles = tiles.collect();
        let of_all = |of: fn(u32, u32) -> u32| {
            sequences.iter().map(|alike| alike.sequence.key_rows).reduce(of).unwrap_or(0)
        };
        let are_alike = u64::from(of_all(u32::min)) * 8 >= u64::from(of_all(u32::max)) * 7
            && sequences.iter().all(|alike| are_alike(&alike.sequence, rows));
        let has_empty_blocks = valid.is_packed() && kernel.arch == Arch::Sm80;
        let possible_blocks = if has_empty_blocks {
            (u64::from(valid.batches) * heads).saturating_mul(rows.tiles(valid.query_rows).into())
        } else {
            0
        };
        let part_bytes = u64::from(valid.query_heads) * part_row_bytes(valid.value_dim);
        Some(Work {
            part_bytes,
            sequences,
            tile_keys: keys,
            tiles,
            are_alike,
            possible_blocks,
            multiprocessors,
        })
    }

    /// What it costs with these ranges.
    pub(super) fn cost(&self, split: &Split) -> u64 {
        let tiles = u64::from(split.keys / self.tile_keys);
        let most = self.tiles.iter().map(|&(_, visited)| visited).max().unwrap_or(0);
        let longest = tiles.min(most) * KEY_TILE + QUERY_TILE;
        let pieces = |visited: u64| visited.div_ceil(tiles);
        let count: u64 = self.tiles.iter().map(|&(count, visited)| count * pieces(visited)).sum();
        let main = if self.are_alike || count <= self.multiprocessors {
            // Nearly as long as each other, or each on its own, they are done in rounds.
            count.div_ceil(self.multiprocessors) * longest
        } else {
            // The longest first: at the end a quarter of one is waited for.
            let all = self
                .tiles
                .iter()
                .map(|&(count, visited)| count * (visited * KEY_TILE + pieces(visited) * QUERY_TILE));
            longest.max(all.sum::<u64>() / self.multiprocessors + longest / 4)
        };
        if split.ranges == 1 {
            return main;
        }
        let blocks = self.possible_blocks.saturating_mul(split.ranges.into());
        let empty = blocks.saturating_sub(count) / self.multiprocessors * EMPTY_BLOCK;
        let rows = self.sequences.iter().map(|Alike { count, sequence }| {
            count * u64::from(sequence.query_rows) * u64::from(sequence.key_rows.div_ceil(split.keys))
        });
        let megabytes = rows.sum::<u64>() * self.part_bytes / 1_000_000;
        main.saturating_add(empty) + COMBINE + megabytes * MEGABYTE
    }
}
