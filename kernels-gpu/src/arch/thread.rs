//! Who am I.

use core::arch::asm;

macro_rules! special_register {
    ($(#[$doc:meta])* $name:ident, $register:literal) => {
        $(#[$doc])*
        #[inline(always)]
        pub fn $name() -> u32 {
            let value: u32;
            // SAFETY: reading a special register has no effect.
            unsafe { asm!(concat!("mov.u32 {}, ", $register, ";"), out(reg32) value, options(pure,
                nomem, nostack)) };
            value
        }
    };
}

special_register!(
    /// Thread in the block, x.
    thread_idx_x, "%tid.x"
);
special_register!(
    /// Block in the grid, x.
    block_idx_x, "%ctaid.x"
);
special_register!(
    /// Blocks in the grid, x.
    grid_dim_x, "%nctaid.x"
);

/// `value`, without the compiler knowing which it is: keeps a loop of that many steps rolled.
#[inline(always)]
pub fn opaque(value: u32) -> u32 {
    let result: u32;
    // SAFETY: copies a register.
    unsafe {
        asm!("mov.u32 {}, {};", out(reg32) result, in(reg32) value, options(pure, nomem, nostack))
    };
    result
}

/// `value`, at this place: what is computed from it is computed after it, and not kept in registers from
/// before a loop on.
#[inline(always)]
pub fn opaque_here(value: u32) -> u32 {
    let result: u32;
    // SAFETY: copies a register.
    unsafe { asm!("mov.u32 {}, {};", out(reg32) result, in(reg32) value, options(nomem, nostack)) };
    result
}

/// [`thread_idx_x`], read at this place: what is computed from it is computed after it, and not kept in
/// registers from before a loop on.
#[inline(always)]
pub fn thread_idx_x_here() -> u32 {
    let value: u32;
    // SAFETY: reading a special register has no effect.
    unsafe { asm!("mov.u32 {}, %tid.x;", out(reg32) value, options(nomem, nostack)) };
    value
}
