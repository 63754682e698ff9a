//! Dynamic masks: the keys that a bias chooses, under a mask or gathered. o, lse and all gradients are within the rule,
//! given what a plain sort keeps; keys that are not kept have gradients of exactly 0; and where all are kept it is
//! attention with a bias.

use finite_attention::check::{
    Case, Computed, Features, FlashDmattnSize, Gradients, Inputs, ScoreHeads, Surroundings,
    flash_dmattn_cases, run_case, with_dynamic_mask,
};
use finite_attention::problem::{DynamicMask, DynamicRule, DynamicWay};
use finite_attention::{Arch, Mask};
use finite_attention_tests::cases::Cases;
use finite_attention_tests::compare::{has_repeatable_dq, identical, run, same_bits};
use finite_attention_tests::device::{arch_of, open};
use finite_attention_tests::property::{Finding, check};
use finite_attention_tests::ptx::kernel_of;
use finite_attention_tests::rule::within_the_rule;

/// Cases of any kind with a dynamic mask.
fn dynamic() -> Cases {
    Cases::fitted(|case| Some(with_dynamic_mask(case))).featured()
}

/// Those whose keys are gathered, and have gradients.
fn gathered() -> Cases {
    Cases::fitted(|case| {
        let mut case = with_dynamic_mask(case);
        case.features.dynamic_mask?.way?;
        let dtype = case.dtype;
        case.gradients =
            case.gradients.or(Some(Gradients { dtype, has_d_lse: false, mode: Default::default() }));
        Some(case)
    })
    .featured()
}

#[test]
fn dynamic_masks_are_within_the_rule() {
    check("dynamic", 120, dynamic().with_just_enough_rows(), |device, case| {
        within_the_rule(device, case, Inputs::drawn).map(|_| ())
    });
}

#[test]
fn gathered_keys_are_within_the_rule() {
    check("dynamic-gathered", 60, gathered().with_just_enough_rows(), |device, case| {
        within_the_rule(device, case, Inputs::drawn).map(|_| ())
    });
}

/// A key that no row of its head keeps has gradients of exactly 0, and so has its bias.
fn others_are_zero(case: &Case, computed: &Computed) -> Finding {
    let Some((kept, gradients)) = computed.inputs.scores.kept.as_ref().zip(computed.gradients.as_ref())
    else {
        return Ok(());
    };
    let [batches, heads, queries, keys] = kept.shape;
    let &Case { key_heads, head_dim, value_dim, .. } = case;
    let is_kept = |batch: usize, key_head: usize, key: usize| {
        let batch = if batches == 1 { 0 } else { batch };
        let heads_of = if heads == 1 {
            0..1
        } else {
            key_head * heads / key_heads..(key_head + 1) * heads / key_heads
        };
        heads_of.into_iter().any(|head| {
            (0..queries)
                .any(|query| kept.values[((batch * heads + head) * queries + query) * keys + key])
        })
    };
    for batch in 0..case.batches {
        for key in 0..keys {
            for head in (0..key_heads).filter(|&head| !is_kept(batch, head, key)) {
                let row = (batch * keys + key) * key_heads + head;
                let zero = |tensor: &[f32], columns: usize| {
                    tensor[row * columns..][..columns].iter().all(|&element| element == 0.0)
                };
                if !zero(&gradients.dk, head_dim) || !zero(&gradients.dv, value_dim) {
                    return Err(format!(
                        "dk or dv of key {key} of batch {batch}, head {head}, is not 0"
                    ));
                }
            }
        }
    }
    let bias =
        case.problem().bias.map(|bias| bias.layout.shape).filter(|_| !gradients.d_bias.is_empty());
    let Some(shape) = bias.filter(|shape| *shape == kept.shape) else { return Ok(()) };
    match gradients.d_bias.iter().zip(&kept.values).position(|(&d_bias, &kept)| !kept && d_bias != 0.0) {
        None => Ok(()),
        Some(at) => {
            Err(format!("dbias {shape:?}: element {at} is of a key that is not kept, and not 0"))
        }
    }
}

#[test]
fn keys_that_are_not_kept_have_gradients_of_zero() {
    let cases = Cases::fitted(|case| {
        let mut case = with_dynamic_mask(case);
        let dtype = case.dtype;
        case.gradients =
            case.gradients.or(Some(Gradients { dtype, has_d_lse: false, mode: Default::default() }));
        let DynamicMask { rule: DynamicRule::TopK { .. }, block_size, way } =
            case.features.dynamic_mask?
        else {
            return None;
        };
        let rule = DynamicRule::TopK { window: (case.key_rows / 5).max(1) };
        case.features.dynamic_mask = Some(DynamicMask { rule, block_size, way });
        (!case.packed).then_some(case)
    });
    check("dynamic-zeros", 60, cases.featured().with_fewer_heads(), |device, case| {
        others_are_zero(case, &run(device, case, &Inputs::drawn(case), Surroundings::Nan)?)
    });
}

/// Both ways see the same keys: where one has 0 for all of a key's gradients, so has the other.
#[test]
fn gathering_is_masking_within_the_rule() {
    check("dynamic-ways", 40, gathered().with_just_enough_rows(), |device, case| {
        let of = |way| {
            let mut case = case.clone();
            case.features.dynamic_mask = case.features.dynamic_mask.map(|mask| mask.with_way(way));
            within_the_rule(device, &case, Inputs::drawn)
        };
        let (masked, gathered) = (of(DynamicWay::Mask)?, of(DynamicWay::Gather)?);
        others_are_zero(case, &masked)?;
        others_are_zero(case, &gathered)
    });
}

/// Where both take the same kernels, a window of all keys is no dynamic mask.
#[test]
fn a_window_of_all_keys_changes_no_bit() {
    let cases = Cases::fitted(|case| {
        let mut case = with_dynamic_mask(case);
        // Of wide heads each warpgroup begins with a key tile of its own, but not where a map says which are visited.
        if case.head_dim.max(case.value_dim) > 128 {
            case.mask = Mask::Full;
        }
        let window = case.key_rows.max(1) + case.seed as usize % 3;
        case.features =
            Features { mask: None, dynamic_mask: Some(DynamicMask::top_k(window)), ..case.features };
        Some(case)
    });
    check("dynamic-all", 40, cases.featured().with_fewer_heads(), |device, case| {
        let features = Features { dynamic_mask: None, ..case.features };
        let without = Case { features, ..case.clone() };
        let chosen = run(device, case, &Inputs::drawn(case), Surroundings::Nan)?;
        let plain = run(device, &without, &Inputs::drawn(&without), Surroundings::Nan)?;
        // On Hopper, with slopes of ALiBi and nothing that hides, the tile on the diagonal comes first, but not where a map
        // says which are visited.
        let sees_all = matches!(case.mask, Mask::Full | Mask::Window { left: None, right: None, .. });
        let is_turned = sees_all && case.features.alibi.is_some() && arch_of(device) == Arch::Sm90a;
        if is_turned || kernel_of(&chosen.kernel) != kernel_of(&plain.kernel) {
            return Ok(());
        }
        let backward = |of: &Computed| of.gradients.as_ref().map(|of| kernel_of(&of.kernel).to_owned());
        if backward(&chosen) != backward(&plain) {
            same_bits("o", &chosen.o, &plain.o)?;
            return same_bits("lse", &chosen.lse, &plain.lse);
        }
        identical(&chosen.kernel, has_repeatable_dq(case), &plain, &chosen)
    });
}

/// Of each shape of Flash-DMAttn's grid a case, another one for each run of all tests.
#[test]
fn the_grid_of_flash_dmattn_is_within_the_rule() {
    let device = open();
    let seed = finite_attention_tests::seed::from_environment().unwrap().unwrap_or(0);
    let grid = flash_dmattn_cases(seed, FlashDmattnSize { pairs: 1 << 14 });
    let small = |case: &&Case| case.query_rows * case.key_rows <= 256 * 256;
    let small: Vec<&Case> = grid.iter().filter(small).collect();
    for part in 0..12 {
        let case = small[(part * small.len() + seed as usize % small.len()) / 12 % small.len()];
        assert_eq!(run_case(&device, case).failure, None, "{case:?}");
    }
}

/// Heads that share keys may choose different ones, and then the mask way is taken, whatever it costs.
#[test]
fn query_heads_with_keys_of_their_own_are_not_gathered() {
    let of = |heads| {
        let mut case = with_dynamic_mask(Case { query_heads: 4, key_heads: 2, ..Case::small() });
        let bias = case.features.bias.as_mut().unwrap();
        (bias.dimensions.heads, bias.dimensions.queries) = (heads, false);
        case.features.dynamic_mask = Some(DynamicMask::top_k(5).with_way(DynamicWay::Gather));
        run_case(&open(), &case).failure
    };
    assert_eq!(of(ScoreHeads::Key), None);
    let refused = of(ScoreHeads::Query).unwrap();
    assert!(refused.contains("query heads that share keys choose different ones"), "{refused}");
}
