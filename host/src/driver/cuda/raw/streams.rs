//! Streams, what waits for what between them, and copies from one GPU to another.

use super::{EventHandle, Failure, StreamHandle, check};
use std::ffi::c_void;
use std::ptr;

/// `CU_STREAM_NON_BLOCKING`: it does not wait for the default stream.
const STREAM_NON_BLOCKING: u32 = 1;
/// `CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED`.
const PEER_ACCESS_ALREADY_ENABLED: i32 = 704;
/// `CUDA_ERROR_PEER_ACCESS_UNSUPPORTED`.
const PEER_ACCESS_UNSUPPORTED: i32 = 217;

unsafe extern "C" {
    fn cuCtxGetStreamPriorityRange(least: *mut i32, greatest: *mut i32) -> i32;
    fn cuStreamCreateWithPriority(stream: *mut StreamHandle, flags: u32, priority: i32) -> i32;
    fn cuStreamDestroy_v2(stream: StreamHandle) -> i32;
    fn cuStreamQuery(stream: StreamHandle) -> i32;
    fn cuStreamWaitEvent(stream: StreamHandle, event: EventHandle, flags: u32) -> i32;
    fn cuCtxEnablePeerAccess(context: *mut c_void, flags: u32) -> i32;
    fn cuMemcpyPeerAsync(
        destination: u64,
        destination_context: *mut c_void,
        source: u64,
        source_context: *mut c_void,
        bytes: usize,
        stream: StreamHandle,
    ) -> i32;
    fn cuMemcpy2DAsync_v2(copy: *const Copy2d, stream: StreamHandle) -> i32;
}

/// `CUDA_MEMCPY2D`.
#[repr(C)]
struct Copy2d {
    source: Side2d,
    destination: Side2d,
    width: usize,
    height: usize,
}

/// Either half of it.
#[repr(C)]
struct Side2d {
    x: usize,
    y: usize,
    memory_type: u32,
    host: *const c_void,
    device: u64,
    array: *const c_void,
    pitch: usize,
}

impl Side2d {
    fn new((device, pitch): (u64, usize)) -> Self {
        /// `CU_MEMORYTYPE_DEVICE`.
        const DEVICE: u32 = 2;
        let (host, array) = (ptr::null(), ptr::null());
        Side2d { x: 0, y: 0, memory_type: DEVICE, host, device, array, pitch }
    }
}

/// A new stream of the highest priority or of that of the default one, in the current context.
pub(in crate::driver::cuda) fn stream_create(is_urgent: bool) -> Result<StreamHandle, Failure> {
    let (mut least, mut greatest) = (0, 0);
    // SAFETY: both are writable.
    let code = unsafe { cuCtxGetStreamPriorityRange(&raw mut least, &raw mut greatest) };
    check("cuCtxGetStreamPriorityRange", code)?;
    let (mut stream, priority) = (ptr::null_mut(), if is_urgent { greatest } else { 0 });
    // SAFETY: `stream` is writable.
    let code = unsafe { cuStreamCreateWithPriority(&raw mut stream, STREAM_NON_BLOCKING, priority) };
    check("cuStreamCreateWithPriority", code).map(|()| stream)
}

/// Destroys a stream behind all that is queued on it.
///
/// # Safety
/// It was made by [`stream_create`] and is not used again.
pub(in crate::driver::cuda) unsafe fn stream_destroy(stream: StreamHandle) -> Result<(), Failure> {
    // SAFETY: passed on to the caller.
    check("cuStreamDestroy", unsafe { cuStreamDestroy_v2(stream) })
}

/// Whether all that is queued on a stream is done.
///
/// # Safety
/// `stream` is null or alive.
pub(in crate::driver::cuda) unsafe fn stream_is_idle(stream: StreamHandle) -> Result<bool, Failure> {
    /// `CUDA_ERROR_NOT_READY`.
    const NOT_READY: i32 = 600;
    // SAFETY: passed on to the caller.
    match unsafe { cuStreamQuery(stream) } {
        NOT_READY => Ok(false),
        code => check("cuStreamQuery", code).map(|()| true),
    }
}

/// What is queued on the stream from now on waits for the event.
///
/// # Safety
/// Both are alive, or the stream is null.
pub(in crate::driver::cuda) unsafe fn stream_wait(
    stream: StreamHandle,
    event: EventHandle,
) -> Result<(), Failure> {
    // SAFETY: passed on to the caller.
    check("cuStreamWaitEvent", unsafe { cuStreamWaitEvent(stream, event, 0) })
}

/// Lets the current context reach the memory of another one, if the machine can do that: copies then need no
/// memory of the host. Any number of times.
///
/// # Safety
/// `context` is alive, and not the current one.
pub(in crate::driver::cuda) unsafe fn enable_peer_access(context: *mut c_void) -> Result<(), Failure> {
    // SAFETY: passed on to the caller.
    match unsafe { cuCtxEnablePeerAccess(context, 0) } {
        PEER_ACCESS_ALREADY_ENABLED | PEER_ACCESS_UNSUPPORTED => Ok(()),
        code => check("cuCtxEnablePeerAccess", code),
    }
}

/// Queues a copy from one context's memory to another's.
///
/// # Safety
/// Contexts and stream are alive, the stream or null one of the current context; both ranges of memory are
/// there until the copy is done, and nobody else uses the destination.
pub(in crate::driver::cuda) unsafe fn copy_from_peer(
    (destination, destination_context): (u64, *mut c_void),
    (source, source_context): (u64, *mut c_void),
    bytes: usize,
    stream: StreamHandle,
) -> Result<(), Failure> {
    // SAFETY: passed on to the caller.
    let code = unsafe {
        cuMemcpyPeerAsync(destination, destination_context, source, source_context, bytes, stream)
    };
    check("cuMemcpyPeerAsync", code)
}

/// Queues a copy of rows within the memory of the current context: addresses, and bytes from row to row.
///
/// # Safety
/// The stream is null or one of the current context; both ranges of memory are there until the copy is done,
/// and nobody else uses the destination.
pub(in crate::driver::cuda) unsafe fn copy_rows(
    destination: (u64, usize),
    source: (u64, usize),
    [height, width]: [usize; 2],
    stream: StreamHandle,
) -> Result<(), Failure> {
    let (source, destination) = (Side2d::new(source), Side2d::new(destination));
    let copy = Copy2d { source, destination, width, height };
    // SAFETY: passed on to the caller.
    check("cuMemcpy2DAsync", unsafe { cuMemcpy2DAsync_v2(&raw const copy, stream) })
}
