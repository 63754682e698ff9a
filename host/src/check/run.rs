//! Runs cases on a device and judges the results.

use super::judge::Results;
use super::{
    Case, Computed, Expected, GradientInputs, Inputs, Remembered, Surroundings, TensorVerdict,
    compute_with, expected,
};
use crate::device::Device;
use crate::error::Result;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// What came of a case.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The case.
    pub case: Case,
    /// The forward kernel that ran, with its switches; `none` when there was nothing to compute or no plan.
    pub kernel: String,
    /// The main kernel of the backward that ran, with its switches; `none` when there was none.
    pub backward_kernel: String,
    /// How o and lse, and the gradients that were asked for, compare with the reference; none
    /// when there is no result.
    pub tensors: Vec<TensorVerdict>,
    /// How many cases of this kind were judged as one; 1 unless chance had to be told from a fault.
    pub judged: usize,
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

/// Cases that are judged as one where a single one is beyond the tolerance rule by little.
const MANY: usize = 16;

/// Runs one case on `device` and compares it with the reference, with [`Inputs::drawn`].
pub fn run_case(device: &Device, case: &Case) -> Outcome {
    match run_case_with(device, case, Inputs::drawn) {
        Ok((outcome, _)) => outcome,
        Err(error) => Outcome {
            case: case.clone(),
            kernel: "none".to_owned(),
            backward_kernel: "none".to_owned(),
            tensors: Vec::new(),
            judged: 1,
            failure: Some(error.to_string()),
            elapsed: Duration::ZERO,
        },
    }
}

/// Runs one case on `device`, with the numbers that `numbers` gives for it and
/// [`GradientInputs::drawn`], and compares each tensor with the reference by the tolerance rule.
///
/// The rule compares the largest error in a tensor with the largest of unfused code, and where few rows
/// decide both, two equally good results fail it in one case of a thousand or two. So a failure by
/// less than a factor 2, or 8 of tensors of few elements, is judged again in company: the same case with
/// 15 more batches, with numbers from other seeds. The elements that failed are still among them.
///
/// # Errors
/// Errors of the problem, of the planner, and of the device.
pub fn run_case_with(
    device: &Device,
    case: &Case,
    numbers: impl Fn(&Case) -> Inputs,
) -> Result<(Outcome, Computed)> {
    judge_case(case, |case| compute_case(device, case, &numbers), expected)
}

/// As [`run_case_with`], of a case that is run again and again, with other kernels or under other schedules.
///
/// # Errors
/// As [`run_case_with`].
pub fn run_case_again(
    device: &Device,
    case: &Case,
    numbers: impl Fn(&Case) -> Inputs,
    remembered: &Remembered,
) -> Result<(Outcome, Computed)> {
    let expected = |case: &Case, inputs: &Inputs, gradients: &GradientInputs, o: &[f32]| {
        remembered.expected(case, inputs, gradients, o)
    };
    judge_case(case, |case| compute_case(device, case, &numbers), expected)
}

/// Compares what `compute` makes of a case with what is `expected`, as [`run_case_with`].
pub(super) fn judge_case(
    case: &Case,
    compute: impl Fn(&Case) -> Result<Computed>,
    expected: impl Fn(&Case, &Inputs, &GradientInputs, &[f32]) -> Expected,
) -> Result<(Outcome, Computed)> {
    let computed = compute(case)?;
    let mut results = Results::of(case, &computed, &expected);
    let mut tensors = results.verdicts();
    let mut judged = 1;
    if results.failure(&tensors).is_some() && results.is_close(&tensors) {
        while judged < MANY {
            let seed = case.seed.wrapping_add(judged as u64);
            let other = Case { seed, ..case.clone() };
            results.append(Results::of(&other, &compute(&other)?, &expected));
            judged += 1;
        }
        tensors = results.verdicts();
    }
    let gradients = computed.gradients.as_ref();
    let outcome = Outcome {
        case: case.clone(),
        kernel: computed.kernel.clone(),
        backward_kernel: gradients.map_or("none".to_owned(), |gradients| gradients.kernel.clone()),
        failure: computed.spilled.clone().or_else(|| results.failure(&tensors)),
        tensors,
        judged,
        elapsed: computed.elapsed,
    };
    Ok((outcome, computed))
}

fn compute_case(device: &Device, case: &Case, numbers: &impl Fn(&Case) -> Inputs) -> Result<Computed> {
    compute_with(device, case, &numbers(case), &GradientInputs::drawn(case), Surroundings::Nan)
}

/// Runs all cases in `workers` threads at once, each with a device of its own or a clone of one, as `open`
/// gives it. `finished` is called once per case, in any order; the outcomes come back in the order of
/// `cases`.
///
/// # Errors
/// The first error of `open`.
pub fn sweep(
    cases: &[Case],
    workers: usize,
    open: impl Fn() -> Result<Device> + Sync,
    finished: impl Fn(&Outcome) + Sync,
) -> Result<Vec<Outcome>> {
    sweep_of(cases.len(), |device, index| run_case(device, &cases[index]), workers, open, finished)
}

/// As [`sweep`], of `count` cases of any kind, which `run` runs by their index, each when its turn comes: no
/// number is too large to begin with.
///
/// # Errors
/// As [`sweep`].
pub fn sweep_of<O: Send>(
    count: usize,
    run: impl Fn(&Device, usize) -> O + Sync,
    workers: usize,
    open: impl Fn() -> Result<Device> + Sync,
    finished: impl Fn(&O) + Sync,
) -> Result<Vec<O>> {
    let next = AtomicUsize::new(0);
    let outcomes = Mutex::new(Vec::new());
    let work = || -> Result<()> {
        let device = open()?;
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= count {
                return Ok(());
            }
            let outcome = run(&device, index);
            finished(&outcome);
            outcomes.lock().unwrap_or_else(PoisonError::into_inner).push((index, outcome));
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..workers.clamp(1, count.max(1))).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|thread| match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })?;
    let mut outcomes = outcomes.into_inner().unwrap_or_else(PoisonError::into_inner);
    outcomes.sort_by_key(|(index, _)| *index);
    Ok(outcomes.into_iter().map(|(_, outcome)| outcome).collect())
}
