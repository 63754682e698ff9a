//! An NVIDIA GPU, through the CUDA driver; with the feature `cust`, through `cust` where that has the call
//! (`door`).
//!
//! The driver is not linked but found when it is first needed (`loader`, `trampolines`), so the same
//! program runs where there is none. Each driver object retains the device's primary context, which it
//! shares with the CUDA runtime: device pointers and streams of other libraries of the process can be
//! used as they are.

mod context;
mod door;
mod event;
mod kernels;
mod loader;
mod pool;
mod raw;
mod trampolines;

pub use event::CudaEvent;

use super::{DevicePointer, DeviceProperties, Driver, Mark, RowsOf, Stream, TensorMapDescription};
use crate::error::{Error, Result};
use crate::images::KernelImages;
use context::PrimaryContext;
use kernels::LoadedKernels;
use kernels_gpu::abi::{Arch, KernelVariant, TensorMap};
use pool::MemoryPool;
use std::sync::{Arc, Mutex, PoisonError};

/// One GPU. May be used from any number of threads; every call leaves the thread's current context as it
/// was.
pub struct CudaDriver {
    ordinal: usize,
    properties: DeviceProperties,
    kernels: LoadedKernels,
    /// For errors that the device reports later than it makes them.
    last_launch: Mutex<Option<KernelVariant>>,
    pool: MemoryPool,
    context: Arc<PrimaryContext>,
}

impl CudaDriver {
    /// Opens the device of this ordinal, in the order of the driver (`CUDA_VISIBLE_DEVICES` applies).
    ///
    /// # Errors
    /// [`Error::NoDevice`] if there is no driver, no GPU, or none of that ordinal; [`Error::Cuda`].
    pub fn new(ordinal: usize, images: KernelImages) -> Result<Self> {
        let count = Self::count().map_err(|error| match error {
            Error::NoDevice { reason, .. } => Error::NoDevice { device: device_name(ordinal), reason },
            other => other,
        })?;
        if ordinal >= count {
            let reason =
                format!("the CUDA driver finds {count} device{}", if count == 1 { "" } else { "s" });
            return Err(Error::NoDevice { device: device_name(ordinal), reason });
        }
        let properties = device_properties(ordinal as u32)?;
        let context = Arc::new(PrimaryContext::retain(ordinal as u32)?);
        let kernels = LoadedKernels::new(context.clone(), images, properties.compute_capability);
        tracing::debug!(device = properties.name, ordinal, "opened");
        let pool = MemoryPool::new(door::device(ordinal as u32)?, context.clone());
        Ok(CudaDriver { ordinal, properties, kernels, last_launch: Mutex::new(None), pool, context })
    }

    /// The same device, planned for as if it could run the kernels of this target only.
    ///
    /// # Errors
    /// [`Error::NoDevice`] if it cannot run them.
    pub fn seen_as(mut self, arch: Arch) -> Result<Self> {
        let (major, minor) = self.properties.compute_capability;
        if !arch.runs_on(major, minor) {
            let reason = format!("it has compute capability {major}.{minor}");
            let device = format!("{}:{}", device_name(self.ordinal), arch.name());
            return Err(Error::NoDevice { device, reason });
        }
        self.properties.compute_capability = arch.compute_capability();
        Ok(self)
    }

    /// How many devices there are.
    ///
    /// # Errors
    /// [`Error::NoDevice`] if there is no driver or no GPU, with the reason; [`Error::Cuda`].
    pub fn count() -> Result<usize> {
        let no_device = |reason: String| Error::NoDevice { device: "cuda".to_owned(), reason };
        if let Some(reason) = loader::missing_driver() {
            return Err(no_device(reason));
        }
        raw::initialise().map_err(|raw::Failure { call, code }| {
            no_device(format!("{call} failed: {} ({code})", raw::error_name(code)))
        })?;
        match door::device_count()? {
            0 => Err(no_device("the CUDA driver finds no GPU".to_owned())),
            count => Ok(count as usize),
        }
    }

    /// What there is, in the order of ordinals; opens no device.
    ///
    /// # Errors
    /// As for [`CudaDriver::count`].
    pub fn devices() -> Result<Vec<DeviceProperties>> {
        (0..Self::count()?).map(|ordinal| device_properties(ordinal as u32)).collect()
    }

    /// Runs `work` with the device's context current on this thread.
    ///
    /// # Errors
    /// [`Error::Cuda`].
    pub(crate) fn with_context<T>(&self, work: impl FnOnce() -> T) -> Result<T> {
        let _entered = self.context.enter()?;
        Ok(work())
    }

    /// That there is no memory left, or what else was wrong with an allocation.
    fn no_memory(&self, bytes: usize, failure: raw::Failure) -> Error {
        if failure.code == raw::OUT_OF_MEMORY {
            return Error::OutOfMemory { device: self.properties.name.clone(), bytes };
        }
        self.late(failure)
    }

    /// What the device reports late: names the last kernel, which is the first to suspect.
    fn late(&self, failure: raw::Failure) -> Error {
        let last = self.last_launch.lock().unwrap_or_else(PoisonError::into_inner);
        failure.with_detail(match *last {
            Some(kernel) => format!("the last kernel launched was {kernel}"),
            None => String::new(),
        })
    }
}

/// The name by which users ask for the device.
fn device_name(ordinal: usize) -> String {
    format!("cuda:{ordinal}")
}

fn device_properties(ordinal: u32) -> Result<DeviceProperties> {
    use raw::attribute::*;
    let device = door::device(ordinal)?;
    let number = |attribute| raw::device_attribute(device, attribute);
    Ok(DeviceProperties {
        name: door::device_name(ordinal)?,
        compute_capability: (number(COMPUTE_CAPABILITY_MAJOR)?, number(COMPUTE_CAPABILITY_MINOR)?),
        multiprocessors: number(MULTIPROCESSORS)?,
        shared_bytes_per_block: number(SHARED_BYTES_PER_BLOCK_OPT_IN)?,
        l2_bytes: u64::from(number(L2_CACHE_BYTES)?),
    })
}

impl Driver for CudaDriver {
    fn properties(&self) -> &DeviceProperties {
        &self.properties
    }

    fn allocate(&self, bytes: usize) -> Result<DevicePointer> {
        if bytes == 0 {
            return Ok(0);
        }
        let _entered = self.context.enter()?;
        door::allocate(bytes).map_err(|failure| self.no_memory(bytes, failure))
    }

    unsafe fn free(&self, pointer: DevicePointer) -> Result<()> {
        if pointer == 0 {
            return Ok(());
        }
        let _entered = self.context.enter()?;
        // SAFETY: passed on to the caller.
        unsafe { door::free(pointer) }.map_err(|failure| self.late(failure))
    }

    fn allocate_in_order(&self, bytes: usize, stream: Stream) -> Result<DevicePointer> {
        if bytes == 0 {
            return Ok(0);
        }
        let _entered = self.context.enter()?;
        let Some(pool) = self.pool.get()? else { return self.allocate(bytes) };
        // SAFETY: the pool lives as long as this; a stream is 0 or a live handle by contract of `Stream`.
        let allocated = unsafe { raw::allocate_in_order(bytes, pool, stream.0 as raw::StreamHandle) };
        allocated.map_err(|failure| self.no_memory(bytes, failure))
    }

    unsafe fn free_in_order(&self, pointer: DevicePointer, stream: Stream) -> Result<()> {
        if pointer == 0 {
            return Ok(());
        }
        let _entered = self.context.enter()?;
        if self.pool.get()?.is_none() {
            self.synchronize(stream)?;
            // SAFETY: passed on to the caller, and all work that uses it is done.
            return unsafe { self.free(pointer) };
        }
        // SAFETY: passed on to the caller.
        let freed = unsafe { raw::free_in_order(pointer, stream.0 as raw::StreamHandle) };
        freed.map_err(|failure| self.late(failure))
    }

    fn copy_to_device(&self, destination: DevicePointer, source: &[u8]) -> Result<()> {
        if source.is_empty() {
            return Ok(());
        }
        let _entered = self.context.enter()?;
        raw::copy_to_device(destination, source).map_err(|failure| self.late(failure))?;
        // A copy from pageable memory returns when the bytes are staged. Streams that do not wait for
        // the default stream could overtake the rest of the way.
        // SAFETY: the default stream always exists.
        unsafe { raw::synchronize(std::ptr::null_mut()) }.map_err(|failure| self.late(failure))
    }

    fn copy_to_host(&self, destination: &mut [u8], source: DevicePointer, stream: Stream) -> Result<()> {
        self.synchronize(stream)?;
        if destination.is_empty() {
            return Ok(());
        }
        let _entered = self.context.enter()?;
        raw::copy_to_host(destination, source).map_err(|failure| self.late(failure))
    }

    fn prepare(&self, variants: &[KernelVariant]) -> Result<()> {
        self.kernels.prepare(variants)
    }

    unsafe fn launch(
        &self,
        variant: KernelVariant,
        blocks: u32,
        params: &[u8],
        stream: Stream,
    ) -> Result<()> {
        if blocks == 0 {
            return Ok(());
        }
        let _entered = self.context.enter()?;
        *self.last_launch.lock().unwrap_or_else(PoisonError::into_inner) = Some(variant);
        // SAFETY: passed on to the caller.
        unsafe { self.kernels.launch(variant, blocks, params, stream) }
    }

    fn encode_tensor_map(&self, description: &TensorMapDescription) -> Result<TensorMap> {
        let _entered = self.context.enter()?;
        raw::encode_tensor_map(description)
            .map_err(|failure| failure.with_detail(format!("{description:?}")))
    }

    fn synchronize(&self, stream: Stream) -> Result<()> {
        let _entered = self.context.enter()?;
        // SAFETY: a stream is 0 or a live handle by contract of `Stream`.
        unsafe { raw::synchronize(stream.0 as raw::StreamHandle) }.map_err(|failure| self.late(failure))
    }

    fn is_idle(&self, stream: Stream) -> Result<bool> {
        let _entered = self.context.enter()?;
        // SAFETY: a stream is 0 or a live handle by contract of `Stream`.
        unsafe { raw::stream_is_idle(stream.0 as raw::StreamHandle) }
            .map_err(|failure| self.late(failure))
    }

    fn create_stream(&self) -> Result<Stream> {
        let _entered = self.context.enter()?;
        Ok(Stream(raw::stream_create(true)? as usize))
    }

    fn create_stream_of_kernels(&self) -> Result<Stream> {
        let _entered = self.context.enter()?;
        Ok(Stream(raw::stream_create(false)? as usize))
    }

    unsafe fn destroy_stream(&self, stream: Stream) -> Result<()> {
        let _entered = self.context.enter()?;
        // SAFETY: passed on to the caller.
        unsafe { raw::stream_destroy(stream.0 as raw::StreamHandle) }
            .map_err(|failure| self.late(failure))
    }

    fn mark(&self, stream: Stream) -> Result<Mark> {
        let event = CudaEvent::untimed(self)?;
        // SAFETY: a stream is 0 or a live handle by contract of `Stream`.
        unsafe { event.record(stream) }?;
        Ok(Mark(Some(Arc::new(event))))
    }

    fn wait_for_mark(&self, stream: Stream, mark: &Mark) -> Result<()> {
        let event = mark.0.as_ref().and_then(|point| point.downcast_ref::<CudaEvent>());
        let Some(event) = event else { return Ok(()) };
        let _entered = self.context.enter()?;
        // SAFETY: a stream is 0 or a live handle by contract of `Stream`.
        unsafe { event.hold_back(stream) }
    }

    unsafe fn copy_from_peer(
        &self,
        destination: DevicePointer,
        (peer, source): (&dyn Driver, DevicePointer),
        bytes: usize,
        stream: Stream,
    ) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let Some(peer) = peer.as_cuda() else {
            let mut copied = vec![0; bytes];
            peer.copy_to_host(&mut copied, source, Stream::default())?;
            self.synchronize(stream)?;
            return self.copy_to_device(destination, &copied);
        };
        let (own, other) = (self.context.raw(), peer.context.raw());
        let _entered = self.context.enter()?;
        if own != other {
            // SAFETY: both are alive as long as their drivers.
            unsafe { raw::enable_peer_access(other) }?;
        }
        let handle = stream.0 as raw::StreamHandle;
        // SAFETY: passed on to the caller; contexts are alive.
        unsafe { raw::copy_from_peer((destination, own), (source, other), bytes, handle) }
            .map_err(|failure| self.late(failure))
    }

    unsafe fn copy_rows(
        &self,
        destination: RowsOf,
        source: RowsOf,
        size: [usize; 2],
        stream: Stream,
    ) -> Result<()> {
        if size.contains(&0) {
            return Ok(());
        }
        let [to, from] = [destination, source].map(|rows| (rows.pointer, rows.pitch));
        let _entered = self.context.enter()?;
        // SAFETY: passed on to the caller.
        unsafe { raw::copy_rows(to, from, size, stream.0 as raw::StreamHandle) }
            .map_err(|failure| self.late(failure))
    }

    fn as_cuda(&self) -> Option<&CudaDriver> {
        Some(self)
    }
}
