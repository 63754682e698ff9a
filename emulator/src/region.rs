//! Named regions of a block's dynamic shared memory, as a launch gives them.

use std::fmt;

/// A part of a block's dynamic shared memory that holds one thing. Displays as `k[1] (bytes 0x400 to 0x800)`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Region {
    /// What findings call it.
    pub name: String,
    /// First byte, from the start of dynamic shared memory.
    pub offset: u32,
    /// Length in bytes.
    pub bytes: u32,
}

impl Region {
    /// A region of this name, place and length.
    pub fn new(name: impl Into<String>, offset: u32, bytes: u32) -> Self {
        Region { name: name.into(), offset, bytes }
    }

    /// The byte behind its last, from the start of dynamic shared memory.
    pub(crate) fn end(&self) -> u64 {
        u64::from(self.offset) + u64::from(self.bytes)
    }
}

impl fmt::Display for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (bytes {:#x} to {:#x})", self.name, self.offset, self.end())
    }
}
