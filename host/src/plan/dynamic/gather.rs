//! Attention over gathered keys: the problem that it is, and what the kernels around it are told.

use super::DynamicPlan;
use crate::driver::DevicePointer;
use crate::plan::view;
use crate::problem::{
    BackwardProblem, Bias, ForwardProblem, Layout, Mask, MaskShape, ScoreLayout, ValidForward,
};
use kernels_gpu::abi::{Dtype, GATHER_THREADS, GatherParams, ScoreView};

/// Bytes that rows of gathered tensors begin on a multiple of.
const ROW_ALIGNMENT: usize = 16;

/// Attention over gathered keys.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct GatherPlan {
    /// The forward pass over them: k and v `[B, capacity, Hk, D]`, and a boolean mask in place of causal mask
    /// and window.
    pub problem: ForwardProblem,
    /// What queries see of gathered keys.
    pub seen: MaskShape,
    /// As the problem that was asked.
    batches: u32,
    key_heads: u32,
    group_size: u32,
    shape: MaskShape,
    diagonal: i32,
    window_left: i32,
    window_right: i32,
}

/// k and v, or their gradients, and where they are; and the bias, or its gradient.
pub(crate) struct Rows<'l> {
    pub k: (&'l Layout, DevicePointer),
    pub v: (&'l Layout, DevicePointer),
    pub dtype: Dtype,
    pub bias: Option<(&'l Bias, DevicePointer)>,
}

/// Where the kernels around gathered keys work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GatherPointers {
    pub bits: DevicePointer,
    pub positions: DevicePointer,
    pub counts: DevicePointer,
    pub seen: DevicePointer,
}

/// What queries see of gathered keys, as a boolean mask.
pub(super) fn seen_shape(valid: &ValidForward, shape: &MaskShape, capacity: usize) -> MaskShape {
    let queries = if valid.sees_all() { 1 } else { valid.query_rows as usize };
    MaskShape { batches: shape.batches, heads: shape.heads, queries, keys: capacity }
}

/// A tensor of gathered rows, `[B, capacity, Hk, columns]`, heads apart.
fn gathered_layout(like: &Layout, capacity: usize, dtype: Dtype) -> Layout {
    let [batches, _, heads, columns] = like.shape;
    let row = columns.next_multiple_of(ROW_ALIGNMENT / dtype.bytes() as usize);
    let mut layout = Layout::bhsd([batches, capacity, heads, row]);
    layout.shape[3] = columns;
    layout
}

impl DynamicPlan {
    /// The problem under the boolean mask that the dynamic one becomes.
    pub(crate) fn masked(&self, problem: &ForwardProblem) -> ForwardProblem {
        problem.with_attn_mask(self.shape)
    }

    /// The problem over gathered keys.
    pub(crate) fn gathered(&self, valid: &ValidForward) -> GatherPlan {
        let capacity = self.capacity;
        let seen = seen_shape(valid, &self.shape, capacity);
        // Every field has a name here: of one that is new it must be said what it becomes.
        let ForwardProblem {
            q,
            k,
            v,
            o,
            dtype,
            output_dtype,
            scale,
            softcap,
            mask: _,
            bias,
            attn_mask: _,
            alibi,
            has_sinks,
            dropout,
            sequences,
            wants_lse,
            num_splits,
            pack_gqa,
            precision,
        } = valid.problem;
        let rows = [valid.batches as usize, valid.query_heads as usize];
        let bias = bias.map(|bias| Bias { layout: gathered_bias(rows, capacity), ..bias });
        let problem = ForwardProblem {
            q,
            k: gathered_layout(&k, capacity, dtype),
            v: gathered_layout(&v, capacity, dtype),
            o,
            dtype,
            output_dtype,
            scale,
            softcap,
            mask: Mask::Full,
            bias,
            attn_mask: Some(seen),
            // What has these is not gathered.
            alibi,
            has_sinks,
            dropout,
            sequences,
            wants_lse,
            num_splits,
            pack_gqa,
            precision,
        };
        GatherPlan {
            problem,
            seen,
            batches: valid.batches,
            key_heads: valid.key_heads,
            group_size: valid.group_size,
            shape: self.shape,
            diagonal: valid.visible().diagonal,
            window_left: valid.window_left,
            window_right: valid.window_right,
        }
    }
}

/// That of each batch and query head: its gradient has then as many rows that are worked on side by side.
fn gathered_bias([batches, query_heads]: [usize; 2], capacity: usize) -> ScoreLayout {
    ScoreLayout::dense([batches, query_heads, 1, capacity])
}

impl GatherPlan {
    /// The backward pass over gathered keys, of the one that was asked.
    pub fn backward(&self, problem: &BackwardProblem) -> BackwardProblem {
        let &BackwardProblem {
            forward: _,
            d_o,
            dq,
            dk,
            dv,
            gradient_dtype,
            d_bias,
            wants_d_sinks,
            has_d_lse,
            mode,
        } = problem;
        let capacity = self.seen.keys;
        // Parts of sums, which are rounded when they are added up.
        let d_bias = d_bias.and(self.problem.bias).map(|bias| Bias { dtype: Dtype::F32, ..bias });
        BackwardProblem {
            forward: self.problem,
            d_o,
            dq,
            dk: gathered_layout(&dk, capacity, gradient_dtype),
            dv: gathered_layout(&dv, capacity, gradient_dtype),
            gradient_dtype,
            d_bias,
            wants_d_sinks,
            has_d_lse,
            mode,
        }
    }

    /// Choices of keys.
    pub fn choices(&self) -> usize {
        self.shape.batches * self.shape.heads
    }

    /// Blocks of the kernels that have a warp for each of `rows` rows of every (batch, key head), and of the
    /// one that has a warp for each query of each choice.
    pub fn row_blocks(&self, rows: usize) -> u32 {
        (self.batches * self.key_heads * rows as u32).div_ceil(GATHER_THREADS / 32)
    }

    /// Likewise.
    pub fn seen_blocks(&self) -> u32 {
        ((self.choices() * self.seen.queries) as u32).div_ceil(GATHER_THREADS / 32)
    }

    /// What kernels are told: rows that are apart, and the gathered ones.
    pub fn params(&self, at: &GatherPointers, apart: &Rows<'_>, gathered: &Rows<'_>) -> GatherParams {
        let bytes = apart.dtype.bytes() as usize;
        let row_bytes = |(layout, _): (&Layout, DevicePointer)| layout.shape[3] * bytes;
        let aligned = |&(layout, pointer): &(&Layout, DevicePointer)| {
            let [batch, row, head, _] = layout.strides;
            let steps = [batch, row, head].map(|stride| stride.unsigned_abs() * bytes as u64);
            let all = [pointer, (layout.shape[3] * bytes) as u64].into_iter().chain(steps);
            all.into_iter().all(|start| start.is_multiple_of(ROW_ALIGNMENT as u64))
        };
        let is_aligned = [&apart.k, &apart.v, &gathered.k, &gathered.v].into_iter().all(aligned);
        let element_log2 = bytes.ilog2();
        let unit_log2 = if is_aligned { ROW_ALIGNMENT.ilog2() } else { element_log2 };
        let bias_view = apart
            .bias
            .map_or(ScoreView::default(), |(bias, address)| super::own_view(address, &bias.layout));
        let of = |(layout, address): (&Layout, DevicePointer)| view(address, layout);
        GatherParams {
            bits: at.bits,
            positions: at.positions,
            counts: at.counts,
            seen: at.seen,
            k: of(apart.k),
            v: of(apart.v),
            gathered_k: of(gathered.k),
            gathered_v: of(gathered.v),
            bias: bias_view,
            gathered_bias: gathered.bias.map_or(0, |(_, address)| address),
            batches: self.batches,
            key_heads: self.key_heads,
            choice_batches: self.shape.batches as u32,
            choice_heads: self.shape.heads as u32,
            keys: self.shape.keys as u32,
            words: self.shape.row_words() as u32,
            capacity: self.seen.keys as u32,
            k_units: (row_bytes(apart.k) >> unit_log2) as u32,
            v_units: (row_bytes(apart.v) >> unit_log2) as u32,
            unit_log2,
            element_log2,
            bias_type: match apart.bias.map_or(Dtype::F32, |(bias, _)| bias.dtype) {
                Dtype::Bf16 => 0,
                Dtype::F16 => 1,
                Dtype::F32 => 2,
            },
            seen_queries: self.seen.queries as u32,
            seen_words: self.seen.row_words() as u32,
            diagonal: self.diagonal,
            window_left: self.window_left,
            window_right: self.window_right,
            gather_blocks: self.row_blocks(self.seen.keys),
            group_size: self.group_size,
            reserved: 0,
        }
    }
}
