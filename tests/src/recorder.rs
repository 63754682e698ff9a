//! A device that remembers which kernels it was asked to run, or that says it is a smaller one.

use finite_attention::driver::{DevicePointer, DeviceProperties, Driver, Stream, TensorMapDescription};
use finite_attention::{Device, Error};
use kernels_gpu::abi::{Arch, KernelSpec, TensorMap};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

/// Names of the kernels that a device was asked to run.
#[derive(Clone, Debug, Default)]
pub struct Launched(Arc<Mutex<BTreeSet<&'static str>>>);

impl Launched {
    /// The names so far.
    pub fn names(&self) -> BTreeSet<&'static str> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The same device, and the names of the kernels that it runs from now on.
pub fn recording(device: &Device) -> (Device, Launched) {
    let launched = Launched::default();
    let properties = device.properties().clone();
    let recorder = Recorder { device: device.clone(), properties, launched: launched.clone() };
    (Device::from_driver(Arc::new(recorder)), launched)
}

/// The same device, planned for as if it ran nothing newer than `arch`, and the names as [`recording`] gives them.
pub fn recording_as(device: &Device, arch: Arch) -> (Device, Launched) {
    let launched = Launched::default();
    let properties = DeviceProperties {
        compute_capability: arch.compute_capability(),
        ..device.properties().clone()
    };
    let recorder = Recorder { device: device.clone(), properties, launched: launched.clone() };
    (Device::from_driver(Arc::new(recorder)), launched)
}

/// The same device, planned for as if it had one multiprocessor and a cache of 4 KiB: blocks with more work each, and
/// many waves of heads.
pub fn small(device: &Device) -> Device {
    of_size(device, 1)
}

/// As [`small`], with so many multiprocessors.
pub fn of_size(device: &Device, multiprocessors: u32) -> Device {
    let properties = DeviceProperties { multiprocessors, l2_bytes: 4096, ..device.properties().clone() };
    let launched = Launched::default();
    Device::from_driver(Arc::new(Recorder { device: device.clone(), properties, launched }))
}

struct Recorder {
    device: Device,
    properties: DeviceProperties,
    launched: Launched,
}

impl Driver for Recorder {
    fn properties(&self) -> &DeviceProperties {
        &self.properties
    }

    fn allocate(&self, bytes: usize) -> Result<DevicePointer, Error> {
        self.device.driver().allocate(bytes)
    }

    unsafe fn free(&self, pointer: DevicePointer) -> Result<(), Error> {
        // SAFETY: passed on to the caller.
        unsafe { self.device.driver().free(pointer) }
    }

    fn copy_to_device(&self, destination: DevicePointer, source: &[u8]) -> Result<(), Error> {
        self.device.driver().copy_to_device(destination, source)
    }

    fn copy_to_host(
        &self,
        destination: &mut [u8],
        source: DevicePointer,
        stream: Stream,
    ) -> Result<(), Error> {
        self.device.driver().copy_to_host(destination, source, stream)
    }

    unsafe fn launch(
        &self,
        kernel: &KernelSpec,
        blocks: u32,
        params: &[u8],
        stream: Stream,
    ) -> Result<(), Error> {
        self.launched.0.lock().unwrap_or_else(PoisonError::into_inner).insert(kernel.name);
        // SAFETY: passed on to the caller.
        unsafe { self.device.driver().launch(kernel, blocks, params, stream) }
    }

    fn encode_tensor_map(&self, description: &TensorMapDescription) -> Result<TensorMap, Error> {
        self.device.driver().encode_tensor_map(description)
    }

    fn synchronize(&self, stream: Stream) -> Result<(), Error> {
        self.device.synchronize(stream)
    }
}
