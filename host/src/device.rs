//! A machine that attention runs on: a GPU, or the emulator.

use crate::counters::{COUNTER_BYTES, Counters};
use crate::driver::{
    DevicePointer, DeviceProperties, Driver, Stream, cuda::CudaDriver, emulated::EmulatedDriver,
};
use crate::error::{Error, Result};
use crate::images::KernelImages;
use crate::plan::Kernels;
use kernels_gpu::abi::Arch;
use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Once};

/// The name of a device: `cuda:0`, `cuda:0:sm_80`, `emulated:sm_80`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeviceName {
    /// A GPU, by its ordinal.
    Cuda(usize),
    /// A GPU, by its ordinal, with the kernels of this target only.
    CudaAs(usize, Arch),
    /// The emulator of this target.
    Emulated(Arch),
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceName::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
            DeviceName::CudaAs(ordinal, arch) => write!(f, "cuda:{ordinal}:{}", arch.name()),
            DeviceName::Emulated(arch) => write!(f, "emulated:{}", arch.name()),
        }
    }
}

impl FromStr for DeviceName {
    type Err = Error;

    /// Reads `cuda`, `cuda:N`, `cuda:N:sm_80`, `emulated`, `emulated:sm_80` or `emulated:sm_90a`.
    ///
    /// # Errors
    /// [`Error::UnknownDevice`].
    fn from_str(text: &str) -> Result<Self> {
        let unknown = || Error::UnknownDevice { got: text.to_owned() };
        let arch =
            |name: &str| Arch::ALL.into_iter().find(|arch| arch.name() == name).ok_or_else(unknown);
        let ordinal = |text: &str| text.parse().map_err(|_| unknown());
        match text.split_once(':') {
            None if text == "cuda" => Ok(DeviceName::Cuda(0)),
            None if text == "emulated" => Ok(DeviceName::Emulated(Arch::Sm80)),
            Some(("cuda", rest)) => match rest.split_once(':') {
                None => Ok(DeviceName::Cuda(ordinal(rest)?)),
                Some((number, name)) => Ok(DeviceName::CudaAs(ordinal(number)?, arch(name)?)),
            },
            Some(("emulated", name)) => Ok(DeviceName::Emulated(arch(name)?)),
            _ => Err(unknown()),
        }
    }
}

/// A handle of a device; clones share it.
///
/// ```no_run
/// use finite_attention::Device;
/// let device = Device::parse("cuda:0")?;
/// println!("{}", device.properties().name);
/// # Ok::<(), finite_attention::Error>(())
/// ```
#[derive(Clone)]
pub struct Device {
    driver: Arc<dyn Driver>,
    counters: Arc<Counters>,
}

impl Device {
    /// Bytes of device memory that a device allocates for itself, when it first launches a kernel whose
    /// blocks share out their work by counters. Without them they share it in a fixed order.
    pub const COUNTER_BYTES: usize = COUNTER_BYTES;

    /// The GPU with this ordinal.
    ///
    /// # Errors
    /// [`Error::NoDevice`] if there is no driver or no such GPU.
    pub fn cuda(ordinal: usize) -> Result<Self> {
        Device::open(DeviceName::Cuda(ordinal), KernelImages::embedded())
    }

    /// A new emulator with memory of its own.
    ///
    /// # Errors
    /// Errors of the emulator.
    pub fn emulated(arch: Arch) -> Result<Self> {
        Device::open(DeviceName::Emulated(arch), KernelImages::embedded())
    }

    /// The device that `text` names: see [`DeviceName`].
    ///
    /// # Errors
    /// [`Error::UnknownDevice`], or as [`Device::open`].
    pub fn parse(text: &str) -> Result<Self> {
        Device::open(text.parse()?, KernelImages::embedded())
    }

    /// The first GPU if there is one, else the emulator: then a warning says so through `tracing`, once in a
    /// process. Who must have a GPU asks for [`Device::cuda`].
    ///
    /// # Errors
    /// As [`Device::open`]; that there is no GPU is none.
    #[expect(clippy::should_implement_trait, reason = "it can fail, the trait cannot")]
    pub fn default() -> Result<Self> {
        Device::open_any(KernelImages::embedded()).map(|(_, device)| device)
    }

    /// As [`Device::default`], with kernels from `images`; returns which device it became.
    ///
    /// # Errors
    /// As [`Device::default`].
    pub fn open_any(images: KernelImages) -> Result<(DeviceName, Self)> {
        static SAID: Once = Once::new();
        let cuda = DeviceName::Cuda(0);
        match Device::open(cuda, images.clone()) {
            Ok(device) => Ok((cuda, device)),
            Err(Error::NoDevice { reason, .. }) => {
                let emulated = DeviceName::Emulated(Arch::Sm80);
                SAID.call_once(|| tracing::warn!("{}", fallback_text(emulated, &reason)));
                Ok((emulated, Device::open(emulated, images)?))
            }
            Err(error) => Err(error),
        }
    }

    /// The device of this name, with kernels from `images`.
    ///
    /// # Errors
    /// [`Error::NoDevice`] if it is not there, or what else the driver says.
    pub fn open(name: DeviceName, images: KernelImages) -> Result<Self> {
        Ok(match name {
            DeviceName::Cuda(ordinal) => {
                Device::from_driver(Arc::new(CudaDriver::new(ordinal, images)?))
            }
            DeviceName::CudaAs(ordinal, arch) => {
                let driver = CudaDriver::new(ordinal, images)?;
                Device::from_driver(Arc::new(driver.seen_as(arch)?))
            }
            DeviceName::Emulated(arch) => {
                Device::from_driver(Arc::new(EmulatedDriver::new(arch, images)?))
            }
        })
    }

    /// A device of any other kind.
    pub fn from_driver(driver: Arc<dyn Driver>) -> Self {
        Device { counters: Arc::new(Counters::new(driver.clone())), driver }
    }

    /// Counters of launches that write to this address: see [`Counters::of`].
    pub(crate) fn counter(&self, output: DevicePointer) -> DevicePointer {
        self.counters.of(output)
    }

    /// The driver behind it.
    pub fn driver(&self) -> &dyn Driver {
        &*self.driver
    }

    /// What the planner needs to know of it.
    pub fn properties(&self) -> &DeviceProperties {
        self.driver.properties()
    }

    /// Loads the kernels of a plan that are not loaded yet, each on a thread of its own, and waits for that:
    /// the first launch then takes no longer than others. Those that are not built in assembled for the
    /// device are compiled by the driver, which takes a few tenths of a second each, unless its cache has
    /// them.
    ///
    /// ```
    /// # use finite_attention::*;
    /// # fn main() -> Result<()> {
    /// let device = Device::parse("emulated:sm_90a")?;
    /// let layout = Layout::bshd([1, 512, 8, 128]);
    /// let problem = ForwardProblem::new(Dtype::Bf16, layout, layout, layout).causal();
    /// // How tensors are aligned decides which kernels run; nothing is read.
    /// let pointers = ForwardPointers { q: 256, k: 256, v: 256, o: 256, lse: 256, ..Default::default() };
    /// let plan = plan::plan_forward(&problem.validate()?, device.properties(), &pointers)?;
    /// device.prepare(&plan.expect("there are rows"))
    /// # }
    /// ```
    ///
    /// # Errors
    /// That of the first kernel that cannot be loaded.
    pub fn prepare(&self, plan: &impl Kernels) -> Result<()> {
        self.driver.prepare(&plan.kernels())
    }

    /// Waits for everything queued on `stream`.
    ///
    /// # Errors
    /// What went wrong on the device since the last call.
    pub fn synchronize(&self, stream: Stream) -> Result<()> {
        self.driver.synchronize(stream)
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Device").field(&self.properties().name).finish()
    }
}

/// What a program that did not ask for the emulator should know.
fn fallback_text(emulated: DeviceName, reason: &str) -> String {
    format!(
        "no GPU ({reason}): everything runs in the emulator, {emulated}, which checks every access and is \
         slower by far"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn falling_back_to_the_emulator_is_said_with_its_reason() {
        assert_eq!(
            fallback_text(DeviceName::Emulated(Arch::Sm80), "no CUDA driver"),
            "no GPU (no CUDA driver): everything runs in the emulator, emulated:sm_80, which checks every \
             access and is slower by far"
        );
    }

    #[test]
    fn a_name_is_what_its_text_parses_to() {
        for name in
            [DeviceName::Cuda(0), DeviceName::CudaAs(7, Arch::Sm80), DeviceName::Emulated(Arch::Sm90a)]
        {
            assert_eq!(name.to_string().parse(), Ok(name));
        }
        assert_eq!("cuda".parse(), Ok(DeviceName::Cuda(0)));
        assert_eq!("emulated".parse(), Ok(DeviceName::Emulated(Arch::Sm80)));
        for text in ["cuda:x", "cuda:0:", "cuda:0:sm_70", "emulated:", "gpu"] {
            assert!(text.parse::<DeviceName>().is_err(), "{text}");
        }
    }
}
