//! What instructions count for, beside what they always do ([`crate::isa::steps`]), by what they meet.

/// An access of a warp to memory that its lanes make together, with what is looked at for it.
pub const ACCESS: u64 = 10;
/// A copy in bulk.
pub const BULK: u64 = 8;
/// The same, of so many bytes for each step.
pub const BULK_BYTES: u64 = 64;
/// A lane that calls a function of the emulator's,
pub const CALL: u64 = 8;
/// and what is read or printed for it, of so many bytes for each step.
pub const CALL_BYTES: u64 = 8;
/// Any instruction where it is looked for what is not finite.
pub const TRACED: u64 = 6;
/// A fault, met again or not.
pub const FAULT: u64 = 4;
/// Any instruction of a warp that has values which are not defined,
pub const UNDEFINED: u64 = 4;
/// such values that are loaded or stored,
pub const UNDEFINED_ACCESS: u64 = 8;
/// and a matrix instruction beside them,
pub const UNDEFINED_MATRIX: u64 = 128;
/// so many times as much where it is looked for what is not finite.
pub const UNDEFINED_TRACED: u64 = 4;
