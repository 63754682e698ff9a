//! Device memory with an owner, and the addresses of memory that others own.

use crate::device::Device;
use crate::driver::{DevicePointer, Stream};
use crate::error::{Error, Result};
use bytemuck::allocation::try_zeroed_vec;
use bytemuck::{Pod, cast_slice, cast_slice_mut};
use std::marker::PhantomData;

/// A dense array of numbers in device memory, freed when dropped.
///
/// ```
/// use finite_attention::{Arch, Device, Stream, buffer::DeviceBuffer};
/// let device = Device::emulated(Arch::Sm80)?;
/// let buffer = DeviceBuffer::from_slice(&device, &[1.0f32, 2.0, 3.0])?;
/// assert_eq!(buffer.to_vec(Stream::default())?, [1.0, 2.0, 3.0]);
/// # Ok::<(), finite_attention::Error>(())
/// ```
#[derive(Debug)]
pub struct DeviceBuffer<T> {
    device: Device,
    pointer: DevicePointer,
    len: usize,
    element: PhantomData<T>,
}

impl<T: Pod> DeviceBuffer<T> {
    /// Room for `len` elements that count as never written.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], also when the size in bytes overflows, and errors of the device.
    pub fn uninitialised(device: &Device, len: usize) -> Result<Self> {
        let bytes = len.checked_mul(size_of::<T>()).ok_or_else(|| Error::OutOfMemory {
            device: device.properties().name.clone(),
            bytes: usize::MAX,
        })?;
        let pointer = device.driver().allocate(bytes)?;
        Ok(DeviceBuffer { device: device.clone(), pointer, len, element: PhantomData })
    }

    /// A copy of `elements`.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], and errors of the device.
    pub fn from_slice(device: &Device, elements: &[T]) -> Result<Self> {
        let buffer = DeviceBuffer::uninitialised(device, elements.len())?;
        if !elements.is_empty() {
            device.driver().copy_to_device(buffer.pointer, cast_slice(elements))?;
        }
        Ok(buffer)
    }

    /// Room for `len` elements, all zero.
    ///
    /// ```
    /// use finite_attention::{Arch, Device, Stream, buffer::DeviceBuffer};
    /// let device = Device::emulated(Arch::Sm80)?;
    /// let mut buffer = DeviceBuffer::<f32>::zeroed(&device, 2)?;
    /// assert_eq!(buffer.to_vec(Stream::default())?, [0.0, 0.0]);
    /// buffer.copy_from_slice(&[1.0, 2.0], Stream::default())?;
    /// assert_eq!(buffer.to_vec(Stream::default())?, [1.0, 2.0]);
    /// # Ok::<(), finite_attention::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], also of the host, and errors of the device.
    pub fn zeroed(device: &Device, len: usize) -> Result<Self> {
        let buffer = DeviceBuffer::uninitialised(device, len)?;
        if len != 0 {
            device.driver().copy_to_device(buffer.pointer, cast_slice(&zeros::<T>(len)?))?;
        }
        Ok(buffer)
    }

    /// Overwrites all elements after all work queued on `stream`, which may still use the old ones; done when
    /// it returns.
    ///
    /// # Errors
    /// [`Error::WrongLength`] if there are not as many as the buffer holds, which is then unchanged; and
    /// errors of the device, also those of the work before the copy.
    pub fn copy_from_slice(&mut self, elements: &[T], stream: Stream) -> Result<()> {
        let (expected, got) = (self.len, elements.len());
        if got != expected {
            return Err(Error::WrongLength {
                argument: "elements",
                expected,
                shape: vec![expected],
                got,
            });
        }
        self.device.synchronize(stream)?;
        if elements.is_empty() {
            return Ok(());
        }
        self.device.driver().copy_to_device(self.pointer, cast_slice(elements))
    }

    /// Copies the elements to the host after all work queued on `stream`.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] of the host, and errors of the device, also those of the work before the
    /// copy.
    pub fn to_vec(&self, stream: Stream) -> Result<Vec<T>> {
        let mut elements = zeros(self.len)?;
        if !elements.is_empty() {
            self.device.driver().copy_to_host(cast_slice_mut(&mut elements), self.pointer, stream)?;
        }
        Ok(elements)
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// Zeros in host memory.
fn zeros<T: Pod>(len: usize) -> Result<Vec<T>> {
    try_zeroed_vec(len).map_err(|()| Error::OutOfMemory {
        device: "host".to_owned(),
        bytes: len.saturating_mul(size_of::<T>()),
    })
}

impl<T> Drop for DeviceBuffer<T> {
    /// Waits for the default stream first. Work on other streams must have been waited for.
    fn drop(&mut self) {
        // What these two report was reported before, or comes again at the next call.
        let _ = self.device.synchronize(Stream::default());
        // SAFETY: allocated by this device, owned by this buffer alone, and the default stream is empty.
        let _ = unsafe { self.device.driver().free(self.pointer) };
    }
}

/// Something that stands in device memory: what fills [`crate::ForwardPointers`].
///
/// With the feature `cust`, its buffers and pointers do, on the device whose primary context they were
/// allocated in (`cust::quick_init` and the CUDA runtime use that one).
pub trait InDeviceMemory {
    /// Address of its first byte; null when it is empty.
    fn device_pointer(&self) -> DevicePointer;
}

impl<T: Pod> InDeviceMemory for DeviceBuffer<T> {
    fn device_pointer(&self) -> DevicePointer {
        self.pointer
    }
}
