//! One small trait between attention and the machine, and its two backends.

pub mod cuda;
pub mod emulated;

use crate::error::Error;
use kernels_gpu::abi::KernelSpec;

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

/// A device that holds memory and runs kernels. Implementations: `cuda` (cust), `emulated`
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

    /// Copies host bytes to device memory; done when it returns.
    fn copy_to_device(&self, destination: DevicePointer, source: &[u8]) -> Result<(), Error>;

    /// Copies device memory to the host after all work queued on `stream`; done when it returns.
    fn copy_to_host(
        &self,
        destination: &mut [u8],
        source: DevicePointer,
        stream: Stream,
    ) -> Result<(), Error>;

    /// Launches one kernel with a one-dimensional grid. `params` are the bytes of its only, by-value
    /// parameter.
    ///
    /// # Safety
    /// Every pointer inside `params` is valid for what the kernel does with it.
    unsafe fn launch(
        &self,
        kernel: &KernelSpec,
        blocks: u32,
        params: &[u8],
        stream: Stream,
    ) -> Result<(), Error>;

    /// Waits for everything queued on `stream`, and reports what went wrong since the last call.
    fn synchronize(&self, stream: Stream) -> Result<(), Error>;
}
