//! Passes over some of the keys in the C interface.

use super::{CBackwardArgs, CForwardArgs, CPartial, Failure, convert, guarded, inputs, invalid};
use crate::attention::{backward_partial, forward_partial};
use crate::device::Device;
use crate::driver::Stream;
use crate::plan::{PartialBackward, PartialForward, plan_backward_partial};
use convert::failure;
use kernels_gpu::abi::Dtype;
use std::ffi::c_void;

/// What says which pass it is, checked.
///
/// # Safety
/// `partial` is null or valid.
unsafe fn read(function: &str, partial: *const CPartial) -> Result<CPartial, Failure> {
    // SAFETY: passed on to the caller.
    let Some(&partial) = (unsafe { partial.as_ref() }) else {
        return Err(invalid(format!("{function}: expected which pass it is, got null")));
    };
    let CPartial { is_first, is_last, adds_to_keys, dq_f32, reserved, .. } = partial;
    let flags = [
        ("is_first", is_first),
        ("is_last", is_last),
        ("adds_to_keys", adds_to_keys),
        ("dq_f32", dq_f32),
    ];
    if let Some((field, got)) = flags.into_iter().find(|(_, flag)| ![0, 1].contains(flag)) {
        return Err(invalid(format!("{field}: expected 0 or 1, got {got}")));
    }
    if reserved != 0 {
        return Err(invalid(format!("{function}: expected 0 in reserved, got {reserved}")));
    }
    Ok(partial)
}

fn of_backward(partial: &CPartial, dtype: Dtype) -> PartialBackward {
    PartialBackward {
        state: partial.state,
        is_first: partial.is_first == 1,
        is_last: partial.is_last == 1,
        dq_dtype: if partial.dq_f32 == 1 { Dtype::F32 } else { dtype },
        adds_to_keys: partial.adds_to_keys == 1,
    }
}

/// Writes a size.
///
/// # Safety
/// `bytes` is null or writable.
unsafe fn give(function: &str, bytes: *mut u64, size: u64) -> Result<(), Failure> {
    if bytes.is_null() {
        return Err(invalid(format!("{function}: expected a place for the size, got null")));
    }
    // SAFETY: not null, and the caller vouches for the rest.
    unsafe { bytes.write(size) };
    Ok(())
}

/// How many bytes the state of forward passes over some of the keys needs.
///
/// # Safety
/// `device` and `args` are null or valid, `bytes` is null or writable. No tensor is touched.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fattn_forward_state_bytes(
    device: *const Device,
    args: *const CForwardArgs,
    bytes: *mut u64,
) -> i32 {
    guarded(|| {
        let function = "fattn_forward_state_bytes";
        // SAFETY: passed on to the caller.
        let (_, args) = unsafe { inputs(function, device, args) }?;
        // SAFETY: passed on to the caller.
        let mask = unsafe { args.scores.mask.as_ref() };
        let valid = convert::forward_problem(&args, mask)?.validate().map_err(failure)?;
        // SAFETY: passed on to the caller.
        unsafe { give(function, bytes, valid.state_bytes()) }
    })
}

/// Queues one of several forward passes over some of the keys each on `stream`.
///
/// # Safety
/// `device`, `args` and `partial` are null or valid, and the tensors and the state are as
/// [`forward_partial`] demands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fattn_forward_partial(
    device: *const Device,
    args: *const CForwardArgs,
    partial: *const CPartial,
    stream: *mut c_void,
) -> i32 {
    guarded(|| {
        let function = "fattn_forward_partial";
        // SAFETY: passed on to the caller.
        let (device, args) = unsafe { inputs(function, device, args) }?;
        // SAFETY: passed on to the caller.
        let CPartial { state, is_first, is_last, total_keys, .. } = unsafe { read(function, partial) }?;
        let partial =
            PartialForward { state, is_first: is_first == 1, is_last: is_last == 1, total_keys };
        // SAFETY: passed on to the caller.
        let mask = unsafe { args.scores.mask.as_ref() };
        let problem = convert::forward_problem(&args, mask)?;
        let (pointers, stream) = (convert::forward_pointers(&args, mask), Stream(stream as usize));
        // SAFETY: passed on to the caller.
        unsafe { forward_partial(device, &problem, &pointers, &partial, stream) }.map_err(failure)
    })
}

/// How many bytes the state of backward passes over some of the keys needs.
///
/// # Safety
/// As [`fattn_forward_state_bytes`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fattn_backward_state_bytes(
    device: *const Device,
    args: *const CBackwardArgs,
    bytes: *mut u64,
) -> i32 {
    guarded(|| {
        let function = "fattn_backward_state_bytes";
        // SAFETY: passed on to the caller.
        let (_, args) = unsafe { inputs(function, device, args) }?;
        // SAFETY: passed on to the caller.
        let mask = unsafe { args.scores.mask.as_ref() };
        let valid = convert::backward_problem(&args, mask)?.validate().map_err(failure)?;
        // SAFETY: passed on to the caller.
        unsafe { give(function, bytes, valid.state_bytes()) }
    })
}

/// How many bytes of workspace [`fattn_backward_partial`] needs for these arguments, addresses included. The
/// workspace in `args` is not looked at.
///
/// # Safety
/// `device`, `args` and `partial` are null or valid, `bytes` is null or writable. No tensor is touched.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fattn_backward_partial_workspace_bytes(
    device: *const Device,
    args: *const CBackwardArgs,
    partial: *const CPartial,
    bytes: *mut u64,
) -> i32 {
    guarded(|| {
        let function = "fattn_backward_partial_workspace_bytes";
        // SAFETY: passed on to the caller.
        let (device, args) = unsafe { inputs(function, device, args) }?;
        // SAFETY: passed on to the caller.
        let partial = unsafe { read(function, partial) }?;
        // SAFETY: passed on to the caller.
        let mask = unsafe { args.scores.mask.as_ref() };
        let valid = convert::backward_problem(&args, mask)?.validate().map_err(failure)?;
        let pointers = convert::backward_pointers(&args, mask);
        let partial = of_backward(&partial, valid.problem.forward.dtype);
        let plan = plan_backward_partial(&valid, device.properties(), &pointers, &partial);
        // SAFETY: passed on to the caller.
        unsafe { give(function, bytes, plan.map_err(failure)?.workspace_bytes()) }
    })
}

/// Queues one of several backward passes over some of the keys each on `stream`.
///
/// # Safety
/// `device`, `args` and `partial` are null or valid, and the tensors, the state and the workspace are as
/// [`backward_partial`] demands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fattn_backward_partial(
    device: *const Device,
    args: *const CBackwardArgs,
    partial: *const CPartial,
    stream: *mut c_void,
) -> i32 {
    guarded(|| {
        let function = "fattn_backward_partial";
        // SAFETY: passed on to the caller.
        let (device, args) = unsafe { inputs(function, device, args) }?;
        // SAFETY: passed on to the caller.
        let partial = unsafe { read(function, partial) }?;
        // SAFETY: passed on to the caller.
        let mask = unsafe { args.scores.mask.as_ref() };
        let problem = convert::backward_problem(&args, mask)?;
        let partial = of_backward(&partial, problem.forward.dtype);
        let pointers = convert::backward_pointers(&args, mask);
        let (workspace, stream) = (convert::workspace(&args), Stream(stream as usize));
        // SAFETY: passed on to the caller.
        unsafe { backward_partial(device, &problem, &pointers, &partial, workspace, stream) }
            .map_err(failure)
    })
}
