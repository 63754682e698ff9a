//! The tolerance rule, for whatever numbers a property asks for.

use finite_attention::check::{Case, Computed, Inputs, run_case_with};
use finite_attention::reference::Precision;
use finite_attention::{Device, Dtype};

/// Runs a case with the numbers that `numbers` gives for it (random ones for the gradients of o and
/// lse): o, lse and the gradients within the tolerance rule ([`run_case_with`]), and nothing written
/// outside of them.
///
/// # Errors
/// What is wrong.
pub fn within_the_rule(
    device: &Device,
    case: &Case,
    numbers: impl Fn(&Case) -> Inputs,
) -> Result<Computed, String> {
    let (outcome, computed) = run_case_with(device, case, numbers).map_err(|error| error.to_string())?;
    match outcome.failure {
        None => Ok(computed),
        Some(failure) => Err(format!("{} {}: {failure}", outcome.kernel, outcome.backward_kernel)),
    }
}

/// The element type as the reference sees it.
pub fn precision(dtype: Dtype) -> Precision {
    match dtype {
        Dtype::Bf16 => Precision::Bf16,
        Dtype::F16 => Precision::F16,
        Dtype::F32 => Precision::F32,
    }
}
