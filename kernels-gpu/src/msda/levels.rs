//! The table of levels in shared memory: which of them a lane needs differs from lane to lane, and
//! parameters cannot be indexed by what differs.

use crate::abi::{MSDA_MAX_LEVELS, MsdaLevel, MsdaParams};
use crate::arch::{barrier, shared, thread};

/// Where the table stands.
#[derive(Clone, Copy)]
pub struct Levels {
    address: u32,
}

impl Levels {
    /// Writes the table; all threads of the block see it.
    ///
    /// # Safety
    /// All threads of the block call it together. The table's bytes from `address` on are free.
    #[inline(always)]
    pub unsafe fn new(p: &MsdaParams, address: u32) -> Self {
        let mut index = 0;
        while index < MSDA_MAX_LEVELS {
            if thread::thread_idx_x() == index as u32 {
                let MsdaLevel { height, width, start, first_bin } = p.level[index];
                shared::store_u32x4(address + 16 * index as u32, [height, width, start, first_bin]);
            }
            index += 1;
        }
        barrier::block_sync();
        Levels { address }
    }

    /// Level `index`.
    ///
    /// # Safety
    /// It is less than [`MSDA_MAX_LEVELS`].
    #[inline(always)]
    pub unsafe fn get(self, index: u32) -> MsdaLevel {
        let [height, width, start, first_bin] = shared::load_u32x4(self.address + 16 * index);
        MsdaLevel { height, width, start, first_bin }
    }
}
