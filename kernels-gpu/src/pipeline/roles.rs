//! Who does what in a block of warpgroups: the first one brings data, the others compute.
//!
//! ```text
//! warpgroup 0       warp 0: one thread requests tiles, warp 1 repairs some of them, warps 2 and 3: one
//!                   thread each writes what is not written from registers; few registers
//! warpgroups 1..    64 rows each, of queries or of keys; many registers
//! ```

use crate::arch::{barrier, registers, thread, warp};

/// Threads of a warpgroup.
pub const WARPGROUP: u32 = 128;

/// A warp of a block with `CONSUMERS` computing warpgroups, before it has become anything.
///
/// ```text
/// if warp.helps() { match warp.become_helper() { ... } } else { compute as warp.become_consumer() }
/// ```
///
/// The roles are two arms of one `if`, and registers change hands at the start of an arm: otherwise the
/// assembler does not know how many an instruction may use.
#[derive(Clone, Copy)]
pub struct Recruit<const CONSUMERS: u32> {
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

impl<const CONSUMERS: u32> Recruit<CONSUMERS> {
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

/// Two computing warpgroups that take turns at the tensor cores, so that the products of one run beside the
/// softmax of the other. Three warpgroups fill the tensor cores without an order: nobody ever waits.
#[derive(Clone, Copy)]
pub struct Turns<const CONSUMERS: u32> {
    warpgroup: u32,
}

impl<const CONSUMERS: u32> Turns<CONSUMERS> {
    const FIRST_BARRIER: u32 = 8;
    const ARE_TAKEN: bool = CONSUMERS == 2;

    /// The turns of computing warpgroup `warpgroup`; number 0 begins.
    ///
    /// # Safety
    /// All threads of all computing warpgroups call it, once.
    #[inline(always)]
    pub unsafe fn begin(warpgroup: u32) -> Self {
        if Self::ARE_TAKEN && warpgroup == 1 {
            barrier::arrive(Self::FIRST_BARRIER, 2 * WARPGROUP);
        }
        Turns { warpgroup }
    }

    /// Lets `count` turns pass.
    ///
    /// # Safety
    /// As [`Turns::wait`] and [`Turns::pass`], so often.
    #[inline(always)]
    pub unsafe fn skip(self, count: u32) {
        let mut left = count;
        while Self::ARE_TAKEN && left > 0 {
            self.wait();
            self.pass();
            left -= 1;
        }
    }

    /// Waits for the turn.
    ///
    /// # Safety
    /// The warpgroup calls it, and then [`Turns::pass`]; all warpgroups equally often.
    #[inline(always)]
    pub unsafe fn wait(self) {
        if Self::ARE_TAKEN {
            barrier::sync(Self::FIRST_BARRIER + self.warpgroup, 2 * WARPGROUP);
        }
    }

    /// Lets the other warpgroup have its turn.
    ///
    /// # Safety
    /// As [`Turns::wait`].
    #[inline(always)]
    pub unsafe fn pass(self) {
        if Self::ARE_TAKEN {
            barrier::arrive(Self::FIRST_BARRIER + 1 - self.warpgroup, 2 * WARPGROUP);
        }
    }
}
