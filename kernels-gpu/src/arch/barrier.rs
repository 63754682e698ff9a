//! Barriers of a block.

use core::arch::asm;

/// All threads of the block meet; what they wrote to shared or global memory before is visible to all
/// after.
///
/// PTX: `bar.sync 0`. sm_20.
///
/// # Safety
/// Every thread of the block reaches this call, warps converged.
#[inline(always)]
pub unsafe fn block_sync() {
    asm!("bar.sync 0;", options(nostack));
}

/// Meets `threads` threads at barrier `id` (1..16); memory as with [`block_sync`]. PTX: `bar.sync id,
/// threads`. sm_20.
///
/// # Safety
/// Whole warps call it, and exactly `threads` threads arrive at `id`.
#[inline(always)]
pub unsafe fn sync(id: u32, threads: u32) {
    asm!("bar.sync {}, {};", in(reg32) id, in(reg32) threads, options(nostack));
}

/// As [`sync`] with constants: for an id from a register, ptxas reserves all 16 barriers.
///
/// # Safety
/// As [`sync`].
#[inline(always)]
pub unsafe fn sync_constant<const ID: u32, const THREADS: u32>() {
    asm!("bar.sync {}, {};", const ID, const THREADS, options(nostack));
}

/// Arrives at barrier `id` without waiting; `threads` counts those that arrive and those that wait. PTX:
/// `bar.arrive id, threads`. sm_20.
///
/// # Safety
/// As [`sync`].
#[inline(always)]
pub unsafe fn arrive(id: u32, threads: u32) {
    asm!("bar.arrive {}, {};", in(reg32) id, in(reg32) threads, options(nostack));
}

/// As [`arrive`] with constants.
///
/// # Safety
/// As [`sync`].
#[inline(always)]
pub unsafe fn arrive_constant<const ID: u32, const THREADS: u32>() {
    asm!("bar.arrive {}, {};", const ID, const THREADS, options(nostack));
}
