//! One sequence over several ranks: the result is that of one, whatever the layout and whoever runs first; and
//! a rank that fails, or has another problem, is an error of all of them.

use finite_attention::check::{
    BiasFeature, Case, Computed, Features, Gradients, MaskFeature, Placement, ScorePlacement,
    compute_over_ranks, extended_case, featured_case, run_case_over_ranks,
};
use finite_attention::context_parallel::{ContextLayout, LocalCommunicator};
use finite_attention::driver::emulated::{Options, Schedule};
use finite_attention::{Arch, CausalAlignment, Device, Dtype, KernelImages, Mask, Mode};
use finite_attention_tests::cases::{ENOUGH_ROWS, with_fewer_heads};
use finite_attention_tests::device::{emulated, emulated_archs, open};
use finite_attention_tests::errors::errors_of_seeds;
use finite_attention_tests::property::{Finding, SHARE, count_from_environment, seed_from_environment};
use finite_attention_tests::share::{drawn, is_whole};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(300);

/// Each rank with a device of its own, as `like`; on a GPU with that one.
fn ranks(like: &Device, count: usize, turns: u64) -> Vec<(Device, LocalCommunicator)> {
    let open = |rank: usize| {
        if like.driver().as_cuda().is_some() {
            return like.clone();
        }
        let (major, _) = like.properties().compute_capability;
        let arch = if major == 9 { Arch::Sm90a } else { Arch::Sm80 };
        let schedule = Schedule::Random(turns ^ rank as u64);
        emulated(arch, KernelImages::embedded(), Options { schedule, ..Options::default() })
    };
    let communicators = LocalCommunicator::in_turns(count, LIMIT, turns).into_iter();
    communicators.enumerate().map(|(rank, own)| (open(rank), own)).collect()
}

/// Bias, boolean mask and sinks of a case, as far as ranks can share them out.
fn scores_shared_out(features: Features, packed: bool) -> Features {
    let placement = ScorePlacement::Dense;
    let is_whole = |bias: &BiasFeature| bias.dimensions.queries && bias.dimensions.keys;
    let bias = features.bias.filter(|_| !packed);
    let mask = features.mask.filter(|_| !packed);
    Features {
        bias: bias.map(|bias| {
            let gradient = bias.gradient.filter(|_| is_whole(&bias));
            BiasFeature { placement, gradient, ..bias }
        }),
        mask: mask.map(|mask| MaskFeature { placement, ..mask }),
        alibi: None,
        dropout: None,
        ..features
    }
}

fn within_the_rule(like: &Device, count: usize, layout: ContextLayout, case: &Case) -> Finding {
    let run = run_case_over_ranks(|| Ok(ranks(like, count, case.seed)), layout, case);
    let (outcome, _) = run.map_err(|error| format!("{count} ranks, {layout}: {error}"))?;
    outcome.failure.map_or(Ok(()), |failure| Err(format!("{count} ranks, {layout}: {failure}")))
}

/// What ranks can do, small.
fn shared_out(mut case: Case) -> Option<Case> {
    case.query_rows = case.query_rows.min(150);
    case.key_rows = case.key_rows.min(150);
    case.batches = case.batches.min(3);
    case.num_splits = None;
    case.placement = Placement::Bshd;
    let dtype = case.output_dtype;
    case.features = scores_shared_out(case.features, case.packed);
    case.gradients = case.gradients.map(|gradients| Gradients { dtype, ..gradients });
    Some(with_fewer_heads(case, ENOUGH_ROWS))
}

/// Random cases, over as many ranks and in such a layout as their seed says: `FATTN_CASES` of them.
#[test]
fn ranks_together_are_within_the_rule() {
    random_cases("ranks_together_are_within_the_rule", extended_case, 60);
}

/// The same with bias, boolean mask and sinks, and their gradients.
#[test]
fn ranks_with_features_are_within_the_rule() {
    random_cases("ranks_with_features_are_within_the_rule", featured_case, 60);
}

fn random_cases(test: &str, generate: fn(u64, usize) -> Case, cases: u32) {
    let cases = count_from_environment(cases, SHARE);
    let seed = seed_from_environment();
    eprintln!("{test}: {cases} cases, FATTN_SEED={seed}");
    for number in 0..cases {
        let Some(case) = shared_out(generate(seed.wrapping_add(u64::from(number)), number as usize))
        else {
            continue;
        };
        let archs = emulated_archs();
        let arch = archs.get(case.seed as usize % archs.len().max(1));
        let emulated = arch.map(|&arch| emulated(arch, KernelImages::embedded(), Options::default()));
        let gpu = if emulated.is_none() { Some(open()) } else { None };
        let like = emulated.as_ref().or(gpu.as_deref()).expect("one of the two");
        let layout = ContextLayout::ALL[(case.seed / 2 % 4) as usize];
        let count = [1, 2, 3, 4, 8][(case.seed / 8 % 5) as usize];
        within_the_rule(like, count, layout, &case)
            .unwrap_or_else(|wrong| panic!("{wrong}\nFATTN_SEED={seed}, number {number}: {case:#?}"));
    }
}

const CAUSAL: Mask = Mask::Causal(CausalAlignment::BottomRight);
const WINDOW: Mask =
    Mask::Window { left: Some(11), right: Some(3), alignment: CausalAlignment::BottomRight };

/// Ragged, of one layout, packed or not, under one mask.
fn ragged(mask: Mask, packed: bool) -> Case {
    let rows = if packed { 23 } else { 45 };
    let mode = Mode::Deterministic;
    Case {
        seed: 11,
        batches: if packed { 3 } else { 2 },
        query_rows: rows,
        key_rows: rows,
        query_heads: 2,
        key_heads: 1,
        head_dim: 16,
        value_dim: 8,
        mask,
        packed,
        gradients: Some(Gradients { dtype: Dtype::Bf16, has_d_lse: false, mode }),
        ..Case::small()
    }
}

fn bits(computed: &Computed) -> Vec<Vec<u32>> {
    let gradients = computed.gradients.as_ref().expect("they were asked for");
    [&computed.o, &computed.lse, &gradients.dq, &gradients.dk, &gradients.dv]
        .map(|tensor| tensor.iter().map(|number| number.to_bits()).collect())
        .to_vec()
}

/// How many orders of the ranks each case is run in: `FATTN_SCHEDULES`, 2 if it is not set.
fn orders() -> u64 {
    std::env::var("FATTN_SCHEDULES").map_or(2, |text| text.parse().expect("FATTN_SCHEDULES is a number"))
}

/// Each number of ranks under each mask, dense and packed, for each target: one in ten is drawn, six of each layout.
fn every_number_of_ranks(layout: ContextLayout) {
    let cases = [CAUSAL, Mask::Full, WINDOW].into_iter().flat_map(|mask| [(mask, false), (mask, true)]);
    let all = cases.flat_map(|case| [1, 2, 3, 4, 8].map(|count| (case, count)));
    let all = all.flat_map(|(case, count)| Arch::ALL.map(|arch| (case, count, arch)));
    for ((mask, packed), count, arch) in drawn(&format!("ranks {layout}"), 10, all) {
        one_number_of_ranks(arch, layout, count, &ragged(mask, packed));
    }
}

fn one_number_of_ranks(arch: Arch, layout: ContextLayout, count: usize, case: &Case) {
    let like = emulated(arch, KernelImages::embedded(), Options::default());
    let what =
        format!("{count} ranks, {layout}, {}, {}, packed {}", arch.name(), case.mask, case.packed);
    let run = run_case_over_ranks(|| Ok(ranks(&like, count, case.seed)), layout, case);
    let (outcome, first) = run.unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(outcome.failure, None, "{what}");
    // Whoever runs first, the bits are the same.
    for order in 1..orders() {
        let other = compute_over_ranks(ranks(&like, count, order), layout, case).unwrap();
        assert_eq!(bits(&other), bits(&first), "{what}");
    }
}

#[test]
fn contiguous_sequences_over_any_ranks() {
    every_number_of_ranks(ContextLayout::Contiguous);
}

#[test]
fn zigzag_sequences_over_any_ranks() {
    every_number_of_ranks(ContextLayout::Zigzag);
}

#[test]
fn striped_sequences_over_any_ranks() {
    every_number_of_ranks(ContextLayout::Stripe);
}

#[test]
fn gathered_sequences_over_any_ranks() {
    every_number_of_ranks(ContextLayout::Gathered);
}

/// dq of a piece is stored by the part that comes first, and that need not be the first of its parts: of packed
/// sequences of different lengths the longer chunk of keys does. It was added to memory that held nothing.
#[test]
fn dq_of_the_part_that_comes_first_is_stored() {
    let like = emulated(Arch::Sm80, KernelImages::embedded(), Options::default());
    let gradients = Gradients { dtype: Dtype::F32, has_d_lse: false, mode: Mode::Deterministic };
    let case = Case {
        seed: 18_028_789_412_742_400_637,
        batches: 3,
        query_rows: 8,
        key_rows: 103,
        query_heads: 1,
        head_dim: 7,
        value_dim: 7,
        dtype: Dtype::F32,
        output_dtype: Dtype::F32,
        packed: true,
        gradients: Some(gradients),
        ..Case::small()
    };
    within_the_rule(&like, 8, ContextLayout::Zigzag, &case).unwrap();
}

/// Partial results in 16 bits are what made errors grow with every rank elsewhere. Of one type, and one layout and number
/// of ranks, or of all of them.
#[test]
fn errors_do_not_grow_with_the_ranks() {
    let like = emulated(Arch::Sm90a, KernelImages::embedded(), Options::default());
    let few = [(ContextLayout::Zigzag, 8), (ContextLayout::Stripe, 4)];
    let all: Vec<_> = ContextLayout::ALL
        .into_iter()
        .flat_map(|layout| [2, 4, 8].map(|count| (layout, count)))
        .collect();
    let groups = [&few[..1], &few[1..]].map(|groups| if is_whole() { &all[..] } else { groups });
    for (dtype, allowed) in
        drawn("ranks-errors", 3, [(Dtype::Bf16, 1.03), (Dtype::F16, 1.03), (Dtype::F32, 1.2)])
    {
        let groups = drawn("ranks-groups", 2, groups)[0];
        let case = Case {
            query_rows: 256,
            key_rows: 256,
            query_heads: 4,
            key_heads: 2,
            dtype,
            output_dtype: dtype,
            mask: CAUSAL,
            gradients: Some(Gradients { dtype, has_d_lse: false, mode: Mode::Fast }),
            ..Case::small()
        };
        let errors = |count: usize, layout: ContextLayout| {
            errors_of_seeds(3, &case, |case| {
                compute_over_ranks(ranks(&like, count, 1), layout, case).unwrap()
            })
        };
        let one = errors(1, ContextLayout::Zigzag);
        for &(layout, count) in groups {
            for ((name, of), (_, one)) in errors(count, layout).into_iter().zip(one) {
                assert!(
                    of <= allowed * one,
                    "{name} of {count} ranks, {layout}, {}: {of:.3e}, of one {one:.3e}",
                    dtype.name()
                );
            }
        }
    }
}
