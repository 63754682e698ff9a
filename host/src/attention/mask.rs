//! Boolean masks, prepared once for all passes that use them: bits, and behind them the map of their tiles.

use super::Params as _;
use crate::buffer::{DeviceBuffer, InDeviceMemory};
use crate::device::Device;
use crate::driver::{DevicePointer, Queued, Stream};
use crate::error::{Error, Result};
use crate::plan::MAX_BLOCKS;
use crate::problem::{MaskShape, ScoreLayout};
use kernels_gpu::abi::{
    Family, KERNELS, KernelVariant, MASK_BITS_THREADS, MASK_MAP_GRANULES, MaskBitsParams, MaskMapParams,
    ScoreView,
};
use kernels_gpu::geometry::mask_map::LEVELS;

/// A boolean mask in device memory, a bit for each pair: made of a tensor once, and then used by any number
/// of forward and backward passes, of all layers that share it.
///
/// Behind the bits stands which blocks of 64 queries and 64 keys show no pair, and which show all. Tiles
/// that show none are skipped, forward and backward: their keys, values and queries are not read, but for
/// tiles that another query, key or head needs. Of tiles that show all the bits are not looked at.
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
    /// The bits, and the map from [`MaskShape::map_offset`] on.
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
        check_address(layout, pointer)?;
        let mask = PreparedMask::unmade(device, shape)?;
        let memory = (mask.device_pointer(), mask.bits.len() as u64 * 4);
        // SAFETY: the caller vouches for the tensor, and the bits have just been allocated.
        unsafe { prepare_mask(device, layout, keys, pointer, memory, stream) }?;
        Ok(mask)
    }

    /// Memory for bits and map of a mask.
    pub(super) fn unmade(device: &Device, shape: MaskShape) -> Result<Self> {
        let bits = DeviceBuffer::<u32>::uninitialised(device, words_of(&shape) as usize)?;
        Ok(PreparedMask { shape, bits })
    }

    /// What the kernel is told that makes the map of the bits, and how many blocks it has.
    pub(super) fn map_params(&self) -> (MaskMapParams, u32) {
        map_params(&self.shape, self.device_pointer())
    }

    /// The bits, and what is behind them.
    #[cfg(test)]
    pub(super) fn words(&self, stream: Stream) -> Result<Vec<u32>> {
        self.bits.to_vec(stream)
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

    /// Where the bits stand, and behind them the map:
    /// [`ScorePointers::mask_bits`](crate::plan::ScorePointers::mask_bits).
    pub fn device_pointer(&self) -> DevicePointer {
        self.bits.device_pointer()
    }
}

impl InDeviceMemory for PreparedMask {
    fn device_pointer(&self) -> DevicePointer {
        self.bits.device_pointer()
    }
}

/// Bytes of the bits of a boolean mask and of the map of its tiles: what [`prepare_mask`] fills.
///
/// # Errors
/// What [`MaskShape::of`] refuses.
pub fn prepared_mask_bytes(layout: &ScoreLayout, keys: usize) -> Result<u64> {
    Ok(4 * words_of(&MaskShape::of(layout, keys)?))
}

/// Words of the bits and of the map of a mask that [`MaskShape::of`] has accepted.
fn words_of(shape: &MaskShape) -> u64 {
    if shape.words() == 0 {
        return 0;
    }
    // No more than words of bits: at least one row of one word each.
    let warps = shape.map_shape().into_iter().product::<usize>() as u64;
    shape.map_offset() + 2 * u64::from(LEVELS) * warps
}

/// As [`PreparedMask::new`], in memory of the caller: an address that is a multiple of 8, and at least
/// [`prepared_mask_bytes`]. The address then is [`ScorePointers::mask_bits`](crate::plan::ScorePointers) of
/// passes. Allocates nothing, so that a graph can capture it.
///
/// # Errors
/// As [`PreparedMask::new`], [`Error::Misaligned`] and [`Error::WorkspaceTooSmall`].
///
/// # Safety
/// As [`PreparedMask::new`]; and the memory is writable, and used by nothing else until the work is done.
pub unsafe fn prepare_mask(
    device: &Device,
    layout: &ScoreLayout,
    keys: usize,
    pointer: DevicePointer,
    (bits, bytes): (DevicePointer, u64),
    stream: Stream,
) -> Result<MaskShape> {
    let shape = MaskShape::of(layout, keys)?;
    check_address(layout, pointer)?;
    // As many as fit a u32: `of` has seen to it.
    let words = shape.words() as u32;
    if words == 0 {
        return Ok(shape);
    }
    let expected = 4 * words_of(&shape);
    if bytes < expected {
        return Err(Error::WorkspaceTooSmall { expected, got: bytes });
    }
    if bits == 0 || !bits.is_multiple_of(8) {
        return Err(Error::Misaligned { argument: "mask", alignment: 8, address: bits });
    }
    let [of_bits, of_map] = [kernel(device, Family::MaskBits)?, kernel(device, Family::MaskMap)?];
    // A warp for each word: fewer blocks than a grid can have.
    let blocks = |words: u32| words.div_ceil(MASK_BITS_THREADS / 32);
    const { assert!(u32::MAX.div_ceil(MASK_BITS_THREADS / 32) <= MAX_BLOCKS) };
    let stride =
        |dimension: usize| if layout.shape[dimension] <= 1 { 0 } else { layout.strides[dimension] };
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
        bits,
        rows: words / row_words,
        heads: shape.heads as u32,
        queries: shape.queries as u32,
        keys: keys as u32,
        words: row_words,
        reserved: 0,
    };
    let (map, map_blocks) = map_params(&shape, bits);
    let queue = [
        Queued { variant: of_bits, blocks: blocks(words), params: params.bytes() },
        Queued { variant: of_map, blocks: map_blocks, params: map.bytes() },
    ];
    // SAFETY: the caller vouches for the tensor and for the memory.
    unsafe { device.driver().launch_in_order(&queue, stream) }?;
    Ok(shape)
}

/// A mask that has elements has an address.
fn check_address(layout: &ScoreLayout, pointer: DevicePointer) -> Result<()> {
    let elements = layout.elements();
    if elements > 0 && pointer == 0 {
        return Err(Error::NullPointer { argument: "mask", elements });
    }
    Ok(())
}

/// What the kernel is told that makes the map of bits, and how many blocks it has.
fn map_params(shape: &MaskShape, bits: DevicePointer) -> (MaskMapParams, u32) {
    let [batches, heads, windows, granules] = shape.map_shape();
    let params = MaskMapParams {
        bits,
        map: bits + 4 * shape.map_offset(),
        pairs: (batches * heads) as u32,
        granules: granules as u32,
        queries: shape.queries as u32,
        keys: shape.keys as u32,
        words: shape.row_words() as u32,
        windows: windows as u32,
    };
    let groups = params.granules.div_ceil(MASK_MAP_GRANULES);
    (params, params.pairs * params.windows * groups)
}

/// The kernel that makes bits, or the map.
pub(super) fn kernel(device: &Device, family: Family) -> Result<KernelVariant> {
    let found = KERNELS.iter().find(|spec| spec.family == family);
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

#[cfg(test)]
mod tests;
