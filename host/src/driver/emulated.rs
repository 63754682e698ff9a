//! A GPU that is not there: runs the PTX that ships, in the checking emulator.
//!
//! Work is done when a launch returns, whatever the stream, and a launch that the emulator finds fault
//! with is an error. A kernel that may start early runs together with the one before it, if both are launched
//! in one call. The numbers that the planner sees are those of an A100 or an H200, so that it plans as it
//! would there.

#[cfg(test)]
mod tests;

use super::{DevicePointer, DeviceProperties, Driver, Queued, Stream, TensorMapDescription};
use crate::error::{Error, Result};
use crate::images::KernelImages;
use kernels_gpu::abi::{Arch, KERNELS, KernelSpec, KernelVariant, TensorMap, VariantKey};
use ptx_emulator::{
    Address, Launch, Memory, Module, Region, Report, TensorMapElement, TensorMapSwizzle,
};
use std::collections::HashMap;
use std::fmt::Display;
use std::io::Write as _;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Once, OnceLock, PoisonError};

pub use ptx_emulator::{
    Checks, Number, Operand, Options, Origin, OriginKind, Schedule, SourceLocation, Trace,
};

/// Live allocations of a device, and bytes of one of them: the emulator has no more addresses, and needs some
/// for the variables of modules.
const MAX_ALLOCATIONS: usize = 60_000;
const MAX_BYTES: u64 = 1 << 39;

/// From so many bytes on, the host is asked first whether it has them.
const PROBED_BYTES: usize = 1 << 26;

/// Parsed texts that are kept at most, so that a program that makes up kernels does not fill the memory
/// with them.
const MAX_MODULES: usize = 256;

/// An emulated GPU with a memory of its own. Any number can be used at once, each from any number of
/// threads.
pub struct EmulatedDriver {
    properties: DeviceProperties,
    images: KernelImages,
    memory: Memory,
    options: Options,
    allocations: AtomicUsize,
    modules: Mutex<HashMap<VariantKey, Arc<Module>>>,
    traces: Mutex<Vec<(KernelVariant, Trace)>>,
}

impl EmulatedDriver {
    /// A device of this target, with every check on and blocks run one after the other. Of an emulator that
    /// was built without optimisation a warning says so through `tracing`, once in a process.
    ///
    /// # Errors
    /// None yet.
    pub fn new(arch: Arch, images: KernelImages) -> Result<Self> {
        static SAID: Once = Once::new();
        if let Some(text) = slow_text(ptx_emulator::OPT_LEVEL) {
            SAID.call_once(|| tracing::warn!("{text}"));
        }
        let (memory, options) = (Memory::new(), Options::default());
        let properties = properties(arch);
        let (allocations, modules, traces) = (AtomicUsize::new(0), Mutex::default(), Mutex::default());
        Ok(EmulatedDriver { properties, images, memory, options, allocations, modules, traces })
    }

    /// The same device with other checks, another schedule, or more threads.
    pub fn with_options(self, options: Options) -> Self {
        EmulatedDriver { options, ..self }
    }

    /// What launches with [`Options::trace`] on saw since the last call: kernels in the order of launch.
    pub fn take_traces(&self) -> Vec<(KernelVariant, Trace)> {
        std::mem::take(&mut *self.traces.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The module of a kernel with its switches set, parsed once per process for each PTX text.
    fn module(&self, variant: KernelVariant) -> Result<Arc<Module>> {
        // Both maps stay whole even if a thread panicked while it held their lock: entries are only
        // added.
        let modules = || self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(module) = modules().get(&variant.key()) {
            return Ok(module.clone());
        }
        let module = parse(variant, self.images.get(variant)?)?;
        Ok(modules().entry(variant.key()).or_insert(module).clone())
    }

    /// Runs kernels, each of which may start before the one before it has ended.
    fn run_together(&self, queue: &[&Queued<'_>]) -> Result<()> {
        let modules =
            queue.iter().map(|queued| self.module(queued.variant)).collect::<Result<Vec<_>>>()?;
        let regions: Vec<Vec<Region>> =
            queue.iter().map(|queued| regions(queued.variant.kernel)).collect();
        let mut launches = Vec::new();
        for ((&&Queued { variant, blocks, params }, module), regions) in
            queue.iter().zip(&modules).zip(&regions)
        {
            let spec = variant.kernel;
            let Some(kernel) = module.kernel(spec.name) else {
                let reason = format!("no .entry {} in the text", spec.name);
                return Err(Error::KernelImageCorrupt { kernel: variant.to_string(), reason });
            };
            let (grid, block) = ([blocks, 1, 1], [spec.threads, 1, 1]);
            let shape =
                Launch { shared_bytes: spec.shared_bytes, regions, ..Launch::new(grid, block, params) };
            launches.push((kernel, shape));
        }
        let reports = ptx_emulator::launch_dependent(&launches, &self.memory, &self.options);
        let reports = reports.map_err(refused)?;
        let results =
            queue.iter().zip(reports).map(|(queued, report)| self.note(queued.variant, report));
        // Of all of them, even if the first has failed.
        let results: Vec<Result<()>> = results.collect();
        results.into_iter().collect()
    }

    /// Keeps the trace of a kernel that has run, and prints what it printed, as a GPU's driver does; its
    /// findings are an error.
    fn note(&self, variant: KernelVariant, report: Report) -> Result<()> {
        // As there, nobody is told if it cannot be written.
        let _ = std::io::stdout().write_all(report.output.as_bytes());
        tracing::debug!(kernel = %variant, statistics = ?report.statistics, "emulated");
        if self.options.trace {
            let mut traces = self.traces.lock().unwrap_or_else(PoisonError::into_inner);
            traces.push((variant, report.trace));
        }
        if report.findings.is_empty() {
            return Ok(());
        }
        let findings = report.findings.iter().map(ToString::to_string).collect();
        Err(Error::Findings { kernel: variant.to_string(), findings })
    }
}

/// What to do about an emulator that was built without optimisation.
fn slow_text(opt_level: &str) -> Option<&'static str> {
    let text = "the emulator was built without optimisation and is 20 to 140 times slower than it could \
                be; in Cargo.toml: [profile.dev.package.ptx-emulator] opt-level = 3";
    (opt_level == "0").then_some(text)
}

/// What an A100, or for Hopper's target an H200, says of itself.
fn properties(arch: Arch) -> DeviceProperties {
    let name = format!("ptx-emulator ({})", arch.name());
    match arch {
        Arch::Sm80 => DeviceProperties {
            name,
            compute_capability: arch.compute_capability(),
            multiprocessors: 108,
            shared_bytes_per_block: 163 * 1024,
            l2_bytes: 40 << 20,
        },
        Arch::Sm90a => DeviceProperties {
            name,
            compute_capability: arch.compute_capability(),
            multiprocessors: 132,
            shared_bytes_per_block: 227 * 1024,
            l2_bytes: 50 << 20,
        },
    }
}

/// Modules of texts, by where a text is: to hash megabytes whenever a device is opened takes longer than some
/// kernels run. Texts are kept, so that no other one comes to be there.
#[derive(Default)]
struct Modules(HashMap<usize, (Arc<str>, Arc<Module>)>);

impl Modules {
    fn get(&mut self, ptx: &Arc<str>) -> Option<Arc<Module>> {
        let place = ptx.as_ptr().addr();
        if let Some((_, module)) = self.0.get(&place) {
            return Some(module.clone());
        }
        let (_, module) = self.0.values().find(|(text, _)| text == ptx)?;
        let module = module.clone();
        self.insert(ptx.clone(), module.clone());
        Some(module)
    }

    fn insert(&mut self, ptx: Arc<str>, module: Arc<Module>) {
        if self.0.len() >= MAX_MODULES {
            self.0.clear();
        }
        self.0.insert(ptx.as_ptr().addr(), (ptx, module));
    }
}

/// The module of a PTX text, shared by all devices of the process: tests open hundreds of them.
fn parse(variant: KernelVariant, ptx: Arc<str>) -> Result<Arc<Module>> {
    static MODULES: OnceLock<Mutex<Modules>> = OnceLock::new();
    let modules = MODULES.get_or_init(Mutex::default);
    let lock = || modules.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(module) = lock().get(&ptx) {
        return Ok(module);
    }
    // Without the lock, so that different kernels are parsed at once. Who comes second drops what it
    // parsed.
    let module = Module::parse(&ptx).map_err(|error| Error::KernelImageCorrupt {
        kernel: variant.to_string(),
        reason: error.to_string(),
    })?;
    let mut modules = lock();
    if let Some(module) = modules.get(&ptx) {
        return Ok(module);
    }
    let module = Arc::new(module);
    modules.insert(ptx, module.clone());
    Ok(module)
}

/// What stands where in the shared memory of a kernel of the table, whatever its text. Of another kernel
/// nothing is known.
fn regions(spec: &KernelSpec) -> Vec<Region> {
    if KERNELS.iter().all(|known| known.name != spec.name) {
        return Vec::new();
    }
    let regions = spec.regions();
    let named = |region: &kernels_gpu::abi::regions::Region| {
        Region::new(region.to_string(), region.offset, region.bytes)
    };
    regions.as_slice().iter().map(named).collect()
}

/// Whether the host has room for an allocation of the emulator, which ends the process if it has not. The
/// emulator keeps a byte of what it knows beside each byte.
fn fits_the_host(bytes: usize) -> bool {
    bytes < PROBED_BYTES || Vec::<u8>::new().try_reserve_exact(2 * bytes).is_ok()
}

fn refused(error: impl Display) -> Error {
    Error::Emulator { reason: error.to_string() }
}

impl Driver for EmulatedDriver {
    fn properties(&self) -> &DeviceProperties {
        &self.properties
    }

    fn allocate(&self, bytes: usize) -> Result<DevicePointer> {
        if bytes == 0 {
            return Ok(0);
        }
        if bytes as u64 > MAX_BYTES || !fits_the_host(bytes) {
            return Err(Error::OutOfMemory { device: self.properties.name.clone(), bytes });
        }
        if self.allocations.fetch_add(1, Ordering::Relaxed) >= MAX_ALLOCATIONS {
            self.allocations.fetch_sub(1, Ordering::Relaxed);
            let reason = format!("expected at most {MAX_ALLOCATIONS} live allocations, got one more");
            return Err(refused(reason));
        }
        Ok(self.memory.allocate(bytes).0)
    }

    unsafe fn free(&self, pointer: DevicePointer) -> Result<()> {
        if pointer == 0 {
            return Ok(());
        }
        self.memory.free(Address(pointer)).map_err(refused)?;
        self.allocations.fetch_sub(1, Ordering::Relaxed);
        Ok(())
    }

    fn copy_to_device(&self, destination: DevicePointer, source: &[u8]) -> Result<()> {
        if source.is_empty() {
            Ok(())
        } else {
            self.memory.write(Address(destination), source).map_err(refused)
        }
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
            self.memory.read(Address(source), destination).map_err(refused)
        }
    }

    fn prepare(&self, variants: &[KernelVariant]) -> Result<()> {
        std::thread::scope(|scope| {
            let parsing: Vec<_> =
                variants.iter().map(|&variant| scope.spawn(move || self.module(variant))).collect();
            let done =
                parsing.into_iter().map(|one| one.join().unwrap_or_else(|panic| resume_unwind(panic)));
            // Of all of them, even if the first has failed.
            done.collect::<Vec<_>>().into_iter().try_for_each(|module| module.map(|_| ()))
        })
    }

    unsafe fn launch(
        &self,
        variant: KernelVariant,
        blocks: u32,
        params: &[u8],
        _stream: Stream,
    ) -> Result<()> {
        if blocks == 0 {
            return Ok(());
        }
        self.run_together(&[&Queued { variant, blocks, params }])
    }

    unsafe fn launch_in_order(&self, queue: &[Queued<'_>], _stream: Stream) -> Result<()> {
        // A grid without blocks is none.
        let queue: Vec<&Queued<'_>> = queue.iter().filter(|queued| queued.blocks > 0).collect();
        queue
            .chunk_by(|_, next| next.variant.kernel.may_start_early())
            .try_for_each(|together| self.run_together(together))
    }

    fn encode_tensor_map(&self, description: &TensorMapDescription) -> Result<TensorMap> {
        let map = ptx_emulator::TensorMap {
            element: TensorMapElement::U16,
            address: description.address,
            dims: description.dims.to_vec(),
            strides_bytes: description.strides_bytes.to_vec(),
            box_dims: description.box_dims.to_vec(),
            swizzle: TensorMapSwizzle::B128,
        };
        map.encode().map_err(refused)
    }

    fn synchronize(&self, _stream: Stream) -> Result<()> {
        Ok(())
    }
}
