//! Runs cases on a device and judges the results.

use super::expected::precision;
use super::{Case, Computed, Expected, GradientInputs, Inputs, Surroundings, compute_with, expected};
use crate::device::Device;
use crate::error::Result;
use crate::reference::{Verdict, judge_gradient, judge_lse, judge_output, output_allowance};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// How one output of a case compares with the reference.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TensorVerdict {
    /// `o`, `lse`, `dq`, `dk` or `dv`.
    pub name: &'static str,
    /// The largest error, and what is allowed.
    pub verdict: Verdict,
    /// The largest difference over the largest exact element in size; 0 when both are.
    pub relative: f64,
    /// Elements that are NaN or infinite although the exact ones are finite.
    pub non_finite: usize,
    /// The first of them.
    pub first_non_finite: Option<usize>,
}

impl TensorVerdict {
    fn new(name: &'static str, verdict: Verdict, got: &[f32], exact: &[f64]) -> Self {
        let largest = |numbers: &mut dyn Iterator<Item = f64>| {
            numbers.filter(|number| number.is_finite()).fold(0.0, f64::max)
        };
        let size = largest(&mut exact.iter().map(|exact| exact.abs()));
        let pairs = got.iter().zip(exact);
        let error = largest(&mut pairs.clone().map(|(&got, exact)| (f64::from(got) - exact).abs()));
        let mut wrong = pairs.map(|(got, exact)| exact.is_finite() && !got.is_finite());
        let first_non_finite = wrong.clone().position(|wrong| wrong);
        let non_finite = wrong.by_ref().filter(|&wrong| wrong).count();
        let relative = if error == 0.0 { 0.0 } else { error / size };
        TensorVerdict { name, verdict, relative, non_finite, first_non_finite }
    }
}

/// What came of a case.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The case.
    pub case: Case,
    /// The forward kernel that ran; `none` when there was nothing to compute or no plan.
    pub kernel: &'static str,
    /// The main kernel of the backward that ran; `none` when there was none.
    pub backward_kernel: &'static str,
    /// How o and lse, and dq, dk and dv where they were asked for, compare with the reference; none when
    /// there is no result.
    pub tensors: Vec<TensorVerdict>,
    /// Why the case failed; `None` when it passed.
    pub failure: Option<String>,
    /// How long the device took, copies included.
    pub elapsed: Duration,
}

impl Outcome {
    /// The output of this name, if there is one.
    pub fn tensor(&self, name: &str) -> Option<&TensorVerdict> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }
}

/// Runs one case on `device` and compares it with the reference.
pub fn run_case(device: &Device, case: &Case) -> Outcome {
    let (inputs, gradients) = (Inputs::drawn(case), GradientInputs::drawn(case));
    match compute_with(device, case, &inputs, &gradients, Surroundings::Nan) {
        Ok(computed) => judge(case, &computed),
        Err(error) => Outcome {
            case: case.clone(),
            kernel: "none",
            backward_kernel: "none",
            tensors: Vec::new(),
            failure: Some(error.to_string()),
            elapsed: Duration::ZERO,
        },
    }
}

/// Runs all cases on `workers` devices at once, each opened by `open` and used by one thread. `finished`
/// is called once per case, in any order; the outcomes come back in the order of `cases`.
///
/// # Errors
/// The first error of `open`.
pub fn sweep(
    cases: &[Case],
    workers: usize,
    open: impl Fn() -> Result<Device> + Sync,
    finished: impl Fn(&Outcome) + Sync,
) -> Result<Vec<Outcome>> {
    let next = AtomicUsize::new(0);
    let outcomes = Mutex::new(Vec::with_capacity(cases.len()));
    let work = || -> Result<()> {
        let device = open()?;
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(case) = cases.get(index) else { return Ok(()) };
            let outcome = run_case(&device, case);
            finished(&outcome);
            outcomes.lock().unwrap_or_else(PoisonError::into_inner).push((index, outcome));
        }
    };
    if workers <= 1 {
        work()?; // in this thread: a CUDA context is current in the thread that opened it
    } else {
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
            threads.into_iter().try_for_each(|thread| match thread.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            })
        })?;
    }
    let mut outcomes = outcomes.into_inner().unwrap_or_else(PoisonError::into_inner);
    outcomes.sort_by_key(|(index, _)| *index);
    Ok(outcomes.into_iter().map(|(_, outcome)| outcome).collect())
}

/// Compares what a device computed with the reference: each tensor by the tolerance rule
/// ([`output_allowance`]).
pub fn judge(case: &Case, computed: &Computed) -> Outcome {
    let nothing = GradientInputs { d_o: Vec::new(), d_lse: Vec::new() };
    let gradients = computed.gradients.as_ref();
    let gradient_inputs = gradients.map_or(&nothing, |gradients| &gradients.inputs);
    let expected = expected(case, &computed.inputs, gradient_inputs);
    let mut failure = computed.spilled.clone();
    let mut tensors = Vec::new();
    for (name, got, exact, verdict) in verdicts(case, computed, &expected) {
        failure = failure.or_else(|| describe(name, &verdict, got, exact));
        tensors.push(TensorVerdict::new(name, verdict, got, exact));
    }
    Outcome {
        case: case.clone(),
        kernel: computed.kernel,
        backward_kernel: gradients.map_or("none", |gradients| gradients.kernel),
        tensors,
        failure,
        elapsed: computed.elapsed,
    }
}

/// Name, values, exact values and verdict of an output.
type Judged<'c> = (&'static str, &'c [f32], &'c [f64], Verdict);

/// Every output by its rule.
fn verdicts<'c>(case: &Case, computed: &'c Computed, expected: &'c Expected) -> Vec<Judged<'c>> {
    let allowed = output_allowance(&expected.naive_o, &expected.o, precision(case.output_dtype));
    let o = judge_output(&computed.o, &expected.o, allowed);
    let lse = judge_lse(&computed.lse, &expected.lse);
    let mut all = vec![
        ("o", computed.o.as_slice(), expected.o.as_slice(), o),
        ("lse", &computed.lse, &expected.lse, lse),
    ];
    let asked = case.gradients.zip(computed.gradients.as_ref()).zip(expected.gradients.as_ref());
    if let Some(((asked, got), (exact, naive))) = asked {
        let output = precision(asked.dtype);
        for (name, got, exact, naive) in [
            ("dq", &got.dq, &exact.dq, &naive.dq),
            ("dk", &got.dk, &exact.dk, &naive.dk),
            ("dv", &got.dv, &exact.dv, &naive.dv),
        ] {
            let allowed = output_allowance(naive, exact, output);
            all.push((name, got, exact, judge_gradient(got, exact, allowed, output)));
        }
    }
    all
}

/// The worst element, unless the tensor passes.
fn describe(name: &str, verdict: &Verdict, got: &[f32], exact: &[f64]) -> Option<String> {
    if verdict.passes() {
        return None;
    }
    let Some(index) = verdict.worst else {
        return Some(format!("{name}: expected {} elements, got {}", exact.len(), got.len()));
    };
    let (got, exact, Verdict { error, allowed, .. }) = (got[index], exact[index], verdict);
    Some(format!(
        "{name}: element {index}: expected {exact}, got {got} (error {error:.2e}, allowed {allowed:.2e})"
    ))
}
