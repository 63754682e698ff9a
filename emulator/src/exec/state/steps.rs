//! What instructions count for beside one step each, where [`crate::Options::step_limit`] is about the time
//! that a block takes: a step is what the emulator does in some 30 ns with all checks.

/// An access of a warp to memory that its lanes make together, with what is looked at for it.
pub const ACCESS: u64 = 4;
/// A matrix instruction of a warp.
pub const MATRIX: u64 = 4;
/// A matrix instruction of a warpgroup, for each column of its result.
pub const WARPGROUP_COLUMN: u64 = 1;
/// A copy in bulk.
pub const BULK: u64 = 8;
/// The same, of so many bytes for each step.
pub const BULK_BYTES: u64 = 64;
/// A fault, met again or not.
pub const FAULT: u64 = 4;
/// Any instruction of a warp that has values which are not defined,
pub const UNDEFINED: u64 = 4;
/// such values that are loaded or stored,
pub const UNDEFINED_ACCESS: u64 = 8;
/// and a matrix instruction beside them.
pub const UNDEFINED_MATRIX: u64 = 64;
