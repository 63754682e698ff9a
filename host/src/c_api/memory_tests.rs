//! Device memory through the C interface, on the emulator.

use super::tests::{INVALID, last_error, with_device};
use super::*;
use std::ptr;

const FAILED: i32 = Status::DeviceFailed as i32;
const NO_STREAM: *mut c_void = ptr::null_mut();

fn allocated(device: *const Device, bytes: u64) -> u64 {
    let mut address = 0;
    // SAFETY: the device is open, and the place writable.
    assert_eq!(unsafe { fattn_allocate(device, bytes, &mut address) }, 0, "{}", last_error());
    address
}

#[test]
fn what_is_copied_to_the_device_comes_back() {
    let status = with_device(|device| {
        let (written, mut read) = ([1.5f32, -2.0, 3.0], [0f32; 3]);
        let address = allocated(device, 12);
        assert!(address != 0 && address.is_multiple_of(256));
        // SAFETY: the device is open, and host memory has as many bytes as said.
        unsafe {
            assert_eq!(fattn_copy_to_device(device, address, written.as_ptr().cast(), 12, NO_STREAM), 0);
            assert_eq!(fattn_synchronize(device, NO_STREAM), 0);
            assert_eq!(fattn_copy_to_host(device, read.as_mut_ptr().cast(), address, 12, NO_STREAM), 0);
            assert_eq!(read, written);
            assert_eq!(fattn_free(device, address), 0);
            // Nothing is no address, and is copied and freed as nothing.
            assert_eq!(allocated(device, 0), 0);
            assert_eq!(fattn_copy_to_device(device, 0, ptr::null(), 0, NO_STREAM), 0);
            assert_eq!(fattn_copy_to_host(device, ptr::null_mut(), 0, 0, NO_STREAM), 0);
            fattn_free(device, 0)
        }
    });
    assert_eq!(status, 0);
}

#[test]
fn wrong_memory_is_an_error_with_its_text() {
    with_device(|device| {
        let address = allocated(device, 8);
        let mut bytes = [0u8; 16];
        // SAFETY: the device is open; the emulator checks addresses of its own memory.
        unsafe {
            let source = bytes.as_ptr().cast();
            assert_eq!(fattn_copy_to_device(device, address, source, 16, NO_STREAM), FAILED);
            assert!(last_error().contains("16"), "{}", last_error());
            let destination = bytes.as_mut_ptr().cast();
            assert_eq!(fattn_copy_to_host(device, destination, address, 16, NO_STREAM), FAILED);
            assert_eq!(fattn_free(device, address), 0);
            assert_eq!(fattn_free(device, address), FAILED, "freed twice");
            assert_eq!(fattn_free(device, 4096 + 1), FAILED, "never allocated");
            let mut address = 7;
            assert_eq!(fattn_allocate(device, u64::MAX, &mut address), FAILED);
            assert_eq!(address, 7);
            assert!(last_error().contains("out of memory"), "{}", last_error());
        }
        0
    });
}

#[test]
fn null_is_refused_with_the_name_of_the_function() {
    // SAFETY: null is allowed everywhere.
    unsafe {
        let refused =
            |status: i32, text: &str| assert_eq!((status, last_error().as_str()), (INVALID, text));
        refused(fattn_free(ptr::null(), 256), "fattn_free: expected a device, got null");
        refused(
            fattn_synchronize(ptr::null(), NO_STREAM),
            "fattn_synchronize: expected a device, got null",
        );
        refused(
            with_device(|device| fattn_allocate(device, 4, ptr::null_mut())),
            "fattn_allocate: expected a place for the address, got null",
        );
        refused(
            with_device(|device| fattn_copy_to_device(device, 256, ptr::null(), 4, NO_STREAM)),
            "fattn_copy_to_device: expected a source of 4 bytes, got null",
        );
        refused(
            with_device(|device| fattn_copy_to_host(device, ptr::null_mut(), 256, 4, NO_STREAM)),
            "fattn_copy_to_host: expected a destination of 4 bytes, got null",
        );
        let byte = [0u8].as_ptr().cast();
        refused(
            with_device(|device| fattn_copy_to_device(device, 256, byte, u64::MAX, NO_STREAM)),
            "fattn_copy_to_device: expected bytes below 2^63, got 18446744073709551615",
        );
    }
}

#[test]
fn the_version_is_that_of_the_package() {
    // SAFETY: a NUL-terminated string.
    let version = unsafe { CStr::from_ptr(fattn_version()) };
    assert_eq!(version.to_str(), Ok(env!("CARGO_PKG_VERSION")));
}
