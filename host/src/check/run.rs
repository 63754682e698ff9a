//! Runs cases on a device and judges the results.

use super::{Case, Computed, Inputs, Surroundings, compute};
use crate::device::Device;
use crate::error::Result;
use crate::reference::{Precision, Verdict, exact, judge_lse, judge_output, naive, output_allowance};
use kernels_gpu::abi::Dtype;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// What came of a case.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The case.
    pub case: Case,
    /// The kernel that ran; `none` when there was nothing to compute or no plan.
    pub kernel: &'static str,
    /// How o compares with the reference; `None` when there is no result.
    pub o: Option<Verdict>,
    /// How lse compares with the reference; `None` when there is no result.
    pub lse: Option<Verdict>,
    /// Why the case failed; `None` when it passed.
    pub failure: Option<String>,
    /// How long the device took, copies included.
    pub elapsed: Duration,
}

/// Runs one case on `device` and compares it with the reference.
pub fn run_case(device: &Device, case: &Case) -> Outcome {
    match compute(device, case, &Inputs::normal(case), Surroundings::Nan) {
        Ok(computed) => judge(case, &computed),
        Err(error) => Outcome {
            case: case.clone(),
            kernel: "none",
            o: None,
            lse: None,
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

/// Compares what a device computed with the reference.
pub fn judge(case: &Case, computed: &Computed) -> Outcome {
    let sizes = case.sizes();
    let Inputs { q, k, v } = &computed.inputs;
    let (input, output) = (precision(case.dtype), precision(case.output_dtype));
    let exact = exact(&sizes, q, k, v);
    let naive = naive(&sizes, input, output, q, k, v);
    let o = judge_output(&computed.o, &exact.o, output_allowance(&naive.o, &exact.o, output));
    let lse = judge_lse(&computed.lse, &exact.lse);
    let failure = computed
        .spilled
        .clone()
        .or_else(|| describe("o", &o, &computed.o, &exact.o))
        .or_else(|| describe("lse", &lse, &computed.lse, &exact.lse));
    Outcome {
        case: case.clone(),
        kernel: computed.kernel,
        o: Some(o),
        lse: Some(lse),
        failure,
        elapsed: computed.elapsed,
    }
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

fn precision(dtype: Dtype) -> Precision {
    match dtype {
        Dtype::Bf16 => Precision::Bf16,
        Dtype::F16 => Precision::F16,
        Dtype::F32 => Precision::F32,
    }
}
