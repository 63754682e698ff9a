//! Entries from 1e-30 to 1e30, every power of ten as likely: wherever the formula itself, evaluated in f32, is
//! right, the forward is (docs/semantics.md, sections 2 and 3).

use finite_attention::Dtype;
use finite_attention::check::{Case, Expected, GradientInputs, Inputs, Surroundings, expected};
use finite_attention::reference::{judge_output, output_allowance, unfused_error};
use finite_attention_tests::cases::Cases;
use finite_attention_tests::compare::run;
use finite_attention_tests::property::check;
use finite_attention_tests::rule::precision;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

/// One product to a score: a sum of numbers of such sizes that cancel is right in nobody's f32.
fn narrow(case: &mut Case) {
    case.head_dim = 1;
    case.value_dim = 1 + case.seed as usize % 9;
    case.dtype = [Dtype::Bf16, Dtype::F32][case.id % 2];
    case.output_dtype = if case.seed.is_multiple_of(3) { Dtype::F32 } else { case.dtype };
    case.query_rows = case.query_rows.min(40);
    case.key_rows = case.key_rows.min(90);
    case.scale = [1.0, 1e-3, 1e-12, -0.5].get(case.seed as usize / 3 % 5).copied();
    (case.softcap, case.gradients) = (None, None);
}

/// A number of either sign whose size is drawn log-uniformly.
fn draw(random: &mut StdRng) -> f32 {
    let size = 10f32.powf(random.random_range(-30.0..=30.0));
    if random.random() { size } else { -size }
}

fn drawn(case: &Case) -> Inputs {
    let problem = case.problem();
    let mut random = StdRng::seed_from_u64(case.seed);
    let mut numbers = |elements: u128| (0..elements).map(|_| draw(&mut random)).collect();
    let (q, k) = (numbers(problem.q.elements()), numbers(problem.k.elements()));
    Inputs { q, k, v: numbers(problem.v.elements()) }
}

#[test]
fn what_the_formula_gets_right_is_right() {
    check("wide-range", 32, Cases::changed(narrow), |device, case| {
        let computed = run(device, case, &drawn(case), Surroundings::Nan)?;
        let in_f32 = Case { dtype: Dtype::F32, output_dtype: Dtype::F32, ..case.clone() };
        let no_gradients = GradientInputs { d_o: Vec::new(), d_lse: Vec::new() };
        let Expected { o: exact, naive_o, .. } = expected(case, &computed.inputs, &no_gradients);
        let formula = expected(&in_f32, &computed.inputs, &no_gradients).naive_o;
        let allowed = output_allowance(&naive_o, &exact, precision(case.output_dtype));
        let is_finite = formula.iter().all(|number| number.is_finite());
        if !is_finite || unfused_error(&formula, &exact) > allowed {
            return Ok(());
        }
        let verdict = judge_output(&computed.o, &exact, allowed);
        if verdict.passes() {
            return Ok(());
        }
        let (at, error) = (verdict.worst.unwrap_or(0), verdict.error);
        let (got, exact) = (computed.o[at], exact[at]);
        Err(format!(
            "{}: element {at}: {got:e}, not {exact:e}: {error:e} > {allowed:e}",
            computed.kernel
        ))
    });
}
