//! The C interface as a caller sees it.

use super::*;
use crate::buffer::{DeviceBuffer, InDeviceMemory};
use crate::plan::ScorePointers;
use crate::problem::{AlibiSlopes, Bias, Dropout, ScoreLayout};
use kernels_gpu::abi::Dtype;
use std::ptr;

pub(super) const INVALID: i32 = Status::InvalidArgument as i32;

pub(super) fn last_error() -> String {
    // SAFETY: a NUL-terminated string of this thread.
    unsafe { CStr::from_ptr(fattn_last_error()) }.to_string_lossy().into_owned()
}

pub(super) fn dense(shape: [i64; 4]) -> CTensor {
    let [_, rows, heads, columns] = shape;
    CTensor { address: 0, shape, strides: [rows * heads * columns, heads * columns, columns, 1] }
}

/// A forward pass of no batches, so that there is nothing to compute.
pub(super) fn empty() -> CForwardArgs {
    let tensor = dense([0, 3, 2, 64]);
    let attention =
        CAttention { scale: f32::NAN, q: tensor, k: tensor, v: tensor, o: tensor, ..Default::default() };
    CForwardArgs { struct_bytes: size_of::<CForwardArgs>() as u32, attention, ..Default::default() }
}

/// The backward pass of the same.
pub(super) fn empty_backward() -> CBackwardArgs {
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
pub(super) fn with_device(call: impl FnOnce(*const Device) -> i32) -> i32 {
    let mut device = ptr::null_mut();
    // SAFETY: a string and a writable place.
    assert_eq!(unsafe { fattn_device_open(c"emulated".as_ptr(), &mut device) }, 0);
    let status = call(device);
    // SAFETY: opened above, closed once.
    unsafe { fattn_device_close(device) };
    status
}

pub(super) fn forward_of(args: &CForwardArgs) -> i32 {
    // SAFETY: the device is open, the arguments are valid and have no elements.
    with_device(|device| unsafe { fattn_forward(device, args, ptr::null_mut()) })
}

pub(super) fn backward_of(args: &CBackwardArgs) -> i32 {
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
fn preparing_refuses_what_the_call_would() {
    let mut forward = empty();
    forward.attention.mask = 4;
    // SAFETY: the device is open, no tensor is touched.
    let refused = with_device(|device| unsafe { fattn_prepare_forward(device, &forward) });
    assert_eq!((refused, last_error()), (INVALID, "mask: expected 0, 1, 2 or 3, got 4".to_owned()));
    let backward = CBackwardArgs { struct_bytes: 8, ..empty_backward() };
    // SAFETY: as above.
    let refused = with_device(|device| unsafe { fattn_prepare_backward(device, &backward) });
    assert_eq!(refused, INVALID);
    assert!(
        last_error().starts_with("fattn_prepare_backward: expected struct_bytes"),
        "{}",
        last_error()
    );
    // SAFETY: as above.
    let nothing = with_device(|device| unsafe { fattn_prepare_forward(device, &empty()) });
    assert_eq!(nothing, 0);
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
    refused(|args| args.reserved_2 = 1, "fattn_forward: expected 0 in reserved_2, got 1");
}

#[test]
fn wrong_arguments_are_named() {
    refused(|args| args.pack_gqa = 3, "pack_gqa: expected 0, 1 or 2, got 3");
    refused(|args| args.precision = -1, "precision: expected 0, 1 or 2, got -1");
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
        convert::forward_problem(&CForwardArgs { attention, ..empty() }, None).unwrap().softcap
    };
    assert_eq!((softcap(f32::from_bits(0)), softcap(30.0)), (None, Some(30.0)));
    assert_eq!(std::mem::offset_of!(CAttention, softcap), 36);
    // Structs of that time end where scores begin now.
    let bytes =
        [std::mem::offset_of!(CForwardArgs, scores), std::mem::offset_of!(CBackwardArgs, scores)];
    assert_eq!(bytes, [392, 704]);
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
        convert::forward_problem(&CForwardArgs { attention, ..empty() }, None).unwrap().mask.to_string()
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
        assert_eq!(fattn_prepare_forward(&device, &forward), 0, "{}", last_error());
        assert_eq!(fattn_prepare_backward(&device, &backward), 0, "{}", last_error());
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

/// Callers of before have structs that end where scores begin now, dropout or precision; what stands behind
/// them is not looked at.
#[test]
fn structs_of_before_are_known() {
    let mut forward = CForwardArgs { precision: 3, ..empty() };
    let text = "precision: expected 0, 1 or 2, got 3";
    assert_eq!((forward_of(&forward), last_error().as_str()), (INVALID, text));
    forward.struct_bytes = 392 + 104 + 24;
    assert_eq!(forward_of(&forward), 0);
    let mut backward = CBackwardArgs { precision: 3, ..empty_backward() };
    assert_eq!((backward_of(&backward), last_error().as_str()), (INVALID, text));
    backward.struct_bytes = 704 + 104 + 88 + 24;
    assert_eq!(backward_of(&backward), 0);

    let dropout = CDropout { rate: 1.0, ..Default::default() };
    let mut forward = CForwardArgs { dropout, ..empty() };
    let text = "dropout_rate: expected a number of at least 0 and below 0.9999924, so that something is \
                kept, got 1";
    assert_eq!((forward_of(&forward), last_error().as_str()), (INVALID, text));
    forward.struct_bytes = 392 + 104;
    assert_eq!(forward_of(&forward), 0);
    let mut backward = CBackwardArgs { dropout, ..empty_backward() };
    assert_eq!((backward_of(&backward), last_error().as_str()), (INVALID, text));
    backward.struct_bytes = 704 + 104 + 88;
    assert_eq!(backward_of(&backward), 0);

    let scores = CScores { alibi_per_batch: 7, ..Default::default() };
    let mut forward = CForwardArgs { scores, ..empty() };
    let text = "alibi_per_batch: expected 0 or 1, got 7";
    assert_eq!((forward_of(&forward), last_error().as_str()), (INVALID, text));
    forward.struct_bytes = 392;
    assert_eq!(forward_of(&forward), 0);
    let mut backward = CBackwardArgs { scores, ..empty_backward() };
    assert_eq!((backward_of(&backward), last_error().as_str()), (INVALID, text));
    backward.struct_bytes = 704;
    assert_eq!(backward_of(&backward), 0);
    for bytes in [391, 393, 704] {
        refused(
            |args| args.struct_bytes = bytes,
            &format!("fattn_forward: expected struct_bytes {}, got {bytes}", size_of::<CForwardArgs>()),
        );
    }
}

#[test]
fn dropout_is_in_the_problem() {
    let (seed, offset) = (u64::MAX, 1 << 40);
    let of = |rate| CDropout { rate, reserved: 0, seed, offset };
    let forward = |rate| {
        convert::forward_problem(&CForwardArgs { dropout: of(rate), ..empty() }, None).unwrap().dropout
    };
    let backward = CBackwardArgs { dropout: of(0.25), ..empty_backward() };
    let backward = convert::backward_problem(&backward, None).unwrap().forward.dropout;
    let expected = Some(Dropout { rate: 0.25, seed, offset });
    assert_eq!((forward(0.25), backward, forward(0.0)), (expected, expected, None));
    let text = "fattn_forward: expected 0 in dropout.reserved, got 1";
    refused(|args| args.dropout.reserved = 1, text);
    let dropout = CDropout { reserved: 1, ..of(0.25) };
    assert_eq!(backward_of(&CBackwardArgs { dropout, ..empty_backward() }), INVALID);
}

#[test]
fn what_scores_have_is_in_the_problem() {
    let tensor = CTensor { address: 64, shape: [1, 2, 3, 1], strides: [0, -3, 1, 0] };
    let scores = CScores {
        bias: tensor,
        bias_dtype: 2,
        alibi_per_batch: 1,
        alibi_slopes: 128,
        sinks: 192,
        ..Default::default()
    };
    let args = CForwardArgs { scores, ..empty() };
    let problem = convert::forward_problem(&args, None).unwrap();
    let layout = ScoreLayout { shape: [1, 2, 3, 1], strides: tensor.strides };
    assert_eq!(problem.bias, Some(Bias { layout, dtype: Dtype::F32 }));
    assert_eq!((problem.alibi, problem.has_sinks), (Some(AlibiSlopes::PerBatchAndHead), true));
    let pointers = convert::forward_pointers(&args, None);
    let expected = ScorePointers { bias: 64, mask_bits: 0, alibi_slopes: 128, sinks: 192 };
    assert_eq!(pointers.score, expected);
    let d_bias = CTensor { address: 256, strides: [6, 3, 1, 1], ..tensor };
    let mut backward = CBackwardArgs { scores, d_bias, d_sinks: 320, ..empty_backward() };
    backward.scores.bias_dtype = 0;
    for (d_bias_f32, dtype) in [(0, Dtype::Bf16), (1, Dtype::F32)] {
        backward.d_bias_f32 = d_bias_f32;
        let problem = convert::backward_problem(&backward, None).unwrap();
        let layout = ScoreLayout { shape: [1, 2, 3, 1], strides: d_bias.strides };
        assert_eq!((problem.d_bias, problem.wants_d_sinks), (Some(Bias { layout, dtype }), true));
    }
    let pointers = convert::backward_pointers(&backward, None);
    assert_eq!((pointers.score, pointers.d_bias, pointers.d_sinks), (expected, 256, 320));
}

#[test]
fn wrong_scores_are_named() {
    let bias = |shape| CTensor { address: 64, ..dense(shape) };
    refused(|args| args.scores.bias = bias([1, 1, 1, 5]), "bias: expected keys 1 or 3, got 5");
    refused(
        |args| (args.scores.bias, args.scores.bias_dtype) = (bias([1, 1, 1, 3]), 3),
        "bias_dtype: expected -1, 0, 1 or 2, got 3",
    );
    refused(
        |args| args.scores.bias = bias([1, 1, -1, 3]),
        "bias: expected sizes of at least 0, got [1, 1, -1, 3]",
    );
    refused(
        |args| args.scores.alibi_per_batch = 1,
        "alibi_per_batch: expected 0 without an address of alibi_slopes, got 1",
    );
    let refused = |change: &dyn Fn(&mut CBackwardArgs), text: &str| {
        let mut args = empty_backward();
        change(&mut args);
        assert_eq!((backward_of(&args), last_error()), (INVALID, text.to_owned()));
    };
    refused(&|args| args.reserved_2 = 9, "fattn_backward: expected 0 in reserved_2, got 9");
    refused(
        &|args| args.d_sinks = 64,
        "dsinks: expected no elements, as the problem has no dsinks, got 2",
    );
    refused(
        &|args| args.d_bias = bias([1, 1, 1, 3]),
        "dbias: expected no elements, as the problem has no dbias, got 3",
    );
    refused(
        &|args| (args.scores.bias, args.d_bias) = (bias([1, 1, 1, 3]), bias([1, 1, 3, 3])),
        "dbias: expected queries 1 like bias, got 3",
    );
}

/// Of no batches, so that there is nothing to prepare.
#[test]
fn a_mask_is_prepared_once_and_then_part_of_the_problem() {
    let (tensor, stream) = (dense([0, 1, 3, 3]), ptr::null_mut());
    let status = with_device(|device| {
        let (mut prepared, mut narrow) = (ptr::null_mut(), ptr::null_mut());
        let mut args = empty();
        // SAFETY: the device is open, and the tensor has no elements.
        unsafe {
            assert_eq!(fattn_prepare_mask(device, &tensor, 3, &mut prepared, stream), 0);
            assert_eq!(fattn_prepare_mask(device, &dense([0, 1, 3, 1]), 5, &mut narrow, stream), 0);
            args.scores.mask = prepared;
            assert_eq!(fattn_forward(device, &args, stream), 0, "{}", last_error());
            args.scores.mask = narrow;
            assert_eq!(fattn_forward(device, &args, stream), INVALID);
            assert_eq!(last_error(), "mask: expected keys 3 like k, got 5");
            fattn_free_mask(prepared);
            fattn_free_mask(narrow);
            fattn_free_mask(ptr::null_mut());
            let status = fattn_prepare_mask(device, &tensor, 5, &mut prepared, stream);
            assert_eq!((status, last_error().as_str()), (INVALID, "mask: expected keys 1 or 5, got 3"));
            let status = fattn_prepare_mask(device, &dense([1; 4]), 1, &mut prepared, stream);
            let text = "mask: expected a device pointer, got null for 1 elements";
            assert_eq!((status, last_error().as_str()), (INVALID, text));
            let status = fattn_prepare_mask(device, &tensor, -1, &mut prepared, stream);
            assert_eq!((status, last_error().as_str()), (INVALID, "keys: expected at least 0, got -1"));
            fattn_prepare_mask(device, &tensor, 3, ptr::null_mut(), stream)
        }
    });
    let text = "fattn_prepare_mask: expected a place for the mask, got null";
    assert_eq!((status, last_error().as_str()), (INVALID, text));
    // SAFETY: null is allowed.
    let status = unsafe { fattn_prepare_mask(ptr::null(), &tensor, 3, ptr::null_mut(), stream) };
    let text = "fattn_prepare_mask: expected a device and a mask, got null";
    assert_eq!((status, last_error().as_str()), (INVALID, text));
}
