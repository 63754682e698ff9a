//! The library for other languages: a small C interface, built as `libfinite_attention.so`.
//!
//! `include/finite_attention.h` declares it, and says what every number, field and function means. Functions
//! return 0, or one of the numbers of [`Status`].

mod anomaly;
mod convert;
mod dynamic;
mod init;
mod memory;
mod msda;
mod partial;
mod training;
mod types;

pub use anomaly::{fattn_anomaly_backward, fattn_anomaly_forward};
pub use dynamic::{
    fattn_choose_keys, fattn_choose_keys_again, fattn_dynamic_backward, fattn_dynamic_forward,
    fattn_free_chosen_keys,
};
pub use init::{
    fattn_backward_args_init, fattn_forward_args_init, fattn_msda_backward_args_init,
    fattn_msda_forward_args_init,
};
pub use memory::{
    fattn_allocate, fattn_copy_to_device, fattn_copy_to_host, fattn_free, fattn_synchronize,
    fattn_version,
};
pub use partial::{
    fattn_backward_partial, fattn_backward_partial_workspace_bytes, fattn_backward_state_bytes,
    fattn_forward_partial, fattn_forward_state_bytes,
};
pub use training::{
    CDeviceTensor, CGradScalerValues, CScanResult, fattn_clip_by_global_norm, fattn_grad_scaler_create,
    fattn_grad_scaler_destroy, fattn_grad_scaler_note_unscaled, fattn_grad_scaler_scale,
    fattn_grad_scaler_state, fattn_grad_scaler_step, fattn_grad_scaler_unscale,
    fattn_grad_scaler_update, fattn_scan,
};
pub use types::{
    CAttention, CBackwardArgs, CDropout, CDynamicMask, CForwardArgs, CMsda, CMsdaBackwardArgs,
    CMsdaForwardArgs, CPartial, CScores, CTensor, Status,
};

use crate::attention::{PreparedMask, backward, forward};
use crate::device::Device;
use crate::driver::Stream;
use crate::msda::{msda_backward, msda_forward};
use crate::plan::{plan_backward, plan_forward, plan_msda_backward, plan_msda_forward};
use convert::failure;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use types::Versioned;

/// Status and text of what went wrong.
type Failure = (Status, String);

fn invalid(text: impl Into<String>) -> Failure {
    (Status::InvalidArgument, text.into())
}

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

/// Runs `call`, keeps the text of its error, and lets no panic out into the caller's language.
fn guarded(call: impl FnOnce() -> Result<(), Failure>) -> i32 {
    let outcome = catch_unwind(AssertUnwindSafe(call));
    let (status, text) = match outcome {
        Ok(Ok(())) => return Status::Success as i32,
        Ok(Err(failure)) => failure,
        Err(_) => {
            (Status::Panicked, "the library panicked; its message is on standard error".to_owned())
        }
    };
    let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
    LAST_ERROR.with(|last| *last.borrow_mut() = text);
    status as i32
}

/// The device and the arguments of a call, once neither is null and the size is that of this version or of an
/// earlier one, whose later fields are 0.
///
/// # Safety
/// `device` is null or valid; `args` is null, or as large as its first field says.
unsafe fn inputs<'a, A: Versioned>(
    function: &str,
    device: *const Device,
    args: *const A,
) -> Result<(&'a Device, A), Failure> {
    // SAFETY: null, or valid by the caller's word.
    let (Some(device), Some(&got)) =
        (unsafe { device.as_ref() }, unsafe { args.cast::<u32>().as_ref() })
    else {
        return Err(invalid(format!("{function}: expected a device and arguments, got null")));
    };
    let bytes = A::known_size(function, got)?;
    let mut whole = A::default();
    // SAFETY: not null, of the size just checked, which is at most that of an `A`, and with the zeros behind
    // it a value.
    unsafe { args.cast::<u8>().copy_to_nonoverlapping((&raw mut whole).cast(), bytes) };
    match whole.reserved() {
        None => Ok((device, whole)),
        Some((field, got)) => Err(invalid(format!("{function}: expected 0 in {field}, got {got}"))),
    }
}

/// Opens a device by its name: `cuda`, `cuda:N`, `emulated`, `emulated:sm_80`, `emulated:sm_90a`.
///
/// # Safety
/// `name` is null or a NUL-terminated string, `device` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fattn_device_open(name: *const c_char, device: *mut *mut Device) -> i32 {
    guarded(|| {
        if name.is_null() || device.is_null() {
            return Err(invalid(
                "fattn_device_open: expected a name and a place for the device, got null",
            ));
        }
        // SAFETY: not null, and the caller vouches for the rest.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
        let opened = Box::new(Device::parse(&name).map_err(failure)?);
        // SAFETY: not null, and the caller vouches for the rest.
        unsafe { device.write(Box::into_raw(opened)) };
        Ok(())
    })
}

/// Closes a device. Work queued on it must have been waited for. Null is allowed.
///
/// # Safety
/// `device` is null or came from [`fattn_device_open`], was not closed before, and no call uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fattn_device_close(device: *mut Device) {
    guarded(|| {
        if !device.is_null() {
            // SAFETY: it came from `Box::into_raw` and is not used again.
            drop(unsafe { Box::from_raw(device) });
        }
        Ok(())
    });
}

/// Queues one forward pass on `stream` (a `CUstream` or `cudaStream_t`; null is the default stream).
///
/// # Safety
/// `device` and `args` are null or valid, and the tensors are as [`forward`] demands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fattn_forward(
    device: *const Device,
    args: *const CForwardArgs,
    stream: *mut c_void,
) -> i32 {
    guarded(|| {
        // SAFETY: passed on to the caller.
        let (device, args) = unsafe { inputs("fattn_forward", device, args) }?;
        // SAFETY: passed on to the caller.
        let mask = unsafe { args.scores.mask.as_ref() };
        let problem = convert::forward_problem(&args, mask)?;
        let pointers = convert::forward_pointers(&args, mask);
        // SAFETY: passed on to the caller.
        unsafe { forward(device, &problem, &pointers, Stream(stream as usize)) }.map_err(failure)
    })
}

/// Queues one backward pass on `stream` (a `CUstream` or `cudaStream_t`; null is the default stream).
///
/// # Safety
/// `device` and `args` are null or valid, and the tensors and the workspace are as [`backward`]
/// demands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fattn_backward(
    device: *const Device,
    args: *const CBackwardArgs,
    stream: *mut c_void,
) -> i32 {
    guarded(|| {
        // SAFETY: passed on to the caller.
        let (device, args) = unsafe { inputs("fattn_backward", device, args) }?;
        // SAFETY: passed on to the caller.
        let mask = unsafe { args.scores.mask.as_ref() };
        let problem = convert::backward_problem(&args, mask)?;
        let pointers = convert::backward_pointers(&args, mask);
        let (workspace, stream) = (convert::workspace(&args), Stream(stream as usize));
        // SAFETY: passed on to the caller.
        unsafe { backward(device, &problem, &pointers, workspace, stream) }.map_err(failure)
    })
}

/// Loads the kernels that [`fattn_forward`] would launch for these arguments, addresses included, and waits
/// for that.
///
/// # Safety
/// `device` and `args` are null or valid. No tensor is touched.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fattn_prepare_forward(device: *const Device, args: *const CForwardArgs) -> i32 {
    guarded(|| {
        // SAFETY: passed on to the caller.
        let (device, args) = unsafe { inputs("fattn_prepare_forward", device, args) }?;
        // SAFETY: passed on to the caller.
        let mask = unsafe { args.scores.mask.as_ref() };
        let problem = convert::forward_problem(&args, mask)?.validate().map_err(failure)?;
        let pointers = convert::forward_pointers(&args, mask);
        let plan = plan_forward(&problem, device.properties(), &pointers).map_err(failure)?;
        plan.map_or(Ok(()), |plan| device.prepare(&plan)).map_err(failure)
    })
}

/// Loads the kernels that [`fattn_backward`] would launch for these arguments, addresses included, and waits
/// for that. The workspace in `args` is not looked at.
///
/// # Safety
/// `device` and `args` are null or valid. No tensor is touched.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fattn_prepare_backward(
    device: *const Device,
    args: *const CBackwardArgs,
) -> i32 {
    guarded(|| {
        // SAFETY: passed on to the caller.
        let (device, args) = unsafe { inputs("fattn_prepare_backward", device, args) }?;
        // SAFETY: passed on to the caller.
        let mask = unsafe { args.scores.mask.as_ref() };
        let problem = convert::backward_problem(&args, mask)?.validate().map_err(failure)?;
        let pointers = convert::backward_pointers(&args, mask);
        let plan = plan_backward(&problem, device.properties(), &pointers).map_err(failure)?;
        device.prepare(&plan).map_err(failure)
    })
}

/// How many bytes of workspace [`fattn_backward`] needs for these arguments, addresses included:
/// how the tensors are aligned decides which kernel runs. The workspace in `args` is not looked at.
///
/// # Safety
/// `device` and `args` are null or valid, `bytes` is null or writable. No tensor is touched.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fattn_backward_workspace_bytes(
    device: *const Device,
    args: *const CBackwardArgs,
    bytes: *mut u64,
) -> i32 {
    guarded(|| {
        let function = "fattn_backward_workspace_bytes";
        // SAFETY: passed on to the caller.
        let (device, args) = unsafe { inputs(function, device, args) }?;
        if bytes.is_null() {
            return Err(invalid(format!("{function}: expected a place for the size, got null")));
        }
        // SAFETY: passed on to the caller.
        let mask = unsafe { args.scores.mask.as_ref() };
        let problem = convert::backward_problem(&args, mask)?.validate().map_err(failure)?;
        let pointers = convert::backward_pointers(&args, mask);
        let plan = plan_backward(&problem, device.properties(), &pointers).map_err(failure)?;
        // SAFETY: not null, and the caller vouches for the rest.
        unsafe { bytes.write(plan.workspace_bytes()) };
        Ok(())
    })
}

/// Queues on `stream` what makes bits of a boolean tensor, `[batch, head, query, key]` of bytes, 0 where a
/// key is hidden. `keys` is Sk, of packed sequences the most.
///
/// # Safety
/// `device` and `mask` are null or valid, `prepared` is null or writable, and the tensor is as
/// [`PreparedMask::new`] demands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fattn_prepare_mask(
    device: *const Device,
    mask: *const CTensor,
    keys: i64,
    prepared: *mut *mut PreparedMask,
    stream: *mut c_void,
) -> i32 {
    guarded(|| {
        // SAFETY: null, or valid by the caller's word.
        let (Some(device), Some(mask)) = (unsafe { device.as_ref() }, unsafe { mask.as_ref() }) else {
            return Err(invalid("fattn_prepare_mask: expected a device and a mask, got null"));
        };
        if prepared.is_null() {
            return Err(invalid("fattn_prepare_mask: expected a place for the mask, got null"));
        }
        let (layout, address) = (convert::score_layout("mask", mask)?, mask.address);
        let keys = usize::try_from(keys)
            .map_err(|_| invalid(format!("keys: expected at least 0, got {keys}")))?;
        let stream = Stream(stream as usize);
        // SAFETY: passed on to the caller.
        let made = unsafe { PreparedMask::new(device, &layout, keys, address, stream) };
        // SAFETY: not null, and the caller vouches for the rest.
        unsafe { prepared.write(Box::into_raw(Box::new(made.map_err(failure)?))) };
        Ok(())
    })
}

/// Queues one forward pass of multi-scale deformable attention on `stream`.
///
/// # Safety
/// `device` and `args` are null or valid, and the tensors are as [`msda_forward`] demands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fattn_msda_forward(
    device: *const Device,
    args: *const CMsdaForwardArgs,
    stream: *mut c_void,
) -> i32 {
    guarded(|| {
        // SAFETY: passed on to the caller.
        let (device, args) = unsafe { inputs("fattn_msda_forward", device, args) }?;
        let problem = msda::forward_problem(&args)?;
        let (pointers, stream) = (msda::forward_pointers(&args), Stream(stream as usize));
        // SAFETY: passed on to the caller.
        unsafe { msda_forward(device, &problem, &pointers, stream) }.map_err(failure)
    })
}

/// Queues one backward pass of multi-scale deformable attention on `stream`.
///
/// # Safety
/// `device` and `args` are null or valid, and the tensors and the workspace are as [`msda_backward`] demands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fattn_msda_backward(
    device: *const Device,
    args: *const CMsdaBackwardArgs,
    stream: *mut c_void,
) -> i32 {
    guarded(|| {
        // SAFETY: passed on to the caller.
        let (device, args) = unsafe { inputs("fattn_msda_backward", device, args) }?;
        let problem = msda::backward_problem(&args)?;
        let pointers = msda::backward_pointers(&args);
        let (workspace, stream) = (msda::workspace(&args), Stream(stream as usize));
        // SAFETY: passed on to the caller.
        unsafe { msda_backward(device, &problem, &pointers, workspace, stream) }.map_err(failure)
    })
}

/// Loads the kernels that [`fattn_msda_forward`] would launch for these arguments, addresses included, and
/// waits for that.
///
/// # Safety
/// `device` and `args` are null or valid. No tensor is touched.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fattn_msda_prepare_forward(
    device: *const Device,
    args: *const CMsdaForwardArgs,
) -> i32 {
    guarded(|| {
        // SAFETY: passed on to the caller.
        let (device, args) = unsafe { inputs("fattn_msda_prepare_forward", device, args) }?;
        let problem = msda::forward_problem(&args)?.validate().map_err(failure)?;
        let pointers = msda::forward_pointers(&args);
        let plan = plan_msda_forward(&problem, device.properties(), &pointers).map_err(failure)?;
        device.prepare(&plan).map_err(failure)
    })
}

/// Loads the kernels that [`fattn_msda_backward`] would launch for these arguments, addresses included, and
/// waits for that. The workspace in `args` is not looked at.
///
/// # Safety
/// `device` and `args` are null or valid. No tensor is touched.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fattn_msda_prepare_backward(
    device: *const Device,
    args: *const CMsdaBackwardArgs,
) -> i32 {
    guarded(|| {
        // SAFETY: passed on to the caller.
        let (device, args) = unsafe { inputs("fattn_msda_prepare_backward", device, args) }?;
        let problem = msda::backward_problem(&args)?.validate().map_err(failure)?;
        let pointers = msda::backward_pointers(&args);
        let plan = plan_msda_backward(&problem, device.properties(), &pointers).map_err(failure)?;
        device.prepare(&plan).map_err(failure)
    })
}

/// How many bytes of workspace [`fattn_msda_backward`] needs for these arguments, addresses included. The
/// workspace in `args` is not looked at.
///
/// # Safety
/// `device` and `args` are null or valid, `bytes` is null or writable. No tensor is touched.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fattn_msda_backward_workspace_bytes(
    device: *const Device,
    args: *const CMsdaBackwardArgs,
    bytes: *mut u64,
) -> i32 {
    guarded(|| {
        let function = "fattn_msda_backward_workspace_bytes";
        // SAFETY: passed on to the caller.
        let (device, args) = unsafe { inputs(function, device, args) }?;
        if bytes.is_null() {
            return Err(invalid(format!("{function}: expected a place for the size, got null")));
        }
        let problem = msda::backward_problem(&args)?.validate().map_err(failure)?;
        let pointers = msda::backward_pointers(&args);
        let plan = plan_msda_backward(&problem, device.properties(), &pointers).map_err(failure)?;
        // SAFETY: not null, and the caller vouches for the rest.
        unsafe { bytes.write(plan.workspace_bytes()) };
        Ok(())
    })
}

/// Frees a prepared mask. Work that uses it must have been waited for. Null is allowed.
///
/// # Safety
/// `prepared` is null or came from [`fattn_prepare_mask`], was not freed before, and no call uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fattn_free_mask(prepared: *mut PreparedMask) {
    guarded(|| {
        if !prepared.is_null() {
            // SAFETY: it came from `Box::into_raw` and is not used again.
            drop(unsafe { Box::from_raw(prepared) });
        }
        Ok(())
    });
}

/// Text of this thread's last failed call, valid until its next failed call; empty before the first
/// one.
#[unsafe(no_mangle)]
pub extern "C" fn fattn_last_error() -> *const c_char {
    LAST_ERROR.with(|last| last.borrow().as_ptr())
}

#[cfg(test)]
mod anomaly_tests;
#[cfg(test)]
mod dynamic_tests;
#[cfg(test)]
mod init_tests;
#[cfg(test)]
mod memory_tests;
#[cfg(test)]
mod msda_tests;
#[cfg(test)]
mod partial_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod training_tests;
