//! State spaces and the generic address windows.
//!
//! A generic address says by its upper bits where it points:
//!
//! ```text
//!   63      56 55              40 39                       0
//!  +----------+------------------+--------------------------+
//!  |  window  | allocation index |          offset          |   window 0: global (and const)
//!  +----------+------------------+--------------------------+
//!  |  window  |                 offset                      |   window 1 shared, 2 local, 3 param
//!  +----------+---------------------------------------------+
//! ```
//!
//! The offset of a shared address has the rank of its block, in a cluster of several, from bit 24 on: as on a
//! GPU, what is an address of a block's own shared memory is the same address for the whole cluster.
//!
//! Allocation index 0 is never given out, so that small addresses are null pointers, and no overrun of
//! an allocation reaches another one.

use serde::Serialize;
use std::fmt;

/// Position of the window number in a generic address.
pub const WINDOW_SHIFT: u32 = 56;
/// Window of shared memory.
pub const SHARED_WINDOW: u64 = 1 << WINDOW_SHIFT;
/// Window of local memory.
pub const LOCAL_WINDOW: u64 = 2 << WINDOW_SHIFT;
/// Window of kernel parameters.
pub const PARAM_WINDOW: u64 = 3 << WINDOW_SHIFT;
/// Position of the rank of a block in its shared addresses.
pub const RANK_SHIFT: u32 = 24;
/// First valid address of shared memory: below it lie null pointers.
pub const SHARED_BASE: u32 = 1024;
/// Bytes of the system's part of shared memory.
pub const SYSTEM_SHARED_BYTES: u32 = 1024;
/// Bytes of it whose bits are all set at the start of a block: those that warps meet at, each of which clears
/// its bit first. The others are not defined.
pub const SYSTEM_SHARED_SET: u32 = 32;
/// First valid address of local memory: below it lie null pointers.
pub const LOCAL_BASE: u32 = 64;

/// A PTX state space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Space {
    /// Memory of the device, visible to every thread.
    Global,
    /// Memory of a block.
    Shared,
    /// Shared memory of any block of the cluster; findings say [`Space::Shared`].
    Cluster,
    /// Memory of a thread.
    Local,
    /// Parameters of the kernel.
    Param,
    /// Read-only module variables.
    Const,
    /// Any of the above, by the address.
    Generic,
}

impl fmt::Display for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Space::Global => "global",
            Space::Shared => "shared",
            Space::Cluster => "shared::cluster",
            Space::Local => "local",
            Space::Param => "param",
            Space::Const => "const",
            Space::Generic => "generic",
        })
    }
}

impl Space {
    /// The space that a generic address points into, if any.
    pub fn of_address(address: u64) -> Option<Space> {
        match address >> WINDOW_SHIFT {
            0 => Some(Space::Global),
            1 => Some(Space::Shared),
            2 => Some(Space::Local),
            3 => Some(Space::Param),
            _ => None,
        }
    }

    /// What to add to an address of this space to make it generic.
    pub fn window(self) -> u64 {
        match self {
            Space::Shared | Space::Cluster => SHARED_WINDOW,
            Space::Local => LOCAL_WINDOW,
            Space::Param => PARAM_WINDOW,
            Space::Global | Space::Const | Space::Generic => 0,
        }
    }
}

/// An address in emulated global memory, as a kernel parameter carries it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(pub u64);

impl Address {
    /// The address so many bytes further on.
    pub const fn offset(self, bytes: u64) -> Address {
        Address(self.0.wrapping_add(bytes))
    }

    /// The bytes of a kernel parameter with this value.
    pub const fn to_le_bytes(self) -> [u8; 8] {
        self.0.to_le_bytes()
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl From<Address> for u64 {
    fn from(address: Address) -> u64 {
        address.0
    }
}
