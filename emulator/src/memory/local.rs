//! Local memory of the threads of a warp, one after the other.

use crate::shadow::{Shadow, State};

const POISON: u8 = 0xff;
const LANES: usize = 32;
const PADDING: usize = 64;

/// Local memory of 32 threads and its shadow.
#[derive(Debug)]
pub struct LocalMemory {
    data: Vec<u8>,
    states: Vec<u8>,
    bytes: usize,
}

impl LocalMemory {
    /// Uninitialised memory of so many bytes per thread.
    pub fn new(bytes: usize) -> Self {
        let size = if bytes == 0 { 0 } else { bytes * LANES + PADDING };
        LocalMemory { data: vec![POISON; size], states: vec![State::Unwritten as u8; size], bytes }
    }

    /// Forgets everything, for the next block.
    pub fn reset(&mut self) {
        self.data.fill(POISON);
        self.states.fill(State::Unwritten as u8);
    }

    /// Bytes of each thread.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// First byte of lane 0.
    pub fn data(&mut self) -> *mut u8 {
        self.data.as_mut_ptr()
    }

    /// The shadow of the first byte of lane 0.
    pub fn shadow(&mut self) -> Shadow {
        Shadow::new(self.states.as_mut_ptr())
    }
}
