//! Entries from 1e-30 to 1e30, every power of ten as likely: wherever the formula itself, evaluated in f32, is
//! right, the kernels are (docs/semantics.md, sections 2 and 3).

use finite_attention::check::{
    Case, Expected, GradientInputs, Gradients, Inputs, Surroundings, expected,
};
use finite_attention::reference::{judge_gradient, judge_output, output_allowance, unfused_error};
use finite_attention::{Dtype, Mode};
use finite_attention_tests::cases::Cases;
use finite_attention_tests::compare::run_with;
use finite_attention_tests::property::{Finding, check};
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
    let dtype = if case.seed.is_multiple_of(2) { Dtype::F32 } else { case.dtype };
    case.softcap = None;
    case.gradients = Some(Gradients { dtype, has_d_lse: false, mode: Mode::Fast });
}

/// A number of either sign whose size is drawn log-uniformly.
fn draw(random: &mut StdRng) -> f32 {
    let size = 10f32.powf(random.random_range(-30.0..=30.0));
    if random.random() { size } else { -size }
}

fn drawn(case: &Case) -> (Inputs, GradientInputs) {
    let problem = case.problem();
    let mut random = StdRng::seed_from_u64(case.seed);
    let mut numbers = |elements: u128| (0..elements).map(|_| draw(&mut random)).collect();
    let (q, k) = (numbers(problem.q.elements()), numbers(problem.k.elements()));
    let inputs = Inputs { q, k, v: numbers(problem.v.elements()), ..Inputs::default() };
    (inputs, GradientInputs { d_o: numbers(problem.o.elements()), d_lse: Vec::new() })
}

/// One output: what came out, what should have, of unfused code in the types of the case, and of unfused code
/// in f32, which is the formula as it stands.
struct Output<'t> {
    name: &'static str,
    dtype: Dtype,
    got: &'t [f32],
    exact: &'t [f64],
    naive: &'t [f32],
    formula: &'t [f32],
}

impl Output<'_> {
    /// Right within the rule, if the formula is.
    fn judge(&self, kernel: &str) -> Finding {
        let Output { name, dtype, got, exact, naive, formula } = *self;
        let precision = precision(dtype);
        let allowed = output_allowance(naive, exact, precision);
        let formula_is_finite = formula.iter().all(|number| number.is_finite());
        if !formula_is_finite || unfused_error(formula, exact) > allowed {
            return Ok(());
        }
        let verdict = if name == "o" {
            judge_output(got, exact, allowed)
        } else {
            judge_gradient(got, exact, allowed, precision)
        };
        if verdict.passes() {
            return Ok(());
        }
        let at = verdict.worst.unwrap_or(0);
        let (got, exact, error) = (got[at], exact[at], verdict.error);
        Err(format!("{kernel}: {name}: element {at}: {got:e}, not {exact:e}: {error:e} > {allowed:e}"))
    }
}

#[test]
fn what_the_formula_gets_right_is_right() {
    check("wide-range", 32, Cases::changed(narrow), |device, case| {
        let (inputs, gradients) = drawn(case);
        let computed = run_with(device, case, &inputs, &gradients, Surroundings::Nan)?;
        let got = computed.gradients.as_ref().ok_or("no gradients")?;
        let in_f32 = Gradients { dtype: Dtype::F32, ..case.gradients.ok_or("no gradients")? };
        let formula_case = Case {
            dtype: Dtype::F32,
            output_dtype: Dtype::F32,
            gradients: Some(in_f32),
            ..case.clone()
        };
        let Expected { o, naive_o, gradients: of_case, .. } =
            expected(case, &computed.inputs, &got.inputs, &computed.o);
        let exact_o: Vec<f32> = o.iter().map(|&o| o as f32).collect();
        let formula = expected(&formula_case, &computed.inputs, &got.inputs, &exact_o);
        let (exact, naive) = of_case.ok_or("no gradients")?;
        let (_, in_f32) = formula.gradients.ok_or("no gradients")?;
        let gradient_dtype = case.gradients.ok_or("no gradients")?.dtype;
        let output =
            |name, dtype, got, exact, naive, formula| Output { name, dtype, got, exact, naive, formula };
        let outputs = [
            output("o", case.output_dtype, &computed.o[..], &o[..], &naive_o[..], &formula.naive_o[..]),
            output("dq", gradient_dtype, &got.dq, &exact.dq, &naive.dq, &in_f32.dq),
            output("dk", gradient_dtype, &got.dk, &exact.dk, &naive.dk, &in_f32.dk),
            output("dv", gradient_dtype, &got.dv, &exact.dv, &naive.dv, &in_f32.dv),
        ];
        outputs.iter().try_for_each(|output| output.judge(&computed.kernel))
    });
}
