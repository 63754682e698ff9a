//! Shared memory of a block.

use crate::shadow::{Shadow, State};

/// Unwritten bytes: NaN in every floating-point type.
const POISON: u8 = 0xff;
/// Room behind the last byte, so that whole vectors can be read there.
const PADDING: usize = 64;

/// Shared memory of a block and its shadow.
#[derive(Debug)]
pub struct SharedMemory {
    data: Vec<u8>,
    states: Vec<u8>,
    bytes: usize,
}

impl SharedMemory {
    /// Uninitialised memory.
    pub fn new(bytes: usize) -> Self {
        SharedMemory {
            data: vec![POISON; bytes + PADDING],
            states: vec![State::Unwritten as u8; bytes + PADDING],
            bytes,
        }
    }

    /// Forgets everything, for the next block.
    pub fn reset(&mut self) {
        self.data.fill(POISON);
        self.states.fill(State::Unwritten as u8);
    }

    /// Length.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// First byte.
    pub fn data(&mut self) -> *mut u8 {
        self.data.as_mut_ptr()
    }

    /// The shadow of the first byte.
    pub fn shadow(&mut self) -> Shadow {
        Shadow::new(self.states.as_mut_ptr())
    }
}
