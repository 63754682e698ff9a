//! Guards of training: scans of tensors, loss scaling, clipping.

use super::convert::{dtype, failure};
use super::memory::opened;
use super::types::Status;
use super::{Failure, guarded, invalid};
use crate::device::Device;
use crate::driver::Stream;
use crate::training::{
    DeviceTensor, GradScaler, GradScalerState, NonFiniteNorm, TrainingError, clip_by_global_norm, scan,
};
use std::ffi::{CStr, c_char, c_void};
use std::ptr;

/// `fattn_device_tensor`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CDeviceTensor {
    /// Device address of the element whose indices are all 0.
    pub address: u64,
    /// What errors call it; null for `tensors[i]`.
    pub name: *const c_char,
    /// Sizes, as many as `rank`.
    pub shape: *const i64,
    /// In elements; null for dense.
    pub strides: *const i64,
    /// Dimensions.
    pub rank: i32,
    /// 0 bf16, 1 f16, 2 f32.
    pub dtype: i32,
}

impl Default for CDeviceTensor {
    fn default() -> Self {
        let (name, shape, strides) = (ptr::null(), ptr::null(), ptr::null());
        CDeviceTensor { address: 0, name, shape, strides, rank: 0, dtype: super::init::SAME }
    }
}

/// `fattn_scan_result`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CScanResult {
    /// Elements that are NaN.
    pub nan: u64,
    /// Elements that are infinity.
    pub positive_infinity: u64,
    /// Elements that are minus infinity.
    pub negative_infinity: u64,
    /// The first of them all, counted in logical order; -1 if there is none.
    pub first: i64,
    /// The square root of the sum of squares.
    pub norm: f64,
}

/// `fattn_grad_scaler_values`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CGradScalerValues {
    /// Above 1.
    pub growth_factor: f64,
    /// Above 0 and below 1.
    pub backoff_factor: f64,
    /// What the loss is multiplied by.
    pub scale: f32,
    /// Clean steps before the scale grows.
    pub growth_interval: u32,
    /// Clean steps since it last changed.
    pub growth_tracker: u32,
    /// 0.
    pub reserved: u32,
}

const _: () = assert!(size_of::<CDeviceTensor>() == 40);
const _: () = assert!(size_of::<CScanResult>() == 40);
const _: () = assert!(size_of::<CGradScalerValues>() == 32);

/// Status and text of a guard's error.
pub fn refused(error: TrainingError) -> Failure {
    match error {
        TrainingError::Library(error) => failure(error),
        TrainingError::NonFiniteNorm { .. } => (Status::NonFinite, error.to_string()),
        _ => (Status::InvalidArgument, error.to_string()),
    }
}

/// The tensors of an array.
///
/// # Safety
/// `tensors` is null or has `count` elements, which are as their fields say.
unsafe fn tensors(
    function: &str,
    tensors: *const CDeviceTensor,
    count: u64,
) -> Result<Vec<DeviceTensor>, Failure> {
    if tensors.is_null() && count != 0 {
        return Err(invalid(format!("{function}: expected {count} tensors, got null")));
    }
    // SAFETY: not null, and the caller vouches for the rest.
    (0..count as usize).map(|index| unsafe { tensor(&*tensors.add(index), index) }).collect()
}

/// One tensor, of the array's index.
///
/// # Safety
/// Its pointers are null, or as its fields say.
unsafe fn tensor(given: &CDeviceTensor, index: usize) -> Result<DeviceTensor, Failure> {
    let name = match given.name.is_null() {
        true => format!("tensors[{index}]"),
        // SAFETY: not null, and NUL-terminated by the caller's word.
        false => unsafe { CStr::from_ptr(given.name) }.to_string_lossy().into_owned(),
    };
    let Ok(rank) = usize::try_from(given.rank) else {
        return Err(invalid(format!("{name}: expected a rank of at least 0, got {}", given.rank)));
    };
    if given.shape.is_null() && rank != 0 {
        return Err(invalid(format!("{name}: expected a shape of {rank} sizes, got null")));
    }
    let numbers = |pointer: *const i64| match pointer.is_null() || rank == 0 {
        true => Vec::new(),
        // SAFETY: not null, and as long as the rank by the caller's word.
        false => unsafe { std::slice::from_raw_parts(pointer, rank) }.to_vec(),
    };
    let sizes = numbers(given.shape);
    let shape: Result<Vec<usize>, _> = sizes.iter().map(|&size| usize::try_from(size)).collect();
    let shape =
        shape.map_err(|_| invalid(format!("{name}: expected sizes of at least 0, got {sizes:?}")))?;
    let dtype = dtype(&format!("{name}: dtype"), given.dtype)?;
    let dense = DeviceTensor::dense(name, dtype, &shape, given.address);
    Ok(if given.strides.is_null() { dense } else { dense.with_strides(&numbers(given.strides)) })
}

/// Scans a tensor behind all work on `stream`, in one pass; done when it returns.
///
/// # Safety
/// `device` and `tensor` are null or valid, its elements readable, `result` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fattn_scan(
    device: *const Device,
    tensor: *const CDeviceTensor,
    result: *mut CScanResult,
    stream: *mut c_void,
) -> i32 {
    guarded(|| {
        // SAFETY: passed on to the caller.
        let device = unsafe { opened("fattn_scan", device) }?;
        if result.is_null() {
            return Err(invalid("fattn_scan: expected a place for the result, got null"));
        }
        // SAFETY: passed on to the caller.
        let tensors = unsafe { tensors("fattn_scan", tensor, 1) }?;
        // SAFETY: passed on to the caller.
        let found = unsafe { scan(device, &tensors[0], Stream(stream as usize)) }.map_err(refused)?;
        let what = found.non_finite;
        let found = CScanResult {
            nan: what.nan as u64,
            positive_infinity: what.positive_infinity as u64,
            negative_infinity: what.negative_infinity as u64,
            first: what.first.map_or(-1, |first| first as i64),
            norm: found.norm,
        };
        // SAFETY: not null, and the caller vouches for the rest.
        unsafe { result.write(found) };
        Ok(())
    })
}

/// Multiplies gradients so that the norm of all together is at most `max_norm`.
///
/// # Safety
/// `device` and `tensors` are null or valid, their elements readable and writable, and used by nobody else;
/// `total_norm` and `coefficient` are null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fattn_clip_by_global_norm(
    device: *const Device,
    tensors: *const CDeviceTensor,
    count: u64,
    max_norm: f32,
    non_finite: i32,
    total_norm: *mut f32,
    coefficient: *mut f32,
    stream: *mut c_void,
) -> i32 {
    guarded(|| {
        let function = "fattn_clip_by_global_norm";
        // SAFETY: passed on to the caller.
        let device = unsafe { opened(function, device) }?;
        let non_finite = match non_finite {
            0 => NonFiniteNorm::Refuse,
            1 => NonFiniteNorm::Multiply,
            other => return Err(invalid(format!("non_finite: expected 0 or 1, got {other}"))),
        };
        // SAFETY: passed on to the caller.
        let gradients = unsafe { self::tensors(function, tensors, count) }?;
        let stream = Stream(stream as usize);
        // SAFETY: passed on to the caller.
        let clipped = unsafe { clip_by_global_norm(device, &gradients, max_norm, non_finite, stream) };
        let clipped = clipped.map_err(refused)?;
        for (place, number) in [(total_norm, clipped.total_norm), (coefficient, clipped.coefficient)] {
            if !place.is_null() {
                // SAFETY: not null, and the caller vouches for the rest.
                unsafe { place.write(number) };
            }
        }
        Ok(())
    })
}

/// The scaler of a call.
///
/// # Safety
/// `scaler` is null or valid, and used by nobody else.
unsafe fn known<'a>(function: &str, scaler: *mut GradScaler) -> Result<&'a mut GradScaler, Failure> {
    // SAFETY: passed on to the caller.
    unsafe { scaler.as_mut() }.ok_or_else(|| invalid(format!("{function}: expected a scaler, got null")))
}

/// Writes what a call returns; null is refused before anything is done.
///
/// # Safety
/// `place` is null or writable.
unsafe fn answered<T>(
    function: &str,
    place: *mut T,
    call: impl FnOnce() -> Result<T, Failure>,
) -> Result<(), Failure> {
    if place.is_null() {
        return Err(invalid(format!("{function}: expected a place for the answer, got null")));
    }
    let answer = call()?;
    // SAFETY: not null, and the caller vouches for the rest.
    unsafe { place.write(answer) };
    Ok(())
}

/// Makes a scaler in a state; null for the usual one.
///
/// # Safety
/// `state` is null or valid, `scaler` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fattn_grad_scaler_create(
    state: *const CGradScalerValues,
    scaler: *mut *mut GradScaler,
) -> i32 {
    guarded(|| {
        let function = "fattn_grad_scaler_create";
        // SAFETY: null, or valid by the caller's word.
        let state = match unsafe { state.as_ref() } {
            None => GradScalerState::default(),
            Some(state) if state.reserved != 0 => {
                let got = state.reserved;
                return Err(invalid(format!("{function}: expected 0 in reserved, got {got}")));
            }
            Some(state) => GradScalerState {
                scale: state.scale,
                growth_factor: state.growth_factor,
                backoff_factor: state.backoff_factor,
                growth_interval: state.growth_interval,
                growth_tracker: state.growth_tracker,
            },
        };
        let made = || Ok(Box::into_raw(Box::new(GradScaler::new(state).map_err(refused)?)));
        // SAFETY: passed on to the caller.
        unsafe { answered(function, scaler, made) }
    })
}

/// Frees a scaler. Null is allowed.
///
/// # Safety
/// `scaler` is null or came from [`fattn_grad_scaler_create`], was not freed before, and no call uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fattn_grad_scaler_destroy(scaler: *mut GradScaler) {
    guarded(|| {
        if !scaler.is_null() {
            // SAFETY: it came from `Box::into_raw` and is not used again.
            drop(unsafe { Box::from_raw(scaler) });
        }
        Ok(())
    });
}

/// What the loss is to be multiplied by.
///
/// # Safety
/// `scaler` is null or valid, `scale` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fattn_grad_scaler_scale(scaler: *const GradScaler, scale: *mut f32) -> i32 {
    guarded(|| {
        let function = "fattn_grad_scaler_scale";
        // SAFETY: passed on to the caller.
        let scaler = unsafe { known(function, scaler.cast_mut()) }?;
        // SAFETY: passed on to the caller.
        unsafe { answered(function, scale, || Ok(scaler.scale())) }
    })
}

/// What a checkpoint needs.
///
/// # Safety
/// `scaler` is null or valid, `state` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fattn_grad_scaler_state(
    scaler: *const GradScaler,
    state: *mut CGradScalerValues,
) -> i32 {
    guarded(|| {
        let function = "fattn_grad_scaler_state";
        // SAFETY: passed on to the caller.
        let now = unsafe { known(function, scaler.cast_mut()) }?.state();
        let now = CGradScalerValues {
            growth_factor: now.growth_factor,
            backoff_factor: now.backoff_factor,
            scale: now.scale,
            growth_interval: now.growth_interval,
            growth_tracker: now.growth_tracker,
            reserved: 0,
        };
        // SAFETY: passed on to the caller.
        unsafe { answered(function, state, || Ok(now)) }
    })
}

/// Divides an optimizer's gradients by the scale, in place; says how many tensors were not finite.
///
/// # Safety
/// `scaler`, `device` and `tensors` are null or valid, elements readable and writable, and used by nobody
/// else; `non_finite` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fattn_grad_scaler_unscale(
    scaler: *mut GradScaler,
    device: *const Device,
    optimizer: u64,
    tensors: *const CDeviceTensor,
    count: u64,
    non_finite: *mut u64,
    stream: *mut c_void,
) -> i32 {
    guarded(|| {
        let function = "fattn_grad_scaler_unscale";
        // SAFETY: passed on to the caller.
        let (scaler, device) = unsafe { (known(function, scaler)?, opened(function, device)?) };
        // SAFETY: passed on to the caller.
        let gradients = unsafe { self::tensors(function, tensors, count) }?;
        let stream = Stream(stream as usize);
        // SAFETY: passed on to the caller.
        let mut found = || unsafe { scaler.unscale(device, optimizer as usize, &gradients, stream) };
        let count = move || found().map(|tensors| tensors.len() as u64).map_err(refused);
        // SAFETY: passed on to the caller.
        unsafe { answered(function, non_finite, count) }
    })
}

/// Notes that other code has unscaled an optimizer's gradients, and what it found.
///
/// # Safety
/// `scaler` is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fattn_grad_scaler_note_unscaled(
    scaler: *mut GradScaler,
    optimizer: u64,
    found_non_finite: i32,
) -> i32 {
    guarded(|| {
        // SAFETY: passed on to the caller.
        let scaler = unsafe { known("fattn_grad_scaler_note_unscaled", scaler) }?;
        let found = super::convert::flag("found_non_finite", found_non_finite)?;
        scaler.note_unscaled(optimizer as usize, found).map_err(refused)
    })
}

/// Whether an optimizer may take its step.
///
/// # Safety
/// `scaler` is null or valid, `take` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fattn_grad_scaler_step(
    scaler: *mut GradScaler,
    optimizer: u64,
    take: *mut i32,
) -> i32 {
    guarded(|| {
        let function = "fattn_grad_scaler_step";
        // SAFETY: passed on to the caller.
        let scaler = unsafe { known(function, scaler) }?;
        let call = || scaler.step(optimizer as usize).map(i32::from).map_err(refused);
        // SAFETY: passed on to the caller.
        unsafe { answered(function, take, call) }
    })
}

/// Ends a step of training: the scale of the next one.
///
/// # Safety
/// `scaler` is null or valid, `scale` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fattn_grad_scaler_update(scaler: *mut GradScaler, scale: *mut f32) -> i32 {
    guarded(|| {
        let function = "fattn_grad_scaler_update";
        // SAFETY: passed on to the caller.
        let scaler = unsafe { known(function, scaler) }?;
        // SAFETY: passed on to the caller.
        unsafe { answered(function, scale, || scaler.update().map_err(refused)) }
    })
}
