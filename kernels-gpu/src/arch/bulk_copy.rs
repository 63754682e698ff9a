//! The tensor memory accelerator: boxes of a tensor from global to shared memory, by one thread, with no
//! register in between. sm_90.
//!
//! A *tensor map* (128 bytes, made by the host, here in the kernel's parameters) says where the tensor
//! stands, its dimensions and strides, the box that one instruction moves, and the swizzle that the box has
//! in shared memory. Coordinates are elements, the innermost dimension first. What lies outside of the
//! tensor is zero.
//!
//! Protocol: [`crate::arch::mbarrier::arrive_expect`] with the bytes of all boxes, then [`load`]s that name
//! the barrier; a wait on it makes the bytes visible, to `wgmma` as well. Boxes are whole: bytes outside of
//! the tensor count.

use core::arch::asm;

/// Starts a copy of the box at `coordinates` to shared memory; its bytes arrive at `barrier`. PTX:
/// `cp.async.bulk.tensor.4d`.
///
/// # Safety
/// `map` is the address of a tensor map of four dimensions; `destination` is aligned to 1024, large enough
/// and not in use; `barrier` was told to expect the bytes.
#[inline(always)]
pub unsafe fn load(destination: u32, map: u64, coordinates: [i32; 4], barrier: u32) {
    let [x, y, z, w] = coordinates;
    asm!(
        concat!(
            "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes ",
            "[{0}], [{1}, {{{2}, {3}, {4}, {5}}}], [{6}];"
        ),
        in(reg32) destination, in(reg64) map, in(reg32) x, in(reg32) y, in(reg32) z, in(reg32) w,
        in(reg32) barrier, options(nostack)
    );
}

/// What this thread wrote to shared memory before is seen by `wgmma` and by bulk copies that it, or a
/// thread that meets it at a barrier, starts afterwards. PTX: `fence.proxy.async.shared::cta`.
///
/// # Safety
/// None beyond those of any fence.
#[inline(always)]
pub unsafe fn fence() {
    asm!("fence.proxy.async.shared::cta;", options(nostack));
}

/// The generic address of the first parameter of kernel `$kernel`. A Rust reference to it would make the
/// compiler copy it to local memory, where the accelerator finds no tensor map. PTX: `cvta.param`. sm_70.
#[macro_export]
macro_rules! parameter_address {
    ($kernel:ident) => {{
        let address: u64;
        core::arch::asm!(
            concat!("mov.b64 {0}, ", stringify!($kernel), "_param_0; cvta.param.u64 {0}, {0};"),
            out(reg64) address, options(pure, nomem, nostack)
        );
        address
    }};
}
