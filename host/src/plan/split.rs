//! Where there are few query tiles and many keys, as in decoding: ranges of keys are worked on side by side,
//! each with an o, a reference and a sum of its own in a workspace, and a last kernel combines them.

use super::forward::are_alike;
use super::row_heads::TileRows;
use super::{ForwardPointers, count_blocks, view};
use crate::driver::DeviceProperties;
use crate::error::{Error, Result};
use crate::problem::{ForwardProblem, Layout, ValidForward};
use kernels_gpu::abi::{
    COMBINE_ROWS, CombineParams, Dtype, Family, ForwardParams, KERNELS, KernelSpec, MAX_SPLITS,
    OUTPUT_F32_FOR_NOW, WINDOW_OPEN,
};

/// How the keys of a forward pass are split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Split {
    /// Ranges of keys, at least 2.
    pub ranges: u32,
    /// Keys of a range, a multiple of a key tile; the last range has what is left.
    pub keys: u32,
}

/// The last kernel of a forward pass whose keys are split, and the workspace of its parts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CombinePlan {
    /// The kernel.
    pub kernel: &'static KernelSpec,
    /// Blocks of the one-dimensional grid.
    pub blocks: u32,
    /// The kernel's parameter; `part_o` and `part_statistics` count from the beginning of the workspace.
    pub params: CombineParams,
    /// Bytes of device memory that are needed from before the first kernel to behind the last.
    pub workspace_bytes: u64,
}

/// Costs are in hundredths of what a block takes for a key tile. Fitted to 23 shapes with up to 64 ranges
/// each (H200): the number chosen takes 1.005 times as long as the best one on average, at most 1.05 times.
/// Of 25 causal shapes of 256 to 8192 queries it is the best of 1 to 4 for 23, and takes 1.07 and 1.09 times
/// as long for the others.
mod cost {
    /// One more key tile.
    pub const KEY_TILE: u64 = 100;
    /// What a block does once for a query tile, or a range of it.
    pub const QUERY_TILE: u64 = 200;
    /// The kernel that combines.
    pub const COMBINE: u64 = 300;
    /// A megabyte of workspace, written and read.
    pub const MEGABYTE: u64 = 30;
}

/// More query tiles than this to a multiprocessor keep all of them busy.
const MANY_TILES: u64 = 4;

/// Whether keys may be split at all, whichever kernel it is: packed sequences have lengths that only the
/// device knows, and with a window on the left side a query tile has few key tiles, so that it must be asked
/// for.
pub(super) fn may_split(valid: &ValidForward) -> bool {
    let rows = u128::from(valid.batches) * u128::from(valid.query_heads) * u128::from(valid.query_rows);
    let is_asked_for = valid.problem.num_splits.is_some_and(|ranges| ranges > 1);
    let may_pay_off = valid.problem.num_splits.is_none() && valid.window_left == WINDOW_OPEN;
    !valid.is_packed() && rows <= u32::MAX.into() && (is_asked_for || may_pay_off)
}

/// How the keys are split for a kernel; `None` if all are worked on at once.
///
/// With `num_splits` as that says. Otherwise the number that takes the least time ([`cost`]): above all,
/// enough ranges to keep every multiprocessor busy.
pub(super) fn choose_split(
    valid: &ValidForward,
    (kernel, rows): &(&KernelSpec, TileRows),
    device: &DeviceProperties,
) -> Option<Split> {
    if !kernel.splits_keys() {
        return None;
    }
    let key_tiles = valid.key_rows.div_ceil(kernel.key_rows);
    let split = |ranges: u32| {
        let tiles = key_tiles.div_ceil(ranges).max(1);
        Split { ranges: key_tiles.div_ceil(tiles), keys: tiles * kernel.key_rows }
    };
    let is_one = |split: &Split| split.ranges > 1;
    if let Some(ranges) = valid.problem.num_splits {
        return Some(split(ranges)).filter(is_one);
    }
    let work = Work::new(valid, kernel, rows, device)?;
    let whole = work.cost(&split(1));
    let best = (2..=MAX_SPLITS).map(split).filter(is_one).min_by_key(|split| work.cost(split))?;
    (work.cost(&best) < whole).then_some(best)
}

/// What a forward pass has to do.
struct Work<'v> {
    valid: &'v ValidForward,
    /// Keys of a tile.
    tile_keys: u32,
    /// (batch, query heads of a tile) pairs.
    pairs: u64,
    /// Key tiles that each query tile of a pair goes through: the first ones, the others are not seen.
    visited: Vec<u64>,
    /// Whether they go through nearly as many as each other.
    are_alike: bool,
    multiprocessors: u64,
}

impl<'v> Work<'v> {
    /// None where there are so many query tiles that nothing is to be gained.
    fn new(
        valid: &'v ValidForward,
        kernel: &KernelSpec,
        rows: &TileRows,
        device: &DeviceProperties,
    ) -> Option<Self> {
        let keys = kernel.key_rows;
        let pairs = u64::from(rows.pairs(valid));
        let multiprocessors = device.multiprocessors.max(1).into();
        if pairs * u64::from(rows.tiles(valid.query_rows)) > MANY_TILES * multiprocessors {
            return None;
        }
        let visible = valid.visible();
        let visited = |first: u32| {
            let last = (first + rows.queries).min(valid.query_rows) - 1;
            visible.tiles(first as i32, last as i32, keys as i32).end as u64
        };
        let visited = (0..valid.query_rows).step_by(rows.queries as usize).map(visited).collect();
        let are_alike = are_alike(valid, rows);
        Some(Work { valid, tile_keys: keys, pairs, visited, are_alike, multiprocessors })
    }

    /// What it costs with these ranges.
    fn cost(&self, split: &Split) -> u64 {
        let tiles = u64::from(split.keys / self.tile_keys);
        let most = self.visited.iter().copied().max().unwrap_or(0);
        let longest = tiles.min(most) * cost::KEY_TILE + cost::QUERY_TILE;
        let pieces = |visited: u64| visited.div_ceil(tiles);
        let count = self.pairs * self.visited.iter().map(|&visited| pieces(visited)).sum::<u64>();
        let main = if self.are_alike || count <= self.multiprocessors {
            // Nearly as long as each other, or each on its own, they are done in rounds.
            count.div_ceil(self.multiprocessors) * longest
        } else {
            // The longest first: at the end a quarter of one is waited for.
            let of_a_tile =
                |&visited: &u64| visited * cost::KEY_TILE + pieces(visited) * cost::QUERY_TILE;
            let of_a_pair: u64 = self.visited.iter().map(of_a_tile).sum();
            longest.max(of_a_pair * self.pairs / self.multiprocessors + longest / 4)
        };
        if split.ranges == 1 {
            return main;
        }
        let megabytes = workspace_bytes(self.valid, split.ranges) / 1_000_000;
        main + cost::COMBINE + megabytes * cost::MEGABYTE
    }
}

/// Rows of o in all ranges; at most 2^32 without them.
fn rows(valid: &ValidForward, ranges: u32) -> u64 {
    let rows = u64::from(valid.batches) * u64::from(valid.query_heads) * u64::from(valid.query_rows);
    rows * u64::from(ranges)
}

/// Bytes of o, reference and sum of all ranges.
fn workspace_bytes(valid: &ValidForward, ranges: u32) -> u64 {
    rows(valid, ranges) * 4 * (u64::from(part_columns(valid.value_dim)) + 2)
}

/// The problem whose outputs are those of all ranges, dense in a workspace that begins at address 0, with
/// [`part_columns`] elements to a row of o.
pub(super) fn parts(
    valid: &ValidForward,
    pointers: &ForwardPointers,
    split: &Split,
) -> (ValidForward, ForwardPointers) {
    let [batches, rows, heads, columns] = valid.problem.o.shape;
    let row_stride = i64::from(part_columns(columns as u32));
    let head_stride = row_stride * rows as i64;
    let o = Layout {
        shape: [batches * split.ranges as usize, rows, heads, columns],
        strides: [head_stride * heads as i64, row_stride, head_stride, 1],
    };
    let problem = ForwardProblem { o, output_dtype: Dtype::F32, wants_lse: true, ..valid.problem };
    (ValidForward { problem, ..*valid }, ForwardPointers { o: 0, lse: 0, ..*pointers })
}

/// Columns of a row of o in the workspace: whole reads of 16 bytes.
const fn part_columns(columns: u32) -> u32 {
    columns.next_multiple_of(4)
}

/// The last kernel, for the outputs of `valid` at `pointers`, and the main kernel's parameters for `split`:
/// its outputs are in a workspace that begins at address 0.
///
/// # Errors
/// [`Error::GridTooLarge`], [`Error::KernelMissing`].
pub(super) fn combine(
    valid: &ValidForward,
    pointers: &ForwardPointers,
    split: &Split,
    params: &mut ForwardParams,
    device: &DeviceProperties,
) -> Result<CombinePlan> {
    let problem = &valid.problem;
    let Split { ranges, keys } = *split;
    let columns = part_columns(valid.value_dim);
    let what = format!("groups of {COMBINE_ROWS} rows of o");
    let blocks = count_blocks(rows(valid, 1).div_ceil(COMBINE_ROWS.into()) as u32, &what, 1, 1)?;
    let kernel = KERNELS
        .iter()
        .find(|kernel| kernel.family == Family::ForwardCombine && kernel.dtype == problem.dtype)
        .ok_or_else(|| Error::KernelMissing {
            device: device.name.clone(),
            family: super::family_name(Family::ForwardCombine),
            dtype: problem.dtype.name(),
            head_dim: valid.value_dim,
            reason: "there is none that combines ranges of keys".to_owned(),
        })?;
    let [lse_batch_stride, lse_head_stride] = valid.lse_strides();
    let is_aligned = problem.o.rows_aligned(pointers.o, problem.output_dtype, 16);
    let combine = CombineParams {
        o: view(pointers.o, &problem.o),
        lse: if problem.wants_lse { pointers.lse } else { 0 },
        lse_batch_stride,
        lse_head_stride,
        part_o: 0,
        part_statistics: rows(valid, ranges) * 4 * u64::from(columns),
        batches: valid.batches,
        query_heads: valid.query_heads,
        query_rows: valid.query_rows,
        value_dim: valid.value_dim,
        splits: ranges,
        scale: valid.scale,
        output_f32: u32::from(problem.output_dtype == Dtype::F32),
        is_aligned: u32::from(is_aligned),
    };
    (params.splits, params.split_keys) = (ranges, keys);
    if combine.output_f32 == 0 {
        params.output_f32 = OUTPUT_F32_FOR_NOW;
    }
    (params.o.address, params.lse) = (combine.part_o, combine.part_statistics);
    let workspace_bytes = workspace_bytes(valid, ranges);
    Ok(CombinePlan { kernel, blocks, params: combine, workspace_bytes })
}
