//! What is declared in a module, outside its kernels.

use std::collections::HashMap;

/// A `.shared` variable of the module. Each kernel that names it has its own.
#[derive(Clone, Copy, Debug)]
pub struct SharedVariable {
    /// Bytes; 0 for the start of dynamic shared memory.
    pub bytes: u32,
    /// Alignment in bytes.
    pub align: u32,
}

/// What the bodies of a module can refer to.
pub struct Globals<'a> {
    /// `.shared` variables.
    pub shared: HashMap<&'a str, SharedVariable>,
    /// `.global` and `.const` variables, by index.
    pub variables: HashMap<&'a str, u32>,
    /// Whether to make register files small.
    pub compact: bool,
}
