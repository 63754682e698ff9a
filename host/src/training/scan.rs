//! One pass over a tensor in device memory: what is not finite, and the sum of squares; or in place a
//! product.

use super::{DeviceTensor, Result};
use crate::attention::Params as _;
use crate::buffer::{DeviceBuffer, InDeviceMemory as _};
use crate::device::Device;
use crate::driver::{Queued, Stream};
use crate::error::Error;
use crate::trace::{NonFinite, coordinates};
use bytemuck::Zeroable;
use kernels_gpu::abi::{Dtype, Family, KERNELS, KernelVariant, ScanParams, ScanRecord};
use std::fmt;

/// What is in a tensor.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scanned {
    /// What is not finite, and the first of it in logical order.
    pub non_finite: NonFinite,
    /// The indices of the first element that is not finite.
    pub first: Option<Vec<usize>>,
    /// The square root of the sum of squares of all elements, summed in f32 by blocks of the kernel and in
    /// f64 over blocks, always in the same order. Elements whose squares f32 does not hold are no exception.
    /// NaN or infinite if an element is.
    pub norm: f64,
}

impl Scanned {
    /// Whether all elements are finite.
    pub fn is_finite(&self) -> bool {
        self.non_finite.count() == 0
    }
}

impl fmt::Display for Scanned {
    /// `2 NaN, 0 +inf, 1 -inf, the first at [0, 3]`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NonFinite { nan, positive_infinity, negative_infinity, .. } = self.non_finite;
        write!(f, "{nan} NaN, {positive_infinity} +inf, {negative_infinity} -inf")?;
        self.first.as_ref().map_or(Ok(()), |first| write!(f, ", the first at {first:?}"))
    }
}

/// 2^-80, the unit of elements whose squares are too large: those of 2^30 of the largest number fit f32.
const TINY: f32 = f32::from_bits((127 - 80) << 23);
/// 2^100, that of elements whose squares are too small: the square of the smallest number is above [`SMALL`].
const HUGE: f32 = f32::from_bits((127 + 100) << 23);
/// Sums below this may be of squares that have lost bits.
const SMALL: f64 = f32::MIN_POSITIVE as f64 * (1u64 << 26) as f64;

/// Scans a tensor: one pass, after all work queued on `stream`. Waits for its end.
///
/// ```
/// use finite_attention::buffer::{DeviceBuffer, InDeviceMemory};
/// use finite_attention::training::{DeviceTensor, scan};
/// use finite_attention::{Arch, Device, Dtype, Stream};
/// let device = Device::emulated(Arch::Sm80)?;
/// let buffer = DeviceBuffer::from_slice(&device, &[3.0f32, f32::INFINITY, 4.0, f32::NAN])?;
/// let tensor = DeviceTensor::dense("gradient", Dtype::F32, &[2, 2], buffer.device_pointer());
/// // SAFETY: the buffer holds all elements, and nobody writes it.
/// let found = unsafe { scan(&device, &tensor, Stream::default()) }?;
/// assert_eq!(found.to_string(), "1 NaN, 1 +inf, 0 -inf, the first at [0, 1]");
/// # Ok::<(), finite_attention::training::TrainingError>(())
/// ```
///
/// # Errors
/// [`TrainingError::Tensor`](super::TrainingError::Tensor), [`Error::KernelMissing`], and errors of the
/// device.
///
/// # Safety
/// Every element is readable, and stays unchanged until the call returns. Memory between elements is not
/// touched.
pub unsafe fn scan(device: &Device, tensor: &DeviceTensor, stream: Stream) -> Result<Scanned> {
    // SAFETY: passed on to the caller.
    unsafe { scan_but(device, tensor, false, stream) }
}

/// As [`scan`], where minus infinity may be what is meant.
///
/// # Safety
/// As [`scan`].
pub(super) unsafe fn scan_but(
    device: &Device,
    tensor: &DeviceTensor,
    allows_negative_infinity: bool,
    stream: Stream,
) -> Result<Scanned> {
    let Some((blocks, params)) = tensor.params(false)? else { return Ok(Scanned::default()) };
    let params = ScanParams { allows_negative_infinity: u32::from(allows_negative_infinity), ..params };
    // SAFETY: made of the tensor, for which the caller vouches.
    let records = unsafe { launch(device, tensor, blocks, params, stream) }?;
    // SAFETY: as above.
    unsafe { found(device, tensor, &records, stream) }
}

/// Multiplies all elements by a number, rounded once, in one pass after all work queued on `stream`, and says
/// what was not finite before, and the norm of what came of it. Waits for its end.
///
/// # Errors
/// As [`scan`]; and no two elements may share an address.
///
/// # Safety
/// Every element is readable and writable, and used by nobody else until the call returns. Memory between
/// elements is not touched.
pub unsafe fn multiply(
    device: &Device,
    tensor: &DeviceTensor,
    factor: f32,
    stream: Stream,
) -> Result<Scanned> {
    let Some((blocks, params)) = tensor.params(true)? else { return Ok(Scanned::default()) };
    // SAFETY: made of the tensor, for which the caller vouches.
    let records = unsafe { launch(device, tensor, blocks, ScanParams { factor, ..params }, stream) }?;
    // SAFETY: as above.
    unsafe { found(device, tensor, &records, stream) }
}

/// What all blocks have found. A norm whose squares f32 does not hold takes one pass more.
///
/// # Safety
/// As [`scan`].
unsafe fn found(
    device: &Device,
    tensor: &DeviceTensor,
    records: &[ScanRecord],
    stream: Stream,
) -> Result<Scanned> {
    let mut non_finite = NonFinite::default();
    let mut first = u64::MAX;
    for record in records {
        non_finite.nan += record.nan as usize;
        non_finite.positive_infinity += record.positive_infinity as usize;
        non_finite.negative_infinity += record.negative_infinity as usize;
        first = first.min(u64::from(record.first[1]) << 32 | u64::from(record.first[0]));
    }
    non_finite.first = (first != u64::MAX).then_some(first as usize);
    let first = non_finite.first.map(|first| coordinates(&tensor.shape, first));
    let squares = sum(records);
    let unit = match non_finite.count() {
        0 if squares < SMALL => HUGE,
        0 if !squares.is_finite() => TINY,
        _ => return Ok(Scanned { non_finite, first, norm: squares.sqrt() }),
    };
    let mut norm = 0.0;
    if let Some((blocks, params)) = tensor.params(false)? {
        // SAFETY: made of the tensor, for which the caller vouches.
        let records = unsafe { launch(device, tensor, blocks, ScanParams { unit, ..params }, stream) }?;
        norm = sum(&records).sqrt() / f64::from(unit);
    }
    Ok(Scanned { non_finite, first, norm })
}

fn sum(records: &[ScanRecord]) -> f64 {
    records.iter().map(|record| f64::from(record.squares)).sum()
}

/// Launches the kernel, and reads the records of its blocks.
///
/// # Safety
/// The parameters are of the tensor, whose elements are readable, and writable if they are to be written.
unsafe fn launch(
    device: &Device,
    tensor: &DeviceTensor,
    blocks: u32,
    params: ScanParams,
    stream: Stream,
) -> Result<Vec<ScanRecord>> {
    let variant = kernel(device, tensor.dtype)?;
    let records = DeviceBuffer::<[u32; 8]>::uninitialised(device, blocks as usize)?;
    let params = ScanParams { records: records.device_pointer(), ..params };
    let queued = Queued { variant, blocks, params: params.bytes() };
    // SAFETY: the caller vouches for the tensor, and the records have just been allocated.
    unsafe { device.driver().launch_in_order(&[queued], stream) }?;
    let words = records.to_vec(stream)?;
    Ok(words.into_iter().map(record).collect())
}

/// The record of a block.
fn record([squares, nan, positive_infinity, negative_infinity, low, high, ..]: [u32; 8]) -> ScanRecord {
    let (squares, first) = (f32::from_bits(squares), [low, high]);
    let reserved = Zeroable::zeroed();
    ScanRecord { squares, nan, positive_infinity, negative_infinity, first, reserved }
}

/// The kernel for an element type.
fn kernel(device: &Device, dtype: Dtype) -> Result<KernelVariant> {
    let properties = device.properties();
    let (major, minor) = properties.compute_capability;
    let found = KERNELS.iter().find(|spec| {
        (spec.family, spec.dtype) == (Family::Scan, dtype) && spec.arch.runs_on(major, minor)
    });
    Ok(found.map(KernelVariant::from).ok_or_else(|| Error::KernelMissing {
        device: properties.name.clone(),
        family: "scan",
        dtype: dtype.name(),
        head_dim: 0,
        reason: "there is none for its compute capability".to_owned(),
    })?)
}
