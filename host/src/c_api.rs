//! The library for other languages: a small C interface, built as `libfinite_attention.so`.
//!
//! ```c
//! typedef struct fattn_device fattn_device;
//! typedef struct {                  // logical order: batch, row, head, column
//!     uint64_t address;             // device address of element (0, 0, 0, 0)
//!     int64_t shape[4];
//!     int64_t strides[4];           // in elements
//! } fattn_tensor;
//! typedef struct {
//!     uint32_t struct_bytes;        // sizeof(fattn_forward_args)
//!     int32_t dtype;                // of q, k and v: 0 bf16, 1 f16, 2 f32
//!     int32_t output_dtype;         // of o: that of q, or f32
//!     int32_t mask;                 // 0 full, 1 causal aligned bottom right, 2 causal aligned top left
//!     float scale;                  // of the scores; NaN for head_dim ^ -0.5
//!     uint32_t reserved;            // 0
//!     fattn_tensor q, k, v, o;
//!     uint64_t lse;                 // device address of dense f32 [B, Hq, Sq], or 0
//! } fattn_forward_args;
//!
//! int32_t fattn_device_open(const char *name, fattn_device **device);   // "cuda:0", "emulated"
//! void fattn_device_close(fattn_device *device);
//! int32_t fattn_forward(const fattn_device *device, const fattn_forward_args *args, void *stream);
//! const char *fattn_last_error(void);                                   // of this thread's last failed call
//! ```
//!
//! Functions return 0, or one of the numbers of [`Status`]. A GPU is opened in its primary context, so addresses and
//! streams of the CUDA runtime and of PyTorch can be passed as they are. Work is queued on `stream` and not waited for.

use crate::attention::forward;
use crate::device::Device;
use crate::driver::Stream;
use crate::error::Error;
use crate::plan::ForwardPointers;
use crate::problem::{CausalAlignment, ForwardProblem, Layout, Mask};
use kernels_gpu::abi::Dtype;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What the functions return.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Done, or queued.
    Success = 0,
    /// An argument is wrong; nothing was done.
    InvalidArgument = 1,
    /// There is no such device.
    NoDevice = 2,
    /// The device, its driver or the emulator failed.
    DeviceFailed = 3,
    /// The library is at fault.
    Panicked = 4,
}

/// `fattn_tensor`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CTensor {
    /// Device address of element (0, 0, 0, 0).
    pub address: u64,
    /// `[batch, row, head, column]`.
    pub shape: [i64; 4],
    /// In elements.
    pub strides: [i64; 4],
}

/// `fattn_forward_args`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CForwardArgs {
    /// Size of this struct.
    pub struct_bytes: u32,
    /// Of q, k and v: 0 bf16, 1 f16, 2 f32.
    pub dtype: i32,
    /// Of o.
    pub output_dtype: i32,
    /// 0 full, 1 causal aligned bottom right, 2 causal aligned top left.
    pub mask: i32,
    /// Softmax scale; NaN for the default.
    pub scale: f32,
    /// 0.
    pub reserved: u32,
    /// `[B, Sq, Hq, D]`.
    pub q: CTensor,
    /// `[B, Sk, Hk, D]`.
    pub k: CTensor,
    /// `[B, Sk, Hk, Dv]`.
    pub v: CTensor,
    /// `[B, Sq, Hq, Dv]`.
    pub o: CTensor,
    /// Device address of dense f32 `[B, Hq, Sq]`, or 0.
    pub lse: u64,
}

/// Status and text of what went wrong.
type Failure = (Status, String);

fn invalid(text: impl Into<String>) -> Failure {
    (Status::InvalidArgument, text.into())
}

fn failure(error: Error) -> Failure {
    let status = match &error {
        Error::NoDevice { .. } => Status::NoDevice,
        Error::OutOfMemory { .. }
        | Error::KernelImageMissing { .. }
        | Error::KernelImageCorrupt { .. }
        | Error::Cuda { .. }
        | Error::Findings { .. }
        | Error::Emulator { .. } => Status::DeviceFailed,
        _ => Status::InvalidArgument,
    };
    (status, error.to_string())
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

/// Opens a device by its name: `cuda`, `cuda:N`, `emulated`, `emulated:sm_80`.
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
        // SAFETY: null, or valid by the caller's word.
        let (Some(device), Some(struct_bytes)) =
            (unsafe { device.as_ref() }, unsafe { args.cast::<u32>().as_ref() })
        else {
            return Err(invalid("fattn_forward: expected a device and arguments, got null"));
        };
        let expected = size_of::<CForwardArgs>();
        if *struct_bytes as usize != expected {
            let text = format!("fattn_forward: expected struct_bytes {expected}, got {struct_bytes}");
            return Err(invalid(text));
        }
        // SAFETY: not null, and of the size just checked.
        let args = unsafe { &*args };
        let problem = problem(args)?;
        let pointers = ForwardPointers {
            q: args.q.address,
            k: args.k.address,
            v: args.v.address,
            o: args.o.address,
            lse: args.lse,
            ..ForwardPointers::default()
        };
        // SAFETY: passed on to the caller.
        unsafe { forward(device, &problem, &pointers, Stream(stream as usize)) }.map_err(failure)
    })
}

/// Text of this thread's last failed call, valid until its next failed call; empty before the first one.
#[unsafe(no_mangle)]
pub extern "C" fn fattn_last_error() -> *const c_char {
    LAST_ERROR.with(|last| last.borrow().as_ptr())
}

fn problem(args: &CForwardArgs) -> Result<ForwardProblem, Failure> {
    let CForwardArgs { q, k, v, o, .. } = args;
    let mut problem = ForwardProblem::new(
        dtype("dtype", args.dtype)?,
        layout("q", q)?,
        layout("k", k)?,
        layout("v", v)?,
    )
    .with_output(layout("o", o)?)
    .with_output_dtype(dtype("output_dtype", args.output_dtype)?)
    .with_mask(match args.mask {
        0 => Mask::Full,
        1 => Mask::Causal(CausalAlignment::BottomRight),
        2 => Mask::Causal(CausalAlignment::TopLeft),
        other => return Err(invalid(format!("mask: expected 0, 1 or 2, got {other}"))),
    });
    problem.scale = (!args.scale.is_nan()).then_some(args.scale);
    problem.wants_lse = args.lse != 0;
    Ok(problem)
}

fn dtype(argument: &str, number: i32) -> Result<Dtype, Failure> {
    match number {
        0 => Ok(Dtype::Bf16),
        1 => Ok(Dtype::F16),
        2 => Ok(Dtype::F32),
        other => Err(invalid(format!("{argument}: expected 0, 1 or 2, got {other}"))),
    }
}

fn layout(argument: &str, tensor: &CTensor) -> Result<Layout, Failure> {
    let mut shape = [0; 4];
    for (size, given) in shape.iter_mut().zip(tensor.shape) {
        *size = usize::try_from(given).map_err(|_| {
            invalid(format!("{argument}: expected sizes of at least 0, got {:?}", tensor.shape))
        })?;
    }
    Ok(Layout { shape, strides: tensor.strides })
}

#[cfg(test)]
mod tests;
