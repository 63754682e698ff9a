//! Dynamic masks: which kernels choose keys, and whether these are gathered.

mod gather;

pub(crate) use gather::{GatherPlan, GatherPointers, Rows};

use super::forward::check_offsets;
use super::{ForwardPointers, check_pointer, family_name};
use crate::driver::{DevicePointer, DeviceProperties};
use crate::error::{Error, Result};
use crate::problem::{
    BackwardProblem, Bias, DynamicMask, DynamicRule, DynamicWay, ForwardProblem, MaskShape, ScoreLayout,
    ValidForward, no_bias,
};
use kernels_gpu::abi::{
    Dtype, DynamicStage, Family, KERNELS, KernelSpec, KernelVariant, MASK_BITS_THREADS,
    MaskBlocksParams, ScoreView, SelectParams,
};

/// How attention under a dynamic mask goes about it. Made by [`plan_dynamic`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct DynamicPlan {
    /// The rule.
    pub mask: DynamicMask,
    /// The shape of the boolean mask that is made of the bias.
    pub shape: MaskShape,
    /// Whether kept keys are gathered.
    pub way: DynamicWay,
    /// Why.
    pub reason: String,
    /// Gathered keys of a choice; 0 unless they are gathered.
    pub capacity: usize,
    /// The kernel that chooses keys.
    pub select: KernelVariant,
    /// Blocks of it.
    pub select_blocks: u32,
}

/// Decides: a pure function of the problem and the device. The padding mask, if there is one, is
/// [`ForwardProblem::attn_mask`].
///
/// # Errors
/// What [`ForwardProblem::dynamic_mask_shape`] refuses, [`Error::KernelMissing`], and [`Error::DynamicMask`]
/// if keys are to be gathered and cannot.
pub fn plan_dynamic(
    valid: &ValidForward,
    mask: &DynamicMask,
    device: &DeviceProperties,
) -> Result<DynamicPlan> {
    let problem = &valid.problem;
    let shape = problem.dynamic_mask_shape(mask)?;
    let dtype = problem.bias.map_or(problem.dtype, |bias| bias.dtype);
    let select = select_kernel(&shape, dtype, device)?;
    let rows = rows(&shape);
    let select_blocks = rows.div_ceil(select.kernel.query_rows);
    let capacity = gathered_keys(valid, mask, &shape);
    let is_nothing = shape.words() == 0 || valid.is_empty();
    let (way, reason) = match (mask.way, capacity) {
        _ if is_nothing => (DynamicWay::Mask, "there is nothing to choose from".to_owned()),
        (Some(DynamicWay::Gather), Err(why)) => {
            let expected = "no way, or to mask, since keys cannot be gathered";
            return Err(Error::DynamicMask(expected, format!("to gather: {why}")));
        }
        (Some(way), _) => (way, "as asked for".to_owned()),
        (None, Err(why)) => (DynamicWay::Mask, why.to_owned()),
        (None, Ok(capacity)) => cheaper(valid, capacity),
    };
    let capacity = if way == DynamicWay::Gather { capacity.unwrap_or(0) } else { 0 };
    Ok(DynamicPlan { mask: *mask, shape, way, reason, capacity, select, select_blocks })
}

/// Rows of bits: fewer than words, which fit a u32.
fn rows(shape: &MaskShape) -> u32 {
    if shape.words() == 0 { 0 } else { (shape.words() / shape.row_words() as u128) as u32 }
}

/// Of the kernels for a type of bias, one that has a row in registers, else the last: they stand in the order
/// of how many threads a row has. Of many rows each has as few as can be; of fewer than keep the device busy
/// as many as have words.
fn select_kernel(shape: &MaskShape, dtype: Dtype, device: &DeviceProperties) -> Result<KernelVariant> {
    let keys = shape.keys;
    let is_few = rows(shape) < 4 * device.multiprocessors;
    let is_one =
        |spec: &&KernelSpec| (spec.family, spec.dtype) == (Family::Dynamic(DynamicStage::Select), dtype);
    let fits = |spec: &&KernelSpec| spec.key_rows as usize >= keys;
    let has_work =
        |spec: &&KernelSpec| is_few && (spec.threads / spec.query_rows) as usize <= shape.row_words();
    let fitting = KERNELS.iter().filter(is_one).filter(fits);
    let found = fitting.clone().rfind(has_work).or_else(|| fitting.clone().next());
    let found = found.or_else(|| KERNELS.iter().rfind(is_one));
    runnable(found, dtype, device)
}

/// A kernel around gathered keys.
pub(crate) fn dynamic_kernel(stage: DynamicStage, device: &DeviceProperties) -> Result<KernelVariant> {
    let found = KERNELS.iter().find(|spec| spec.family == Family::Dynamic(stage));
    runnable(found, Dtype::F32, device)
}

fn runnable(
    found: Option<&'static KernelSpec>,
    dtype: Dtype,
    device: &DeviceProperties,
) -> Result<KernelVariant> {
    let (major, minor) = device.compute_capability;
    let found = found.filter(|spec| spec.arch.runs_on(major, minor));
    found.map(KernelVariant::from).ok_or_else(|| Error::KernelMissing {
        device: device.name.clone(),
        family: family_name(Family::Dynamic(DynamicStage::Select)),
        dtype: dtype.name(),
        head_dim: 0,
        reason: "there is none for its compute capability".to_owned(),
    })
}

/// How many keys are gathered of each choice, or why they cannot be.
fn gathered_keys(
    valid: &ValidForward,
    mask: &DynamicMask,
    shape: &MaskShape,
) -> std::result::Result<usize, &'static str> {
    let problem = &valid.problem;
    let Some(Bias { layout, .. }) = &problem.bias else { return Err("there is no bias") };
    let key_heads = problem.k.shape[2];
    if shape.queries != 1 || layout.shape[2] != 1 {
        return Err("the choice of keys is another one for each query");
    }
    if shape.heads != 1 && shape.heads != key_heads {
        return Err("query heads that share keys choose different ones");
    }
    if layout.shape != [shape.batches, shape.heads, 1, shape.keys] {
        return Err("the bias is the same for keys, heads or batches that the padding mask tells apart");
    }
    if valid.is_packed() {
        return Err("sequences are packed");
    }
    if problem.dropout.is_some() {
        return Err("dropout depends on where keys stand");
    }
    if problem.alibi.is_some() {
        return Err("distances of ALiBi depend on where keys stand");
    }
    let Some(capacity) = mask.most_kept(shape.keys) else {
        return Err("how many keys are kept is not known before they are chosen");
    };
    let seen = gather::seen_shape(valid, shape, capacity);
    if seen.words() > u128::from(u32::MAX) {
        return Err("a mask over gathered keys would have too many words");
    }
    if u128::from(valid.batches) * key_heads as u128 * shape.keys as u128 > u128::from(u32::MAX) {
        return Err("there are more keys than a grid of warps has");
    }
    Ok(capacity)
}

/// Fewer multiplications than this are done before the kernels that gather have been launched.
const WORTH_LAUNCHING: u128 = 10_000_000_000;

/// Query tiles whose passes over a key cost what gathering and scattering it does.
const TILES_OF_A_COPY: u128 = 4;

/// What is done for a kept key, against what is done for any.
fn cheaper(valid: &ValidForward, capacity: usize) -> (DynamicWay, String) {
    let keys = u128::from(valid.key_rows);
    let group_rows = u128::from(valid.query_rows) * u128::from(valid.group_size);
    let tiles = group_rows.div_ceil(128);
    let capacity_u128 = capacity as u128;
    let pairs = u128::from(valid.batches) * u128::from(valid.key_heads) * group_rows;
    let dims = u128::from(valid.head_dim + valid.value_dim);
    let saved = 2 * pairs * dims * keys.saturating_sub(capacity_u128);
    let of_all = format!("{capacity} of {keys} keys, the same ones for all queries");
    if saved < WORTH_LAUNCHING {
        (DynamicWay::Mask, format!("{of_all}, but the whole problem is too small to gather them first"))
    } else if capacity_u128 * (tiles + TILES_OF_A_COPY) < keys * tiles {
        (DynamicWay::Gather, format!("{of_all}: attention over these alone costs less"))
    } else {
        (DynamicWay::Mask, format!("{of_all}, but too few queries to gather them for"))
    }
}

impl DynamicPlan {
    /// The forward pass that the main kernels are asked: under a boolean mask, or over gathered keys.
    pub fn launched(&self, valid: &ValidForward) -> ForwardProblem {
        match self.way {
            DynamicWay::Mask => self.masked(&valid.problem),
            DynamicWay::Gather => self.gathered(valid).problem,
        }
    }

    /// The backward pass that they are asked.
    pub fn launched_backward(&self, valid: &ValidForward, problem: &BackwardProblem) -> BackwardProblem {
        match self.way {
            DynamicWay::Mask => BackwardProblem { forward: self.masked(&valid.problem), ..*problem },
            DynamicWay::Gather => self.gathered(valid).backward(problem),
        }
    }

    /// In words, with the reason.
    pub fn describe(&self) -> String {
        let DynamicPlan { mask, shape, way, reason, select, select_blocks, .. } = self;
        let MaskShape { batches, heads, queries, keys } = shape;
        let kernel = select.kernel;
        let registers =
            if kernel.key_rows as usize >= *keys { "in registers" } else { "read again for each bit" };
        format!(
            "dynamic mask {mask}: rows [{batches}, {heads}, {queries}] of {keys} keys, {} \
             ({select_blocks} blocks of {} rows, {registers})\n  way {}: {reason}",
            kernel.name,
            kernel.query_rows,
            way.name(),
        )
    }

    /// What the selecting kernel is told, and where bits and positions go; 0 for none of these.
    pub(crate) fn select_params(
        &self,
        valid: &ValidForward,
        pointers: &ForwardPointers,
        [bits, positions]: [DevicePointer; 2],
    ) -> Result<SelectParams> {
        let problem = &valid.problem;
        let MaskShape { heads, queries, keys, .. } = self.shape;
        let Some(Bias { layout, dtype }) = problem.bias else { return Err(no_bias()) };
        check_pointer("bias", pointers.score.bias, dtype, layout.elements())?;
        let bias = own_view(pointers.score.bias, &layout);
        let row_bytes = |stride: i64| stride.unsigned_abs() * u64::from(dtype.bytes());
        let starts = [bias.address, row_bytes(bias.batch_stride), row_bytes(bias.head_stride)];
        let is_aligned = bias.key_stride == 1
            && starts
                .into_iter()
                .chain([row_bytes(bias.query_stride)])
                .all(|start| start.is_multiple_of(16));
        check_offsets(valid, pointers.cu_seqlens_q, pointers.cu_seqlens_k)?;
        let offsets = |address: DevicePointer| if valid.is_packed() { address } else { 0 };
        let window = match self.mask.rule {
            DynamicRule::TopK { window } => u32::try_from(window).unwrap_or(u32::MAX),
            DynamicRule::Relu => 0,
        };
        Ok(SelectParams {
            bias,
            padding: self.padding(problem, pointers)?,
            bits,
            positions,
            counts: positions + 4 * u64::from(rows(&self.shape)) * self.capacity as u64,
            cu_seqlens_q: offsets(pointers.cu_seqlens_q),
            cu_seqlens_k: offsets(pointers.cu_seqlens_k),
            rows: rows(&self.shape),
            heads: heads as u32,
            queries: queries as u32,
            keys: keys as u32,
            words: self.shape.row_words() as u32,
            bias_group: (heads / layout.shape[1].max(1)).max(1) as u32,
            padding_group: self.padding_group(problem),
            window,
            relu: u32::from(self.mask.rule == DynamicRule::Relu),
            of_all_queries: u32::from(queries == 1),
            query_rows: valid.query_rows,
            bottom_right: u32::from(valid.bottom_right),
            window_left: valid.window_left,
            window_right: valid.window_right,
            is_aligned: u32::from(is_aligned),
            blocks_follow: u32::from(self.mask.block_size > 1),
            capacity: self.capacity as u32,
            reserved: 0,
        })
    }

    /// Heads of the result that share a head of the padding mask.
    fn padding_group(&self, problem: &ForwardProblem) -> u32 {
        let heads = problem.attn_mask.map_or(1, |padding| padding.heads.max(1));
        (self.shape.heads / heads).max(1) as u32
    }

    /// The padding mask's bits, in words of 32 keys.
    fn padding(&self, problem: &ForwardProblem, pointers: &ForwardPointers) -> Result<ScoreView> {
        let Some(padding) = problem.attn_mask else { return Ok(ScoreView::default()) };
        check_pointer("mask", pointers.score.mask_bits, Dtype::F32, padding.words())?;
        let MaskShape { batches, heads, queries, .. } = padding;
        let layout = ScoreLayout::dense([batches, heads, queries, padding.row_words()]);
        Ok(own_view(pointers.score.mask_bits, &layout))
    }

    /// What the kernel is told that makes blocks of bits, and how many blocks it has.
    pub(crate) fn block_params(
        &self,
        valid: &ValidForward,
        pointers: &ForwardPointers,
        [chosen, bits]: [DevicePointer; 2],
    ) -> Result<(MaskBlocksParams, u32)> {
        let MaskShape { heads, queries, keys, .. } = self.shape;
        let (rows, words) = (rows(&self.shape), self.shape.row_words() as u32);
        let params = MaskBlocksParams {
            chosen,
            bits,
            padding: self.padding(&valid.problem, pointers)?,
            cu_seqlens_k: if valid.is_packed() { pointers.cu_seqlens_k } else { 0 },
            rows,
            heads: heads as u32,
            queries: queries as u32,
            keys: keys as u32,
            words,
            padding_group: self.padding_group(&valid.problem),
            block_size: self.mask.block_size.min(keys.max(1)) as u32,
            reserved: 0,
        };
        Ok((params, (rows * words).div_ceil(MASK_BITS_THREADS)))
    }
}

/// The view of a tensor by its own heads; dimensions of 1 stand for all.
fn own_view(address: DevicePointer, layout: &ScoreLayout) -> ScoreView {
    let stride = |dimension: usize| {
        if layout.shape[dimension] <= 1 { 0 } else { layout.strides[dimension] }
    };
    ScoreView {
        address,
        batch_stride: stride(0),
        head_stride: stride(1),
        key_head_stride: 0,
        query_stride: stride(2),
        key_stride: stride(3),
    }
}
