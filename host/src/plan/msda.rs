//! What is decided for multi-scale deformable attention: a pure function, as for attention.

use super::backward::write_launches;
use super::{
    Access, Arch, Family, KERNELS, KernelLaunch, KernelSpec, Tensor, check_pointer, choose_access,
    count_blocks, view,
};
use crate::driver::{DevicePointer, DeviceProperties};
use crate::error::{Error, Result};
use crate::problem::{Layout, Mode, Padding, ValidMsda, ValidMsdaBackward};
use kernels_gpu::abi::{
    Dtype, MSDA_BLOCKS, MSDA_MAX_LEVELS, MSDA_SMALL_THREADS, MsdaLevel, MsdaParams, MsdaStage,
    TensorView,
};
use std::fmt;

/// Tiles of queries that a block has at least, if there are more than one: a few warps hide each other's
/// waiting, and blocks on all multiprocessors have more of the memory's bandwidth.
const LEAST_TILES: u64 = 4;
/// Warps that sort points on a multiprocessor, and the fewest points worth one.
const SORTING_WARPS: u64 = 16;
const LEAST_CHUNK: u64 = 1024;
/// What parts of the workspace begin on a multiple of.
const ALIGNMENT: u64 = 256;

/// Device addresses of the tensors of a forward, of element (0, 0, 0, 0) each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MsdaPointers {
    /// `[B, cells, H, C]`.
    pub value: DevicePointer,
    /// `[B, N, H, L, P, 2]`.
    pub locations: DevicePointer,
    /// `[B, N, H, L, P]`.
    pub weights: DevicePointer,
    /// `[B, N, H, C]`, written.
    pub o: DevicePointer,
}

/// Device addresses of the tensors of a backward, of element (0, 0, 0, 0) each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MsdaBackwardPointers {
    /// `[B, cells, H, C]`.
    pub value: DevicePointer,
    /// `[B, N, H, L, P, 2]`.
    pub locations: DevicePointer,
    /// `[B, N, H, L, P]`.
    pub weights: DevicePointer,
    /// `[B, N, H, C]`.
    pub d_o: DevicePointer,
    /// `[B, cells, H, C]`, written.
    pub d_value: DevicePointer,
    /// `[B, N, H, L, P, 2]`, written.
    pub d_locations: DevicePointer,
    /// `[B, N, H, L, P]`, written.
    pub d_weights: DevicePointer,
}

/// Everything that launching a pass takes, except the workspace. Printable: `{}` is a line per kernel, with
/// the reasons `{:#}`.
#[derive(Clone, Debug, PartialEq)]
pub struct MsdaPlan {
    /// The kernels in their order; none when there is nothing to compute.
    pub launches: Vec<KernelLaunch>,
    /// The parameter of all of them; addresses in the workspace are offsets from its start.
    pub params: MsdaParams,
    /// Why these kernels, a sentence each.
    pub reasons: Vec<String>,
    workspace_bytes: u64,
}

impl MsdaPlan {
    /// What the address of the workspace must be a multiple of.
    pub const WORKSPACE_ALIGNMENT: u32 = ALIGNMENT as u32;

    /// Device memory that the kernels need between them. Its contents do not matter before or after.
    pub fn workspace_bytes(&self) -> u64 {
        self.workspace_bytes
    }

    /// The parameter of the kernels, with a workspace of this many bytes at this address.
    ///
    /// # Errors
    /// [`Error::WorkspaceTooSmall`], [`Error::NullPointer`], [`Error::Misaligned`].
    pub fn params_with(&self, workspace: DevicePointer, bytes: u64) -> Result<MsdaParams> {
        let (expected, alignment) = (self.workspace_bytes, MsdaPlan::WORKSPACE_ALIGNMENT);
        let mut params = self.params;
        if expected == 0 {
            return Ok(params);
        }
        if bytes < expected {
            return Err(Error::WorkspaceTooSmall { expected, got: bytes });
        }
        if workspace == 0 {
            let elements = u128::from(expected) / 4;
            return Err(Error::NullPointer { argument: "workspace", elements });
        }
        if !workspace.is_multiple_of(ALIGNMENT) {
            return Err(Error::Misaligned { argument: "workspace", alignment, address: workspace });
        }
        if self.launches.iter().any(|launch| is_stage(launch, MsdaStage::Gather)) {
            for address in [&mut params.counts, &mut params.bin_starts, &mut params.entries] {
                *address += workspace;
            }
        } else {
            params.sums.address += workspace;
        }
        Ok(params)
    }
}

fn is_stage(launch: &KernelLaunch, stage: MsdaStage) -> bool {
    launch.variant.kernel.family == Family::Msda(stage)
}

impl fmt::Display for MsdaPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_launches(f, &self.launches)?;
        if f.alternate() {
            write!(f, "\n  {} bytes of workspace", self.workspace_bytes)?;
            self.reasons.iter().try_for_each(|reason| write!(f, "\n  {reason}"))?;
        }
        Ok(())
    }
}

/// Plans a forward pass.
///
/// # Errors
/// [`Error::NullPointer`], [`Error::Misaligned`].
pub fn plan_msda_forward(
    valid: &ValidMsda,
    device: &DeviceProperties,
    pointers: &MsdaPointers,
) -> Result<MsdaPlan> {
    let problem = &valid.problem;
    let mut reasons = Vec::new();
    let value = tensor("value", &problem.value, pointers.value, problem.dtype);
    let o = tensor("o", &problem.o, pointers.o, problem.dtype);
    value.check()?;
    o.check()?;
    check_points(valid, pointers.locations, pointers.weights)?;
    let access = access(valid, &[value, o], &mut reasons);
    let mut params = params(valid, device, access);
    params.value = view(pointers.value, &problem.value);
    params.locations = view(pointers.locations, &problem.locations);
    params.weights = view(pointers.weights, &problem.weights);
    params.output = view(pointers.o, &problem.o);
    let mut launches = Vec::new();
    if !valid.is_empty() {
        launches.push(sampling(MsdaStage::Forward, valid, access, &mut params, device)?);
    }
    Ok(MsdaPlan { launches, params, reasons, workspace_bytes: 0 })
}

/// Plans a backward pass.
///
/// # Errors
/// [`Error::NullPointer`], [`Error::Misaligned`], [`Error::GridTooLarge`], [`Error::WorkspaceTooLarge`], and
/// of the deterministic mode [`Error::SizeRange`] of levels with too many bins.
pub fn plan_msda_backward(
    valid: &ValidMsdaBackward,
    device: &DeviceProperties,
    pointers: &MsdaBackwardPointers,
) -> Result<MsdaPlan> {
    let (problem, forward) = (&valid.problem, &valid.forward);
    let of = &problem.forward;
    let mut reasons = Vec::new();
    let value = tensor("value", &of.value, pointers.value, of.dtype);
    let d_o = tensor("do", &problem.d_o, pointers.d_o, of.dtype);
    let d_value = tensor("dvalue", &problem.d_value, pointers.d_value, of.dtype);
    let d_locations =
        tensor("dlocations", &problem.d_locations, pointers.d_locations, of.locations_dtype);
    let d_weights = tensor("dweights", &problem.d_weights, pointers.d_weights, of.weights_dtype);
    let all = [value, d_o, d_value, d_locations, d_weights];
    all.iter().try_for_each(Tensor::check)?;
    check_points(forward, pointers.locations, pointers.weights)?;
    let [value, d_o, d_value, ..] = all;
    let access = access(forward, &[value, d_o, d_value], &mut reasons);
    let mut params = params(forward, device, access);
    params.value = view(pointers.value, &of.value);
    params.locations = view(pointers.locations, &of.locations);
    params.weights = view(pointers.weights, &of.weights);
    params.output = view(pointers.d_o, &problem.d_o);
    params.d_value = view(pointers.d_value, &problem.d_value);
    params.d_locations = view(pointers.d_locations, &problem.d_locations);
    params.d_weights = view(pointers.d_weights, &problem.d_weights);
    let has_points = !forward.is_empty() && forward.points > 0;
    let mut plan = MsdaPlan { launches: Vec::new(), params, reasons, workspace_bytes: 0 };
    if of.value.elements() == 0 {
        return Ok(plan);
    }
    if has_points && problem.mode == Mode::Deterministic {
        plan.add_in_order(forward, access, device)?;
    } else {
        plan.add_sums(valid, access, has_points.then_some(device))?;
    }
    Ok(plan)
}

impl MsdaPlan {
    /// Gradients of value are added up as they come: zeros, the main kernel if there are points, and the
    /// conversion to 16 bits.
    fn add_sums(
        &mut self,
        valid: &ValidMsdaBackward,
        access: Access,
        device: Option<&DeviceProperties>,
    ) -> Result<()> {
        let (forward, dtype) = (&valid.forward, valid.problem.forward.dtype);
        let [batches, _, heads, channels] = forward.sizes();
        let params = &mut self.params;
        params.sums = params.d_value;
        if dtype != Dtype::F32 {
            let dense = Layout::bshd([batches, forward.cells, heads, channels]);
            params.sums = view(0, &dense);
            self.workspace_bytes = workspace_bytes(dense.elements().saturating_mul(4))?;
        }
        let is_multiple = |stride: i64| stride % 4 == 0;
        let TensorView { address, batch_stride, row_stride, head_stride } = params.sums;
        let aligned = channels.is_multiple_of(4)
            && address.is_multiple_of(16)
            && [batch_stride, row_stride, head_stride].into_iter().all(is_multiple);
        params.sums_aligned = u32::from(aligned);
        let groups = (forward.cells as u32).div_ceil(MSDA_SMALL_THREADS / 32);
        let blocks = count_blocks(groups, "groups of cells", batches as u32, 1)?;
        self.launches.push(launch(MsdaStage::Zero, Dtype::F32, Access::Element, blocks));
        if let Some(device) = device {
            let (major, minor) = device.compute_capability;
            let is_wide = aligned && access == Access::Vector16;
            let wide = wide_sums(dtype).filter(|kernel| is_wide && kernel.arch.runs_on(major, minor));
            if wide.is_some() {
                self.reasons
                    .push("the device is Hopper: gradients of value are added by 16 bytes".into());
                let lanes = lanes(channels, 4);
                (self.params.lanes, self.params.lanes_log2) = (lanes, lanes.ilog2());
            }
            let mut main = sampling(MsdaStage::Backward, forward, access, &mut self.params, device)?;
            if let Some(kernel) = wide {
                main.variant = kernel.into();
            }
            self.launches.push(main);
        }
        if dtype != Dtype::F32 {
            self.launches.push(launch(MsdaStage::Convert, dtype, Access::Element, blocks));
        }
        Ok(())
    }

    /// Gradients of value are added up in the order of points, cell by cell.
    fn add_in_order(
        &mut self,
        forward: &ValidMsda,
        access: Access,
        device: &DeviceProperties,
    ) -> Result<()> {
        let dtype = forward.problem.dtype;
        let [batches, queries, heads, _] = forward.sizes();
        let bins = forward.bins();
        let max = i32::MAX as u64;
        if bins as u64 > max {
            let (argument, dimension) = ("shapes", "cells, with a row and a column more a level");
            return Err(Error::SizeRange { argument, dimension, min: 0, max, got: bins });
        }
        let main = sampling(MsdaStage::Backward, forward, access, &mut self.params, device)?;
        let (pairs, points) = ((batches * heads) as u64, (queries * forward.points) as u64);
        let warps = u64::from(device.multiprocessors.max(1)) * SORTING_WARPS;
        let chunks = warps.div_ceil(pairs).min(points.div_ceil(LEAST_CHUNK)).max(1);
        let chunk_points = points.div_ceil(chunks).next_multiple_of(32);
        let chunks = points.div_ceil(chunk_points);
        let params = &mut self.params;
        params.bins = bins as u32;
        (params.chunks, params.chunk_points) = (chunks as u32, chunk_points as u32);
        // 64 bits do not hold every product of two of these.
        let words = |a: u64, b: u64| 4 * u128::from(a) * u128::from(b);
        let counts_bytes = words(pairs * chunks, bins as u64).next_multiple_of(ALIGNMENT.into());
        let starts_bytes = words(pairs, bins as u64 + 1).next_multiple_of(ALIGNMENT.into());
        let entries_bytes = words(pairs, 4 * points);
        self.workspace_bytes = workspace_bytes(counts_bytes + starts_bytes + entries_bytes)?;
        // They fit, as the whole does.
        params.bin_starts = counts_bytes as u64;
        params.entries = (counts_bytes + starts_bytes) as u64;
        let warps = MSDA_SMALL_THREADS / 32;
        let workers = count_blocks(chunks as u32, "chunks of points", heads as u32, batches as u32)?;
        let sort = workers.div_ceil(warps);
        let groups = (forward.cells as u32).div_ceil(MSDA_SMALL_THREADS / params.lanes);
        let gather = count_blocks(groups, "groups of cells", heads as u32, batches as u32)?;
        self.launches = vec![
            main,
            launch(MsdaStage::Count, dtype, Access::Element, sort),
            launch(MsdaStage::Scan, Dtype::F32, Access::Element, pairs as u32),
            launch(MsdaStage::Fill, dtype, Access::Element, sort),
            launch(MsdaStage::Gather, dtype, access, gather),
        ];
        self.reasons.push(format!(
            "deterministic: points sorted by cell, in {chunks} chunks of {chunk_points} a head"
        ));
        Ok(())
    }
}

/// A workspace of so many bytes, as far as addresses and signed offsets go.
fn workspace_bytes(bytes: u128) -> Result<u64> {
    let max = i64::MAX as u64;
    u64::try_from(bytes)
        .ok()
        .filter(|&bytes| bytes <= max)
        .ok_or(Error::WorkspaceTooLarge { max, got: bytes })
}

fn tensor<'l>(
    argument: &'static str,
    layout: &'l Layout,
    address: DevicePointer,
    dtype: Dtype,
) -> Tensor<'l> {
    Tensor { argument, layout, address, dtype }
}

fn check_points(valid: &ValidMsda, locations: DevicePointer, weights: DevicePointer) -> Result<()> {
    let problem = &valid.problem;
    let (a, b) = (&problem.locations, &problem.weights);
    check_pointer("locations", locations, problem.locations_dtype, a.elements())?;
    check_pointer("weights", weights, problem.weights_dtype, b.elements())
}

/// 16 bytes at a time if every row starts on 16 bytes and has a multiple of that.
fn access(valid: &ValidMsda, tensors: &[Tensor<'_>], reasons: &mut Vec<String>) -> Access {
    let [.., channels] = valid.sizes();
    let bytes = channels * valid.problem.dtype.bytes() as usize;
    if !bytes.is_multiple_of(16) {
        reasons.push(format!("element access: {channels} channels are no multiple of 16 bytes"));
        return Access::Element;
    }
    choose_access(tensors, reasons)
}

/// The parameters that do not depend on addresses.
fn params(valid: &ValidMsda, device: &DeviceProperties, access: Access) -> MsdaParams {
    let problem = &valid.problem;
    let [batches, queries, heads, channels] = valid.sizes();
    let none = TensorView { address: 0, batch_stride: 0, row_stride: 0, head_stride: 0 };
    let strip = match access {
        Access::Vector16 => 16 / problem.dtype.bytes() as usize,
        Access::Element => 1,
    };
    let lanes = lanes(channels, strip);
    let mut level = [MsdaLevel::default(); MSDA_MAX_LEVELS];
    level[..valid.levels.len()].copy_from_slice(&valid.levels);
    MsdaParams {
        value: none,
        locations: none,
        weights: none,
        output: none,
        d_value: none,
        d_locations: none,
        d_weights: none,
        sums: none,
        counts: 0,
        bin_starts: 0,
        entries: 0,
        batches: batches as u32,
        queries: queries as u32,
        heads: heads as u32,
        channels: channels as u32,
        cells: valid.cells as u32,
        levels: valid.levels.len() as u32,
        level_points: problem.level_points as u32,
        points: valid.points as u32,
        lanes,
        lanes_log2: lanes.ilog2(),
        block_columns: device.multiprocessors.max(1),
        block_rows: MSDA_BLOCKS,
        align_corners: u32::from(problem.align_corners),
        border: u32::from(problem.padding == Padding::Border),
        locations_f32: u32::from(problem.locations_dtype == Dtype::F32),
        weights_f32: u32::from(problem.weights_dtype == Dtype::F32),
        bins: 0,
        chunks: 0,
        chunk_points: 0,
        sums_aligned: 0,
        level,
    }
}

/// Lanes of a query, each of which has `strip` channels at a time.
fn lanes(channels: usize, strip: usize) -> u32 {
    channels.div_ceil(strip).next_power_of_two().clamp(2, 32) as u32
}

/// A kernel that samples, and how its blocks share out the tiles of queries: as many as run at once, or
/// fewer.
fn sampling(
    stage: MsdaStage,
    valid: &ValidMsda,
    access: Access,
    params: &mut MsdaParams,
    device: &DeviceProperties,
) -> Result<KernelLaunch> {
    let [batches, queries, heads, _] = valid.sizes();
    let tiles = (queries as u64).div_ceil(u64::from(32 / params.lanes)) * (batches * heads) as u64;
    let wanted = tiles.div_ceil(LEAST_TILES);
    let columns = u64::from(device.multiprocessors.max(1)).min(wanted);
    let rows = u64::from(MSDA_BLOCKS).min(wanted.div_ceil(columns));
    (params.block_columns, params.block_rows) = (columns as u32, rows as u32);
    let blocks = count_blocks(params.block_columns, "columns of blocks", params.block_rows, 1)?;
    Ok(launch(stage, valid.problem.dtype, access, blocks))
}

/// The main kernel of a backward that adds 16 bytes at a time to sums.
fn wide_sums(dtype: Dtype) -> Option<&'static KernelSpec> {
    let is_it = |spec: &&KernelSpec| {
        spec.family == Family::Msda(MsdaStage::Backward)
            && (spec.arch, spec.dtype) == (Arch::Sm90a, dtype)
    };
    KERNELS.iter().find(is_it)
}

/// The kernel of a stage that every device runs. There is one for every element type and access that a plan
/// asks for.
fn launch(stage: MsdaStage, dtype: Dtype, access: Access, blocks: u32) -> KernelLaunch {
    let is_it = |spec: &&KernelSpec| {
        (spec.family, spec.dtype, spec.access) == (Family::Msda(stage), dtype, access)
            && spec.arch == Arch::Sm80
    };
    let kernel = KERNELS.iter().find(is_it).expect("the table has every stage");
    KernelLaunch { variant: kernel.into(), blocks }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_every_stage_that_a_plan_asks_for() {
        for dtype in [Dtype::Bf16, Dtype::F16, Dtype::F32] {
            for access in [Access::Vector16, Access::Element] {
                for stage in [MsdaStage::Forward, MsdaStage::Backward, MsdaStage::Gather] {
                    launch(stage, dtype, access, 1);
                }
            }
            launch(MsdaStage::Count, dtype, Access::Element, 1);
            launch(MsdaStage::Fill, dtype, Access::Element, 1);
            if dtype != Dtype::F32 {
                launch(MsdaStage::Convert, dtype, Access::Element, 1);
            }
        }
        launch(MsdaStage::Zero, Dtype::F32, Access::Element, 1);
        launch(MsdaStage::Scan, Dtype::F32, Access::Element, 1);
    }
}
