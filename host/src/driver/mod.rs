//! One small trait between attention and the machine, and its two backends.

pub mod cuda;
#[cfg(test)]
pub mod deferred;
pub mod emulated;

use crate::error::Error;
use kernels_gpu::abi::{KernelVariant, TensorMap};
use std::any::Any;
use std::sync::Arc;

/// An address in device memory (of the GPU, or of the emulator's memory).
pub type DevicePointer = u64;

/// Work queue of a device: a raw `CUstream` on CUDA, ignored by the emulator (which runs everything in
/// order).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Stream(pub usize);

/// What the planner needs to know of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceProperties {
    /// Human-readable name, e.g. `NVIDIA H200` or `ptx-emulator (sm_80)`.
    pub name: String,
    /// Compute capability (major, minor).
    pub compute_capability: (u32, u32),
    /// Number of streaming multiprocessors.
    pub multiprocessors: u32,
    /// Largest dynamic shared memory of a block, bytes, after opting in.
    pub shared_bytes_per_block: u32,
    /// Size of the level-2 cache, bytes.
    pub l2_bytes: u64,
}

/// How much of device memory the level-2 cache fetches when the tensor memory accelerator reads from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum L2Promotion {
    /// 128 bytes, a row of a box: for what is read once.
    Bytes128,
    /// 256 bytes: for what several blocks read.
    Bytes256,
}

/// A tensor of 16-bit elements as the tensor memory accelerator is to see it, innermost dimension first; its
/// boxes have the 128-byte swizzle in shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorMapDescription {
    /// Address of the first element, a multiple of 16.
    pub address: DevicePointer,
    /// Elements in each dimension, at least 1 and at most 2^32.
    pub dims: [u64; 4],
    /// Bytes from one element to the next in each dimension but the innermost: multiples of 16 below 2^40.
    pub strides_bytes: [u64; 3],
    /// Elements of a box in each dimension.
    pub box_dims: [u32; 4],
    /// What is fetched at a time; results are the same.
    pub l2_promotion: L2Promotion,
}

/// A point in the work queued on a stream: see [`Driver::mark`]. Of a device that does everything at once,
/// nothing; otherwise what the driver that made it knows it by.
#[derive(Clone, Default)]
pub struct Mark(pub(crate) Option<Arc<dyn Any + Send + Sync>>);

/// One kernel of several that are launched in order: see [`Driver::launch`].
#[derive(Clone, Copy, Debug)]
pub struct Queued<'a> {
    /// The kernel and its switches.
    pub variant: KernelVariant,
    /// Blocks of its grid.
    pub blocks: u32,
    /// The bytes of its parameter.
    pub params: &'a [u8],
}

/// Rows in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowsOf {
    /// The address of the first one.
    pub pointer: DevicePointer,
    /// Bytes from one row to the next.
    pub pitch: usize,
}

/// A device that holds memory and runs kernels. Implementations: `cuda` (the CUDA driver), `emulated`
/// (ptx-emulator).
pub trait Driver: Send + Sync {
    /// Facts for the planner.
    fn properties(&self) -> &DeviceProperties;

    /// Allocates device memory, aligned to at least 256 bytes. The contents are undefined (and on the
    /// emulator count as uninitialised). Zero bytes is allowed and gives a pointer that must not be
    /// dereferenced.
    fn allocate(&self, bytes: usize) -> Result<DevicePointer, Error>;

    /// Frees what [`Driver::allocate`] returned.
    ///
    /// # Safety
    /// `pointer` came from `allocate` of this driver, was not freed before, and no work in flight uses
    /// it.
    unsafe fn free(&self, pointer: DevicePointer) -> Result<(), Error>;

    /// Allocates device memory, as [`Driver::allocate`] does, for what is queued on `stream` from now on.
    /// Waits for nothing, and may be captured in a graph, where the device can do that.
    fn allocate_in_order(&self, bytes: usize, stream: Stream) -> Result<DevicePointer, Error> {
        let _ = stream;
        self.allocate(bytes)
    }

    /// Frees what [`Driver::allocate_in_order`] returned, behind all that is queued on `stream`.
    ///
    /// # Safety
    /// `pointer` came from `allocate_in_order` of this driver for this stream, was not freed before, and no
    /// work uses it but what is queued on `stream` before.
    unsafe fn free_in_order(&self, pointer: DevicePointer, stream: Stream) -> Result<(), Error> {
        self.synchronize(stream)?;
        // SAFETY: passed on to the caller, and all work that uses it is done.
        unsafe { self.free(pointer) }
    }

    /// Copies host bytes to device memory; done when it returns.
    fn copy_to_device(&self, destination: DevicePointer, source: &[u8]) -> Result<(), Error>;

    /// Copies device memory to the host after all work queued on `stream`; done when it returns.
    fn copy_to_host(
        &self,
        destination: &mut [u8],
        source: DevicePointer,
        stream: Stream,
    ) -> Result<(), Error>;

    /// Loads kernels that are not loaded yet, side by side, so that their first launch need not.
    ///
    /// # Errors
    /// That of the first that cannot be loaded.
    fn prepare(&self, variants: &[KernelVariant]) -> Result<(), Error> {
        let _ = variants;
        Ok(())
    }

    /// Launches one kernel with a one-dimensional grid. `params` are the bytes of its only, by-value
    /// parameter.
    ///
    /// # Safety
    /// Every pointer inside `params` is valid for what the kernel does with it.
    unsafe fn launch(
        &self,
        variant: KernelVariant,
        blocks: u32,
        params: &[u8],
        stream: Stream,
    ) -> Result<(), Error>;

    /// Launches kernels in order. One that
    /// [may start early](kernels_gpu::abi::KernelSpec::may_start_early) may start while the
    /// one before it ends, if they come to the device together.
    ///
    /// # Errors
    /// That of the first that fails; those behind it are not launched, or their results mean nothing.
    ///
    /// # Safety
    /// As for [`Driver::launch`], of each.
    unsafe fn launch_in_order(&self, queue: &[Queued<'_>], stream: Stream) -> Result<(), Error> {
        queue.iter().try_for_each(|&Queued { variant, blocks, params }| {
            // SAFETY: passed on to the caller.
            unsafe { self.launch(variant, blocks, params, stream) }
        })
    }

    /// Encodes a tensor map, for a kernel's parameters. Needs no memory of the device and no time of it.
    ///
    /// # Errors
    /// What the driver does not accept.
    fn encode_tensor_map(&self, description: &TensorMapDescription) -> Result<TensorMap, Error>;

    /// Waits for everything queued on `stream`, and reports what went wrong since the last call.
    fn synchronize(&self, stream: Stream) -> Result<(), Error>;

    /// Whether all that is queued on `stream` is done; waits for nothing.
    ///
    /// # Errors
    /// What went wrong on the device since the last call.
    fn is_idle(&self, stream: Stream) -> Result<bool, Error> {
        self.synchronize(stream).map(|()| true)
    }

    /// A stream beside the default one, of high priority: for what is to go on beside kernels.
    fn create_stream(&self) -> Result<Stream, Error> {
        Ok(Stream::default())
    }

    /// A stream beside the default one, of the same priority: for kernels that may run at the same time.
    fn create_stream_of_kernels(&self) -> Result<Stream, Error> {
        Ok(Stream::default())
    }

    /// Destroys what [`Driver::create_stream`] or [`Driver::create_stream_of_kernels`] gave, behind all that
    /// is queued on it.
    ///
    /// # Safety
    /// `stream` came from one of these of this driver and is not used again.
    unsafe fn destroy_stream(&self, stream: Stream) -> Result<(), Error> {
        let _ = stream;
        Ok(())
    }

    /// The point behind all that is queued on `stream`.
    fn mark(&self, stream: Stream) -> Result<Mark, Error> {
        let _ = stream;
        Ok(Mark::default())
    }

    /// What is queued on `stream` from now on waits for a mark of this device or another one.
    fn wait_for_mark(&self, stream: Stream, mark: &Mark) -> Result<(), Error> {
        let _ = (stream, mark);
        Ok(())
    }

    /// Queues a copy from the memory of `peer`, which may be this device.
    ///
    /// # Safety
    /// Both ranges are there until the copy is done, nobody writes the source, and nobody uses the
    /// destination.
    unsafe fn copy_from_peer(
        &self,
        destination: DevicePointer,
        (peer, source): (&dyn Driver, DevicePointer),
        bytes: usize,
        stream: Stream,
    ) -> Result<(), Error> {
        let mut copied = vec![0; bytes];
        peer.copy_to_host(&mut copied, source, Stream::default())?;
        self.synchronize(stream)?;
        self.copy_to_device(destination, &copied)
    }

    /// Queues a copy of rows of some bytes within the memory of this device.
    ///
    /// # Safety
    /// As for [`Driver::copy_from_peer`].
    unsafe fn copy_rows(
        &self,
        destination: RowsOf,
        source: RowsOf,
        [rows, bytes]: [usize; 2],
        stream: Stream,
    ) -> Result<(), Error> {
        let mut copied = vec![0; bytes];
        self.synchronize(stream)?;
        for row in 0..rows {
            let at = |of: RowsOf| of.pointer + (row * of.pitch) as u64;
            self.copy_to_host(&mut copied, at(source), stream)?;
            self.copy_to_device(at(destination), &copied)?;
        }
        Ok(())
    }

    /// The device of a test that it is, if it is one.
    #[cfg(test)]
    fn as_deferred(&self) -> Option<&deferred::DeferredDriver> {
        None
    }

    /// The GPU that it is, if it is one.
    fn as_cuda(&self) -> Option<&cuda::CudaDriver> {
        None
    }
}
