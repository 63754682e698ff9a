//! The device that the tests run on.

use finite_attention::device::DeviceName;
use finite_attention::driver::emulated::{EmulatedDriver, Options};
use finite_attention::{Device, KernelImages};
use kernels_gpu::abi::Arch;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// One test at a time has the GPU: a fault of one would otherwise be reported by another.
static GPU: Mutex<()> = Mutex::new(());

/// A device of one test. On a GPU it belongs to that test alone until it is dropped.
pub struct TestDevice {
    device: Device,
    _gpu: Option<MutexGuard<'static, ()>>,
}

impl Deref for TestDevice {
    type Target = Device;

    fn deref(&self) -> &Device {
        &self.device
    }
}

/// The name that `FATTN_DEVICE` gives.
///
/// # Panics
/// If the text names no device.
pub fn name() -> DeviceName {
    match std::env::var("FATTN_DEVICE") {
        Ok(text) => text.parse().unwrap_or_else(|error| panic!("FATTN_DEVICE: {error}")),
        Err(_) => DeviceName::Emulated(Arch::Sm80),
    }
}

/// How many schedules the emulator tries on what ships: `FATTN_SCHEDULES`, at least the latest and the eager one.
///
/// # Panics
/// If the variable is no number.
pub fn schedule_count() -> u64 {
    let Ok(text) = std::env::var("FATTN_SCHEDULES") else { return 3 };
    text.parse().unwrap_or_else(|error| panic!("FATTN_SCHEDULES: {error}"))
}

/// The target of the emulator, if `FATTN_DEVICE` names it.
pub fn emulated_arch() -> Option<Arch> {
    match name() {
        DeviceName::Cuda(_) | DeviceName::CudaAs(..) => None,
        DeviceName::Emulated(arch) => Some(arch),
    }
}

/// The targets of the emulator that properties draw from: that of `FATTN_DEVICE`, all if it is not set, none on a GPU.
pub fn emulated_archs() -> Vec<Arch> {
    match std::env::var_os("FATTN_DEVICE") {
        Some(_) => emulated_arch().into_iter().collect(),
        None => Arch::ALL.to_vec(),
    }
}

/// The target that a device is an emulator of, or would be.
pub fn arch_of(device: &Device) -> Arch {
    let (major, minor) = device.properties().compute_capability;
    if Arch::Sm90a.runs_on(major, minor) { Arch::Sm90a } else { Arch::Sm80 }
}

/// Opens the device that `FATTN_DEVICE` names, with the kernels that ship.
///
/// # Panics
/// If it is not there.
pub fn open() -> TestDevice {
    open_with(name(), KernelImages::embedded())
}

/// Opens this device with these kernels.
///
/// # Panics
/// If it is not there.
pub fn open_with(name: DeviceName, images: KernelImages) -> TestDevice {
    let gpu = match name {
        DeviceName::Cuda(_) | DeviceName::CudaAs(..) => {
            Some(GPU.lock().unwrap_or_else(PoisonError::into_inner))
        }
        DeviceName::Emulated(_) => None,
    };
    let device = Device::open(name, images).unwrap_or_else(|error| panic!("{error}"));
    TestDevice { device, _gpu: gpu }
}

/// An emulator with these kernels and options.
///
/// # Panics
/// If the emulator refuses.
pub fn emulated(arch: Arch, images: KernelImages, options: Options) -> Device {
    let driver = EmulatedDriver::new(arch, images).unwrap_or_else(|error| panic!("{error}"));
    Device::from_driver(Arc::new(driver.with_options(options)))
}

/// Tests the device, or where that is emulated, an emulator of each target that is asked for.
pub fn on_each(test: impl Fn(&Device)) {
    if emulated_arch().is_none() {
        return test(&open());
    }
    for arch in emulated_archs() {
        test(&emulated(arch, KernelImages::embedded(), Options::default()));
    }
}
