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

    /// Makes a range of a thread's bytes uninitialised.
    pub fn forget(&mut self, lane: usize, offset: usize, bytes: usize) {
        let at = lane * self.bytes + offset;
        self.data[at..at + bytes].fill(POISON);
        self.states[at..at + bytes].fill(State::Unwritten as u8);
    }

    /// Copies bytes of a thread, and what is known of them.
    pub fn copy(&mut self, lane: usize, from: usize, to: usize, bytes: usize) {
        let (from, to) = (lane * self.bytes + from, lane * self.bytes + to);
        self.data.copy_within(from..from + bytes, to);
        self.states.copy_within(from..from + bytes, to);
    }

    /// Bytes of a thread, if there are so many.
    pub fn read(&self, lane: usize, offset: usize, bytes: usize) -> Option<&[u8]> {
        let end = offset.checked_add(bytes).filter(|&end| end <= self.bytes)?;
        self.data.get(lane * self.bytes + offset..lane * self.bytes + end)
    }

    /// Writes bytes of a thread, which there are.
    pub fn write(&mut self, lane: usize, offset: usize, value: &[u8]) {
        let at = lane * self.bytes + offset;
        self.data[at..at + value.len()].copy_from_slice(value);
        self.states[at..at + value.len()].fill(State::Written as u8);
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
