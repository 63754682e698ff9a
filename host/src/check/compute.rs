//! One case on a device: its numbers, the launch, and what came out.

use super::{Case, Surroundings, TensorMemory};
use crate::attention::{Element, launch_forward};
use crate::device::Device;
use crate::driver::Stream;
use crate::error::Result;
use crate::plan::{ForwardPointers, plan_forward};
use crate::problem::{Layout, ValidForward};
use half::{bf16, f16};
use kernels_gpu::abi::Dtype;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rand_distr::StandardNormal;
use std::time::{Duration, Instant};

/// The numbers of q, k and v: one per element, in logical order. Each is rounded to the dtype of its
/// case when used.
#[derive(Clone, Debug, PartialEq)]
pub struct Inputs {
    /// `[B, Sq, Hq, D]`.
    pub q: Vec<f32>,
    /// `[B, Sk, Hk, D]`.
    pub k: Vec<f32>,
    /// `[B, Sk, Hk, Dv]`.
    pub v: Vec<f32>,
}

impl Inputs {
    /// Normally distributed numbers from the seed of the case: q and k of its amplitude, v of 1. The
    /// first column of q and of k is moved so that the logits move by the case's `logit_shift`.
    pub fn normal(case: &Case) -> Self {
        let problem = case.problem();
        let mut random = StdRng::seed_from_u64(case.seed);
        let mut numbers = |layout: &Layout, deviation: f32, first_column: f32| {
            let sample = |index| {
                let mean = if index % layout.shape[3] == 0 { first_column } else { 0.0 };
                random.sample::<f32, _>(StandardNormal) * deviation + mean
            };
            (0..layout.elements() as usize).map(sample).collect()
        };
        let shift = (case.logit_shift.abs() * (case.head_dim as f32).sqrt()).sqrt();
        let q = numbers(&problem.q, case.amplitude, shift);
        let k = numbers(&problem.k, case.amplitude, shift.copysign(case.logit_shift));
        Inputs { q, k, v: numbers(&problem.v, 1.0, 0.0) }
    }
}

/// What a device made of a case, in logical order.
#[derive(Clone, Debug)]
pub struct Computed {
    /// The kernel that ran; `none` when there was nothing to compute.
    pub kernel: &'static str,
    /// The inputs as the kernel saw them: rounded, and with one value where elements share an address.
    pub inputs: Inputs,
    /// `[B, Sq, Hq, Dv]`.
    pub o: Vec<f32>,
    /// `[B, Hq, Sq]`.
    pub lse: Vec<f32>,
    /// Which output changed outside its elements, and where; `None` when none did.
    pub spilled: Option<String>,
    /// How long the device took, copies of the results included.
    pub elapsed: Duration,
}

/// Runs one case with these numbers on `device`, `surroundings` around and between all elements of the
/// inputs; those of the outputs, and the outputs themselves, start as NaN.
///
/// # Errors
/// Errors of the problem, of the planner, and of the device.
pub fn compute(
    device: &Device,
    case: &Case,
    inputs: &Inputs,
    surroundings: Surroundings,
) -> Result<Computed> {
    let output_f32 = case.output_dtype == Dtype::F32;
    match case.dtype {
        Dtype::Bf16 if output_f32 => compute_typed::<bf16, f32>(device, case, inputs, surroundings),
        Dtype::Bf16 => compute_typed::<bf16, bf16>(device, case, inputs, surroundings),
        Dtype::F16 if output_f32 => compute_typed::<f16, f32>(device, case, inputs, surroundings),
        Dtype::F16 => compute_typed::<f16, f16>(device, case, inputs, surroundings),
        Dtype::F32 => compute_typed::<f32, f32>(device, case, inputs, surroundings),
    }
}

/// `T` is the element type of q, k and v, `O` that of o.
fn compute_typed<T: Element, O: Element>(
    device: &Device,
    case: &Case,
    inputs: &Inputs,
    surroundings: Surroundings,
) -> Result<Computed> {
    let problem = case.problem();
    let valid = problem.validate()?;
    let (lead, guard) = (case.placement.lead(), !case.tight);
    let input = |layout: Layout, numbers: &[f32]| {
        let values: Vec<T> = numbers.iter().copied().map(T::from_f32).collect();
        TensorMemory::new(device, layout, lead, guard, Some(&values), surroundings)
    };
    let q = input(problem.q, &inputs.q)?;
    let k = input(problem.k, &inputs.k)?;
    let v = input(problem.v, &inputs.v)?;
    let o = TensorMemory::<O>::new(device, problem.o, lead, true, None, Surroundings::Nan)?;
    let lse = TensorMemory::<f32>::new(device, lse_layout(&valid), 0, true, None, Surroundings::Nan)?;
    let pointers = ForwardPointers {
        q: q.pointer(),
        k: k.pointer(),
        v: v.pointer(),
        o: o.pointer(),
        lse: lse.pointer(),
        ..ForwardPointers::default()
    };
    let stream = Stream::default();
    let start = Instant::now();
    let plan = plan_forward(&valid, device.properties(), &pointers)?;
    if let Some(plan) = &plan {
        // SAFETY: each allocation holds its layout, is used by this call alone, and lives past
        // `synchronize`.
        unsafe { launch_forward(device, plan, stream) }?;
    }
    device.synchronize(stream)?;
    let (o, o_spilled) = o.read(stream)?;
    let (lse, lse_spilled) = lse.read(stream)?;
    let elapsed = start.elapsed();
    let spilled = [("o", o_spilled), ("lse", lse_spilled)].into_iter().find_map(|(name, place)| {
        place.map(|byte| format!("{name}: byte {byte} from its start is outside and was changed"))
    });
    let kernel = plan.map_or("none", |plan| plan.kernel.name);
    let inputs = Inputs { q: widened(q.written()), k: widened(k.written()), v: widened(v.written()) };
    Ok(Computed { kernel, inputs, o: widened(o), lse, spilled, elapsed })
}

/// Dense `[B, Hq, Sq]`, seen as a tensor with one column.
fn lse_layout(valid: &ValidForward) -> Layout {
    Layout::bshd([valid.batches as usize, valid.query_heads as usize, valid.query_rows as usize, 1])
}

fn widened<T: Element>(values: Vec<T>) -> Vec<f32> {
    values.into_iter().map(T::to_f32).collect()
}
