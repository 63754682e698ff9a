//! Functions that a kernel calls.

use std::ops::Range;

/// The address of the first function of a module. Nothing is stored there.
pub const FUNCTION_BASE: u64 = 0x7e00_0000_0000_0000;
/// Bytes from one function's address to the next.
pub const FUNCTION_BYTES: u64 = 16;

/// Bytes for calls that may nest without end, and as many for `alloca`; CUDA gives a thread 1 KiB unless told
/// otherwise.
pub const STACK_BYTES: u32 = 16 << 10;

/// A result or parameter in the part of local memory that a call of a function has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Offset.
    pub offset: u32,
    /// Bytes.
    pub bytes: u32,
}

/// A register by its first row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegisterRow {
    /// Of 32 bits.
    Narrow(u32),
    /// Of 64 bits, or half of one of 128.
    Wide(u32),
}

/// A function among the instructions of a kernel.
#[derive(Clone, Debug)]
pub struct FunctionCode {
    /// Its number in the module.
    pub number: u32,
    /// Its name.
    pub name: String,
    /// Its first instruction.
    pub entry: u32,
    /// Its parameters.
    pub parameters: Vec<Place>,
    /// Its results.
    pub results: Vec<Place>,
    /// Bytes of local memory that a call of it has.
    pub frame_bytes: u32,
    /// Its registers, and the addresses of its variables.
    pub registers: Vec<RegisterRow>,
    /// Its predicates.
    pub predicates: Range<u32>,
    /// Whether it may be called while a call of it has not ended.
    pub recurses: bool,
}
