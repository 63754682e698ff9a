//! Bias, boolean mask, slopes and sinks in host slices, and on their way to the device.

use super::Element;
use super::host::{elements_of, exactly};
use super::mask::PreparedMask;
use crate::buffer::{DeviceBuffer, InDeviceMemory as _};
use crate::device::Device;
use crate::driver::{DevicePointer, Stream};
use crate::error::{Error, Result};
use crate::plan::ScorePointers;
use crate::problem::{
    AlibiSlopes, Bias, DynamicMask, MaskShape, SCORE_DIMENSIONS, ScoreLayout, ValidBackward,
    ValidForward, common_dtype,
};
use half::{bf16, f16};
use kernels_gpu::abi::Dtype;

/// What scores have beside q and k, on the host: as much of it as the problem has, and nothing by default.
/// `T` is the element type of q.
#[derive(Clone, Copy, Debug)]
pub struct ScoreSlices<'s, T> {
    /// The bias, exactly [`ScoreLayout::span`] elements of its layout.
    pub bias: Option<BiasSlice<'s, T>>,
    /// The boolean mask.
    pub mask: Option<MaskSlice<'s>>,
    /// Slopes of ALiBi: `[Hq]` or `[B, Hq]`.
    pub alibi_slopes: &'s [f32],
    /// A sink for each query head: `[Hq]`.
    pub sinks: &'s [f32],
    /// A dynamic mask that is made of the bias. The boolean mask is then a padding mask: what it hides is not
    /// chosen, either.
    pub dynamic_mask: Option<DynamicMask>,
}

/// The elements of a bias.
#[derive(Clone, Copy, Debug)]
pub enum BiasSlice<'s, T> {
    /// Of the dtype of q.
    LikeQ(&'s [T]),
    /// f32.
    F32(&'s [f32]),
}

/// A boolean mask on the host: true where a query sees a key.
#[derive(Clone, Copy, Debug)]
pub struct MaskSlice<'s> {
    /// Where its elements stand; batch, heads and queries as the problem's
    /// [`ForwardProblem::attn_mask`](crate::ForwardProblem::attn_mask) has them, and its keys or 1.
    pub layout: ScoreLayout,
    /// Exactly [`ScoreLayout::span`].
    pub elements: &'s [bool],
}

/// Elements of a type that is known when the program runs.
#[derive(Clone, Debug, PartialEq)]
pub enum Elements {
    /// bf16.
    Bf16(Vec<bf16>),
    /// f16.
    F16(Vec<f16>),
    /// f32.
    F32(Vec<f32>),
}

impl<T> Default for ScoreSlices<'_, T> {
    fn default() -> Self {
        ScoreSlices { bias: None, mask: None, alibi_slopes: &[], sinks: &[], dynamic_mask: None }
    }
}

impl MaskSlice<'_> {
    /// What [`ForwardProblem::with_attn_mask`](crate::ForwardProblem::with_attn_mask) takes, of a problem
    /// with so many keys.
    ///
    /// # Errors
    /// Those of [`MaskShape::of`].
    pub fn shape(&self, keys: usize) -> Result<MaskShape> {
        MaskShape::of(&self.layout, keys)
    }
}

/// Device memory with the elements of a bias or of its gradient.
enum AnyBuffer {
    Bf16(DeviceBuffer<bf16>),
    F16(DeviceBuffer<f16>),
    F32(DeviceBuffer<f32>),
}

impl AnyBuffer {
    fn pointer(&self) -> DevicePointer {
        match self {
            AnyBuffer::Bf16(buffer) => buffer.device_pointer(),
            AnyBuffer::F16(buffer) => buffer.device_pointer(),
            AnyBuffer::F32(buffer) => buffer.device_pointer(),
        }
    }

    fn elements(&self, stream: Stream) -> Result<Elements> {
        Ok(match self {
            AnyBuffer::Bf16(buffer) => Elements::Bf16(buffer.to_vec(stream)?),
            AnyBuffer::F16(buffer) => Elements::F16(buffer.to_vec(stream)?),
            AnyBuffer::F32(buffer) => Elements::F32(buffer.to_vec(stream)?),
        })
    }
}

/// Copies of what a problem's scores have; they live as long as this does.
pub(super) struct CopiedScores {
    pointers: ScorePointers,
    _bias: Option<CopiedBias>,
    _mask: Option<(DeviceBuffer<u8>, PreparedMask)>,
    _alibi_slopes: DeviceBuffer<f32>,
    _sinks: DeviceBuffer<f32>,
}

/// The bytes of a bias.
struct CopiedBias {
    buffer: DeviceBuffer<u8>,
    /// Byte offset of element (0, 0, 0, 0).
    origin: u64,
}

impl CopiedScores {
    /// Copies, and queues what prepares the mask.
    pub fn new<T: Element>(
        device: &Device,
        valid: &ValidForward,
        slices: &ScoreSlices<'_, T>,
        stream: Stream,
    ) -> Result<Self> {
        let problem = &valid.problem;
        let bias = copied_bias(device, problem.bias, slices.bias)?;
        let mask = copied_mask(device, valid, slices.mask, stream)?;
        let heads = valid.query_heads as usize;
        let shape = match problem.alibi {
            None => vec![],
            Some(AlibiSlopes::PerHead) => vec![heads],
            Some(AlibiSlopes::PerBatchAndHead) => vec![valid.batches as usize, heads],
        };
        let alibi_slopes = copied_numbers(device, "alibi_slopes", &shape, slices.alibi_slopes)?;
        let shape = if problem.has_sinks { vec![heads] } else { vec![] };
        let sinks = copied_numbers(device, "sinks", &shape, slices.sinks)?;
        let address = |bias: &CopiedBias| bias.buffer.device_pointer() + bias.origin;
        let pointers = ScorePointers {
            bias: bias.as_ref().map_or(0, address),
            mask_bits: mask.as_ref().map_or(0, |(_, mask)| mask.device_pointer()),
            alibi_slopes: alibi_slopes.device_pointer(),
            sinks: sinks.device_pointer(),
        };
        let (_bias, _mask, _alibi_slopes, _sinks) = (bias, mask, alibi_slopes, sinks);
        Ok(CopiedScores { pointers, _bias, _mask, _alibi_slopes, _sinks })
    }

    /// Where they are.
    pub fn pointers(&self) -> ScorePointers {
        self.pointers
    }
}

fn copied_bias<T: Element>(
    device: &Device,
    bias: Option<Bias>,
    slice: Option<BiasSlice<'_, T>>,
) -> Result<Option<CopiedBias>> {
    let (dtype, got) = match slice {
        None => (None, 0),
        Some(BiasSlice::LikeQ(elements)) => (Some(T::DTYPE), elements.len()),
        Some(BiasSlice::F32(elements)) => (Some(Dtype::F32), elements.len()),
    };
    let Some(Bias { layout, dtype: expected }) = bias else {
        return if dtype.is_none() { Ok(None) } else { Err(not_in_problem("bias", got)) };
    };
    if let Some(dtype) = dtype {
        common_dtype(&[("problem", expected), ("bias", dtype)])?;
    }
    let (span, shape) = (layout.span(), &layout.shape);
    let bytes: &[u8] = match slice {
        None => bytemuck::cast_slice(exactly::<f32>("bias", span, shape, &[])?),
        Some(BiasSlice::LikeQ(elements)) => {
            bytemuck::cast_slice(exactly("bias", span, shape, elements)?)
        }
        Some(BiasSlice::F32(elements)) => bytemuck::cast_slice(exactly("bias", span, shape, elements)?),
    };
    let origin = (layout.origin() * expected.bytes() as usize) as u64;
    Ok(Some(CopiedBias { buffer: DeviceBuffer::from_slice(device, bytes)?, origin }))
}

fn copied_mask(
    device: &Device,
    valid: &ValidForward,
    slice: Option<MaskSlice<'_>>,
    stream: Stream,
) -> Result<Option<(DeviceBuffer<u8>, PreparedMask)>> {
    let Some(MaskShape { batches, heads, queries, keys }) = valid.problem.attn_mask else {
        let got = slice.map(|slice| slice.elements.len());
        return got.map_or(Ok(None), |got| Err(not_in_problem("mask", got)));
    };
    let Some(MaskSlice { layout, elements }) = slice else {
        let dense = ScoreLayout::dense([batches, heads, queries, keys]);
        exactly::<bool>("mask", dense.span(), &dense.shape, &[])?;
        return Ok(None);
    };
    // Before anything is made of its strides.
    let shape = MaskShape::of(&layout, keys)?;
    let sizes = [batches, heads, queries].into_iter().zip(layout.shape).zip(SCORE_DIMENSIONS);
    for ((expected, got), dimension) in sizes {
        if got != expected {
            let (argument, like) = ("mask", "problem");
            return Err(Error::WrongSize { argument, dimension, expected, like, got });
        }
    }
    let elements = exactly("mask", layout.span(), &layout.shape, elements)?;
    let buffer = DeviceBuffer::<u8>::from_slice(device, bytemuck::cast_slice(elements))?;
    if valid.is_empty() {
        return Ok(Some((buffer, PreparedMask::of_nothing(device, shape)?)));
    }
    let address = buffer.device_pointer() + layout.origin() as u64;
    // SAFETY: the buffer holds the span of the layout, and lives as long as what is returned, which is past
    // the end of the work.
    let prepared = unsafe { PreparedMask::new(device, &layout, keys, address, stream) }?;
    Ok(Some((buffer, prepared)))
}

/// f32 of a shape; with none there are to be no numbers.
fn copied_numbers(
    device: &Device,
    argument: &'static str,
    shape: &[usize],
    numbers: &[f32],
) -> Result<DeviceBuffer<f32>> {
    if shape.is_empty() && !numbers.is_empty() {
        return Err(not_in_problem(argument, numbers.len()));
    }
    let expected = if shape.is_empty() { 0 } else { shape.iter().product() };
    DeviceBuffer::from_slice(device, exactly(argument, expected, shape, numbers)?)
}

fn not_in_problem(argument: &'static str, got: usize) -> Error {
    Error::NotInProblem { argument, got }
}

/// Device memory for the gradients of bias and sinks.
pub(super) struct ScoreGradients {
    d_bias: Option<AnyBuffer>,
    d_sinks: DeviceBuffer<f32>,
}

impl ScoreGradients {
    /// As much as the problem asks for.
    pub fn new(device: &Device, valid: &ValidBackward) -> Result<Self> {
        let d_bias = valid.problem.d_bias.map(|Bias { layout, dtype }| {
            let (span, elements) = (layout.span(), layout.elements());
            Ok::<_, Error>(match dtype {
                Dtype::Bf16 => AnyBuffer::Bf16(elements_of(device, span, elements)?),
                Dtype::F16 => AnyBuffer::F16(elements_of(device, span, elements)?),
                Dtype::F32 => AnyBuffer::F32(elements_of(device, span, elements)?),
            })
        });
        let sinks = if valid.problem.wants_d_sinks { valid.forward.query_heads as usize } else { 0 };
        let d_sinks = DeviceBuffer::uninitialised(device, sinks)?;
        Ok(ScoreGradients { d_bias: d_bias.transpose()?, d_sinks })
    }

    /// Where dBias and dSinks go.
    pub fn pointers(&self) -> [DevicePointer; 2] {
        [self.d_bias.as_ref().map_or(0, AnyBuffer::pointer), self.d_sinks.device_pointer()]
    }

    /// What they are.
    pub fn read(&self, stream: Stream) -> Result<(Option<Elements>, Vec<f32>)> {
        let d_bias = self.d_bias.as_ref().map(|buffer| buffer.elements(stream)).transpose()?;
        Ok((d_bias, self.d_sinks.to_vec(stream)?))
    }
}
