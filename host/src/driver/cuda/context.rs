//! The primary context of a device: the one that the CUDA runtime and PyTorch use, so that pointers and
//! streams can be passed between them and this library.

use super::door::PrimaryContextHandle;
use super::raw::{self, Failure};

/// Keeps the primary context of one device alive.
#[derive(Debug)]
pub(super) struct PrimaryContext(PrimaryContextHandle);

impl PrimaryContext {
    /// Retains the primary context. The thread's current context stays what it was, if there was one.
    pub fn retain(ordinal: u32) -> Result<Self, Failure> {
        let previous = raw::current_context()?;
        let context = PrimaryContextHandle::retain(ordinal)?;
        if !previous.is_null() {
            // SAFETY: it was current a moment ago.
            unsafe { raw::set_current_context(previous)? };
        }
        Ok(PrimaryContext(context))
    }

    /// `CUcontext`, alive as long as `self`.
    pub fn raw(&self) -> *mut std::ffi::c_void {
        self.0.raw()
    }

    /// Makes the context current on this thread until the guard is dropped, then what was current
    /// before.
    pub fn enter(&self) -> Result<Entered<'_>, Failure> {
        // SAFETY: the context is alive as long as `self`.
        unsafe { raw::push_context(self.0.raw())? };
        Ok(Entered { _context: &self.0, _thread: std::marker::PhantomData })
    }
}

/// While it lives, the context is current on this thread.
pub(super) struct Entered<'a> {
    _context: &'a PrimaryContextHandle,
    /// Contexts are current per thread, so the guard must not move to another one.
    _thread: std::marker::PhantomData<*const ()>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        raw::pop_context();
    }
}
