//! Scores are capped, `s = cap tanh(scale q . k / cap)`, whatever the cap: small ones, which nearly all scores reach, and
//! large ones, of which nothing is seen.

use finite_attention::check::{Case, Inputs, Surroundings, compute};
use finite_attention::{Device, Dtype, Mode};
use finite_attention_tests::cases::Cases;
use finite_attention_tests::compare::{RowVisibility, finite, identical, run};
use finite_attention_tests::device::open;
use finite_attention_tests::property::{Finding, check};
use finite_attention_tests::rule::within_the_rule;

/// From saturation to nothing.
const CAPS: [f32; 8] = [1e-3, 0.1, 0.5, 2.0, 15.0, 50.0, 1e4, 1e30];

fn capped(case: &mut Case) {
    case.softcap = Some(CAPS[case.seed as usize % CAPS.len()]);
}

fn right(device: &Device, case: &Case) -> Finding {
    within_the_rule(device, case, Inputs::drawn).map(|_| ())
}

/// Windows and packed sequences, ranges of keys, heads together, a single query, everything as it comes.
#[test]
fn capped_scores_are_within_the_rule() {
    let cases = Cases::changed(|case| {
        capped(case);
        case.gradients = None;
        if case.seed.is_multiple_of(5) {
            case.query_rows = 1;
        }
    });
    check("softcap", 60, cases.extended().with_just_enough_rows(), right);
}

#[test]
fn gradients_of_capped_scores_are_within_the_rule() {
    let cases = Cases::fitted(|mut case| {
        capped(&mut case);
        case.gradients.is_some().then_some(case)
    });
    check("softcap-gradients", 60, cases.extended().with_just_enough_rows(), right);
}

/// Scores that go beyond f32 once they are scaled, or are minus infinity but for the cap.
#[test]
fn products_far_beyond_the_cap_have_finite_results() {
    let cases = Cases::changed(|case| {
        capped(case);
        (case.amplitude, case.logit_shift) = (1.0, 0.0);
        case.scale = [Some(-3.0), Some(1e3), Some(1.0)][case.seed as usize / 8 % 3];
    });
    check("softcap-large", 40, cases.with_fewer_heads(), |device, case| {
        let enlarged = |case: &Case| {
            let mut inputs = Inputs::drawn(case);
            inputs.q.iter_mut().for_each(|q| *q *= 100.0);
            inputs
        };
        finite(case, &run(device, case, &enlarged(case), Surroundings::Nan)?)
    });
}

/// tanh of one sign is as exact as that of the other, where scores are near the cap or its negative.
#[test]
fn scores_near_either_end_of_the_cap_are_within_the_rule() {
    let cases = Cases::changed(|case| {
        (case.dtype, case.output_dtype, case.amplitude) = (Dtype::F32, Dtype::F32, 1.0);
        (case.scale, case.gradients) = (None, None);
        case.softcap = [Some(30.0), Some(50.0)][case.seed as usize % 2];
        case.logit_shift = [-100.0, 100.0][case.seed as usize / 2 % 2];
    });
    check("softcap-of-either-sign", 32, cases.with_just_enough_rows(), right);
}

/// Where every score is the cap in f32, tanh is 1 and nothing is left of its derivative: dq and dk are 0, and not
/// what rounding leaves.
#[test]
fn scores_that_are_all_at_the_cap_have_no_gradient() {
    let cases = Cases::fitted(|mut case| {
        (case.softcap, case.scale, case.amplitude, case.logit_shift) = (Some(5.0), None, 1.0, 0.0);
        case.gradients.is_some().then_some(case)
    });
    check("softcap-at-the-cap", 24, cases.extended().with_fewer_heads(), |device, case| {
        let mut inputs = Inputs::drawn(case);
        inputs.q.iter_mut().for_each(|q| *q = q.abs() + 30.0);
        inputs.k.iter_mut().for_each(|k| *k = k.abs() + 30.0);
        let computed = run(device, case, &inputs, Surroundings::Nan)?;
        finite(case, &computed)?;
        let gradients = computed.gradients.ok_or("no gradients")?;
        for (name, gradient) in [("dq", &gradients.dq), ("dk", &gradients.dk)] {
            if let Some(at) = gradient.iter().position(|number| *number != 0.0) {
                return Err(format!("{}: {name}: element {at} is {}", gradients.kernel, gradient[at]));
            }
        }
        Ok(())
    });
}

/// `ln n - cap <= lse <= ln n + cap` of a row that sees n keys.
#[test]
fn lse_is_as_near_to_that_of_equal_scores_as_the_cap_says() {
    let cases = Cases::changed(|case| {
        capped(case);
        case.amplitude = 2.0;
    });
    check("softcap-lse", 40, cases.with_fewer_heads(), |device, case| {
        let computed = run(device, case, &Inputs::drawn(case), Surroundings::Nan)?;
        let (visible, cap) =
            (RowVisibility::of(case, &computed.inputs), f64::from(case.softcap.unwrap_or(0.0)));
        for (at, &lse) in computed.lse.iter().enumerate().filter(|&(at, _)| visible.of_lse(case, at) > 0)
        {
            let difference = f64::from(lse) - (visible.of_lse(case, at) as f64).ln();
            if difference.abs() > cap * (1.0 + 1e-6) + 2e-5 {
                return Err(format!("{}: lse: element {at} is {lse}: {difference}", computed.kernel));
            }
        }
        Ok(())
    });
}

/// What is left of scores by such a scale is less than lse shows: all keys count alike.
#[test]
fn scores_of_a_tiny_scale_are_those_of_equal_keys() {
    let cases = Cases::changed(|case| {
        (case.amplitude, case.logit_shift) = (1.0, 0.0);
        (case.scale, case.softcap) = [(1e-30, 1e-20), (-1e-20, 1e10), (1e-36, 1.0), (0.0, 1e-3)]
            .map(|(scale, cap)| (Some(scale), Some(cap)))[case.seed as usize % 4];
    });
    check("softcap-tiny", 30, cases.with_just_enough_rows(), |device, case| {
        let computed = within_the_rule(device, case, Inputs::drawn)?;
        let visible = RowVisibility::of(case, &computed.inputs);
        let expected = |at: usize| (visible.of_lse(case, at) as f32).ln();
        let differs = |(at, lse): &(usize, &f32)| {
            !((*lse - expected(*at)).abs() <= 1e-5 || *lse == &expected(*at))
        };
        match computed.lse.iter().enumerate().find(differs) {
            None => Ok(()),
            Some((at, lse)) => Err(format!("lse: element {at} is {lse}, not {}", expected(at))),
        }
    });
}

/// Kernels with the cap and without are loaded side by side: each gives its own results, whichever comes first, and
/// however often they take turns.
#[test]
fn capped_and_uncapped_scores_take_turns_on_a_device() {
    for dtype in [Dtype::Bf16, Dtype::F32] {
        let base = Case { dtype, output_dtype: dtype, ..Case::small() };
        let inputs = Inputs::drawn(&base);
        let results = |device: &Device, order: [Option<f32>; 4]| {
            order.map(|softcap| {
                let case = Case { softcap, ..base.clone() };
                compute(device, &case, &inputs, Surroundings::Nan)
                    .unwrap_or_else(|error| panic!("{error}"))
            })
        };
        let [off, on, off_again, on_again] = results(&open(), [None, Some(0.5), None, Some(0.5)]);
        let [on_first, off_last, other, _] = results(&open(), [Some(0.5), None, Some(0.25), None]);
        assert_eq!(on.kernel, format!("{}+softcap", off.kernel));
        for (left, right) in [(&off, &off_again), (&off, &off_last), (&on, &on_again), (&on, &on_first)]
        {
            identical(&left.kernel, true, left, right).unwrap_or_else(|wrong| panic!("{wrong}"));
        }
        assert!(identical("o", true, &on, &off).is_err() && identical("o", true, &on, &other).is_err());
    }
}

#[test]
fn capped_gradients_are_the_same_in_every_run() {
    let cases = Cases::fitted(|mut case| {
        capped(&mut case);
        case.gradients.as_mut()?.mode = Mode::Deterministic;
        Some(case)
    });
    check("softcap-repeatable", 20, cases.extended().with_fewer_heads(), |device, case| {
        let run = || run(device, case, &Inputs::drawn(case), Surroundings::Nan);
        let (first, again) = (run()?, run()?);
        identical(&first.kernel, true, &first, &again)
    });
}
