//! Boolean masks, prepared once for all passes that use them.

use super::Params as _;
use crate::buffer::{DeviceBuffer, InDeviceMemory as _};
use crate::device::Device;
use crate::driver::{DevicePointer, Queued, Stream};
use crate::error::{Error, Result};
use crate::plan::MAX_BLOCKS;
use crate::problem::{MaskShape, ScoreLayout};
use kernels_gpu::abi::{Family, KERNELS, KernelVariant, MASK_BITS_THREADS, MaskBitsParams, ScoreView};

/// A boolean mask in device memory, a bit for each pair: made of a tensor once, and then used by any number
/// of forward and backward passes, of all layers that share it.
///
/// ```no_run
/// # use finite_attention::*;
/// # use finite_attention::attention::PreparedMask;
/// # use finite_attention::problem::ScoreLayout;
/// # fn f(device: &Device, problem: ForwardProblem, mask: DevicePointer) -> Result<()> {
/// // bool [B, 1, Sq, Sk], true where a key is visible
/// let layout = ScoreLayout::dense([2, 1, 100, 300]);
/// // SAFETY: (what the caller knows of the pointer)
/// let mask = unsafe { PreparedMask::new(device, &layout, 300, mask, Stream::default()) }?;
/// let problem = problem.with_attn_mask(mask.shape());
/// // ... pointers.score.mask_bits = mask.device_pointer();
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct PreparedMask {
    shape: MaskShape,
    bits: DeviceBuffer<u32>,
}

impl PreparedMask {
    /// Queues what makes bits of a boolean tensor, `[B|1, Hq|Hk|1, Sq|1, Sk|1]` of bytes, 0 where a key is
    /// hidden, and returns without waiting. `keys` is Sk; `pointer` the address of element (0, 0, 0, 0).
    ///
    /// # Errors
    /// What [`MaskShape::of`] refuses, [`Error::NullPointer`], [`Error::KernelMissing`],
    /// [`Error::OutOfMemory`], and errors of the driver.
    ///
    /// # Safety
    /// Every element of the tensor is readable and stays unchanged until the work is done.
    pub unsafe fn new(
        device: &Device,
        layout: &ScoreLayout,
        keys: usize,
        pointer: DevicePointer,
        stream: Stream,
    ) -> Result<Self> {
        let shape = MaskShape::of(layout, keys)?;
        let elements = layout.elements();
        if elements > 0 && pointer == 0 {
            return Err(Error::NullPointer { argument: "mask", elements });
        }
        // As many as fit a u32: `of` has seen to it.
        let words = shape.words() as u32;
        if words == 0 {
            return Ok(PreparedMask { shape, bits: DeviceBuffer::uninitialised(device, 0)? });
        }
        let variant = kernel(device)?;
        let bits = DeviceBuffer::<u32>::uninitialised(device, words as usize)?;
        // A warp for each word: fewer blocks than a grid can have.
        let blocks = words.div_ceil(MASK_BITS_THREADS / 32);
        const { assert!(u32::MAX.div_ceil(MASK_BITS_THREADS / 32) <= MAX_BLOCKS) };
        let stride = |dimension: usize| {
            if layout.shape[dimension] <= 1 { 0 } else { layout.strides[dimension] }
        };
        let row_words = shape.row_words() as u32;
        let params = MaskBitsParams {
            mask: ScoreView {
                address: pointer,
                batch_stride: stride(0),
                head_stride: stride(1),
                key_head_stride: 0,
                query_stride: stride(2),
                key_stride: stride(3),
            },
            bits: bits.device_pointer(),
            rows: words / row_words,
            heads: shape.heads as u32,
            queries: shape.queries as u32,
            keys: keys as u32,
            words: row_words,
            reserved: 0,
        };
        let queued = Queued { variant, blocks, params: params.bytes() };
        // SAFETY: the caller vouches for the tensor, and the bits have just been allocated.
        unsafe { device.driver().launch_in_order(&[queued], stream) }?;
        Ok(PreparedMask { shape, bits })
    }

    /// The bits of a problem without queries or heads, which nobody looks at: however many keys there are,
    /// memory for one word stands for them.
    pub(super) fn of_nothing(device: &Device, shape: MaskShape) -> Result<Self> {
        Ok(PreparedMask { shape, bits: DeviceBuffer::uninitialised(device, 1)? })
    }

    /// What [`ForwardProblem::with_attn_mask`](crate::ForwardProblem::with_attn_mask) takes.
    pub const fn shape(&self) -> MaskShape {
        self.shape
    }

    /// Where the bits stand: [`ScorePointers::mask_bits`](crate::plan::ScorePointers::mask_bits).
    pub fn device_pointer(&self) -> DevicePointer {
        self.bits.device_pointer()
    }
}

/// The kernel that makes bits.
fn kernel(device: &Device) -> Result<KernelVariant> {
    let found = KERNELS.iter().find(|spec| spec.family == Family::MaskBits);
    let runs = |(major, minor)| found.filter(|spec| spec.arch.runs_on(major, minor));
    let properties = device.properties();
    runs(properties.compute_capability).map(KernelVariant::from).ok_or_else(|| Error::KernelMissing {
        device: properties.name.clone(),
        family: "mask",
        dtype: "bool",
        head_dim: 0,
        reason: "there is none for its compute capability".to_owned(),
    })
}
