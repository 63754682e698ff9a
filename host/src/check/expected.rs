//! What the reference makes of a case.

use super::{Case, GradientInputs, Inputs, Part};
use crate::problem::Dropout;
use crate::reference::{
    DropoutNumbers, ExactGradients, NaiveGradients, OverScores, Precision, Scores, Sizes,
    exact_backward_with, exact_d_sinks_of, exact_with, naive_backward_with, naive_with,
};
use kernels_gpu::abi::Dtype;
use std::ops::AddAssign;

/// The exact results of a case and the unfused ones, in logical order.
#[derive(Clone, Debug)]
pub struct Expected {
    /// `[B, Sq, Hq, Dv]`.
    pub o: Vec<f64>,
    /// `[B, Hq, Sq]`, packed `[Hq, Tq]`.
    pub lse: Vec<f64>,
    /// o of unfused code.
    pub naive_o: Vec<f32>,
    /// The gradients, and those of unfused code, if the case has them.
    pub gradients: Option<(ExactGradients, NaiveGradients)>,
}

/// Computes a case in f64 and as unfused code, packed sequences one by one. `gradients` are not looked at
/// unless the case has any; nor is `given_o`, the o that the backward was given, which unfused code is given,
/// too: what its rounding costs delta is nothing that a backward could do better. Exact gradients of sinks,
/// which are a number a head, are of that o as well: two errors of so few would cancel now and then.
pub fn expected(case: &Case, inputs: &Inputs, gradients: &GradientInputs, given_o: &[f32]) -> Expected {
    let [_, rows, heads, _] = case.problem().q.shape;
    let mut whole = Expected {
        o: Vec::new(),
        lse: if case.packed { vec![f64::NAN; rows * heads] } else { Vec::new() },
        naive_o: Vec::new(),
        gradients: case.gradients.map(|_| (ExactGradients::default(), NaiveGradients::default())),
    };
    if let Some((exact, naive)) = &mut whole.gradients {
        // Sums over sequences, of which there may be none.
        let of_bias = case.d_bias().map_or(0, |bias| bias.layout.elements() as usize);
        let of_sinks = if case.features.has_sinks { case.query_heads } else { 0 };
        (exact.d_bias, exact.d_sinks) = (vec![0.0; of_bias], vec![0.0; of_sinks]);
        (naive.d_bias, naive.d_sinks) = (vec![0.0; of_bias], vec![0.0; of_sinks]);
    }
    let output = precision(case.output_dtype);
    for part in case.parts() {
        let Part { sizes, first_query, .. } = &part;
        let [q, k, v, d_o] = slices(&part, inputs, &gradients.d_o);
        let [.., given_o] = slices(&part, inputs, given_o);
        let scores = part_of_scores(case, &part, inputs);
        let exact = exact_with(sizes, &scores, q, k, v);
        let exact_lse = exact.lse.clone();
        whole.o.extend(exact.o);
        let precisions = [precision(case.dtype), output];
        whole.naive_o.extend(naive_with(sizes, &scores, precisions, [q, k, v]).o);
        if case.packed {
            for (at, lse) in exact.lse.into_iter().enumerate() {
                let (head, row) = (at / sizes.query_rows, at % sizes.query_rows);
                whole.lse[head * rows + first_query + row] = lse;
            }
        } else {
            whole.lse.extend(exact.lse);
        }
        let (Some(asked), Some((exact, naive))) = (case.gradients, &mut whole.gradients) else {
            continue;
        };
        let precisions = [case.dtype, asked.dtype].map(precision);
        let d_lse = asked.has_d_lse.then(|| part_of_lse(case, &part, rows, &gradients.d_lse));
        let more = exact_backward_with(sizes, &scores, [q, k, v], d_o, d_lse.as_deref());
        exact.dq.extend(more.dq);
        exact.dk.extend(more.dk);
        exact.dv.extend(more.dv);
        add_d_bias(case, &part, &mut exact.d_bias, more.d_bias);
        let given = [given_o, d_o];
        if let Some(sinks) = scores.sinks {
            let d_sinks = exact_d_sinks_of(sizes, sinks, &exact_lse, given, d_lse.as_deref());
            add(&mut exact.d_sinks, 0, d_sinks);
        }
        let more = naive_backward_with(sizes, &scores, precisions, [q, k, v], given, d_lse.as_deref());
        naive.dq.extend(more.dq);
        naive.dk.extend(more.dk);
        naive.dv.extend(more.dv);
        add_d_bias(case, &part, &mut naive.d_bias, more.d_bias);
        add(&mut naive.d_sinks, 0, more.d_sinks);
    }
    if let (Some((_, naive)), Some(bias)) = (&mut whole.gradients, case.d_bias()) {
        let precision = precision(bias.dtype);
        naive.d_bias.iter_mut().for_each(|value| *value = precision.round(*value));
    }
    whole
}

/// How many keys each query sees, `[row of q, query head]` over all batches or packed sequences.
pub fn visible_keys(case: &Case, inputs: &Inputs) -> Vec<usize> {
    let mut visible = Vec::new();
    for part in case.parts() {
        let (scores, Sizes { batches, query_rows, query_heads, .. }) =
            (part_of_scores(case, &part, inputs), part.sizes);
        let rows = (0..batches).flat_map(|batch| (0..query_rows).map(move |row| (batch, row)));
        let places = rows.flat_map(|(batch, row)| (0..query_heads).map(move |head| [batch, head, row]));
        visible.extend(places.map(|at| scores.visible(&part.sizes, at)));
    }
    visible
}

/// What of bias, mask, slopes, sinks and dropout a part has.
pub(super) fn part_of_scores<'i>(case: &Case, part: &Part, inputs: &'i Inputs) -> Scores<'i, f32> {
    let scores = &inputs.scores;
    let (bias, mask) = (case.bias().map(|bias| bias.layout), case.mask_layout());
    let batches = if case.packed { 1 } else { case.batches };
    Scores {
        bias: bias.map(|layout| batches_of(case, part, layout.shape, &scores.bias)),
        mask: match &scores.kept {
            Some(kept) => Some(batches_of(case, part, kept.shape, &kept.values)),
            None => mask.map(|layout| batches_of(case, part, layout.shape, &scores.mask)),
        },
        alibi_slopes: case.features.alibi.map(|_| {
            let slopes = scores.alibi_slopes.as_slice();
            match slopes.len() == case.query_heads {
                true => slopes,
                false => &slopes[part.first_batch * case.query_heads..][..batches * case.query_heads],
            }
        }),
        sinks: case.features.has_sinks.then_some(scores.sinks.as_slice()),
        dropout: case.dropout().map(|Dropout { rate, seed, offset }| DropoutNumbers {
            rate,
            seed,
            offset,
            first_batch: part.first_batch,
        }),
    }
}

/// All batches of a tensor over scores, or those of a packed sequence.
fn batches_of<'i, T>(case: &Case, part: &Part, shape: [usize; 4], values: &'i [T]) -> OverScores<'i, T> {
    let [batches, heads, queries, keys] = shape;
    if !case.packed || batches == 1 {
        return OverScores { shape, values };
    }
    let elements = heads * queries * keys;
    let shape = [1, heads, queries, keys];
    OverScores { shape, values: &values[part.first_batch * elements..][..elements] }
}

/// Adds the gradient of what a part has of the bias to that of the whole bias.
fn add_d_bias<N: Copy + AddAssign>(case: &Case, part: &Part, whole: &mut [N], more: Vec<N>) {
    let Some(d_bias) = case.d_bias() else { return };
    let [batches, ..] = d_bias.layout.shape;
    let first = if case.packed && batches > 1 { part.first_batch * more.len() } else { 0 };
    add(whole, first, more);
}

/// `whole[first..] += more`.
fn add<N: Copy + AddAssign>(whole: &mut [N], first: usize, more: Vec<N>) {
    whole[first..].iter_mut().zip(more).for_each(|(whole, more)| *whole += more);
}

/// q, k, v and dO of a part. The rows of all its heads stand side by side.
fn slices<'i>(part: &Part, inputs: &'i Inputs, d_o: &'i [f32]) -> [&'i [f32]; 4] {
    let sizes = &part.sizes;
    let cut = |tensor: &'i [f32], first: usize, rows: usize, columns: usize| {
        if tensor.is_empty() {
            tensor
        } else {
            &tensor[first * columns..][..sizes.batches * rows * columns]
        }
    };
    let (query_heads, key_heads) = (sizes.query_heads, sizes.key_heads);
    [
        cut(&inputs.q, part.first_query, sizes.query_rows, query_heads * sizes.head_dim),
        cut(&inputs.k, part.first_key, sizes.key_rows, key_heads * sizes.head_dim),
        cut(&inputs.v, part.first_key, sizes.key_rows, key_heads * sizes.value_dim),
        cut(d_o, part.first_query, sizes.query_rows, query_heads * sizes.value_dim),
    ]
}

/// The rows of a part, `[Hq, Sq]`, of a tensor like lse.
fn part_of_lse(case: &Case, part: &Part, rows: usize, tensor: &[f32]) -> Vec<f32> {
    if !case.packed {
        return tensor.to_vec();
    }
    let head = |head: usize| tensor[head * rows + part.first_query..][..part.sizes.query_rows].iter();
    (0..part.sizes.query_heads).flat_map(head).copied().collect()
}

/// The reference's name for a dtype.
pub(super) fn precision(dtype: Dtype) -> Precision {
    match dtype {
        Dtype::Bf16 => Precision::Bf16,
        Dtype::F16 => Precision::F16,
        Dtype::F32 => Precision::F32,
    }
}

#[cfg(test)]
mod tests {
    use super::super::{
        BiasFeature, BiasValues, Dimensions, Features, Gradients, MaskFeature, ScoreHeads,
        ScorePlacement,
    };
    use super::*;
    use crate::problem::{AlibiSlopes, Mode};

    /// What a sequence has of a tensor over scores, element by element.
    fn cut<T: Copy>(tensor: &[T], shape: [usize; 4], of: [usize; 3]) -> ([usize; 4], Vec<T>) {
        let [batches, heads, queries, keys] = shape;
        let [sequence, rows, columns] = of;
        let batch = if batches == 1 { 0 } else { sequence };
        let rows = if queries == 1 { 1 } else { rows };
        let columns = if keys == 1 { 1 } else { columns };
        let at = |head: usize, row: usize| ((batch * heads + head) * queries + row) * keys;
        let places = (0..heads).flat_map(|head| (0..rows).map(move |row| (head, row)));
        let values = places.flat_map(|(head, row)| tensor[at(head, row)..][..columns].to_vec());
        let values = values.collect();
        ([1, heads, rows, columns], values)
    }

    #[test]
    fn gradients_of_no_packed_sequence_at_all_are_sums_of_nothing() {
        let bias = BiasFeature {
            dtype: Dtype::F32,
            dimensions: Dimensions { batches: false, queries: false, ..Dimensions::ALL },
            placement: ScorePlacement::Dense,
            values: BiasValues::Normal,
            gradient: Some(Dtype::F32),
        };
        let features =
            Features { bias: Some(bias), has_sinks: true, wants_d_sinks: true, ..Features::default() };
        let gradients = Some(Gradients { dtype: Dtype::F32, has_d_lse: false, mode: Mode::Fast });
        let case = Case { batches: 0, packed: true, features, gradients, ..Case::small() };
        let (inputs, gradients) = (Inputs::drawn(&case), GradientInputs::drawn(&case));
        let (exact, naive) = expected(&case, &inputs, &gradients, &[]).gradients.unwrap();
        let elements = case.d_bias().unwrap().layout.elements() as usize;
        assert_eq!((exact.d_bias, naive.d_bias), (vec![0.0; elements], vec![0.0; elements]));
        assert_eq!((exact.d_sinks, naive.d_sinks), (vec![0.0; 2], vec![0.0; 2]));
    }

    /// Bias and mask of packed sequences are indexed by positions within each, and slopes by which it is.
    #[test]
    fn a_packed_sequence_has_its_corner_of_bias_and_mask() {
        let all = Dimensions::ALL;
        let one = Dimensions { batches: false, heads: ScoreHeads::One, ..all };
        for (of_bias, of_mask) in [(all, one), (one, all), (Dimensions { queries: false, ..all }, all)] {
            let (placement, gradient) = (ScorePlacement::Dense, Some(Dtype::F32));
            let case = Case {
                features: Features {
                    bias: Some(BiasFeature {
                        dtype: Dtype::Bf16,
                        dimensions: of_bias,
                        placement,
                        values: BiasValues::Hiding,
                        gradient,
                    }),
                    mask: Some(MaskFeature {
                        dimensions: of_mask,
                        placement,
                        density: 0.7,
                        block: 1,
                        has_dead_rows: true,
                    }),
                    alibi: Some(AlibiSlopes::PerBatchAndHead),
                    has_sinks: true,
                    wants_d_sinks: true,
                    dropout: Some(0.5),
                    dynamic_mask: None,
                },
                batches: 4,
                seed: 3,
                packed: true,
                head_dim: 8,
                value_dim: 8,
                gradients: Some(Gradients { dtype: Dtype::F32, has_d_lse: false, mode: Mode::Fast }),
                ..Case::small()
            };
            let (inputs, gradients) = (Inputs::drawn(&case), GradientInputs::drawn(&case));
            // o does not depend on the gradients.
            let forward = Case { gradients: None, ..case.clone() };
            let o = expected(&forward, &inputs, &gradients, &inputs.q).o;
            let o: Vec<f32> = o.into_iter().map(|o| o as f32).collect();
            let whole = expected(&case, &inputs, &gradients, &o);
            let (exact_whole, naive_whole) = whole.gradients.unwrap();
            let (bias_shape, mask_shape) =
                (case.bias().unwrap().layout.shape, case.mask_layout().unwrap().shape);
            let (mut d_bias, mut d_sinks) = (vec![0.0; exact_whole.d_bias.len()], vec![0.0; 2]);
            for (sequence, part) in case.parts().iter().enumerate() {
                let of = [sequence, part.sizes.query_rows, part.sizes.key_rows];
                let (shape, bias) = cut(&inputs.scores.bias, bias_shape, of);
                let (mask_shape, mask) = cut(&inputs.scores.mask, mask_shape, of);
                let scores = Scores {
                    bias: Some(OverScores { shape, values: bias.as_slice() }),
                    mask: Some(OverScores { shape: mask_shape, values: mask.as_slice() }),
                    alibi_slopes: Some(&inputs.scores.alibi_slopes[2 * sequence..][..2]),
                    sinks: Some(&inputs.scores.sinks),
                    dropout: case.dropout().map(|Dropout { rate, seed, offset }| DropoutNumbers {
                        rate,
                        seed,
                        offset,
                        first_batch: sequence,
                    }),
                };
                let [q, k, v, d_o] = slices(part, &inputs, &gradients.d_o);
                let alone = exact_with(&part.sizes, &scores, q, k, v);
                let rows = part.first_query * 2 * 8..(part.first_query + of[1]) * 2 * 8;
                assert_eq!(whole.o[rows], alone.o, "{of:?}");
                let alone = exact_backward_with(&part.sizes, &scores, [q, k, v], d_o, None);
                d_sinks.iter_mut().zip(alone.d_sinks).for_each(|(sum, part)| *sum += part);
                let [batches, _, queries, keys] = bias_shape;
                for (at, gradient) in alone.d_bias.into_iter().enumerate() {
                    let (row, key) = (at / shape[3], at % shape[3]);
                    let (head, row) = (row / shape[2], row % shape[2]);
                    let batch = if batches == 1 { 0 } else { sequence };
                    d_bias[((batch * shape[1] + head) * queries + row) * keys + key] += gradient;
                }
            }
            assert_eq!(exact_whole.d_bias, d_bias);
            // Of the o that was given: the exact one, in f32.
            for (of_given, of_exact) in exact_whole.d_sinks.iter().zip(&d_sinks) {
                assert!(
                    (of_given - of_exact).abs() <= 1e-5 * of_exact.abs().max(1.0),
                    "{of_given} {of_exact}"
                );
            }
            let difference = |(naive, exact): (&f32, &f64)| (f64::from(*naive) - exact).abs();
            let worst = naive_whole.d_bias.iter().zip(&d_bias).map(difference).fold(0.0, f64::max);
            assert!(worst < 0.3, "{worst}");
        }
    }
}
