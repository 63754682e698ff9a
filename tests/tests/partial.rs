//! Forward passes over some of the keys each, one after the other: o and lse are those of all keys, whichever
//! keys come first, and however many passes there are.

use finite_attention::attention::forward_partial;
use finite_attention::check::{
    BiasFeature, Case, Features, Gradients, MaskFeature, Outcome, Placement, ScorePlacement,
    run_case_in_parts,
};
use finite_attention::driver::emulated::Schedule;
use finite_attention::plan::PartialForward;
use finite_attention::problem::AlibiSlopes;
use finite_attention::{Device, Dtype, ForwardPointers, ForwardProblem, Layout, Mask, Mode, Stream};
use finite_attention_tests::cases::Cases;
use finite_attention_tests::device::{emulated_arch, open};
use finite_attention_tests::errors::errors_of_seeds;
use finite_attention_tests::property::{Finding, check};
use finite_attention_tests::ptx::{Ptx, Which, operand};
use finite_attention_tests::verdict::{Verdict, judge_in_parts};
use kernels_gpu::abi::Switch;
use std::ops::Range;

/// The keys of a case in so many parts, of lengths that its seed says, some of them none, in an order of its
/// own.
fn parts(case: &Case, count: usize) -> Vec<Range<usize>> {
    let mut state = case.seed | 1;
    let mut next = |below: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % below.max(1)
    };
    let mut cuts: Vec<usize> = (1..count).map(|_| next(case.key_rows + 1)).collect();
    cuts.extend([0, case.key_rows]);
    cuts.sort_unstable();
    let mut parts: Vec<Range<usize>> = cuts.windows(2).map(|pair| pair[0]..pair[1]).collect();
    for last in (1..parts.len()).rev() {
        parts.swap(last, next(last + 1));
    }
    parts
}

fn right(device: &Device, case: &Case) -> Finding {
    let parts = parts(case, 2 + case.seed as usize % 4);
    let (outcome, _) = run_case_in_parts(device, case, &parts).map_err(|error| error.to_string())?;
    let Outcome { kernel, backward_kernel, failure, .. } = outcome;
    failure.map_or(Ok(()), |failure| Err(format!("{kernel}; {backward_kernel} {parts:?}: {failure}")))
}

/// What passes over some of the keys can have: no mask of positions, which each pass would need its own of, and
/// nothing that goes by positions in the whole.
fn partial(mut case: Case) -> Case {
    (case.mask, case.packed, case.num_splits) = (Mask::Full, false, None);
    case.placement = Placement::Bshd;
    let placement = ScorePlacement::Dense;
    case.features = Features {
        bias: case.features.bias.map(|bias| BiasFeature { placement, gradient: None, ..bias }),
        mask: case.features.mask.map(|mask| MaskFeature { placement, ..mask }),
        alibi: None,
        dropout: None,
        wants_d_sinks: false,
        ..case.features
    };
    case
}

#[test]
fn passes_over_some_of_the_keys_are_within_the_rule() {
    let cases = Cases::changed(|case| {
        *case = partial(case.clone());
        case.key_rows = case.key_rows.min(400);
    });
    check("partial", 40, cases.featured().with_just_enough_rows(), right);
}

/// Rows that see nothing in some of the passes, and rows that see nothing in any.
#[test]
fn passes_that_show_nothing_count_for_nothing() {
    let cases = Cases::fitted(|case| {
        let mut case = partial(case);
        let mask = case.features.mask.as_mut()?;
        (mask.block, mask.density, mask.has_dead_rows) = (64, 0.3, true);
        case.features.bias = None;
        case.key_rows = 260;
        case.query_rows = case.query_rows.min(150);
        Some(case)
    });
    check("partial-nothing", 16, cases.featured().with_just_enough_rows(), right);
}

/// What one pass overflows or loses must not show: logits far from 0 on either side, and far from each other.
#[test]
fn passes_with_logits_far_apart_are_weighed_right() {
    let cases = Cases::changed(|case| {
        *case = partial(case.clone());
        (case.query_rows, case.key_rows) = (case.query_rows.min(40), 300);
        case.logit_shift = [200.0, -200.0, 0.0][case.seed as usize % 3];
        case.amplitude = 2.0;
    });
    check("partial-logits", 16, cases.with_just_enough_rows(), right);
}

/// Nothing is rounded on the way: 16 passes are as exact as one.
#[test]
fn errors_do_not_grow_with_the_passes() {
    let device = open();
    for dtype in [Dtype::F32, Dtype::Bf16] {
        let gradients = Some(Gradients { dtype, has_d_lse: false, mode: Mode::Deterministic });
        let shape = Case { query_rows: 64, key_rows: 256, gradients, ..Case::small() };
        let base = Case { dtype, output_dtype: dtype, ..shape };
        let errors = |count: usize| {
            errors_of_seeds(4, &base, |case| {
                let length = case.key_rows / count;
                let parts: Vec<_> = (0..count).map(|i| i * length..(i + 1) * length).collect();
                let (outcome, computed) = run_case_in_parts(&device, case, &parts).unwrap();
                assert_eq!(outcome.failure, None);
                computed
            })
        };
        let most: f64 = if dtype == Dtype::F32 { 1.2 } else { 1.03 };
        for ((name, one), (_, many)) in errors(1).into_iter().zip(errors(16)) {
            let ratio = many / one;
            assert!(ratio <= most, "{dtype:?} {name}: error of 16 passes {ratio:.3} of that of one");
        }
    }
}

/// The first pass and those behind it run kernels that merge, and the last one the kernel of the whole.
#[test]
fn passes_merge_in_kernels_with_the_switch_on() {
    let device = open();
    let case = Case { query_rows: 300, key_rows: 256, ..Case::small() };
    let (_, computed) = run_case_in_parts(&device, &case, &[0..100, 100..101, 101..256]).unwrap();
    let kernels: Vec<_> = computed.kernel.split(", ").collect();
    assert_eq!(kernels.len(), 3);
    assert!(kernels.iter().all(|kernel| kernel.ends_with(Switch::Merge.name())), "{kernels:?}");
    let (_, alone) = run_case_in_parts(&device, &case, std::slice::from_ref(&(0..256))).unwrap();
    assert!(!alone.kernel.contains(Switch::Merge.name()), "{}", alone.kernel);
}

/// Every argument that a pass over some of the keys cannot have is named.
#[test]
fn what_a_pass_cannot_have_is_named() {
    let device = open();
    let layout = Layout::bshd([1, 4, 1, 8]);
    let plain = ForwardProblem::new(Dtype::Bf16, layout, layout, layout);
    let pointers = ForwardPointers { q: 256, k: 512, v: 768, o: 1024, lse: 1280, ..Default::default() };
    let partial = PartialForward { state: 2048, is_first: true, is_last: false, total_keys: 8 };
    let error = |problem: &ForwardProblem, partial: &PartialForward| {
        // SAFETY: it is refused before anything is launched.
        let result = unsafe { forward_partial(&device, problem, &pointers, partial, Stream::default()) };
        result.unwrap_err().to_string()
    };
    let dropped = plain.with_dropout(0.5, 1, 0);
    let sees_some = "expected none, since this pass sees some of the keys only, got one";
    assert_eq!(error(&dropped, &partial), format!("dropout: {sees_some}"));
    let sloped = plain.with_alibi(AlibiSlopes::PerHead);
    assert_eq!(error(&sloped, &partial), format!("alibi_slopes: {sees_some}"));
    let too_few = PartialForward { total_keys: 3, ..partial };
    assert_eq!(error(&plain, &too_few), "total_keys: expected 4 at least, those of this pass, got 3");
    let nowhere = PartialForward { state: 0, ..partial };
    assert!(error(&plain, &nowhere).starts_with("state: "), "{}", error(&plain, &nowhere));
    let askew = PartialForward { state: 2056, ..partial };
    assert!(error(&plain, &askew).starts_with("state: "), "{}", error(&plain, &askew));
}

/// Kernels that merge with one thing of that taken away: found in passes over some of the keys.
#[test]
fn mutants_of_merging_are_found() {
    if emulated_arch().is_none() {
        return;
    }
    let dropped_loads: (&str, &[&str]) = ("ld.global", &["add.rs: "]);
    let no_sync: (&str, &[&str]) = ("bar.warp.sync", &["finish.rs: warp::warp_sync();"]);
    let weights: (&str, &[&str]) = ("ex2.approx", &["merge.rs: math::exp2("]);
    let statistics: (&str, &[&str]) = ("ld.global.v2", &["query_block.rs: let [reference, sum]"]);
    let forward = [dropped_loads, no_sync, weights, statistics];
    let backward = [dropped_loads];
    for (kernel, mutants) in [
        ("forward_bf16_d64_sm80", &forward[..]),
        ("forward_f32_d64_sm80", &forward[..]),
        // Of tiles of 128 rows, which all passes have; those of 192 have the last one alone.
        ("forward_bf16_d64_q128_sm90a", &forward[..]),
        ("forward_bf16_d128_heads_sm90a", &forward[..]),
        ("backward_bf16_d64_sm80", &backward[..]),
        ("backward_f32_d64_sm80", &backward[..]),
        ("backward_bf16_d64_sm90a", &backward[..]),
        ("backward_bf16_d256_sm90a", &backward[..]),
    ] {
        let shipped = Ptx::shipped(kernel);
        let verdict = |ptx: &Ptx| judge_in_parts(kernel, ptx.images(), Schedule::Latest);
        let clean = verdict(&shipped);
        assert!(matches!(clean, Verdict::Clean), "{kernel}: {clean:?}");
        for (opcode, through) in mutants {
            let mutant = shipped.edited_at(opcode, through, Which::All, |line| match *opcode {
                "ex2.approx" => format!("mov.b32 {}, 0f3F800000;", operand(line, 0)),
                _ => String::new(),
            });
            let found = verdict(&mutant);
            let is_found = matches!(found, Verdict::Findings(_) | Verdict::Wrong(_));
            assert!(is_found, "{kernel} without {opcode} {through:?}: {found:?}");
        }
    }
}
