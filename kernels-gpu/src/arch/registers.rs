//! `setmaxnreg`: registers move from warpgroups that need few to those that need many. sm_90a.
//!
//! A block starts with the same number for every thread, what `.maxntid` leaves room for. A warpgroup that
//! asks for fewer gives the rest back; one that asks for more waits until there are enough. `N` is a
//! multiple of 8 in 24..=240, and all warpgroups together must fit what the block started with.

use core::arch::asm;

/// Gives registers back, down to `N` per thread. PTX: `setmaxnreg.dec.sync.aligned.u32`.
///
/// # Safety
/// All warps of the warpgroup call it together, once.
#[inline(always)]
pub unsafe fn decrease<const N: u32>() {
    asm!("setmaxnreg.dec.sync.aligned.u32 {};", const N, options(nostack));
}

/// Takes registers, up to `N` per thread. PTX: `setmaxnreg.inc.sync.aligned.u32`.
///
/// # Safety
/// As [`decrease`].
#[inline(always)]
pub unsafe fn increase<const N: u32>() {
    asm!("setmaxnreg.inc.sync.aligned.u32 {};", const N, options(nostack));
}
