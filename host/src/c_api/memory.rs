//! Device memory, streams and the version, for callers that have no CUDA runtime, or no GPU.

use super::convert::failure;
use super::{Failure, guarded, invalid};
use crate::device::Device;
use crate::driver::Stream;
use std::ffi::{c_char, c_void};

/// The device of a call.
///
/// # Safety
/// `device` is null or valid.
pub unsafe fn opened<'a>(function: &str, device: *const Device) -> Result<&'a Device, Failure> {
    // SAFETY: passed on to the caller.
    unsafe { device.as_ref() }.ok_or_else(|| invalid(format!("{function}: expected a device, got null")))
}

/// A number of bytes of the host, and that there is an address for them.
fn host_bytes(
    function: &str,
    argument: &str,
    memory: *const c_void,
    bytes: u64,
) -> Result<usize, Failure> {
    if memory.is_null() && bytes != 0 {
        return Err(invalid(format!("{function}: expected a {argument} of {bytes} bytes, got null")));
    }
    let fits = usize::try_from(bytes).ok().filter(|&bytes| isize::try_from(bytes).is_ok());
    fits.ok_or_else(|| invalid(format!("{function}: expected bytes below 2^63, got {bytes}")))
}

/// Allocates device memory, aligned to 256 bytes, whose contents are undefined. Of 0 bytes the address is 0.
///
/// # Safety
/// `device` is null or valid, `address` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fattn_allocate(device: *const Device, bytes: u64, address: *mut u64) -> i32 {
    guarded(|| {
        // SAFETY: passed on to the caller.
        let device = unsafe { opened("fattn_allocate", device) }?;
        if address.is_null() {
            return Err(invalid("fattn_allocate: expected a place for the address, got null"));
        }
        let size = usize::try_from(bytes).unwrap_or(usize::MAX);
        let allocated = if size == 0 { Ok(0) } else { device.driver().allocate(size) };
        // SAFETY: not null, and the caller vouches for the rest.
        unsafe { address.write(allocated.map_err(failure)?) };
        Ok(())
    })
}

/// Frees memory behind all work on the default stream; that on others must have been waited for. Address 0 is
/// allowed.
///
/// # Safety
/// `device` is null or valid; `address` is 0 or came from [`fattn_allocate`] of this device, was not freed
/// before, and no work on another stream uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fattn_free(device: *const Device, address: u64) -> i32 {
    guarded(|| {
        // SAFETY: passed on to the caller.
        let device = unsafe { opened("fattn_free", device) }?;
        if address == 0 {
            return Ok(());
        }
        device.synchronize(Stream::default()).map_err(failure)?;
        // SAFETY: passed on to the caller.
        unsafe { device.driver().free(address) }.map_err(failure)
    })
}

/// Copies host memory to the device, behind all work on `stream`; done when it returns.
///
/// # Safety
/// `device` is null or valid; `source` is null or readable, for that many bytes; no work on another stream
/// uses the destination.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fattn_copy_to_device(
    device: *const Device,
    destination: u64,
    source: *const c_void,
    bytes: u64,
    stream: *mut c_void,
) -> i32 {
    guarded(|| {
        let function = "fattn_copy_to_device";
        // SAFETY: passed on to the caller.
        let device = unsafe { opened(function, device) }?;
        let size = host_bytes(function, "source", source, bytes)?;
        device.synchronize(Stream(stream as usize)).map_err(failure)?;
        if size == 0 {
            return Ok(());
        }
        // SAFETY: not null, and readable by the caller's word.
        let source = unsafe { std::slice::from_raw_parts(source.cast(), size) };
        device.driver().copy_to_device(destination, source).map_err(failure)
    })
}

/// Copies device memory to the host, behind all work on `stream`; done when it returns.
///
/// # Safety
/// `device` is null or valid; `destination` is null or writable, for that many bytes, and used by nobody
/// else.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fattn_copy_to_host(
    device: *const Device,
    destination: *mut c_void,
    source: u64,
    bytes: u64,
    stream: *mut c_void,
) -> i32 {
    guarded(|| {
        let function = "fattn_copy_to_host";
        // SAFETY: passed on to the caller.
        let device = unsafe { opened(function, device) }?;
        let size = host_bytes(function, "destination", destination, bytes)?;
        let stream = Stream(stream as usize);
        if size == 0 {
            return device.synchronize(stream).map_err(failure);
        }
        // SAFETY: not null, and writable by the caller's word; what the caller has never written is
        // written first.
        let destination = unsafe {
            destination.write_bytes(0, size);
            std::slice::from_raw_parts_mut(destination.cast(), size)
        };
        device.driver().copy_to_host(destination, source, stream).map_err(failure)
    })
}

/// Waits for everything queued on `stream`, and reports what went wrong since the last call.
///
/// # Safety
/// `device` is null or valid, `stream` null or alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fattn_synchronize(device: *const Device, stream: *mut c_void) -> i32 {
    guarded(|| {
        // SAFETY: passed on to the caller.
        let device = unsafe { opened("fattn_synchronize", device) }?;
        device.synchronize(Stream(stream as usize)).map_err(failure)
    })
}

/// The version of the library: `0.1.0`.
#[unsafe(no_mangle)]
pub extern "C" fn fattn_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
