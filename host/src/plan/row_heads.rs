//! Where there are few queries: query heads that share keys and values fill query tiles together.
//!
//! A tile takes as long with few rows as with many. Unlike [`super::single_query`], which needs nothing of a
//! kernel, this is for any number of queries, masks and packed sequences; only kernels for Hopper know of it.

use super::lengths::{Alike, likely};
use crate::problem::ValidForward;
use kernels_gpu::abi::{Arch, Family, KERNELS, KernelSpec};
use kernels_gpu::geometry::row_heads::EXACT_BELOW;

/// What the rows of a query tile are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TileRows {
    /// Query heads of a query, side by side: a divisor of those that share a key head.
    pub heads: u32,
    /// Queries.
    pub queries: u32,
}

/// Rows of the query tiles that can have several heads.
const ROWS: u32 = 128;

impl TileRows {
    /// Those of a kernel, which are `several` if it can.
    pub(super) fn new(kernel: &KernelSpec, several: Option<TileRows>) -> Self {
        let alone = TileRows { heads: 1, queries: kernel.query_rows };
        several.filter(|_| kernel.gathers_heads).unwrap_or(alone)
    }

    /// How many tiles `queries` queries are.
    pub(super) fn tiles(&self, queries: u32) -> u32 {
        queries.div_ceil(self.queries)
    }

    /// (batch, heads of a tile) pairs of a pass.
    pub(super) fn pairs(&self, valid: &ValidForward) -> u32 {
        valid.batches.saturating_mul(valid.query_heads / self.heads)
    }

    /// How many of these share a key head.
    pub(super) fn group_size(&self, valid: &ValidForward) -> u32 {
        valid.group_size / self.heads
    }
}

/// Rows of several heads, if that is asked for or pays off: where otherwise, in `short_tiles` or not, more
/// of the rows that a device works on would be nobody's.
///
/// Measured (H200, head dim 128, four heads to a key head, 4096 keys): time of heads alone over that of heads
/// together.
///
/// | queries | rows together over rows alone | full | causal |
/// |--|--|--|--|
/// | 4, 64 | 1/4, 1/2 | 2.68, 1.70 | 2.76, 1.71 |
/// | 100 | 1 | 0.99 | 0.98 |
/// | 200 | 0.88 | 1.01 | 1.02 |
/// | 130, 260 alone in tall tiles | 0.83, 0.75 | 0.98, 1.09 | |
/// | 130, 260 | 0.63, 0.75 | | 1.34, 1.22 |
/// | 330, 700 | 0.92 | 0.97, 0.95 | 1.02, 1.03 |
/// | 520 | 0.85; alone in tall tiles 0.94 | 0.90 | 1.05 |
/// | 150, as many keys | 0.63; alone in tall tiles 0.83 | 0.82 | 1.29 |
///
/// At other head dims the kernel may be one for more columns, which are then multiplied, too.
pub(super) fn several(valid: &ValidForward, short_tiles: bool) -> Option<TileRows> {
    let sequences = likely(valid);
    // Rows in tiles of `rows` rows, with `heads` heads of `queries` queries each, times the keys that they
    // meet.
    let worked_on = |rows: u32, TileRows { heads, queries }: TileRows| -> u128 {
        let of_one = |&Alike { count, sequence }: &Alike| {
            let tiles = u128::from(sequence.query_rows.div_ceil(queries)) * u128::from(count);
            tiles * u128::from(sequence.key_rows.max(1))
        };
        let groups = u128::from(valid.group_size / heads);
        sequences.iter().map(of_one).sum::<u128>() * groups * u128::from(rows)
    };
    let best = (2..=ROWS.min(valid.group_size))
        .filter(|heads| valid.group_size.is_multiple_of(*heads))
        .map(|heads| TileRows { heads, queries: ROWS / heads })
        .filter(|rows| is_exact(rows, valid.query_rows))
        .min_by_key(|&rows| (worked_on(ROWS, rows), u32::MAX - rows.heads))?;
    if let Some(pack_gqa) = valid.problem.pack_gqa {
        return pack_gqa.then_some(best);
    }
    let (tile, percent) = if short_tiles { (ROWS, 92) } else { (192, 75) };
    let alone = worked_on(tile, TileRows { heads: 1, queries: tile });
    let together = worked_on(ROWS, best);
    let [columns_alone, columns_together] = [false, true].map(|gathers| columns(valid, gathers));
    (together * columns_together * 100 <= alone * columns_alone * percent).then_some(best)
}

/// Columns of the kernels for Hopper that the problem fits, for heads alone or together.
fn columns(valid: &ValidForward, gathers_heads: bool) -> u128 {
    let columns = valid.head_dim.max(valid.value_dim);
    let kernels = KERNELS.iter().filter(|spec| {
        spec.family == Family::Forward
            && spec.arch == Arch::Sm90a
            && spec.gathers_heads == gathers_heads
            && spec.head_dim >= columns
    });
    kernels.map(|spec| spec.head_dim).min().unwrap_or(columns).into()
}

/// Whether kernels can tell the queries of rows apart, up to a tile behind the last.
fn is_exact(rows: &TileRows, queries: u32) -> bool {
    let heads = u64::from(rows.heads);
    (u64::from(queries) * heads + u64::from(ROWS)) * heads < EXACT_BELOW
}
