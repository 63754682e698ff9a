//! The anomaly mode through the C interface, on the emulator.

use super::tests::{INVALID, dense, empty, empty_backward, last_error, with_device};
use super::*;
use crate::buffer::{DeviceBuffer, InDeviceMemory};
use std::ptr;

const NON_FINITE: i32 = Status::NonFinite as i32;

/// A forward and then a backward pass of two rows of f32, one head, eight columns, with all of q and k these
/// numbers, and all of dO that one: statuses and texts.
fn passes(query: f32, key: f32, gradient: f32) -> [(i32, String); 2] {
    let mut outcomes = [(0, String::new()), (0, String::new())];
    with_device(|device| {
        // SAFETY: open meanwhile.
        let of = |number| DeviceBuffer::from_slice(unsafe { &*device }, &[number; 16]).unwrap();
        let buffers = [query, key, 1.0, 0.0, gradient, 0.0, 0.0, 0.0].map(of);
        let [q, k, v, o, d_o, dq, dk, dv] = [0, 1, 2, 3, 4, 5, 6, 7].map(|place: usize| CTensor {
            address: buffers[place].device_pointer(),
            ..dense([1, 2, 1, 8])
        });
        let lse = of(0.0);
        let lse = lse.device_pointer();
        let attention = CAttention { dtype: 2, output_dtype: 2, q, k, v, o, lse, ..empty().attention };
        let forward = CForwardArgs { attention, ..empty() };
        let backward = CBackwardArgs { attention, d_o, dq, dk, dv, ..empty_backward() };
        // SAFETY: the device is open, and each buffer as large as its tensor.
        outcomes[0].0 = unsafe { fattn_anomaly_forward(device, &forward, ptr::null_mut()) };
        outcomes[0].1 = last_error();
        // SAFETY: as above.
        outcomes[1].0 = unsafe { fattn_anomaly_backward(device, &backward, ptr::null_mut()) };
        outcomes[1].1 = last_error();
        0
    });
    outcomes
}

#[test]
fn finite_passes_succeed() {
    let [(forward, _), (backward, text)] = passes(1.0, 1.0, 1.0);
    assert_eq!((forward, backward), (0, 0), "{text}");
}

#[test]
fn a_score_that_overflows_is_named_with_its_stage() {
    let [(forward, text), _] = passes(3e30, 3e30, 1.0);
    assert_eq!(forward, NON_FINITE);
    assert!(text.starts_with("o: 16 NaN, 0 +inf, 0 -inf, the first at [0, 0, 0, 0]"), "{text}");
    assert!(text.contains("scores"), "{text}");
}

#[test]
fn an_input_of_the_backward_that_is_not_finite_is_named() {
    let [(forward, _), (backward, text)] = passes(1.0, 1.0, f32::INFINITY);
    assert_eq!((forward, backward), (0, NON_FINITE));
    assert!(text.starts_with("do: 0 NaN, 16 +inf, 0 -inf, the first at [0, 0, 0, 0]"), "{text}");
}

#[test]
fn wrong_arguments_are_refused_as_by_the_plain_passes() {
    let forward = CForwardArgs { pack_gqa: 3, ..empty() };
    // SAFETY: the device is open, and nothing is launched.
    let status =
        with_device(|device| unsafe { fattn_anomaly_forward(device, &forward, ptr::null_mut()) });
    assert_eq!((status, last_error().as_str()), (INVALID, "pack_gqa: expected 0, 1 or 2, got 3"));
    // SAFETY: null is allowed.
    let status = unsafe { fattn_anomaly_backward(ptr::null(), &empty_backward(), ptr::null_mut()) };
    let text = "fattn_anomaly_backward: expected a device and arguments, got null";
    assert_eq!((status, last_error().as_str()), (INVALID, text));
}
