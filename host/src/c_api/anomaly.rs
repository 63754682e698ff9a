//! The anomaly mode: passes whose tensors are looked at afterwards.

use super::training::refused;
use super::types::{CBackwardArgs, CForwardArgs, Status};
use super::{Failure, convert, guarded, inputs};
use crate::device::Device;
use crate::driver::Stream;
use crate::training::{AnomalyMode, AnomalyReport};
use std::ffi::c_void;

/// What is not finite is a failure of its own, whose text is the report.
fn judged(report: AnomalyReport) -> Result<(), Failure> {
    if report.is_finite() { Ok(()) } else { Err((Status::NonFinite, report.to_string())) }
}

/// As [`fattn_forward`](super::fattn_forward), and a look at all that it was given and gave; waits.
///
/// # Safety
/// As [`fattn_forward`](super::fattn_forward); and what is between the elements of an input is readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fattn_anomaly_forward(
    device: *const Device,
    args: *const CForwardArgs,
    stream: *mut c_void,
) -> i32 {
    guarded(|| {
        // SAFETY: passed on to the caller.
        let (device, args) = unsafe { inputs("fattn_anomaly_forward", device, args) }?;
        // SAFETY: passed on to the caller.
        let mask = unsafe { args.scores.mask.as_ref() };
        let problem = convert::forward_problem(&args, mask)?;
        let pointers = convert::forward_pointers(&args, mask);
        let (mode, stream) = (AnomalyMode::new(device), Stream(stream as usize));
        // SAFETY: passed on to the caller.
        judged(unsafe { mode.forward(&problem, &pointers, stream) }.map_err(refused)?)
    })
}

/// As [`fattn_backward`](super::fattn_backward), with a workspace of its own, and a look at all that it was
/// given and gave; waits.
///
/// # Safety
/// As [`fattn_backward`](super::fattn_backward), without a workspace; and what is between the elements of an
/// input is readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fattn_anomaly_backward(
    device: *const Device,
    args: *const CBackwardArgs,
    stream: *mut c_void,
) -> i32 {
    guarded(|| {
        // SAFETY: passed on to the caller.
        let (device, args) = unsafe { inputs("fattn_anomaly_backward", device, args) }?;
        // SAFETY: passed on to the caller.
        let mask = unsafe { args.scores.mask.as_ref() };
        let problem = convert::backward_problem(&args, mask)?;
        let pointers = convert::backward_pointers(&args, mask);
        let (mode, stream) = (AnomalyMode::new(device), Stream(stream as usize));
        // SAFETY: passed on to the caller.
        judged(unsafe { mode.backward(&problem, &pointers, stream) }.map_err(refused)?)
    })
}
