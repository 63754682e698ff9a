//! Device memory in the order of a stream, from a pool of our own: that of the process belongs to others.

use super::context::PrimaryContext;
use super::raw;
use crate::error::Result;
use std::sync::{Arc, Mutex, PoisonError};

/// The pool of one device, made when it is first used.
pub(super) struct MemoryPool {
    device: i32,
    context: Arc<PrimaryContext>,
    made: Mutex<Option<Made>>,
}

/// The pool; `None` on devices that have none.
struct Made(Option<raw::MemoryPool>);

// SAFETY: the driver's pools may be used from any thread.
unsafe impl Send for Made {}

impl MemoryPool {
    pub fn new(device: i32, context: Arc<PrimaryContext>) -> Self {
        MemoryPool { device, context, made: Mutex::default() }
    }

    /// The pool; `None` if the device has none. The context must be current.
    pub fn get(&self) -> Result<Option<raw::MemoryPool>> {
        // Written as a whole, or not at all.
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(Made(pool)) = *made {
            return Ok(pool);
        }
        let has_pools = raw::device_attribute(self.device, raw::attribute::MEMORY_POOLS_SUPPORTED)? != 0;
        let pool = if has_pools { Some(raw::pool_create(self.device)?) } else { None };
        *made = Some(Made(pool));
        Ok(pool)
    }
}

impl Drop for MemoryPool {
    fn drop(&mut self) {
        let made = self.made.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(Made(Some(pool))) = made.take()
            && let Ok(_entered) = self.context.enter()
        {
            // SAFETY: made here; whoever allocated from it lived as long as this.
            unsafe { raw::pool_destroy(pool) };
        }
    }
}
