//! Where there are few query tiles and many keys, as in decoding: ranges of keys are worked on side by side,
//! each with an o, a reference and a sum of its own in a workspace, and a last kernel combines them.

mod cost;

use super::row_heads::TileRows;
use super::{ForwardPlan, ForwardPointers, count_blocks, view};
use crate::driver::DeviceProperties;
use crate::error::{Error, Result};
use crate::problem::{ForwardProblem, Layout, ValidForward};
use kernels_gpu::abi::{
    Arch, COMBINE_WARPS, CombineParams, Dtype, Family, ForwardParams, KERNELS, KernelSpec,
    KernelVariant, MAX_SPLITS, OUTPUT_F32_FOR_NOW, WINDOW_OPEN,
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
    pub variant: KernelVariant,
    /// Blocks of the one-dimensional grid.
    pub blocks: u32,
    /// The kernel's parameter; `part_o` and `part_statistics` count from the beginning of the workspace.
    pub params: CombineParams,
    /// Bytes of device memory that are needed from before the first kernel to behind the last.
    pub workspace_bytes: u64,
}

impl ForwardPlan {
    /// What the address of a workspace is a multiple of.
    pub const WORKSPACE_ALIGNMENT: u32 = 256;

    /// Device memory that the kernels need between them, 0 unless keys or operands are split. Its contents
    /// do not matter before or after.
    pub fn workspace_bytes(&self) -> u64 {
        let of_operands = self.operands.as_ref().map_or(0, |operands| operands.workspace_bytes);
        self.combine.as_ref().map_or(of_operands, |combine| combine.workspace_bytes)
    }
}

/// Most bytes of workspace for packed sequences, unless ranges are asked for: it has room for as many ranges
/// of every row as the longest sequence has.
const MOST_BYTES: u64 = 1 << 30;

/// Whether keys may be split at all, whichever kernel it is: with a window on the left side a query tile has
/// few key tiles, so that it must be asked for.
pub(super) fn may_split(valid: &ValidForward) -> bool {
    let [batches, rows, heads, _] = valid.problem.o.shape;
    let rows = batches as u128 * rows as u128 * heads as u128;
    let is_asked_for = valid.problem.num_splits.is_some_and(|ranges| ranges > 1);
    let may_pay_off = valid.problem.num_splits.is_none() && valid.window_left == WINDOW_OPEN;
    rows <= (u32::MAX - COMBINE_WARPS).into() && (is_asked_for || may_pay_off)
}

/// How the keys are split for a kernel; `None` if all are worked on at once.
///
/// With `num_splits` as that says. Otherwise the number that takes the least time ([`cost`]): above all,
/// enough ranges to keep every multiprocessor busy, and to share out the longest packed sequence.
pub(super) fn choose_split(
    valid: &ValidForward,
    (variant, rows): &(KernelVariant, TileRows),
    device: &DeviceProperties,
) -> Option<Split> {
    let kernel = variant.kernel;
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
    let work = cost::Work::new(valid, kernel, rows, device)?;
    let whole = work.cost(&split(1));
    let fits = |split: &Split| !valid.is_packed() || workspace_bytes(valid, split.ranges) <= MOST_BYTES;
    let candidates = (2..=MAX_SPLITS).map(split).filter(is_one).filter(fits);
    let best = candidates.min_by_key(|split| work.cost(split))?;
    (work.cost(&best) < whole).then_some(best)
}

/// Rows of o, those of all heads: at most 2^32.
pub(super) fn rows(valid: &ValidForward) -> u64 {
    valid.problem.o.shape[..3].iter().map(|&extent| extent as u64).product()
}

/// Bytes of o, reference and sum of all ranges of all rows.
fn workspace_bytes(valid: &ValidForward, ranges: u32) -> u64 {
    rows(valid) * u64::from(ranges) * part_row_bytes(valid.value_dim)
}

/// Bytes of o, reference and sum of a row in a range.
fn part_row_bytes(value_dim: u32) -> u64 {
    4 * (u64::from(part_columns(value_dim)) + 2)
}

/// The problem whose outputs are those of all ranges, dense in a workspace that begins at address 0, with
/// [`part_columns`] elements to a row of o.
pub(super) fn parts(
    valid: &ValidForward,
    pointers: &ForwardPointers,
    split: &Split,
) -> (ValidForward, ForwardPointers) {
    let o = layout_of_parts(valid, split.ranges);
    let &ForwardPointers { q, k, v, o: _, lse: _, cu_seqlens_q, cu_seqlens_k, score } = pointers;
    let pointers = ForwardPointers { q, k, v, o: 0, lse: 0, cu_seqlens_q, cu_seqlens_k, score };
    let problem = parts_of(&valid.problem, o);
    (valid.with(problem, valid.query_rows, valid.key_rows), pointers)
}

/// o of so many ranges as it stands in a workspace, f32 `[B, ranges, Hq, Sq, Dv]`: a batch of each.
pub(super) fn layout_of_parts(valid: &ValidForward, ranges: u32) -> Layout {
    let [batches, rows, heads, columns] = valid.problem.o.shape;
    let row_stride = i64::from(part_columns(columns as u32));
    let head_stride = row_stride * rows as i64;
    let shape = [batches * ranges as usize, rows, heads, columns];
    Layout { shape, strides: [head_stride * heads as i64, row_stride, head_stride, 1] }
}

/// The problem with all outputs in f32, o as it stands in the workspace.
fn parts_of(problem: &ForwardProblem, o: Layout) -> ForwardProblem {
    // Every field has a name here: of one that is new it must be said what it becomes.
    let &ForwardProblem {
        q,
        k,
        v,
        o: _,
        dtype,
        output_dtype: _,
        scale,
        softcap,
        mask,
        bias,
        attn_mask,
        alibi,
        has_sinks: _,
        dropout,
        sequences,
        wants_lse: _,
        num_splits,
        pack_gqa,
        precision,
    } = problem;
    ForwardProblem {
        q,
        k,
        v,
        o,
        dtype,
        output_dtype: Dtype::F32,
        scale,
        softcap,
        mask,
        bias,
        attn_mask,
        alibi,
        has_sinks: false,
        dropout,
        sequences,
        wants_lse: true,
        num_splits,
        pack_gqa,
        precision,
    }
}

/// Columns of a row of o in the workspace: whole reads of 16 bytes.
pub(super) const fn part_columns(columns: u32) -> u32 {
    columns.next_multiple_of(4)
}

/// What references are to be multiplied by: they are scores without the scale, or in units of the cap, or,
/// with what is added to scores, natural, unless the `main` kernel multiplies it.
fn reference_scale(valid: &ValidForward, main: KernelVariant) -> f32 {
    if valid.has_natural_scores() && !main.multiplies_slopes() {
        return 1.0;
    }
    valid.softcap.map_or(valid.scale, |softcap| softcap.cap)
}

/// How many rows a block of the last kernel takes: one for all of its warps together where there are so many
/// ranges that a warp would read them one after the other, and so few rows that the ranges are what is waited
/// for. Measured (H200, head dim 128), with the main kernel: 16 rows of 64 ranges 44.5 to 39.6 us, 512 rows
/// of 8 ranges 16.6 to 14.7, 768 rows 17.6 to 16.9, 1024 rows 13.2 to 12.9; packed, 32 of 1024 rows of 49
/// ranges and the others of one 167 to 163.
fn block_rows(rows: u64, ranges: u32, device: &DeviceProperties) -> u32 {
    if ranges > 4 && rows <= 16 * u64::from(device.multiprocessors) { 1 } else { COMBINE_WARPS }
}

/// The last kernel, for the outputs of `valid` at `pointers`, and parameters of the `main` kernel for
/// `split`: its outputs are in a workspace that begins at address 0.
///
/// # Errors
/// [`Error::GridTooLarge`], [`Error::KernelMissing`].
pub(super) fn combine(
    valid: &ValidForward,
    pointers: &ForwardPointers,
    split: &Split,
    main: &mut ForwardPlan,
    device: &DeviceProperties,
) -> Result<CombinePlan> {
    let Split { ranges, keys } = *split;
    let (variant, blocks) = combine_kernel(valid, ranges, main.variant.kernel.arch, device)?;
    let params = &mut main.params;
    let combine = CombineParams {
        cu_seqlens_q: params.cu_seqlens_q,
        cu_seqlens_k: params.cu_seqlens_k,
        split_keys: keys,
        kept: params.score.dropout.scale,
        ..combine_params(valid, pointers, ranges, main.variant)
    };
    (params.splits, params.split_keys) = (ranges, keys);
    to_parts(valid, params, [combine.part_o, combine.part_statistics]);
    let workspace_bytes = workspace_bytes(valid, ranges);
    Ok(CombinePlan { variant, blocks, params: combine, workspace_bytes })
}

/// Has the main kernel of a pass write o in f32, and reference and sum of each row, dense from these
/// addresses on.
pub(super) fn to_parts(valid: &ValidForward, params: &mut ForwardParams, [o, statistics]: [u64; 2]) {
    let [_, query_rows, heads, _] = valid.problem.o.shape;
    if valid.problem.output_dtype != Dtype::F32 {
        params.output_f32 = OUTPUT_F32_FOR_NOW;
    }
    (params.o.address, params.lse) = (o, statistics);
    params.lse_batch_stride = (heads * query_rows) as i64;
    params.lse_head_stride = query_rows as i64;
}

/// The kernel that combines `ranges` ranges of keys behind a main kernel for `arch`, and its blocks.
///
/// # Errors
/// [`Error::GridTooLarge`], [`Error::KernelMissing`].
fn combine_kernel(
    valid: &ValidForward,
    ranges: u32,
    arch: Arch,
    device: &DeviceProperties,
) -> Result<(KernelVariant, u32)> {
    let problem = &valid.problem;
    let block_rows = block_rows(rows(valid), ranges, device);
    let what = format!("groups of {block_rows} rows of o");
    let blocks = count_blocks(rows(valid).div_ceil(block_rows.into()) as u32, &what, 1, 1)?;
    // That for the target of the main kernel, if there is one of its own.
    let kernel = KERNELS
        .iter()
        .filter(|kernel| {
            let KernelSpec { family, dtype, query_rows, .. } = **kernel;
            (family, dtype, query_rows) == (Family::ForwardCombine, problem.dtype, block_rows)
        })
        .max_by_key(|kernel| kernel.arch == arch)
        .ok_or_else(|| Error::KernelMissing {
            device: device.name.clone(),
            family: super::family_name(Family::ForwardCombine),
            dtype: problem.dtype.name(),
            head_dim: valid.value_dim,
            reason: "there is none that combines ranges of keys".to_owned(),
        })?;
    Ok((kernel.into(), blocks))
}

/// What the combining kernel is told of `ranges` parts in a workspace that begins at address 0, where
/// sequences are not packed and all keys are in some range.
fn combine_params(
    valid: &ValidForward,
    pointers: &ForwardPointers,
    ranges: u32,
    main: KernelVariant,
) -> CombineParams {
    let problem = &valid.problem;
    let columns = part_columns(valid.value_dim);
    let [_, query_rows, ..] = problem.o.shape;
    let [lse_batch_stride, lse_head_stride] = valid.lse_strides();
    let is_aligned = problem.o.rows_aligned(pointers.o, problem.output_dtype, 16);
    CombineParams {
        o: view(pointers.o, &problem.o),
        lse: if problem.wants_lse { pointers.lse } else { 0 },
        lse_batch_stride,
        lse_head_stride,
        part_o: 0,
        part_statistics: rows(valid) * u64::from(ranges) * 4 * u64::from(columns),
        cu_seqlens_q: 0,
        cu_seqlens_k: 0,
        rows: rows(valid) as u32,
        batches: valid.batches,
        query_heads: valid.query_heads,
        query_rows: query_rows as u32,
        value_dim: valid.value_dim,
        splits: ranges,
        split_keys: 0,
        sinks: if problem.has_sinks { pointers.score.sinks } else { 0 },
        scale: reference_scale(valid, main),
        output_f32: u32::from(problem.output_dtype == Dtype::F32),
        is_aligned: u32::from(is_aligned),
        kept: 1.0,
        reserved: 0,
    }
}
