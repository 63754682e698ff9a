//! Global memory. Addresses are device addresses in the global window.

use core::arch::asm;

/// `address`, computed before what follows.
#[inline(always)]
pub fn known(address: u64) -> u64 {
    let same;
    // SAFETY: writes its output only.
    unsafe { asm!("mov.b64 {}, {};", out(reg64) same, in(reg64) address, options(nomem, nostack)) };
    same
}

/// Reads 8 bits where `condition` holds, otherwise gives 0 and touches nothing. PTX: `@p ld.global.nc.u8`.
///
/// # Safety
/// If `condition`: `address` is readable, and not written during the kernel.
#[inline(always)]
pub unsafe fn load_u8_if(address: u64, condition: bool) -> u32 {
    let value: u32;
    asm!("{{", ".reg .pred %p_in;", "setp.ne.u32 %p_in, {2}, 0;", "mov.b32 {0}, 0;",
        "@%p_in ld.global.nc.u8 {0}, [{1}];", "}}", out(reg32) value, in(reg64) address,
            in(reg32) condition as u32,
        options(pure, readonly, nostack));
    value
}

/// Reads 16 bits where `condition` holds, otherwise gives 0 and touches nothing. PTX: `@p
/// ld.global.nc.b16`.
///
/// # Safety
/// If `condition`: `address` is readable, aligned to 2, and not written during the kernel.
#[inline(always)]
pub unsafe fn load_u16_if(address: u64, condition: bool) -> u16 {
    let value: u16;
    asm!("{{", ".reg .pred %p_in;", "setp.ne.u32 %p_in, {2}, 0;", "mov.b16 {0}, 0;",
        "@%p_in ld.global.nc.b16 {0}, [{1}];", "}}", out(reg16) value, in(reg64) address,
            in(reg32) condition as u32,
        options(pure, readonly, nostack));
    value
}

/// Reads 32 bits where `condition` holds, otherwise gives 0 and touches nothing. PTX: `@p
/// ld.global.nc.b32`.
///
/// # Safety
/// If `condition`: `address` is readable, aligned to 4, and not written during the kernel.
#[inline(always)]
pub unsafe fn load_u32_if(address: u64, condition: bool) -> u32 {
    let value: u32;
    asm!("{{", ".reg .pred %p_in;", "setp.ne.u32 %p_in, {2}, 0;", "mov.b32 {0}, 0;",
        "@%p_in ld.global.nc.b32 {0}, [{1}];", "}}", out(reg32) value, in(reg64) address,
            in(reg32) condition as u32,
        options(pure, readonly, nostack));
    value
}

/// Writes 16 bits. PTX: `st.global.b16`.
///
/// # Safety
/// `address` is writable and aligned to 2.
#[inline(always)]
pub unsafe fn store_u16(address: u64, value: u16) {
    asm!("st.global.b16 [{}], {};", in(reg64) address, in(reg16) value, options(nostack));
}

/// Writes an f32. PTX: `st.global.b32`.
///
/// # Safety
/// `address` is writable and aligned to 4.
#[inline(always)]
pub unsafe fn store_f32(address: u64, value: f32) {
    asm!("st.global.b32 [{}], {};", in(reg64) address, in(reg32) value, options(nostack));
}

/// Writes 2 f32. PTX: `st.global.v2.b32`.
///
/// # Safety
/// `address` is writable and aligned to 8.
#[inline(always)]
pub unsafe fn store_f32x2(address: u64, value: [f32; 2]) {
    asm!("st.global.v2.b32 [{}], {{{}, {}}};", in(reg64) address, in(reg32) value[0], in(reg32) value[1],
        options(nostack));
}

/// Writes 16 bytes. PTX: `st.global.v4.b32`.
///
/// # Safety
/// `address` is writable and aligned to 16.
#[inline(always)]
pub unsafe fn store_u32x4(address: u64, value: [u32; 4]) {
    asm!("st.global.v4.b32 [{}], {{{}, {}, {}, {}}};", in(reg64) address, in(reg32) value[0],
        in(reg32) value[1],
        in(reg32) value[2], in(reg32) value[3], options(nostack));
}

/// Writes 8 bytes. PTX: `st.global.v2.b32`.
///
/// # Safety
/// `address` is writable and aligned to 8.
#[inline(always)]
pub unsafe fn store_u32x2(address: u64, value: [u32; 2]) {
    asm!("st.global.v2.b32 [{}], {{{}, {}}};", in(reg64) address, in(reg32) value[0], in(reg32) value[1],
        options(nostack));
}

/// Writes 32 bits. PTX: `st.global.b32`.
///
/// # Safety
/// `address` is writable and aligned to 4.
#[inline(always)]
pub unsafe fn store_u32(address: u64, value: u32) {
    asm!("st.global.b32 [{}], {};", in(reg64) address, in(reg32) value, options(nostack));
}

/// Adds to an f32, atomically, in no order. PTX: `red.global.add.f32`.
///
/// # Safety
/// `address` is writable and aligned to 4.
#[inline(always)]
pub unsafe fn add_f32(address: u64, value: f32) {
    asm!("red.global.add.f32 [{}], {};", in(reg64) address, in(reg32) value, options(nostack));
}

/// Adds to 4 f32, each atomically, in no order. PTX: `red.global.add.v4.f32`. sm_90, PTX 8.1.
///
/// # Safety
/// `address` is writable and aligned to 16.
#[inline(always)]
pub unsafe fn add_f32x4(address: u64, value: [f32; 4]) {
    asm!("red.global.add.v4.f32 [{}], {{{}, {}, {}, {}}};", in(reg64) address, in(reg32) value[0],
        in(reg32) value[1], in(reg32) value[2], in(reg32) value[3], options(nostack));
}

/// Reads 16 bits. PTX: `ld.global.nc.b16`.
///
/// # Safety
/// `address` is readable, aligned to 2, and not written during the kernel.
#[inline(always)]
pub unsafe fn load_u16(address: u64) -> u16 {
    let value: u16;
    asm!("ld.global.nc.b16 {}, [{}];", out(reg16) value, in(reg64) address, options(pure, readonly, nostack));
    value
}

/// Reads 32 bits. PTX: `ld.global.nc.b32`.
///
/// # Safety
/// `address` is readable, aligned to 4, and not written during the kernel.
#[inline(always)]
pub unsafe fn load_u32(address: u64) -> u32 {
    let value: u32;
    asm!("ld.global.nc.b32 {}, [{}];", out(reg32) value, in(reg64) address, options(pure, readonly, nostack));
    value
}

/// Reads 32 bits that this thread, or one that it has met since, may have written during the kernel. PTX:
/// `ld.global.b32`.
///
/// # Safety
/// `address` is readable and aligned to 4.
#[inline(always)]
pub unsafe fn load_written_u32(address: u64) -> u32 {
    let value: u32;
    asm!("ld.global.b32 {}, [{}];", out(reg32) value, in(reg64) address, options(nostack));
    value
}

/// Reads an f32.
///
/// # Safety
/// As [`load_u32`].
#[inline(always)]
pub unsafe fn load_f32(address: u64) -> f32 {
    f32::from_bits(load_u32(address))
}

/// # Safety
/// `address` is readable, aligned to 8, and not written during the kernel.
#[inline(always)]
pub unsafe fn load_u32x2(address: u64) -> [u32; 2] {
    let (a, b): (u32, u32);
    asm!("ld.global.nc.v2.b32 {{{}, {}}}, [{}];", out(reg32) a, out(reg32) b, in(reg64) address,
        options(pure, readonly, nostack));
    [a, b]
}

/// # Safety
/// `address` is readable, aligned to 16, and not written during the kernel.
#[inline(always)]
pub unsafe fn load_u32x4(address: u64) -> [u32; 4] {
    let (a, b, c, d): (u32, u32, u32, u32);
    asm!("ld.global.nc.v4.b32 {{{}, {}, {}, {}}}, [{}];", out(reg32) a, out(reg32) b, out(reg32) c,
        out(reg32) d,
        in(reg64) address, options(pure, readonly, nostack));
    [a, b, c, d]
}

/// As [`load_u32x4`] where `condition` holds, otherwise gives zeros and touches nothing. PTX: `@p
/// ld.global.nc.v4.b32`.
///
/// # Safety
/// As [`load_u32x4`], if `condition`.
#[inline(always)]
pub unsafe fn load_u32x4_if(address: u64, condition: bool) -> [u32; 4] {
    let (a, b, c, d): (u32, u32, u32, u32);
    asm!("{{", ".reg .pred %p_in;", "setp.ne.u32 %p_in, {5}, 0;", "mov.b32 {0}, 0;", "mov.b32 {1}, 0;",
        "mov.b32 {2}, 0;", "mov.b32 {3}, 0;", "@%p_in ld.global.nc.v4.b32 {{{0}, {1}, {2}, {3}}}, [{4}];",
        "}}", out(reg32) a, out(reg32) b, out(reg32) c, out(reg32) d, in(reg64) address,
            in(reg32) condition as u32, options(pure, readonly, nostack));
    [a, b, c, d]
}

/// As [`load_u32x4_if`], 8 bytes. PTX: `@p ld.global.nc.v2.b32`.
///
/// # Safety
/// As [`load_u32x4_if`], aligned to 8.
#[inline(always)]
pub unsafe fn load_u32x2_if(address: u64, condition: bool) -> [u32; 2] {
    let (a, b): (u32, u32);
    asm!("{{", ".reg .pred %p_in;", "setp.ne.u32 %p_in, {3}, 0;", "mov.b32 {0}, 0;", "mov.b32 {1}, 0;",
        "@%p_in ld.global.nc.v2.b32 {{{0}, {1}}}, [{2}];", "}}", out(reg32) a, out(reg32) b,
            in(reg64) address, in(reg32) condition as u32, options(pure, readonly, nostack));
    [a, b]
}

/// As [`load_u32x4_if`], of what others may have written during the kernel and this thread knows to be
/// there. PTX: `@p ld.global.v4.b32`.
///
/// # Safety
/// As [`load_u32x4_if`]; nobody writes it any more.
#[inline(always)]
pub unsafe fn load_written_u32x4_if(address: u64, condition: bool) -> [u32; 4] {
    let (a, b, c, d): (u32, u32, u32, u32);
    asm!("{{", ".reg .pred %p_in;", "setp.ne.u32 %p_in, {5}, 0;", "mov.b32 {0}, 0;", "mov.b32 {1}, 0;",
        "mov.b32 {2}, 0;", "mov.b32 {3}, 0;", "@%p_in ld.global.v4.b32 {{{0}, {1}, {2}, {3}}}, [{4}];",
        "}}", out(reg32) a, out(reg32) b, out(reg32) c, out(reg32) d, in(reg64) address,
            in(reg32) condition as u32, options(pure, readonly, nostack));
    [a, b, c, d]
}

/// Reads an f32 that another kernel wrote, whose end this kernel has waited for. PTX: `ld.global.b32`.
///
/// # Safety
/// `address` is readable and aligned to 4; nobody writes it any more.
#[inline(always)]
pub unsafe fn load_written_f32(address: u64) -> f32 {
    let value: f32;
    asm!("ld.global.b32 {}, [{}];", out(reg32) value, in(reg64) address, options(nostack));
    value
}

/// Adds to a counter, atomically, and gives what it was. PTX: `atom.global.add.u32`.
///
/// # Safety
/// `address` is writable and aligned to 4.
#[inline(always)]
pub unsafe fn fetch_add_u32(address: u64, value: u32) -> u32 {
    let old: u32;
    asm!("atom.global.add.u32 {}, [{}], {};", out(reg32) old, in(reg64) address, in(reg32) value,
        options(nostack));
    old
}

/// Adds to a counter after everything that this thread wrote before. PTX: `red.release.gpu.global.add.u32`.
/// sm_70.
///
/// # Safety
/// `address` is writable and aligned to 4.
#[inline(always)]
pub unsafe fn count_release_u32(address: u64, value: u32) {
    asm!("red.release.gpu.global.add.u32 [{}], {};", in(reg64) address, in(reg32) value, options(nostack));
}

/// What this thread wrote or counted before is seen by whoever sees what it writes or counts afterwards.
/// PTX: `fence.acq_rel.gpu`. sm_70.
///
/// # Safety
/// None beyond those of any fence.
#[inline(always)]
pub unsafe fn fence() {
    asm!("fence.acq_rel.gpu;", options(nostack));
}

/// Waits until the u32 at `address` is `value`, and sees what was written before it was. PTX: a loop around
/// `ld.acquire.gpu.global.u32`. sm_70.
///
/// # Safety
/// `address` is readable and aligned to 4; somebody writes the value there with [`store_release_u32`].
#[allow(named_asm_labels)] // PTX has labels by name only; braces make them local to each copy
#[inline(always)]
pub unsafe fn wait_for_u32(address: u64, value: u32) {
    asm!("{{", ".reg .pred %there; .reg .b32 %found;", "WAIT:",
        "ld.acquire.gpu.global.u32 %found, [{0}];", "setp.eq.u32 %there, %found, {1};",
        "@%there bra DONE;", "bra WAIT;", "DONE:", "}}", in(reg64) address, in(reg32) value,
        options(nostack));
}

/// Reads a u32 that others write with [`store_release_u32`], and sees what was written before it was. PTX:
/// `ld.acquire.gpu.global.u32`. sm_70.
///
/// # Safety
/// `address` is readable and aligned to 4.
#[inline(always)]
pub unsafe fn load_acquire_u32(address: u64) -> u32 {
    let value: u32;
    asm!("ld.acquire.gpu.global.u32 {}, [{}];", out(reg32) value, in(reg64) address, options(nostack));
    value
}

/// Makes a u32 that is 0 `value`, atomically; gives what it was, and sees what was written before it was.
/// PTX: `atom.acquire.gpu.global.cas.b32`. sm_70.
///
/// # Safety
/// `address` is writable and aligned to 4.
#[inline(always)]
pub unsafe fn claim_u32(address: u64, value: u32) -> u32 {
    let old: u32;
    asm!("atom.acquire.gpu.global.cas.b32 {}, [{}], 0, {};", out(reg32) old, in(reg64) address,
        in(reg32) value, options(nostack));
    old
}

/// Writes a u32 after everything that this thread wrote before. PTX: `st.release.gpu.global.u32`. sm_70.
///
/// # Safety
/// `address` is writable and aligned to 4.
#[inline(always)]
pub unsafe fn store_release_u32(address: u64, value: u32) {
    asm!("st.release.gpu.global.u32 [{}], {};", in(reg64) address, in(reg32) value, options(nostack));
}

/// Reads 16 bits that this thread may write later. PTX: `ld.global.b16`.
///
/// # Safety
/// `address` is readable and aligned to 2; nobody else writes it during the kernel.
#[inline(always)]
pub unsafe fn load_written_u16(address: u64) -> u16 {
    let value: u16;
    asm!("ld.global.b16 {}, [{}];", out(reg16) value, in(reg64) address, options(nostack));
    value
}

/// Reads 2 f32 where `condition` holds, otherwise gives 0 and touches nothing. PTX: `@p ld.global.v2.b32`.
///
/// # Safety
/// If `condition`: `address` is readable and aligned to 8.
#[inline(always)]
pub unsafe fn load_written_f32x2_if(address: u64, condition: bool) -> [f32; 2] {
    let (a, b): (f32, f32);
    asm!("{{", ".reg .pred %p_in;", "setp.ne.u32 %p_in, {3}, 0;", "mov.b32 {0}, 0;", "mov.b32 {1}, 0;",
        "@%p_in ld.global.v2.b32 {{{0}, {1}}}, [{2}];", "}}", out(reg32) a, out(reg32) b,
            in(reg64) address, in(reg32) condition as u32,
        options(readonly, nostack));
    [a, b]
}
