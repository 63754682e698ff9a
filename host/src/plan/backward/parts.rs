//! A backward of f32 in two f16 parts: operands are made parts in the workspace, and a kernel multiplies
//! these. Where the parts would not be as exact as f32, a word in the workspace says so: then the kernels of
//! fused multiply-adds that follow compute all of it, and those of parts return at once.

use super::super::operands::{self, Operands, Workspace};
use super::super::{count_blocks, view};
use super::again::AgainLaunches;
use super::{BackwardPlan, BackwardPointers, KernelLaunch, sibling};
use crate::driver::{DevicePointer, DeviceProperties};
use crate::error::Result;
use crate::problem::{ForwardProblem, ValidBackward, ValidForward};
use kernels_gpu::abi::{
    Access, BackwardParams, BackwardPartsParams, Family, KERNELS, KernelSpec, KernelVariant,
    SPLIT_MOST_DP, SPLIT_MOST_SCORE, SPLIT_TENSORS, SplitParams, TensorView, panel_columns,
};

/// What a backward of f32 in two parts has beside one of fused multiply-adds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BackwardOperands {
    /// The parameter of the kernels that measure and split. What is in the workspace counts from its part of
    /// it.
    pub params: SplitParams,
    /// Parts of q, k, v and dO. Likewise.
    pub views: [TensorView; SPLIT_TENSORS],
    /// [`BackwardParams::key_blocks`] of the kernel that multiplies them.
    pub key_blocks: u32,
    /// Bytes of its part of the workspace.
    pub workspace_bytes: u64,
}

impl BackwardOperands {
    /// The parameters with its part of the workspace at `address`: of the kernels that split, and of those
    /// for parts, which are told `backward` beside.
    pub(crate) fn at(
        &self,
        address: DevicePointer,
        backward: BackwardParams,
    ) -> (SplitParams, BackwardPartsParams) {
        let mut params = self.params;
        for tensor in &mut params.tensors {
            tensor.parts += address;
            tensor.records += address;
        }
        params.gradient_units += address;
        params.turn += address;
        let [q, k, v, d_o] =
            self.views.map(|view| TensorView { address: view.address + address, ..view });
        let backward = BackwardParams { q, k, v, d_o, key_blocks: self.key_blocks, ..backward };
        let (units, turn) = (params.gradient_units, params.turn);
        (params, BackwardPartsParams { backward, units, turn })
    }
}

impl BackwardPlan {
    /// Where the operands' part of the workspace begins.
    pub(super) fn operands_begin(&self) -> u64 {
        self.sums_end().next_multiple_of(BackwardPlan::WORKSPACE_ALIGNMENT.into())
    }

    /// Where it ends, or what stands before it, if it has none.
    pub(super) fn operands_end(&self) -> u64 {
        let operands = self.operands.as_ref();
        operands.map_or(self.sums_end(), |operands| self.operands_begin() + operands.workspace_bytes)
    }

    /// The parameters of kernels that make and multiply parts, if it has any, with a workspace at
    /// `workspace` and what [`BackwardPlan::params_with`] gives for it.
    pub(crate) fn operands_at(
        &self,
        workspace: DevicePointer,
        params: BackwardParams,
    ) -> Option<(SplitParams, BackwardPartsParams)> {
        let operands = self.operands.as_ref()?;
        Some(operands.at(workspace + self.operands_begin(), params))
    }
}

/// The kernel by which the forward before a backward has multiplied parts, or why it has not.
pub(super) fn forward_kernel(
    forward: &ValidForward,
    pointers: &BackwardPointers,
    device: &DeviceProperties,
) -> Result<&'static KernelSpec, String> {
    // There is an lse, whatever the problem of the backward says of it.
    let problem = ForwardProblem { wants_lse: true, ..forward.problem };
    let forward = forward.with(problem, forward.query_rows, forward.key_rows);
    let at = [pointers.q, pointers.k, pointers.v, pointers.o];
    operands::forward_kernel(&forward, at, device)
}

/// The kernel that multiplies parts, or why there is none, behind a forward of which `of_forward` says the
/// same. `exact` is the one of fused multiply-adds.
pub(super) fn kernel_for(
    valid: &ValidBackward,
    of_forward: Result<&'static KernelSpec, String>,
    exact: &KernelSpec,
    device: &DeviceProperties,
) -> Result<&'static KernelSpec, String> {
    // A score that is off otherwise than that of the forward is not as exact a p, where logits are large.
    of_forward?;
    if valid.forward.is_empty() {
        return Err("there are no queries".to_owned());
    }
    if exact.access != Access::Vector16 {
        return Err("rows do not start on 16 bytes".to_owned());
    }
    let (major, minor) = device.compute_capability;
    // What both add dq up in is the same.
    let runs = |spec: &&KernelSpec| {
        spec.multiplies_parts
            && spec.family == Family::Backward
            && spec.head_dim == exact.head_dim
            && spec.arch.runs_on(major, minor)
            && spec.shared_bytes <= device.shared_bytes_per_block
    };
    KERNELS.iter().find(runs).ok_or_else(|| operands::no_kernel(device))
}

/// Parts of the operands of a problem, for the kernel that multiplies them, and how many blocks make them;
/// `exact` is what the one of fused multiply-adds is told.
///
/// # Errors
/// [`GridTooLarge`](crate::Error::GridTooLarge).
pub(super) fn operands(
    valid: &ValidBackward,
    pointers: &BackwardPointers,
    kernel: &KernelSpec,
    exact: &BackwardParams,
) -> Result<(BackwardOperands, u32)> {
    let (problem, forward) = (&valid.problem.forward, &valid.forward);
    let mut workspace = Workspace::default();
    let turn = workspace.add(8);
    let pairs = problem.q.shape[0] as u64 * problem.q.shape[2] as u64;
    let gradient_units = workspace.add(32 * pairs);
    let operands = [
        (&problem.q, pointers.q),
        (&problem.k, pointers.k),
        (&problem.v, pointers.v),
        (&valid.problem.d_o, pointers.d_o),
    ];
    let columns = panel_columns(kernel.head_dim);
    let Operands { tensors, layouts, blocks } = Operands::of(&operands, columns, &mut workspace)?;
    let mut views = [TensorView::default(); SPLIT_TENSORS];
    for ((place, tensor), layout) in views.iter_mut().zip(&tensors).zip(&layouts) {
        *place = view(tensor.parts, layout);
    }
    let params = SplitParams {
        tensors,
        gradient_units,
        turn,
        padded_columns: columns,
        group_size: forward.group_size,
        most_product: SPLIT_MOST_SCORE / (forward.scale.abs() * forward.head_dim as f32),
        most_gradient_product: SPLIT_MOST_DP / forward.value_dim as f32,
        ..SplitParams::default()
    };
    // Accumulators of dq that are apart are the same for both; else each has a block for each of its tiles.
    let tiles = exact.key_rows.div_ceil(kernel.key_rows);
    let key_blocks = if exact.split_stride == 0 { tiles } else { exact.key_blocks };
    let workspace_bytes = workspace.bytes;
    Ok((BackwardOperands { params, views, key_blocks, workspace_bytes }, blocks))
}

/// The launches of a pass with parts, from those of the one of fused multiply-adds: first the kernels that
/// make parts, of which there are `blocks` blocks; then a forward, if numbers need fused multiply-adds; then
/// those that multiply parts, with statistics of the given o and lse, and those of fused multiply-adds.
///
/// # Errors
/// [`GridTooLarge`](crate::Error::GridTooLarge), [`KernelMissing`](crate::Error::KernelMissing).
pub(super) fn launches(
    exact: &[KernelLaunch],
    main: KernelVariant,
    (operands, blocks): (&BackwardOperands, u32),
    again: &AgainLaunches,
    params: &BackwardParams,
) -> Result<Vec<KernelLaunch>> {
    let &BackwardParams { batches, query_heads, query_rows, .. } = params;
    let kernel = main.kernel;
    let what = format!("groups of tiles of {} keys", kernel.key_rows);
    let key_heads = query_heads / params.group_size;
    let main_blocks = count_blocks(operands.key_blocks, &what, key_heads, batches)?;
    let what = format!("tiles of {} query rows", kernel.query_rows);
    let tiles = query_rows.div_ceil(kernel.query_rows);
    let convert_blocks = count_blocks(tiles, &what, query_heads, batches)?;
    let convert = sibling(kernel, Family::BackwardConvert)?;
    let making = [Family::MeasureOperands, Family::SplitOperands];
    let making = making.map(|family| KernelLaunch { variant: operands::only(family), blocks });
    let of_parts = exact.iter().map(|launch| match launch.variant.kernel.family {
        Family::Backward => KernelLaunch { variant: main, blocks: main_blocks },
        Family::BackwardConvert => KernelLaunch { variant: convert.into(), blocks: convert_blocks },
        _ => *launch,
    });
    let first = making.into_iter().chain(again.fills).chain([again.forward]);
    Ok(first.chain(of_parts).chain(exact.iter().copied()).collect())
}
