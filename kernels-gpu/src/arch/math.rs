//! Arithmetic that Rust's operators do not give as one instruction.

use core::arch::asm;

macro_rules! unary {
    ($(#[$doc:meta])* $name:ident, $instruction:literal) => {
        $(#[$doc])*
        #[inline(always)]
        pub fn $name(x: f32) -> f32 {
            let y: f32;
            // SAFETY: arithmetic on registers.
            unsafe { asm!(concat!($instruction, " {}, {};"), out(reg32) y, in(reg32) x,
                options(pure, nomem, nostack)) };
            y
        }
    };
}

unary!(
    /// `2^x`, to 2 units in the last place; `-inf` gives 0, NaN gives NaN. PTX: `ex2.approx.ftz.f32`.
    exp2, "ex2.approx.ftz.f32"
);
unary!(
    /// `log2(x)`, absolute error 2^-22 near 1, relative 2^-22 elsewhere; 0 gives `-inf`. PTX:
    /// `lg2.approx.ftz.f32`.
    log2, "lg2.approx.ftz.f32"
);
unary!(
    /// `1 / x` to 1 unit in the last place. PTX: `rcp.approx.ftz.f32`.
    reciprocal, "rcp.approx.ftz.f32"
);

/// The PTX of [`exp2_down`].
macro_rules! exp2_down {
    () => {
        "{{ .reg .f32 %down; abs.f32 %down, {x}; neg.f32 %down, %down; ex2.approx.ftz.f32 {y}, %down; }}"
    };
}

/// `2^-|x|`, at most 1, as exact as [`exp2`]; NaN gives NaN. PTX: `ex2.approx.ftz.f32`; the assembler makes
/// `abs.f32` and `neg.f32` part of it, but not the `or` that the compiler would make of `-x.abs()`.
#[inline(always)]
pub fn exp2_down(x: f32) -> f32 {
    let y: f32;
    // SAFETY: arithmetic on registers.
    unsafe { asm!(exp2_down!(), x = in(reg32) x, y = out(reg32) y, options(pure, nomem, nostack)) };
    y
}

/// [`exp2_down`], at this place: not moved behind a later wait and, in branches of different `PLACE`, not
/// behind the end of these. The comment in the PTX keeps the compiler from making one of them all.
#[inline(always)]
pub fn exp2_down_here<const PLACE: u32>(x: f32) -> f32 {
    let y: f32;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!(concat!(exp2_down!(), " // {place}"), x = in(reg32) x, y = out(reg32) y, place = const PLACE,
            options(nomem, nostack))
    };
    y
}

/// The larger one; the other one when one is NaN. PTX: `max.f32`.
#[inline(always)]
pub fn max(a: f32, b: f32) -> f32 {
    let y: f32;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!("max.f32 {}, {}, {};", out(reg32) y, in(reg32) a, in(reg32) b, options(pure, nomem, nostack))
    };
    y
}

/// The smaller one; NaN when one is NaN. PTX: `min.NaN.f32`. sm_80.
#[inline(always)]
pub fn min_or_nan(a: f32, b: f32) -> f32 {
    let y: f32;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!("min.NaN.f32 {}, {}, {};", out(reg32) y, in(reg32) a, in(reg32) b, options(pure, nomem, nostack))
    };
    y
}

/// `x`, at most `limit` in size; NaN stays NaN. PTX: `min.NaN.f32`, `max.NaN.f32`. sm_80.
#[inline(always)]
pub fn clamp_or_nan(x: f32, limit: f32) -> f32 {
    let y: f32;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!("max.NaN.f32 {}, {}, {};", out(reg32) y, in(reg32) x, in(reg32) -limit,
            options(pure, nomem, nostack))
    };
    min_or_nan(y, limit)
}

/// `a * b + c` rounded once. PTX: `fma.rn.f32`.
#[inline(always)]
pub fn fma(a: f32, b: f32, c: f32) -> f32 {
    core::intrinsics::fmaf32(a, b, c)
}

/// `a * b + c` rounded once and held to 0..=1; NaN gives 0. PTX: `fma.rn.sat.f32`.
#[inline(always)]
pub fn fma_saturated(a: f32, b: f32, c: f32) -> f32 {
    let y: f32;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!("fma.rn.sat.f32 {}, {}, {}, {};", out(reg32) y, in(reg32) a, in(reg32) b, in(reg32) c,
            options(pure, nomem, nostack))
    };
    y
}

/// `a / b` without the panic for `b = 0`, which a kernel must not contain.
#[inline(always)]
pub fn divide(a: u32, b: u32) -> u32 {
    // SAFETY: callers divide by counts that the launch keeps at least 1.
    unsafe { core::intrinsics::unchecked_div(a, b) }
}

/// As [`divide`], of 64 bits, by many instructions.
#[inline(always)]
pub fn divide_u64(a: u64, b: u64) -> u64 {
    // SAFETY: as above.
    unsafe { core::intrinsics::unchecked_div(a, b) }
}

/// `a * b + c`, the product of 64 bits. PTX: `mad.wide.s32`. Written as Rust, the compiler extends a factor
/// that stays the same before a loop, and then multiplies 64 bits in it.
#[inline(always)]
pub fn mad_wide(a: i32, b: i32, c: u64) -> u64 {
    let y: u64;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!("mad.wide.s32 {}, {}, {}, {};", out(reg64) y, in(reg32) a, in(reg32) b, in(reg64) c,
            options(pure, nomem, nostack))
    };
    y
}

/// As [`mad_wide`], of numbers without a sign. PTX: `mad.wide.u32`.
#[inline(always)]
pub fn mad_wide_u32(a: u32, b: u32, c: u64) -> u64 {
    let y: u64;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!("mad.wide.u32 {}, {}, {}, {};", out(reg64) y, in(reg32) a, in(reg32) b, in(reg64) c,
            options(pure, nomem, nostack))
    };
    y
}

/// The upper half of the product.
#[inline(always)]
pub fn mul_high(a: u32, b: u32) -> u32 {
    ((a as u64 * b as u64) >> 32) as u32
}

/// The remainder of [`divide`].
#[inline(always)]
pub fn remainder(a: u32, b: u32) -> u32 {
    a - divide(a, b) * b
}
