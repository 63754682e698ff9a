//! Multi-scale deformable attention on a device: `Problem -> Plan -> Launch`, as [`crate::attention`].
//!
//! The core takes raw device pointers, the doors above it host slices.

use crate::attention::host::{Copied, output_buffer};
use crate::attention::{Element, Params as _, Workspace};
use crate::buffer::{DeviceBuffer, InDeviceMemory as _};
use crate::device::Device;
use crate::driver::{Queued, Stream};
use crate::error::{Error, Result};
use crate::plan::{
    KernelLaunch, MsdaBackwardPointers, MsdaPlan, MsdaPointers, plan_msda_backward, plan_msda_forward,
};
use crate::problem::{MsdaBackwardProblem, MsdaProblem, common_dtype};

/// Queues one forward pass on `stream` and returns without waiting.
///
/// Shapes, dtypes and strides are those of `problem`; an address is that of a tensor's element (0, 0, 0, 0).
/// All of o is written: 0 where there are no points.
///
/// # Errors
/// Everything that [`MsdaProblem::validate`] and [`plan_msda_forward`] refuse, and errors of the driver.
///
/// # Safety
/// For all work queued up to this call's kernel: every element of value, locations and weights is readable
/// and stays unchanged; every element of o is writable and shares no memory with these. Memory between and
/// around the elements is neither used nor changed.
pub unsafe fn msda_forward(
    device: &Device,
    problem: &MsdaProblem,
    pointers: &MsdaPointers,
    stream: Stream,
) -> Result<()> {
    let plan = plan_msda_forward(&problem.validate()?, device.properties(), pointers)?;
    // SAFETY: the plan was made from these pointers, and the caller vouches for them.
    unsafe { launch_msda(device, &plan, Workspace::default(), stream) }
}

/// Queues one backward pass on `stream` and returns without waiting.
///
/// All of dvalue, dlocations and dweights is written: 0 for cells that no point touches. How large the
/// workspace must be says [`MsdaPlan::workspace_bytes`] of the plan of the same problem, device and pointers;
/// its address is a multiple of [`MsdaPlan::WORKSPACE_ALIGNMENT`].
///
/// # Errors
/// Everything that [`MsdaBackwardProblem::validate`], [`plan_msda_backward`] and [`MsdaPlan::params_with`]
/// refuse, and errors of the driver.
///
/// # Safety
/// For all work queued up to this call's last kernel: every element of the inputs is readable and stays
/// unchanged; every element of the gradients and the workspace is writable, used by nothing else, and shares
/// no memory with the inputs or each other. Memory between and around the elements is neither used nor
/// changed.
pub unsafe fn msda_backward(
    device: &Device,
    problem: &MsdaBackwardProblem,
    pointers: &MsdaBackwardPointers,
    workspace: Workspace,
    stream: Stream,
) -> Result<()> {
    let plan = plan_msda_backward(&problem.validate()?, device.properties(), pointers)?;
    // SAFETY: the plan was made from these pointers, and the caller vouches for them.
    unsafe { launch_msda(device, &plan, workspace, stream) }
}

/// Launches what was planned, either pass: for callers that plan once and launch often.
///
/// # Errors
/// Those of [`MsdaPlan::params_with`], and errors of the driver.
///
/// # Safety
/// As for [`msda_forward`] or [`msda_backward`], for the pointers that the plan was made with.
pub unsafe fn launch_msda(
    device: &Device,
    plan: &MsdaPlan,
    workspace: Workspace,
    stream: Stream,
) -> Result<()> {
    let params = plan.params_with(workspace.pointer, workspace.bytes)?;
    let queued = |&KernelLaunch { variant, blocks }: &KernelLaunch| {
        tracing::debug!(kernel = %variant, blocks, "launch");
        Queued { variant, blocks, params: params.bytes() }
    };
    let queue: Vec<Queued<'_>> = plan.launches.iter().map(queued).collect();
    // SAFETY: passed on to the caller.
    unsafe { device.driver().launch_in_order(&queue, stream) }
}

/// As [`msda_backward`], with a workspace of its own, which is why it waits until all is done.
///
/// # Errors
/// As [`msda_backward`], and [`Error::OutOfMemory`].
///
/// # Safety
/// As [`msda_backward`].
pub unsafe fn msda_backward_and_wait(
    device: &Device,
    problem: &MsdaBackwardProblem,
    pointers: &MsdaBackwardPointers,
    stream: Stream,
) -> Result<()> {
    let plan = plan_msda_backward(&problem.validate()?, device.properties(), pointers)?;
    let bytes = plan.workspace_bytes();
    let elements = usize::try_from(bytes.div_ceil(4)).map_err(|_| Error::OutOfMemory {
        device: device.properties().name.clone(),
        bytes: usize::MAX,
    })?;
    let memory = DeviceBuffer::<f32>::uninitialised(device, elements)?;
    let workspace = Workspace { pointer: memory.device_pointer(), bytes };
    // SAFETY: the workspace is as large as planned and this call's alone; the caller vouches for the rest.
    let launched = unsafe { launch_msda(device, &plan, workspace, stream) };
    // Also after an error: kernels before it may still use the workspace.
    launched.and(device.synchronize(stream))
}

/// What a forward pass takes, on the host; `X` is the element type of locations, `A` that of weights, f32 or
/// `T`. Each slice begins with the element of the lowest address and has
/// at least the span of its layout.
#[derive(Clone, Copy, Debug)]
pub struct MsdaInputs<'s, T, X = f32, A = f32> {
    /// `[B, cells, H, C]`.
    pub value: &'s [T],
    /// `[B, N, H, L, P, 2]`.
    pub locations: &'s [X],
    /// `[B, N, H, L, P]`.
    pub weights: &'s [A],
}

/// What a backward pass gives, on the host: each in its layout of the problem, zeros between elements.
#[derive(Clone, Debug, PartialEq)]
pub struct MsdaGradients<T, X = f32, A = f32> {
    /// `[B, cells, H, C]`.
    pub d_value: Vec<T>,
    /// `[B, N, H, L, P, 2]`.
    pub d_locations: Vec<X>,
    /// `[B, N, H, L, P]`.
    pub d_weights: Vec<A>,
}

/// Forward pass on host slices: o in the layout of the problem.
///
/// ```no_run
/// use finite_attention::{Device, Dtype, Layout, MsdaInputs, MsdaProblem, msda_forward_host};
/// # fn main() -> finite_attention::Result<()> {
/// // One level of 1 x 2 cells with one channel; one query with a point half way between them.
/// let problem = MsdaProblem::new(Dtype::F32, Layout::bshd([1, 2, 1, 1]), &[[1, 2]], 1, 1);
/// let inputs = MsdaInputs { value: &[1.0f32, 3.0], locations: &[0.5, 0.5], weights: &[1.0] };
/// assert_eq!(msda_forward_host(&Device::default()?, &problem, &inputs)?, [2.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::WrongDtype`] if `T`, `X` or `A` is not the dtype that the problem says, [`Error::WrongLength`] if
/// a slice is too short or too long, [`Error::OutOfMemory`], and all that [`msda_forward`] refuses.
pub fn msda_forward_host<T: Element, X: Element, A: Element>(
    device: &Device,
    problem: &MsdaProblem,
    inputs: &MsdaInputs<'_, T, X, A>,
) -> Result<Vec<T>> {
    check_dtypes::<T, X, A>(problem)?;
    problem.validate()?;
    let stream = Stream::default();
    let value = Copied::new(device, "value", &problem.value, inputs.value)?;
    let locations = Copied::new(device, "locations", &problem.locations, inputs.locations)?;
    let weights = Copied::new(device, "weights", &problem.weights, inputs.weights)?;
    let o = output_buffer::<T>(device, &problem.o)?;
    let pointers = MsdaPointers {
        value: value.pointer(),
        locations: locations.pointer(),
        weights: weights.pointer(),
        o: o.device_pointer(),
    };
    // SAFETY: each allocation holds the span of its layout, is used by nobody else, and lives past
    // `synchronize`.
    unsafe { msda_forward(device, problem, &pointers, stream) }?;
    device.synchronize(stream)?;
    o.to_vec(stream)
}

/// Backward pass on host slices.
///
/// # Errors
/// As [`msda_forward_host`].
pub fn msda_backward_host<T: Element, X: Element, A: Element>(
    device: &Device,
    problem: &MsdaBackwardProblem,
    inputs: &MsdaInputs<'_, T, X, A>,
    d_o: &[T],
) -> Result<MsdaGradients<T, X, A>> {
    let forward = &problem.forward;
    check_dtypes::<T, X, A>(forward)?;
    problem.validate()?;
    let stream = Stream::default();
    let value = Copied::new(device, "value", &forward.value, inputs.value)?;
    let locations = Copied::new(device, "locations", &forward.locations, inputs.locations)?;
    let weights = Copied::new(device, "weights", &forward.weights, inputs.weights)?;
    let d_o = Copied::new(device, "do", &problem.d_o, d_o)?;
    let d_value = output_buffer::<T>(device, &problem.d_value)?;
    let d_locations = output_buffer::<X>(device, &problem.d_locations)?;
    let d_weights = output_buffer::<A>(device, &problem.d_weights)?;
    let pointers = MsdaBackwardPointers {
        value: value.pointer(),
        locations: locations.pointer(),
        weights: weights.pointer(),
        d_o: d_o.pointer(),
        d_value: d_value.device_pointer(),
        d_locations: d_locations.device_pointer(),
        d_weights: d_weights.device_pointer(),
    };
    // SAFETY: each allocation holds the span of its layout, is used by nobody else, and lives past the end of
    // the call, which waits.
    unsafe { msda_backward_and_wait(device, problem, &pointers, stream) }?;
    Ok(MsdaGradients {
        d_value: d_value.to_vec(stream)?,
        d_locations: d_locations.to_vec(stream)?,
        d_weights: d_weights.to_vec(stream)?,
    })
}

fn check_dtypes<T: Element, X: Element, A: Element>(problem: &MsdaProblem) -> Result<()> {
    common_dtype(&[("problem", problem.dtype), ("value", T::DTYPE)])?;
    common_dtype(&[("problem", problem.locations_dtype), ("locations", X::DTYPE)])?;
    common_dtype(&[("problem", problem.weights_dtype), ("weights", A::DTYPE)])?;
    Ok(())
}
