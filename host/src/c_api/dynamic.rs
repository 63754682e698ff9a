//! Dynamic masks in the C interface.

use super::{CBackwardArgs, CDynamicMask, CForwardArgs, Failure, convert, guarded, inputs, invalid};
use crate::attention::DynamicAttention;
use crate::device::Device;
use crate::driver::Stream;
use crate::problem::{DynamicMask, DynamicRule, DynamicWay};
use convert::failure;
use std::ffi::c_void;

/// The rule of a dynamic mask.
fn dynamic_mask(mask: &CDynamicMask) -> Result<DynamicMask, Failure> {
    let &CDynamicMask { window, block_size, way, reserved } = mask;
    let number = |name: &str, number: i64| {
        usize::try_from(number)
            .map_err(|_| invalid(format!("{name}: expected at least 0, got {number}")))
    };
    if reserved != 0 {
        return Err(invalid(format!("fattn_choose_keys: expected 0 in reserved, got {reserved}")));
    }
    let rule = match number("window", window)? {
        0 => DynamicRule::Relu,
        window => DynamicRule::TopK { window },
    };
    let way = match way {
        0 => None,
        1 => Some(DynamicWay::Mask),
        2 => Some(DynamicWay::Gather),
        other => return Err(invalid(format!("way: expected 0, 1 or 2, got {other}"))),
    };
    Ok(DynamicMask { rule, block_size: number("block_size", block_size)?.max(1), way })
}

/// Queues on `stream` the choice of keys of a forward pass, and of the backward pass behind it.
///
/// # Safety
/// `device`, `args` and `mask` are null or valid, `chosen` is null or writable, and the tensors are as
/// [`DynamicAttention::new`] demands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fattn_choose_keys(
    device: *const Device,
    args: *const CForwardArgs,
    mask: *const CDynamicMask,
    chosen: *mut *mut DynamicAttention,
    stream: *mut c_void,
) -> i32 {
    guarded(|| {
        // SAFETY: passed on to the caller.
        let (device, args) = unsafe { inputs("fattn_choose_keys", device, args) }?;
        // SAFETY: null, or valid by the caller's word.
        let Some(mask) = (unsafe { mask.as_ref() }) else {
            return Err(invalid("fattn_choose_keys: expected a mask, got null"));
        };
        if chosen.is_null() {
            return Err(invalid("fattn_choose_keys: expected a place for the choice, got null"));
        }
        // SAFETY: passed on to the caller.
        let padding = unsafe { args.scores.mask.as_ref() };
        let problem = convert::forward_problem(&args, padding)?;
        let (pointers, stream) = (convert::forward_pointers(&args, padding), Stream(stream as usize));
        let mask = dynamic_mask(mask)?;
        let made = DynamicAttention::new(device, &problem, &mask).map_err(failure)?;
        // SAFETY: passed on to the caller.
        unsafe { made.choose(&pointers, stream) }.map_err(failure)?;
        // SAFETY: not null, and the caller vouches for the rest.
        unsafe { chosen.write(Box::into_raw(Box::new(made))) };
        Ok(())
    })
}

/// The choice and the arguments of a call.
///
/// # Safety
/// `chosen` is null or valid; `args` is as for `inputs`.
unsafe fn chosen_inputs<'a, A: super::types::Versioned>(
    function: &str,
    chosen: *const DynamicAttention,
    args: *const A,
) -> Result<(&'a DynamicAttention, A), Failure> {
    // SAFETY: null, or valid by the caller's word.
    let Some(chosen) = (unsafe { chosen.as_ref() }) else {
        return Err(invalid(format!("{function}: expected chosen keys, got null")));
    };
    // SAFETY: passed on to the caller.
    let (_, args) = unsafe { inputs(function, chosen.device(), args) }?;
    Ok((chosen, args))
}

/// Queues the choice of keys anew, by the bias as it is now, in the memory of the last one.
///
/// # Safety
/// `chosen` and `args` are null or valid, and the tensors are as [`DynamicAttention::choose`] demands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fattn_choose_keys_again(
    chosen: *const DynamicAttention,
    args: *const CForwardArgs,
    stream: *mut c_void,
) -> i32 {
    guarded(|| {
        // SAFETY: passed on to the caller.
        let (chosen, args) = unsafe { chosen_inputs("fattn_choose_keys_again", chosen, args) }?;
        // SAFETY: passed on to the caller.
        let padding = unsafe { args.scores.mask.as_ref() };
        let problem = convert::forward_problem(&args, padding)?;
        chosen.check_forward(&problem).map_err(failure)?;
        let (pointers, stream) = (convert::forward_pointers(&args, padding), Stream(stream as usize));
        // SAFETY: passed on to the caller.
        unsafe { chosen.choose(&pointers, stream) }.map_err(failure)
    })
}

/// Queues one forward pass over chosen keys on `stream`.
///
/// # Safety
/// `chosen` and `args` are null or valid, and the tensors are as [`DynamicAttention::forward`] demands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fattn_dynamic_forward(
    chosen: *const DynamicAttention,
    args: *const CForwardArgs,
    stream: *mut c_void,
) -> i32 {
    guarded(|| {
        // SAFETY: passed on to the caller.
        let (chosen, args) = unsafe { chosen_inputs("fattn_dynamic_forward", chosen, args) }?;
        // SAFETY: passed on to the caller.
        let padding = unsafe { args.scores.mask.as_ref() };
        let problem = convert::forward_problem(&args, padding)?;
        chosen.check_forward(&problem).map_err(failure)?;
        let (pointers, stream) = (convert::forward_pointers(&args, padding), Stream(stream as usize));
        // SAFETY: passed on to the caller.
        unsafe { chosen.forward(&pointers, stream) }.map_err(failure)
    })
}

/// Queues one backward pass over chosen keys on `stream`. The workspace in `args` is not looked at.
///
/// # Safety
/// `chosen` and `args` are null or valid, and the tensors are as [`DynamicAttention::backward`] demands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fattn_dynamic_backward(
    chosen: *const DynamicAttention,
    args: *const CBackwardArgs,
    stream: *mut c_void,
) -> i32 {
    guarded(|| {
        // SAFETY: passed on to the caller.
        let (chosen, args) = unsafe { chosen_inputs("fattn_dynamic_backward", chosen, args) }?;
        // SAFETY: passed on to the caller.
        let padding = unsafe { args.scores.mask.as_ref() };
        let problem = convert::backward_problem(&args, padding)?;
        let (pointers, stream) = (convert::backward_pointers(&args, padding), Stream(stream as usize));
        // SAFETY: passed on to the caller.
        unsafe { chosen.backward(&problem, &pointers, stream) }.map_err(failure)
    })
}

/// Frees chosen keys. Work that uses them must have been waited for. Null is allowed.
///
/// # Safety
/// `chosen` is null or came from [`fattn_choose_keys`], was not freed before, and no call uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fattn_free_chosen_keys(chosen: *mut DynamicAttention) {
    guarded(|| {
        if !chosen.is_null() {
            // SAFETY: it came from `Box::into_raw` and is not used again.
            drop(unsafe { Box::from_raw(chosen) });
        }
        Ok(())
    });
}
