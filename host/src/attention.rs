//! Attention on a device: the core takes raw device pointers, the doors above it take host slices.

mod backward;
mod dynamic;
mod element;
pub(crate) mod host;
mod mask;
mod operands;
mod scores;

pub use backward::{Workspace, backward, backward_and_wait, backward_partial, launch_backward};
pub use dynamic::DynamicAttention;
pub(crate) use dynamic::forward_under;
pub use element::Element;
pub(crate) use host::exactly;
pub use host::{
    BackwardInputs, BackwardOutput, ForwardInputs, ForwardOutput, backward_host, forward_host,
    forward_inputs_host, forward_packed_host,
};
pub use mask::{PreparedMask, prepare_mask, prepared_mask_bytes};
pub use scores::{BiasSlice, Elements, MaskSlice, ScoreSlices};

use crate::device::Device;
use crate::driver::{DevicePointer, Driver, Queued, Stream, TensorMapDescription};
use crate::error::{Error, Result};
use crate::plan::{
    AccumulatePlan, CombinePlan, ForwardPlan, ForwardPointers, HopperPlan, PartialForward, plan_forward,
    plan_forward_partial,
};
use crate::problem::{ForwardProblem, Precision};
use kernels_gpu::abi::{
    AccumulateParams, BackwardFmaParams, BackwardHopperParams, BackwardParams, BackwardPartsParams,
    CombineParams, Dtype, ForwardFmaParams, ForwardHopperParams, ForwardMmaSplitParams, ForwardParams,
    ForwardSplitParams, GatherParams, MSDA_MAX_LEVELS, MaskBitsParams, MaskBlocksParams, MaskMapParams,
    MsdaLevel, MsdaParams, PreviousParams, ScanParams, ScoreParams, ScoreView, SelectParams,
    SplitFactors, SplitParams, SplitTensor, TensorMap,
};

/// Queues one forward pass on `stream` and returns without waiting: o and lse are there after
/// [`Device::synchronize`] or anything else that waits for the stream.
///
/// Shapes, dtypes and strides are those of `problem`; an address is that of a tensor's element (0, 0, 0,
/// 0). With no rows, heads or batches nothing is launched. A row that sees no key gets o = 0 and lse =
/// -inf.
///
/// Where keys are split ([`ForwardProblem::num_splits`]), and where f32 is ([`Precision::Fast3`]), a
/// workspace is allocated and freed in the order of the stream, from a pool that keeps it for later calls
/// until the device is closed. If there is no memory for it, keys are not split, unless that was asked for,
/// and nor is f32, unless that or lse was. A captured graph allocates and frees it, too. Devices without
/// memory pools wait for the stream.
///
/// The first call of a kernel loads it, the first on Hopper allocates counters, and the first that splits
/// keys makes the pool, which waits for the device: whoever captures graphs makes the same call before.
///
/// # Errors
/// Everything that [`ForwardProblem::validate`] and [`plan_forward`] refuse, and errors of the driver.
///
/// # Safety
/// For all work queued up to this call's kernel: every element of q, k and v, and of what scores have beside
/// ([`ScorePointers`](crate::plan::ScorePointers): bias, the bits of the boolean mask, slopes of ALiBi,
/// sinks), is readable and stays unchanged; every element of o and, if wanted, of lse is writable, and shares
/// no memory with these inputs or each other. The bits are those of a [`PreparedMask`] of the problem's
/// [`ForwardProblem::attn_mask`], made on this device and not freed. Memory between and around the elements
/// is neither used nor changed. The offsets of packed sequences are readable and as
/// [`crate::Sequences::Packed`] says.
pub unsafe fn forward(
    device: &Device,
    problem: &ForwardProblem,
    pointers: &ForwardPointers,
    stream: Stream,
) -> Result<()> {
    let valid = problem.validate()?;
    let Some(plan) = plan_forward(&valid, device.properties(), pointers)? else { return Ok(()) };
    // SAFETY: the plan was made from these pointers, and the caller vouches for them.
    match unsafe { launch_forward(device, &plan, stream) } {
        // It was only to be faster.
        Err(Error::OutOfMemory { .. }) if plan.combine.is_some() && problem.num_splits.is_none() => {
            // SAFETY: as this call.
            unsafe { forward(device, &problem.with_num_splits(1), pointers, stream) }
        }
        // Likewise; but a backward would take lse for one of parts.
        Err(Error::OutOfMemory { .. })
            if plan.operands.is_some() && problem.precision.is_none() && !problem.wants_lse =>
        {
            // SAFETY: as this call.
            unsafe { forward(device, &problem.with_precision(Precision::Fma), pointers, stream) }
        }
        result => result,
    }
}

/// Queues one of several forward passes over some of the keys of the same queries, which merges with what
/// those before it have left: for keys that are not all there at the same time, or not in one piece.
///
/// As exact as one pass over all keys, in any order of the passes: what is left is f32, is not normalised,
/// and is rounded once, by the last pass.
///
/// # Errors
/// Everything that [`ForwardProblem::validate`] and [`plan_forward_partial`] refuse, and errors of the
/// driver.
///
/// # Safety
/// As for [`forward`]; of a pass that is not the last, o and lse need not be. For all work queued up to the
/// last pass the state is [`ValidForward::state_bytes`](crate::problem::ValidForward::state_bytes) bytes
/// that passes over these keys alone use, one after the other, of problems that differ in k, v and what goes
/// with them only.
pub unsafe fn forward_partial(
    device: &Device,
    problem: &ForwardProblem,
    pointers: &ForwardPointers,
    partial: &PartialForward,
    stream: Stream,
) -> Result<()> {
    let (valid, properties) = (problem.validate()?, device.properties());
    let Some(plan) = plan_forward_partial(&valid, properties, pointers, partial)? else { return Ok(()) };
    // SAFETY: the plan was made from these pointers, and the caller vouches for them.
    unsafe { launch_forward(device, &plan, stream) }
}

/// Launches what was planned: for callers that plan once and launch often.
///
/// # Errors
/// Errors of the driver.
///
/// # Safety
/// As for [`forward`], for the pointers that the plan was made with.
pub unsafe fn launch_forward(device: &Device, plan: &ForwardPlan, stream: Stream) -> Result<()> {
    let bytes = plan.workspace_bytes();
    if bytes == 0 {
        // SAFETY: passed on to the caller.
        return unsafe { launch_forward_in(device, plan, Workspace::default(), stream) };
    }
    let driver = device.driver();
    let pointer = driver.allocate_in_order(usize::try_from(bytes).unwrap_or(usize::MAX), stream)?;
    let workspace = Workspace { pointer, bytes };
    // SAFETY: passed on to the caller; the workspace is as large as planned, and its own.
    let launched = unsafe { launch_forward_in(device, plan, workspace, stream) };
    // SAFETY: allocated above in the order of this stream, and nothing that is queued later knows of it.
    launched.and(unsafe { driver.free_in_order(pointer, stream) })
}

/// As [`launch_forward`], in a workspace of the caller, of at least [`ForwardPlan::workspace_bytes`]: the
/// library then allocates nothing. Where that is 0 the workspace is not looked at.
///
/// # Errors
/// [`Error::WorkspaceTooSmall`], [`Error::NullPointer`], [`Error::Misaligned`] unless its address is a
/// multiple of [`ForwardPlan::WORKSPACE_ALIGNMENT`], and errors of the driver.
///
/// # Safety
/// As for [`launch_forward`]; and the workspace is writable, used by nothing else, and shares no memory with
/// the tensors.
pub unsafe fn launch_forward_in(
    device: &Device,
    plan: &ForwardPlan,
    workspace: Workspace,
    stream: Stream,
) -> Result<()> {
    let (expected, alignment) = (plan.workspace_bytes(), ForwardPlan::WORKSPACE_ALIGNMENT);
    if expected == 0 {
        // SAFETY: passed on to the caller.
        return unsafe { launch_kernels(device, plan, &plan.params, None, stream) };
    }
    let Workspace { pointer: address, bytes: got } = workspace;
    if got < expected {
        return Err(Error::WorkspaceTooSmall { expected, got });
    }
    if address == 0 {
        let (argument, elements) = ("workspace", u128::from(expected) / 4);
        return Err(Error::NullPointer { argument, elements });
    }
    if !address.is_multiple_of(u64::from(alignment)) {
        return Err(Error::Misaligned { argument: "workspace", alignment, address });
    }
    let Some(combine) = &plan.combine else {
        // SAFETY: passed on to the caller; the workspace is as large as planned.
        return unsafe { operands::launch(device, plan, address, stream) };
    };
    let (mut params, mut last) = (plan.params, combine.params);
    for part in [&mut params.o.address, &mut params.lse, &mut last.part_o, &mut last.part_statistics] {
        *part += address;
    }
    // SAFETY: passed on to the caller; the workspace is as large as planned.
    unsafe { launch_kernels(device, plan, &params, Some((combine, &last)), stream) }
}

/// Launches the kernel that adds f32 tensors.
///
/// # Errors
/// Errors of the driver.
///
/// # Safety
/// The terms are readable, and the output is writable, for all work queued up to this kernel.
pub(crate) unsafe fn launch_accumulate(
    device: &Device,
    plan: &AccumulatePlan,
    stream: Stream,
) -> Result<()> {
    let AccumulatePlan { variant, blocks, params } = plan;
    // SAFETY: passed on to the caller.
    unsafe { device.driver().launch(*variant, *blocks, params.bytes(), stream) }
}

/// Launches the kernels of a plan with these parameters: the main one, and what combines, if anything does.
///
/// # Safety
/// As for [`launch_forward`].
unsafe fn launch_kernels(
    device: &Device,
    plan: &ForwardPlan,
    forward: &ForwardParams,
    combine: Option<(&CombinePlan, &CombineParams)>,
    stream: Stream,
) -> Result<()> {
    tracing::debug!(kernel = %plan.variant, blocks = plan.blocks, "launch");
    let driver = device.driver();
    // Those of what is in the end there.
    let counter = device.counter(combine.map_or(forward.o.address, |(_, last)| last.o.address));
    let with_maps = match &plan.hopper {
        None => None,
        Some(maps) => Some(with_maps(driver, maps, forward, counter)?),
    };
    let in_f32 = ForwardFmaParams { forward: *forward, turn: 0 };
    let params = match &with_maps {
        Some(params) => params.bytes(),
        None if plan.variant.kernel.dtype == Dtype::F32 => in_f32.bytes(),
        None => forward.bytes(),
    };
    let main = Queued { variant: plan.variant, blocks: plan.blocks, params };
    let combine = combine.map(|(combine, last)| Queued {
        variant: combine.variant,
        blocks: combine.blocks,
        params: last.bytes(),
    });
    let queue: Vec<Queued<'_>> = std::iter::once(main).chain(combine).collect();
    // SAFETY: passed on to the caller; what the maps describe is what the plan was made with.
    unsafe { driver.launch_in_order(&queue, stream) }
}

/// The parameter of a kernel for Hopper.
fn with_maps(
    driver: &dyn Driver,
    maps: &HopperPlan,
    forward: &ForwardParams,
    counter: DevicePointer,
) -> Result<ForwardHopperParams> {
    let &HopperPlan { q, k, v, o } = maps;
    let [q_map, k_map, v_map, o_map] = [q, k, v, o].map(|map| encode(driver, map));
    let (q_map, k_map, v_map, o_map) = (q_map?, k_map?, v_map?, o_map?);
    Ok(ForwardHopperParams { q_map, k_map, v_map, o_map, forward: *forward, counter })
}

/// A tensor map; of no tensor, one that is never used.
fn encode(driver: &dyn Driver, map: Option<TensorMapDescription>) -> Result<TensorMap> {
    map.map_or(Ok(TensorMap::default()), |map| driver.encode_tensor_map(&map))
}

/// The parameter of a kernel: `repr(C)`, with no padding.
///
/// # Safety
/// All bytes of a value are initialised.
pub(crate) unsafe trait Params: Copy {
    /// What the kernel gets.
    fn bytes(&self) -> &[u8] {
        // SAFETY: the value lives as long as the slice, and all its bytes are initialised.
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(self).cast(), size_of::<Self>()) }
    }
}

// Six 64-bit fields; three such views, three 64-bit and two 32-bit fields: no padding.
const _: () = assert!(size_of::<ScoreView>() == 6 * 8);
const _: () = assert!(size_of::<ScoreParams>() == 3 * size_of::<ScoreView>() + 3 * 8 + 10 * 4);

// SAFETY: four views of 32 bytes, five 64-bit and 30 32-bit fields, and two structs without padding: no
// padding.
unsafe impl Params for ForwardParams {}
const _: () = assert!(
    size_of::<ForwardParams>()
        == 4 * 32 + 5 * 8 + 30 * 4 + size_of::<ScoreParams>() + size_of::<PreviousParams>()
);
const _: () = assert!(size_of::<PreviousParams>() == 32 + 3 * 8);

// SAFETY: a view of 32 bytes, eight 64-bit and ten 32-bit fields: no padding.
unsafe impl Params for CombineParams {}
const _: () = assert!(size_of::<CombineParams>() == 32 + 8 * 8 + 12 * 4);

// SAFETY: four maps of 128 bytes, a struct without padding whose size is a multiple of 8, and a
// 64-bit field: no padding.
unsafe impl Params for ForwardHopperParams {}
const _: () = assert!(size_of::<ForwardHopperParams>() == 4 * 128 + size_of::<ForwardParams>() + 8);

// SAFETY: nine views of 32 bytes, twelve 64-bit and 38 32-bit fields, two structs without padding, four
// 32-bit fields and a 64-bit one: no padding.
unsafe impl Params for BackwardParams {}
const _: () = assert!(
    size_of::<BackwardParams>()
        == 9 * 32 + 12 * 8 + 38 * 4 + size_of::<ScoreParams>() + size_of::<ScoreView>() + 4 * 4 + 8
);

// SAFETY: three views and six 32-bit fields: no padding.
unsafe impl Params for AccumulateParams {}
const _: () = assert!(size_of::<AccumulateParams>() == 3 * 32 + 6 * 4);

// SAFETY: a view, a 64-bit and six 32-bit fields: no padding.
unsafe impl Params for MaskBitsParams {}
const _: () = assert!(size_of::<MaskBitsParams>() == size_of::<ScoreView>() + 8 + 6 * 4);

// SAFETY: seven 64-bit and twelve 32-bit fields: no padding.
unsafe impl Params for ScanParams {}
const _: () = assert!(size_of::<ScanParams>() == 7 * 8 + 12 * 4);

// SAFETY: two 64-bit and six 32-bit fields: no padding.
unsafe impl Params for MaskMapParams {}
const _: () = assert!(size_of::<MaskMapParams>() == 2 * 8 + 6 * 4);

// SAFETY: two views, five 64-bit and 18 32-bit fields: no padding.
unsafe impl Params for SelectParams {}
const _: () = assert!(size_of::<SelectParams>() == 2 * size_of::<ScoreView>() + 5 * 8 + 18 * 4);

// SAFETY: a view, three 64-bit and eight 32-bit fields: no padding.
unsafe impl Params for MaskBlocksParams {}
const _: () = assert!(size_of::<MaskBlocksParams>() == size_of::<ScoreView>() + 3 * 8 + 8 * 4);

// SAFETY: four views of 32 bytes and another one, five 64-bit and 20 32-bit fields: no padding.
unsafe impl Params for GatherParams {}
const _: () = assert!(size_of::<GatherParams>() == 4 * 32 + size_of::<ScoreView>() + 5 * 8 + 20 * 4);

// SAFETY: four maps of 128 bytes and a struct without padding: no padding.
unsafe impl Params for BackwardHopperParams {}
const _: () = assert!(size_of::<BackwardHopperParams>() == 4 * 128 + size_of::<BackwardParams>());

// SAFETY: a struct without padding whose size is a multiple of 8, and two 64-bit fields: no padding.
unsafe impl Params for BackwardPartsParams {}
const _: () = assert!(size_of::<BackwardPartsParams>() == size_of::<BackwardParams>() + 2 * 8);

// SAFETY: a struct without padding whose size is a multiple of 8, and a 64-bit field: no padding.
unsafe impl Params for BackwardFmaParams {}
const _: () = assert!(size_of::<BackwardFmaParams>() == size_of::<BackwardParams>() + 8);

// SAFETY: a struct without padding whose size is a multiple of 8, and a 64-bit field: no padding.
unsafe impl Params for ForwardFmaParams {}
const _: () = assert!(size_of::<ForwardFmaParams>() == size_of::<ForwardParams>() + 8);

// SAFETY: a struct without padding, and one of three 64-bit and two 32-bit fields: no padding.
unsafe impl Params for ForwardSplitParams {}
const _: () = assert!(size_of::<SplitFactors>() == 3 * 8 + 2 * 4);
const _: () =
    assert!(size_of::<ForwardSplitParams>() == size_of::<ForwardHopperParams>() + 3 * 8 + 2 * 4);

// SAFETY: likewise; the size of the first is a multiple of 8.
unsafe impl Params for ForwardMmaSplitParams {}
const _: () = assert!(size_of::<ForwardMmaSplitParams>() == size_of::<ForwardParams>() + 3 * 8 + 2 * 4);

// SAFETY: four times a view of 32 bytes, two 64-bit and six 32-bit fields; four 64-bit and four 32-bit
// fields: no padding.
unsafe impl Params for SplitParams {}
const _: () = assert!(size_of::<SplitTensor>() == 32 + 2 * 8 + 6 * 4);
const _: () = assert!(size_of::<SplitParams>() == 4 * size_of::<SplitTensor>() + 4 * 8 + 4 * 4);

// SAFETY: eight views of 32 bytes, three 64-bit and 20 32-bit fields, and levels of four 32-bit fields, a
// multiple of 8 bytes: no padding.
unsafe impl Params for MsdaParams {}
const _: () = assert!(size_of::<MsdaLevel>() == 16);
const _: () = assert!(size_of::<MsdaParams>() == 8 * 32 + 3 * 8 + 20 * 4 + 16 * MSDA_MAX_LEVELS);
