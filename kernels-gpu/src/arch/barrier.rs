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

/// Meets `THREADS` threads at barrier `ID` (1..16); memory as with [`block_sync`]. PTX: `bar.sync id,
/// threads`. sm_20.
///
/// The id is a constant: with one from a register, ptxas reserves all 16 barriers.
///
/// # Safety
/// Whole warps call it, and exactly `THREADS` threads arrive at `ID`.
#[inline(always)]
pub unsafe fn sync<const ID: u32, const THREADS: u32>() {
    asm!("bar.sync {}, {};", const ID, const THREADS, options(nostack));
}
