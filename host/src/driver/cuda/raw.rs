//! Calls into the driver that go past `cust`, whether it is there or not, because it lacks them or would lose
//! their outcome: 48 KiB and more of shared memory, the log of the JIT compiler, launches with a parameter
//! given as bytes, streams of other libraries, error codes that are newer than `cust`.
//!
//! The functions are declared once more here, with plain integers for the enumerations: a newer driver
//! may return codes that no enumeration of `cust_raw` has.

mod launch;
mod streams;

use crate::driver::{L2Promotion, TensorMapDescription};
use crate::error::Error;
use kernels_gpu::abi::TensorMap;
use std::ffi::{CStr, c_char, c_void};
use std::ptr;

pub(super) use launch::{LaunchShape, launch};
pub(super) use streams::{
    copy_from_peer, copy_rows, enable_peer_access, stream_create, stream_destroy, stream_is_idle,
    stream_wait,
};

/// `CUmodule`.
pub(super) type Module = *mut c_void;
/// `CUfunction`.
pub(super) type Function = *mut c_void;
/// `CUstream`.
pub(super) type StreamHandle = *mut c_void;
/// `CUmemoryPool`.
pub(super) type MemoryPool = *mut c_void;
/// `CUevent`.
pub(super) type EventHandle = *mut c_void;

/// `CUDA_ERROR_OUT_OF_MEMORY`.
pub(super) const OUT_OF_MEMORY: i32 = 2;

/// `CU_DEVICE_ATTRIBUTE_*`.
pub(super) mod attribute {
    pub const MULTIPROCESSORS: i32 = 16;
    pub const L2_CACHE_BYTES: i32 = 38;
    pub const COMPUTE_CAPABILITY_MAJOR: i32 = 75;
    pub const COMPUTE_CAPABILITY_MINOR: i32 = 76;
    pub const SHARED_BYTES_PER_BLOCK_OPT_IN: i32 = 97;
    pub const MEMORY_POOLS_SUPPORTED: i32 = 115;
}

/// `CU_MEM_ALLOCATION_TYPE_PINNED`, which is device memory.
const ALLOCATION_TYPE_PINNED: i32 = 1;
/// `CU_MEM_LOCATION_TYPE_DEVICE`.
const LOCATION_TYPE_DEVICE: i32 = 1;
/// `CU_MEMPOOL_ATTR_RELEASE_THRESHOLD`.
const POOL_RELEASE_THRESHOLD: i32 = 4;

/// `CUmemPoolProps`.
#[repr(C)]
struct PoolProperties {
    allocation_type: i32,
    handle_types: i32,
    location_type: i32,
    location: i32,
    security_attributes: *mut c_void,
    max_bytes: usize,
    /// `usage`, and what is reserved.
    rest: [u8; 56],
}
const _: () = assert!(size_of::<PoolProperties>() == 88);

/// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`.
const MAX_DYNAMIC_SHARED_BYTES: i32 = 8;
/// `CU_JIT_ERROR_LOG_BUFFER`.
const JIT_ERROR_LOG_BUFFER: u32 = 5;
/// `CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES`.
const JIT_ERROR_LOG_BUFFER_SIZE_BYTES: u32 = 6;

unsafe extern "C" {
    fn cuInit(flags: u32) -> i32;
    fn cuGetErrorName(code: i32, text: *mut *const c_char) -> i32;
    fn cuDriverGetVersion(version: *mut i32) -> i32;
    fn cuDeviceGetAttribute(value: *mut i32, attribute: i32, device: i32) -> i32;
    fn cuCtxGetCurrent(context: *mut *mut c_void) -> i32;
    fn cuCtxSetCurrent(context: *mut c_void) -> i32;
    fn cuCtxPushCurrent_v2(context: *mut c_void) -> i32;
    fn cuCtxPopCurrent_v2(context: *mut *mut c_void) -> i32;
    fn cuMemcpyHtoD_v2(destination: u64, source: *const c_void, bytes: usize) -> i32;
    fn cuMemcpyDtoH_v2(destination: *mut c_void, source: u64, bytes: usize) -> i32;
    fn cuMemPoolCreate(pool: *mut MemoryPool, properties: *const PoolProperties) -> i32;
    fn cuMemPoolDestroy(pool: MemoryPool) -> i32;
    fn cuMemPoolSetAttribute(pool: MemoryPool, attribute: i32, value: *mut c_void) -> i32;
    fn cuMemAllocFromPoolAsync(
        pointer: *mut u64,
        bytes: usize,
        pool: MemoryPool,
        stream: StreamHandle,
    ) -> i32;
    fn cuMemFreeAsync(pointer: u64, stream: StreamHandle) -> i32;
    fn cuStreamSynchronize(stream: StreamHandle) -> i32;
    fn cuModuleLoadDataEx(
        module: *mut Module,
        image: *const c_void,
        options: u32,
        names: *const u32,
        values: *mut *mut c_void,
    ) -> i32;
    fn cuModuleUnload(module: Module) -> i32;
    fn cuModuleGetFunction(function: *mut Function, module: Module, name: *const c_char) -> i32;
    fn cuFuncSetAttribute(function: Function, attribute: i32, value: i32) -> i32;
    fn cuTensorMapEncodeTiled(
        map: *mut c_void,
        element: u32,
        rank: u32,
        address: u64,
        dims: *const u64,
        strides_bytes: *const u64,
        box_dims: *const u32,
        element_strides: *const u32,
        interleave: u32,
        swizzle: u32,
        l2_promotion: u32,
        out_of_bounds_fill: u32,
    ) -> i32;
    fn cuEventCreate(event: *mut EventHandle, flags: u32) -> i32;
    fn cuEventRecord(event: EventHandle, stream: StreamHandle) -> i32;
    fn cuEventSynchronize(event: EventHandle) -> i32;
    fn cuEventElapsedTime(milliseconds: *mut f32, start: EventHandle, end: EventHandle) -> i32;
    fn cuEventDestroy_v2(event: EventHandle) -> i32;
}

/// What a failed call returned: enough to build an [`Error`] from, with details that only the caller
/// knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    /// The function that failed.
    pub call: &'static str,
    /// Its `CUresult`.
    pub code: i32,
}

impl Failure {
    /// The error, with what the caller knows about it.
    pub fn with_detail(self, detail: impl Into<String>) -> Error {
        let Failure { call, code } = self;
        Error::Cuda { call, code, name: error_name(code), detail: detail.into() }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Error {
        failure.with_detail("")
    }
}

/// The name of a `CUresult`, e.g. `CUDA_ERROR_ILLEGAL_ADDRESS`.
pub(super) fn error_name(code: i32) -> String {
    let mut text = ptr::null();
    // SAFETY: `text` is writable; the driver answers with a static string, or leaves null for codes that
    // it lacks.
    let status = unsafe { cuGetErrorName(code, &mut text) };
    if status != 0 || text.is_null() {
        return "unknown error".to_owned();
    }
    // SAFETY: not null, and a NUL-terminated string of the driver.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// The outcome of a call that returned this `CUresult`.
pub(super) fn check(call: &'static str, code: i32) -> Result<(), Failure> {
    if code == 0 { Ok(()) } else { Err(Failure { call, code }) }
}

/// Initialises the driver; any number of times.
pub(super) fn initialise() -> Result<(), Failure> {
    // SAFETY: no preconditions.
    check("cuInit", unsafe { cuInit(0) })
}

/// The version of the driver's interface: 1000 times the major one of CUDA, and 10 times the minor one.
pub(super) fn driver_version() -> Result<i32, Failure> {
    let mut version = 0;
    // SAFETY: `version` is writable.
    check("cuDriverGetVersion", unsafe { cuDriverGetVersion(&mut version) }).map(|()| version)
}

/// One number about a device.
pub(super) fn device_attribute(device: i32, attribute: i32) -> Result<u32, Failure> {
    let mut value = 0;
    // SAFETY: `value` is writable; unknown devices and attributes are refused.
    check("cuDeviceGetAttribute", unsafe { cuDeviceGetAttribute(&mut value, attribute, device) })?;
    Ok(value.max(0).cast_unsigned())
}

/// The context that is current on this thread, or null.
pub(super) fn current_context() -> Result<*mut c_void, Failure> {
    let mut context = ptr::null_mut();
    // SAFETY: `context` is writable.
    check("cuCtxGetCurrent", unsafe { cuCtxGetCurrent(&mut context) })?;
    Ok(context)
}

/// Makes a context current on this thread.
///
/// # Safety
/// `context` is alive.
pub(super) unsafe fn set_current_context(context: *mut c_void) -> Result<(), Failure> {
    // SAFETY: passed on to the caller.
    check("cuCtxSetCurrent", unsafe { cuCtxSetCurrent(context) })
}

/// Pushes a context onto this thread's stack of contexts.
///
/// # Safety
/// `context` is alive.
pub(super) unsafe fn push_context(context: *mut c_void) -> Result<(), Failure> {
    // SAFETY: passed on to the caller.
    check("cuCtxPushCurrent", unsafe { cuCtxPushCurrent_v2(context) })
}

/// Pops what [`push_context`] pushed.
pub(super) fn pop_context() {
    let mut popped = ptr::null_mut();
    // SAFETY: `popped` is writable. Nothing can be done about a failure, which only an empty stack
    // gives.
    unsafe { cuCtxPopCurrent_v2(&mut popped) };
}

/// Copies host bytes to device memory; on its way, not always there, when it returns.
pub(super) fn copy_to_device(destination: u64, source: &[u8]) -> Result<(), Failure> {
    // SAFETY: the source is a slice; device addresses are checked by the driver.
    let code = unsafe { cuMemcpyHtoD_v2(destination, source.as_ptr().cast(), source.len()) };
    check("cuMemcpyHtoD", code)
}

/// Copies device memory to the host.
pub(super) fn copy_to_host(destination: &mut [u8], source: u64) -> Result<(), Failure> {
    let bytes = destination.len();
    // SAFETY: the destination is a slice; device addresses are checked by the driver.
    check("cuMemcpyDtoH", unsafe { cuMemcpyDtoH_v2(destination.as_mut_ptr().cast(), source, bytes) })
}

/// Waits for a stream.
///
/// # Safety
/// `stream` is null or alive.
pub(super) unsafe fn synchronize(stream: StreamHandle) -> Result<(), Failure> {
    // SAFETY: passed on to the caller.
    check("cuStreamSynchronize", unsafe { cuStreamSynchronize(stream) })
}

/// Compiles and loads PTX into the current context. The error comes with the log of the JIT compiler.
pub(super) fn load_module(ptx: &CStr) -> Result<Module, (Failure, String)> {
    let mut log = vec![0_u8; 16 * 1024];
    let mut module = ptr::null_mut();
    let names = [JIT_ERROR_LOG_BUFFER, JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
    // The driver takes a pointer as it is and a number in the place of a pointer.
    let mut values = [log.as_mut_ptr().cast::<c_void>(), ptr::without_provenance_mut(log.len() - 1)];
    // SAFETY: the image is NUL-terminated; both arrays have two elements; the log has the length given.
    let code = unsafe {
        cuModuleLoadDataEx(&mut module, ptx.as_ptr().cast(), 2, names.as_ptr(), values.as_mut_ptr())
    };
    check("cuModuleLoadDataEx", code).map(|()| module).map_err(|failure| {
        let end = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
        (failure, String::from_utf8_lossy(&log[..end]).trim().to_owned())
    })
}

/// Loads a kernel that is assembled for the device of the current context.
pub(super) fn load_assembled(image: &[u8]) -> Result<Module, Failure> {
    let mut module = ptr::null_mut();
    // SAFETY: an object file says itself where it ends; there are no options.
    let code = unsafe {
        cuModuleLoadDataEx(&mut module, image.as_ptr().cast(), 0, ptr::null(), ptr::null_mut())
    };
    check("cuModuleLoadDataEx", code).map(|()| module)
}

/// Unloads a module; its context is current.
///
/// # Safety
/// `module` was loaded, and neither it nor its functions are used again.
pub(super) unsafe fn unload_module(module: Module) {
    // SAFETY: passed on to the caller. A failure leaks the module, and nobody is left to tell.
    unsafe { cuModuleUnload(module) };
}

/// A kernel of a module.
///
/// # Safety
/// `module` is loaded.
pub(super) unsafe fn module_function(module: Module, name: &CStr) -> Result<Function, Failure> {
    let mut function = ptr::null_mut();
    // SAFETY: passed on to the caller; `name` is NUL-terminated.
    check("cuModuleGetFunction", unsafe { cuModuleGetFunction(&mut function, module, name.as_ptr()) })?;
    Ok(function)
}

/// Lets a kernel have up to this much dynamic shared memory: more than 48 KiB must be asked for.
///
/// # Safety
/// The module of `function` is loaded.
pub(super) unsafe fn set_max_dynamic_shared_bytes(
    function: Function,
    bytes: u32,
) -> Result<(), Failure> {
    // SAFETY: passed on to the caller.
    let code = unsafe { cuFuncSetAttribute(function, MAX_DYNAMIC_SHARED_BYTES, bytes.cast_signed()) };
    check("cuFuncSetAttribute", code)
}

/// `CU_TENSOR_MAP_DATA_TYPE_UINT16`: what is outside of the tensor is then zero, in every 16-bit format.
const TENSOR_MAP_UINT16: u32 = 1;
/// `CU_TENSOR_MAP_SWIZZLE_128B`.
const TENSOR_MAP_SWIZZLE_128_BYTES: u32 = 3;
/// `CU_TENSOR_MAP_L2_PROMOTION_L2_128B`.
const TENSOR_MAP_L2_PROMOTION_128_BYTES: u32 = 2;
/// `CU_TENSOR_MAP_L2_PROMOTION_L2_256B`.
const TENSOR_MAP_L2_PROMOTION_256_BYTES: u32 = 3;

/// `CUtensorMap`.
#[repr(C, align(64))]
struct AlignedTensorMap([u64; 16]);

/// Encodes a tensor map: 16-bit elements, 128-byte swizzle. A context must be current.
pub(super) fn encode_tensor_map(description: &TensorMapDescription) -> Result<TensorMap, Failure> {
    let TensorMapDescription { address, dims, strides_bytes, box_dims, l2_promotion } = *description;
    let l2_promotion = match l2_promotion {
        L2Promotion::Bytes128 => TENSOR_MAP_L2_PROMOTION_128_BYTES,
        L2Promotion::Bytes256 => TENSOR_MAP_L2_PROMOTION_256_BYTES,
    };
    let mut map = AlignedTensorMap([0; 16]);
    // SAFETY: the map is writable and aligned; the arrays have the lengths that four dimensions have. The
    // address is not followed.
    let code = unsafe {
        cuTensorMapEncodeTiled(
            (&raw mut map).cast(),
            TENSOR_MAP_UINT16,
            4,
            address,
            dims.as_ptr(),
            strides_bytes.as_ptr(),
            box_dims.as_ptr(),
            [1; 4].as_ptr(),
            0,
            TENSOR_MAP_SWIZZLE_128_BYTES,
            l2_promotion,
            0,
        )
    };
    check("cuTensorMapEncodeTiled", code).map(|()| map.0)
}

/// A pool of memory of the device, which keeps what is freed for what is allocated next. A context must be
/// current.
pub(super) fn pool_create(device: i32) -> Result<MemoryPool, Failure> {
    let properties = PoolProperties {
        allocation_type: ALLOCATION_TYPE_PINNED,
        handle_types: 0,
        location_type: LOCATION_TYPE_DEVICE,
        location: device,
        security_attributes: ptr::null_mut(),
        max_bytes: 0,
        rest: [0; 56],
    };
    let mut pool = ptr::null_mut();
    // SAFETY: both are of the driver's types.
    check("cuMemPoolCreate", unsafe { cuMemPoolCreate(&raw mut pool, &raw const properties) })?;
    let mut keeps = u64::MAX;
    // SAFETY: the pool was made above; the value is a `cuuint64_t`.
    let code = unsafe { cuMemPoolSetAttribute(pool, POOL_RELEASE_THRESHOLD, (&raw mut keeps).cast()) };
    check("cuMemPoolSetAttribute", code).inspect_err(|_| {
        // SAFETY: made above, and nothing is allocated from it.
        unsafe { pool_destroy(pool) };
    })?;
    Ok(pool)
}

/// Destroys a pool; what is allocated from it stays until it is freed.
///
/// # Safety
/// The pool was made by [`pool_create`] and is not used again.
pub(super) unsafe fn pool_destroy(pool: MemoryPool) {
    // SAFETY: passed on to the caller. There is nobody to tell of a failure.
    let _ = unsafe { cuMemPoolDestroy(pool) };
}

/// Memory of a pool for what is queued on a stream from now on.
///
/// # Safety
/// The pool is alive, and the stream null or alive.
pub(super) unsafe fn allocate_in_order(
    bytes: usize,
    pool: MemoryPool,
    stream: StreamHandle,
) -> Result<u64, Failure> {
    let mut pointer = 0;
    // SAFETY: passed on to the caller.
    let code = unsafe { cuMemAllocFromPoolAsync(&raw mut pointer, bytes, pool, stream) };
    check("cuMemAllocFromPoolAsync", code).map(|()| pointer)
}

/// Frees it behind all that is queued on the stream.
///
/// # Safety
/// The pointer came from [`allocate_in_order`] and was not freed before; the stream is null or alive.
pub(super) unsafe fn free_in_order(pointer: u64, stream: StreamHandle) -> Result<(), Failure> {
    // SAFETY: passed on to the caller.
    check("cuMemFreeAsync", unsafe { cuMemFreeAsync(pointer, stream) })
}

/// A new event in the current context, with or without timing.
pub(super) fn event_create(is_timed: bool) -> Result<EventHandle, Failure> {
    /// `CU_EVENT_DISABLE_TIMING`.
    const DISABLE_TIMING: u32 = 2;
    let mut event = ptr::null_mut();
    // SAFETY: `event` is writable.
    check("cuEventCreate", unsafe {
        cuEventCreate(&mut event, if is_timed { 0 } else { DISABLE_TIMING })
    })?;
    Ok(event)
}

/// Queues the event on a stream.
///
/// # Safety
/// `event` is alive, `stream` is null or alive.
pub(super) unsafe fn event_record(event: EventHandle, stream: StreamHandle) -> Result<(), Failure> {
    // SAFETY: passed on to the caller.
    check("cuEventRecord", unsafe { cuEventRecord(event, stream) })
}

/// Waits for `end`, and returns the milliseconds from `start` to it.
///
/// # Safety
/// Both events are alive.
pub(super) unsafe fn event_elapsed(start: EventHandle, end: EventHandle) -> Result<f32, Failure> {
    let mut milliseconds = 0.0;
    // SAFETY: passed on to the caller.
    check("cuEventSynchronize", unsafe { cuEventSynchronize(end) })?;
    // SAFETY: passed on to the caller; `milliseconds` is writable.
    check("cuEventElapsedTime", unsafe { cuEventElapsedTime(&mut milliseconds, start, end) })?;
    Ok(milliseconds)
}

/// Destroys an event.
///
/// # Safety
/// `event` is alive and not used again.
pub(super) unsafe fn event_destroy(event: EventHandle) {
    // SAFETY: passed on to the caller. A failure leaks the event, and nobody is left to tell.
    unsafe { cuEventDestroy_v2(event) };
}
