//! Loaded kernels: each is compiled by the driver's JIT when it is first launched, and kept.

use super::context::PrimaryContext;
use super::raw::{self, LaunchShape};
use crate::driver::Stream;
use crate::error::{Error, Result};
use crate::images::KernelImages;
use kernels_gpu::abi::{KernelSpec, KernelVariant, VariantKey};
use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{Arc, Mutex, PoisonError};

/// The kernels of one context.
pub(super) struct LoadedKernels {
    context: Arc<PrimaryContext>,
    images: KernelImages,
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
    pub fn new(context: Arc<PrimaryContext>, images: KernelImages) -> Self {
        let can_start_early =
            raw::driver_version().is_ok_and(|version| version >= CAPTURES_EARLY_STARTS);
        LoadedKernels { context, images, can_start_early, kernels: Mutex::default() }
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
            None => Ok(*kernel.insert(load(variant, &self.images)?)),
        }
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
fn load(variant: KernelVariant, images: &KernelImages) -> Result<LoadedKernel> {
    let corrupt =
        |reason: &str| Error::KernelImageCorrupt { kernel: variant.to_string(), reason: reason.into() };
    let ptx = CString::new(&*images.get(variant)?).map_err(|_| corrupt("it holds a NUL byte"))?;
    let name = CString::new(variant.kernel.name).map_err(|_| corrupt("the name holds a NUL byte"))?;
    let module = raw::load_module(&ptx)
        .map_err(|(failure, log)| failure.with_detail(format!("kernel {variant}\n{log}")))?;
    let named = |failure: raw::Failure| failure.with_detail(format!("kernel {variant}"));
    // SAFETY: the module was loaded just now.
    let function = unsafe { raw::module_function(module, &name) }.and_then(|function| {
        // SAFETY: likewise.
        unsafe { raw::set_max_dynamic_shared_bytes(function, variant.kernel.shared_bytes) }
            .map(|()| function)
    });
    match function {
        Ok(function) => Ok(LoadedKernel { module: module as usize, function: function as usize }),
        Err(failure) => {
            // SAFETY: nothing of the module is kept.
            unsafe { raw::unload_module(module) };
            Err(named(failure))
        }
    }
}
