//! A GPU that is not there: runs the PTX that ships, in the checking emulator.
//!
//! Work is done when a launch returns, whatever the stream, and a launch that the emulator finds fault
//! with is an error. A kernel that may start early runs together with the one before it, if both are launched
//! in one call. The numbers that the planner sees are those of an A100 or an H200, so that it plans as it
//! would there.

use super::{DevicePointer, DeviceProperties, Driver, Queued, Stream, TensorMapDescription};
use crate::error::{Error, Result};
use crate::images::KernelImages;
use kernels_gpu::abi::{Arch, KERNELS, KernelSpec, TensorMap};
use ptx_emulator::{
    Address, Launch, Memory, Module, Region, Report, TensorMapElement, TensorMapSwizzle,
};
use std::collections::HashMap;
use std::fmt::Display;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

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
    modules: Mutex<HashMap<&'static str, Arc<Module>>>,
    traces: Mutex<Vec<(&'static str, Trace)>>,
}

impl EmulatedDriver {
    /// A device of this target, with every check on and blocks run one after the other.
    ///
    /// # Errors
    /// None yet.
    pub fn new(arch: Arch, images: KernelImages) -> Result<Self> {
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
    pub fn take_traces(&self) -> Vec<(&'static str, Trace)> {
        std::mem::take(&mut *self.traces.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The kernel's module, parsed once per process for each PTX text.
    fn module(&self, kernel: &KernelSpec) -> Result<Arc<Module>> {
        // Both maps stay whole even if a thread panicked while it held their lock: entries are only
        // added.
        let mut modules = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(module) = modules.get(kernel.name) {
            return Ok(module.clone());
        }
        let module = parse(kernel, self.images.get(kernel)?)?;
        modules.insert(kernel.name, module.clone());
        Ok(module)
    }

    /// Runs kernels, each of which may start before the one before it has ended.
    fn run_together(&self, queue: &[&Queued<'_>]) -> Result<()> {
        let modules =
            queue.iter().map(|queued| self.module(queued.kernel)).collect::<Result<Vec<_>>>()?;
        let regions: Vec<Vec<Region>> = queue.iter().map(|queued| regions(queued.kernel)).collect();
        let mut launches = Vec::new();
        for ((&&Queued { kernel: spec, blocks, params }, module), regions) in
            queue.iter().zip(&modules).zip(&regions)
        {
            let Some(kernel) = module.kernel(spec.name) else {
                let reason = format!("no .entry {} in the text", spec.name);
                return Err(Error::KernelImageCorrupt { kernel: spec.name.to_owned(), reason });
            };
            let (grid, block) = ([blocks, 1, 1], [spec.threads, 1, 1]);
            let shape = Launch { grid, block, shared_bytes: spec.shared_bytes, regions, params };
            launches.push((kernel, shape));
        }
        let reports = ptx_emulator::launch_dependent(&launches, &self.memory, &self.options);
        let reports = reports.map_err(refused)?;
        let results = queue.iter().zip(reports).map(|(queued, report)| self.note(queued.kernel, report));
        // Of all of them, even if the first has failed.
        let results: Vec<Result<()>> = results.collect();
        results.into_iter().collect()
    }

    /// Keeps the trace of a kernel that has run; its findings are an error.
    fn note(&self, spec: &KernelSpec, report: Report) -> Result<()> {
        tracing::debug!(kernel = spec.name, statistics = ?report.statistics, "emulated");
        if self.options.trace {
            let mut traces = self.traces.lock().unwrap_or_else(PoisonError::into_inner);
            traces.push((spec.name, report.trace));
        }
        if report.findings.is_empty() {
            return Ok(());
        }
        let findings = report.findings.iter().map(ToString::to_string).collect();
        Err(Error::Findings { kernel: spec.name.to_owned(), findings })
    }
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

/// The module of a PTX text, shared by all devices of the process: tests open hundreds of them.
fn parse(kernel: &KernelSpec, ptx: Arc<str>) -> Result<Arc<Module>> {
    static MODULES: OnceLock<Mutex<HashMap<Arc<str>, Arc<Module>>>> = OnceLock::new();
    let modules = MODULES.get_or_init(Mutex::default);
    let lock = || modules.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(module) = lock().get(&ptx) {
        return Ok(module.clone());
    }
    // Without the lock, so that different kernels are parsed at once. Who comes second drops what it
    // parsed.
    let module = Module::parse(&ptx).map_err(|error| Error::KernelImageCorrupt {
        kernel: kernel.name.to_owned(),
        reason: error.to_string(),
    })?;
    let mut modules = lock();
    if modules.len() >= MAX_MODULES {
        modules.clear();
    }
    Ok(modules.entry(ptx).or_insert_with(|| Arc::new(module)).clone())
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
        self.run_together(&[&Queued { kernel: spec, blocks, params }])
    }

    unsafe fn launch_in_order(&self, queue: &[Queued<'_>], _stream: Stream) -> Result<()> {
        // A grid without blocks is none.
        let queue: Vec<&Queued<'_>> = queue.iter().filter(|queued| queued.blocks > 0).collect();
        queue
            .chunk_by(|_, next| next.kernel.may_start_early())
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

#[cfg(test)]
mod tests {
    use super::*;
    use kernels_gpu::abi::Family;

    fn driver() -> EmulatedDriver {
        EmulatedDriver::new(Arch::Sm80, KernelImages::embedded()).expect("it needs nothing")
    }

    #[test]
    fn bytes_come_back_as_they_were_written() {
        let driver = driver();
        let pointer = driver.allocate(1001).unwrap();
        assert_eq!(pointer % 256, 0);
        let written: Vec<u8> = (0..1001).map(|i| i as u8).collect();
        driver.copy_to_device(pointer, &written).unwrap();
        let mut read = vec![0; 1000];
        driver.copy_to_host(&mut read, pointer + 1, Stream::default()).unwrap();
        assert_eq!(read, written[1..]);
        // SAFETY: allocated above, and nothing is in flight.
        unsafe { driver.free(pointer) }.unwrap();
        assert!(driver.copy_to_host(&mut read, pointer, Stream::default()).is_err());
    }

    #[test]
    fn nothing_can_be_allocated_copied_and_freed() {
        let driver = driver();
        let pointer = driver.allocate(0).unwrap();
        driver.copy_to_device(pointer, &[]).unwrap();
        driver.copy_to_host(&mut [], pointer, Stream::default()).unwrap();
        // SAFETY: allocated above, and nothing is in flight.
        unsafe { driver.free(pointer) }.unwrap();
    }

    #[test]
    fn more_memory_than_there_are_addresses_is_refused() {
        let refused = driver().allocate(usize::MAX).unwrap_err();
        assert!(matches!(refused, Error::OutOfMemory { bytes: usize::MAX, .. }), "{refused}");
    }

    #[test]
    fn more_memory_than_the_host_has_is_refused() {
        let bytes = MAX_BYTES as usize;
        if Vec::<u8>::new().try_reserve_exact(2 * bytes).is_ok() {
            println!("not tested: the host would give {} bytes", 2 * bytes);
            return;
        }
        assert!(matches!(driver().allocate(bytes), Err(Error::OutOfMemory { .. })));
    }

    #[test]
    fn a_device_never_runs_out_of_addresses() {
        let driver = driver();
        let kept = driver.allocate(4).unwrap();
        driver.copy_to_device(kept, &[7; 4]).unwrap();
        for round in 0..2 * MAX_ALLOCATIONS {
            let pointer = driver.allocate(4).unwrap_or_else(|error| panic!("round {round}: {error}"));
            // SAFETY: allocated above, and nothing is in flight.
            unsafe { driver.free(pointer) }.unwrap();
            // A use soon after is found, in every round.
            assert!(driver.copy_to_device(pointer, &[0; 4]).is_err(), "round {round}");
        }
        let mut bytes = [0; 4];
        driver.copy_to_host(&mut bytes, kept, Stream::default()).unwrap();
        assert_eq!(bytes, [7; 4]);
    }

    #[test]
    fn too_many_live_allocations_are_refused_until_one_is_freed() {
        let driver = driver();
        let all: Vec<_> = (0..MAX_ALLOCATIONS).map(|_| driver.allocate(1).unwrap()).collect();
        for _ in 0..2 {
            let refused = driver.allocate(1).unwrap_err().to_string();
            assert!(refused.contains("expected at most 60000 live allocations"), "{refused}");
        }
        // SAFETY: allocated above, and nothing is in flight.
        unsafe { driver.free(all[0]) }.unwrap();
        driver.allocate(1).unwrap();
    }

    #[test]
    fn a_kernel_finds_a_use_soon_after_the_free() {
        let text =
            ".version 7.8\n.target sm_80\n.address_size 64\n.visible .entry reads(.param .u64 p) {
            .reg .b32 %r0; .reg .b64 %d0; ld.param.u64 %d0, [p]; ld.global.u32 %r0, [%d0]; ret; }\n";
        let spec = KernelSpec { name: "reads", shared_bytes: 0, ..kernels_gpu::abi::KERNELS[0] };
        let images = KernelImages::with_override(text).unwrap();
        let driver = EmulatedDriver::new(Arch::Sm80, images).unwrap();
        let allocate_and_free = |count: usize| {
            for _ in 0..count {
                // SAFETY: nothing is in flight.
                unsafe { driver.free(driver.allocate(4).unwrap()) }.unwrap();
            }
        };
        allocate_and_free(MAX_ALLOCATIONS + 1);
        let pointer = driver.allocate(4).unwrap();
        driver.copy_to_device(pointer, &[0; 4]).unwrap();
        // SAFETY: one pointer to 4 bytes is what the kernel takes.
        let launch = || unsafe { driver.launch(&spec, 1, &pointer.to_le_bytes(), Stream::default()) };
        launch().unwrap();
        // SAFETY: allocated above, and nothing is in flight.
        unsafe { driver.free(pointer) }.unwrap();
        allocate_and_free(1000);
        let found = launch().unwrap_err().to_string();
        assert!(found.contains("use after free"), "{found}");
    }

    #[test]
    fn a_text_is_parsed_once_for_all_devices() {
        let text =
            ".version 7.8\n.target sm_80\n.address_size 64\n.visible .entry nothing() {\n    ret;\n}\n";
        let spec = KernelSpec { name: "nothing", ..kernels_gpu::abi::KERNELS[0] };
        let module = || {
            let images = KernelImages::with_override(text).unwrap();
            EmulatedDriver::new(Arch::Sm80, images).unwrap().module(&spec).unwrap()
        };
        assert!(Arc::ptr_eq(&module(), &module()));
    }

    #[test]
    fn a_kernel_that_is_not_in_the_table_has_no_regions() {
        let known = kernels_gpu::abi::KERNELS[0];
        assert!(!regions(&known).is_empty());
        // As much shared memory as it likes, and what it does with it is its own affair.
        let spec = KernelSpec { name: "program", shared_bytes: 64, ..known };
        assert_eq!(regions(&spec), []);
    }

    #[test]
    fn kernels_that_may_start_early_run_together_with_the_one_before() {
        let entry = |name: &str, wait: &str| {
            format!(
                ".visible .entry {name}(.param .u64 p) {{ .reg .b32 %r0; .reg .b64 %d0;
                ld.param.u64 %d0, [p]; {wait} ld.global.u32 %r0, [%d0]; add.u32 %r0, %r0, 1;
                st.global.u32 [%d0], %r0; ret; }}\n"
            )
        };
        let head = ".version 7.8\n.target sm_90\n.address_size 64\n";
        let late = KernelSpec { name: "late", arch: Arch::Sm90a, ..kernels_gpu::abi::KERNELS[0] };
        let spec = KernelSpec { threads: 1, shared_bytes: 0, ..late };
        let early = KernelSpec { name: "early", family: Family::BackwardConvert, ..spec };
        for (wait, is_found) in [("griddepcontrol.wait;", false), ("", true)] {
            let text = format!("{head}{}{}", entry("late", ""), entry("early", wait));
            let images = KernelImages::with_override(&text).unwrap();
            let driver = EmulatedDriver::new(Arch::Sm90a, images).unwrap();
            let driver = driver.with_options(Options { trace: true, ..Options::default() });
            let pointer = driver.allocate(4).unwrap();
            let params = pointer.to_le_bytes();
            let queued = |kernel, blocks| Queued { kernel, blocks, params: &params };
            let launch = |queue: &[Queued<'_>]| {
                driver.copy_to_device(pointer, &[0; 4]).unwrap();
                // SAFETY: one pointer to 4 bytes is what each kernel takes.
                let result = unsafe { driver.launch_in_order(queue, Stream::default()) };
                let mut sum = [0; 4];
                driver.copy_to_host(&mut sum, pointer, Stream::default()).unwrap();
                (result, u32::from_le_bytes(sum))
            };
            let (result, sum) = launch(&[queued(&spec, 1), queued(&early, 1), queued(&spec, 1)]);
            match result {
                Err(Error::Findings { kernel, findings }) => {
                    assert!(is_found && kernel == "early", "{kernel}: {findings:?}");
                    assert!(
                        findings.iter().any(|text| text.starts_with("missing wait")),
                        "{findings:?}"
                    );
                    assert!(findings.iter().any(|text| text.contains(" of late wrote")), "{findings:?}");
                }
                result => assert_eq!((result.is_ok(), is_found, sum), (true, false, 3)),
            }
            let names: Vec<&str> = driver.take_traces().into_iter().map(|(name, _)| name).collect();
            assert_eq!(
                names,
                if is_found { &["late", "early"][..] } else { &["late", "early", "late"] }
            );
            // Behind a kernel that does not run there is nothing to wait for.
            let (result, sum) = launch(&[queued(&spec, 0), queued(&early, 1)]);
            assert_eq!((result.is_ok(), sum), (true, 1));
        }
    }

    #[test]
    fn what_is_no_ptx_names_the_kernel_and_the_line() {
        let spec = KernelSpec { name: "broken", ..kernels_gpu::abi::KERNELS[0] };
        let header = ".version 7.8\n.target sm_80\n.address_size 64\n";
        let text = format!("{header}.visible .entry broken() {{\n    frobnicate;\n}}\n");
        let images = KernelImages::with_override(&text).unwrap();
        let driver = EmulatedDriver::new(Arch::Sm80, images).unwrap();
        // SAFETY: it cannot start.
        let error = unsafe { driver.launch(&spec, 1, &[], Stream::default()) }.unwrap_err().to_string();
        assert!(error.contains("broken") && error.contains("PTX line 5"), "{error}");
    }
}
