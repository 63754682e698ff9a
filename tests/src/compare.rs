//! What the properties compare.

use crate::property::Finding;
use finite_attention::check::{
    Case, Computed, GradientInputs, Inputs, Surroundings, compute_with, visible_keys,
};
use finite_attention::{Device, Mode};

/// Runs a case; an error of the device, findings of the emulator among them, is what is wrong with the
/// case. Gradients of o and lse, where it has them, are random numbers.
///
/// # Errors
/// The text of the error.
pub fn run(
    device: &Device,
    case: &Case,
    inputs: &Inputs,
    surroundings: Surroundings,
) -> Result<Computed, String> {
    run_with(device, case, inputs, &GradientInputs::drawn(case), surroundings)
}

/// As [`run`], with these gradients of o and lse.
///
/// # Errors
/// As [`run`].
pub fn run_with(
    device: &Device,
    case: &Case,
    inputs: &Inputs,
    gradients: &GradientInputs,
    surroundings: Surroundings,
) -> Result<Computed, String> {
    let mut computed = compute_with(device, case, inputs, gradients, surroundings)
        .map_err(|error| error.to_string())?;
    if let Some(gradients) = &computed.gradients {
        computed.spilled = computed.spilled.or_else(|| gradients.spilled.clone());
    }
    Ok(computed)
}

/// o, lse and the gradients of both results are the same, bit by bit; dq only if `dq_too`.
///
/// # Errors
/// Where they differ first.
pub fn identical(what: &str, dq_too: bool, left: &Computed, right: &Computed) -> Finding {
    same_bits(&format!("{what}: o"), &left.o, &right.o)?;
    same_bits(&format!("{what}: lse"), &left.lse, &right.lse)?;
    match (&left.gradients, &right.gradients) {
        (None, None) => Ok(()),
        (Some(left), Some(right)) => {
            let what = format!("{what}: {}", left.kernel);
            if dq_too {
                same_bits(&format!("{what}: dq"), &left.dq, &right.dq)?;
            }
            same_bits(&format!("{what}: dk"), &left.dk, &right.dk)?;
            same_bits(&format!("{what}: dv"), &left.dv, &right.dv)?;
            same_bits(&format!("{what}: dbias"), &left.d_bias, &right.d_bias)?;
            same_bits(&format!("{what}: dsinks"), &left.d_sinks, &right.d_sinks)
        }
        _ => Err(format!("{what}: one has gradients and the other has none")),
    }
}

/// Whether dq is promised to be the same in every run. Without gradients nothing is said.
pub fn has_repeatable_dq(case: &Case) -> bool {
    case.gradients.is_some_and(|gradients| gradients.mode == Mode::Deterministic)
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

/// How many keys each query of each head sees, over all batches or packed sequences, in the order of the rows of
/// q and then of heads.
#[derive(Clone, Debug, PartialEq)]
pub struct RowVisibility(pub Vec<usize>);

impl RowVisibility {
    /// Those of a case with these inputs, of which only what scores have beside q and k is looked at.
    pub fn of(case: &Case, inputs: &Inputs) -> Self {
        RowVisibility(visible_keys(case, inputs))
    }

    /// Keys seen by the row of an element of a `[batch, row, head, column]` tensor with this many
    /// columns.
    pub fn of_element(&self, columns: usize, element: usize) -> usize {
        self.0[element / columns]
    }

    /// Keys seen by the row of an element of lse, `[batch, head, row]`.
    pub fn of_lse(&self, case: &Case, element: usize) -> usize {
        let (rows, heads) = (case.problem().q.shape[1], case.query_heads);
        let (batch, head, row) = (element / (heads * rows), element / rows % heads, element % rows);
        self.0[(batch * rows + row) * heads + head]
    }
}

/// Every element of o and of the gradients is finite, and of lse too unless the row is dead.
///
/// # Errors
/// The first element that is not.
pub fn finite(case: &Case, computed: &Computed) -> Finding {
    let mut tensors = vec![("o", &computed.o)];
    if let Some(gradients) = &computed.gradients {
        tensors.extend([("dq", &gradients.dq), ("dk", &gradients.dk), ("dv", &gradients.dv)]);
        tensors.extend([("dbias", &gradients.d_bias), ("dsinks", &gradients.d_sinks)]);
    }
    for (name, tensor) in tensors {
        if let Some(at) = tensor.iter().position(|number| !number.is_finite()) {
            return Err(format!("{}: {name}: element {at} is {}", computed.kernel, tensor[at]));
        }
    }
    let visible = RowVisibility::of(case, &computed.inputs);
    let wrong = computed.lse.iter().enumerate().position(|(at, lse)| {
        let dead = visible.of_lse(case, at) == 0;
        if dead { *lse != f32::NEG_INFINITY } else { !lse.is_finite() }
    });
    wrong.map_or(Ok(()), |at| {
        Err(format!("{}: lse: element {at} is {}", computed.kernel, computed.lse[at]))
    })
}
