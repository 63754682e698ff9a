//! Launches, of kernels that may start early, too.

use super::{Failure, Function, StreamHandle, check};
use std::ffi::c_void;
use std::ptr;

unsafe extern "C" {
    fn cuLaunchKernel(
        function: Function,
        grid_x: u32,
        grid_y: u32,
        grid_z: u32,
        block_x: u32,
        block_y: u32,
        block_z: u32,
        shared_bytes: u32,
        stream: StreamHandle,
        params: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) -> i32;
    fn cuLaunchKernelEx(
        config: *const LaunchConfig,
        function: Function,
        params: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) -> i32;
}

/// Shape of a launch.
#[derive(Clone, Copy, Debug)]
pub(in crate::driver::cuda) struct LaunchShape {
    pub blocks: u32,
    pub threads: u32,
    pub shared_bytes: u32,
    /// The kernel may start before the one before it ends, for which it waits itself.
    pub may_start_early: bool,
}

/// `CUlaunchConfig`.
#[repr(C)]
struct LaunchConfig {
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    stream: StreamHandle,
    attributes: *const LaunchAttribute,
    attribute_count: u32,
}

/// `CUlaunchAttribute`, whose value is a union with pointers: of a number the first 32 bits.
#[repr(C, align(8))]
struct LaunchAttribute {
    id: u32,
    padding: u32,
    value: [u32; 16],
}

const _: () = assert!(size_of::<LaunchConfig>() == 56 && size_of::<LaunchAttribute>() == 72);

/// `CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION`.
const START_EARLY: u32 = 6;

/// Queues a kernel whose only parameter is a struct passed by value.
///
/// # Safety
/// The module of `function` is loaded, its only parameter has the size of `params` and holds valid
/// pointers, and `stream` is null or alive.
pub(in crate::driver::cuda) unsafe fn launch(
    function: Function,
    shape: LaunchShape,
    stream: StreamHandle,
    params: &[u8],
) -> Result<(), Failure> {
    let LaunchShape { blocks, threads, shared_bytes, may_start_early } = shape;
    let mut pointers = [params.as_ptr().cast_mut().cast::<c_void>()];
    if may_start_early {
        let mut value = [0; 16];
        value[0] = 1;
        let attribute = LaunchAttribute { id: START_EARLY, padding: 0, value };
        let config = LaunchConfig {
            grid: [blocks, 1, 1],
            block: [threads, 1, 1],
            shared_bytes,
            stream,
            attributes: &raw const attribute,
            attribute_count: 1,
        };
        // SAFETY: as below; the attribute lives until the call returns.
        let code = unsafe {
            cuLaunchKernelEx(&raw const config, function, pointers.as_mut_ptr(), ptr::null_mut())
        };
        return check("cuLaunchKernelEx", code);
    }
    // SAFETY: passed on to the caller. The driver copies the parameter before it returns and never
    // writes to it.
    let code = unsafe {
        let params = pointers.as_mut_ptr();
        cuLaunchKernel(
            function,
            blocks,
            1,
            1,
            threads,
            1,
            1,
            shared_bytes,
            stream,
            params,
            ptr::null_mut(),
        )
    };
    check("cuLaunchKernel", code)
}
