//! The tolerance rule, for tensors of any size.

use crate::compare::{RowVisibility, run_with};
use crate::property::Finding;
use finite_attention::check::{
    Case, Computed, GradientInputs, Inputs, Placement, Surroundings, expected,
};
use finite_attention::reference::{
    Precision, Verdict, judge_gradient, judge_lse, judge_output, output_allowance,
};
use finite_attention::{Device, Dtype, Mask};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Numbers for the tolerance rule: normal in 16 bits without gradients. Otherwise they are uniform
/// between -1 and 1 (times the amplitude of the case, without its shift of the logits): the worst of a
/// few normal rows is so much worse than the others that the rule would compare two rounding errors, and
/// two equally good results fail it once in some hundred times.
pub fn numbers(case: &Case) -> Inputs {
    let mut inputs = Inputs::normal(case);
    if case.dtype == Dtype::F32 || case.gradients.is_some() {
        let mut random = StdRng::seed_from_u64(case.seed);
        fill_uniform(&mut inputs.q, case.amplitude, &mut random);
        fill_uniform(&mut inputs.k, case.amplitude, &mut random);
        fill_uniform(&mut inputs.v, 1.0, &mut random);
    }
    inputs
}

/// Gradients of o and lse for the tolerance rule, uniform too.
fn gradient_numbers(case: &Case) -> GradientInputs {
    let mut inputs = GradientInputs::normal(case);
    let mut random = StdRng::seed_from_u64(!case.seed);
    fill_uniform(&mut inputs.d_o, 1.0, &mut random);
    fill_uniform(&mut inputs.d_lse, 1.0, &mut random);
    inputs
}

fn fill_uniform(tensor: &mut [f32], most: f32, random: &mut StdRng) {
    tensor.iter_mut().for_each(|number| *number = most * random.random_range(-1.0f32..=1.0));
}

/// Runs a case with the numbers that `numbers` gives for it: o, lse and the gradients within the
/// tolerance rule, and nothing written outside of them.
///
/// The rule compares with the largest error that unfused code makes anywhere in a tensor. Where every
/// row sees one key alone that error is 0, and in a few elements it is small by chance: such a tensor is
/// judged together with a second one, of the same kind but large enough, as the first rows of a causal
/// tensor are judged together with its last.
///
/// # Errors
/// What is wrong.
pub fn within_the_rule(
    device: &Device,
    case: &Case,
    numbers: impl Fn(&Case) -> Inputs,
) -> Result<Computed, String> {
    let computed = run_with(device, case, &numbers(case), &gradient_numbers(case), Surroundings::Nan)?;
    if let Some(spilled) = &computed.spilled {
        return Err(format!("{}: {spilled}", computed.kernel));
    }
    let mut tensors = Vec::new();
    collect(&mut tensors, case, &computed);
    let own: Vec<usize> = tensors.iter().map(|tensor| tensor.got.len()).collect();
    if let Some(company) = company(case) {
        let (inputs, gradients) = (numbers(&company), gradient_numbers(&company));
        let computed = run_with(device, &company, &inputs, &gradients, Surroundings::Nan)?;
        collect(&mut tensors, &company, &computed);
    }
    for (tensor, own) in tensors.iter().zip(own) {
        tensor.judge(own).map_err(|text| format!("{}: {text}", computed.kernel))?;
    }
    Ok(computed)
}

/// Rows and elements that make the largest error a matter of arithmetic and not of chance.
const ENOUGH_ROWS: usize = 256;
const ENOUGH_ELEMENTS: usize = 4096;

/// Visible keys that make unfused code round.
const ENOUGH_KEYS: usize = 16;

/// Keys of the company: few, so that probabilities are neither all nor nothing and errors as large as they become. With
/// a power of two of them, equal probabilities would be exact.
const COMPANY_KEYS: usize = 3;

/// A case to judge `case` together with; none when no row of it sees a key, or when it is large enough.
/// In f32 and with gradients it never is: with a mask, the few rows that see few keys decide the largest
/// error.
fn company(case: &Case) -> Option<Case> {
    let visible = RowVisibility::of(case).0;
    let rows =
        |keys: usize| case.query_heads * visible.iter().filter(|&&visible| visible >= keys).count();
    let large =
        rows(ENOUGH_KEYS) >= ENOUGH_ROWS && rows(ENOUGH_KEYS) * case.value_dim >= ENOUGH_ELEMENTS;
    let exempt = large && case.dtype != Dtype::F32 && case.gradients.is_none();
    if rows(1) == 0 || exempt {
        return None;
    }
    let columns = case.head_dim.min(case.value_dim);
    let heads = match (case.dtype, case.gradients) {
        (Dtype::Bf16 | Dtype::F16, None) => ENOUGH_ELEMENTS.div_ceil(ENOUGH_ROWS * case.value_dim),
        (Dtype::F32, None) => 4,
        // There are few rows of dk and dv.
        (Dtype::Bf16 | Dtype::F16, Some(_)) => {
            (ENOUGH_ELEMENTS / 4 / (COMPANY_KEYS * columns)).clamp(4, 16)
        }
        (Dtype::F32, Some(_)) => (ENOUGH_ELEMENTS / (COMPANY_KEYS * columns)).clamp(8, 32),
    };
    Some(Case {
        batches: 1,
        query_heads: heads,
        key_heads: heads,
        query_rows: ENOUGH_ROWS.max(case.query_rows),
        key_rows: COMPANY_KEYS,
        mask: Mask::Full,
        placement: Placement::Padded,
        packed: false,
        ..case.clone()
    })
}

/// One output of one case, or of two as if they were one, and what it should be.
struct Tensor {
    name: &'static str,
    precision: Precision,
    got: Vec<f32>,
    exact: Vec<f64>,
    naive: Vec<f32>,
}

impl Tensor {
    /// The elements from `own` on are those of the company.
    fn judge(&self, own: usize) -> Finding {
        let allowed = output_allowance(&self.naive, &self.exact, self.precision);
        let verdict = match self.name {
            "o" => judge_output(&self.got, &self.exact, allowed),
            "lse" => judge_lse(&self.got, &self.exact),
            _ => judge_gradient(&self.got, &self.exact, allowed, self.precision),
        };
        if verdict.passes() { Ok(()) } else { Err(self.describe(own, verdict)) }
    }

    fn describe(&self, own: usize, verdict: Verdict) -> String {
        let Tensor { name, got, exact, .. } = self;
        let Verdict { error, allowed, worst } = verdict;
        let Some(at) = worst else {
            return format!("{name} has {} elements, not {}", got.len(), exact.len());
        };
        let (place, whose) = if at < own { (at, "") } else { (at - own, " of its company") };
        let (got, exact) = (got[at], exact[at]);
        format!(
            "{name}: element {place}{whose}: expected {exact}, got {got} (error {error:.2e}, allowed {allowed:.2e})"
        )
    }
}

/// Adds the outputs of a case to those of the cases before it.
fn collect(tensors: &mut Vec<Tensor>, case: &Case, computed: &Computed) {
    let nothing = GradientInputs { d_o: Vec::new(), d_lse: Vec::new() };
    let gradients = computed.gradients.as_ref();
    let expected =
        expected(case, &computed.inputs, gradients.map_or(&nothing, |gradients| &gradients.inputs));
    let mut add = |name, precision, got: &[f32], exact: &[f64], naive: &[f32]| {
        let at = tensors.iter().position(|tensor| tensor.name == name).unwrap_or_else(|| {
            let (got, exact, naive) = Default::default();
            tensors.push(Tensor { name, precision, got, exact, naive });
            tensors.len() - 1
        });
        tensors[at].got.extend_from_slice(got);
        tensors[at].exact.extend_from_slice(exact);
        tensors[at].naive.extend_from_slice(naive);
    };
    add("o", precision(case.output_dtype), &computed.o, &expected.o, &expected.naive_o);
    add("lse", Precision::F32, &computed.lse, &expected.lse, &[]);
    let asked = case.gradients.zip(gradients).zip(expected.gradients.as_ref());
    if let Some(((asked, got), (exact, naive))) = asked {
        let precision = precision(asked.dtype);
        add("dq", precision, &got.dq, &exact.dq, &naive.dq);
        add("dk", precision, &got.dk, &exact.dk, &naive.dk);
        add("dv", precision, &got.dv, &exact.dv, &naive.dv);
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
