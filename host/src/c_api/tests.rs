//! The C interface as a caller sees it.

use super::*;
use std::ptr;

fn last_error() -> String {
    // SAFETY: a NUL-terminated string of this thread.
    unsafe { CStr::from_ptr(fattn_last_error()) }.to_string_lossy().into_owned()
}

fn tensor() -> CTensor {
    CTensor { address: 0, shape: [0, 3, 2, 64], strides: [384, 128, 64, 1] }
}

/// A forward pass of no batches, so that there is nothing to compute.
fn empty() -> CForwardArgs {
    CForwardArgs {
        struct_bytes: size_of::<CForwardArgs>() as u32,
        dtype: 0,
        output_dtype: 0,
        mask: 0,
        scale: f32::NAN,
        reserved: 0,
        q: tensor(),
        k: tensor(),
        v: tensor(),
        o: tensor(),
        lse: 0,
    }
}

/// Opens the emulator, calls `fattn_forward`, and closes it.
fn call(args: &CForwardArgs) -> i32 {
    let mut device = ptr::null_mut();
    // SAFETY: a string and a writable place; a device that is open, valid arguments; closed once.
    unsafe {
        assert_eq!(fattn_device_open(c"emulated".as_ptr(), &mut device), 0);
        let status = fattn_forward(device, args, ptr::null_mut());
        fattn_device_close(device);
        status
    }
}

#[test]
fn an_unknown_device_is_an_argument_error_with_its_text() {
    let mut device = ptr::null_mut();
    // SAFETY: a string and a writable place.
    let status = unsafe { fattn_device_open(c"abacus".as_ptr(), &mut device) };
    assert_eq!((status, device), (Status::InvalidArgument as i32, ptr::null_mut()));
    assert!(last_error().contains("abacus"), "{}", last_error());
}

#[test]
fn null_is_refused() {
    // SAFETY: null is allowed.
    let open = unsafe { fattn_device_open(ptr::null(), ptr::null_mut()) };
    // SAFETY: null is allowed.
    let forward = unsafe { fattn_forward(ptr::null(), &empty(), ptr::null_mut()) };
    assert_eq!((open, forward), (Status::InvalidArgument as i32, Status::InvalidArgument as i32));
    assert_eq!(last_error(), "fattn_forward: expected a device and arguments, got null");
}

#[test]
fn an_empty_problem_succeeds() {
    assert_eq!(call(&empty()), 0);
}

#[test]
fn wrong_arguments_are_named() {
    let mut args = CForwardArgs { struct_bytes: 8, ..empty() };
    assert_eq!(call(&args), Status::InvalidArgument as i32);
    assert!(last_error().starts_with("fattn_forward: expected struct_bytes "), "{}", last_error());

    args = CForwardArgs { mask: 3, ..empty() };
    assert_eq!(call(&args), Status::InvalidArgument as i32);
    assert_eq!(last_error(), "mask: expected 0, 1 or 2, got 3");

    args = empty();
    args.k.shape[3] = 32;
    assert_eq!(call(&args), Status::InvalidArgument as i32);
    assert_eq!(last_error(), "k: expected head_dim 64 like q, got 32");
}
