//! Cases whose keys are taken apart: passes over some of them each, forward and backward, one after the
//! other.

use super::backward::run_plan;
use super::compute::{input, spill, widened};
use super::run::judge_case;
use super::scores::ScoreMemory;
use super::{
    Case, Computed, ComputedGradients, GradientInputs, Gradients, Inputs, Outcome, ScoreInputs,
    Surroundings, TensorMemory, expected,
};
use crate::attention::{Element, launch_forward};
use crate::device::Device;
use crate::driver::Stream;
use crate::error::Result;
use crate::plan::{
    BackwardPointers, ForwardPointers, PartialBackward, PartialForward, plan_backward,
    plan_backward_partial, plan_forward_partial,
};
use crate::problem::{BackwardProblem, CausalAlignment, Layout, Mask, Precision};
use half::{bf16, f16};
use kernels_gpu::abi::Dtype;
use std::ops::Range;
use std::time::Instant;

/// As [`super::run_case_with`], in passes over these keys each, in this order, and backward in the other one:
/// all of them together are the keys of the case, each once. The case is not packed, and has neither dBias
/// nor dSinks. Its mask hides nothing, or keys before a diagonal that starts at the top left, or keys behind
/// one that ends at the bottom right: of those each pass has a mask of its own. Where gradients are f32 every
/// other pass adds dk and dv to themselves.
///
/// # Errors
/// Errors of the problem, of the planner, and of the device.
///
/// # Panics
/// If the case has another mask: what a pass sees of it is no mask of its own.
pub fn run_case_in_parts(
    device: &Device,
    case: &Case,
    parts: &[Range<usize>],
) -> Result<(Outcome, Computed)> {
    let compute = match (case.dtype, case.output_dtype) {
        (Dtype::Bf16, Dtype::F32) => compute_typed::<bf16, f32>,
        (Dtype::Bf16, _) => compute_typed::<bf16, bf16>,
        (Dtype::F16, Dtype::F32) => compute_typed::<f16, f32>,
        (Dtype::F16, _) => compute_typed::<f16, f16>,
        (Dtype::F32, _) => compute_typed::<f32, f32>,
    };
    judge_case(case, |case| compute(device, case, parts), expected)
}

/// What passes over the same queries share.
struct Queries<'d, T, O> {
    q: TensorMemory<'d, T>,
    o: TensorMemory<'d, O>,
    lse: TensorMemory<'d, f32>,
}

/// The keys of a pass, and what goes with them.
struct Keys<'d, T> {
    case: Case,
    rows: Range<usize>,
    k: TensorMemory<'d, T>,
    v: TensorMemory<'d, T>,
    scores: ScoreMemory<'d, T>,
}

const NAN: Surroundings = Surroundings::Nan;

impl<'d, T: Element> Keys<'d, T> {
    fn new(device: &'d Device, whole: &Case, drawn: &Inputs, rows: Range<usize>) -> Result<Self> {
        let mask = mask_of_part(whole.mask, &rows, whole.key_rows).expect("a mask that parts can have");
        let case = Case { key_rows: rows.len(), mask, ..whole.clone() };
        let (problem, numbers) = (case.problem(), inputs_of(whole, drawn, &rows));
        let k = input(device, &case, problem.k, &numbers.k, NAN)?;
        let v = input(device, &case, problem.v, &numbers.v, NAN)?;
        let scores = ScoreMemory::new(device, &case, &numbers.scores, NAN)?;
        Ok(Keys { case, rows, k, v, scores })
    }
}

fn compute_typed<T: Element, O: Element>(
    device: &Device,
    case: &Case,
    parts: &[Range<usize>],
) -> Result<Computed> {
    let (problem, drawn, stream) = (case.problem(), Inputs::drawn(case), Stream::default());
    let [batches, rows, heads, _] = problem.q.shape;
    let queries = Queries::<T, O> {
        q: input(device, case, problem.q, &drawn.q, NAN)?,
        o: TensorMemory::new(device, problem.o, case.placement.lead(), true, None, NAN)?,
        lse: TensorMemory::new(device, Layout::bshd([batches, heads, rows, 1]), 0, true, None, NAN)?,
    };
    let passes = parts.iter().map(|rows| Keys::<T>::new(device, case, &drawn, rows.clone()));
    let passes = passes.collect::<Result<Vec<_>>>()?;
    let start = Instant::now();
    let (kernel, state_spilled) = forward(device, case, &queries, &passes)?;
    let gradients = match case.gradients {
        None => None,
        Some(Gradients { dtype: Dtype::F32, .. }) => {
            Some(backward::<T, O, f32>(device, case, &queries, &passes)?)
        }
        Some(_) => Some(backward::<T, O, T>(device, case, &queries, &passes)?),
    };
    let elapsed = start.elapsed();
    let ((o, o_spilled), (lse, lse_spilled)) = (queries.o.read(stream)?, queries.lse.read(stream)?);
    let spilled = spill([("o", o_spilled), ("lse", lse_spilled), ("state", state_spilled)]);
    let spilled = spilled.or_else(|| gradients.as_ref().and_then(|gradients| gradients.spilled.clone()));
    // What kernels saw is rounded.
    let whole = Keys::<T>::new(device, case, &drawn, 0..case.key_rows)?;
    let [q, k, v] = [&queries.q, &whole.k, &whole.v].map(|tensor| widened(tensor.written()));
    let inputs = Inputs { q, k, v, scores: whole.scores.written() };
    Ok(Computed { kernel, inputs, o: widened(o), lse, gradients, spilled, elapsed })
}

/// The kernels that ran, and where the state changed outside of its bytes.
fn forward<T: Element, O: Element>(
    device: &Device,
    case: &Case,
    queries: &Queries<'_, T, O>,
    passes: &[Keys<'_, T>],
) -> Result<(String, Option<isize>)> {
    let (mut kernels, stream) = (Vec::new(), Stream::default());
    let state = state(device, case, case.problem().validate()?.state_bytes())?;
    for (number, keys) in passes.iter().enumerate() {
        let pointers = ForwardPointers {
            q: queries.q.pointer(),
            k: keys.k.pointer(),
            v: keys.v.pointer(),
            o: queries.o.pointer(),
            lse: queries.lse.pointer(),
            score: keys.scores.pointers(),
            ..ForwardPointers::default()
        };
        let partial = PartialForward {
            state: state.pointer(),
            is_first: number == 0,
            is_last: number + 1 == passes.len(),
            total_keys: case.key_rows as u32,
        };
        let valid = keys.case.problem().validate()?;
        if let Some(plan) = plan_forward_partial(&valid, device.properties(), &pointers, &partial)? {
            // SAFETY: each allocation holds its layout, is used by these passes alone, and lives past
            // `synchronize`.
            unsafe { launch_forward(device, &plan, stream) }?;
            kernels.push(plan.variant.to_string());
        }
    }
    device.synchronize(stream)?;
    Ok((kernels.join(", "), state.read(stream)?.1))
}

fn backward<T: Element, O: Element, G: Element>(
    device: &Device,
    case: &Case,
    queries: &Queries<'_, T, O>,
    passes: &[Keys<'_, T>],
) -> Result<ComputedGradients> {
    let problem = case.backward_problem().expect("the case has gradients");
    let (drawn, stream) = (GradientInputs::drawn(case), Stream::default());
    let d_o = input::<T>(device, case, problem.d_o, &drawn.d_o, NAN)?;
    let d_lse = Layout::bshd([1, 1, 1, drawn.d_lse.len()]);
    let d_lse = input::<f32>(device, case, d_lse, &drawn.d_lse, NAN)?;
    let dq = TensorMemory::<G>::new(device, problem.dq, case.placement.lead(), true, None, NAN)?;
    let state = state(device, case, problem.validate()?.state_bytes())?;
    let key_rows = case.batches * case.key_rows * case.key_heads;
    let mut dk = vec![f32::NAN; key_rows * case.head_dim];
    let mut dv = vec![f32::NAN; key_rows * case.value_dim];
    let (mut kernels, mut spilled) = (Vec::new(), None);
    for (number, keys) in passes.iter().rev().enumerate() {
        let problem = keys.case.backward_problem().expect("the case has gradients");
        let adds_to_keys = problem.gradient_dtype == Dtype::F32 && number % 2 == 1;
        let target = |layout: Layout| {
            TensorMemory::<G>::new(device, layout, case.placement.lead(), !case.tight, None, NAN)
        };
        let (dk_part, dv_part) = (target(problem.dk)?, target(problem.dv)?);
        let pointers = BackwardPointers {
            q: queries.q.pointer(),
            k: keys.k.pointer(),
            v: keys.v.pointer(),
            o: queries.o.pointer(),
            d_o: d_o.pointer(),
            dq: dq.pointer(),
            dk: dk_part.pointer(),
            dv: dv_part.pointer(),
            lse: queries.lse.pointer(),
            d_lse: d_lse.pointer(),
            score: keys.scores.pointers(),
            ..BackwardPointers::default()
        };
        let partial = PartialBackward {
            state: state.pointer(),
            is_first: number == 0,
            is_last: number + 1 == passes.len(),
            dq_dtype: problem.gradient_dtype,
            adds_to_keys,
        };
        let valid = problem.validate()?;
        if adds_to_keys {
            // What it is added to are the same gradients.
            let spare = target(problem.dq)?;
            let alone = BackwardPointers { dq: spare.pointer(), ..pointers };
            // As all passes over some of the keys are.
            let forward = problem.forward.with_precision(Precision::Fma);
            let of_fma = BackwardProblem { forward, ..problem }.validate()?;
            run_plan(device, &plan_backward(&of_fma, device.properties(), &alone)?)?;
        }
        let plan = plan_backward_partial(&valid, device.properties(), &pointers, &partial)?;
        let workspace_spilled = run_plan(device, &plan)?;
        kernels.extend(plan.launches.iter().map(|launch| launch.variant.to_string()));
        let ((own_dk, dk_spilled), (own_dv, dv_spilled)) =
            (dk_part.read(stream)?, dv_part.read(stream)?);
        let share = |gradient: Vec<G>| {
            let factor = if adds_to_keys { 0.5 } else { 1.0 };
            widened(gradient).into_iter().map(|twice| factor * twice).collect::<Vec<f32>>()
        };
        put_rows(case, &mut dk, &keys.rows, &share(own_dk));
        put_rows(case, &mut dv, &keys.rows, &share(own_dv));
        spilled = spilled.or(spill([
            ("dk", dk_spilled),
            ("dv", dv_spilled),
            ("workspace", workspace_spilled),
        ]));
    }
    let ((dq, dq_spilled), (_, state_spilled)) = (dq.read(stream)?, state.read(stream)?);
    Ok(ComputedGradients {
        kernel: kernels.join(", "),
        inputs: GradientInputs { d_o: widened(d_o.written()), d_lse: d_lse.written() },
        dq: widened(dq),
        dk,
        dv,
        d_bias: Vec::new(),
        d_sinks: Vec::new(),
        spilled: spilled.or(spill([("dq", dq_spilled), ("state", state_spilled)])),
    })
}

/// A state, NaN at first.
fn state<'d>(device: &'d Device, case: &Case, bytes: u64) -> Result<TensorMemory<'d, f32>> {
    let layout = Layout::bshd([1, 1, 1, (bytes / 4) as usize]);
    TensorMemory::new(device, layout, 0, !case.tight, None, NAN)
}

/// Puts the rows of a pass, `[B, rows, ...]`, where they belong in `[B, Sk, ...]`.
fn put_rows(case: &Case, whole: &mut [f32], rows: &Range<usize>, own: &[f32]) {
    let row = whole.len() / (case.batches * case.key_rows).max(1);
    for batch in 0..case.batches {
        let first = (batch * case.key_rows + rows.start) * row;
        let length = rows.len() * row;
        whole[first..][..length].copy_from_slice(&own[batch * length..][..length]);
    }
}

/// The mask under which a pass over some of `key_rows` keys sees what it does under that of all; none where
/// no mask says it, as diagonals end outside of the keys of the pass.
pub fn mask_of_part(whole: Mask, keys: &Range<usize>, key_rows: usize) -> Option<Mask> {
    use CausalAlignment::{BottomRight, TopLeft};
    let before = |left: u32| left + keys.start as u32;
    let behind = |right: u32| right + (key_rows - keys.end) as u32;
    match whole {
        Mask::Full => Some(Mask::Full),
        Mask::Window { left: Some(left), right: None, alignment: TopLeft } => {
            Some(Mask::Window { left: Some(before(left)), right: None, alignment: TopLeft })
        }
        Mask::Window { left: None, right: Some(right), alignment: BottomRight } => {
            Some(Mask::Window { left: None, right: Some(behind(right)), alignment: BottomRight })
        }
        Mask::Causal(BottomRight) => {
            Some(Mask::Window { left: None, right: Some(behind(0)), alignment: BottomRight })
        }
        _ => None,
    }
}

/// What of the numbers of a case a pass over some of its keys has.
fn inputs_of(case: &Case, drawn: &Inputs, keys: &Range<usize>) -> Inputs {
    // [B, Sk, ...]: some of the rows of each batch.
    let rows = |numbers: &[f32], columns: usize| -> Vec<f32> {
        let row = case.key_heads * columns;
        let batches = numbers.chunks_exact((case.key_rows * row).max(1));
        batches.flat_map(|batch| batch[keys.start * row..keys.end * row].to_vec()).collect()
    };
    Inputs {
        q: drawn.q.clone(),
        k: rows(&drawn.k, case.head_dim),
        v: rows(&drawn.v, case.value_dim),
        scores: ScoreInputs {
            bias: columns(&drawn.scores.bias, case.bias().map(|bias| bias.layout.shape), keys),
            mask: columns(&drawn.scores.mask, case.mask_layout().map(|layout| layout.shape), keys),
            ..drawn.scores.clone()
        },
    }
}

/// What a pass over some of the keys has of a tensor over scores, `[.., .., .., Sk|1]`.
fn columns<N: Copy>(numbers: &[N], shape: Option<[usize; 4]>, keys: &Range<usize>) -> Vec<N> {
    match shape {
        None | Some([.., 0 | 1]) => numbers.to_vec(),
        Some([.., count]) => {
            numbers.chunks_exact(count).flat_map(|row| row[keys.clone()].to_vec()).collect()
        }
    }
}
