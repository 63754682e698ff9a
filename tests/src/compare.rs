//! What the properties compare.

use crate::property::Finding;
use finite_attention::Device;
use finite_attention::check::{Case, Computed, Inputs, Surroundings, compute, judge};

/// Runs a case; an error of the device, findings of the emulator among them, is what is wrong with the case.
///
/// # Errors
/// The text of the error.
pub fn run(
    device: &Device,
    case: &Case,
    inputs: &Inputs,
    surroundings: Surroundings,
) -> Result<Computed, String> {
    compute(device, case, inputs, surroundings).map_err(|error| error.to_string())
}

/// o and lse within the tolerance rule, and nothing written outside of them.
///
/// # Errors
/// What is wrong.
pub fn passes(case: &Case, computed: &Computed) -> Finding {
    judge(case, computed)
        .failure
        .map_or(Ok(()), |failure| Err(format!("{}: {failure}", computed.kernel)))
}

/// o and lse of both results are the same, bit by bit.
///
/// # Errors
/// Where they differ first.
pub fn identical(what: &str, left: &Computed, right: &Computed) -> Finding {
    same_bits(&format!("{what}: o"), &left.o, &right.o)?;
    same_bits(&format!("{what}: lse"), &left.lse, &right.lse)
}

/// Two tensors are the same, bit by bit.
///
/// # Errors
/// Where they differ first.
pub fn same_bits(what: &str, left: &[f32], right: &[f32]) -> Finding {
    if left.len() != right.len() {
        return Err(format!("{what}: {} and {} elements", left.len(), right.len()));
    }
    let different = left.iter().zip(right).position(|(left, right)| left.to_bits() != right.to_bits());
    different
        .map_or(Ok(()), |at| Err(format!("{what}: element {at} is {:e} and {:e}", left[at], right[at])))
}

/// Every element of o is finite, and of lse too unless the row is dead.
///
/// # Errors
/// The first element that is not.
pub fn finite(case: &Case, computed: &Computed) -> Finding {
    if let Some(at) = computed.o.iter().position(|o| !o.is_finite()) {
        return Err(format!("{}: o: element {at} is {}", computed.kernel, computed.o[at]));
    }
    let sizes = case.sizes();
    let rows = case.query_rows.max(1);
    let wrong = computed.lse.iter().enumerate().position(|(at, lse)| {
        let dead = sizes.visible(at % rows) == 0;
        if dead { *lse != f32::NEG_INFINITY } else { !lse.is_finite() }
    });
    wrong.map_or(Ok(()), |at| {
        Err(format!("{}: lse: element {at} is {}", computed.kernel, computed.lse[at]))
    })
}
