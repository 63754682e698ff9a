//! Who does what in a block of warpgroups: the first one brings data, the others compute.
//!
//! ```text
//! warpgroup 0       warp 0: one thread requests tiles, warp 1 repairs some of them; few registers
//! warpgroups 1..    64 query rows each; many registers
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
    /// Nothing to do.
    Idle,
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

    /// Gives registers away, and says what to do.
    ///
    /// # Safety
    /// Every warp of the first warpgroup calls it, once.
    #[inline(always)]
    pub unsafe fn become_helper(self) -> Helper {
        // 64 K registers, rounded down to what .maxntid gives every thread, less what consumers take.
        if CONSUMERS == 2 {
            registers::decrease::<40>();
        } else {
            registers::decrease::<32>();
        }
        match self.warp {
            0 => Helper::Producer,
            1 => Helper::Repairer,
            _ => Helper::Idle,
        }
    }

    /// Takes registers, and gives the number of the computing warpgroup.
    ///
    /// # Safety
    /// Every warp of the other warpgroups calls it, once.
    #[inline(always)]
    pub unsafe fn become_consumer(self) -> u32 {
        if CONSUMERS == 2 {
            registers::increase::<232>();
        } else {
            registers::increase::<160>();
        }
        self.warp / 4 - 1
    }
}

/// The barrier of a computing warpgroup.
#[derive(Clone, Copy)]
pub struct WarpgroupBarrier(u32);

impl WarpgroupBarrier {
    /// The barrier of computing warpgroup `index` (below 15).
    #[inline(always)]
    pub fn new(index: u32) -> Self {
        WarpgroupBarrier(1 + index)
    }

    /// The warpgroup meets.
    ///
    /// # Safety
    /// All its threads call it.
    #[inline(always)]
    pub unsafe fn sync(self) {
        barrier::sync(self.0, WARPGROUP);
    }
}

/// Two computing warpgroups that take turns at the tensor cores, so that the products of one run beside the
/// softmax of the other. Three warpgroups fill the tensor cores without an order.
///
/// Measured at head dim 128, S 4096: 2 % full and causal; at head dims 192 and 256, 12 % full.
#[derive(Clone, Copy)]
pub struct Turns<const CONSUMERS: u32> {
    warpgroup: u32,
}

impl<const CONSUMERS: u32> Turns<CONSUMERS> {
    const FIRST_BARRIER: u32 = 8;
    const TAKEN: bool = CONSUMERS == 2;

    /// The turns of computing warpgroup `warpgroup`; number 0 begins.
    ///
    /// # Safety
    /// All threads of all computing warpgroups call it, once.
    #[inline(always)]
    pub unsafe fn begin(warpgroup: u32) -> Self {
        if Self::TAKEN && warpgroup == 1 {
            barrier::arrive(Self::FIRST_BARRIER, 2 * WARPGROUP);
        }
        Turns { warpgroup }
    }

    /// Waits for the turn.
    ///
    /// # Safety
    /// The warpgroup calls it, and then [`Turns::pass`]; all warpgroups equally often.
    #[inline(always)]
    pub unsafe fn wait(self) {
        if Self::TAKEN {
            barrier::sync(Self::FIRST_BARRIER + self.warpgroup, 2 * WARPGROUP);
        }
    }

    /// Lets the other warpgroup have its turn.
    ///
    /// # Safety
    /// As [`Turns::wait`].
    #[inline(always)]
    pub unsafe fn pass(self) {
        if Self::TAKEN {
            barrier::arrive(Self::FIRST_BARRIER + 1 - self.warpgroup, 2 * WARPGROUP);
        }
    }
}
