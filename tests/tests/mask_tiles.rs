//! Tiles of a boolean mask that show nothing are skipped, and those that show all are not masked: o, lse and all
//! gradients are what they would be otherwise, and what stands in skipped tiles reaches nothing.

use finite_attention::Mask;
use finite_attention::check::{
    Case, Dimensions, Features, GradientInputs, Gradients, Inputs, MaskFeature, ScoreHeads, ScoreInputs,
    ScorePlacement, Surroundings,
};
use finite_attention::driver::emulated::{Options, Schedule};
use finite_attention::{Arch, Device, Dtype, KernelImages, Mode, Precision};
use finite_attention_tests::cases::Cases;
use finite_attention_tests::compare::{has_repeatable_dq, identical, run, run_with, same_bits};
use finite_attention_tests::device::{arch_of, emulated, emulated_arch};
use finite_attention_tests::property::{Finding, check, check_all};
use finite_attention_tests::ptx::kernel_of;
use finite_attention_tests::rule::within_the_rule;

/// Cases with a boolean mask of blocks, and half of them with nothing else: several tiles either way, and gradients in
/// either mode.
fn of_blocks() -> Cases {
    Cases::fitted(|mut case: Case| {
        let blocks = [64, 128, 64, 192, 80][case.seed as usize % 5];
        let mask = case.features.mask.as_mut()?;
        if mask.block == 1 {
            mask.block = blocks;
        }
        if case.seed.is_multiple_of(2) {
            case.features = Features { mask: case.features.mask, ..Features::default() };
        }
        // Of few blocks too little may be left for the rule.
        (case.features.dropout, case.features.wants_d_sinks) = (None, false);
        several_tiles(&mut case);
        Some(case)
    })
    .featured()
}

/// Enough rows that blocks are whole tiles, and few heads.
fn several_tiles(case: &mut Case) {
    case.query_rows = case.query_rows % 300 + 70;
    case.key_rows = case.key_rows % 300 + 150;
    (case.batches, case.tight) = (case.batches.clamp(1, 2), false);
    let group = (case.query_heads / case.key_heads.max(1)).clamp(1, 3);
    case.key_heads = case.key_heads.clamp(1, 2);
    case.query_heads = group * case.key_heads;
}

#[test]
fn masks_of_blocks_are_within_the_rule() {
    check("mask-tiles", 60, of_blocks(), |device, case| {
        within_the_rule(device, case, Inputs::drawn).map(|_| ())
    });
}

/// In order, a key tile adds to dq behind the next one that does not skip the query tile.
#[test]
fn masks_of_blocks_have_repeatable_gradients() {
    if emulated_arch().is_none() {
        return;
    }
    let cases = Cases::fitted(move |mut case| {
        let mode = if case.seed.is_multiple_of(3) { Mode::Fast } else { Mode::Deterministic };
        case.gradients = Some(Gradients { dtype: case.dtype, has_d_lse: false, mode });
        case.features = Features { mask: case.features.mask, ..Features::default() };
        let mask = case.features.mask.as_mut()?;
        (mask.block, mask.density) = (64, 0.5);
        several_tiles(&mut case);
        (case.batches, case.key_heads, case.query_heads) = (1, 1, case.query_heads / case.key_heads);
        Some(case)
    });
    check_all("mask-tiles-schedules", 4, cases.featured(), |device, case| {
        let inputs = Inputs::drawn(case);
        let first = run(device, case, &inputs, Surroundings::Nan)?;
        for number in 0..20 {
            let schedule = Schedule::Random(case.seed ^ number);
            let options = Options { schedule, ..Options::default() };
            let other = emulated(arch_of(device), KernelImages::embedded(), options);
            let other = run(&other, case, &inputs, Surroundings::Nan)
                .map_err(|error| format!("{schedule:?}: {error}"))?;
            identical(&format!("{schedule:?}"), has_repeatable_dq(case), &first, &other)?;
        }
        Ok(())
    });
}

/// Of wide heads each of two writers adds half of a tile of dq, and a block's warpgroups wait for both. A writer that
/// had stored its half said so only when the next share was there: two blocks, each with a half that it had not spoken
/// of, waited for each other without end.
#[test]
fn writers_of_wide_heads_do_not_wait_for_each_other_in_a_circle() {
    if emulated_arch().is_none() {
        return;
    }
    let dimensions = Dimensions { batches: false, heads: ScoreHeads::One, queries: true, keys: true };
    let (placement, has_dead_rows) = (ScorePlacement::Dense, false);
    let mask = MaskFeature { dimensions, placement, density: 0.7, block: 1, has_dead_rows };
    let case = Case {
        query_rows: 256,
        key_rows: 128,
        query_heads: 1,
        head_dim: 8,
        value_dim: 136,
        features: Features { mask: Some(mask), ..Features::default() },
        gradients: Some(Gradients { dtype: Dtype::Bf16, has_d_lse: false, mode: Mode::Fast }),
        ..Case::small()
    };
    // Of 64 schedules four showed it.
    for number in 0..64 {
        let options = Options { schedule: Schedule::Random(number), ..Options::default() };
        let device = emulated(Arch::Sm90a, KernelImages::embedded(), options);
        let computed = run(&device, &case, &Inputs::drawn(&case), Surroundings::Nan)
            .unwrap_or_else(|error| panic!("schedule {number}: {error}"));
        let kernel = computed.gradients.expect("they were asked for").kernel;
        assert_eq!(kernel_of(&kernel), "backward_bf16_d192_sm90a");
    }
}

/// Where both take the same kernels, a mask that shows all is no mask.
#[test]
fn a_mask_that_shows_all_changes_no_bit() {
    let cases = Cases::fitted(|mut case: Case| {
        let mask = case.features.mask.as_mut()?;
        (mask.density, mask.has_dead_rows) = (1.0, false);
        case.features = Features { mask: case.features.mask, ..Features::default() };
        // Of wide heads, and of f32 in parts, each warpgroup begins with a key tile of its own, but not where the map says
        // which are visited: under a mask of positions the first one is another then, and so are roundings.
        if case.head_dim.max(case.value_dim) > 128 || case.precision == Some(Precision::Fast3) {
            case.mask = Mask::Full;
        }
        several_tiles(&mut case);
        Some(case)
    });
    check("mask-tiles-all", 30, cases.featured().with_fewer_heads(), |device, case| {
        let without = Case { features: Features::default(), ..case.clone() };
        let masked = run(device, case, &Inputs::drawn(case), Surroundings::Nan)?;
        let plain = run(device, &without, &Inputs::drawn(&without), Surroundings::Nan)?;
        let kernels = |of: &finite_attention::check::Computed| {
            let backward = of.gradients.as_ref().map(|of| kernel_of(&of.kernel).to_owned());
            (kernel_of(&of.kernel).to_owned(), backward)
        };
        if kernels(&masked) != kernels(&plain) {
            return Ok(());
        }
        identical(&masked.kernel, has_repeatable_dq(case), &plain, &masked)
    });
}

/// Rows that no tile is near of which the mask shows something: beyond the widest tile, and a granule of the map, from
/// those that are shown.
const FAR: usize = 192 + 64;

/// Keys, and queries, of `rows` that the case below hides; NaN stands in those of them that are far from others.
fn hidden(rows: usize) -> std::ops::Range<usize> {
    64..rows - 70
}

fn far(rows: usize) -> std::ops::Range<usize> {
    let hidden = hidden(rows);
    hidden.start + FAR..hidden.end - FAR
}

fn is_untouched(device: &Device, case: &Case) -> Finding {
    let &Case { batches, query_rows, key_rows, query_heads, key_heads, head_dim, value_dim, .. } = case;
    let mut inputs = Inputs::drawn(case);
    let shown: Vec<bool> = (0..query_rows * key_rows)
        .map(|at| {
            !hidden(query_rows).contains(&(at / key_rows))
                && !hidden(key_rows).contains(&(at % key_rows))
        })
        .collect();
    inputs.scores = ScoreInputs { mask: shown, ..inputs.scores };
    let mut gradients = GradientInputs::drawn(case);
    let expected = run_with(device, case, &inputs, &gradients, Surroundings::Nan)?;
    let spoil = |tensor: &mut [f32], rows: usize, row_elements: usize| {
        for (at, element) in tensor.iter_mut().enumerate() {
            if far(rows).contains(&(at / row_elements % rows)) {
                *element = f32::NAN;
            }
        }
    };
    spoil(&mut inputs.k, key_rows, key_heads * head_dim);
    spoil(&mut inputs.v, key_rows, key_heads * value_dim);
    spoil(&mut inputs.q, query_rows, query_heads * head_dim);
    spoil(&mut gradients.d_o, query_rows, query_heads * value_dim);
    let spoiled = run_with(device, case, &inputs, &gradients, Surroundings::Nan)?;
    identical(&expected.kernel, has_repeatable_dq(case), &expected, &spoiled)?;
    if let (Some(expected), Some(spoiled)) = (&expected.gradients, &spoiled.gradients)
        && !has_repeatable_dq(case)
        && spoiled.dq.iter().any(|dq| dq.is_nan())
    {
        return same_bits(&format!("{}: dq", expected.kernel), &expected.dq, &spoiled.dq);
    }
    assert!(batches == 1);
    Ok(())
}

/// NaN in keys, values, queries and dO that stand far from all that the mask shows reaches nothing, where 0 x NaN of a
/// tile that is computed would.
#[test]
fn what_stands_in_skipped_tiles_reaches_nothing() {
    let cases = Cases::fitted(|mut case: Case| {
        let dimensions =
            Dimensions { batches: false, heads: ScoreHeads::One, queries: true, keys: true };
        let placement = ScorePlacement::Dense;
        let mask = MaskFeature { dimensions, placement, density: 1.0, block: 1, has_dead_rows: false };
        case.features = Features { mask: Some(mask), ..Features::default() };
        (case.mask, case.packed, case.amplitude) = (Mask::Full, false, 1.0);
        (case.scale, case.softcap, case.logit_shift, case.tight) = (None, None, 0.0, false);
        case.placement = finite_attention::check::Placement::Bshd;
        // Parts are in units of the largest number of a head, whatever the mask shows of it.
        case.precision = None;
        (case.batches, case.query_heads, case.key_heads) = (1, 2, 1);
        (case.query_rows, case.key_rows) = (2 * FAR + 140 + case.query_rows % 60, 2 * FAR + 150);
        Some(case)
    });
    check("mask-tiles-far", 12, cases.extended(), is_untouched);
}
