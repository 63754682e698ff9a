//! What the kernels of a backward pass are told of its tensors.

use super::super::score::score_view;
use super::super::view;
use super::BackwardPointers;
use crate::problem::{Bias, ValidBackward, ValidForward};
use kernels_gpu::abi::{BackwardParams, DQ_UNORDERED, Dtype, ScoreView, SoftcapPolynomial, TensorView};

/// Sizes as the kernels are told them.
struct Sizes {
    batches: u32,
    query_heads: u32,
    group_size: u32,
    query_rows: u32,
    key_rows: u32,
    is_packed: bool,
}

impl Sizes {
    /// Those of the problem. With no queries at all, dk and dv are still to be zeroed, whatever the heads of
    /// q and however sequences are packed: then those of strided tensors with one query head per key head and
    /// no rows.
    fn of(valid: &ValidForward) -> Self {
        if valid.is_empty() {
            let [batches, key_rows, key_heads, _] = valid.problem.k.shape.map(|size| size as u32);
            let (query_heads, group_size, query_rows) = (key_heads, 1, 0);
            return Sizes { batches, query_heads, group_size, query_rows, key_rows, is_packed: false };
        }
        Sizes {
            batches: valid.batches,
            query_heads: valid.query_heads,
            group_size: valid.group_size,
            query_rows: valid.query_rows,
            key_rows: valid.key_rows,
            is_packed: valid.is_packed(),
        }
    }
}

/// What the tensors and the problem alone say; the rest is 0.
pub(super) fn of_tensors(valid: &ValidBackward, pointers: &BackwardPointers) -> BackwardParams {
    let (problem, forward) = (&valid.problem, &valid.forward);
    let layouts = &problem.forward;
    let Sizes { batches, query_heads, group_size, query_rows, key_rows, is_packed } = Sizes::of(forward);
    let [lse_batch_stride, lse_head_stride] = forward.lse_strides();
    let ds_scale = ds_scale(layouts.dtype, forward.scale);
    let score = pointers.score.params(forward);
    let dropout = &score.dropout;
    let softcap_factor = forward.softcap.map_or(0.0, |softcap| softcap.factor);
    let polynomial = SoftcapPolynomial::of_gradients(softcap_factor.into());
    BackwardParams {
        q: view(pointers.q, &layouts.q),
        k: view(pointers.k, &layouts.k),
        v: view(pointers.v, &layouts.v),
        o: view(pointers.o, &layouts.o),
        d_o: view(pointers.d_o, &problem.d_o),
        dq: view(pointers.dq, &problem.dq),
        dk: view(pointers.dk, &problem.dk),
        dv: view(pointers.dv, &problem.dv),
        lse: pointers.lse,
        d_lse: if problem.has_d_lse { pointers.d_lse } else { 0 },
        lse_batch_stride,
        lse_head_stride,
        cu_seqlens_q: if is_packed { pointers.cu_seqlens_q } else { 0 },
        cu_seqlens_k: if is_packed { pointers.cu_seqlens_k } else { 0 },
        statistics: 0,
        dq_accumulator: 0,
        dq_notes: 0,
        counter: 0,
        stretch_sums: 0,
        split_stride: 0,
        batches,
        query_heads,
        group_size,
        query_rows,
        key_rows,
        head_dim: forward.head_dim,
        value_dim: forward.value_dim,
        padded_rows: 0,
        workspace_rows: 0,
        accumulator_rows: 0,
        dq_gap: 0,
        bottom_right: u32::from(forward.bottom_right),
        window_left: forward.window_left,
        window_right: forward.window_right,
        scale: forward.scale,
        output_f32: u32::from(layouts.output_dtype == Dtype::F32),
        gradients_f32: u32::from(problem.gradient_dtype == Dtype::F32),
        dq_f32: u32::from(problem.gradient_dtype == Dtype::F32),
        reserved: 0,
        key_blocks: 0,
        splits: 0,
        heads_per_wave: 0,
        padded_dim: 0,
        dq_order: DQ_UNORDERED,
        whole_tiles: 0,
        unit_bits: 0,
        turn_units: 1,
        tile_keys: 0,
        softcap: forward.softcap.map_or(0.0, |softcap| softcap.cap),
        softcap_factor,
        softcap_near: polynomial.near,
        softcap_polynomial: polynomial.coefficients,
        ds_scale,
        gradient_scale: forward.scale / ds_scale * (dropout.scale / dropout.dp_scale),
        lse_is_natural: u32::from(forward.has_natural_scores()),
        d_bias_f32: u32::from(problem.d_bias.is_some_and(|d_bias| d_bias.dtype == Dtype::F32)),
        score,
        d_bias: problem.d_bias.map_or_else(ScoreView::default, |Bias { layout, .. }| {
            score_view(pointers.d_bias, &layout, forward)
        }),
        d_bias_shape: problem
            .d_bias
            .map_or([0; 4], |d_bias| d_bias.layout.shape.map(|size| size as u32)),
        d_sinks: if problem.wants_d_sinks { pointers.d_sinks } else { 0 },
        previous_dq: TensorView::default(),
    }
}

/// From which scale on that of 16-bit elements is left to the end: smaller than those in use, `D^-0.5` and
/// `1 / D`, of head dimensions up to 256. Sums before it may be that much larger than gradients.
const SMALL_SCALE: f32 = 1.0 / 256.0;

/// What ds is multiplied by before it is summed up to dq and dk: 1, or the power of two at or below the size
/// of the scale, which rounds nothing, where sums of f32 could otherwise overflow though gradients do not. In
/// the kernels for f32 it costs little, and is done for every scale below 1. bf16 has a branch for it. The
/// sums of f16, whose numbers end at 2^16, are far from overflowing.
fn ds_scale(dtype: Dtype, scale: f32) -> f32 {
    let below = match dtype {
        Dtype::F32 => 1.0,
        Dtype::Bf16 => SMALL_SCALE,
        Dtype::F16 => 0.0,
    };
    if scale == 0.0 || scale.abs() >= below {
        return 1.0;
    }
    // The mantissa goes; of a subnormal number, the smallest normal one is as good.
    f32::from_bits(scale.abs().to_bits() >> 23 << 23).max(f32::MIN_POSITIVE)
}
