//! A device that remembers which kernels it was asked to run, or that is less than it could be.

use finite_attention::driver::{
    DevicePointer, DeviceProperties, Driver, Queued, Stream, TensorMapDescription,
};
use finite_attention::{Device, Error};
use kernels_gpu::abi::{
    Arch, BackwardPartsParams, Family, ForwardMmaSplitParams, ForwardSplitParams, KernelSpec,
    KernelVariant, TensorMap,
};
use std::collections::BTreeSet;
use std::mem::offset_of;
use std::sync::{Arc, Mutex, PoisonError};

/// Names of the kernels that a device was asked to run, and what those of f32 in two parts left behind.
#[derive(Clone, Debug, Default)]
pub struct Launched {
    names: Arc<Mutex<BTreeSet<&'static str>>>,
    turns: Arc<Mutex<Vec<[u32; 2]>>>,
}

impl Launched {
    /// The names so far.
    pub fn names(&self) -> BTreeSet<&'static str> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Of every forward and backward of f32 in two parts so far, both numbers of [`kernels_gpu::abi::SplitParams::turn`]: how
    /// often its operands, and its outputs, were found to be not as exact as f32. With both 0 what was computed with
    /// parts is the result, and else what fused multiply-adds computed.
    pub fn turns(&self) -> Vec<[u32; 2]> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The same device, and the names of the kernels that it runs from now on.
pub fn recording(device: &Device) -> (Device, Launched) {
    let launched = Launched::default();
    let properties = device.properties().clone();
    let recorder = Recorder { launched: launched.clone(), ..Recorder::new(device, properties) };
    (Device::from_driver(Arc::new(recorder)), launched)
}

/// The same device, planned for as if it ran nothing newer than `arch`, and the names as [`recording`] gives them.
pub fn recording_as(device: &Device, arch: Arch) -> (Device, Launched) {
    let launched = Launched::default();
    let properties = DeviceProperties {
        compute_capability: arch.compute_capability(),
        ..device.properties().clone()
    };
    let recorder = Recorder { launched: launched.clone(), ..Recorder::new(device, properties) };
    (Device::from_driver(Arc::new(recorder)), launched)
}

/// The same device, planned for as if it had one multiprocessor and a cache of 4 KiB: blocks with more work each, and
/// many waves of heads.
pub fn small(device: &Device) -> Device {
    of_size(device, 1)
}

/// As [`small`], with so many multiprocessors.
pub fn of_size(device: &Device, multiprocessors: u32) -> Device {
    Device::from_driver(Arc::new(Recorder::new(device, properties_of_size(device, multiprocessors))))
}

/// As [`of_size`], with no memory for the counters by which blocks share out their work.
pub fn without_counters(device: &Device, multiprocessors: u32) -> Device {
    let properties = properties_of_size(device, multiprocessors);
    let recorder = Recorder { has_counters: false, ..Recorder::new(device, properties) };
    Device::from_driver(Arc::new(recorder))
}

/// The same device, with counters that say, for the output of its first launch, that blocks have taken so many tiles
/// beyond the first of each.
pub fn having_taken(device: &Device, tiles: u32) -> Device {
    let recorder = Recorder { taken: tiles, ..Recorder::new(device, device.properties().clone()) };
    Device::from_driver(Arc::new(recorder))
}

/// The same device, planned for as if a block had no more shared memory than `kernel` needs: where the planner
/// would prefer a kernel that needs more, it takes this one.
pub fn with_room_for(device: &Device, kernel: &KernelSpec) -> Device {
    let properties =
        DeviceProperties { shared_bytes_per_block: kernel.shared_bytes, ..device.properties().clone() };
    Device::from_driver(Arc::new(Recorder::new(device, properties)))
}

fn properties_of_size(device: &Device, multiprocessors: u32) -> DeviceProperties {
    DeviceProperties { multiprocessors, l2_bytes: 4096, ..device.properties().clone() }
}

struct Recorder {
    device: Device,
    properties: DeviceProperties,
    launched: Launched,
    has_counters: bool,
    taken: u32,
}

impl Recorder {
    fn new(device: &Device, properties: DeviceProperties) -> Self {
        let launched = Launched::default();
        Recorder { device: device.clone(), properties, launched, has_counters: true, taken: 0 }
    }

    /// Keeps what a queue that has run has left of the turn, where a kernel of it multiplies parts.
    fn keep_turn(&self, queue: &[Queued<'_>], stream: Stream) -> Result<(), Error> {
        let Some(of_parts) = queue.iter().find(|queued| queued.variant.kernel.multiplies_parts) else {
            return Ok(());
        };
        let KernelSpec { family, arch, .. } = *of_parts.variant.kernel;
        let at = match (family, arch) {
            (Family::Backward, _) => offset_of!(BackwardPartsParams, turn),
            (_, Arch::Sm80) => offset_of!(ForwardMmaSplitParams, split.turn),
            (_, Arch::Sm90a) => offset_of!(ForwardSplitParams, split.turn),
        };
        let address = of_parts.params[at..at + 8].try_into().expect("eight bytes");
        let mut turn = [0; 8];
        self.device.driver().copy_to_host(&mut turn, u64::from_le_bytes(address), stream)?;
        let turn = u64::from_le_bytes(turn);
        let turn = [turn as u32, (turn >> 32) as u32];
        self.launched.turns.lock().unwrap_or_else(PoisonError::into_inner).push(turn);
        Ok(())
    }
}

impl Driver for Recorder {
    fn properties(&self) -> &DeviceProperties {
        &self.properties
    }

    fn allocate(&self, bytes: usize) -> Result<DevicePointer, Error> {
        if !self.has_counters && bytes == Device::COUNTER_BYTES {
            return Err(Error::OutOfMemory { device: self.properties.name.clone(), bytes });
        }
        self.device.driver().allocate(bytes)
    }

    unsafe fn free(&self, pointer: DevicePointer) -> Result<(), Error> {
        // SAFETY: passed on to the caller.
        unsafe { self.device.driver().free(pointer) }
    }

    fn copy_to_device(&self, destination: DevicePointer, source: &[u8]) -> Result<(), Error> {
        if self.taken > 0 && source.len() == Device::COUNTER_BYTES {
            let mut counters = source.to_vec();
            counters[..4].copy_from_slice(&self.taken.to_le_bytes());
            return self.device.driver().copy_to_device(destination, &counters);
        }
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
        variant: KernelVariant,
        blocks: u32,
        params: &[u8],
        stream: Stream,
    ) -> Result<(), Error> {
        self.launched.names.lock().unwrap_or_else(PoisonError::into_inner).insert(variant.kernel.name);
        // SAFETY: passed on to the caller.
        unsafe { self.device.driver().launch(variant, blocks, params, stream) }
    }

    unsafe fn launch_in_order(&self, queue: &[Queued<'_>], stream: Stream) -> Result<(), Error> {
        let names = queue.iter().map(|queued| queued.variant.kernel.name);
        self.launched.names.lock().unwrap_or_else(PoisonError::into_inner).extend(names);
        // SAFETY: passed on to the caller.
        unsafe { self.device.driver().launch_in_order(queue, stream)? };
        self.keep_turn(queue, stream)
    }

    fn encode_tensor_map(&self, description: &TensorMapDescription) -> Result<TensorMap, Error> {
        self.device.driver().encode_tensor_map(description)
    }

    fn synchronize(&self, stream: Stream) -> Result<(), Error> {
        self.device.synchronize(stream)
    }
}
