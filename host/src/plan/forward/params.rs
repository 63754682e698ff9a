//! What the kernels of a forward pass are told.

use super::super::row_heads::TileRows;
use super::super::view;
use super::ForwardPointers;
use crate::problem::ValidForward;
use kernels_gpu::abi::{
    Dtype, ForwardParams, KernelVariant, PreviousParams, SoftcapPolynomial, probability_unit_log2,
};
use kernels_gpu::geometry::row_heads::reciprocal;
use std::f32::consts::LOG2_E;

/// For kernel `variant`, whose query tiles have these rows, all keys at once.
pub(super) fn forward_params(
    valid: &ValidForward,
    variant: KernelVariant,
    pointers: &ForwardPointers,
    rows: &TileRows,
    heads_per_wave: u32,
) -> ForwardParams {
    let problem = &valid.problem;
    let [lse_batch_stride, lse_head_stride] = valid.lse_strides();
    let unit_log2 = probability_unit_log2(valid.key_rows);
    // The sign of the scale is in q.
    let softcap_factor = valid.softcap.map_or(0.0, |softcap| softcap.factor);
    let polynomial = SoftcapPolynomial::of_forward(softcap_factor.abs().into());
    let score_unit = score_unit(valid, variant);
    ForwardParams {
        q: view(pointers.q, &problem.q),
        k: view(pointers.k, &problem.k),
        v: view(pointers.v, &problem.v),
        o: view(pointers.o, &problem.o),
        lse: if problem.wants_lse { pointers.lse } else { 0 },
        lse_batch_stride,
        lse_head_stride,
        cu_seqlens_q: if valid.is_packed() { pointers.cu_seqlens_q } else { 0 },
        cu_seqlens_k: if valid.is_packed() { pointers.cu_seqlens_k } else { 0 },
        batches: valid.batches,
        query_heads: valid.query_heads / rows.heads,
        group_size: rows.group_size(valid),
        query_rows: valid.query_rows,
        key_rows: valid.key_rows,
        head_dim: valid.head_dim,
        value_dim: valid.value_dim,
        bottom_right: u32::from(valid.bottom_right),
        window_left: valid.window_left,
        window_right: valid.window_right,
        scale: valid.scale,
        output_f32: u32::from(problem.output_dtype == Dtype::F32),
        heads_per_wave,
        o_is_mapped: 0,
        splits: 1,
        split_keys: 0,
        row_heads: rows.heads,
        row_heads_reciprocal: reciprocal(rows.heads),
        tile_queries: rows.queries,
        query_tiles: rows.tiles(valid.query_rows),
        softcap: valid.softcap.map_or(0.0, |softcap| softcap.cap),
        softcap_factor: valid.softcap.map_or(0.0, |softcap| softcap.factor),
        softcap_near: polynomial.near,
        softcap_polynomial: polynomial.coefficients,
        unit: (unit_log2 as f32).exp2(),
        unit_log2: unit_log2 as f32,
        score_unit,
        score_unit_log2: score_unit * LOG2_E,
        score: pointers.score.params(valid),
        previous: PreviousParams::default(),
    }
}

/// What scores are in units of: [`ForwardParams::score_unit`]. The sign of the scale is in q.
fn score_unit(valid: &ValidForward, variant: KernelVariant) -> f32 {
    match valid.softcap {
        _ if valid.has_natural_scores() && !variant.multiplies_slopes() => 1.0,
        Some(softcap) => softcap.cap,
        None if valid.scale == 0.0 => 1.0,
        None => valid.scale.abs(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::{AlibiSlopes, Bias, ForwardProblem, Layout, ScoreLayout};
    use kernels_gpu::abi::KERNELS;

    #[test]
    fn scores_are_in_units_of_the_scale_or_the_cap_and_natural_where_something_is_added_to_them() {
        let layout = Layout::bshd([1, 3, 2, 64]);
        let plain = ForwardProblem::new(Dtype::Bf16, layout, layout, layout);
        let bias = Bias { layout: ScoreLayout::dense([1, 1, 3, 3]), dtype: Dtype::Bf16 };
        let unit_of = |kernel: &str, problem: ForwardProblem| {
            let valid = problem.validate().unwrap();
            let kernel = KERNELS.iter().find(|spec| spec.name == kernel).unwrap();
            score_unit(&valid, KernelVariant { kernel, switches: valid.switches() })
        };
        let unit = |problem| unit_of("forward_bf16_d64_sm80", problem);
        assert_eq!(unit(plain), 0.125);
        assert_eq!(unit(plain.with_scale(-0.5)), 0.5);
        assert_eq!(unit(plain.with_scale(0.0)), 1.0);
        assert_eq!(unit(plain.with_softcap(30.0)), 30.0);
        assert_eq!(unit(plain.with_scale(-0.5).with_bias(bias)), 1.0);
        assert_eq!(unit(plain.with_softcap(30.0).with_alibi(AlibiSlopes::PerHead)), 1.0);
        assert_eq!(unit(plain.with_sinks()), 0.125);
        let alibi = plain.with_alibi(AlibiSlopes::PerHead);
        assert_eq!(unit(alibi), 1.0);
        let unit = |problem| unit_of("forward_bf16_d64_sm90a", problem);
        assert_eq!(unit(alibi), 0.125);
        assert_eq!(unit(alibi.with_bias(bias)), 1.0);
        assert_eq!(unit(alibi.with_softcap(30.0)), 1.0);
    }
}
