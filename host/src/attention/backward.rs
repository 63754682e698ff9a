//! The backward pass on device memory.

use super::{Params as _, encode};
use crate::buffer::{DeviceBuffer, InDeviceMemory as _};
use crate::device::Device;
use crate::driver::{DevicePointer, Driver, Queued, Stream};
use crate::error::{Error, Result};
use crate::plan::{
    BackwardPlan, BackwardPointers, HopperBackward, KernelLaunch, PartialBackward, plan_backward,
    plan_backward_partial,
};
use crate::problem::BackwardProblem;
use kernels_gpu::abi::{BackwardFmaParams, BackwardHopperParams, BackwardParams, Dtype, Family};

/// Device memory that the kernels of a backward pass use between them. Its contents do not matter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Workspace {
    /// A multiple of [`BackwardPlan::WORKSPACE_ALIGNMENT`].
    pub pointer: DevicePointer,
    /// At least [`BackwardPlan::workspace_bytes`].
    pub bytes: u64,
}

/// Queues one backward pass on `stream` and returns without waiting.
///
/// Shapes, dtypes and strides are those of `problem`. All of dq, dk and dv is written, and of dBias and
/// dSinks if they are wanted: 0 for a row that sees no key, whatever its q and dO hold, and for a key that no
/// row sees. A NaN in q or dO of a row that sees no
/// key may reach dk and dv through the tile that it shares with others. How large the workspace must be says
/// the plan of the same problem, device and pointers:
///
/// ```no_run
/// # use finite_attention::*;
/// # use finite_attention::attention::{Workspace, backward};
/// # fn f(
/// #     device: &Device, problem: &BackwardProblem, pointers: &BackwardPointers, workspace: Workspace,
/// # ) -> Result<()> {
/// let plan = plan::plan_backward(&problem.validate()?, device.properties(), pointers)?;
/// assert!(workspace.bytes >= plan.workspace_bytes());
/// // SAFETY: (what the caller knows of the pointers)
/// unsafe { backward(device, problem, pointers, workspace, Stream::default()) }
/// # }
/// ```
///
/// # Errors
/// Everything that [`BackwardProblem::validate`], [`plan_backward`] and [`BackwardPlan::params_with`]
/// refuse, and errors of the driver.
///
/// # Safety
/// For all work queued up to this call's last kernel: every element of the inputs (q, k, v, o, lse, dO, and
/// what of dLSE, bias, boolean mask, slopes of ALiBi and sinks the problem has, the mask as in
/// [`forward`](super::forward)) is readable and stays unchanged; every element of dq, dk and dv, of dBias and
/// dSinks if they are wanted, and the workspace is writable, used by nothing else, and shares no memory with
/// the inputs or each other. Memory between and around the elements is neither used nor changed. The offsets
/// of packed sequences are readable and as [`crate::Sequences::Packed`] says.
pub unsafe fn backward(
    device: &Device,
    problem: &BackwardProblem,
    pointers: &BackwardPointers,
    workspace: Workspace,
    stream: Stream,
) -> Result<()> {
    let plan = plan_backward(&problem.validate()?, device.properties(), pointers)?;
    // SAFETY: the plan was made from these pointers, and the caller vouches for them.
    unsafe { launch_backward(device, &plan, workspace, stream) }
}

/// Queues one of several backward passes over some of the keys of the same queries, with o and lse of all
/// keys: dq is added up in f32 from pass to pass, and dk and dv may be added to what is there.
///
/// # Errors
/// Everything that [`BackwardProblem::validate`], [`plan_backward_partial`] and [`BackwardPlan::params_with`]
/// refuse, and errors of the driver.
///
/// # Safety
/// As for [`backward`]; of a pass that is not the last, dq need not be. For all work queued up to the last
/// pass the state is [`ValidBackward::state_bytes`](crate::problem::ValidBackward::state_bytes) bytes that
/// passes of these queries alone use, one after the other. dk and dv that are added to hold numbers.
pub unsafe fn backward_partial(
    device: &Device,
    problem: &BackwardProblem,
    pointers: &BackwardPointers,
    partial: &PartialBackward,
    workspace: Workspace,
    stream: Stream,
) -> Result<()> {
    let plan = plan_backward_partial(&problem.validate()?, device.properties(), pointers, partial)?;
    // SAFETY: the plan was made from these pointers, and the caller vouches for them.
    unsafe { launch_backward(device, &plan, workspace, stream) }
}

/// Launches what was planned: for callers that plan once and launch often.
///
/// # Errors
/// Those of [`BackwardPlan::params_with`], and errors of the driver.
///
/// # Safety
/// As for [`backward`], for the pointers that the plan was made with.
pub unsafe fn launch_backward(
    device: &Device,
    plan: &BackwardPlan,
    workspace: Workspace,
    stream: Stream,
) -> Result<()> {
    let params = plan.params_with(workspace.pointer, workspace.bytes)?;
    let driver = device.driver();
    let with_maps = |maps: &Option<HopperBackward>| {
        maps.as_ref().map(|maps| hopper_params(driver, maps, params)).transpose()
    };
    let of_parts = plan.operands_at(workspace.pointer, params);
    let turn = of_parts.as_ref().map_or(0, |(split, _)| split.turn);
    let in_f32 = BackwardFmaParams { backward: params, turn };
    let (main, d_bias) = (with_maps(&plan.hopper)?, with_maps(&plan.hopper_bias)?);
    let again = plan.again_at(&params, turn);
    // A second one is for dbias, which is not made of parts: it computes in any case.
    let mut forwards = again.iter().flat_map(|again| &again.forwards);
    let mut fills = again.iter().flat_map(|again| &again.fills);
    // The first one is for kernels that multiply parts, if there are any.
    let mut deltas = again.iter().map(|again| &again.delta).filter(|_| of_parts.is_some());
    let queued = |&KernelLaunch { variant, blocks }: &KernelLaunch| {
        tracing::debug!(kernel = %variant, blocks, "launch");
        let kernel = variant.kernel;
        let params = match (kernel.family, &of_parts) {
            (Family::MeasureOperands | Family::SplitOperands, Some((split, _))) => split.bytes(),
            (Family::Forward, _) => forwards.next().map_or(&[][..], |forward| forward.bytes()),
            (Family::Accumulate, _) => fills.next().map_or(&[][..], |fill| fill.bytes()),
            (Family::BackwardDelta, _) => deltas.next().unwrap_or(&params).bytes(),
            (_, Some((_, of_parts))) if kernel.multiplies_parts => of_parts.bytes(),
            (Family::Backward | Family::BackwardConvert, _) if kernel.dtype == Dtype::F32 => {
                in_f32.bytes()
            }
            (Family::Backward, _) => main.as_ref().map_or(params.bytes(), |params| params.bytes()),
            (Family::BiasGradient, _) => d_bias.as_ref().map_or(params.bytes(), |params| params.bytes()),
            _ => params.bytes(),
        };
        Queued { variant, blocks, params }
    };
    let queue: Vec<Queued<'_>> = plan.launches.iter().map(queued).collect();
    // SAFETY: passed on to the caller; what maps describe is what the plan was made with.
    unsafe { driver.launch_in_order(&queue, stream) }
}

fn hopper_params(
    driver: &dyn Driver,
    maps: &HopperBackward,
    backward: BackwardParams,
) -> Result<BackwardHopperParams> {
    Ok(BackwardHopperParams {
        q_map: encode(driver, maps.q)?,
        k_map: encode(driver, maps.k)?,
        v_map: encode(driver, maps.v)?,
        d_o_map: encode(driver, maps.d_o)?,
        backward,
    })
}

/// As [`backward`], with a workspace of its own, which is why it waits until all is done.
///
/// # Errors
/// As [`backward`], and [`Error::OutOfMemory`].
///
/// # Safety
/// As [`backward`].
pub unsafe fn backward_and_wait(
    device: &Device,
    problem: &BackwardProblem,
    pointers: &BackwardPointers,
    stream: Stream,
) -> Result<()> {
    let plan = plan_backward(&problem.validate()?, device.properties(), pointers)?;
    let bytes = plan.workspace_bytes();
    let elements = usize::try_from(bytes / 4).map_err(|_| Error::OutOfMemory {
        device: device.properties().name.clone(),
        bytes: usize::MAX,
    })?;
    let memory = DeviceBuffer::<f32>::uninitialised(device, elements)?;
    let workspace = Workspace { pointer: memory.device_pointer(), bytes };
    // SAFETY: the workspace is as large as planned and this call's alone; the caller vouches for the rest.
    let launched = unsafe { launch_backward(device, &plan, workspace, stream) };
    // Also after an error: kernels before it may still use the workspace.
    launched.and(device.synchronize(stream))
}
