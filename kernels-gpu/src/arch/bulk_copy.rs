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

/// Starts a copy of the box at `coordinates` from shared memory, in the open group; what lies outside
/// of the tensor is left out. PTX: `cp.async.bulk.tensor.4d.global.shared::cta.bulk_group`.
///
/// # Safety
/// As [`load`], the other way round: what the source holds is visible to the async proxy and stays until the
/// group was read; the box is used by nothing else.
#[inline(always)]
pub unsafe fn store(map: u64, coordinates: [i32; 4], source: u32) {
    let [x, y, z, w] = coordinates;
    asm!(
        "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [{}, {{{}, {}, {}, {}}}], [{}];",
        in(reg64) map, in(reg32) x, in(reg32) y, in(reg32) z, in(reg32) w, in(reg32) source,
        options(nostack)
    );
}

/// Starts a copy of `bytes` contiguous bytes to shared memory; they arrive at `barrier`. PTX:
/// `cp.async.bulk.shared::cluster.global`.
///
/// # Safety
/// `bytes` and both addresses are multiples of 16; the source is readable, the destination large enough and
/// not in use; `barrier` was told to expect the bytes.
#[inline(always)]
pub unsafe fn load_bytes(destination: u32, source: u64, bytes: u32, barrier: u32) {
    asm!(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [{}], [{}], {}, [{}];",
        in(reg32) destination, in(reg64) source, in(reg32) bytes, in(reg32) barrier, options(nostack)
    );
}

/// Starts to add `bytes` contiguous bytes of f32 in shared memory to those at `destination`, in the thread's
/// open group. PTX: `cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32`.
///
/// # Safety
/// `bytes` and both addresses are multiples of 16; what the source holds is visible to the async proxy and
/// stays until the group was read; the destination is written and may be added to by others.
#[inline(always)]
pub unsafe fn add_f32(destination: u64, source: u32, bytes: u32) {
    asm!(
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [{}], [{}], {};",
        in(reg64) destination, in(reg32) source, in(reg32) bytes, options(nostack)
    );
}

/// Starts a copy of `bytes` contiguous bytes of shared memory to `destination`, in the thread's open group.
/// PTX: `cp.async.bulk.global.shared::cta.bulk_group`.
///
/// # Safety
/// As [`add_f32`], but the destination is used by nothing else.
#[inline(always)]
pub unsafe fn store_bytes(destination: u64, source: u32, bytes: u32) {
    asm!(
        "cp.async.bulk.global.shared::cta.bulk_group [{}], [{}], {};",
        in(reg64) destination, in(reg32) source, in(reg32) bytes, options(nostack)
    );
}

/// Closes the thread's open group of copies from shared memory. PTX: `cp.async.bulk.commit_group`.
///
/// # Safety
/// None beyond those of the copies.
#[inline(always)]
pub unsafe fn commit() {
    asm!("cp.async.bulk.commit_group;", options(nostack));
}

/// Waits until all but the latest `PENDING` groups of this thread have read their shared memory. PTX:
/// `cp.async.bulk.wait_group.read`.
///
/// # Safety
/// None beyond those of the copies.
#[inline(always)]
pub unsafe fn wait_read<const PENDING: u32>() {
    asm!("cp.async.bulk.wait_group.read {};", const PENDING, options(nostack));
}

/// Waits until all but the latest `PENDING` groups of this thread have been written. What it does afterwards
/// comes behind that in both proxies: the end of a bulk copy implies their fence. PTX:
/// `cp.async.bulk.wait_group`.
///
/// # Safety
/// None beyond those of the copies.
#[inline(always)]
pub unsafe fn wait_written<const PENDING: u32>() {
    asm!("cp.async.bulk.wait_group {};", const PENDING, options(nostack));
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
