//! Runs a case on a device and judges the results.

use super::{MsdaCase, MsdaComputed, MsdaNumbers, compute_msda, judge_msda};
use crate::check::{Surroundings, TensorVerdict};
use crate::device::Device;
use crate::error::Result;
use std::time::Duration;

/// What came of a case.
#[derive(Clone, Debug)]
pub struct MsdaOutcome {
    /// The case.
    pub case: MsdaCase,
    /// The kernels that ran.
    pub kernels: Vec<&'static str>,
    /// o, dvalue, dlocations and dweights against the reference; none when there is no result.
    pub tensors: Vec<TensorVerdict>,
    /// Why the case failed; `None` when it passed.
    pub failure: Option<String>,
    /// How long the device took, copies included.
    pub elapsed: Duration,
}

/// Runs one case with [`MsdaNumbers::drawn`] on `device` and compares it with the reference.
pub fn run_msda_case(device: &Device, case: &MsdaCase) -> MsdaOutcome {
    match run_msda_case_with(device, case, &MsdaNumbers::drawn(case)) {
        Ok((outcome, _)) => outcome,
        Err(error) => MsdaOutcome {
            case: case.clone(),
            kernels: Vec::new(),
            tensors: Vec::new(),
            failure: Some(error.to_string()),
            elapsed: Duration::ZERO,
        },
    }
}

/// As [`run_msda_case`], with these numbers.
///
/// # Errors
/// Errors of the problem, of the planner, and of the device.
pub fn run_msda_case_with(
    device: &Device,
    case: &MsdaCase,
    numbers: &MsdaNumbers,
) -> Result<(MsdaOutcome, MsdaComputed)> {
    let computed = compute_msda(device, case, numbers, Surroundings::Nan)?;
    let tensors = judge_msda(case, &computed);
    let wrong = tensors.iter().find(|tensor| !tensor.verdict.passes()).map(|tensor| {
        let verdict = &tensor.verdict;
        let place = verdict.worst.map_or(String::new(), |worst| format!(" at element {worst}"));
        format!("{}: error {:e}{place}, allowed {:e}", tensor.name, verdict.error, verdict.allowed)
    });
    let outcome = MsdaOutcome {
        case: case.clone(),
        kernels: computed.kernels.clone(),
        tensors,
        failure: computed.spilled.clone().or(wrong),
        elapsed: computed.elapsed,
    };
    Ok((outcome, computed))
}
