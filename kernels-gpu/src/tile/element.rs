//! The element types of q, k and v.

mod split;

pub use split::{SplitF32, split_pair};

use crate::arch::{convert, global, matrix};

/// bf16 on tensor cores.
#[derive(Clone, Copy)]
pub struct Bf16;
/// f16 on tensor cores.
#[derive(Clone, Copy)]
pub struct F16;
/// True f32: fused multiply-adds, no tf32.
#[derive(Clone, Copy)]
pub struct F32;

/// How far scores may exceed what they are relative to before that is moved, as a factor of probabilities.
/// 2^13 is below the largest f16, 65504.
const RESCALE_THRESHOLD: f32 = (1 << crate::abi::RESCALE_THRESHOLD_LOG2) as f32;

/// An element type of tensors in global memory.
pub trait Element: Copy {
    /// Bytes per element.
    const BYTES: u32;
    /// Whether values are so large that their products with unnormalised probabilities may add up to more
    /// than f32 holds: see [`ForwardParams::unit`](crate::abi::ForwardParams::unit).
    const NEEDS_UNIT: bool;
    /// Whether the exponents of the backward are natural, not powers of two: see
    /// `attention::score::BackwardScale`.
    const NATURAL_EXPONENTS: bool;
    /// From which size on lse itself is too coarse for the backward: half of a unit in its last place costs
    /// p as much as the rounding of p does (of f32 more, where 2^-16 is bearable).
    const COARSE_LSE: f32;

    /// What probabilities are counted in where no [unit](Element::NEEDS_UNIT) is needed, a power of two.
    const UNIT: f32;
    /// How far, as a factor of probabilities, scores may exceed what they are relative to.
    const RESCALE_THRESHOLD: f32;

    /// The elements of a 32-bit word of shared memory times `factor`, rounded back. Exact for factors
    /// -1, 0 and 1.
    fn scale_word(word: u32, factor: f32) -> u32;

    /// An element in global memory where `condition` holds, else 0, and nothing is touched.
    ///
    /// # Safety
    /// If `condition`: `address` is readable, aligned to the element, and not written during the kernel.
    unsafe fn load_if(address: u64, condition: bool) -> f32;

    /// An element in global memory.
    ///
    /// # Safety
    /// `address` is readable, aligned to the element, and not written during the kernel.
    unsafe fn load(address: u64) -> f32;

    /// Two neighbouring elements in global memory.
    ///
    /// # Safety
    /// `address` is readable, aligned to both, and not written during the kernel.
    unsafe fn load_pair(address: u64) -> (f32, f32);

    /// Writes an f32, rounded to nearest even, to global memory.
    ///
    /// # Safety
    /// `address` is writable and aligned to the element.
    unsafe fn store(address: u64, value: f32);
}

/// A 16-bit element type that `mma.sync` multiplies.
pub trait TensorCoreElement: Element {
    /// Words that a pair of probabilities is packed into.
    const WORDS_OF_PAIR: usize = 1;
    /// Whether it is multiplied as two parts.
    const IN_PARTS: bool = Self::WORDS_OF_PAIR > 1;
    /// Whether numbers that f32 holds can be too large for it by far: dS may have to be scaled down.
    const NARROW: bool;

    /// Two f32 rounded to nearest even, `low` in the low half.
    fn pack(low: f32, high: f32) -> u32;

    /// Pairs of neighbouring registers, packed: `P = N / 2` times [`TensorCoreElement::WORDS_OF_PAIR`] words,
    /// first those of all pairs.
    #[inline(always)]
    fn pack_all<const N: usize, const P: usize>(values: &[f32; N]) -> [u32; P] {
        let mut packed = [0; P];
        let mut i = 0;
        while i < P {
            packed[i] = Self::pack(values[2 * i], values[2 * i + 1]);
            i += 1;
        }
        packed
    }

    /// The two elements of a word, (low, high), exactly.
    fn unpack(word: u32) -> (f32, f32);

    /// Values as one warp gives them to another one, in as many words as [`TensorCoreElement::pack_all`].
    #[inline(always)]
    fn to_words<const N: usize, const P: usize>(values: &[f32; N]) -> [u32; P] {
        Self::pack_all(values)
    }

    /// What [`TensorCoreElement::to_words`] was given, as rounded to the element type, if `read(i)` is words
    /// `4 i..4 i + 4`.
    #[inline(always)]
    fn from_words<const N: usize, const P: usize>(read: impl Fn(usize) -> [u32; 4]) -> [f32; N] {
        let mut values = [0.0; N];
        let mut i = 0;
        while i < P / 4 {
            let four = read(i);
            let mut j = 0;
            while j < 4 {
                let (low, high) = Self::unpack(four[j]);
                values[8 * i + 2 * j] = low;
                values[8 * i + 2 * j + 1] = high;
                j += 1;
            }
            i += 1;
        }
        values
    }

    /// `c += a b` for a 16 x 16 and a 16 x 8 fragment.
    ///
    /// # Safety
    /// All 32 lanes call it together.
    unsafe fn mma(c: &mut [f32; 4], a: [u32; 4], b: [u32; 2]);
}

macro_rules! tensor_core_element {
    ($type:ident, $narrow:literal, $needs_unit:literal, $coarse_lse:literal,
        $pack:path, $unpack:path, $mma:path) => {
        impl Element for $type {
            const BYTES: u32 = 2;
            const NEEDS_UNIT: bool = $needs_unit;
            const NATURAL_EXPONENTS: bool = false;
            const COARSE_LSE: f32 = $coarse_lse;
            const UNIT: f32 = 1.0;
            const RESCALE_THRESHOLD: f32 = RESCALE_THRESHOLD;

            #[inline(always)]
            fn scale_word(word: u32, factor: f32) -> u32 {
                let (low, high) = $unpack(word);
                $pack(low * factor, high * factor)
            }

            #[inline(always)]
            unsafe fn load_if(address: u64, condition: bool) -> f32 {
                $unpack(global::load_u16_if(address, condition) as u32).0
            }

            #[inline(always)]
            unsafe fn load(address: u64) -> f32 {
                $unpack(global::load_u16(address) as u32).0
            }

            #[inline(always)]
            unsafe fn load_pair(address: u64) -> (f32, f32) {
                $unpack(global::load_u32(address))
            }

            #[inline(always)]
            unsafe fn store(address: u64, value: f32) {
                global::store_u16(address, $pack(value, 0.0) as u16);
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

tensor_core_element!(
    Bf16,
    false,
    true,
    65536.0,
    convert::pack_bf16,
    convert::unpack_bf16,
    matrix::mma_bf16
);
// Values end at 2^16, and probabilities at 2^13: with 2^30 keys the sum is below 2^60.
tensor_core_element!(F16, true, false, 8192.0, convert::pack_f16, convert::unpack_f16, matrix::mma_f16);

impl Element for F32 {
    const BYTES: u32 = 4;
    const NEEDS_UNIT: bool = true;
    const NATURAL_EXPONENTS: bool = true;
    const COARSE_LSE: f32 = 256.0;
    const UNIT: f32 = 1.0;
    const RESCALE_THRESHOLD: f32 = RESCALE_THRESHOLD;

    #[inline(always)]
    fn scale_word(word: u32, factor: f32) -> u32 {
        (f32::from_bits(word) * factor).to_bits()
    }

    #[inline(always)]
    unsafe fn load_if(address: u64, condition: bool) -> f32 {
        f32::from_bits(global::load_u32_if(address, condition))
    }

    #[inline(always)]
    unsafe fn load(address: u64) -> f32 {
        global::load_f32(address)
    }

    #[inline(always)]
    unsafe fn load_pair(address: u64) -> (f32, f32) {
        let [first, second] = global::load_u32x2(address);
        (f32::from_bits(first), f32::from_bits(second))
    }

    #[inline(always)]
    unsafe fn store(address: u64, value: f32) {
        global::store_f32(address, value);
    }
}
