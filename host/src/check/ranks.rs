//! Cases whose sequences are shared out among ranks.

use super::compute::widened;
use super::run::judge_case;
use super::{Case, Computed, ComputedGradients, GradientInputs, Inputs, Outcome, ScoreInputs, expected};
use crate::attention::{BiasSlice, Element, Elements, MaskSlice, ScoreSlices};
use crate::context_parallel::host::{ContextInputs, ContextOutput, context_parallel_host, put, take};
use crate::context_parallel::{ContextLayout, LocalCommunicator};
use crate::device::Device;
use crate::error::Result;
use crate::problem::{Bias, Layout, ScoreLayout};
use half::{bf16, f16};
use kernels_gpu::abi::Dtype;
use std::time::Instant;

/// Runs one case over the ranks that `open` gives, each time anew, and compares it with the reference, by the
/// rule for a single device. Scores have no slopes and no dropout; gradients are of the dtype of o.
///
/// # Errors
/// Errors of the problem, of the devices, and of the ranks.
pub fn run_case_over_ranks(
    open: impl Fn() -> Result<Vec<(Device, LocalCommunicator)>>,
    layout: ContextLayout,
    case: &Case,
) -> Result<(Outcome, Computed)> {
    judge_case(case, |case| compute_over_ranks(open()?, layout, case), expected)
}

/// What ranks make of a case.
///
/// # Errors
/// As [`run_case_over_ranks`].
pub fn compute_over_ranks(
    ranks: Vec<(Device, LocalCommunicator)>,
    layout: ContextLayout,
    case: &Case,
) -> Result<Computed> {
    let compute = match (case.dtype, case.output_dtype) {
        (Dtype::Bf16, Dtype::F32) => compute_typed::<bf16, f32>,
        (Dtype::Bf16, _) => compute_typed::<bf16, bf16>,
        (Dtype::F16, Dtype::F32) => compute_typed::<f16, f32>,
        (Dtype::F16, _) => compute_typed::<f16, f16>,
        (Dtype::F32, _) => compute_typed::<f32, f32>,
    };
    compute(ranks, layout, case)
}

/// Elements as they stand in a layout, of numbers in logical order; 0 between them.
fn placed<T: Element>(layout: &Layout, numbers: &[f32]) -> Vec<T> {
    let mut elements = vec![T::from_f32(0.0); layout.span()];
    let rounded: Vec<T> = numbers.iter().copied().map(T::from_f32).collect();
    put(&mut elements, layout, &all_rows(layout), &rounded);
    elements
}

/// Numbers in logical order, of elements as they stand in a layout.
fn logical<T: Element>(layout: &Layout, elements: &[T]) -> Vec<f32> {
    widened(take(elements, layout, &all_rows(layout)))
}

/// As [`placed`], of a tensor over scores.
fn placed_over_scores<T: Element>(layout: &ScoreLayout, numbers: &[f32]) -> Vec<T> {
    let mut elements = vec![T::from_f32(0.0); layout.span()];
    let places = places_over_scores(layout).into_iter().zip(numbers);
    places.for_each(|(place, &number)| elements[place] = T::from_f32(number));
    elements
}

/// As [`logical`], of a tensor over scores.
fn over_scores(layout: &ScoreLayout, elements: &[f32]) -> Vec<f32> {
    places_over_scores(layout).into_iter().map(|place| elements[place]).collect()
}

/// Where its elements stand, in logical order.
fn places_over_scores(layout: &ScoreLayout) -> Vec<usize> {
    let [batches, heads, queries, keys] = layout.shape;
    let rows = (0..batches).flat_map(|batch| (0..heads).map(move |head| (batch, head)));
    let rows = rows.flat_map(|(batch, head)| (0..queries).map(move |query| [batch, head, query]));
    let place = |[batch, head, query]: [usize; 3], key| {
        layout.origin().wrapping_add_signed(layout.offset([batch, head, query, key]))
    };
    rows.flat_map(|row| (0..keys).map(move |key| place(row, key))).collect()
}

fn all_rows(layout: &Layout) -> Vec<usize> {
    (0..layout.shape[1]).collect()
}

fn compute_typed<T: Element, O: Element>(
    ranks: Vec<(Device, LocalCommunicator)>,
    layout: ContextLayout,
    case: &Case,
) -> Result<Computed> {
    let (drawn, gradients) = (Inputs::drawn(case), GradientInputs::drawn(case));
    let (problem, backward) = (case.problem(), case.backward_problem());
    let [cu_seqlens_q, cu_seqlens_k] = if case.packed { case.offsets() } else { Default::default() };
    let (q, k, v) = (
        placed::<T>(&problem.q, &drawn.q),
        placed::<T>(&problem.k, &drawn.k),
        placed::<T>(&problem.v, &drawn.v),
    );
    let bias = case.bias().map(|Bias { layout, dtype }| {
        let numbers = &drawn.scores.bias;
        let in_f32 = || Err(placed_over_scores::<f32>(&layout, numbers));
        let like_q = || Ok(placed_over_scores::<T>(&layout, numbers));
        (layout, if dtype == Dtype::F32 && T::DTYPE != Dtype::F32 { in_f32() } else { like_q() })
    });
    let mask = case.mask_layout().map(|layout| {
        let numbers: Vec<f32> =
            drawn.scores.mask.iter().map(|&shows| f32::from(u8::from(shows))).collect();
        let elements = placed_over_scores::<f32>(&layout, &numbers);
        (layout, elements.into_iter().map(|number| number != 0.0).collect::<Vec<bool>>())
    });
    let d_o = backward.map_or(Vec::new(), |backward| placed::<T>(&backward.d_o, &gradients.d_o));
    let inputs = ContextInputs {
        q: &q,
        k: &k,
        v: &v,
        d_o: &d_o,
        d_lse: &gradients.d_lse,
        cu_seqlens_q: &cu_seqlens_q,
        cu_seqlens_k: &cu_seqlens_k,
        scores: ScoreSlices {
            bias: bias.as_ref().map(|bias| match bias {
                (_, Ok(like_q)) => BiasSlice::LikeQ(like_q),
                (_, Err(in_f32)) => BiasSlice::F32(in_f32),
            }),
            mask: mask.as_ref().map(|(layout, elements)| MaskSlice { layout: *layout, elements }),
            sinks: &drawn.scores.sinks,
            ..ScoreSlices::default()
        },
    };
    let start = Instant::now();
    let count = ranks.len();
    let ContextOutput { forward, gradients: got } =
        context_parallel_host::<T, O>(ranks, layout, &problem, backward.as_ref(), &inputs)?;
    let elapsed = start.elapsed();
    let kernel = format!("{count} ranks, {layout}");
    let gradients = backward.zip(got).map(|(backward, got)| ComputedGradients {
        kernel: kernel.clone(),
        inputs: GradientInputs { d_o: logical(&backward.d_o, &d_o), d_lse: gradients.d_lse.clone() },
        dq: logical(&backward.dq, &got.dq),
        dk: logical(&backward.dk, &got.dk),
        dv: logical(&backward.dv, &got.dv),
        d_bias: backward.d_bias.zip(got.d_bias).map_or(Vec::new(), |(d_bias, elements)| {
            let numbers = match elements {
                Elements::Bf16(elements) => widened(elements),
                Elements::F16(elements) => widened(elements),
                Elements::F32(elements) => elements,
            };
            over_scores(&d_bias.layout, &numbers)
        }),
        d_sinks: got.d_sinks,
        spilled: None,
    });
    let scores = ScoreInputs {
        bias: bias.map_or(Vec::new(), |(layout, elements)| match elements {
            Ok(like_q) => over_scores(&layout, &widened(like_q)),
            Err(in_f32) => over_scores(&layout, &in_f32),
        }),
        ..drawn.scores
    };
    let inputs = Inputs {
        q: logical(&problem.q, &q),
        k: logical(&problem.k, &k),
        v: logical(&problem.v, &v),
        scores,
    };
    let o = logical(&problem.o, &forward.o);
    Ok(Computed { kernel, inputs, o, lse: forward.lse, gradients, spilled: None, elapsed })
}
