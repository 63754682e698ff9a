//! The element types of q, k and v.

use crate::arch::{convert, matrix};

/// bf16 on tensor cores.
pub struct Bf16;
/// f16 on tensor cores.
pub struct F16;
/// True f32: fused multiply-adds, no tf32.
pub struct F32;

/// An element type of tensors in global memory.
pub trait Element {
    /// Bytes per element.
    const BYTES: u32;
    /// Whether values are so large that their products with unnormalised probabilities may add up to more
    /// than f32 holds: see [`ForwardParams::unit`](crate::abi::ForwardParams::unit).
    const NEEDS_UNIT: bool;
    /// Whether the exponents of the backward are natural, not powers of two: see
    /// `attention::score::BackwardScale`.
    const NATURAL_EXPONENTS: bool;

    /// The elements of a 32-bit word of shared memory times `factor`, rounded back. Exact for factors
    /// -1, 0 and 1.
    fn scale_word(word: u32, factor: f32) -> u32;
}

/// A 16-bit element type that `mma.sync` multiplies.
pub trait TensorCoreElement: Element {
    /// Whether numbers that f32 holds can be too large for it by far: dS may have to be scaled down.
    const NARROW: bool;

    /// Two f32 rounded to nearest even, `low` in the low half.
    fn pack(low: f32, high: f32) -> u32;

    /// The two elements of a word, (low, high), exactly.
    fn unpack(word: u32) -> (f32, f32);

    /// `c += a b` for a 16 x 16 and a 16 x 8 fragment.
    ///
    /// # Safety
    /// All 32 lanes call it together.
    unsafe fn mma(c: &mut [f32; 4], a: [u32; 4], b: [u32; 2]);
}

macro_rules! tensor_core_element {
    ($type:ident, $narrow:literal, $needs_unit:literal, $pack:path, $unpack:path, $mma:path) => {
        impl Element for $type {
            const BYTES: u32 = 2;
            const NEEDS_UNIT: bool = $needs_unit;
            const NATURAL_EXPONENTS: bool = false;

            #[inline(always)]
            fn scale_word(word: u32, factor: f32) -> u32 {
                let (low, high) = $unpack(word);
                $pack(low * factor, high * factor)
            }
        }

        impl TensorCoreElement for $type {
            const NARROW: bool = $narrow;

            #[inline(always)]
            fn pack(low: f32, high: f32) -> u32 {
                $pack(low, high)
            }

            #[inline(always)]
            fn unpack(word: u32) -> (f32, f32) {
                $unpack(word)
            }

            #[inline(always)]
            unsafe fn mma(c: &mut [f32; 4], a: [u32; 4], b: [u32; 2]) {
                $mma(c, a, b)
            }
        }
    };
}

tensor_core_element!(Bf16, false, true, convert::pack_bf16, convert::unpack_bf16, matrix::mma_bf16);
// Values end at 2^16, and probabilities at 2^13: with 2^30 keys the sum is below 2^60.
tensor_core_element!(F16, true, false, convert::pack_f16, convert::unpack_f16, matrix::mma_f16);

impl Element for F32 {
    const BYTES: u32 = 4;
    const NEEDS_UNIT: bool = true;
    const NATURAL_EXPONENTS: bool = true;

    #[inline(always)]
    fn scale_word(word: u32, factor: f32) -> u32 {
        (f32::from_bits(word) * factor).to_bits()
    }
}
