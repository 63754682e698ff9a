//! What the kernels of a backward pass are told of its tensors.

use super::super::view;
use super::BackwardPointers;
use crate::problem::{ValidBackward, ValidForward};
use kernels_gpu::abi::{BackwardParams, DQ_UNORDERED, Dtype, SoftcapPolynomial};

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
    let polynomial =
        SoftcapPolynomial::new(forward.softcap.map_or(0.0, |softcap| f64::from(softcap.factor)));
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
        softcap_factor: forward.softcap.map_or(0.0, |softcap| softcap.factor),
        softcap_near: polynomial.near,
        softcap_polynomial: polynomial.coefficients,
        ds_scale: 1.0,
        gradient_scale: forward.scale,
    }
}
