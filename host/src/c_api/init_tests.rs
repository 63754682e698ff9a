//! Initialised arguments, and callers that were compiled with an earlier header.

use super::tests::{INVALID, backward_of, empty, empty_backward, forward_of, last_error};
use super::types::Versioned;
use super::*;
use kernels_gpu::abi::Dtype;
use std::mem::offset_of;
use std::ptr;

fn forward_args() -> CForwardArgs {
    let mut args = CForwardArgs::default();
    // SAFETY: as large as said.
    let status = unsafe { fattn_forward_args_init(&mut args, size_of::<CForwardArgs>() as u32) };
    assert_eq!(status, 0);
    args
}

/// All of the same shape as in [`empty`].
fn with_tensors(mut args: CForwardArgs) -> CForwardArgs {
    let CAttention { q, k, v, o, .. } = empty().attention;
    args.attention = CAttention { q, k, v, o, ..args.attention };
    args
}

#[test]
fn initialised_arguments_want_a_dtype_which_others_follow() {
    let mut args = with_tensors(forward_args());
    assert_eq!(
        (forward_of(&args), last_error().as_str()),
        (INVALID, "dtype: expected 0, 1 or 2, got -1")
    );
    args.attention.dtype = 1;
    assert_eq!(forward_of(&args), 0, "{}", last_error());
    args.scores.bias = CTensor { address: 64, ..super::tests::dense([1, 1, 1, 3]) };
    let problem = convert::forward_problem(&args, None).unwrap();
    assert_eq!((problem.dtype, problem.output_dtype), (Dtype::F16, Dtype::F16));
    assert_eq!((problem.scale, problem.bias.unwrap().dtype), (None, Dtype::F16));
    args.attention.mask = 2; // a window
    let problem = convert::forward_problem(&args, None).unwrap();
    assert_eq!(problem.mask.to_string(), "window(open,open)");
    args.attention.output_dtype = 3;
    let text = "output_dtype: expected -1, 0, 1 or 2, got 3";
    assert_eq!((forward_of(&args), last_error().as_str()), (INVALID, text));
}

#[test]
fn a_struct_of_zeros_has_a_scale_of_0_and_an_initialised_one_has_not() {
    let scale = |args| convert::forward_problem(&with_tensors(args), None).unwrap().scale;
    let size = size_of::<CForwardArgs>() as u32;
    assert_eq!(scale(CForwardArgs { struct_bytes: size, ..Default::default() }), Some(0.0));
    let mut args = forward_args();
    args.attention.dtype = 0;
    assert_eq!(scale(args), None);
}

#[test]
fn the_other_arguments_are_initialised_likewise() {
    let mut backward = CBackwardArgs::default();
    let (mut msda, mut msda_backward) = (CMsdaForwardArgs::default(), CMsdaBackwardArgs::default());
    // SAFETY: each is as large as said.
    let done = unsafe {
        [
            fattn_backward_args_init(&mut backward, size_of::<CBackwardArgs>() as u32),
            fattn_msda_forward_args_init(&mut msda, size_of::<CMsdaForwardArgs>() as u32),
            fattn_msda_backward_args_init(&mut msda_backward, size_of::<CMsdaBackwardArgs>() as u32),
        ]
    };
    assert_eq!(done, [0; 3]);
    let CBackwardArgs { attention, d_o, dq, dk, dv, .. } = empty_backward();
    backward.attention = CAttention {
        dtype: 0,
        q: attention.q,
        k: attention.k,
        v: attention.v,
        o: attention.o,
        ..backward.attention
    };
    assert_eq!(backward_of(&CBackwardArgs { d_o, dq, dk, dv, ..backward }), 0, "{}", last_error());
    for args in [msda.msda, msda_backward.msda] {
        assert_eq!([args.dtype, args.locations_dtype, args.weights_dtype], [-1; 3]);
    }
}

/// A caller that knows less of the struct must not have anything written behind it.
fn of_an_earlier_version<A: Versioned>(
    init: unsafe extern "C" fn(*mut A, u32) -> i32,
    call: impl Fn(*const A) -> i32,
    fill: impl Fn(&mut A),
) {
    for &bytes in A::EARLIER {
        let mut memory = vec![0xabu8; size_of::<A>() + 8];
        let start = memory.as_mut_ptr();
        let args = start.wrapping_add(start.align_offset(8).min(8)).cast::<A>();
        let before = (args as usize) - (start as usize);
        // SAFETY: as large as said.
        assert_eq!(unsafe { init(args, bytes as u32) }, 0);
        assert!(memory[before + bytes..].iter().all(|&byte| byte == 0xab), "{bytes}");
        let mut whole = A::default();
        // SAFETY: both have that many bytes.
        unsafe { args.cast::<u8>().copy_to_nonoverlapping((&raw mut whole).cast(), bytes) };
        fill(&mut whole);
        // SAFETY: as above.
        unsafe { (&raw const whole).cast::<u8>().copy_to_nonoverlapping(args.cast(), bytes) };
        assert_eq!(call(args), 0, "{bytes}: {}", last_error());
        assert!(memory[before + bytes..].iter().all(|&byte| byte == 0xab), "{bytes}");
    }
}

#[test]
fn callers_of_earlier_versions_are_initialised_and_understood() {
    assert_eq!(
        CForwardArgs::EARLIER,
        [
            offset_of!(CForwardArgs, scores),
            offset_of!(CForwardArgs, dropout),
            offset_of!(CForwardArgs, precision),
        ]
    );
    let forward = |args| {
        // SAFETY: the device is open, and the arguments are as large as they say.
        super::tests::with_device(|device| unsafe { fattn_forward(device, args, ptr::null_mut()) })
    };
    of_an_earlier_version(fattn_forward_args_init, forward, |args| {
        args.attention.dtype = 0;
        *args = with_tensors(*args);
    });
    assert_eq!(CBackwardArgs::EARLIER.len(), 3);
    let backward = |args| {
        // SAFETY: as above.
        super::tests::with_device(|device| unsafe { fattn_backward(device, args, ptr::null_mut()) })
    };
    of_an_earlier_version(fattn_backward_args_init, backward, |args| {
        let CBackwardArgs { attention, d_o, dq, dk, dv, .. } = empty_backward();
        let CAttention { q, k, v, o, .. } = attention;
        args.attention = CAttention { dtype: 0, q, k, v, o, ..args.attention };
        (args.d_o, args.dq, args.dk, args.dv) = (d_o, dq, dk, dv);
    });
}

#[test]
fn an_unknown_size_and_null_are_refused() {
    let mut args = CForwardArgs::default();
    let size = size_of::<CForwardArgs>();
    // SAFETY: nothing is written.
    assert_eq!(unsafe { fattn_forward_args_init(&mut args, 8) }, INVALID);
    assert_eq!(last_error(), format!("fattn_forward_args_init: expected struct_bytes {size}, got 8"));
    assert_eq!(args.struct_bytes, 0);
    // SAFETY: null is allowed.
    assert_eq!(unsafe { fattn_forward_args_init(ptr::null_mut(), size as u32) }, INVALID);
    assert_eq!(last_error(), "fattn_forward_args_init: expected arguments, got null");
}
