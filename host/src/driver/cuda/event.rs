//! Timing on the device.

use super::CudaDriver;
use super::context::PrimaryContext;
use super::raw::{self, StreamHandle};
use crate::driver::Stream;
use crate::error::Result;
use std::sync::Arc;

/// A point in the work queued on a stream, stamped with the time at which the device passes it.
pub struct CudaEvent {
    context: Arc<PrimaryContext>,
    handle: usize,
}

impl CudaEvent {
    /// A new event, recorded nowhere.
    ///
    /// # Errors
    /// [`crate::Error::Cuda`].
    pub fn new(driver: &CudaDriver) -> Result<Self> {
        let context = driver.context.clone();
        let handle = {
            let _entered = context.enter()?;
            raw::event_create()? as usize
        };
        Ok(CudaEvent { context, handle })
    }

    /// Queues the event on a stream.
    ///
    /// # Errors
    /// [`crate::Error::Cuda`].
    ///
    /// # Safety
    /// `stream` is a live stream of the device, or 0.
    pub unsafe fn record(&self, stream: Stream) -> Result<()> {
        let _entered = self.context.enter()?;
        // SAFETY: the event is alive; the stream is the caller's promise.
        unsafe { raw::event_record(self.handle as raw::EventHandle, stream.0 as StreamHandle) }
            .map_err(Into::into)
    }

    /// Waits for this event, and returns the milliseconds since `start`. Both must have been recorded.
    ///
    /// # Errors
    /// [`crate::Error::Cuda`], also for a fault of the work in between.
    pub fn milliseconds_since(&self, start: &CudaEvent) -> Result<f32> {
        let _entered = self.context.enter()?;
        // SAFETY: both are alive.
        Ok(unsafe {
            raw::event_elapsed(start.handle as raw::EventHandle, self.handle as raw::EventHandle)?
        })
    }
}

impl Drop for CudaEvent {
    fn drop(&mut self) {
        if let Ok(_entered) = self.context.enter() {
            // SAFETY: nobody else has the handle.
            unsafe { raw::event_destroy(self.handle as raw::EventHandle) };
        }
    }
}
