//! Bias, boolean mask and sinks of the host over several ranks, and their gradients.

use super::super::ContextPass;
use super::{ContextInputs, RankRows, Whole};
use crate::attention::{BiasSlice, Element, Elements, MaskSlice, exactly};
use crate::buffer::{DeviceBuffer, InDeviceMemory as _};
use crate::device::Device;
use crate::driver::Stream;
use crate::error::{Error, Result};
use crate::plan::ScorePointers;
use crate::problem::{Bias, ForwardProblem, MaskShape, ScoreLayout, common_dtype};
use bytemuck::Pod;
use half::{bf16, f16};
use kernels_gpu::abi::Dtype;

/// What of the scores a rank has: tensors over its queries and all keys, dense.
#[derive(Default)]
pub(super) struct RankScores {
    bias: Option<(Bias, Vec<u8>)>,
    mask: Option<(ScoreLayout, Vec<u8>)>,
    sinks: Vec<f32>,
    d_bias: Option<Bias>,
    wants_d_sinks: bool,
}

/// Gradients of the scores that a rank has computed.
#[derive(Default)]
pub(super) struct RankScoreGradients {
    d_bias: Vec<u8>,
    d_sinks: Vec<f32>,
}

/// The same in device memory.
pub(super) struct ScoreBuffers {
    bias: DeviceBuffer<u8>,
    /// What bits are made of, which the stream may not have done yet.
    _mask: DeviceBuffer<u8>,
    sinks: DeviceBuffer<f32>,
    d_bias: DeviceBuffer<u8>,
    d_sinks: DeviceBuffer<f32>,
}

/// Everything of a tensor over scores is there.
pub(super) fn check<T: Element>(problem: &ForwardProblem, inputs: &ContextInputs<'_, T>) -> Result<()> {
    let scores = &inputs.scores;
    let [_, _, heads, _] = problem.q.shape;
    let not_there = |argument, got| Error::NotInProblem { argument, got };
    match (problem.bias, scores.bias) {
        (None, None) => {}
        (None, Some(slice)) => return Err(not_there("bias", length(&slice))),
        (Some(Bias { layout, dtype }), slice) => {
            let (span, shape) = (layout.span(), &layout.shape);
            match slice {
                Some(BiasSlice::LikeQ(elements)) => {
                    common_dtype(&[("problem", dtype), ("bias", T::DTYPE)])?;
                    exactly("bias", span, shape, elements)?;
                }
                Some(BiasSlice::F32(elements)) => {
                    common_dtype(&[("problem", dtype), ("bias", Dtype::F32)])?;
                    exactly("bias", span, shape, elements)?;
                }
                None => drop(exactly::<f32>("bias", span, shape, &[])?),
            }
        }
    }
    match (problem.attn_mask, scores.mask) {
        (None, None) => {}
        (None, Some(slice)) => return Err(not_there("mask", slice.elements.len())),
        (Some(_), Some(MaskSlice { layout, elements })) => {
            exactly("mask", layout.span(), &layout.shape, elements)?;
        }
        (Some(MaskShape { batches, heads, queries, keys }), None) => {
            let dense = ScoreLayout::dense([batches, heads, queries, keys]);
            exactly::<bool>("mask", dense.span(), &dense.shape, &[])?;
        }
    }
    match (problem.has_sinks, scores.sinks.len()) {
        (false, 0) => Ok(()),
        (false, got) => Err(not_there("sinks", got)),
        (true, _) => exactly("sinks", heads, &[heads], scores.sinks).map(|_| ()),
    }
}

fn length<T>(slice: &BiasSlice<'_, T>) -> usize {
    match slice {
        BiasSlice::LikeQ(elements) => elements.len(),
        BiasSlice::F32(elements) => elements.len(),
    }
}

/// Where the elements of these queries stand, in logical order, and the dense layout of what they are then. A
/// dimension that all queries share stays so.
fn places(layout: &ScoreLayout, queries: &[usize]) -> (ScoreLayout, Vec<usize>) {
    let [batches, heads, rows, keys] = layout.shape;
    let one = [0];
    let queries = if rows == 1 { &one[..] } else { queries };
    let mut places = Vec::with_capacity(batches * heads * queries.len() * keys);
    for batch in 0..batches {
        for head in 0..heads {
            for &query in queries {
                let place = |key| layout.offset([batch, head, query, key]);
                places.extend((0..keys).map(|key| layout.origin().wrapping_add_signed(place(key))));
            }
        }
    }
    (ScoreLayout::dense([batches, heads, queries.len(), keys]), places)
}

fn bytes_of<N: Pod>(elements: &[N], places: &[usize]) -> Vec<u8> {
    let taken: Vec<N> = places.iter().map(|&place| elements[place]).collect();
    bytemuck::cast_slice(&taken).to_vec()
}

impl RankScores {
    pub fn new<T: Element>(whole: &Whole, rows: &RankRows, inputs: &ContextInputs<'_, T>) -> Self {
        let problem = &whole.problem;
        let bias = problem.bias.zip(inputs.scores.bias).map(|(bias, slice)| {
            let (layout, places) = places(&bias.layout, &rows.queries);
            let bytes = match slice {
                BiasSlice::LikeQ(elements) => bytes_of(elements, &places),
                BiasSlice::F32(elements) => bytes_of(elements, &places),
            };
            (Bias { layout, ..bias }, bytes)
        });
        let mask = inputs.scores.mask.map(|slice| {
            let (layout, places) = places(&slice.layout, &rows.queries);
            (layout, places.iter().map(|&place| u8::from(slice.elements[place])).collect())
        });
        let d_bias = whole.backward.and_then(|backward| backward.d_bias);
        RankScores {
            bias,
            mask,
            sinks: inputs.scores.sinks.to_vec(),
            d_bias: d_bias
                .map(|d_bias| Bias { layout: places(&d_bias.layout, &rows.queries).0, ..d_bias }),
            wants_d_sinks: whole.backward.is_some_and(|backward| backward.wants_d_sinks),
        }
    }

    /// The problem of a rank's own tensors with these beside.
    pub fn add_to(&self, local: ForwardProblem) -> ForwardProblem {
        let queries = local.q.shape[1];
        ForwardProblem {
            bias: self.bias.as_ref().map(|(bias, _)| *bias),
            attn_mask: local.attn_mask.map(|shape| MaskShape {
                queries: if shape.queries == 1 { 1 } else { queries },
                ..shape
            }),
            ..local
        }
    }

    pub fn d_bias(&self) -> Option<Bias> {
        self.d_bias
    }

    pub fn wants_d_sinks(&self) -> bool {
        self.wants_d_sinks
    }

    /// Copies all of it, and has the mask prepared.
    pub fn upload(
        &self,
        device: &Device,
        pass: &mut ContextPass<'_>,
        stream: Stream,
    ) -> Result<ScoreBuffers> {
        let bytes =
            |bytes: Option<&Vec<u8>>| DeviceBuffer::from_slice(device, bytes.map_or(&[], Vec::as_slice));
        let mask = bytes(self.mask.as_ref().map(|(_, bytes)| bytes))?;
        if let Some((layout, _)) = &self.mask {
            // SAFETY: the buffer holds the tensor, and lives past the end of the pass.
            unsafe { pass.prepare_mask(layout, mask.device_pointer(), stream) }?;
        }
        let of_bias = |bias: &Bias| bias.layout.elements() as usize * bias.dtype.bytes() as usize;
        let d_sinks = if self.wants_d_sinks { self.sinks.len() } else { 0 };
        Ok(ScoreBuffers {
            bias: bytes(self.bias.as_ref().map(|(_, bytes)| bytes))?,
            _mask: mask,
            sinks: DeviceBuffer::from_slice(device, &self.sinks)?,
            d_bias: DeviceBuffer::uninitialised(device, self.d_bias.as_ref().map_or(0, of_bias))?,
            d_sinks: DeviceBuffer::uninitialised(device, d_sinks)?,
        })
    }
}

impl ScoreBuffers {
    pub fn pointers(&self) -> ScorePointers {
        let (bias, sinks) = (self.bias.device_pointer(), self.sinks.device_pointer());
        ScorePointers { bias, sinks, ..ScorePointers::default() }
    }

    /// Where dBias and dSinks go.
    pub fn gradients(&self) -> [u64; 2] {
        [self.d_bias.device_pointer(), self.d_sinks.device_pointer()]
    }

    pub fn read(&self, stream: Stream) -> Result<RankScoreGradients> {
        let (d_bias, d_sinks) = (self.d_bias.to_vec(stream)?, self.d_sinks.to_vec(stream)?);
        Ok(RankScoreGradients { d_bias, d_sinks })
    }
}

/// dBias and dSinks of the whole.
pub(super) fn collected(
    whole: &Whole,
    shares: &[(&RankRows, &RankScoreGradients)],
) -> (Option<Elements>, Vec<f32>) {
    let backward = whole.backward.as_ref();
    let heads = whole.problem.q.shape[2];
    let mut d_sinks = vec![0.0; if backward.is_some_and(|of| of.wants_d_sinks) { heads } else { 0 }];
    for (_, share) in shares {
        d_sinks.iter_mut().zip(&share.d_sinks).for_each(|(sum, more)| *sum += more);
    }
    let d_bias =
        backward.and_then(|backward| backward.d_bias).map(|Bias { layout, dtype }| match dtype {
            Dtype::Bf16 => Elements::Bf16(put_together::<bf16>(&layout, shares)),
            Dtype::F16 => Elements::F16(put_together::<f16>(&layout, shares)),
            Dtype::F32 => Elements::F32(put_together::<f32>(&layout, shares)),
        });
    (d_bias, d_sinks)
}

fn put_together<E: Element>(
    layout: &ScoreLayout,
    shares: &[(&RankRows, &RankScoreGradients)],
) -> Vec<E> {
    let mut whole = vec![E::from_f32(0.0); layout.span()];
    for (rows, share) in shares {
        let (_, places) = places(layout, &rows.queries);
        let own: Vec<E> = bytemuck::pod_collect_to_vec(&share.d_bias);
        places.into_iter().zip(own).for_each(|(place, element)| whole[place] = element);
    }
    whole
}
