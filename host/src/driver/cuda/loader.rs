//! Finds the CUDA driver when it is first needed.

use libloading::Library;
use std::ffi::{CStr, c_char, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The name under which every NVIDIA driver installs itself.
const DRIVER: &str = "libcuda.so.1";

/// `CUDA_ERROR_NO_DEVICE`: what every function answers where there is no driver.
const NO_DEVICE: i32 = 100;

/// `CUDA_ERROR_NOT_FOUND`: what a function answers that this driver does not have.
const NOT_FOUND: i32 = 500;

/// The slot of one trampoline; the NUL-terminated name of the symbol follows at once.
#[repr(C)]
pub(super) struct Slot {
    target: AtomicPtr<c_void>,
    name: [c_char; 0],
}

/// Why there is no CUDA driver, or `None` if there is one.
pub(super) fn missing_driver() -> Option<String> {
    driver().as_ref().err().cloned()
}

/// The driver, opened once and never closed: trampolines keep addresses inside it.
fn driver() -> &'static Result<Library, String> {
    static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        // SAFETY: opening the driver runs its initialisers, which is what every CUDA program does at its
        // start.
        unsafe { Library::new(DRIVER) }
            .map_err(|error| format!("no CUDA driver: {DRIVER} cannot be opened ({error})"))
    })
}

/// Fills a slot and returns the function to jump to. Called by the trampolines alone.
///
/// # Safety
/// `slot` points to a slot of `trampolines.rs`, followed by its name.
pub(super) unsafe extern "C" fn resolve(slot: *const Slot) -> *const c_void {
    // SAFETY: the trampoline passes the address of its slot, which is static and followed by its name.
    let (slot, name) = unsafe { (&*slot, CStr::from_ptr((&raw const (*slot).name).cast())) };
    let target = find(name).unwrap_or(not_found as *const c_void);
    // Release: who reads the address also sees the library that it points into.
    slot.target.store(target.cast_mut(), Ordering::Release);
    target
}

/// The address of a symbol, or of what stands in for it; `None` if the driver is there and lacks it.
fn find(name: &CStr) -> Option<*const c_void> {
    let Ok(library) = driver() else {
        let describes = matches!(name.to_bytes(), b"cuGetErrorString" | b"cuGetErrorName");
        return Some(if describes {
            describe_no_device as *const c_void
        } else {
            no_device as *const c_void
        });
    };
    // SAFETY: the address is only jumped to, by a caller that knows the type of the function by its
    // name.
    let symbol = unsafe { library.get::<*const c_void>(name.to_bytes_with_nul()) };
    symbol.ok().map(|symbol| *symbol)
}

/// Stands in for every function where there is no driver. The C calling convention lets it ignore its
/// arguments.
extern "C" fn no_device() -> i32 {
    NO_DEVICE
}

/// Stands in for a function that the driver is too old to have.
extern "C" fn not_found() -> i32 {
    NOT_FOUND
}

/// Stands in for `cuGetErrorString` and `cuGetErrorName`, so that errors print where there is no driver.
///
/// # Safety
/// `text` is writable.
unsafe extern "C" fn describe_no_device(_code: i32, text: *mut *const c_char) -> i32 {
    // SAFETY: the contract of cuGetErrorString, which the caller believes to call.
    unsafe { *text = c"no CUDA driver".as_ptr() };
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_symbol_that_no_driver_has_answers_not_found_or_no_device() {
        let target = find(c"cuThereIsNoSuchFunction");
        match missing_driver() {
            None => assert_eq!(target, None),
            Some(reason) => {
                let target = target.expect("something stands in for it");
                // SAFETY: what stands in takes no arguments and returns an i32.
                let answer =
                    unsafe { std::mem::transmute::<*const c_void, extern "C" fn() -> i32>(target)() };
                assert_eq!(answer, NO_DEVICE);
                assert!(reason.starts_with("no CUDA driver: libcuda.so.1 cannot be opened"), "{reason}");
            }
        }
    }
}
