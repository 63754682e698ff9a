//! The guards of training through the C interface, on the emulator.

use super::tests::{INVALID, last_error, with_device};
use super::training::CDeviceTensor;
use super::*;
use crate::buffer::{DeviceBuffer, InDeviceMemory};
use crate::training::GradScaler;
use std::ptr;

const NO_STREAM: *mut c_void = ptr::null_mut();

/// Calls with an emulator, a dense f32 tensor `[2, 2]` on it, and the buffer that it is in.
fn with_tensor(
    elements: [f32; 4],
    check: impl FnOnce(*const Device, CDeviceTensor, &DeviceBuffer<f32>),
) {
    with_device(|device| {
        // SAFETY: open meanwhile.
        let buffer = DeviceBuffer::from_slice(unsafe { &*device }, &elements).unwrap();
        let (name, shape) = (c"dq".as_ptr(), [2i64, 2].as_ptr());
        let address = buffer.device_pointer();
        let tensor = CDeviceTensor { address, name, shape, rank: 2, dtype: 2, ..Default::default() };
        check(device, tensor, &buffer);
        0
    });
}

#[test]
fn a_scan_counts_and_finds_the_first_in_logical_order() {
    with_tensor([3.0, f32::NAN, f32::INFINITY, 4.0], |device, tensor, _| {
        let mut found = CScanResult::default();
        // SAFETY: the device is open, and the tensor is as said.
        assert_eq!(unsafe { fattn_scan(device, &tensor, &mut found, NO_STREAM) }, 0, "{}", last_error());
        let CScanResult { nan, positive_infinity, negative_infinity, first, norm } = found;
        assert_eq!((nan, positive_infinity, negative_infinity, first), (1, 1, 0, 1));
        assert!(norm.is_nan());
        // Columns first: the NaN is at [1, 0] then.
        let transposed = CDeviceTensor { strides: [1i64, 2].as_ptr(), ..tensor };
        // SAFETY: as above.
        assert_eq!(unsafe { fattn_scan(device, &transposed, &mut found, NO_STREAM) }, 0);
        assert_eq!(found.first, 1, "the infinity");
        // One element, of no dimensions.
        let one = CDeviceTensor { rank: 0, shape: ptr::null(), ..tensor };
        // SAFETY: as above.
        assert_eq!(unsafe { fattn_scan(device, &one, &mut found, NO_STREAM) }, 0);
        assert_eq!((found.first, found.norm), (-1, 3.0));
    });
}

#[test]
fn gradients_are_unscaled_and_a_step_with_infinity_is_left_out() {
    let mut scaler: *mut GradScaler = ptr::null_mut();
    let (mut scale, mut take, mut count) = (0.0, -1, 0);
    // SAFETY: null is allowed, the place is writable.
    assert_eq!(unsafe { fattn_grad_scaler_create(ptr::null(), &mut scaler) }, 0);
    // SAFETY: the scaler is alive until it is destroyed at the end, places are writable.
    unsafe {
        assert_eq!(fattn_grad_scaler_scale(scaler, &mut scale), 0);
        assert_eq!(scale, 65536.0);
        for (third, expected) in [(1.0, (1, 0, 65536.0)), (f32::INFINITY, (0, 1, 32768.0))] {
            with_tensor([scale, 2.0 * scale, third * scale, 0.0], |device, tensor, buffer| {
                let unscale =
                    || fattn_grad_scaler_unscale(scaler, device, 7, &tensor, 1, &mut count, NO_STREAM);
                assert_eq!({ unscale }(), 0, "{}", last_error());
                assert_eq!(buffer.to_vec(Stream::default()).unwrap(), [1.0, 2.0, third, 0.0]);
                let again =
                    fattn_grad_scaler_unscale(scaler, device, 7, &tensor, 1, &mut count, NO_STREAM);
                assert_eq!(again, INVALID);
                assert!(last_error().starts_with("unscale: expected one call"), "{}", last_error());
            });
            assert_eq!(fattn_grad_scaler_step(scaler, 7, &mut take), 0);
            assert_eq!(fattn_grad_scaler_update(scaler, &mut scale), 0);
            assert_eq!((take, count, scale), expected);
        }
        let mut state = CGradScalerValues::default();
        assert_eq!(fattn_grad_scaler_state(scaler, &mut state), 0);
        assert_eq!((state.growth_interval, state.growth_tracker, state.scale), (2000, 0, 32768.0));
        assert_eq!(fattn_grad_scaler_note_unscaled(scaler, 1, 2), INVALID);
        assert_eq!(last_error(), "found_non_finite: expected 0 or 1, got 2");
        assert_eq!(fattn_grad_scaler_step(scaler, 1, &mut take), INVALID);
        assert_eq!(
            last_error(),
            "step: expected gradients that were unscaled, got a call before unscale"
        );
        assert_eq!(fattn_grad_scaler_update(scaler, ptr::null_mut()), INVALID);
        assert_eq!(last_error(), "fattn_grad_scaler_update: expected a place for the answer, got null");
        let mut other = ptr::null_mut();
        let wrong = CGradScalerValues { backoff_factor: 1.0, ..state };
        assert_eq!(fattn_grad_scaler_create(&wrong, &mut other), INVALID);
        assert_eq!(last_error(), "backoff_factor: expected a number above 0 and below 1, got 1");
        assert_eq!(fattn_grad_scaler_create(&state, &mut other), 0);
        fattn_grad_scaler_destroy(other);
        fattn_grad_scaler_destroy(scaler);
        fattn_grad_scaler_destroy(ptr::null_mut());
    }
}

#[test]
fn gradients_are_clipped_by_their_norm_unless_that_is_not_finite() {
    let (mut total, mut coefficient) = (0.0, 0.0);
    with_tensor([3.0, 0.0, 4.0, 12.0], |device, tensor, buffer| {
        // SAFETY: the device is open, the tensor as said, places writable or null.
        unsafe {
            let places: (*mut f32, *mut f32) = (&mut total, &mut coefficient);
            let clip = |places: (*mut f32, *mut f32), max| {
                fattn_clip_by_global_norm(device, &tensor, 1, max, 0, places.0, places.1, NO_STREAM)
            };
            assert_eq!(clip(places, 26.0), 0);
            assert_eq!(buffer.to_vec(Stream::default()).unwrap(), [3.0, 0.0, 4.0, 12.0]);
            assert_eq!(clip((ptr::null_mut(), ptr::null_mut()), 6.5), 0);
            assert_eq!(clip(places, -1.0), INVALID);
        }
        assert_eq!(last_error(), "max_norm: expected a number of at least 0, got -1");
        assert_eq!((total, coefficient), (13.0, 1.0));
        let halves = buffer.to_vec(Stream::default()).unwrap();
        assert!(halves.iter().zip([1.5, 0.0, 2.0, 6.0]).all(|(got, want)| (got - want).abs() < 1e-5));
    });
    with_tensor([3.0, f32::NAN, 4.0, 0.0], |device, tensor, buffer| {
        let clip = |kind| {
            // SAFETY: as above.
            unsafe {
                let (total, coefficient) = (&mut total, &mut coefficient);
                fattn_clip_by_global_norm(device, &tensor, 1, 1.0, kind, total, coefficient, NO_STREAM)
            }
        };
        let mut clip = clip;
        assert_eq!(clip(0), Status::NonFinite as i32);
        assert!(
            last_error().contains("dq has 1 NaN, 0 +inf, 0 -inf, the first at [0, 1]"),
            "{}",
            last_error()
        );
        assert_eq!(buffer.to_vec(Stream::default()).unwrap()[0], 3.0);
        assert_eq!(clip(2), INVALID);
        assert_eq!(last_error(), "non_finite: expected 0 or 1, got 2");
        assert_eq!(clip(1), 0);
        assert!(buffer.to_vec(Stream::default()).unwrap()[0].is_nan());
    });
}

#[test]
fn a_wrong_tensor_is_named() {
    with_tensor([1.0; 4], |device, tensor, _| {
        let mut found = CScanResult::default();
        let mut refused = |tensor: CDeviceTensor, text: &str| {
            // SAFETY: the device is open, and the call fails before anything is launched.
            let status = unsafe { fattn_scan(device, &tensor, &mut found, NO_STREAM) };
            assert_eq!((status, last_error().as_str()), (INVALID, text));
        };
        refused(CDeviceTensor { dtype: 3, ..tensor }, "dq: dtype: expected 0, 1 or 2, got 3");
        refused(CDeviceTensor { rank: -1, ..tensor }, "dq: expected a rank of at least 0, got -1");
        let no_name = CDeviceTensor { shape: ptr::null(), name: ptr::null(), ..tensor };
        refused(no_name, "tensors[0]: expected a shape of 2 sizes, got null");
        let negative = CDeviceTensor { shape: [2i64, -2].as_ptr(), ..tensor };
        refused(negative, "dq: expected sizes of at least 0, got [2, -2]");
        refused(CDeviceTensor { address: 0, ..tensor }, "dq: expected a device pointer, got null");
        // SAFETY: null is allowed.
        let status = unsafe { fattn_scan(device, ptr::null(), &mut found, NO_STREAM) };
        assert_eq!(
            (status, last_error().as_str()),
            (INVALID, "fattn_scan: expected 1 tensors, got null")
        );
    });
}
