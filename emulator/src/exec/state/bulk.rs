//! The bulk copies of a block on their way: `cp.async.bulk` and its tensor and reducing forms.
//!
//! When they happen stands with [`crate::exec::actors::bulk`].

use super::boxes::Bytes;
use crate::isa::Reduction;
use crate::shadow::knowledge::Foreign;
use std::collections::BTreeMap;

/// Who issued a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Issuer {
    pub warp: u32,
    pub lane: u32,
}

/// One copy.
#[derive(Clone, Debug)]
pub struct Transfer {
    pub bytes: Bytes,
    /// Shared address.
    pub shared: u32,
    pub pc: u32,
    pub issuer: Issuer,
    /// What its warp knew of global memory when it was issued, and what the asynchronous proxy saw.
    pub known: Foreign,
}

impl Transfer {
    /// The shared address that it comes from, if it comes from there.
    pub fn source_in_shared(&self) -> Option<u32> {
        if let Bytes::Shared { address, .. } = self.bytes { Some(address) } else { None }
    }
}

/// A copy to shared memory.
#[derive(Clone, Debug)]
pub struct Load {
    pub transfer: Transfer,
    /// Address of its barrier.
    pub barrier: u32,
    /// What it does with the bytes before.
    pub reduce: Option<Reduction>,
    /// Whether it lands when nothing else can happen, however long it is waited for.
    pub late: bool,
}

/// How far a store has come.
#[derive(Debug)]
pub enum Course {
    /// It has not happened.
    Issued,
    /// It has read these bytes, row after row.
    Read(Vec<u8>),
    /// It has happened.
    Written,
}

/// A copy from shared memory. It stays in the queue until it has happened and was waited for.
#[derive(Debug)]
pub struct Store {
    pub transfer: Transfer,
    pub reduce: Option<Reduction>,
    /// Its number among the groups of its issuer.
    pub group: u32,
    pub course: Course,
    /// Whether its issuer has waited until it had read.
    pub waited: bool,
}

/// The groups of stores of a thread.
#[derive(Clone, Copy, Debug, Default)]
pub struct Groups {
    /// Groups committed.
    pub committed: u32,
    /// Stores in the open one.
    pub open: u32,
}

/// Loads that have not happened yet and stores that have not been waited for, in the order of issue.
#[derive(Debug, Default)]
pub struct BulkQueue {
    pub loads: Vec<Load>,
    pub stores: Vec<Store>,
    pub groups: BTreeMap<Issuer, Groups>,
}

impl BulkQueue {
    /// Where the loads stand that are not late.
    pub fn in_time(&self) -> impl Iterator<Item = usize> + '_ {
        self.loads.iter().enumerate().filter(|(_, load)| !load.late).map(|(index, _)| index)
    }

    /// Whether a store is one of a thread's, and not of its `left` latest groups.
    pub fn is_due(&self, store: &Store, issuer: Issuer, left: u32) -> bool {
        let committed = self.groups.get(&issuer).map_or(0, |groups| groups.committed);
        store.transfer.issuer == issuer && store.group.saturating_add(left) < committed
    }
}
