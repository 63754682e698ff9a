//! What is asked of a forward pass and of its gradients.

use finite_attention::{Arch, BackwardProblem, Device, Result};
use std::sync::OnceLock;

/// A problem whose tensors are dense, and where it is computed.
#[derive(Clone, Debug)]
pub struct Pass {
    /// Forward and backward.
    pub problem: BackwardProblem,
    device: Option<Device>,
}

impl Pass {
    pub fn new(problem: BackwardProblem, device: Option<Device>) -> Self {
        Pass { problem, device }
    }

    /// The device for tensors of the host: what was asked for, or an emulator that the process shares.
    pub fn device(&self) -> Result<Device> {
        static EMULATOR: OnceLock<Device> = OnceLock::new();
        if let Some(device) = self.device.as_ref().or(EMULATOR.get()) {
            return Ok(device.clone());
        }
        let emulator = Device::emulated(Arch::Sm80)?;
        Ok(EMULATOR.get_or_init(|| emulator).clone())
    }
}
