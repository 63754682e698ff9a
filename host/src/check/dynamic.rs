//! Dynamic masks of cases: the keys that the reference keeps, and cases that have them.

use super::expected::part_of_scores;
use super::{
    BiasFeature, BiasValues, Case, Dimensions, Features, Inputs, ScoreHeads, ScorePlacement,
    featured_case,
};
use crate::problem::{DynamicMask, DynamicRule, DynamicWay, lowest};
use crate::reference::dynamic_mask;
use kernels_gpu::abi::Dtype;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// The boolean mask that a dynamic one becomes, `[B|1, Hq|Hk|1, Sq|1, Sk]`; of packed sequences all of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Kept {
    /// Its shape.
    pub shape: [usize; 4],
    /// As many as the shape has.
    pub values: Vec<bool>,
}

/// What the reference keeps of a case's bias, if the case has a dynamic mask.
pub(super) fn kept(case: &Case, inputs: &Inputs) -> Option<Kept> {
    let (mask, bias) = (case.features.dynamic_mask?, case.bias()?);
    if case.query_heads == 0 {
        return None;
    }
    let mut whole = Kept::default();
    for part in case.parts() {
        let scores = part_of_scores(case, &part, inputs);
        let low = lowest(bias.dtype);
        let (shape, values) = dynamic_mask(&part.sizes, &mask, &scores.bias?, low, scores.mask.as_ref());
        if !case.packed {
            return Some(Kept { shape, values });
        }
        // A sequence has fewer keys than the longest.
        let [_, heads, queries, keys] = shape;
        whole.shape = [case.batches, heads, queries, case.key_rows];
        for row in 0..heads * queries {
            let mut kept = values[row * keys..][..keys].to_vec();
            kept.resize(case.key_rows, false);
            whole.values.extend(kept);
        }
    }
    Some(whole)
}

/// As [`featured_case`], with a dynamic mask.
pub fn dynamic_case(seed: u64, id: usize) -> Case {
    with_dynamic_mask(featured_case(seed, id))
}

/// The case with a dynamic mask, by numbers from its seed: half of the cases gather keys, if these can be
/// gathered, and half keep nothing else that their scores have.
pub fn with_dynamic_mask(case: Case) -> Case {
    let mut random = StdRng::seed_from_u64(case.seed.rotate_left(32) ^ 0xd1a5);
    let random = &mut random;
    let gathers = random.random_bool(0.5);
    let alone = random.random_bool(0.5);
    let bias = drawn_bias(&case, gathers, random);
    let keys = case.key_rows;
    // Of few pairs the tolerance rule would compare chances.
    let window = random.random_range((keys / 3).max(2)..=keys.max(2) + 1);
    let rule = if !gathers && random.random_bool(0.2) {
        DynamicRule::Relu
    } else {
        DynamicRule::TopK { window }
    };
    let block_size = if random.random_bool(0.25) { random.random_range(2..=40) } else { 1 };
    let Features { bias: _, mask, alibi, has_sinks, wants_d_sinks, dropout, dynamic_mask: _ } =
        if alone { Features::default() } else { case.features };
    let dropout = dropout.filter(|rate| *rate <= 0.1 && !gathers);
    let mask =
        mask.filter(|mask| mask.density >= 0.5 && mask.block == 1 && dropout.is_none() && !gathers);
    let way = (gathers && !case.packed).then_some(DynamicWay::Gather);
    let features = Features {
        bias: Some(bias),
        mask,
        alibi: alibi.filter(|_| !gathers),
        has_sinks,
        wants_d_sinks,
        dropout,
        dynamic_mask: Some(DynamicMask { rule, block_size, way }),
    };
    Case { features, ..case }
}

fn drawn_bias(case: &Case, gathers: bool, random: &mut StdRng) -> BiasFeature {
    let heads = match random.random_range(0..4) {
        0 => ScoreHeads::One,
        1 if !gathers => ScoreHeads::Query,
        _ => ScoreHeads::Key,
    };
    let queries = !gathers && random.random_bool(0.8);
    let dtype = if random.random_bool(0.3) { Dtype::F32 } else { case.dtype };
    let gradient = if random.random_bool(0.3) { Dtype::F32 } else { dtype };
    BiasFeature {
        dtype,
        dimensions: Dimensions { heads, queries, keys: true, batches: random.random_bool(0.8) },
        placement: match ScorePlacement::ALL[random.random_range(0..ScorePlacement::ALL.len())] {
            // Each query has a row then, if at one address.
            ScorePlacement::Repeated if gathers => ScorePlacement::Dense,
            other => other,
        },
        values: if random.random_bool(0.2) { BiasValues::Hiding } else { BiasValues::Normal },
        gradient: random.random_bool(0.75).then_some(gradient),
    }
}
