//! f32 on tensor cores: each number is the sum of two f16, `x = high + low`.
//!
//! f16 have 11 bits, the sum 22 and the sign of the low part, as long as the low part is normal: with the
//! largest number of a tensor scaled to between 2^14 and 2^15, numbers down to 2^-17 of it are off by 2^-24
//! of themselves at most, and smaller ones by 2^-40 of the largest. Queries, keys and values are split by a
//! kernel of their own ([`crate::kernels::split_operands`]), with a power of two for each head
//! ([`super::super::warpgroup::Units`]), probabilities in registers.
//!
//! The largest probability of a row is between 2^13 and 2^15, so that none above 2^-14 of it loses a bit to
//! f16, and smaller ones are off by at most 2^-38 of it (`attention::softmax::split`).

use super::{Element, F32, TensorCoreElement};
use crate::arch::{convert, matrix};

/// f32 as two f16 parts. In global memory, where a tensor is not split, f32; in shared memory and in packed
/// words f16.
#[derive(Clone, Copy)]
pub struct SplitF32;

impl Element for SplitF32 {
    const BYTES: u32 = F32::BYTES;
    const NEEDS_UNIT: bool = false;
    const NATURAL_EXPONENTS: bool = F32::NATURAL_EXPONENTS;
    const COARSE_LSE: f32 = F32::COARSE_LSE;
    const UNIT: f32 = 16384.0;
    const RESCALE_THRESHOLD: f32 = 2.0;

    #[inline(always)]
    fn scale_word(word: u32, factor: f32) -> u32 {
        let (low, high) = convert::unpack_f16(word);
        convert::pack_f16(low * factor, high * factor)
    }

    #[inline(always)]
    unsafe fn load_if(address: u64, condition: bool) -> f32 {
        F32::load_if(address, condition)
    }

    #[inline(always)]
    unsafe fn load(address: u64) -> f32 {
        F32::load(address)
    }

    #[inline(always)]
    unsafe fn load_pair(address: u64) -> (f32, f32) {
        F32::load_pair(address)
    }

    #[inline(always)]
    unsafe fn store(address: u64, value: f32) {
        F32::store(address, value);
    }
}

impl TensorCoreElement for SplitF32 {
    const WORDS_OF_PAIR: usize = 2;
    // Each row has a unit of its own.
    const NARROW: bool = false;

    #[inline(always)]
    fn pack(low: f32, high: f32) -> u32 {
        convert::pack_f16(low, high)
    }

    /// High parts, then low ones.
    #[inline(always)]
    fn pack_all<const N: usize, const P: usize>(values: &[f32; N]) -> [u32; P] {
        const { assert!(P == N) };
        let mut packed = [0; P];
        let mut i = 0;
        while i < P / 2 {
            let [high, low] = split_pair(values[2 * i], values[2 * i + 1]);
            packed[i] = high;
            packed[P / 2 + i] = low;
            i += 1;
        }
        packed
    }

    #[inline(always)]
    fn unpack(word: u32) -> (f32, f32) {
        convert::unpack_f16(word)
    }

    /// f32, which takes no more room.
    #[inline(always)]
    fn to_words<const N: usize, const P: usize>(values: &[f32; N]) -> [u32; P] {
        const { assert!(P == N) };
        let mut words = [0; P];
        let mut i = 0;
        while i < P {
            words[i] = values[i].to_bits();
            i += 1;
        }
        words
    }

    #[inline(always)]
    fn from_words<const N: usize, const P: usize>(read: impl Fn(usize) -> [u32; 4]) -> [f32; N] {
        const { assert!(P == N) };
        let mut values = [0.0; N];
        let mut i = 0;
        while i < N / 4 {
            let four = read(i);
            let mut j = 0;
            while j < 4 {
                values[4 * i + j] = f32::from_bits(four[j]);
                j += 1;
            }
            i += 1;
        }
        values
    }

    #[inline(always)]
    unsafe fn mma(c: &mut [f32; 4], a: [u32; 4], b: [u32; 2]) {
        matrix::mma_f16(c, a, b);
    }
}

/// The high and the low parts of two numbers, rounded to nearest even.
#[inline(always)]
pub fn split_pair(first: f32, second: f32) -> [u32; 2] {
    let high = convert::pack_f16(first, second);
    let (of_first, of_second) = convert::unpack_f16(high);
    [high, convert::pack_f16(first - of_first, second - of_second)]
}
