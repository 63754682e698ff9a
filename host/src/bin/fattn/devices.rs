//! `fattn devices`: what there is to run on. Works without a driver.

use crate::console::outln;
use anyhow::Result;
use finite_attention::device::DeviceName;
use finite_attention::{Device, Error, KernelImages};
use kernels_gpu::abi::Arch;

/// Prints one line per device: its name, then what it is or why it cannot be used.
pub fn run() -> Result<()> {
    let images = KernelImages::embedded();
    for ordinal in 0.. {
        match Device::open(DeviceName::Cuda(ordinal), images.clone()) {
            Ok(device) => describe(DeviceName::Cuda(ordinal), &device)?,
            // After the last GPU; before the first one it is worth saying.
            Err(Error::NoDevice { .. }) if ordinal > 0 => break,
            Err(Error::NoDevice { reason, .. }) => {
                outln!("cuda            none: {reason}")?;
                break;
            }
            Err(error) => {
                outln!("{:<15} {error}", DeviceName::Cuda(ordinal).to_string())?;
                break;
            }
        }
    }
    for emulated in Arch::ALL.map(DeviceName::Emulated) {
        describe(emulated, &Device::open(emulated, images.clone())?)?;
    }
    outln!("{} kernels built in", images.names().len())?;
    Ok(())
}

fn describe(name: DeviceName, device: &Device) -> Result<()> {
    let facts = device.properties();
    let (major, minor) = facts.compute_capability;
    outln!(
        "{:<15} {}, compute capability {major}.{minor}, {} multiprocessors, {} KiB shared per block, \
         {} MiB L2",
        name.to_string(),
        facts.name,
        facts.multiprocessors,
        facts.shared_bytes_per_block >> 10,
        facts.l2_bytes >> 20
    )?;
    Ok(())
}
