//! Bias, boolean mask, slopes and sinks of a case in device memory.

use super::compute::{spill, widened};
use super::{Case, ScoreInputs, Surroundings, TensorMemory};
use crate::attention::{Element, PreparedMask};
use crate::device::Device;
use crate::driver::{DevicePointer, Stream};
use crate::error::Result;
use crate::plan::ScorePointers;
use crate::problem::{AlibiSlopes, Bias, Layout, ScoreLayout};
use kernels_gpu::abi::Dtype;

/// A tensor of the type of q, or f32.
enum Either<'d, T> {
    LikeQ(TensorMemory<'d, T>),
    F32(TensorMemory<'d, f32>),
}

impl<'d, T: Element> Either<'d, T> {
    /// As [`TensorMemory::new`].
    fn new(
        device: &'d Device,
        Bias { layout, dtype }: Bias,
        lead: usize,
        guard_after: bool,
        numbers: Option<&[f32]>,
        surroundings: Surroundings,
    ) -> Result<Self> {
        if dtype == Dtype::F32 {
            let memory = TensorMemory::new(device, layout, lead, guard_after, numbers, surroundings)?;
            return Ok(Either::F32(memory));
        }
        let values: Option<Vec<T>> =
            numbers.map(|numbers| numbers.iter().copied().map(T::from_f32).collect());
        TensorMemory::new(device, layout, lead, guard_after, values.as_deref(), surroundings)
            .map(Either::LikeQ)
    }

    fn pointer(&self) -> DevicePointer {
        match self {
            Either::LikeQ(memory) => memory.pointer(),
            Either::F32(memory) => memory.pointer(),
        }
    }

    fn written(&self) -> Vec<f32> {
        match self {
            Either::LikeQ(memory) => widened(memory.written()),
            Either::F32(memory) => memory.written(),
        }
    }

    fn read(&self, stream: Stream) -> Result<(Vec<f32>, Option<isize>)> {
        match self {
            Either::LikeQ(memory) => {
                memory.read(stream).map(|(values, spilled)| (widened(values), spilled))
            }
            Either::F32(memory) => memory.read(stream),
        }
    }
}

/// What there is of them.
pub(super) struct ScoreMemory<'d, T> {
    bias: Option<Either<'d, T>>,
    /// The mask as it was given, and its bits.
    mask: Option<(TensorMemory<'d, u8>, PreparedMask)>,
    alibi_slopes: Option<TensorMemory<'d, f32>>,
    sinks: Option<TensorMemory<'d, f32>>,
}

impl<'d, T: Element> ScoreMemory<'d, T> {
    /// Copies the numbers, and has the mask prepared.
    pub fn new(
        device: &'d Device,
        case: &Case,
        inputs: &ScoreInputs,
        surroundings: Surroundings,
    ) -> Result<Self> {
        let guard_after = !case.tight;
        let numbers = |shape: [usize; 2], numbers: &[f32]| {
            let layout = Layout::bshd([1, 1, shape[0], shape[1]]);
            TensorMemory::new(device, layout, 0, guard_after, Some(numbers), surroundings)
        };
        let bias = case.features.bias.zip(case.bias()).map(|(feature, bias)| {
            let (lead, numbers) = (feature.placement.lead(), Some(inputs.bias.as_slice()));
            Either::new(device, bias, lead, guard_after, numbers, surroundings)
        });
        let mask = case.features.mask.zip(case.mask_layout()).map(|(feature, layout)| {
            // Whatever is not 0 shows a key.
            let shown = if case.seed.is_multiple_of(2) { 1 } else { 0x80 };
            let bytes: Vec<u8> = inputs.mask.iter().map(|&shows| u8::from(shows) * shown).collect();
            let lead = feature.placement.lead();
            let memory =
                TensorMemory::new(device, layout, lead, guard_after, Some(&bytes), surroundings)?;
            let prepared = prepare(device, &layout, case.key_rows, memory.pointer())?;
            Ok::<_, crate::error::Error>((memory, prepared))
        });
        let alibi_slopes = case.features.alibi.map(|alibi| {
            let batches = if alibi == AlibiSlopes::PerHead { 1 } else { case.batches };
            numbers([batches, case.query_heads], &inputs.alibi_slopes)
        });
        let sinks = case.features.has_sinks.then(|| numbers([1, case.query_heads], &inputs.sinks));
        Ok(ScoreMemory {
            bias: bias.transpose()?,
            mask: mask.transpose()?,
            alibi_slopes: alibi_slopes.transpose()?,
            sinks: sinks.transpose()?,
        })
    }

    /// Where they are.
    pub fn pointers(&self) -> ScorePointers {
        let address = |tensor: &Option<TensorMemory<'_, f32>>| {
            tensor.as_ref().map_or(0, |tensor| tensor.pointer())
        };
        ScorePointers {
            bias: self.bias.as_ref().map_or(0, Either::pointer),
            mask_bits: self.mask.as_ref().map_or(0, |(_, mask)| mask.device_pointer()),
            alibi_slopes: address(&self.alibi_slopes),
            sinks: address(&self.sinks),
        }
    }

    /// The numbers as kernels see them: rounded, and with one value where elements share an address.
    pub fn written(&self) -> ScoreInputs {
        let numbers = |tensor: &Option<TensorMemory<'_, f32>>| {
            tensor.as_ref().map_or(Vec::new(), TensorMemory::written)
        };
        let mask = self.mask.as_ref().map_or(Vec::new(), |(bytes, _)| bytes.written());
        ScoreInputs {
            bias: self.bias.as_ref().map_or(Vec::new(), Either::written),
            mask: mask.into_iter().map(|byte| byte != 0).collect(),
            alibi_slopes: numbers(&self.alibi_slopes),
            sinks: numbers(&self.sinks),
            kept: None,
        }
    }
}

/// The bits of a mask.
fn prepare(
    device: &Device,
    layout: &ScoreLayout,
    keys: usize,
    pointer: DevicePointer,
) -> Result<PreparedMask> {
    let stream = Stream::default();
    // SAFETY: the tensor holds its layout, and lives past `synchronize`.
    let prepared = unsafe { PreparedMask::new(device, layout, keys, pointer, stream) }?;
    device.synchronize(stream)?;
    Ok(prepared)
}

/// Gradients of bias and sinks in device memory, NaN at first.
pub(super) struct ScoreGradientMemory<'d, T> {
    d_bias: Option<Either<'d, T>>,
    d_sinks: Option<TensorMemory<'d, f32>>,
}

/// Gradients of bias and sinks, and where something outside of them changed.
pub(super) struct ScoreGradients {
    pub d_bias: Vec<f32>,
    pub d_sinks: Vec<f32>,
    pub spilled: Option<String>,
}

impl<'d, T: Element> ScoreGradientMemory<'d, T> {
    /// As much as the case asks for.
    pub fn new(device: &'d Device, case: &Case) -> Result<Self> {
        let nan = Surroundings::Nan;
        let d_bias = case.features.bias.zip(case.d_bias()).map(|(feature, d_bias)| {
            Either::new(device, d_bias, feature.placement.lead(), true, None, nan)
        });
        let wants_d_sinks = case.features.has_sinks && case.features.wants_d_sinks;
        let layout = Layout::bshd([1, 1, 1, case.query_heads]);
        let d_sinks = wants_d_sinks.then(|| TensorMemory::new(device, layout, 0, true, None, nan));
        Ok(ScoreGradientMemory { d_bias: d_bias.transpose()?, d_sinks: d_sinks.transpose()? })
    }

    /// Where dBias and dSinks go.
    pub fn pointers(&self) -> [DevicePointer; 2] {
        [
            self.d_bias.as_ref().map_or(0, Either::pointer),
            self.d_sinks.as_ref().map_or(0, TensorMemory::pointer),
        ]
    }

    /// What they are.
    pub fn read(&self, stream: Stream) -> Result<ScoreGradients> {
        let nothing = || Ok((Vec::new(), None));
        let (d_bias, bias_spilled) =
            self.d_bias.as_ref().map_or_else(nothing, |memory| memory.read(stream))?;
        let (d_sinks, sinks_spilled) =
            self.d_sinks.as_ref().map_or_else(nothing, |memory| memory.read(stream))?;
        let spilled = spill([("dbias", bias_spilled), ("dsinks", sinks_spilled)]);
        Ok(ScoreGradients { d_bias, d_sinks, spilled })
    }
}
