//! The backward pass of a case on a device.

use super::compute::{input, spill, widened};
use super::scores::{ScoreGradientMemory, ScoreGradients, ScoreMemory};
use super::{Case, GradientInputs, Surroundings, TensorMemory};
use crate::attention::{DynamicAttention, Element, Workspace, launch_backward};
use crate::buffer::{DeviceBuffer, InDeviceMemory as _};
use crate::device::Device;
use crate::driver::Stream;
use crate::error::Result;
use crate::plan::{BackwardPlan, BackwardPointers, plan_backward};
use crate::problem::Layout;
use kernels_gpu::abi::Dtype;

/// What a device made of the backward pass of a case, in logical order.
#[derive(Clone, Debug)]
pub struct ComputedGradients {
    /// The main kernel that ran, with its switches; `none` when it had nothing to compute.
    pub kernel: String,
    /// dO and dLSE as the kernel saw them.
    pub inputs: GradientInputs,
    /// `[B, Sq, Hq, D]`.
    pub dq: Vec<f32>,
    /// `[B, Sk, Hk, D]`.
    pub dk: Vec<f32>,
    /// `[B, Sk, Hk, Dv]`.
    pub dv: Vec<f32>,
    /// In the shape of the bias; empty unless it is wanted.
    pub d_bias: Vec<f32>,
    /// `[Hq]`; empty unless they are wanted.
    pub d_sinks: Vec<f32>,
    /// Which output (or the workspace) changed outside its elements, and where.
    pub spilled: Option<String>,
}

/// The tensors of a forward pass.
pub(super) struct ForwardMemory<'d, T, O> {
    pub q: TensorMemory<'d, T>,
    pub k: TensorMemory<'d, T>,
    pub v: TensorMemory<'d, T>,
    pub o: TensorMemory<'d, O>,
    pub lse: TensorMemory<'d, f32>,
    pub offsets: [DeviceBuffer<i32>; 2],
    pub scores: ScoreMemory<'d, T>,
}

/// Runs the backward pass after the forward pass, if the case has one. The workspace starts as NaN.
pub(super) fn compute_gradients<T: Element, O: Element>(
    device: &Device,
    case: &Case,
    forward: &ForwardMemory<'_, T, O>,
    chosen: Option<&DynamicAttention>,
    inputs: &GradientInputs,
    surroundings: Surroundings,
) -> Result<Option<ComputedGradients>> {
    let Some(gradients) = case.gradients else { return Ok(None) };
    let run = if gradients.dtype == Dtype::F32 {
        compute_typed::<T, O, f32>
    } else {
        compute_typed::<T, O, T>
    };
    run(device, case, forward, chosen, inputs, surroundings)
}

/// `G` is the element type of dq, dk and dv.
fn compute_typed<T: Element, O: Element, G: Element>(
    device: &Device,
    case: &Case,
    forward: &ForwardMemory<'_, T, O>,
    chosen: Option<&DynamicAttention>,
    inputs: &GradientInputs,
    surroundings: Surroundings,
) -> Result<Option<ComputedGradients>> {
    let Some(problem) = case.backward_problem() else { return Ok(None) };
    let valid = problem.validate()?;
    let lead = case.placement.lead();
    let output = |layout| TensorMemory::<G>::new(device, layout, lead, true, None, Surroundings::Nan);
    let d_o = input::<T>(device, case, problem.d_o, &inputs.d_o, surroundings)?;
    let d_lse_layout = Layout::bshd([1, 1, 1, inputs.d_lse.len()]);
    let d_lse = input::<f32>(device, case, d_lse_layout, &inputs.d_lse, surroundings)?;
    let (dq, dk, dv) = (output(problem.dq)?, output(problem.dk)?, output(problem.dv)?);
    let of_scores = ScoreGradientMemory::<T>::new(device, case)?;
    let [d_bias, d_sinks] = of_scores.pointers();
    let [cu_seqlens_q, cu_seqlens_k] =
        forward.offsets.each_ref().map(|offsets| offsets.device_pointer());
    let pointers = BackwardPointers {
        q: forward.q.pointer(),
        k: forward.k.pointer(),
        v: forward.v.pointer(),
        o: forward.o.pointer(),
        d_o: d_o.pointer(),
        dq: dq.pointer(),
        dk: dk.pointer(),
        dv: dv.pointer(),
        lse: forward.lse.pointer(),
        d_lse: d_lse.pointer(),
        cu_seqlens_q,
        cu_seqlens_k,
        score: forward.scores.pointers(),
        d_bias,
        d_sinks,
    };
    let stream = Stream::default();
    let (kernel, workspace_spilled) = match chosen {
        None => {
            let plan = plan_backward(&valid, device.properties(), &pointers)?;
            let kernel = plan.main_kernel().map_or("none".to_owned(), |variant| variant.to_string());
            (kernel, run_plan(device, &plan)?)
        }
        Some(chosen) => {
            // SAFETY: each allocation holds its layout, is used by this call alone, and lives past
            // `synchronize`.
            unsafe { chosen.backward(&problem, &pointers, stream) }?;
            device.synchronize(stream)?;
            (chosen.plan().way.name().to_owned(), None)
        }
    };
    let [(dq, dq_spilled), (dk, dk_spilled), (dv, dv_spilled)] =
        [dq.read(stream)?, dk.read(stream)?, dv.read(stream)?];
    let spilled = spill([
        ("dq", dq_spilled),
        ("dk", dk_spilled),
        ("dv", dv_spilled),
        ("workspace", workspace_spilled),
    ]);
    let ScoreGradients { d_bias, d_sinks, spilled: of_scores_spilled } = of_scores.read(stream)?;
    let spilled = spilled.or(of_scores_spilled);
    let inputs = GradientInputs { d_o: widened(d_o.written()), d_lse: d_lse.written() };
    let [dq, dk, dv] = [dq, dk, dv].map(widened);
    Ok(Some(ComputedGradients { kernel, inputs, dq, dk, dv, d_bias, d_sinks, spilled }))
}

/// Launches the plan with a workspace of NaN, waits, and says where something outside of that changed.
pub(super) fn run_plan(device: &Device, plan: &BackwardPlan) -> Result<Option<isize>> {
    let (bytes, stream) = (plan.workspace_bytes(), Stream::default());
    let layout = Layout::bshd([1, 1, 1, (bytes / 4) as usize]);
    let memory = TensorMemory::<f32>::new(device, layout, 0, true, None, Surroundings::Nan)?;
    let workspace = Workspace { pointer: memory.pointer(), bytes };
    // SAFETY: each allocation holds its layout, is used by this call alone, and lives past `synchronize`.
    unsafe { launch_backward(device, plan, workspace, stream) }?;
    device.synchronize(stream)?;
    Ok(memory.read(stream)?.1)
}
