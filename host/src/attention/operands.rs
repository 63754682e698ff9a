//! Launches of f32 in two parts: what makes the parts, what multiplies them, and what computes in f32
//! instead.

use super::{Params, with_maps};
use crate::device::Device;
use crate::driver::{DevicePointer, Queued, Stream};
use crate::error::Result;
use crate::plan::{ForwardPlan, HopperPlan, OperandsParams};
use kernels_gpu::abi::{ForwardHopperParams, ForwardMmaSplitParams, ForwardSplitParams};

/// Launches the kernels of a plan that has [operands](ForwardPlan::operands), with its workspace at
/// `address`.
///
/// # Safety
/// As for [`super::launch_forward_in`]; the workspace is as large as planned.
pub(super) unsafe fn launch(
    device: &Device,
    plan: &ForwardPlan,
    address: DevicePointer,
    stream: Stream,
) -> Result<()> {
    let Some(operands) = &plan.operands else { return Ok(()) };
    let OperandsParams { measure, split, factors, exact } = operands.at(address);
    let (of_maps, of_views);
    let main = match &plan.hopper {
        Some(maps) => {
            of_maps =
                ForwardSplitParams { hopper: with_parts(device, plan, maps, address)?, split: factors };
            of_maps.bytes()
        }
        None => {
            let mut forward = plan.params;
            for tensor in [&mut forward.q, &mut forward.k, &mut forward.v] {
                tensor.address += address;
            }
            of_views = ForwardMmaSplitParams { forward, split: factors };
            of_views.bytes()
        }
    };
    let launches = operands.launches.iter().zip([measure.bytes(), split.bytes()]);
    let first = launches.map(|(launch, params)| (launch.variant, launch.blocks, params));
    let last = exact.iter().map(|exact| (operands.exact.variant, operands.exact.blocks, exact.bytes()));
    let queue: Vec<Queued<'_>> = first
        .chain([(plan.variant, plan.blocks, main)])
        .chain(last)
        .map(|(variant, blocks, params)| Queued { variant, blocks, params })
        .collect();
    tracing::debug!(kernel = %plan.variant, blocks = plan.blocks, "launch");
    // SAFETY: passed on to the caller; what the maps describe is what the plan was made with.
    unsafe { device.driver().launch_in_order(&queue, stream) }
}

/// What a kernel for Hopper takes, with maps of parts in the workspace at `address`.
fn with_parts(
    device: &Device,
    plan: &ForwardPlan,
    &HopperPlan { q, k, v, o }: &HopperPlan,
    address: DevicePointer,
) -> Result<ForwardHopperParams> {
    let [mut q, mut k, mut v] = [q, k, v];
    for map in [&mut q, &mut k, &mut v].into_iter().flatten() {
        map.address += address;
    }
    let counter = device.counter(plan.params.o.address);
    with_maps(device.driver(), &HopperPlan { q, k, v, o }, &plan.params, counter)
}
