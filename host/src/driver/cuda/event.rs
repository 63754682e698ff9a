//! Points in the work queued on a stream: what waits for them, and when the device passes them.

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
        CudaEvent::with_timing(driver, true)
    }

    /// The same without the time, which costs less.
    ///
    /// # Errors
    /// [`crate::Error::Cuda`].
    pub(super) fn untimed(driver: &CudaDriver) -> Result<Self> {
        CudaEvent::with_timing(driver, false)
    }

    fn with_timing(driver: &CudaDriver, is_timed: bool) -> Result<Self> {
        let context = driver.context.clone();
        let handle = {
            let _entered = context.enter()?;
            raw::event_create(is_timed)? as usize
        };
        Ok(CudaEvent { context, handle })
    }

    /// What is queued on the stream from now on, of this or another GPU, waits for the event. That GPU's
    /// context is current.
    ///
    /// # Safety
    /// `stream` is a live stream, or 0.
    pub(super) unsafe fn hold_back(&self, stream: Stream) -> Result<()> {
        // SAFETY: the event is alive; the stream is the caller's promise.
        unsafe { raw::stream_wait(stream.0 as StreamHandle, self.handle as raw::EventHandle) }
            .map_err(Into::into)
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
