//! `mbarrier`: a barrier object in shared memory that counts arrivals and bytes. sm_80; bytes sm_90.
//!
//! A barrier is 8 bytes, aligned to 8. It goes through phases, numbered from 0. A phase is complete when as
//! many arrivals came as [`init`] said *and* all bytes came that [`arrive_expect`] announced; then the next
//! begins. Waiting is for the parity of a phase:
//!
//! ```text
//!             phase 0              phase 1              phase 2
//! wait(0):    blocks ............. returns              blocks ........
//! wait(1):    returns              blocks ............. returns
//! ```
//!
//! so the waiter must never fall two phases behind, which two barriers ("full" and "empty") for each stage
//! ensure: see [`crate::pipeline::stages`].
//!
//! An arrival releases what its thread did before; a wait acquires it. Copies of the bulk engine arrive
//! with their bytes, through the async proxy.

use core::arch::asm;

/// Makes a barrier of `arrivals` arrivals per phase. PTX: `mbarrier.init.shared::cta.b64`.
///
/// # Safety
/// One thread calls it; nobody uses the barrier before [`fence_init`] and a barrier of the block.
#[inline(always)]
pub unsafe fn init(barrier: u32, arrivals: u32) {
    asm!("mbarrier.init.shared::cta.b64 [{}], {};", in(reg32) barrier, in(reg32) arrivals, options(nostack));
}

/// Makes initialised barriers visible to the async proxy as well. PTX: `fence.mbarrier_init`,
/// `fence.proxy.async`.
///
/// # Safety
/// The thread that initialised calls it.
#[inline(always)]
pub unsafe fn fence_init() {
    asm!("fence.mbarrier_init.release.cluster; fence.proxy.async.shared::cta;", options(nostack));
}

/// Arrives, and announces `bytes` that copies will bring in this phase. PTX:
/// `mbarrier.arrive.expect_tx.shared::cta.b64`.
///
/// # Safety
/// The barrier is initialised; the copies are started afterwards.
#[inline(always)]
pub unsafe fn arrive_expect(barrier: u32, bytes: u32) {
    asm!("mbarrier.arrive.expect_tx.shared::cta.b64 _, [{}], {};", in(reg32) barrier, in(reg32) bytes,
        options(nostack));
}

/// Arrives. PTX: `mbarrier.arrive.shared::cta.b64`.
///
/// # Safety
/// The barrier is initialised.
#[inline(always)]
pub unsafe fn arrive(barrier: u32) {
    asm!("mbarrier.arrive.shared::cta.b64 _, [{}];", in(reg32) barrier, options(nostack));
}

/// Waits for the end of the phase of this parity. PTX: a loop around `mbarrier.try_wait.parity`, which
/// suspends the thread for a while.
///
/// # Safety
/// The barrier is initialised, and the phase waited for is the current one or the one before it.
#[allow(named_asm_labels)] // PTX has labels by name only; braces make them local to each copy
#[inline(always)]
pub unsafe fn wait(barrier: u32, parity: u32) {
    asm!("{{", ".reg .pred %done;", "WAIT:",
        "mbarrier.try_wait.parity.shared::cta.b64 %done, [{0}], {1};",
        "@%done bra DONE;", "bra WAIT;", "DONE:", "}}", in(reg32) barrier, in(reg32) parity,
        options(nostack));
}
