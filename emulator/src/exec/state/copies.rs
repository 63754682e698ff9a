//! The copies of a warp on their way: `cp.async`.
//!
//! When they land and complete stands with [`crate::exec::actors::async_copy`].

use super::window::Addresses;
use crate::exec::values::registers::{LANES, lanes};

/// One copy instruction of a warp.
#[derive(Clone, Debug)]
pub struct Copy {
    /// The instruction.
    pub pc: u32,
    /// Bytes that each lane writes.
    pub bytes: u32,
    /// Shared addresses.
    pub target: Addresses,
    /// Global addresses.
    pub source: Addresses,
    /// Bytes that each lane reads; the rest is zero.
    pub source_bytes: [u32; LANES],
    /// The group of each lane's copy.
    pub group: [u32; LANES],
    /// Lanes whose copy has not completed.
    pub open: u32,
    /// Lanes whose bytes have landed.
    pub landed: u32,
    /// How many copies of the warp came before it.
    pub number: u64,
}

/// Arrivals at memory barriers that come when the copies before them have completed.
#[derive(Clone, Debug)]
pub struct Arrivals {
    /// The instruction.
    pub pc: u32,
    /// The barrier of each lane.
    pub barriers: [u32; LANES],
    /// Lanes that have not arrived.
    pub open: u32,
    /// Copies that were issued before.
    pub copies: u64,
}

/// The copies of a warp in the order of issue.
#[derive(Clone, Debug, Default)]
pub struct CopyQueue {
    /// Those of which lanes have not completed.
    pub copies: Vec<Copy>,
    /// Arrivals that have not come, in the order of issue.
    pub arrivals: Vec<Arrivals>,
    /// Groups that each lane has committed.
    committed: [u32; LANES],
    /// Copies issued.
    issued: u64,
}

impl CopyQueue {
    /// Forgets everything, for the next block.
    pub fn clear(&mut self) {
        *self = CopyQueue::default();
    }

    /// Whether nothing is on its way.
    pub fn is_empty(&self) -> bool {
        self.copies.is_empty()
    }

    /// The group that a new copy of each lane will belong to.
    pub fn open_group(&self) -> [u32; LANES] {
        self.committed
    }

    /// Appends a copy.
    pub fn push(&mut self, copy: Copy) {
        self.issued = copy.number + 1;
        self.copies.push(copy);
    }

    /// Copies issued so far.
    pub fn issued(&self) -> u64 {
        self.issued
    }

    /// Ends the open group of some lanes.
    pub fn commit(&mut self, mask: u32) {
        for lane in lanes(mask) {
            self.committed[lane] += 1;
        }
    }

    /// The lanes of a copy whose groups are not among the `left` latest.
    pub fn due(&self, copy: &Copy, mask: u32, left: Option<u32>) -> u32 {
        let Some(left) = left else { return copy.open & mask };
        let due = |&lane: &usize| copy.group[lane].saturating_add(left) < self.committed[lane];
        lanes(copy.open & mask).filter(due).fold(0, |due, lane| due | 1 << lane)
    }
}
