//! Gradients of f32 as two f16 parts on tensor cores: as exact as those of fused multiply-adds, and left to these where
//! parts would not be.

use super::precision::{case, most_error, scaled};
use finite_attention::check::{
    Case, ComputedGradients, GradientInputs, Gradients, Inputs, Placement, Surroundings,
};
use finite_attention::reference::exact_backward;
use finite_attention::{CausalAlignment, Device, Dtype, Mask, Mode, Precision};
use finite_attention_tests::cases::Cases;
use finite_attention_tests::compare::{identical, run, run_with};
use finite_attention_tests::device::on_each;
use finite_attention_tests::errors::relative_error;
use finite_attention_tests::property::check_all;
use finite_attention_tests::recorder::recording;
use finite_attention_tests::rule::within_the_rule;
use finite_attention_tests::share::on_one;
use std::sync::Mutex;

const GRADIENTS: Gradients =
    Gradients { dtype: Dtype::F32, has_d_lse: false, mode: Mode::Deterministic };

/// A case with gradients, in two key tiles or more.
fn with_gradients(head_dim: usize) -> Case {
    Case { gradients: Some(GRADIENTS), ..case(head_dim) }
}

/// The gradients that both ways make of these numbers, fast3 and fma, and whether the first one's are what parts gave.
fn both_ways(
    device: &Device,
    case: &Case,
    inputs: &Inputs,
    gradients: &GradientInputs,
) -> ([ComputedGradients; 2], bool) {
    let (device, launched) = recording(device);
    let computed = Precision::ALL.map(|precision| {
        let case = Case { precision: Some(precision), ..case.clone() };
        let computed = run_with(&device, &case, inputs, gradients, Surroundings::Nan).unwrap();
        computed.gradients.expect("asked for")
    });
    let turns = launched.turns();
    let [_, turn] = turns[..] else { panic!("{case:?}: a forward and a backward in parts: {turns:?}") };
    (computed, turn == [0, 0])
}

/// dq, dk and dv of both ways are exact, and fma did not compute both.
fn are_as_exact(case: &Case, inputs: &Inputs, gradients: &GradientInputs) {
    on_one(&case.shape_text(), |device| {
        let ([fast, fma], of_parts) = both_ways(device, case, inputs, gradients);
        assert!(of_parts, "{case:?}: fma computed both");
        let Inputs { q, k, v, .. } = inputs;
        let expected = exact_backward(&case.sizes(), q, k, v, &gradients.d_o, None);
        for (what, fast, fma, expected) in [
            ("dq", &fast.dq, &fma.dq, &expected.dq),
            ("dk", &fast.dk, &fma.dk, &expected.dk),
            ("dv", &fast.dv, &fma.dv, &expected.dv),
        ] {
            let [fast, fma] = [fast, fma].map(|got| relative_error(got, expected));
            let allowed = most_error() * fma.max(2f64.powi(-24));
            assert!(fast <= allowed, "{case:?}: {what}: {fast:e}, fma {fma:e}");
        }
    });
}

/// The fast way leaves the gradients of these numbers to the other one.
fn are_left_to_fma(what: &str, case: &Case, inputs: &Inputs, gradients: &GradientInputs) {
    on_one(what, |device| {
        let (_, of_parts) = both_ways(device, case, inputs, gradients);
        assert!(!of_parts, "{what}: {case:?}");
    });
}

#[test]
fn gradients_of_parts_are_as_exact_as_f32() {
    for head_dim in [64, 128] {
        for (logits, mask) in
            [(1.0, Mask::Full), (8.0, Mask::Causal(CausalAlignment::BottomRight)), (30.0, Mask::Full)]
        {
            let case = Case { mask, ..with_gradients(head_dim) };
            let inputs = Inputs::drawn(&case);
            let inputs = Inputs { q: scaled(&inputs.q, logits), ..inputs };
            are_as_exact(&case, &inputs, &GradientInputs::drawn(&case));
        }
    }
}

#[test]
fn operands_of_gradients_may_be_of_any_size_together() {
    let case = with_gradients(64);
    let (inputs, gradients) = (Inputs::drawn(&case), GradientInputs::drawn(&case));
    let is_exact = |[q, k, v, d_o]: [f32; 4]| {
        let inputs = Inputs {
            q: scaled(&inputs.q, q),
            k: scaled(&inputs.k, k),
            v: scaled(&inputs.v, v),
            ..inputs.clone()
        };
        let gradients = GradientInputs { d_o: scaled(&gradients.d_o, d_o), ..gradients.clone() };
        are_as_exact(&case, &inputs, &gradients);
    };
    is_exact([1e20, 1e-20, 1e15, 1e-5]);
    is_exact([1e-15, 1e15, 1e-25, 1e25]);
    is_exact([1e-3, 1e-3, 1.0, 1e-20]);
}

/// Each head is scaled by itself; those of queries, of which two share keys, by their own units.
#[test]
fn heads_of_a_group_may_be_of_different_sizes() {
    let case = with_gradients(64);
    let (mut inputs, mut gradients) = (Inputs::drawn(&case), GradientInputs::drawn(&case));
    let (of_q, of_k) = (case.query_heads * case.head_dim, case.key_heads * case.head_dim);
    for (tensor, row, factors) in [
        (&mut inputs.q, of_q, &[1.0, 3.0, 0.25, 7.0][..]),
        (&mut inputs.k, of_k, &[0.5, 2.0]),
        (&mut inputs.v, of_k, &[1.0, 1e4]),
        (&mut gradients.d_o, of_q, &[5.0, 0.3, 1e3, 40.0]),
    ] {
        for numbers in tensor.chunks_exact_mut(row) {
            for (head, factor) in numbers.chunks_exact_mut(case.head_dim).zip(factors) {
                head.iter_mut().for_each(|number| *number *= factor);
            }
        }
    }
    are_as_exact(&case, &inputs, &gradients);
}

#[test]
fn operands_that_parts_cannot_hold_are_left_to_fma() {
    let case = with_gradients(64);
    let (inputs, gradients) = (Inputs::drawn(&case), GradientInputs::drawn(&case));
    let changed = |what: &str, change: &dyn Fn(&mut Inputs, &mut GradientInputs)| {
        let (mut inputs, mut gradients) = (inputs.clone(), gradients.clone());
        change(&mut inputs, &mut gradients);
        are_left_to_fma(what, &case, &inputs, &gradients);
    };
    let row = 64;
    changed("a large query", &|inputs, _| inputs.q[0] = 1e6);
    changed("a small row of queries", &|inputs, _| inputs.q[..row].iter_mut().for_each(|q| *q *= 1e-6));
    changed("a small row of keys", &|inputs, _| inputs.k[..row].iter_mut().for_each(|k| *k *= 1e-6));
    changed("a small row of values", &|inputs, _| inputs.v[..row].iter_mut().for_each(|v| *v *= 1e-6));
    changed("a small row of dO", &|_, gradients| {
        gradients.d_o[..row].iter_mut().for_each(|d_o| *d_o *= 1e-6)
    });
    changed("a small column of dO", &|_, gradients| {
        gradients.d_o.iter_mut().step_by(row).for_each(|d_o| *d_o *= 1e-6);
    });
    changed("a large number of dO", &|_, gradients| gradients.d_o[300] = 1e30);
    changed("denormal dO", &|_, gradients| gradients.d_o = scaled(&gradients.d_o, 1e-40));
    changed("dp beyond f32", &|inputs, gradients| {
        inputs.v = scaled(&inputs.v, 1e20);
        gradients.d_o = scaled(&gradients.d_o, 1e17);
    });
    for number in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        changed("not finite in dO", &|_, gradients| gradients.d_o[300] = number);
    }
}

/// What is not finite reaches what it reaches by fused multiply-adds: the results are these.
#[test]
fn numbers_that_are_not_finite_give_the_gradients_of_fma() {
    let case = with_gradients(64);
    for number in [f32::NAN, f32::INFINITY] {
        let mut inputs = Inputs::drawn(&case);
        inputs.q[300] = number;
        on_each(|device| {
            let [fast, fma] = Precision::ALL.map(|precision| {
                let case = Case { precision: Some(precision), ..case.clone() };
                run(device, &case, &inputs, Surroundings::Nan).unwrap()
            });
            identical("not finite in q", true, &fast, &fma).unwrap();
        });
    }
}

/// A row of dO whose dLSE is not finite costs other rows nothing, and its own gradients are not finite.
#[test]
fn a_gradient_of_lse_that_is_not_finite_stays_with_its_row() {
    let case =
        Case { gradients: Some(Gradients { has_d_lse: true, ..GRADIENTS }), ..with_gradients(64) };
    let (inputs, mut gradients) = (Inputs::drawn(&case), GradientInputs::drawn(&case));
    gradients.d_lse[3] = f32::INFINITY;
    on_each(|device| {
        let ([fast, fma], of_parts) = both_ways(device, &case, &inputs, &gradients);
        assert!(of_parts, "{case:?}: fma computed both");
        let are_finite = |numbers: &[f32]| numbers.iter().map(|x| x.is_finite()).collect::<Vec<_>>();
        assert_eq!(are_finite(&fast.dq), are_finite(&fma.dq));
        assert_eq!(are_finite(&fast.dk), are_finite(&fma.dk));
        assert_eq!(are_finite(&fast.dv), are_finite(&fma.dv));
        let largest = fma.dq.iter().filter(|x| x.is_finite()).fold(0f32, |all, x| all.max(x.abs()));
        for (fast, fma) in fast.dq.iter().zip(&fma.dq).filter(|(_, fma)| fma.is_finite()) {
            assert!((fast - fma).abs() <= largest * 2f32.powi(-16), "{fast} {fma}");
        }
    });
}

/// Everything else as it comes, where all rows start on 16 bytes.
#[test]
fn gradients_of_parts_are_right_in_all_cases() {
    let cases = Cases::changed(|case| {
        (case.dtype, case.output_dtype) = (Dtype::F32, Dtype::F32);
        case.head_dim = case.head_dim.next_multiple_of(4).clamp(8, 128);
        case.value_dim = case.value_dim.next_multiple_of(4).min(128);
        (case.query_rows, case.key_rows) = (case.query_rows.max(2), case.key_rows.max(2));
        (case.batches, case.key_heads) = (case.batches.max(1), case.key_heads.max(1));
        if case.query_heads == 0 {
            case.query_heads = case.key_heads;
        }
        case.softcap = case.softcap.map(|cap| cap.max(2.0));
        if case.placement == Placement::Unaligned {
            case.placement = Placement::Packed;
        }
        case.gradients = Some(Gradients { dtype: Dtype::F32, ..case.gradients.unwrap_or(GRADIENTS) });
        case.num_splits = None;
    });
    let counts = Mutex::new([0, 0]);
    // Of a share of these cases, as many may happen to be left to fma as no good choice would leave.
    check_all("precision-gradients", 16, cases.extended().with_just_enough_rows(), |device, case| {
        let (device, launched) = recording(device);
        // Random cases with gradients do not ask for it.
        let case = Case { precision: Some(Precision::Fast3), ..case.clone() };
        within_the_rule(&device, &case, Inputs::drawn)?;
        let turns = launched.turns();
        // Of a forward and its backward; more where the rule has more cases judged as one.
        let Some(&turn) = turns.get(1) else { return Err(format!("not planned in parts: {case:?}")) };
        counts.lock().unwrap()[usize::from(turn == [0, 0])] += 1;
        Ok(())
    });
    let [of_fma, of_parts] = *counts.lock().unwrap();
    assert!(of_parts >= 3 * of_fma, "{of_parts} results are of parts, {of_fma} of fused multiply-adds");
}
