//! The tolerance rule, for whatever numbers a property asks for.

use crate::compare::run;
use finite_attention::Device;
use finite_attention::Dtype;
use finite_attention::check::{Case, Computed, Inputs, Surroundings, judge};
use finite_attention::reference::Precision;

/// Runs a case with these numbers (random ones for the gradients of o and lse): o, lse and the gradients
/// within the tolerance rule, and nothing written outside of them.
///
/// # Errors
/// What is wrong.
pub fn within_the_rule(device: &Device, case: &Case, inputs: &Inputs) -> Result<Computed, String> {
    let computed = run(device, case, inputs, Surroundings::Nan)?;
    match judge(case, &computed).failure {
        None => Ok(computed),
        Some(failure) => {
            let backward = computed.gradients.as_ref().map_or("", |gradients| gradients.kernel);
            Err(format!("{} {backward}: {failure}", computed.kernel))
        }
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
