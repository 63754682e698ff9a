//! Who does what in a block of warpgroups: the first one brings data, the others compute.
//!
//! ```text
//! warpgroup 0       warp 0: one thread requests tiles, warp 1 repairs some of them, warps 2 and 3: one
//!                   thread each writes what is not written from registers; few registers
//! warpgroups 1..    64 rows each, of queries or of keys; many registers
//! ```

use crate::arch::{registers, thread, warp};

/// Threads of a warpgroup.
pub const WARPGROUP: u32 = 128;

/// The lane of a thread of warpgroup `warpgroup` of those that compute, and its warp's first row: a warpgroup
/// has 64, and a warp 16 of them.
#[inline(always)]
pub fn lane_and_first_row(thread: u32, warpgroup: u32) -> (u32, u32) {
    let thread = thread % WARPGROUP;
    (thread % 32, 64 * warpgroup + thread / 32 * 16)
}

/// A warp of a block, before it has become anything.
///
/// ```text
/// if warp.helps() { match warp.become_helper() { ... } } else { compute as warp.become_consumer() }
/// ```
///
/// The roles are two arms of one `if`, and registers change hands at the start of an arm: otherwise the
/// assembler does not know how many an instruction may use.
#[derive(Clone, Copy)]
pub struct Recruit {
    warp: u32,
}

/// What the warps of the first warpgroup are for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Helper {
    /// Its elected thread requests tiles.
    Producer,
    /// Corrects tiles before they are used.
    Repairer,
    /// Its elected thread writes results that pass through shared memory: the first part of them, or the
    /// second.
    Writer(u32),
}

impl Recruit {
    /// This warp.
    ///
    /// # Safety
    /// All 32 lanes call it together.
    #[inline(always)]
    pub unsafe fn new() -> Self {
        Recruit { warp: warp::uniform(thread::thread_idx_x() / 32) }
    }

    /// Whether it belongs to the first warpgroup.
    #[inline(always)]
    pub fn helps(self) -> bool {
        self.warp < 4
    }

    /// Gives registers away, down to `REGISTERS` per thread, and says what to do.
    ///
    /// All together have 64 K registers, rounded down to what `.maxntid` gives every thread.
    ///
    /// # Safety
    /// Every warp of the first warpgroup calls it, once.
    #[inline(always)]
    pub unsafe fn become_helper<const REGISTERS: u32>(self) -> Helper {
        registers::decrease::<REGISTERS>();
        match self.warp {
            0 => Helper::Producer,
            1 => Helper::Repairer,
            warp => Helper::Writer(warp - 2),
        }
    }

    /// Takes registers, up to `REGISTERS` per thread, and gives the number of the computing warpgroup.
    ///
    /// # Safety
    /// Every warp of the other warpgroups calls it, once.
    #[inline(always)]
    pub unsafe fn become_consumer<const REGISTERS: u32>(self) -> u32 {
        registers::increase::<REGISTERS>();
        self.warp / 4 - 1
    }
}
