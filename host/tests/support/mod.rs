//! A device in plain host memory that computes attention, in f64, from the launch parameters alone, and
//! can be told to do it wrongly: so that the library's errors and the checker itself can be tested
//! without emulator or GPU.
#![allow(dead_code)] // each test file uses its own part

mod backward;
mod forward;
mod memory;
mod scores;

use finite_attention::driver::{DevicePointer, DeviceProperties, Driver, Stream, TensorMapDescription};
use finite_attention::{Device, Error};
use kernels_gpu::abi::{Family, KernelVariant, TensorMap};
use memory::Memory;
use std::sync::{Arc, Mutex};

/// What the device does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// Every allocation fails.
    OutOfMemory,
    /// Every allocation succeeds, and no memory is behind it.
    GivesAddressesOnly,
    /// Every launch fails.
    Launch,
    /// The last query row is not written.
    SkipsLastRow,
    /// One row more than there is of the last head is written.
    WritesPastTheEnd,
    /// The key after the last one takes part, as if it were zero times poison.
    ReadsPastTheEnd,
    /// The diagonal is one too far to the right.
    SeesTheFuture,
    /// lse is in base 2.
    LseInBaseTwo,
    /// A dead row's lse is the lowest finite number.
    LowestLse,
    /// Probabilities are not rescaled by their sum.
    Unnormalised,
    /// Query heads take key heads in turn.
    WrongKeyHead,
    /// The last key of a sequence gets no dk.
    SkipsLastKey,
    /// dLSE is not looked at.
    IgnoresLseGradient,
    /// dq is not scaled.
    UnscaledGradient,
    /// The accumulators of dq are not zeroed.
    DirtyWorkspace,
    /// One element more than the workspace has is written.
    WritesPastTheWorkspace,
    /// Dead rows have probabilities of 1.
    LivingDeadRows,
    /// Scores are not capped.
    Uncapped,
    /// ds is that of the capped score, not of the product.
    WithoutSlope,
    /// All batches have the bias of the first.
    BiasOfFirstSequence,
    /// The boolean mask hides nothing.
    Unmasked,
    /// No slope of ALiBi is subtracted.
    IgnoresSlopes,
    /// Sinks are not in the sum.
    IgnoresSinks,
    /// Nothing is dropped.
    IgnoresDropout,
    /// What dropout leaves does not grow.
    UnscaledDropout,
    /// All batches drop what the first does.
    DropsAlikeInEveryBatch,
    /// The backward drops other pairs than the forward.
    DropsOthersBackward,
    /// The gradient of the bias has the scale.
    ScaledBiasGradient,
    /// The gradient of sinks has the wrong sign.
    NegatedSinkGradient,
}

pub struct MockDriver {
    properties: DeviceProperties,
    memory: Mutex<Memory>,
    fault: Fault,
}

/// A device that does nothing but this wrong.
pub fn device(fault: Fault) -> Device {
    device_with(fault, (8, 0))
}

pub fn device_with(fault: Fault, compute_capability: (u32, u32)) -> Device {
    let properties = DeviceProperties {
        name: "mock".into(),
        compute_capability,
        multiprocessors: 1,
        shared_bytes_per_block: 227 << 10,
        l2_bytes: 1 << 20,
    };
    Device::from_driver(Arc::new(MockDriver { properties, memory: Mutex::default(), fault }))
}

impl Driver for MockDriver {
    fn properties(&self) -> &DeviceProperties {
        &self.properties
    }

    fn allocate(&self, bytes: usize) -> Result<DevicePointer, Error> {
        if self.fault == Fault::OutOfMemory && bytes > 0 {
            return Err(Error::OutOfMemory { device: "mock".into(), bytes });
        }
        let mut memory = self.memory.lock().unwrap();
        Ok(memory.allocate(if self.fault == Fault::GivesAddressesOnly { 4096 } else { bytes }))
    }

    unsafe fn free(&self, _: DevicePointer) -> Result<(), Error> {
        Ok(())
    }

    fn copy_to_device(&self, destination: DevicePointer, source: &[u8]) -> Result<(), Error> {
        self.memory.lock().unwrap().bytes_mut(destination, source.len()).copy_from_slice(source);
        Ok(())
    }

    fn copy_to_host(
        &self,
        destination: &mut [u8],
        source: DevicePointer,
        _: Stream,
    ) -> Result<(), Error> {
        let memory = self.memory.lock().unwrap();
        destination.copy_from_slice(memory.bytes(source, destination.len()));
        Ok(())
    }

    unsafe fn launch(
        &self,
        variant: KernelVariant,
        _: u32,
        params: &[u8],
        _: Stream,
    ) -> Result<(), Error> {
        if self.fault == Fault::Launch {
            let findings = vec!["first".to_owned(), "second".to_owned()];
            return Err(Error::Findings { kernel: variant.to_string(), findings });
        }
        let memory = &mut *self.memory.lock().unwrap();
        let kernel = variant.kernel;
        match kernel.family {
            Family::Forward => forward::run(variant, params, memory, self.fault),
            Family::ForwardCombine => forward::combine(kernel, params, memory),
            Family::MaskBits => scores::prepare(params, memory),
            // The mock looks at every pair.
            Family::MaskMap => {}
            Family::BiasGradient => backward::bias_gradient(variant, params, memory, self.fault),
            Family::SinkGradient => backward::sink_gradient(variant, params, memory, self.fault),
            family => backward::run(family, variant, params, memory, self.fault),
        }
        Ok(())
    }

    fn encode_tensor_map(&self, _: &TensorMapDescription) -> Result<TensorMap, Error> {
        Ok(TensorMap::default())
    }

    fn synchronize(&self, _: Stream) -> Result<(), Error> {
        Ok(())
    }
}

/// The parameter struct that a launch was given.
fn params<P: Copy>(bytes: &[u8]) -> P {
    assert_eq!(bytes.len(), size_of::<P>());
    // SAFETY: the length was checked, and every bit pattern is a value of these plain integers and floats.
    unsafe { std::ptr::read_unaligned(bytes.as_ptr().cast()) }
}
