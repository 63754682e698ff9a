//! Bias, boolean masks, slopes, sinks and dropout for the cases of a sweep.

use super::{
    BiasFeature, BiasValues, Case, Dimensions, Features, MaskFeature, Part, ScoreHeads, ScorePlacement,
    extended_case,
};
use crate::problem::AlibiSlopes;
use kernels_gpu::abi::Dtype;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// As [`extended_case`], with bias, boolean mask, slopes, sinks and dropout in about a third of the cases.
/// Numbers of their own: what else is drawn for a seed does not depend on them.
pub fn featured_case(seed: u64, id: usize) -> Case {
    let case = extended_case(seed, id);
    let mut random = StdRng::seed_from_u64(case.seed.rotate_left(40));
    if !random.random_bool(0.36) {
        return case;
    }
    let features = Features {
        bias: random.random_bool(0.5).then(|| draw_bias(&case, &mut random)),
        mask: random.random_bool(0.4).then(|| draw_mask(&mut random)),
        alibi: random.random_bool(0.35).then(|| match random.random_bool(0.5) {
            true => AlibiSlopes::PerHead,
            false => AlibiSlopes::PerBatchAndHead,
        }),
        has_sinks: random.random_bool(0.35),
        wants_d_sinks: random.random_bool(0.75),
        dropout: None,
        dynamic_mask: None,
    };
    // Last: what else is drawn for a seed does not depend on it.
    let dropout = random.random_bool(0.25).then(|| DROPOUT_RATES[random.random_range(0..5)]);
    let mut features = Features { dropout, ..features };
    let block = random.random_bool(0.45).then(|| MASK_BLOCKS[random.random_range(0..MASK_BLOCKS.len())]);
    // What is left of few blocks may be too little for the rule, as [`judgeable`] says of pairs.
    let is_judged = dropout.is_none_or(|rate| rate <= 0.1);
    if let (Some(mask), Some(block), true) = (&mut features.mask, block, is_judged) {
        mask.block = block;
    }
    judgeable(Case { features, ..case })
}

/// Queries and keys of blocks that a boolean mask shows or hides together.
const MASK_BLOCKS: [usize; 6] = [16, 48, 64, 64, 80, 128];

/// Shares of probabilities that are dropped.
const DROPOUT_RATES: [f32; 5] = [0.001, 0.1, 0.5, 0.9, 0.999];

/// Pairs that dropout leaves, of those that the masks show: of fewer, the tolerance rule would compare
/// chances. The largest error of either side is that of the few rows where a pair of a large probability is
/// left.
const ENOUGH_PAIRS: f64 = 256.0;

/// Sinks in f32 that have gradients: the error of one is that of another by chance.
const ENOUGH_SINKS: usize = 8;

/// Pairs whose scores are below the cap, where gradients are f32: near the cap nothing is left of them, and
/// of fewer pairs the error of either side is how one product happens to be rounded.
const ENOUGH_BELOW_CAP: f64 = 256.0;

/// How many times the batches a case may have of which masks and dropout leave little.
const MOST_TIMES: usize = 8;

/// The same with another bias where the rule cannot judge rows of a type's lowest number. Gradients come from
/// lse, which holds nothing beside it; and what is added to that of f16 may lead out of its range, in which
/// unfused code has its scores. Nor can it judge what little masks and dropout leave of small problems, which
/// have more batches then, and of which less is dropped. In f32 the gradient of a sink is as wrong as lse of
/// the few rows that count most: there are more heads then, in groups as they are. Nor can it judge dropout
/// where a scale of 0 makes all probabilities of a row one number: how that one rounds, before its factor or
/// after, is the error of the whole tensor. Nor gradients in f32 under a cap that nearly all scores of few
/// pairs have: the scale is smaller then.
pub fn judgeable(mut case: Case) -> Case {
    let Features { has_sinks, wants_d_sinks, .. } = case.features;
    if has_sinks && wants_d_sinks && case.gradients.is_some() && case.dtype == Dtype::F32 {
        let times = ENOUGH_SINKS.div_ceil(case.query_heads.max(1));
        (case.query_heads, case.key_heads) = (times * case.query_heads, times * case.key_heads);
    }
    let shown = case.features.mask.map_or(1.0, |mask| mask.density);
    let visible = |case: &Case| visible_pairs(case) as f64 * shown;
    // What the lowest rate leaves that is taken in place of others.
    let left = if case.features.dropout.is_some() { 0.5 } else { 1.0 } * visible(&case);
    let is_thinned = case.features.mask.is_some() || case.features.dropout.is_some();
    if is_thinned && left > 0.0 && left < ENOUGH_PAIRS {
        case.batches *= MOST_TIMES.min((ENOUGH_PAIRS / left).ceil() as usize);
    }
    let visible = visible(&case);
    let leaves_enough = |rate: f32| (1.0 - f64::from(rate)) * visible >= ENOUGH_PAIRS;
    case.features.dropout = case.features.dropout.map(|rate| {
        let smaller = [0.99, 0.9, 0.5].into_iter().filter(|&smaller| smaller < rate);
        let mut rates = std::iter::once(rate).chain(smaller);
        rates.find(|&rate| leaves_enough(rate)).unwrap_or(rate.min(0.5))
    });
    if case.features.dropout.is_some() && case.scale == Some(0.0) {
        case.scale = None;
    }
    case.scale = judgeable_scale(&case, visible);
    let Features { bias, alibi, .. } = &mut case.features;
    let is_plain = alibi.is_none() && case.logit_shift == 0.0;
    let holds_lowest = case.gradients.is_none() && (case.dtype != Dtype::F16 || is_plain);
    if let Some(bias) = bias
        && bias.values == BiasValues::Lowest
        && !holds_lowest
    {
        bias.values = BiasValues::Normal;
    }
    case
}

/// The scale, or a smaller one where too few of so many visible pairs would have scores below the cap. Those
/// are products of normal numbers, summed up.
fn judgeable_scale(case: &Case, visible: f64) -> Option<f32> {
    let is_judged = case.gradients.is_some() && case.dtype == Dtype::F32 && case.logit_shift == 0.0;
    let (Some(cap), true) = (case.softcap, is_judged) else { return case.scale };
    let columns = case.head_dim as f64;
    let spread_of_one = f64::from(case.amplitude).powi(2) * columns.sqrt();
    let most = f64::from(cap) * (visible / ENOUGH_BELOW_CAP).max(1.0) / spread_of_one;
    let scale = case.scale.map_or(columns.powf(-0.5), f64::from);
    if scale.abs() <= most { case.scale } else { Some(most.copysign(scale) as f32) }
}

/// Pairs, over all query heads, that see each other by causal mask and window.
fn visible_pairs(case: &Case) -> usize {
    let of_part = |Part { sizes, .. }: Part| {
        let pairs: usize = (0..sizes.query_rows).map(|row| sizes.visible(row)).sum();
        sizes.batches * sizes.query_heads * pairs
    };
    case.parts().into_iter().map(of_part).sum()
}

fn draw_bias(case: &Case, random: &mut StdRng) -> BiasFeature {
    let dtype = if random.random_bool(0.3) { Dtype::F32 } else { case.dtype };
    let gradient = if random.random_bool(0.3) { Dtype::F32 } else { dtype };
    BiasFeature {
        dtype,
        dimensions: draw_dimensions(random),
        placement: draw_placement(random),
        values: match random.random_range(0..6) {
            0 | 1 => BiasValues::Hiding,
            2 => BiasValues::Lowest,
            _ => BiasValues::Normal,
        },
        gradient: random.random_bool(0.75).then_some(gradient),
    }
}

fn draw_mask(random: &mut StdRng) -> MaskFeature {
    let densities = [0.0, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 1.0];
    MaskFeature {
        dimensions: draw_dimensions(random),
        placement: draw_placement(random),
        density: densities[random.random_range(0..densities.len())],
        block: 1,
        has_dead_rows: random.random_bool(0.4),
    }
}

fn draw_dimensions(random: &mut StdRng) -> Dimensions {
    Dimensions {
        batches: random.random_bool(0.5),
        heads: [ScoreHeads::One, ScoreHeads::Key, ScoreHeads::Query][random.random_range(0..3)],
        queries: random.random_bool(0.7),
        keys: random.random_bool(0.85),
    }
}

fn draw_placement(random: &mut StdRng) -> ScorePlacement {
    ScorePlacement::ALL[random.random_range(0..ScorePlacement::ALL.len())]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Gradients;
    use crate::problem::{CausalAlignment, Mask, Mode};
    use std::collections::HashSet;

    #[test]
    fn a_sweep_covers_features_alone_and_together() {
        let cases: Vec<Case> = (0..1000).map(|id| featured_case(0, id)).collect();
        for (id, case) in cases.iter().enumerate() {
            assert!(case.problem().validate().is_ok());
            let backward = case.backward_problem().map(|problem| problem.validate());
            assert!(backward.is_none_or(|valid| valid.is_ok()));
            let extended = extended_case(0, id);
            let plain = Case { features: Features::default(), ..case.clone() };
            let scale = if case.features.dropout.is_some() { plain.scale } else { extended.scale };
            let heads = [&plain, &extended].map(|case| [case.query_heads, case.key_heads]);
            if heads[0] != heads[1] {
                let [times, of_keys] = [0, 1].map(|of| heads[0][of] as f64 / heads[1][of] as f64);
                assert!(case.features.wants_d_sinks && plain.query_heads >= ENOUGH_SINKS, "{case:?}");
                assert_eq!(times, of_keys);
            }
            let [[query_heads, key_heads], _] = heads;
            let batches = plain.batches;
            let is_thinned = case.features.mask.is_some() || case.features.dropout.is_some();
            let times = batches.checked_div(extended.batches).unwrap_or(1);
            assert!(times == 1 || is_thinned && (2..=MOST_TIMES).contains(&times), "{case:?}");
            assert_eq!(batches, times * extended.batches);
            assert_eq!(plain, Case { scale, batches, query_heads, key_heads, ..extended });
        }
        let featured = cases.iter().filter(|case| !case.features.is_empty()).count();
        assert!((250..400).contains(&featured), "{featured}");
        let kinds: HashSet<_> = cases
            .iter()
            .map(|Case { features, .. }| {
                let Features { bias, mask, alibi, has_sinks, .. } = features;
                (bias.is_some(), mask.is_some(), alibi.is_some(), *has_sinks)
            })
            .collect();
        assert_eq!(kinds.len(), 16);
        let biases: Vec<_> = cases.iter().filter_map(|case| Some((case, case.features.bias?))).collect();
        let of = |condition: &dyn Fn(&(&Case, BiasFeature)) -> bool| {
            biases.iter().filter(|bias| condition(bias)).count()
        };
        assert!(of(&|(case, bias)| case.dtype != Dtype::F32 && bias.dtype == Dtype::F32) > 10);
        assert!(of(&|(case, bias)| case.gradients.is_some() && bias.gradient.is_some()) > 40);
        assert!(of(&|(case, bias)| case.packed && bias.dimensions.batches) > 5);
        for values in [BiasValues::Normal, BiasValues::Hiding, BiasValues::Lowest] {
            assert!(of(&|(_, bias)| bias.values == values) > 3, "{values:?}");
        }
        for placement in ScorePlacement::ALL {
            assert!(of(&|(_, bias)| bias.placement == placement) > 3, "{placement:?}");
        }
        let with_dropout = cases.iter().filter(|case| case.features.dropout.is_some()).count();
        assert!((50..110).contains(&with_dropout), "{with_dropout}");
        for (rate, at_least) in [(0.001, 6), (0.1, 6), (0.5, 6), (0.9, 6), (0.99, 1)] {
            let of_rate = cases.iter().filter(|case| case.features.dropout == Some(rate)).count();
            assert!(of_rate >= at_least, "{rate}: {of_rate}");
        }
        let offsets = cases.iter().filter_map(|case| case.dropout().map(|dropout| dropout.offset));
        let high: Vec<bool> = offsets.map(|offset| offset >> 32 != 0).collect();
        assert!(high.contains(&true) && high.contains(&false));
        let masks: Vec<_> = cases.iter().filter_map(|case| case.features.mask).collect();
        let densities: HashSet<_> = masks.iter().map(|mask| mask.density.to_bits()).collect();
        assert_eq!(densities.len(), 9);
        let blocks: HashSet<_> = masks.iter().map(|mask| mask.block).collect();
        assert_eq!(blocks.len(), 6);
    }

    /// Of 127 x 64 pairs of 6 heads half are visible and 24 of them left: one row held the largest
    /// error of both sides.
    #[test]
    fn a_rate_that_leaves_few_pairs_is_lowered() {
        let case = |rows| {
            let features = Features { dropout: Some(0.999), ..Features::default() };
            let plain = Case { mask: Mask::Full, packed: false, ..extended_case(0, 0) };
            let (query_rows, key_rows) = (rows, 64);
            judgeable(Case { batches: 1, query_heads: 6, query_rows, key_rows, features, ..plain })
        };
        assert_eq!(case(127).features.dropout, Some(0.99));
        assert_eq!(case(1270).features.dropout, Some(0.999));
    }

    /// Of 126 rows that see one key each, two were left: neither side had a rounding in both of them.
    #[test]
    fn a_rate_that_leaves_few_of_the_pairs_that_a_causal_mask_shows_is_lowered() {
        let case = |mask| {
            let features = Features { dropout: Some(0.99), ..Features::default() };
            let sizes =
                Case { query_rows: 1, key_rows: 226, query_heads: 126, key_heads: 63, ..Case::small() };
            judgeable(Case { mask, features, ..sizes }).features.dropout
        };
        assert_eq!(case(Mask::Causal(CausalAlignment::TopLeft)), Some(0.5));
        assert_eq!(case(Mask::Full), Some(0.99));
    }

    #[test]
    fn dropout_of_equal_probabilities_is_not_judged() {
        let case = |dropout| {
            let features = Features { dropout, ..Features::default() };
            judgeable(Case { scale: Some(0.0), features, ..extended_case(0, 0) })
        };
        assert_eq!((case(Some(0.5)).scale, case(None).scale), (None, Some(0.0)));
    }

    /// The two last of 97 queries of each of 33 heads saw one and two keys, and of these 99 pairs about six
    /// had scores below a cap of 0.5.
    #[test]
    fn a_scale_that_leaves_few_scores_below_the_cap_is_smaller() {
        let case = |dtype, key_rows, softcap, scale| {
            let shape = Case { batches: 3, query_rows: 97, key_rows, query_heads: 11, ..Case::small() };
            let mask = Mask::Causal(CausalAlignment::BottomRight);
            let gradients = Some(Gradients { dtype, has_d_lse: false, mode: Mode::Fast });
            let numbers = Case { head_dim: 49, amplitude: 2.0, dtype, gradients, mask, ..shape };
            let drawn = Case { key_heads: 11, softcap, scale: Some(scale), ..numbers };
            let judged = judgeable(drawn.clone());
            assert_eq!(judged, Case { scale: judged.scale, ..drawn });
            judged.scale.unwrap()
        };
        for cap in [1e-3, 0.5] {
            assert_eq!(case(Dtype::F32, 2, Some(cap), 0.3), cap / 28.0);
            assert_eq!(case(Dtype::F32, 2, Some(cap), -0.3), cap / -28.0);
        }
        for (dtype, key_rows, cap) in [
            (Dtype::F32, 64, Some(0.5)),
            (Dtype::F32, 2, Some(50.0)),
            (Dtype::F32, 2, None),
            (Dtype::Bf16, 2, Some(0.5)),
        ] {
            assert_eq!(case(dtype, key_rows, cap, 0.3), 0.3);
        }
        assert_eq!(case(Dtype::F32, 2, Some(0.5), 0.0), 0.0);
    }
}
