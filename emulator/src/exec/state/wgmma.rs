//! The multiplications of a warp that have been issued and have not happened: `wgmma.mma_async`.
//!
//! How they happen stands with [`crate::exec::actors::wgmma`].

use std::collections::VecDeque;

/// One multiplication that has not happened yet.
#[derive(Clone, Copy, Debug)]
pub struct Pending {
    pub pc: u32,
    /// The number of its group, from 1.
    pub group: u32,
    /// Places of A, if it lies in shared memory, and of B.
    pub left: Option<usize>,
    pub right: usize,
    pub descriptors: [u64; 2],
    pub accumulates: bool,
}

/// The multiplications of a warp in the order of issue.
#[derive(Clone, Debug, Default)]
pub struct WgmmaQueue {
    pub pending: VecDeque<Pending>,
    /// Of each of them that is sparse, the columns of A in which the values of the warp's rows stand.
    pub columns: VecDeque<Vec<usize>>,
    /// Groups committed.
    pub committed: u32,
}

impl WgmmaQueue {
    /// Forgets everything, for the next block.
    pub fn clear(&mut self) {
        self.pending.clear();
        self.columns.clear();
        self.committed = 0;
    }

    /// The number of the open group.
    pub fn open_group(&self) -> u32 {
        self.committed + 1
    }
}
