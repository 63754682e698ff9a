//! Where there are few query tiles and many keys, as in decoding: ranges of keys are worked on side by side,
//! each with an o and an lse of its own in a workspace, and a last kernel combines them.

use super::{ForwardPointers, count_blocks, view};
use crate::driver::DeviceProperties;
use crate::error::{Error, Result};
use crate::problem::{ForwardProblem, Layout, ValidForward};
use kernels_gpu::abi::{
    COMBINE_ROWS, CombineParams, Dtype, Family, ForwardParams, KERNELS, KernelSpec, MAX_SPLITS,
    OUTPUT_F32_FOR_NOW, WINDOW_OPEN,
};
use kernels_gpu::geometry::visible::Visible;

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
    /// The kernel's parameter; `part_o` and `part_lse` count from the beginning of the workspace.
    pub params: CombineParams,
    /// Bytes of device memory that are needed from before the first kernel to behind the last.
    pub workspace_bytes: u64,
}

/// Costs are in hundredths of what a block takes for a key tile. Fitted to 23 shapes with up to 64 ranges
/// each (H200): the number chosen takes 1.005 times as long as the best one on average, at most 1.05 times.
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

/// How the keys are split for a kernel; `None` if all are worked on at once.
///
/// With `num_splits` as that says. Otherwise the number that takes the least time ([`cost`]): above all,
/// enough ranges to keep every multiprocessor busy. A window on the left side has few key tiles to a query
/// tile, and packed sequences have lengths that only the device knows: these are not split.
pub(super) fn choose_split(
    valid: &ValidForward,
    kernel: &KernelSpec,
    device: &DeviceProperties,
) -> Option<Split> {
    if valid.is_packed() || !kernel.splits_keys() || valid.problem.num_splits == Some(1) {
        return None;
    }
    let key_tiles = valid.key_rows.div_ceil(kernel.key_rows);
    let split = |ranges: u32| {
        let tiles = key_tiles.div_ceil(ranges.max(1)).max(1);
        let (ranges, keys) = (key_tiles.div_ceil(tiles), tiles * kernel.key_rows);
        (ranges > 1).then_some(Split { ranges, keys })
    };
    if let Some(ranges) = valid.problem.num_splits {
        return split(ranges);
    }
    let work = Work::new(valid, kernel, device);
    if valid.window_left != WINDOW_OPEN || work.query_tiles() > MANY_TILES * work.multiprocessors {
        return None;
    }
    let whole = work.cost(&Split { ranges: 1, keys: key_tiles * kernel.key_rows });
    let best = (2..=MAX_SPLITS).filter_map(split).min_by_key(|split| work.cost(split))?;
    (work.cost(&best) < whole).then_some(best)
}

/// What a forward pass has to do.
struct Work<'v> {
    valid: &'v ValidForward,
    kernel: &'v KernelSpec,
    /// (batch, query head) pairs.
    pairs: u64,
    multiprocessors: u64,
}

impl<'v> Work<'v> {
    fn new(valid: &'v ValidForward, kernel: &'v KernelSpec, device: &DeviceProperties) -> Self {
        let pairs = u64::from(valid.batches) * u64::from(valid.query_heads);
        Work { valid, kernel, pairs, multiprocessors: device.multiprocessors.max(1).into() }
    }

    fn query_tiles(&self) -> u64 {
        self.pairs.saturating_mul(self.valid.query_rows.div_ceil(self.kernel.query_rows).into())
    }

    /// What it costs with these ranges.
    fn cost(&self, split: &Split) -> u64 {
        let &Split { ranges, keys } = split;
        let tiles = u64::from(keys / self.kernel.key_rows);
        let longest = tiles * cost::KEY_TILE + cost::QUERY_TILE;
        let main = if self.valid.sees_all() || self.valid.query_rows <= self.kernel.query_rows {
            let pieces = self.query_tiles() * u64::from(ranges);
            pieces.div_ceil(self.multiprocessors) * longest
        } else {
            // The longest first: at the end half of one is waited for.
            let of_a_tile = |visited: u64| {
                visited * cost::KEY_TILE + visited.div_ceil(tiles.max(1)) * cost::QUERY_TILE
            };
            let of_a_pair: u64 = self.visited_tiles().map(of_a_tile).sum();
            longest.max(of_a_pair * self.pairs / self.multiprocessors + longest / 2)
        };
        if ranges == 1 {
            return main;
        }
        let megabytes = workspace_bytes(self.valid, ranges).unwrap_or(u64::MAX) / 1_000_000;
        main + cost::COMBINE + megabytes * cost::MEGABYTE
    }

    /// Key tiles of each query tile of a head.
    fn visited_tiles(&self) -> impl Iterator<Item = u64> {
        let valid = self.valid;
        let (rows, keys) = (self.kernel.query_rows, self.kernel.key_rows as i32);
        let (key_rows, left, right) = (valid.key_rows as i32, valid.window_left, valid.window_right);
        let diagonal = if valid.bottom_right { key_rows - valid.query_rows as i32 } else { 0 };
        let visible = Visible { key_rows, diagonal, left, right };
        (0..valid.query_rows).step_by(rows as usize).map(move |first| {
            let last = (first + rows).min(valid.query_rows) - 1;
            let tiles = visible.tiles(first as i32, last as i32, keys);
            (tiles.end - tiles.begin) as u64
        })
    }
}

/// Bytes of o and lse of all ranges; `None` if no number holds them.
fn workspace_bytes(valid: &ValidForward, ranges: u32) -> Option<u64> {
    let rows = u64::from(valid.batches) * u64::from(valid.query_heads);
    let rows = rows.checked_mul(valid.query_rows.into())?.checked_mul(ranges.into())?;
    rows.checked_mul(4 * (u64::from(part_columns(valid.value_dim)) + 1))
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
    let rows = u64::from(valid.batches) * u64::from(valid.query_heads) * u64::from(valid.query_rows);
    let columns = part_columns(valid.value_dim);
    let workspace_bytes = workspace_bytes(valid, ranges)
        .ok_or_else(|| Error::OutOfMemory { device: device.name.clone(), bytes: usize::MAX })?;
    let o_bytes = rows * u64::from(ranges) * u64::from(4 * columns);
    let what = format!("groups of {COMBINE_ROWS} rows of o");
    let groups = u32::try_from(rows.div_ceil(COMBINE_ROWS.into())).unwrap_or(u32::MAX);
    let blocks = count_blocks(groups, &what, 1, 1)?;
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
        part_lse: o_bytes,
        batches: valid.batches,
        query_heads: valid.query_heads,
        query_rows: valid.query_rows,
        value_dim: valid.value_dim,
        part_columns: columns,
        splits: ranges,
        output_f32: u32::from(problem.output_dtype == Dtype::F32),
        is_aligned: u32::from(is_aligned),
    };
    (params.splits, params.split_keys) = (ranges, keys);
    if combine.output_f32 == 0 {
        params.output_f32 = OUTPUT_F32_FOR_NOW;
    }
    (params.o.address, params.lse) = (combine.part_o, combine.part_lse);
    Ok(CombinePlan { kernel, blocks, params: combine, workspace_bytes })
}
