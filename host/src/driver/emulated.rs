//! A GPU that is not there: runs the PTX that ships, in the checking emulator.
//!
//! Work is done when a launch returns, whatever the stream, and a launch that the emulator finds fault with is an
//! error. The numbers that the planner sees are those of an A100, so that it plans as it would there.

use super::{DevicePointer, DeviceProperties, Driver, Stream};
use crate::error::{Error, Result};
use crate::images::KernelImages;
use kernels_gpu::abi::{Arch, KernelSpec};
use ptx_emulator::{Launch, Memory, Module};
use std::collections::HashMap;
use std::fmt::Display;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

pub use ptx_emulator::{Checks, Options, Schedule};

/// An emulated GPU with a memory of its own. Any number can be used at once, each from any number of threads.
pub struct EmulatedDriver {
    properties: DeviceProperties,
    images: KernelImages,
    memory: Memory,
    options: Options,
    modules: Mutex<HashMap<&'static str, Arc<Module>>>,
}

impl EmulatedDriver {
    /// A device of this target, with every check on and blocks run one after the other.
    ///
    /// # Errors
    /// None yet.
    pub fn new(arch: Arch, images: KernelImages) -> Result<Self> {
        let (memory, options) = (Memory::new(), Options::default());
        let properties = properties(arch);
        Ok(EmulatedDriver { properties, images, memory, options, modules: Mutex::default() })
    }

    /// The same device with other checks, another schedule, or more threads.
    pub fn with_options(self, options: Options) -> Self {
        EmulatedDriver { options, ..self }
    }

    /// The kernel's module, parsed once per process for each PTX text.
    fn module(&self, kernel: &KernelSpec) -> Result<Arc<Module>> {
        // Both maps stay whole even if a thread panicked while it held their lock: entries are only added.
        let mut modules = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(module) = modules.get(kernel.name) {
            return Ok(module.clone());
        }
        let module = parse(kernel, self.images.get(kernel)?)?;
        modules.insert(kernel.name, module.clone());
        Ok(module)
    }
}

/// What an A100 says of itself; the target changes the compute capability alone.
fn properties(arch: Arch) -> DeviceProperties {
    let compute_capability = match arch {
        Arch::Sm80 => (8, 0),
    };
    DeviceProperties {
        name: format!("ptx-emulator ({})", arch.name()),
        compute_capability,
        multiprocessors: 108,
        shared_bytes_per_block: 163 * 1024,
        l2_bytes: 40 << 20,
    }
}

/// The module of a PTX text, shared by all devices of the process: tests open hundreds of them.
fn parse(kernel: &KernelSpec, ptx: Arc<str>) -> Result<Arc<Module>> {
    static MODULES: OnceLock<Mutex<HashMap<Arc<str>, Arc<Module>>>> = OnceLock::new();
    let modules = MODULES.get_or_init(Mutex::default);
    let lock = || modules.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(module) = lock().get(&ptx) {
        return Ok(module.clone());
    }
    // Without the lock, so that different kernels are parsed at once. Who comes second drops what it parsed.
    let module = Module::parse(&ptx).map_err(|error| Error::KernelImageCorrupt {
        kernel: kernel.name.to_owned(),
        reason: error.to_string(),
    })?;
    Ok(lock().entry(ptx).or_insert_with(|| Arc::new(module)).clone())
}

fn refused(error: impl Display) -> Error {
    Error::Emulator { reason: error.to_string() }
}

impl Driver for EmulatedDriver {
    fn properties(&self) -> &DeviceProperties {
        &self.properties
    }

    fn allocate(&self, bytes: usize) -> Result<DevicePointer> {
        Ok(if bytes == 0 { 0 } else { self.memory.allocate(bytes) })
    }

    unsafe fn free(&self, pointer: DevicePointer) -> Result<()> {
        if pointer == 0 { Ok(()) } else { self.memory.free(pointer).map_err(refused) }
    }

    fn copy_to_device(&self, destination: DevicePointer, source: &[u8]) -> Result<()> {
        if source.is_empty() { Ok(()) } else { self.memory.write(destination, source).map_err(refused) }
    }

    fn copy_to_host(
        &self,
        destination: &mut [u8],
        source: DevicePointer,
        _stream: Stream,
    ) -> Result<()> {
        if destination.is_empty() {
            Ok(())
        } else {
            self.memory.read(source, destination).map_err(refused)
        }
    }

    unsafe fn launch(
        &self,
        spec: &KernelSpec,
        blocks: u32,
        params: &[u8],
        _stream: Stream,
    ) -> Result<()> {
        if blocks == 0 {
            return Ok(());
        }
        let module = self.module(spec)?;
        let Some(kernel) = module.kernel(spec.name) else {
            let reason = format!("no .entry {} in the text", spec.name);
            return Err(Error::KernelImageCorrupt { kernel: spec.name.to_owned(), reason });
        };
        let (grid, block) = ([blocks, 1, 1], [spec.threads, 1, 1]);
        let shape = Launch { grid, block, shared_bytes: spec.shared_bytes, params };
        let report =
            ptx_emulator::launch(kernel, &self.memory, &shape, &self.options).map_err(refused)?;
        tracing::debug!(kernel = spec.name, statistics = ?report.statistics, "emulated");
        if report.is_clean() {
            return Ok(());
        }
        let findings = report.findings.iter().map(ToString::to_string).collect();
        Err(Error::Findings { kernel: spec.name.to_owned(), findings })
    }

    fn synchronize(&self, _stream: Stream) -> Result<()> {
        Ok(())
    }
}
