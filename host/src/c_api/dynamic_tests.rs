//! Dynamic masks through the C interface, in the emulator.

use super::dynamic::*;
use super::*;
use crate::buffer::{DeviceBuffer, InDeviceMemory as _};
use std::ptr;

const INVALID: i32 = Status::InvalidArgument as i32;

fn last_error() -> String {
    // SAFETY: a string that lives until the next failure.
    unsafe { CStr::from_ptr(fattn_last_error()) }.to_string_lossy().into_owned()
}

/// A dense tensor, `[batch, row, head, column]` or `[batch, head, query, key]`.
fn dense(address: u64, shape: [i64; 4]) -> CTensor {
    let [_, b, c, d] = shape;
    CTensor { address, shape, strides: [b * c * d, c * d, d, 1] }
}

/// One query of zeros and four keys: scores are the bias, and o is the mean of the values that are kept. dO
/// is 1, so that dV is the probability of a key.
#[test]
fn keys_are_chosen_once_for_both_passes() {
    let device = Device::parse("emulated").unwrap();
    let buffer = |numbers: &[f32]| DeviceBuffer::from_slice(&device, numbers).unwrap();
    let (q, k, v) = (buffer(&[0.0]), buffer(&[1.0; 4]), buffer(&[1.0, 2.0, 4.0, 8.0]));
    let (bias, d_o) = (buffer(&[0.0, -1.0, 0.0, -1.0]), buffer(&[1.0]));
    let [o, lse, dq, dk, dv, d_bias] = [1, 1, 1, 4, 4, 4].map(|count| buffer(&vec![f32::NAN; count]));
    let at = |buffer: &DeviceBuffer<f32>, shape| dense(buffer.device_pointer(), shape);
    let keys = [1, 4, 1, 1];
    let attention = CAttention {
        dtype: 2,
        output_dtype: 2,
        scale: 1.0,
        q: at(&q, [1; 4]),
        k: at(&k, keys),
        v: at(&v, keys),
        o: at(&o, [1; 4]),
        lse: lse.device_pointer(),
        ..Default::default()
    };
    let scores = CScores { bias: at(&bias, [1, 1, 1, 4]), bias_dtype: 2, ..Default::default() };
    let struct_bytes = size_of::<CForwardArgs>() as u32;
    let args = CForwardArgs { struct_bytes, attention, scores, ..Default::default() };
    let backward = CBackwardArgs {
        struct_bytes: size_of::<CBackwardArgs>() as u32,
        attention,
        scores,
        gradients_f32: 1,
        d_o: at(&d_o, [1; 4]),
        dq: at(&dq, [1; 4]),
        dk: at(&dk, keys),
        dv: at(&dv, keys),
        d_bias: at(&d_bias, [1, 1, 1, 4]),
        ..Default::default()
    };
    let stream = ptr::null_mut();
    for way in [1, 2] {
        let mask = CDynamicMask { window: 2, block_size: 0, way, reserved: 0 };
        let mut chosen = ptr::null_mut();
        // SAFETY: the device is open, buffers hold the tensors, and live past the last copy.
        unsafe {
            let status = fattn_choose_keys(&device, &args, &mask, &mut chosen, stream);
            assert_eq!(status, 0, "{}", last_error());
            assert_eq!(fattn_choose_keys_again(chosen, &args, stream), 0, "{}", last_error());
            assert_eq!(fattn_dynamic_forward(chosen, &args, stream), 0, "{}", last_error());
            assert_eq!(fattn_dynamic_backward(chosen, &backward, stream), 0, "{}", last_error());
            let other = CForwardArgs { attention: CAttention { mask: 1, ..attention }, ..args };
            assert_eq!(fattn_dynamic_forward(chosen, &other, stream), INVALID);
            assert!(last_error().contains("expected the forward pass that was prepared"));
            fattn_free_chosen_keys(chosen);
        }
        let read = |buffer: &DeviceBuffer<f32>| buffer.to_vec(Stream::default()).unwrap();
        assert_eq!((read(&o), read(&dv)), (vec![2.5], vec![0.5, 0.0, 0.5, 0.0]), "way {way}");
        assert_eq!(read(&d_bias), [-0.75, 0.0, 0.75, 0.0], "way {way}");
        assert_eq!(read(&dk), [0.0; 4]);
    }
}

#[test]
fn wrong_dynamic_masks_are_named() {
    let device = Device::parse("emulated").unwrap();
    let struct_bytes = size_of::<CForwardArgs>() as u32;
    let tensor = dense(0, [0, 3, 2, 64]);
    let attention = CAttention { q: tensor, k: tensor, v: tensor, o: tensor, ..Default::default() };
    let args = CForwardArgs { struct_bytes, attention, ..Default::default() };
    let refused = |mask: CDynamicMask, text: &str| {
        let mut chosen = ptr::null_mut();
        // SAFETY: the device is open, and the tensors have no elements.
        let status = unsafe { fattn_choose_keys(&device, &args, &mask, &mut chosen, ptr::null_mut()) };
        assert_eq!((status, last_error().as_str()), (INVALID, text));
    };
    let mask = CDynamicMask { window: 2, block_size: 1, way: 0, reserved: 0 };
    refused(mask, "dynamic_mask: expected a bias, of which it is made, got none");
    refused(CDynamicMask { window: -1, ..mask }, "window: expected at least 0, got -1");
    refused(CDynamicMask { block_size: -2, ..mask }, "block_size: expected at least 0, got -2");
    refused(CDynamicMask { way: 3, ..mask }, "way: expected 0, 1 or 2, got 3");
    refused(CDynamicMask { reserved: 1, ..mask }, "fattn_choose_keys: expected 0 in reserved, got 1");
    // SAFETY: null is refused, or allowed.
    unsafe {
        assert_eq!(fattn_dynamic_forward(ptr::null(), &args, ptr::null_mut()), INVALID);
        assert_eq!(last_error(), "fattn_dynamic_forward: expected chosen keys, got null");
        fattn_free_chosen_keys(ptr::null_mut());
    }
}
