//! Between f32 and the 16-bit formats, and bytes of words.

use core::arch::asm;

macro_rules! pack {
    ($(#[$doc:meta])* $name:ident, $instruction:literal) => {
        $(#[$doc])*
        #[inline(always)]
        pub fn $name(low: f32, high: f32) -> u32 {
            let packed: u32;
            // SAFETY: arithmetic on registers.
            unsafe {
                asm!(concat!($instruction, " {}, {}, {};"), out(reg32) packed, in(reg32) high, in(reg32) low,
                    options(pure, nomem, nostack))
            };
            packed
        }
    };
}

pack!(
    /// Two f32 rounded to nearest even to bf16, `low` in the low half. PTX: `cvt.rn.bf16x2.f32`, sm_80.
    pack_bf16, "cvt.rn.bf16x2.f32"
);
pack!(
    /// Two f32 rounded to nearest even to f16, `low` in the low half; too large gives inf. PTX:
    /// `cvt.rn.f16x2.f32`, sm_80.
    pack_f16, "cvt.rn.f16x2.f32"
);

/// Four of the bytes of `low` (0 to 3) and `high` (4 to 7), one for each hexadecimal digit of `selector`.
/// PTX: `prmt.b32`.
#[inline(always)]
pub fn permute(low: u32, high: u32, selector: u32) -> u32 {
    let bytes: u32;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!("prmt.b32 {}, {}, {}, {};", out(reg32) bytes, in(reg32) low, in(reg32) high, in(reg32) selector,
            options(pure, nomem, nostack))
    };
    bytes
}

/// The two bf16 of a word as f32, (low, high). Exact: a bf16 is the upper half of an f32.
#[inline(always)]
pub fn unpack_bf16(packed: u32) -> (f32, f32) {
    (f32::from_bits(packed << 16), f32::from_bits(packed & 0xffff_0000))
}

/// The two f16 of a word as f32, (low, high). Exact. PTX: `cvt.f32.f16`.
#[inline(always)]
pub fn unpack_f16(packed: u32) -> (f32, f32) {
    let (low, high): (f32, f32);
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!("{{", ".reg .b16 %h_low, %h_high;", "mov.b32 {{%h_low, %h_high}}, {2};",
            "cvt.f32.f16 {0}, %h_low;", "cvt.f32.f16 {1}, %h_high;", "}}",
            out(reg32) low, out(reg32) high, in(reg32) packed, options(pure, nomem, nostack))
    };
    (low, high)
}
