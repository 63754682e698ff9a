//! Kernels that begin while the one before them ends ("programmatic dependent launch"). sm_90.
//!
//! Launched so, the blocks of a kernel may start as soon as all blocks of the kernel before have allowed it
//! or ended, where there is room for them. Otherwise both instructions do nothing.

use core::arch::asm;

/// Allows the next kernel's blocks to start. PTX: `griddepcontrol.launch_dependents`.
#[inline(always)]
pub fn allow_next() {
    // SAFETY: nothing in this kernel depends on it.
    unsafe { asm!("griddepcontrol.launch_dependents;", options(nostack)) };
}

/// Waits until the kernel before has ended; what it wrote is visible after. PTX: `griddepcontrol.wait`.
#[inline(always)]
pub fn wait_for_previous() {
    // SAFETY: a kernel never waits for a later one.
    unsafe { asm!("griddepcontrol.wait;", options(nostack)) };
}
