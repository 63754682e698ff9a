//! Devices, primary contexts and memory: through `cust` with the feature `cust`, by the same calls of the
//! driver without. Nothing else differs between the two builds of this library.
//!
//! With `cust`, its buffers and pointers can be passed as they are
//! ([`InDeviceMemory`](crate::buffer::InDeviceMemory)), and its build script wants a CUDA toolkit. Without,
//! nothing but this crate and the driver's library is needed.

use super::raw::Failure;

pub(super) use calls::{PrimaryContextHandle, allocate, device, device_count, device_name, free};

/// `CUdevice`.
pub(super) type DeviceHandle = i32;

#[cfg(feature = "cust")]
mod calls {
    use super::{DeviceHandle, Failure};
    use crate::buffer::InDeviceMemory;
    use crate::driver::DevicePointer;
    use cust::context::Context;
    use cust::device::Device;
    use cust::error::CudaError;
    use cust::memory::{DeviceCopy, cuda_free, cuda_malloc};
    use std::ffi::c_void;

    fn failed(call: &'static str) -> impl Fn(CudaError) -> Failure {
        move |error| Failure { call, code: error as i32 }
    }

    fn find(ordinal: u32) -> Result<Device, Failure> {
        Device::get_device(ordinal).map_err(failed("cuDeviceGet"))
    }

    pub fn device_count() -> Result<u32, Failure> {
        Device::num_devices().map_err(failed("cuDeviceGetCount"))
    }

    pub fn device(ordinal: u32) -> Result<DeviceHandle, Failure> {
        find(ordinal).map(|device| device.as_raw())
    }

    pub fn device_name(ordinal: u32) -> Result<String, Failure> {
        find(ordinal)?.name().map_err(failed("cuDeviceGetName"))
    }

    /// Keeps the primary context of one device alive.
    #[derive(Debug)]
    pub struct PrimaryContextHandle(Context);

    impl PrimaryContextHandle {
        /// Retains it, and makes it current on this thread.
        pub fn retain(ordinal: u32) -> Result<Self, Failure> {
            let context = Context::new(find(ordinal)?);
            context.map(PrimaryContextHandle).map_err(failed("cuDevicePrimaryCtxRetain"))
        }

        /// `CUcontext`, alive as long as `self`.
        pub fn raw(&self) -> *mut c_void {
            self.0.as_raw().cast()
        }
    }

    /// Memory of the current context, of at least one byte.
    pub fn allocate(bytes: usize) -> Result<DevicePointer, Failure> {
        // SAFETY: nothing is read from the memory here.
        let allocated = unsafe { cuda_malloc::<u8>(bytes) };
        allocated.map(|pointer| pointer.as_raw()).map_err(failed("cuMemAlloc"))
    }

    /// # Safety
    /// `pointer` came from [`allocate`], was not freed before, and nothing uses it.
    pub unsafe fn free(pointer: DevicePointer) -> Result<(), Failure> {
        // SAFETY: passed on to the caller.
        unsafe { cuda_free(cust::memory::DevicePointer::<u8>::from_raw(pointer)) }
            .map_err(failed("cuMemFree"))
    }

    impl<T: DeviceCopy> InDeviceMemory for cust::memory::DeviceBuffer<T> {
        fn device_pointer(&self) -> DevicePointer {
            self.as_device_ptr().as_raw()
        }
    }

    impl<T: DeviceCopy> InDeviceMemory for cust::memory::DevicePointer<T> {
        fn device_pointer(&self) -> DevicePointer {
            self.as_raw()
        }
    }
}

#[cfg(not(feature = "cust"))]
mod calls {
    use super::super::raw::{check, set_current_context};
    use super::{DeviceHandle, Failure};
    use crate::driver::DevicePointer;
    use std::ffi::{CStr, c_char, c_int, c_void};
    use std::ptr;

    unsafe extern "C" {
        fn cuDeviceGetCount(count: *mut c_int) -> i32;
        fn cuDeviceGet(device: *mut DeviceHandle, ordinal: c_int) -> i32;
        fn cuDeviceGetName(name: *mut c_char, bytes: c_int, device: DeviceHandle) -> i32;
        fn cuDevicePrimaryCtxRetain(context: *mut *mut c_void, device: DeviceHandle) -> i32;
        fn cuDevicePrimaryCtxRelease_v2(device: DeviceHandle) -> i32;
        fn cuMemAlloc_v2(pointer: *mut u64, bytes: usize) -> i32;
        fn cuMemFree_v2(pointer: u64) -> i32;
    }

    /// Room for the name of a device, as `cust` has it.
    const NAME_BYTES: usize = 128;

    pub fn device_count() -> Result<u32, Failure> {
        let mut count = 0;
        // SAFETY: `count` is writable.
        check("cuDeviceGetCount", unsafe { cuDeviceGetCount(&raw mut count) })?;
        Ok(count.max(0).cast_unsigned())
    }

    pub fn device(ordinal: u32) -> Result<DeviceHandle, Failure> {
        let mut device = 0;
        // SAFETY: `device` is writable; ordinals that there are not are refused.
        check("cuDeviceGet", unsafe { cuDeviceGet(&raw mut device, ordinal.cast_signed()) })?;
        Ok(device)
    }

    pub fn device_name(ordinal: u32) -> Result<String, Failure> {
        let device = device(ordinal)?;
        let mut name = [0_u8; NAME_BYTES];
        // SAFETY: the name is writable and as long as said.
        let code = unsafe { cuDeviceGetName(name.as_mut_ptr().cast(), NAME_BYTES as c_int, device) };
        check("cuDeviceGetName", code)?;
        let name = CStr::from_bytes_until_nul(&name).map(CStr::to_string_lossy);
        Ok(name.map(String::from).unwrap_or_default())
    }

    /// Keeps the primary context of one device alive.
    #[derive(Debug)]
    pub struct PrimaryContextHandle {
        device: DeviceHandle,
        context: *mut c_void,
    }

    // SAFETY: contexts may be used from any thread.
    unsafe impl Send for PrimaryContextHandle {}
    // SAFETY: likewise.
    unsafe impl Sync for PrimaryContextHandle {}

    impl PrimaryContextHandle {
        /// Retains it, and makes it current on this thread.
        pub fn retain(ordinal: u32) -> Result<Self, Failure> {
            let device = device(ordinal)?;
            let mut context = ptr::null_mut();
            // SAFETY: `context` is writable, and the device there.
            let code = unsafe { cuDevicePrimaryCtxRetain(&raw mut context, device) };
            check("cuDevicePrimaryCtxRetain", code)?;
            let retained = PrimaryContextHandle { device, context };
            // SAFETY: retained just now.
            unsafe { set_current_context(context) }?;
            Ok(retained)
        }

        /// `CUcontext`, alive as long as `self`.
        pub fn raw(&self) -> *mut c_void {
            self.context
        }
    }

    impl Drop for PrimaryContextHandle {
        fn drop(&mut self) {
            // SAFETY: retained once, released once. There is nobody to tell of a failure.
            let _ = unsafe { cuDevicePrimaryCtxRelease_v2(self.device) };
        }
    }

    /// Memory of the current context, of at least one byte.
    pub fn allocate(bytes: usize) -> Result<DevicePointer, Failure> {
        let mut pointer = 0;
        // SAFETY: `pointer` is writable.
        check("cuMemAlloc", unsafe { cuMemAlloc_v2(&raw mut pointer, bytes) }).map(|()| pointer)
    }

    /// # Safety
    /// `pointer` came from [`allocate`], was not freed before, and nothing uses it.
    pub unsafe fn free(pointer: DevicePointer) -> Result<(), Failure> {
        // SAFETY: passed on to the caller.
        check("cuMemFree", unsafe { cuMemFree_v2(pointer) })
    }
}
