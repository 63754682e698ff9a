//! The memories of a launch: global memory, and shared and local memory of its blocks and threads.

pub mod global;
mod heap;
pub mod local;
pub mod shared;
pub mod view;

/// Why an access was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Beyond the bounds; the bytes that exist from the start of the allocation or window.
    OutOfBounds(u64),
    /// No multiple of the access width.
    Misaligned,
    /// No multiple of an alignment that the instruction asks for.
    MisalignedTo(u32),
    /// A null pointer or a small offset from one.
    Null,
    /// The allocation was freed.
    Freed,
    /// The memory is read-only.
    ReadOnly,
    /// No space has this address.
    NoSpace,
    /// Shared memory of another block of the cluster, by an instruction that is for the own block's.
    OtherBlock,
    /// Shared memory of a block that has ended.
    Ended,
}
