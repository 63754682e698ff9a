//! The checker passes a device that computes attention, and fails one that does anything else.

mod support;

use finite_attention::check::{
    Case, Gradients, Outcome, Placement, cases, featured_case, run_case, sweep,
};
use finite_attention::{CausalAlignment, Dtype, Mask, Mode, Precision};
use support::{Fault, device};

/// A case as this device can compute it, which multiplies f32 in one way.
fn in_one_way(case: Case) -> Case {
    Case { precision: case.precision.map(|_| Precision::Fma), ..case }
}

fn small_cases() -> Vec<Case> {
    let small = |case: &Case| case.query_rows * case.key_rows * case.head_dim < 200_000;
    cases(1, 120).into_iter().filter(small).map(in_one_way).collect()
}

#[test]
fn plain_attention_passes_every_case() {
    let outcomes: Vec<Outcome> = sweep(&small_cases(), 2, || Ok(device(Fault::None)), |_| ()).unwrap();
    assert!(outcomes.len() > 60);
    for outcome in &outcomes {
        assert_eq!(outcome.failure, None, "{:?}", outcome.case);
    }
    assert!(outcomes.is_sorted_by_key(|outcome| outcome.case.id));
}

/// Cases with bias, masks, slopes, sinks and dropout. Of one key, unfused code has a ds of exactly 0, and this device,
/// which has delta in f32 and dP in f64, has not.
fn small_featured_cases() -> Vec<Case> {
    let small =
        |case: &Case| case.query_rows * case.key_rows * case.head_dim < 100_000 && case.key_rows != 1;
    let cases = (0..500).map(|id| in_one_way(featured_case(1, id)));
    cases.filter(|case| small(case) && !case.features.is_empty()).collect()
}

#[test]
fn attention_with_features_passes_every_case() {
    let cases = small_featured_cases();
    let outcomes: Vec<Outcome> = sweep(&cases, 2, || Ok(device(Fault::None)), |_| ()).unwrap();
    assert!(outcomes.len() > 50, "{}", outcomes.len());
    for outcome in &outcomes {
        assert_eq!(outcome.failure, None, "{:?}", outcome.case);
    }
    for name in ["dbias", "dsinks"] {
        let judged = outcomes.iter().filter(|outcome| outcome.tensor(name).is_some()).count();
        assert!(judged > 5, "{name}: {judged}");
    }
}

#[test]
fn every_fault_of_features_is_seen() {
    let faults = [
        (Fault::BiasOfFirstSequence, "o: "),
        (Fault::Unmasked, "o: "),
        (Fault::IgnoresSlopes, "o: "),
        (Fault::IgnoresSinks, "o: "),
        (Fault::IgnoresDropout, "o: "),
        (Fault::UnscaledDropout, "o: "),
        (Fault::DropsAlikeInEveryBatch, "o: "),
        (Fault::DropsOthersBackward, "d"),
        (Fault::ScaledBiasGradient, "dbias: "),
        (Fault::NegatedSinkGradient, "dsinks: "),
    ];
    let cases = small_featured_cases();
    for (fault, start) in faults {
        let device = device(fault);
        let mut failures = cases.iter().filter_map(|case| run_case(&device, case).failure);
        let seen = failures.any(|failure| failure.starts_with(start));
        assert!(seen, "{fault:?} passed every case");
    }
}

#[test]
fn every_fault_is_seen() {
    let faults = [
        Fault::SkipsLastRow,
        Fault::ReadsPastTheEnd,
        Fault::SeesTheFuture,
        Fault::LseInBaseTwo,
        Fault::LowestLse,
        Fault::Unnormalised,
        Fault::WrongKeyHead,
        Fault::SkipsLastKey,
        Fault::IgnoresLseGradient,
        Fault::UnscaledGradient,
        Fault::DirtyWorkspace,
        Fault::WritesPastTheWorkspace,
        Fault::Uncapped,
        Fault::WithoutSlope,
    ];
    let cases = small_cases();
    for fault in faults {
        let device = device(fault);
        let seen = cases.iter().any(|case| run_case(&device, case).failure.is_some());
        assert!(seen, "{fault:?} passed every case");
    }
}

#[test]
fn a_row_past_the_end_changes_the_guards() {
    for placement in [Placement::Bshd, Placement::Padded, Placement::Unaligned] {
        let case = Case { placement, ..Case::small() };
        let failure = run_case(&device(Fault::WritesPastTheEnd), &case).failure.unwrap();
        assert!(
            failure.starts_with("o: byte ") && failure.ends_with("is outside and was changed"),
            "{failure}"
        );
    }
}

#[test]
fn every_output_of_a_backward_is_judged() {
    let gradients = Gradients { dtype: Dtype::F32, has_d_lse: true, mode: Mode::Deterministic };
    let case = Case { gradients: Some(gradients), packed: true, batches: 3, ..Case::small() };
    let outcome = run_case(&device(Fault::None), &case);
    assert_eq!(outcome.failure, None);
    let names: Vec<_> = outcome.tensors.iter().map(|tensor| tensor.name).collect();
    assert_eq!(names, ["o", "lse", "dq", "dk", "dv"]);
    assert_eq!(outcome.backward_kernel, "backward_bf16_d64_sm80");
    let failure = |fault| run_case(&device(fault), &case).failure.unwrap();
    assert!(failure(Fault::UnscaledGradient).starts_with("dq: element "));
    assert!(failure(Fault::SkipsLastKey).starts_with("dk: element "));
    assert!(failure(Fault::WritesPastTheWorkspace).starts_with("workspace: byte "));
    let skipped = run_case(&device(Fault::SkipsLastKey), &case);
    let dk = skipped.tensor("dk").unwrap();
    let sequences = case.lengths().iter().filter(|[_, keys]| *keys > 0).count();
    assert_eq!((dk.non_finite, dk.first_non_finite.is_some()), (sequences * 64, true));
}

#[test]
fn one_future_key_is_seen_in_every_dtype() {
    for dtype in [Dtype::Bf16, Dtype::F16, Dtype::F32] {
        let mask = Mask::Causal(CausalAlignment::BottomRight);
        let case = Case { dtype, output_dtype: dtype, mask, ..Case::small() };
        assert_eq!(run_case(&device(Fault::None), &case).failure, None);
        let failure = run_case(&device(Fault::SeesTheFuture), &case).failure.unwrap();
        assert!(failure.starts_with("o: element ") && failure.contains("allowed"), "{failure}");
    }
}

#[test]
fn an_error_of_the_device_is_the_failure_of_the_case() {
    let failure = run_case(&device(Fault::Launch), &Case::small()).failure.unwrap();
    assert_eq!(
        failure,
        "kernel forward_bf16_d64_sm80: the emulator reports 2 findings\n- first\n- second"
    );
}
