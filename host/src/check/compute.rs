//! One case on a device: the launches, and what came out.

use super::backward::{ForwardMemory, compute_gradients};
use super::dynamic::kept;
use super::scores::ScoreMemory;
use super::{Case, ComputedGradients, GradientInputs, Inputs, Surroundings, TensorMemory};
use crate::attention::{DynamicAttention, Element, forward_under};
use crate::buffer::{DeviceBuffer, InDeviceMemory as _};
use crate::device::Device;
use crate::driver::Stream;
use crate::error::Result;
use crate::plan::{ForwardPointers, plan_forward};
use crate::problem::{ForwardProblem, Layout};
use half::{bf16, f16};
use kernels_gpu::abi::Dtype;
use std::time::{Duration, Instant};

/// What a device made of a case, in logical order.
#[derive(Clone, Debug)]
pub struct Computed {
    /// The forward kernel that ran, with its switches; `none` when there was nothing to compute.
    pub kernel: String,
    /// The inputs as the kernel saw them: rounded, and with one value where elements share an address.
    pub inputs: Inputs,
    /// `[B, Sq, Hq, Dv]`.
    pub o: Vec<f32>,
    /// `[B, Hq, Sq]`, packed `[Hq, Tq]`.
    pub lse: Vec<f32>,
    /// What came of the backward pass, if the case has one.
    pub gradients: Option<ComputedGradients>,
    /// Which output changed outside its elements, and where; `None` when none did.
    pub spilled: Option<String>,
    /// How long the device took, copies of the results included.
    pub elapsed: Duration,
}

/// Runs one case with these numbers on `device`, `surroundings` around and between all elements of the
/// inputs; those of the outputs, and the outputs themselves, start as NaN. If the case has gradients, dO
/// and dLSE are [`GradientInputs::drawn`].
///
/// # Errors
/// Errors of the problem, of the planner, and of the device.
pub fn compute(
    device: &Device,
    case: &Case,
    inputs: &Inputs,
    surroundings: Surroundings,
) -> Result<Computed> {
    compute_with(device, case, inputs, &GradientInputs::drawn(case), surroundings)
}

/// As [`compute`], with these gradients of o and lse.
///
/// # Errors
/// As [`compute`].
pub fn compute_with(
    device: &Device,
    case: &Case,
    inputs: &Inputs,
    gradients: &GradientInputs,
    surroundings: Surroundings,
) -> Result<Computed> {
    let run = match (case.dtype, case.output_dtype) {
        (Dtype::Bf16, Dtype::F32) => compute_typed::<bf16, f32>,
        (Dtype::Bf16, _) => compute_typed::<bf16, bf16>,
        (Dtype::F16, Dtype::F32) => compute_typed::<f16, f32>,
        (Dtype::F16, _) => compute_typed::<f16, f16>,
        (Dtype::F32, _) => compute_typed::<f32, f32>,
    };
    run(device, case, inputs, gradients, surroundings)
}

/// `T` is the element type of q, k and v, `O` that of o.
fn compute_typed<T: Element, O: Element>(
    device: &Device,
    case: &Case,
    inputs: &Inputs,
    gradients: &GradientInputs,
    surroundings: Surroundings,
) -> Result<Computed> {
    let problem = case.problem();
    problem.validate()?;
    let lead = case.placement.lead();
    let [batches, rows, heads, _] = problem.q.shape;
    let lse_layout = Layout::bshd([batches, heads, rows, 1]);
    let memory = ForwardMemory::<T, O> {
        q: input(device, case, problem.q, &inputs.q, surroundings)?,
        k: input(device, case, problem.k, &inputs.k, surroundings)?,
        v: input(device, case, problem.v, &inputs.v, surroundings)?,
        o: TensorMemory::new(device, problem.o, lead, true, None, Surroundings::Nan)?,
        lse: TensorMemory::new(device, lse_layout, 0, true, None, Surroundings::Nan)?,
        offsets: offsets(device, case)?,
        scores: ScoreMemory::new(device, case, &inputs.scores, surroundings)?,
    };
    let [cu_seqlens_q, cu_seqlens_k] = memory.offsets.each_ref().map(|offsets| offsets.device_pointer());
    let pointers = ForwardPointers {
        q: memory.q.pointer(),
        k: memory.k.pointer(),
        v: memory.v.pointer(),
        o: memory.o.pointer(),
        lse: memory.lse.pointer(),
        cu_seqlens_q,
        cu_seqlens_k,
        score: memory.scores.pointers(),
    };
    let stream = Stream::default();
    let start = Instant::now();
    let dynamic_mask = case.features.dynamic_mask;
    // SAFETY: each allocation holds its layout, is used by this call alone, and lives past `synchronize`.
    let chosen = unsafe { forward_under(device, &problem, dynamic_mask, &pointers, stream) }?;
    let launched = chosen.as_ref().map_or(problem, DynamicAttention::launched_problem);
    let kernel = main_kernel(device, &launched, chosen.is_some(), &pointers)?;
    device.synchronize(stream)?;
    let gradients = compute_gradients(device, case, &memory, chosen.as_ref(), gradients, surroundings)?;
    let (o, o_spilled) = memory.o.read(stream)?;
    let (lse, lse_spilled) = memory.lse.read(stream)?;
    let elapsed = start.elapsed();
    let spilled = spill([("o", o_spilled), ("lse", lse_spilled)]);
    let spilled = spilled.or_else(|| gradients.as_ref().and_then(|gradients| gradients.spilled.clone()));
    let [q, k, v] = [&memory.q, &memory.k, &memory.v].map(|tensor| widened(tensor.written()));
    let mut inputs = Inputs { q, k, v, scores: memory.scores.written() };
    inputs.scores.kept = kept(case, &inputs);
    Ok(Computed { kernel, inputs, o: widened(o), lse, gradients, spilled, elapsed })
}

/// The main kernel of a forward pass. Under a dynamic mask bits, and gathered tensors if there are any, stand
/// on large boundaries.
fn main_kernel(
    device: &Device,
    problem: &ForwardProblem,
    is_dynamic: bool,
    pointers: &ForwardPointers,
) -> Result<String> {
    let mut pointers = *pointers;
    if is_dynamic {
        pointers.score.mask_bits = 1 << 40;
    }
    let plan = plan_forward(&problem.validate()?, device.properties(), &pointers)?;
    Ok(plan.map_or("none".to_owned(), |plan| plan.variant.to_string()))
}

/// An input tensor with these numbers in device memory.
pub(super) fn input<'d, T: Element>(
    device: &'d Device,
    case: &Case,
    layout: Layout,
    numbers: &[f32],
    surroundings: Surroundings,
) -> Result<TensorMemory<'d, T>> {
    let values: Vec<T> = numbers.iter().copied().map(T::from_f32).collect();
    let (lead, guard_after) = (case.placement.lead(), !case.tight);
    TensorMemory::new(device, layout, lead, guard_after, Some(&values), surroundings)
}

/// The offsets of packed sequences; empty without.
fn offsets(device: &Device, case: &Case) -> Result<[DeviceBuffer<i32>; 2]> {
    let [q, k] = if case.packed { case.offsets() } else { Default::default() };
    Ok([DeviceBuffer::from_slice(device, &q)?, DeviceBuffer::from_slice(device, &k)?])
}

/// The first output that changed outside its elements.
pub(super) fn spill<const N: usize>(outputs: [(&str, Option<isize>); N]) -> Option<String> {
    outputs.into_iter().find_map(|(name, place)| {
        place.map(|byte| format!("{name}: byte {byte} from its start is outside and was changed"))
    })
}

pub(super) fn widened<T: Element>(values: Vec<T>) -> Vec<f32> {
    values.into_iter().map(T::to_f32).collect()
}
