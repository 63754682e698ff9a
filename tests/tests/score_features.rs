//! Bias, boolean masks, slopes of ALiBi and sinks, alone and together with everything else that a problem can
//! have: o, lse and all gradients within the tolerance rule.

use finite_attention::check::{Case, Dimensions, Features, Gradients, Inputs, ScoreHeads, ScoreInputs};
use finite_attention::problem::AlibiSlopes;
use finite_attention::{CausalAlignment, Dtype, Mask, Mode};
use finite_attention_tests::cases::{Cases, retyped};
use finite_attention_tests::device::{arch_of, on_each};
use finite_attention_tests::property::check;
use finite_attention_tests::rule::within_the_rule;
use finite_attention_tests::share::drawn;

fn accurate(test: &str, count: u32, cases: Cases) {
    check(test, count, cases.featured().with_just_enough_rows(), |device, case| {
        within_the_rule(device, case, Inputs::drawn).map(|_| ())
    });
}

/// In this dtype, with features; what was to differ from the inputs is f32.
fn of(dtype: Dtype) -> Cases {
    Cases::fitted(move |case| {
        let case = retyped(case, dtype);
        (!case.features.is_empty()).then_some(case)
    })
}

/// Cases that have nothing but what `keep` leaves of their features.
fn only(keep: fn(Features) -> Features) -> Cases {
    Cases::fitted(move |mut case| {
        case.features = keep(case.features);
        (!case.features.is_empty()).then_some(case)
    })
}

#[test]
fn features_of_bf16_are_within_the_rule() {
    accurate("features-bf16", 60, of(Dtype::Bf16));
}

#[test]
fn features_of_f16_are_within_the_rule() {
    accurate("features-f16", 60, of(Dtype::F16));
}

#[test]
fn features_of_f32_are_within_the_rule() {
    accurate("features-f32", 40, of(Dtype::F32));
}

#[test]
fn a_bias_alone_is_within_the_rule() {
    accurate("features-bias", 40, only(|all| Features { bias: all.bias, ..Features::default() }));
}

#[test]
fn a_mask_alone_is_within_the_rule() {
    accurate("features-mask", 40, only(|all| Features { mask: all.mask, ..Features::default() }));
}

#[test]
fn slopes_alone_are_within_the_rule() {
    accurate("features-alibi", 30, only(|all| Features { alibi: all.alibi, ..Features::default() }));
}

/// Slopes of the paper and others: steeper ones, ones that make scores grow with the distance, and none. With capped
/// scores, scales of 0 and near it, f32 outputs, ranges of keys, and heads that are rows of a tile.
#[test]
fn slopes_of_any_size_are_within_the_rule() {
    let slopes = [0.0, 0.25, 1.0, 1.5, -0.25, 30.0, 0.004, 2e-8];
    let plain = Case {
        query_rows: 300,
        key_rows: 400,
        query_heads: slopes.len(),
        key_heads: 2,
        head_dim: 64,
        value_dim: 64,
        mask: Mask::Full,
        features: Features { alibi: Some(AlibiSlopes::PerHead), ..Features::default() },
        ..Case::small()
    };
    let causal = Mask::Causal(CausalAlignment::BottomRight);
    let window = Mask::Window { left: Some(170), right: Some(140), alignment: CausalAlignment::TopLeft };
    let sides = [Mask::Full, causal, window].map(|mask| Case { mask, ..plain.clone() });
    let others = [
        Case { head_dim: 128, value_dim: 128, ..plain.clone() },
        Case { softcap: Some(3.0), ..plain.clone() },
        Case { scale: Some(-0.3), ..plain.clone() },
        Case { scale: Some(1e-20), ..plain.clone() },
        Case { scale: Some(0.0), ..plain.clone() },
        Case { output_dtype: Dtype::F32, ..plain.clone() },
        Case { num_splits: Some(3), pack_gqa: Some(false), ..plain.clone() },
        Case { num_splits: Some(2), pack_gqa: Some(true), query_rows: 70, ..plain.clone() },
    ];
    on_each(|device| {
        let cases = sides
            .iter()
            .chain(&others)
            .flat_map(|case| [Dtype::Bf16, Dtype::F16].map(|dtype| retyped(case.clone(), dtype)));
        let name = format!("features-slopes {}", arch_of(device).name());
        for case in drawn(&name, 3, cases) {
            let inputs = |case: &Case| {
                let drawn = Inputs::drawn(case);
                let scores = ScoreInputs { alibi_slopes: slopes.to_vec(), ..drawn.scores };
                Inputs { scores, ..drawn }
            };
            within_the_rule(device, &case, inputs).unwrap_or_else(|error| panic!("{error}"));
        }
    });
}

#[test]
fn sinks_alone_are_within_the_rule() {
    accurate(
        "features-sinks",
        30,
        only(|Features { has_sinks, wants_d_sinks, .. }| Features {
            has_sinks,
            wants_d_sinks,
            ..Features::default()
        }),
    );
}

/// The gradient of a bias of every set of dimensions, in either mode.
#[test]
fn gradients_of_a_bias_are_sums_over_what_is_broadcast() {
    let cases = Cases::fitted(|mut case| {
        let bias = case.features.bias.as_mut()?;
        bias.dimensions = dimensions(case.seed);
        bias.gradient = Some(if case.seed.is_multiple_of(3) { Dtype::F32 } else { bias.dtype });
        let mode = if case.seed.is_multiple_of(2) { Mode::Fast } else { Mode::Deterministic };
        case.gradients = Some(Gradients { dtype: case.dtype, has_d_lse: false, mode });
        Some(case)
    });
    accurate("features-dbias", 60, cases);
}

/// One of the 24 sets.
fn dimensions(seed: u64) -> Dimensions {
    let heads = [ScoreHeads::One, ScoreHeads::Key, ScoreHeads::Query][(seed >> 8) as usize % 3];
    let has = |bit: u32| seed >> bit & 1 == 1;
    Dimensions { batches: has(16), heads, queries: has(17), keys: has(18) }
}

/// A single query, as in decoding: heads that share keys are not made rows of a tile where scores have what is
/// each head's own, and ranges of keys are combined together with their sinks.
#[test]
fn features_of_a_single_query_are_within_the_rule() {
    let cases = Cases::fitted(|mut case: Case| {
        case.query_rows = 1;
        case.key_rows = 200 + case.key_rows % 130;
        // The rule needs many key heads.
        case.query_heads = case.query_heads.min(2 * case.key_heads);
        (!case.features.is_empty()).then_some(case)
    });
    accurate("features-decoding", 16, cases);
}

/// No query head has a bias whose gradient would be summed up.
#[test]
fn a_gradient_of_a_bias_without_query_heads_is_zero() {
    let cases = Cases::fitted(|mut case: Case| {
        (case.query_heads, case.pack_gqa) = (0, None);
        case.features.bias?.gradient?;
        case.gradients.map(|_| case)
    });
    check("features-no-heads", 4, cases.featured(), |device, case| {
        within_the_rule(device, case, Inputs::drawn).map(|_| ())
    });
}
