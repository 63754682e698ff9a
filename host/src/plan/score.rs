//! What the kernels that make scores are told of bias, boolean mask, slopes, sinks and dropout.

use super::check_pointer;
use crate::driver::DevicePointer;
use crate::error::Result;
use crate::problem::{AlibiSlopes, Bias, MaskShape, ScoreLayout, ValidForward};
use kernels_gpu::abi::{Dtype, MASK_BITS, ScoreParams, ScoreView};
use kernels_gpu::geometry::mask_map::LEVELS;

/// Where what scores have beside stands in device memory; what the problem does not have is not looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScorePointers {
    /// The bias: the address of element (0, 0, 0, 0).
    pub bias: DevicePointer,
    /// The boolean mask: [`PreparedMask::device_pointer`](crate::attention::PreparedMask::device_pointer).
    pub mask_bits: DevicePointer,
    /// f32 `[Hq]` or `[B, Hq]`, dense.
    pub alibi_slopes: DevicePointer,
    /// f32 `[Hq]`.
    pub sinks: DevicePointer,
}

impl ScorePointers {
    /// Every tensor with elements has an address, and it is a multiple of the element size.
    pub(super) fn check(&self, valid: &ValidForward) -> Result<()> {
        let problem = &valid.problem;
        if let Some(Bias { layout, dtype }) = problem.bias {
            check_pointer("bias", self.bias, dtype, layout.elements())?;
        }
        if let Some(shape) = problem.attn_mask {
            check_pointer("mask", self.mask_bits, Dtype::F32, shape.words())?;
        }
        let slopes = match problem.alibi {
            None => 0,
            Some(AlibiSlopes::PerHead) => u128::from(valid.query_heads),
            Some(AlibiSlopes::PerBatchAndHead) => {
                u128::from(valid.batches) * u128::from(valid.query_heads)
            }
        };
        check_pointer("alibi_slopes", self.alibi_slopes, Dtype::F32, slopes)?;
        let sinks = if problem.has_sinks { valid.query_heads } else { 0 };
        check_pointer("sinks", self.sinks, Dtype::F32, sinks.into())
    }

    /// What kernels are told.
    pub(super) fn params(&self, valid: &ValidForward) -> ScoreParams {
        let problem = &valid.problem;
        let bias = problem.bias.map(|Bias { layout, dtype }| {
            let view = score_view(self.bias, &layout, valid);
            (view, has_pairs(&view, dtype.bytes()))
        });
        let is_f32 = problem.bias.is_some_and(|bias| bias.dtype != problem.dtype);
        let (bias, in_pairs) = bias.unwrap_or_default();
        let mask = problem.attn_mask.map(|shape| mask_view(self.mask_bits, &shape, valid));
        let mask_map = problem.attn_mask.map(|shape| map_view(self.mask_bits, &shape, valid));
        let mut params = ScoreParams {
            bias,
            mask: mask.unwrap_or_default(),
            mask_map: mask_map.unwrap_or_default(),
            alibi_slopes: if problem.alibi.is_some() { self.alibi_slopes } else { 0 },
            alibi_batch_stride: match problem.alibi {
                Some(AlibiSlopes::PerBatchAndHead) => valid.query_heads.into(),
                None | Some(AlibiSlopes::PerHead) => 0,
            },
            sinks: if problem.has_sinks { self.sinks } else { 0 },
            bias_in_pairs: u32::from(in_pairs),
            bias_f32: u32::from(is_f32),
            ..ScoreParams::default()
        };
        if let Some(dropout) = valid.dropout() {
            dropout.tell(problem.dtype, valid.query_heads, &mut params);
        }
        params
    }
}

/// The view of a tensor over scores.
pub(super) fn score_view(
    address: DevicePointer,
    layout: &ScoreLayout,
    valid: &ValidForward,
) -> ScoreView {
    let stride = |dimension: usize| {
        if layout.shape[dimension] <= 1 { 0 } else { layout.strides[dimension] }
    };
    let of_key_heads = layout.shape[1] != valid.query_heads as usize;
    ScoreView {
        address,
        batch_stride: stride(0),
        head_stride: if of_key_heads { 0 } else { stride(1) },
        key_head_stride: if of_key_heads { stride(1) } else { 0 },
        query_stride: stride(2),
        key_stride: stride(3),
    }
}

/// The view of the bits of a boolean mask, whose rows are whole words of 32 bits.
fn mask_view(address: DevicePointer, shape: &MaskShape, valid: &ValidForward) -> ScoreView {
    let MaskShape { batches, heads, queries, .. } = *shape;
    let row = shape.row_words() * (32 / MASK_BITS as usize);
    let layout = ScoreLayout::dense([batches, heads, queries, row]);
    ScoreView { key_stride: 1, ..score_view(address, &layout, valid) }
}

/// The view of the map of its tiles, which stands behind the bits.
fn map_view(address: DevicePointer, shape: &MaskShape, valid: &ValidForward) -> ScoreView {
    let address = if address == 0 { 0 } else { address.wrapping_add(4 * shape.map_offset()) };
    let [batches, heads, windows, granules] = shape.map_shape();
    let window = granules * LEVELS as usize;
    let layout = ScoreLayout::dense([batches, heads, windows, window]);
    let query_stride = i64::from(shape.queries > 1);
    ScoreView { query_stride, key_stride: window as i64, ..score_view(address, &layout, valid) }
}

/// Whether elements of neighbouring keys, of `bytes` bytes each, can be read together.
fn has_pairs(view: &ScoreView, bytes: u32) -> bool {
    let ScoreView { batch_stride, head_stride, key_head_stride, query_stride, .. } = *view;
    let strides = [batch_stride, head_stride, key_head_stride, query_stride];
    view.key_stride == 1
        && view.address.is_multiple_of(2 * u64::from(bytes))
        && strides.iter().all(|stride| stride % 2 == 0)
}
