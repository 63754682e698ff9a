//! Shared memory of a block.

use crate::shadow::{Shadow, State};
use std::ops::Range;

/// Unwritten bytes: NaN in every floating-point type.
const POISON: u8 = 0xff;
/// Room behind the last byte, so that whole vectors can be read there.
const PADDING: usize = 64;

/// Bytes whose changes are counted together.
pub const PAGE_BYTES: usize = 1024;

/// Shared memory of a block and its shadow.
#[derive(Debug)]
pub struct SharedMemory {
    data: Vec<u8>,
    states: Vec<u8>,
    bytes: usize,
    /// Writes to each page; empty where nobody asks.
    versions: Vec<u64>,
    /// Where all bits are set at the start.
    set: Vec<Range<usize>>,
}

impl SharedMemory {
    /// Uninitialised memory but for ranges whose bits are set. `versioned`: changes are counted.
    pub fn new(bytes: usize, set: Vec<Range<usize>>, versioned: bool) -> Self {
        let mut memory = SharedMemory {
            data: vec![POISON; bytes + PADDING],
            states: vec![State::Unwritten as u8; bytes + PADDING],
            bytes,
            versions: vec![0; if versioned { bytes / PAGE_BYTES + 1 } else { 0 }],
            set,
        };
        memory.write_set();
        memory
    }

    fn write_set(&mut self) {
        for set in &self.set {
            self.data[set.clone()].fill(!0);
            self.states[set.clone()].fill(State::Written as u8);
        }
    }

    /// Whether changes are counted.
    #[inline(always)]
    pub fn is_versioned(&self) -> bool {
        !self.versions.is_empty()
    }

    /// Counts a change of a range.
    #[inline(always)]
    pub fn touch(&mut self, offset: u32, bytes: u32) {
        if self.is_versioned() && bytes != 0 {
            let last = (offset + bytes - 1) as usize / PAGE_BYTES;
            self.versions[offset as usize / PAGE_BYTES..=last].iter_mut().for_each(|page| *page += 1);
        }
    }

    /// A number that differs after a change of one of these pages.
    pub fn version(&self, pages: &[u32]) -> u64 {
        pages.iter().map(|&page| self.versions[page as usize]).sum()
    }

    /// Forgets everything, for the next block.
    pub fn reset(&mut self) {
        self.data.fill(POISON);
        self.states.fill(State::Unwritten as u8);
        self.write_set();
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
