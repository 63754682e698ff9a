//! Passes over some of the keys through the C interface, in the emulator.

use super::*;
use crate::buffer::{DeviceBuffer, InDeviceMemory as _};
use std::ptr;

fn last_error() -> String {
    // SAFETY: a string that lives until the next failure.
    unsafe { CStr::from_ptr(fattn_last_error()) }.to_string_lossy().into_owned()
}

/// A dense tensor of one batch, one head and one column.
fn rows(address: u64, count: i64) -> CTensor {
    CTensor { address, shape: [1, count, 1, 1], strides: [count, 1, 1, 1] }
}

/// One query of zeros and five keys, in two passes: every probability is 1/5, o is the mean of the values,
/// and dv the probability of a key; of the last two it is added to 10.
#[test]
fn passes_over_some_of_the_keys_are_one_over_all() {
    let device = Device::parse("emulated").unwrap();
    let buffer = |numbers: &[f32]| DeviceBuffer::from_slice(&device, numbers).unwrap();
    let (q, k, v) = (buffer(&[0.0]), buffer(&[1.0; 5]), buffer(&[1.0, 2.0, 4.0, 8.0, 16.0]));
    let (d_o, dk) = (buffer(&[1.0]), buffer(&[0.0; 5]));
    let dv = buffer(&[f32::NAN, f32::NAN, f32::NAN, 10.0, 10.0]);
    let [o, lse, dq] = [1; 3].map(|count| buffer(&vec![f32::NAN; count]));
    let stream = ptr::null_mut();
    let of_keys = |first: i64, count: i64| CAttention {
        dtype: 2,
        output_dtype: 2,
        scale: 1.0,
        q: rows(q.device_pointer(), 1),
        k: rows(k.device_pointer() + 4 * first as u64, count),
        v: rows(v.device_pointer() + 4 * first as u64, count),
        o: rows(o.device_pointer(), 1),
        lse: lse.device_pointer(),
        ..Default::default()
    };
    let passes = [(0, 3), (3, 2)];
    let undefined = |bytes: u64| buffer(&vec![f32::NAN; bytes as usize / 4]);
    let pass = |number: usize, state: &DeviceBuffer<f32>| CPartial {
        state: state.device_pointer(),
        is_first: u32::from(number == 0),
        is_last: u32::from(number == 1),
        ..Default::default()
    };
    let mut state = None;
    for (number, (first, count)) in passes.into_iter().enumerate() {
        let struct_bytes = size_of::<CForwardArgs>() as u32;
        let args = CForwardArgs { struct_bytes, attention: of_keys(first, count), ..Default::default() };
        let mut bytes = 0;
        // SAFETY: everything is valid, and the buffers are as large as the shapes say.
        let status = unsafe { fattn_forward_state_bytes(&device, &args, &mut bytes) };
        assert_eq!(status, 0, "{}", last_error());
        let state = state.get_or_insert_with(|| undefined(bytes));
        let partial = CPartial { total_keys: 5, ..pass(number, state) };
        // SAFETY: as above.
        let status = unsafe { fattn_forward_partial(&device, &args, &partial, stream) };
        assert_eq!(status, 0, "{}", last_error());
    }
    let near = |buffer: &DeviceBuffer<f32>, expected: &[f32]| {
        let got = buffer.to_vec(Stream::default()).unwrap();
        let is_near = got.iter().zip(expected).all(|(got, expected)| (got - expected).abs() < 2e-6);
        assert!(got.len() == expected.len() && is_near, "{got:?} {expected:?}");
    };
    near(&o, &[6.2]);
    near(&lse, &[5.0_f32.ln()]);
    let mut state = None;
    for (number, (first, count)) in passes.into_iter().enumerate() {
        let mut args = CBackwardArgs {
            struct_bytes: size_of::<CBackwardArgs>() as u32,
            attention: of_keys(first, count),
            gradients_f32: 1,
            d_o: rows(d_o.device_pointer(), 1),
            dq: rows(dq.device_pointer(), 1),
            dk: rows(dk.device_pointer() + 4 * first as u64, count),
            dv: rows(dv.device_pointer() + 4 * first as u64, count),
            ..Default::default()
        };
        let mut bytes = 0;
        // SAFETY: as above.
        let status = unsafe { fattn_backward_state_bytes(&device, &args, &mut bytes) };
        assert_eq!(status, 0, "{}", last_error());
        let state = state.get_or_insert_with(|| undefined(bytes));
        let adds_to_keys = u32::from(number == 1);
        let partial = CPartial { adds_to_keys, dq_f32: 1, ..pass(number, state) };
        // SAFETY: as above.
        let status =
            unsafe { fattn_backward_partial_workspace_bytes(&device, &args, &partial, &mut bytes) };
        assert_eq!(status, 0, "{}", last_error());
        let workspace = undefined(bytes);
        (args.workspace, args.workspace_bytes) = (workspace.device_pointer(), bytes);
        // SAFETY: as above.
        let status = unsafe { fattn_backward_partial(&device, &args, &partial, stream) };
        assert_eq!(status, 0, "{}", last_error());
        device.synchronize(Stream::default()).unwrap();
    }
    near(&dq, &[0.0]);
    near(&dv, &[0.2, 0.2, 0.2, 10.2, 10.2]);
}

#[test]
fn what_is_wrong_with_a_pass_is_named() {
    let device = Device::parse("emulated").unwrap();
    let args = CForwardArgs { struct_bytes: size_of::<CForwardArgs>() as u32, ..Default::default() };
    let refused = |partial: *const CPartial| {
        // SAFETY: it is refused before any tensor is touched.
        let status = unsafe { fattn_forward_partial(&device, &args, partial, ptr::null_mut()) };
        assert_eq!(status, Status::InvalidArgument as i32);
        last_error()
    };
    assert_eq!(refused(ptr::null()), "fattn_forward_partial: expected which pass it is, got null");
    let partial = CPartial { is_last: 2, ..Default::default() };
    assert_eq!(refused(&partial), "is_last: expected 0 or 1, got 2");
    let partial = CPartial { reserved: 7, ..Default::default() };
    assert_eq!(refused(&partial), "fattn_forward_partial: expected 0 in reserved, got 7");
}
