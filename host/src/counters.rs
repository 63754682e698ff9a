//! Counters in device memory, by which the blocks of a launch share out their work.
//!
//! A launch needs a pair of them, zero when it starts, that no other launch uses at the same time. Streams
//! and captured graphs decide what runs at the same time, and nobody tells us. But two launches that run at
//! the same time may not write to the same output: so there is one pair for each address of an output, and
//! kernels leave it at zero.

use crate::driver::{DevicePointer, Driver};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of a pair, apart from others by what one atomic operation works on.
const PAIR_BYTES: u64 = 32;

/// Different outputs of a device before no more counters are given.
const PAIRS: u64 = 8192;

/// Device memory of all pairs.
pub(crate) const COUNTER_BYTES: usize = (PAIRS * PAIR_BYTES) as usize;

/// The counters of one device.
pub(crate) struct Counters {
    driver: Arc<dyn Driver>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Address of all pairs; 0 before the first is asked for.
    memory: DevicePointer,
    pairs: HashMap<DevicePointer, DevicePointer>,
}

impl Counters {
    /// None yet.
    pub fn new(driver: Arc<dyn Driver>) -> Self {
        Counters { driver, state: Mutex::default() }
    }

    /// The pair of launches whose output is at `output`; 0 when there are none left, or no memory: blocks
    /// then share their work in a fixed order.
    pub fn of(&self, output: DevicePointer) -> DevicePointer {
        // Entries are only added: the map stays whole even if a thread panicked while it held the lock.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pair) = state.pairs.get(&output) {
            return *pair;
        }
        if state.memory == 0 {
            state.memory = self.allocate().unwrap_or(0);
        }
        let next = state.pairs.len() as u64;
        if state.memory == 0 || next == PAIRS {
            return 0;
        }
        let pair = state.memory + next * PAIR_BYTES;
        state.pairs.insert(output, pair);
        pair
    }

    fn allocate(&self) -> Option<DevicePointer> {
        let zeros = vec![0; COUNTER_BYTES];
        let memory = self.driver.allocate(zeros.len()).ok()?;
        match self.driver.copy_to_device(memory, &zeros) {
            Ok(()) => Some(memory),
            Err(_) => {
                // SAFETY: allocated just now, and nothing uses it.
                let _ = unsafe { self.driver.free(memory) };
                None
            }
        }
    }
}

impl Drop for Counters {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: allocated by this driver; freeing waits for the kernels that use it. There is nobody left
        // to tell of a failure.
        let _ = unsafe { self.driver.free(state.memory) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::{Stream, emulated::EmulatedDriver};
    use crate::images::KernelImages;
    use kernels_gpu::abi::Arch;

    #[test]
    fn an_output_has_a_zeroed_pair_of_its_own_until_there_are_none_left() {
        let driver = EmulatedDriver::new(Arch::Sm80, KernelImages::embedded()).unwrap();
        let driver: Arc<dyn Driver> = Arc::new(driver);
        let counters = Counters::new(driver.clone());
        let pairs: Vec<_> = (0..PAIRS).map(|output| counters.of(16 * output)).collect();
        assert!(pairs.windows(2).all(|two| two[1] == two[0] + PAIR_BYTES));
        assert_eq!(counters.of(16), pairs[1]);
        assert_eq!(counters.of(u64::MAX), 0);
        let mut last = [1; 8];
        driver.copy_to_host(&mut last, pairs[PAIRS as usize - 1], Stream::default()).unwrap();
        assert_eq!(last, [0; 8]);
    }
}
