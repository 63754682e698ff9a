//! The table of levels in shared memory: which of them a lane needs differs from lane to lane, and
//! parameters cannot be indexed by what differs.

use crate::abi::{MSDA_MAX_LEVELS, MsdaLevel, MsdaParams};
use crate::arch::{barrier, math, shared, thread};

/// Points of a query of which a level is found by a product.
const MOST_POINTS: u32 = 1 << 16;

/// Where the table stands, and which points are those of a level.
#[derive(Clone, Copy)]
pub struct Levels {
    address: u32,
    /// Points of a level of a query,
    points: u32,
    /// and 2^32 divided by that, rounded up; 0 where that is too large, or there are more than
    /// [`MOST_POINTS`].
    reciprocal: u32,
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
        let points = p.level_points;
        let is_exact = points > 1 && p.points <= MOST_POINTS;
        let reciprocal = if is_exact { math::divide(u32::MAX, points) + 1 } else { 0 };
        Levels { address, points, reciprocal }
    }

    /// The level of a point of a query. The reciprocal is too large by less than 1, so the quotient of an
    /// index below 2^16 by less than 2^-16, and no whole number is between it and the exact one.
    ///
    /// # Safety
    /// There is such a point.
    #[inline(always)]
    pub unsafe fn of_point(self, index: u32) -> MsdaLevel {
        let level = if self.reciprocal != 0 {
            math::mul_high(index, self.reciprocal)
        } else {
            math::divide(index, self.points)
        };
        self.get(level)
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
