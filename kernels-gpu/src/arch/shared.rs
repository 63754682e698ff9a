//! Shared memory of the block. Addresses are offsets in the shared window.

use core::arch::{asm, global_asm};

// Dynamic shared memory has no Rust declaration. 1024 bytes: what the widest swizzle pattern needs.
global_asm!(".extern .shared .align 1024 .b8 dynamic_shared_memory[];");

/// Where the block's dynamic shared memory starts.
#[inline(always)]
pub fn dynamic_base() -> u32 {
    let address: u32;
    // SAFETY: takes the address of a symbol.
    unsafe {
        asm!("mov.u32 {}, dynamic_shared_memory;", out(reg32) address, options(pure, nomem, nostack))
    };
    address
}

/// Reads an f32. PTX: `ld.shared.b32`.
///
/// # Safety
/// `address` lies in the block's shared memory, aligned to 4, written and made visible before.
#[inline(always)]
pub unsafe fn load_u32(address: u32) -> u32 {
    let value: u32;
    asm!("ld.shared.b32 {}, [{}];", out(reg32) value, in(reg32) address, options(nostack));
    value
}

/// Reads 16 bytes. PTX: `ld.shared.v4.b32`.
///
/// # Safety
/// As [`load_u32`], aligned to 16.
#[inline(always)]
pub unsafe fn load_u32x4(address: u32) -> [u32; 4] {
    let (a, b, c, d): (u32, u32, u32, u32);
    asm!("ld.shared.v4.b32 {{{}, {}, {}, {}}}, [{}];", out(reg32) a, out(reg32) b, out(reg32) c, out(reg32) d,
        in(reg32) address, options(nostack));
    [a, b, c, d]
}

/// [`load_u32x4`] of the `GROUP`-th 16 bytes from `address` on, whose own address is nothing that the
/// compiler could keep in a register.
///
/// # Safety
/// As [`load_u32x4`].
#[inline(always)]
pub unsafe fn load_u32x4_of<const GROUP: u32>(address: u32) -> [u32; 4] {
    let (a, b, c, d): (u32, u32, u32, u32);
    asm!("ld.shared.v4.b32 {{{}, {}, {}, {}}}, [{}+{offset}];", out(reg32) a, out(reg32) b, out(reg32) c,
        out(reg32) d, in(reg32) address, offset = const GROUP * 16, options(nostack));
    [a, b, c, d]
}

/// Reads 4 f32. PTX: `ld.shared.v4.b32`.
///
/// # Safety
/// As [`load_u32`], aligned to 16.
#[inline(always)]
pub unsafe fn load_f32x4(address: u32) -> [f32; 4] {
    let (a, b, c, d): (f32, f32, f32, f32);
    asm!("ld.shared.v4.b32 {{{}, {}, {}, {}}}, [{}];", out(reg32) a, out(reg32) b, out(reg32) c, out(reg32) d,
        in(reg32) address, options(nostack));
    [a, b, c, d]
}

/// Reads 2 f32. PTX: `ld.shared.v2.b32`.
///
/// # Safety
/// As [`load_u32`], aligned to 8.
#[inline(always)]
pub unsafe fn load_f32x2(address: u32) -> [f32; 2] {
    let (a, b): (f32, f32);
    asm!("ld.shared.v2.b32 {{{}, {}}}, [{}];", out(reg32) a, out(reg32) b, in(reg32) address,
        options(nostack));
    [a, b]
}

/// Reads 8 bytes. PTX: `ld.shared.v2.b32`.
///
/// # Safety
/// As [`load_u32`], aligned to 8.
#[inline(always)]
pub unsafe fn load_u32x2(address: u32) -> [u32; 2] {
    let (a, b): (u32, u32);
    asm!("ld.shared.v2.b32 {{{}, {}}}, [{}];", out(reg32) a, out(reg32) b, in(reg32) address,
        options(nostack));
    [a, b]
}

/// Writes 4 bytes. PTX: `st.shared.b32`.
///
/// # Safety
/// `address` lies in the block's shared memory, aligned to 4, and no other thread uses it before the
/// next barrier.
#[inline(always)]
pub unsafe fn store_u32(address: u32, value: u32) {
    asm!("st.shared.b32 [{}], {};", in(reg32) address, in(reg32) value, options(nostack));
}

/// Reads 32 bits that others write with [`store_relaxed_u32`]; it orders nothing. PTX:
/// `ld.relaxed.cta.shared.b32`. sm_70.
///
/// # Safety
/// As [`load_u32`].
#[inline(always)]
pub unsafe fn load_relaxed_u32(address: u32) -> u32 {
    let value: u32;
    asm!("ld.relaxed.cta.shared.b32 {}, [{}];", out(reg32) value, in(reg32) address, options(nostack));
    value
}

/// Writes 32 bits that others read with [`load_relaxed_u32`]; it orders nothing. PTX:
/// `st.relaxed.cta.shared.b32`. sm_70.
///
/// # Safety
/// As [`store_u32`].
#[inline(always)]
pub unsafe fn store_relaxed_u32(address: u32, value: u32) {
    asm!("st.relaxed.cta.shared.b32 [{}], {};", in(reg32) address, in(reg32) value, options(nostack));
}

/// Writes 8 bytes. PTX: `st.shared.v2.b32`.
///
/// # Safety
/// As [`store_u32`], aligned to 8.
#[inline(always)]
pub unsafe fn store_u32x2(address: u32, value: [u32; 2]) {
    asm!("st.shared.v2.b32 [{}], {{{}, {}}};", in(reg32) address, in(reg32) value[0], in(reg32) value[1],
        options(nostack));
}

/// Writes 16 bytes. PTX: `st.shared.v4.b32`.
///
/// # Safety
/// As [`store_u32`], aligned to 16.
#[inline(always)]
pub unsafe fn store_u32x4(address: u32, value: [u32; 4]) {
    asm!("st.shared.v4.b32 [{}], {{{}, {}, {}, {}}};", in(reg32) address, in(reg32) value[0],
        in(reg32) value[1],
        in(reg32) value[2], in(reg32) value[3], options(nostack));
}
