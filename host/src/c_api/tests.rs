//! The C interface as a caller sees it.

use super::*;
use crate::buffer::{DeviceBuffer, InDeviceMemory};
use std::ptr;

const INVALID: i32 = Status::InvalidArgument as i32;

fn last_error() -> String {
    // SAFETY: a NUL-terminated string of this thread.
    unsafe { CStr::from_ptr(fattn_last_error()) }.to_string_lossy().into_owned()
}

fn dense(shape: [i64; 4]) -> CTensor {
    let [_, rows, heads, columns] = shape;
    CTensor { address: 0, shape, strides: [rows * heads * columns, heads * columns, columns, 1] }
}

/// A forward pass of no batches, so that there is nothing to compute.
fn empty() -> CForwardArgs {
    let tensor = dense([0, 3, 2, 64]);
    let attention =
        CAttention { scale: f32::NAN, q: tensor, k: tensor, v: tensor, o: tensor, ..Default::default() };
    CForwardArgs { struct_bytes: size_of::<CForwardArgs>() as u32, attention, ..Default::default() }
}

/// The backward pass of the same.
fn empty_backward() -> CBackwardArgs {
    let tensor = dense([0, 3, 2, 64]);
    CBackwardArgs {
        struct_bytes: size_of::<CBackwardArgs>() as u32,
        attention: empty().attention,
        d_o: tensor,
        dq: tensor,
        dk: tensor,
        dv: tensor,
        ..Default::default()
    }
}

/// Calls with an emulator that is open meanwhile.
fn with_device(call: impl FnOnce(*const Device) -> i32) -> i32 {
    let mut device = ptr::null_mut();
    // SAFETY: a string and a writable place.
    assert_eq!(unsafe { fattn_device_open(c"emulated".as_ptr(), &mut device) }, 0);
    let status = call(device);
    // SAFETY: opened above, closed once.
    unsafe { fattn_device_close(device) };
    status
}

fn forward_of(args: &CForwardArgs) -> i32 {
    // SAFETY: the device is open, the arguments are valid and have no elements.
    with_device(|device| unsafe { fattn_forward(device, args, ptr::null_mut()) })
}

fn backward_of(args: &CBackwardArgs) -> i32 {
    // SAFETY: the device is open, the arguments are valid and have no elements.
    with_device(|device| unsafe { fattn_backward(device, args, ptr::null_mut()) })
}

#[track_caller]
fn refused(change: impl FnOnce(&mut CForwardArgs), text: &str) {
    let mut args = empty();
    change(&mut args);
    assert_eq!((forward_of(&args), last_error()), (INVALID, text.to_owned()));
}

#[test]
fn an_unknown_device_is_an_argument_error_with_its_text() {
    let mut device = ptr::null_mut();
    // SAFETY: a string and a writable place.
    let status = unsafe { fattn_device_open(c"abacus".as_ptr(), &mut device) };
    assert_eq!((status, device), (INVALID, ptr::null_mut()));
    assert!(last_error().contains("abacus"), "{}", last_error());
}

#[test]
fn null_is_refused() {
    // SAFETY: null is allowed.
    let open = unsafe { fattn_device_open(ptr::null(), ptr::null_mut()) };
    // SAFETY: null is allowed.
    let forward = unsafe { fattn_forward(ptr::null(), &empty(), ptr::null_mut()) };
    assert_eq!((open, forward), (INVALID, INVALID));
    assert_eq!(last_error(), "fattn_forward: expected a device and arguments, got null");
    // SAFETY: null is allowed.
    let size =
        |device| unsafe { fattn_backward_workspace_bytes(device, &empty_backward(), ptr::null_mut()) };
    assert_eq!(with_device(size), INVALID);
    assert_eq!(last_error(), "fattn_backward_workspace_bytes: expected a place for the size, got null");
}

#[test]
fn an_empty_problem_succeeds() {
    assert_eq!(forward_of(&empty()), 0);
    assert_eq!(backward_of(&empty_backward()), 0);
}

#[test]
fn a_struct_of_another_version_is_refused() {
    let bytes = size_of::<CForwardArgs>();
    let text = format!("fattn_forward: expected struct_bytes {bytes}, got 8");
    refused(|args| args.struct_bytes = 8, &text);
    assert_eq!(backward_of(&CBackwardArgs { struct_bytes: 8, ..empty_backward() }), INVALID);
    assert!(last_error().starts_with("fattn_backward: expected struct_bytes "), "{}", last_error());
    refused(|args| args.reserved = 1, "fattn_forward: expected 0 in reserved, got 1");
}

#[test]
fn wrong_arguments_are_named() {
    refused(|args| args.pack_gqa = 3, "pack_gqa: expected 0, 1 or 2, got 3");
    refused(|args| args.num_splits = 129, "num_splits: expected 1 to 128 ranges of keys, got 129");
    refused(|args| args.attention.mask = 4, "mask: expected 0, 1, 2 or 3, got 4");
    refused(|args| args.attention.mask = -1, "mask: expected 0, 1, 2 or 3, got -1");
    refused(|args| args.attention.alignment = 2, "alignment: expected 0 or 1, got 2");
    refused(|args| args.attention.dtype = -1, "dtype: expected 0, 1 or 2, got -1");
    refused(
        |args| (args.attention.mask, args.attention.window_left) = (2, -2),
        "window_left: expected -1 to 4294967295, got -2",
    );
    let no_window = "expected 0 or -1 with a mask that has no window";
    refused(|args| args.attention.window_left = 128, &format!("window_left: {no_window}, got 128"));
    refused(
        |args| (args.attention.mask, args.attention.window_right) = (1, 5),
        &format!("window_right: {no_window}, got 5"),
    );
    refused(
        |args| (args.attention.cu_seqlens_k, args.attention.sequences) = (256, -1),
        "sequences: expected at least 0, got -1",
    );
    let without = "expected 0 without addresses of cu_seqlens_q and cu_seqlens_k";
    refused(|args| args.attention.sequences = 2, &format!("sequences: {without}, got 2"));
    refused(|args| args.attention.max_query_rows = 7, &format!("max_query_rows: {without}, got 7"));
    refused(|args| args.attention.max_key_rows = -1, &format!("max_key_rows: {without}, got -1"));
    refused(|args| args.attention.k.shape[3] = 32, "k: expected head_dim 64 like q, got 32");
    refused(
        |args| args.attention.scale = f32::INFINITY,
        "scale: expected a number from -1.1793287e38 to 1.1793287e38, got inf",
    );
    let backward = CBackwardArgs { deterministic: 2, ..empty_backward() };
    assert_eq!(backward_of(&backward), INVALID);
    assert_eq!(last_error(), "deterministic: expected 0 or 1, got 2");
}

/// Where the cap is now, callers wrote 0 before there was one: structs of the same size, and no cap.
#[test]
fn what_was_reserved_is_the_cap_and_0_is_none() {
    let softcap = |softcap| {
        let attention = CAttention { softcap, ..empty().attention };
        convert::forward_problem(&CForwardArgs { attention, ..empty() }).unwrap().softcap
    };
    assert_eq!((softcap(f32::from_bits(0)), softcap(30.0)), (None, Some(30.0)));
    assert_eq!(std::mem::offset_of!(CAttention, softcap), 36);
    assert_eq!((size_of::<CForwardArgs>(), size_of::<CBackwardArgs>()), (392, 704));
    let range = "softcap: expected a number above 0 and of at most 1.1793287e38";
    refused(|args| args.attention.softcap = -1.0, &format!("{range}, got -1e0"));
    refused(|args| args.attention.softcap = f32::NAN, &format!("{range}, got NaN"));
    let attention = CAttention { softcap: f32::INFINITY, ..empty().attention };
    assert_eq!(backward_of(&CBackwardArgs { attention, ..empty_backward() }), INVALID);
    assert_eq!(last_error(), format!("{range}, got inf"));
}

#[test]
fn masks_are_numbers_with_the_sides_of_a_window() {
    let mask = |mask, alignment, window_left, window_right| {
        let attention = CAttention { mask, alignment, window_left, window_right, ..empty().attention };
        convert::forward_problem(&CForwardArgs { attention, ..empty() }).unwrap().mask.to_string()
    };
    assert_eq!(mask(0, 0, 0, -1), "full");
    assert_eq!(mask(1, 1, -1, -1), "causal-top-left");
    assert_eq!(mask(2, 1, -1, 5), "window-top-left(open,5)");
    assert_eq!(mask(3, 0, 7, 5), "window(7,0)");
    assert_eq!(mask(3, 1, 7, -1), "window-top-left(7,0)");
}

/// Two packed sequences of one and two rows whose keys are all the same: each o is v, and the
/// gradients of q and k are 0.
#[test]
fn a_packed_backward_runs_through_its_workspace() {
    let device = Device::parse("emulated").unwrap();
    let buffer = |value: f32| DeviceBuffer::from_slice(&device, &[value; 3 * 4]).unwrap();
    let (q, k, v, d_o) = (buffer(0.5), buffer(1.0), buffer(2.0), buffer(1.0));
    let (o, dq, dk, dv) = (buffer(9.0), buffer(9.0), buffer(9.0), buffer(9.0));
    let lse = DeviceBuffer::<f32>::uninitialised(&device, 3).unwrap();
    let offsets = DeviceBuffer::from_slice(&device, &[0i32, 1, 3]).unwrap();
    let tensor =
        |buffer: &DeviceBuffer<f32>| CTensor { address: buffer.device_pointer(), ..dense([1, 3, 1, 4]) };
    let attention = CAttention {
        dtype: 2,
        output_dtype: 2,
        mask: 1,
        scale: f32::NAN,
        q: tensor(&q),
        k: tensor(&k),
        v: tensor(&v),
        o: tensor(&o),
        lse: lse.device_pointer(),
        cu_seqlens_q: offsets.device_pointer(),
        cu_seqlens_k: offsets.device_pointer(),
        sequences: 2,
        max_query_rows: 2,
        max_key_rows: 2,
        ..Default::default()
    };
    let forward = CForwardArgs { attention, ..empty() };
    let mut backward = CBackwardArgs {
        attention,
        d_o: tensor(&d_o),
        dq: tensor(&dq),
        dk: tensor(&dk),
        dv: tensor(&dv),
        deterministic: 1,
        ..empty_backward()
    };
    let (mut bytes, stream) = (0, ptr::null_mut());
    // SAFETY: the device is open, and every address is that of a buffer as large as its tensor.
    unsafe {
        assert_eq!(fattn_forward(&device, &forward, stream), 0, "{}", last_error());
        assert_eq!(fattn_backward_workspace_bytes(&device, &backward, &mut bytes), 0);
        assert_eq!(fattn_backward(&device, &backward, stream), INVALID, "there is no workspace yet");
        let workspace = DeviceBuffer::<f32>::uninitialised(&device, bytes as usize / 4).unwrap();
        (backward.workspace, backward.workspace_bytes) = (workspace.device_pointer(), bytes);
        assert_eq!(fattn_backward(&device, &backward, stream), 0, "{}", last_error());
    }
    let read = |buffer: &DeviceBuffer<f32>| buffer.to_vec(Stream::default()).unwrap();
    assert_eq!(read(&o), [2.0; 12]);
    assert_eq!((read(&dq), read(&dk)), (vec![0.0; 12], vec![0.0; 12]));
    // Of the second sequence, the first key is seen by both rows: once alone, once with the other key.
    for (got, expected) in read(&dv).chunks(4).zip([1.0, 1.5, 0.5]) {
        assert!(got.iter().all(|got| (got - expected).abs() < 1e-6), "{got:?}, expected {expected}");
    }
}
