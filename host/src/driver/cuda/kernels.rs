//! Loaded kernels: each is loaded when it is first launched, and kept. One that is built in assembled for
//! this very device is loaded as it is; PTX is first compiled by the driver's JIT.

use super::context::PrimaryContext;
use super::raw::{self, LaunchShape};
use crate::driver::Stream;
use crate::error::{Error, Result};
use crate::images::KernelImages;
use kernels_gpu::abi::{KernelSpec, KernelVariant, VariantKey};
use std::collections::HashMap;
use std::ffi::CString;
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// The kernels of one context.
pub(super) struct LoadedKernels {
    context: Arc<PrimaryContext>,
    images: KernelImages,
    /// Of the device itself, whatever it is planned for as.
    compute_capability: (u32, u32),
    /// Whether the driver knows of kernels that start while the one before them ends, in captured graphs,
    /// too.
    can_start_early: bool,
    kernels: Mutex<HashMap<VariantKey, Slot>>,
}

/// The first version of the driver's interface that captures such launches: CUDA 12.3.
const CAPTURES_EARLY_STARTS: i32 = 12_030;

/// A kernel once it is loaded. Who loads it holds the lock; launches of other kernels do not wait.
type Slot = Arc<Mutex<Option<LoadedKernel>>>;

/// A kernel that can be launched. Handles of CUDA may be used on any thread.
#[derive(Clone, Copy)]
struct LoadedKernel {
    module: usize,
    function: usize,
}

impl LoadedKernels {
    pub fn new(
        context: Arc<PrimaryContext>,
        images: KernelImages,
        compute_capability: (u32, u32),
    ) -> Self {
        let can_start_early =
            raw::driver_version().is_ok_and(|version| version >= CAPTURES_EARLY_STARTS);
        let kernels = Mutex::default();
        LoadedKernels { context, images, compute_capability, can_start_early, kernels }
    }

    /// Queues a kernel, which is loaded first if need be. The context is current.
    ///
    /// # Safety
    /// As for [`crate::driver::Driver::launch`].
    pub unsafe fn launch(
        &self,
        variant: KernelVariant,
        blocks: u32,
        params: &[u8],
        stream: Stream,
    ) -> Result<()> {
        let kernel = self.get(variant)?;
        let KernelSpec { threads, shared_bytes, .. } = *variant.kernel;
        let may_start_early = variant.kernel.may_start_early() && self.can_start_early;
        let shape = LaunchShape { blocks, threads, shared_bytes, may_start_early };
        let stream = stream.0 as raw::StreamHandle;
        // SAFETY: the module stays loaded as long as `self`; the rest is passed on to the caller.
        unsafe { raw::launch(kernel.function as raw::Function, shape, stream, params) }.map_err(
            |failure| {
                failure.with_detail(format!(
                    "kernel {variant}, {blocks} blocks of {threads} threads, {shared_bytes} bytes of shared \
                     memory"
                ))
            },
        )
    }

    /// Loads kernels that are not, each on a thread of its own.
    pub fn prepare(&self, variants: &[KernelVariant]) -> Result<()> {
        let load = |variant: KernelVariant| {
            let _entered = self.context.enter()?;
            self.get(variant).map(|_| ())
        };
        std::thread::scope(|scope| {
            let loading: Vec<_> =
                variants.iter().map(|&variant| scope.spawn(move || load(variant))).collect();
            let done =
                loading.into_iter().map(|one| one.join().unwrap_or_else(|panic| resume_unwind(panic)));
            // Of all of them, even if the first has failed.
            done.collect::<Vec<_>>().into_iter().collect()
        })
    }

    /// The kernel, loaded by the first caller while others that want it wait.
    fn get(&self, variant: KernelVariant) -> Result<LoadedKernel> {
        // A slot stays whole even if a thread panicked while it held the lock: kernels are only added.
        let slot = {
            let mut kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
            kernels.entry(variant.key()).or_default().clone()
        };
        let mut kernel = slot.lock().unwrap_or_else(PoisonError::into_inner);
        match *kernel {
            Some(kernel) => Ok(kernel),
            None => Ok(*kernel.insert(self.load(variant)?)),
        }
    }

    /// Loads one kernel, with its switches set, for the device of the current context.
    fn load(&self, variant: KernelVariant) -> Result<LoadedKernel> {
        let started = Instant::now();
        let assembled = self.images.assembled(variant, self.compute_capability);
        let (mut is_assembled, mut loaded) = (false, None);
        if let Some(image) = assembled {
            match raw::load_assembled(&image).and_then(|module| function(module, variant)) {
                Ok(kernel) => (is_assembled, loaded) = (true, Some(kernel)),
                // A driver that is older than the assembler: it still reads the PTX.
                Err(failure) => {
                    tracing::debug!(kernel = %variant, error = %Error::from(failure), "not loaded assembled");
                }
            }
        }
        let kernel = match loaded {
            Some(kernel) => kernel,
            None => compile(variant, &self.images)?,
        };
        let milliseconds = started.elapsed().as_secs_f64() * 1e3;
        tracing::debug!(kernel = %variant, is_assembled, milliseconds, "loaded");
        Ok(kernel)
    }
}

impl Drop for LoadedKernels {
    fn drop(&mut self) {
        let Ok(_entered) = self.context.enter() else { return };
        let kernels = self.kernels.get_mut().unwrap_or_else(PoisonError::into_inner);
        for (_, slot) in kernels.drain() {
            let Some(kernel) = *slot.lock().unwrap_or_else(PoisonError::into_inner) else { continue };
            // SAFETY: the handles are dropped with it. The driver waits for kernels that still run.
            unsafe { raw::unload_module(kernel.module as raw::Module) };
        }
    }
}

/// Compiles the PTX of one kernel, with its switches set, for the device of the current context.
fn compile(variant: KernelVariant, images: &KernelImages) -> Result<LoadedKernel> {
    let ptx = CString::new(&*images.get(variant)?).map_err(|_| Error::KernelImageCorrupt {
        kernel: variant.to_string(),
        reason: "it holds a NUL byte".into(),
    })?;
    let module = raw::load_module(&ptx)
        .map_err(|(failure, log)| failure.with_detail(format!("kernel {variant}\n{log}")))?;
    function(module, variant).map_err(|failure| failure.with_detail(format!("kernel {variant}")))
}

/// The kernel of a module that was loaded just now, ready to be launched; unloads the module if it is not.
fn function(module: raw::Module, variant: KernelVariant) -> Result<LoadedKernel, raw::Failure> {
    let KernelSpec { name, shared_bytes, .. } = *variant.kernel;
    let name = CString::new(name).expect("names of kernels hold no NUL byte");
    // SAFETY: the module was loaded just now.
    let function = unsafe { raw::module_function(module, &name) }.and_then(|function| {
        // SAFETY: likewise.
        unsafe { raw::set_max_dynamic_shared_bytes(function, shared_bytes) }.map(|()| function)
    });
    match function {
        Ok(function) => Ok(LoadedKernel { module: module as usize, function: function as usize }),
        Err(failure) => {
            // SAFETY: nothing of the module is kept.
            unsafe { raw::unload_module(module) };
            Err(failure)
        }
    }
}
