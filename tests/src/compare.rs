//! What the properties compare.

use crate::property::Finding;
use finite_attention::check::{Case, Computed, Inputs, Placement, Surroundings, compute};
use finite_attention::reference::{
    Precision, Verdict, exact, judge_lse, judge_output, naive, output_allowance,
};
use finite_attention::{Device, Dtype, Mask};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

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

/// Numbers for the tolerance rule: normal in 16 bits. In f32 they are uniform between -1 and 1 (times the amplitude of
/// the case, without its shift of the logits): the worst of a few normal rows is so much worse than the others that the
/// rule would compare two rounding errors, and two equally good results fail it once in some hundred times.
pub fn numbers(case: &Case) -> Inputs {
    let mut inputs = Inputs::normal(case);
    if case.dtype == Dtype::F32 {
        let mut random = StdRng::seed_from_u64(case.seed);
        let mut uniform = |deviation: f32| deviation * random.random_range(-1.0f32..=1.0);
        inputs.q.iter_mut().for_each(|q| *q = uniform(case.amplitude));
        inputs.k.iter_mut().for_each(|k| *k = uniform(case.amplitude));
        inputs.v.iter_mut().for_each(|v| *v = uniform(1.0));
    }
    inputs
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

/// Rows and elements of o that make the largest error a matter of arithmetic and not of chance.
const ENOUGH_ROWS: usize = 256;
const ENOUGH_ELEMENTS: usize = 4096;

/// Visible keys that make unfused code round.
const ENOUGH_KEYS: usize = 16;

/// A case to judge `case` together with; none when it is large enough, or no row of it sees a key.
fn company(case: &Case) -> Option<Case> {
    let sizes = case.sizes();
    let pairs = case.batches * case.query_heads;
    let rows =
        |keys: usize| pairs * (0..case.query_rows).filter(|&row| sizes.visible(row) >= keys).count();
    let large =
        rows(ENOUGH_KEYS) >= ENOUGH_ROWS && rows(ENOUGH_KEYS) * case.value_dim >= ENOUGH_ELEMENTS;
    if rows(1) == 0 || large {
        return None;
    }
    Some(Case {
        batches: 1,
        query_heads: 1,
        key_heads: 1,
        query_rows: ENOUGH_ROWS,
        key_rows: 64,
        value_dim: ENOUGH_ELEMENTS / ENOUGH_ROWS,
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
    let verdict = judge_output(&o, &exact_o, allowed);
    if !verdict.passes() {
        return Err(describe(computed, "o", computed.o.len(), verdict, &o, &exact_o));
    }
    let verdict = judge_lse(&lse, &exact_lse);
    if verdict.passes() {
        Ok(())
    } else {
        Err(describe(computed, "lse", computed.lse.len(), verdict, &lse, &exact_lse))
    }
}

/// The worst element of a tensor, whose elements from `own` on are those of its company.
fn describe(
    computed: &Computed,
    name: &str,
    own: usize,
    verdict: Verdict,
    got: &[f32],
    exact: &[f64],
) -> String {
    let Verdict { error, allowed, worst } = verdict;
    let kernel = computed.kernel;
    let Some(at) = worst else {
        return format!("{kernel}: {name} has {} elements, not {}", got.len(), exact.len());
    };
    let company = if at < own { "" } else { " of its company" };
    let at_own = if at < own { at } else { at - own };
    let (got, exact) = (got[at], exact[at]);
    format!(
        "{kernel}: {name}: element {at_own}{company}: expected {exact}, got {got} (error {error:.2e}, allowed {allowed:.2e})"
    )
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
