//! What the properties compare.

use crate::property::Finding;
use finite_attention::check::{Case, Computed, Inputs, Placement, Surroundings, compute};
use finite_attention::reference::{
    Precision, Verdict, exact, judge_lse, judge_output, naive, output_allowance,
};
use finite_attention::{Device, Dtype, Mask};

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

/// Runs a case with the numbers that `numbers` gives for it: o and lse within the tolerance rule, and nothing written
/// outside of them.
///
/// The rule compares with the largest error that unfused code makes anywhere in a tensor. Where every row sees one key
/// alone that error is 0, and in a few elements it is small by chance: such a tensor is judged together with a second
/// one, of the same kind but large enough, as the first rows of a causal tensor are judged together with its last.
///
/// # Errors
/// What is wrong.
pub fn within_the_rule(
    device: &Device,
    case: &Case,
    numbers: impl Fn(&Case) -> Inputs,
) -> Result<Computed, String> {
    let computed = run(device, case, &numbers(case), Surroundings::Nan)?;
    if let Some(spilled) = &computed.spilled {
        return Err(format!("{}: {spilled}", computed.kernel));
    }
    let company = company(case);
    let joined = match &company {
        None => None,
        Some(company) => Some((company, run(device, company, &numbers(company), Surroundings::Nan)?)),
    };
    let mut tensors = vec![(case, &computed)];
    tensors.extend(joined.as_ref().map(|(company, computed)| (*company, computed)));
    judge_together(&tensors)?;
    Ok(computed)
}

/// Elements of o that make the largest error a matter of arithmetic and not of chance.
const ENOUGH_ELEMENTS: usize = 4096;

/// Visible keys that make unfused code round.
const ENOUGH_KEYS: usize = 16;

/// A case to judge `case` together with; none when it is large enough, or has nothing to judge.
fn company(case: &Case) -> Option<Case> {
    let sizes = case.sizes();
    let rows = (0..case.query_rows).filter(|&row| sizes.visible(row) >= ENOUGH_KEYS).count();
    let elements = case.batches * case.query_heads * case.value_dim;
    if elements * case.query_rows == 0 || elements * rows >= ENOUGH_ELEMENTS {
        return None;
    }
    Some(Case {
        batches: 1,
        query_heads: 1,
        key_heads: 1,
        query_rows: 64,
        key_rows: 64,
        value_dim: 64,
        mask: Mask::Full,
        placement: Placement::Padded,
        ..case.clone()
    })
}

/// The tolerance rule, for the tensors as if they were one.
fn judge_together(tensors: &[(&Case, &Computed)]) -> Finding {
    let (mut o, mut exact_o, mut naive_o) = (Vec::new(), Vec::new(), Vec::new());
    let (mut lse, mut exact_lse) = (Vec::new(), Vec::new());
    for (case, computed) in tensors {
        let Inputs { q, k, v } = &computed.inputs;
        let (input, output) = (precision(case.dtype), precision(case.output_dtype));
        let expected = exact(&case.sizes(), q, k, v);
        o.extend_from_slice(&computed.o);
        lse.extend_from_slice(&computed.lse);
        naive_o.extend(naive(&case.sizes(), input, output, q, k, v).o);
        exact_o.extend(expected.o);
        exact_lse.extend(expected.lse);
    }
    let (case, computed) = tensors[0];
    let allowed = output_allowance(&naive_o, &exact_o, precision(case.output_dtype));
    let text = |name: &str, Verdict { error, allowed, worst }: Verdict, got: &[f32], exact: &[f64]| {
        match worst {
            None => {
                format!("{}: {name} has {} elements, not {}", computed.kernel, got.len(), exact.len())
            }
            Some(at) => format!(
                "{}: {name}: element {at}: expected {}, got {} (error {error:.2e}, allowed {allowed:.2e})",
                computed.kernel, exact[at], got[at],
            ),
        }
    };
    let verdict = judge_output(&o, &exact_o, allowed);
    if !verdict.passes() {
        return Err(text("o", verdict, &o, &exact_o));
    }
    let verdict = judge_lse(&lse, &exact_lse);
    if verdict.passes() { Ok(()) } else { Err(text("lse", verdict, &lse, &exact_lse)) }
}

/// The element type as the reference sees it.
pub fn precision(dtype: Dtype) -> Precision {
    match dtype {
        Dtype::Bf16 => Precision::Bf16,
        Dtype::F16 => Precision::F16,
        Dtype::F32 => Precision::F32,
    }
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
