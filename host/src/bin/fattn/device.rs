//! The options that choose a device and its kernels.

use anyhow::{Context, Result};
use clap::Args;
use finite_attention::device::DeviceName;
use finite_attention::{Device, KernelImages};
use std::path::{Path, PathBuf};

/// Where to run.
#[derive(Args)]
pub struct DeviceArguments {
    /// cuda, cuda:N, cuda:N:sm_80 (only the kernels of that target), emulated, emulated:sm_80 or
    /// emulated:sm_90a; the first GPU if there is one, else the emulator.
    #[arg(long)]
    pub device: Option<DeviceName>,
    /// A PTX file whose kernels replace those built in of the same names; at least one of them.
    #[arg(long, value_name = "FILE.ptx")]
    pub kernels: Option<PathBuf>,
}

impl DeviceArguments {
    /// The kernels built in, or those of `--kernels`.
    pub fn images(&self) -> Result<KernelImages> {
        let Some(path) = &self.kernels else { return Ok(KernelImages::embedded()) };
        let text =
            std::fs::read_to_string(path).with_context(|| format!("--kernels {}", path.display()))?;
        KernelImages::replacing(&text).with_context(|| format!("--kernels {}", path.display()))
    }

    /// The file that is read, if any, with the option that names it.
    pub fn inputs(&self) -> Option<(&'static str, &Path)> {
        Some(("--kernels", self.kernels.as_deref()?))
    }

    /// The device, and which one it became.
    pub fn open(&self) -> Result<(DeviceName, Device)> {
        let images = self.images()?;
        Ok(match self.device {
            Some(name) => (name, Device::open(name, images)?),
            None => Device::open_any(images)?,
        })
    }
}
