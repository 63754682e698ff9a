//! `cp.async`: global to shared memory without passing through registers.
//!
//! Protocol, for each thread:
//! 1. [`copy16`] as often as needed,
//! 2. [`commit`] makes one group of what was issued since the last commit,
//! 3. [`wait`]`::<N>()` returns when all but the youngest N groups of *this thread* have landed,
//! 4. a block barrier makes the groups of all threads visible to all.

use core::arch::asm;

/// Copies `bytes` (0..=16) from global to shared memory and fills the rest of the 16 bytes with zeros: nothing past
/// `bytes` is read. PTX: `cp.async.cg.shared.global` with a source size, through the level-2 cache only. sm_80.
///
/// # Safety
/// Both addresses are aligned to 16; `bytes` bytes at `source` are readable; the shared bytes are unused until the wait.
#[inline(always)]
pub unsafe fn copy16(destination: u32, source: u64, bytes: u32) {
    asm!("cp.async.cg.shared.global.L2::128B [{}], [{}], 16, {};", in(reg32) destination, in(reg64) source,
        in(reg32) bytes, options(nostack));
}

/// Closes a group. PTX: `cp.async.commit_group`. sm_80.
///
/// # Safety
/// Part of the protocol above.
#[inline(always)]
pub unsafe fn commit() {
    asm!("cp.async.commit_group;", options(nostack));
}

/// Waits until at most `PENDING` groups of this thread are in flight. PTX: `cp.async.wait_group`. sm_80.
///
/// # Safety
/// Part of the protocol above.
#[inline(always)]
pub unsafe fn wait<const PENDING: u32>() {
    asm!("cp.async.wait_group {};", const PENDING, options(nostack));
}
