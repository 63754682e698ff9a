//! What is asked of a forward pass and of its gradients.

use finite_attention::{Arch, BackwardProblem, Device, Result};
use std::sync::{Arc, OnceLock};

/// A problem whose tensors are dense, and where it is computed.
#[derive(Clone, Debug)]
pub struct Pass {
    /// Forward and backward.
    pub problem: BackwardProblem,
    /// Of packed sequences in q and in k; else there are none.
    pub offsets: [Arc<[i32]>; 2],
    device: Option<Device>,
}

impl Pass {
    pub fn new(problem: BackwardProblem, offsets: [Arc<[i32]>; 2], device: Option<Device>) -> Self {
        Pass { problem, offsets, device }
    }

    /// With the gradients of bias and sinks only where they are wanted.
    pub fn wanting(self, d_bias: bool, d_sinks: bool) -> Self {
        let problem = BackwardProblem {
            d_bias: self.problem.d_bias.filter(|_| d_bias),
            wants_d_sinks: self.problem.wants_d_sinks && d_sinks,
            ..self.problem
        };
        Pass { problem, ..self }
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
