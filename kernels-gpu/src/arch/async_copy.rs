//! `cp.async`: global to shared memory without passing through registers.
//!
//! Protocol, for each thread:
//! 1. [`copy16`] or [`copy16_if`] as often as needed,
//! 2. [`commit`] makes one group of what was issued since the last commit,
//! 3. [`wait`]`::<N>()` returns when all but the youngest N groups of *this thread* have landed,
//! 4. a block barrier makes the groups of all threads visible to all.

use core::arch::asm;

/// Copies 16 bytes from global to shared memory if `whole`, otherwise fills the 16 bytes with zeros and
/// reads nothing; does nothing at all unless `enabled`. PTX: `@p cp.async.cg.shared.global` with a
/// source size, through the level-2 cache only. sm_80.
///
/// The source size of the instruction could be anything up to 16, but compute-sanitizer takes all but 0
/// for 16.
///
/// # Safety
/// Both addresses are aligned to 16; if `whole`, 16 bytes at `source` are readable; the shared bytes are
/// unused until the wait.
#[inline(always)]
pub unsafe fn copy16_if(destination: u32, source: u64, whole: bool, enabled: bool) {
    asm!("{{", ".reg .pred %p_in;", "setp.ne.u32 %p_in, {3}, 0;",
        "@%p_in cp.async.cg.shared.global.L2::128B [{0}], [{1}], 16, {2};", "}}", in(reg32) destination,
        in(reg64) source, in(reg32) if whole { 16 } else { 0 }, in(reg32) enabled as u32, options(nostack));
}

/// Copies 16 bytes from global to shared memory if `whole`, otherwise fills the 16 bytes with zeros and
/// reads nothing. PTX: `cp.async.cg.shared.global` with a source size. sm_80.
///
/// # Safety
/// As [`copy16_if`].
#[inline(always)]
pub unsafe fn copy16_or_zeros(destination: u32, source: u64, whole: bool) {
    asm!("cp.async.cg.shared.global.L2::128B [{}], [{}], 16, {};", in(reg32) destination, in(reg64) source,
        in(reg32) if whole { 16 } else { 0 }, options(nostack));
}

/// Copies 16 bytes from global to shared memory. PTX: `cp.async.cg.shared.global`. sm_80.
///
/// # Safety
/// As [`copy16_if`].
#[inline(always)]
pub unsafe fn copy16(destination: u32, source: u64) {
    asm!("cp.async.cg.shared.global.L2::128B [{}], [{}], 16;", in(reg32) destination, in(reg64) source,
        options(nostack));
}

/// Closes a group. PTX: `cp.async.commit_group`. sm_80.
///
/// # Safety
/// Part of the protocol above.
#[inline(always)]
pub unsafe fn commit() {
    asm!("cp.async.commit_group;", options(nostack));
}

/// Waits until all that this thread has had copied is there, groups or not. PTX: `cp.async.wait_all`. sm_80.
///
/// # Safety
/// As [`copy16_if`].
#[inline(always)]
pub unsafe fn wait_all() {
    asm!("cp.async.wait_all;", options(nostack));
}

/// Waits until at most `PENDING` groups of this thread are in flight. PTX: `cp.async.wait_group`. sm_80.
///
/// # Safety
/// Part of the protocol above.
#[inline(always)]
pub unsafe fn wait<const PENDING: u32>() {
    asm!("cp.async.wait_group {};", const PENDING, options(nostack));
}
