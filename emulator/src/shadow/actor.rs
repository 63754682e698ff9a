//! Who accesses the shared memory of a block.

use std::fmt;

/// Who accesses shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Actor {
    /// The threads of a warp.
    Warp(u32),
    /// The multiplications of a warp.
    Wgmma(u32),
    /// The bulk loads of a memory barrier, by its address.
    Load(u32),
    /// The bulk stores of a thread, by warp and lane.
    Store(u32, u32),
    /// A memory barrier itself, by its address.
    Mbarrier(u32),
    /// The `cp.async` copies of a warp that have not been waited for.
    Copy(u32),
}

impl fmt::Display for Actor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Actor::Warp(warp) => write!(f, "warp {warp}"),
            Actor::Wgmma(warp) => write!(f, "a wgmma of warp {warp}"),
            Actor::Load(address) => write!(f, "a bulk load for the mbarrier at {address:#x}"),
            Actor::Store(warp, lane) => write!(f, "a bulk store of lane {lane} of warp {warp}"),
            Actor::Mbarrier(address) => write!(f, "the mbarrier at {address:#x}"),
            Actor::Copy(warp) => write!(f, "a cp.async of warp {warp}"),
        }
    }
}
