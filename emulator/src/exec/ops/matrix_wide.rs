//! The products of 16-bit numbers of [`super::matrix`] with vectors of 512 bits, by intrinsics: the compiler
//! makes of its loops little else than moves between lanes.
//!
//! Lanes stay where they are. A lane has two elements of D in a row: what it needs of A is in the four lanes
//! of its row, and of B in the lanes of its two columns.

use crate::exec::values::registers::{LANES, Registers, Row};
use crate::isa::Instruction;
use std::arch::x86_64::{
    __m512, __m512i, _mm512_and_si512, _mm512_castps_si512, _mm512_castsi512_ps,
    _mm512_cmpeq_epi32_mask, _mm512_fmadd_ps, _mm512_loadu_si512, _mm512_mask_or_epi32, _mm512_mul_ps,
    _mm512_or_si512, _mm512_permutex2var_epi32, _mm512_permutexvar_epi32, _mm512_set1_epi32,
    _mm512_set1_ps, _mm512_setzero_ps, _mm512_slli_epi32, _mm512_srli_epi32, _mm512_storeu_ps,
};

/// Lanes of a vector: half of a register's.
const WIDE: usize = 16;
/// Values of k in a register of A or B, two in each lane of four.
const PAIRS: usize = 4;

/// Where the vectors of a register of A have a pair of values of k, for the lanes of each row.
const OF_A: [[u32; WIDE]; PAIRS] = {
    let mut places = [[0; WIDE]; PAIRS];
    let mut at = 0;
    while at < PAIRS * WIDE {
        let (pair, lane) = (at / WIDE, at % WIDE);
        places[pair][lane] = (lane / 4 * 4 + pair) as u32;
        at += 1;
    }
    places
};

/// Where a register of B has it for the even columns of all lanes, and for the odd ones: four lanes are a
/// column.
const OF_B: [[[u32; WIDE]; 2]; PAIRS] = {
    let mut places = [[[0; WIDE]; 2]; PAIRS];
    let mut at = 0;
    while at < PAIRS * 2 * WIDE {
        let (pair, odd, lane) = (at / (2 * WIDE), at / WIDE % 2, at % WIDE);
        places[pair][odd][lane] = (4 * (lane % 4 * 2 + odd) + pair) as u32;
        at += 1;
    }
    places
};

/// `d = a * b + c` of 16 rows, 8 columns and `K` products of bf16, or of f16: the same operations in the same
/// order as those of [`super::matrix`], bit by bit. No closure has an intrinsic: who calls a closure is
/// compiled without the vectors.
#[target_feature(enable = "avx512f")]
pub fn multiply<const BF16: bool, const K: usize>(
    r: &mut Registers,
    i: &Instruction,
    m: u32,
    lists: &[u32],
) {
    // By register, 2h + e: rows 0 to 7 and 8 to 15, even and odd columns. And half of its lanes.
    let mut sums = [[_mm512_setzero_ps(); 2]; 4];
    for (register, sum) in sums.iter_mut().enumerate() {
        let [first, second] = load(r.row32(lists[i.c as usize + register]));
        *sum = [_mm512_castsi512_ps(first), _mm512_castsi512_ps(second)];
    }
    for block in 0..K / (2 * PAIRS) {
        let upper = load(r.row32(lists[i.a as usize + 2 * block]));
        let lower = load(r.row32(lists[i.a as usize + 2 * block + 1]));
        let [first, second] = load(r.row32(lists[i.b as usize + block]));
        for pair in 0..PAIRS {
            let even = _mm512_permutex2var_epi32(first, vector(&OF_B[pair][0]), second);
            let odd = _mm512_permutex2var_epi32(first, vector(&OF_B[pair][1]), second);
            let of_a = vector(&OF_A[pair]);
            for is_second in [false, true] {
                let columns = [widen::<BF16>(even, is_second), widen::<BF16>(odd, is_second)];
                for (half, rows) in [upper, lower].into_iter().enumerate() {
                    for (part, rows) in rows.into_iter().enumerate() {
                        let values = widen::<BF16>(_mm512_permutexvar_epi32(of_a, rows), is_second);
                        for (column, factors) in columns.into_iter().enumerate() {
                            let sum = &mut sums[2 * half + column][part];
                            *sum = _mm512_fmadd_ps(values, factors, *sum);
                        }
                    }
                }
            }
        }
    }
    for (register, sum) in sums.iter().enumerate() {
        let mut out = Row([0; LANES]);
        for (part, &sum) in sum.iter().enumerate() {
            let lanes = &mut out.0[part * WIDE..][..WIDE];
            // SAFETY: there is room for so many.
            unsafe { _mm512_storeu_ps(lanes.as_mut_ptr().cast(), sum) };
        }
        r.set32(lists[i.d as usize + register], m, &out.0);
    }
}

/// The first of the two numbers in each word, or the second.
#[inline]
#[target_feature(enable = "avx512f")]
fn widen<const BF16: bool>(words: __m512i, second: bool) -> __m512 {
    if BF16 {
        let bits = if second {
            _mm512_and_si512(words, _mm512_set1_epi32(!0xffff))
        } else {
            _mm512_slli_epi32::<16>(words)
        };
        return _mm512_castsi512_ps(bits);
    }
    let bits = if second { _mm512_srli_epi32::<16>(words) } else { words };
    // As `Half::to_f32`.
    let magnitude = _mm512_slli_epi32::<13>(_mm512_and_si512(bits, _mm512_set1_epi32(0x7fff)));
    let moved = _mm512_set1_ps(f32::from_bits(0x7780_0000));
    let scaled = _mm512_castps_si512(_mm512_mul_ps(_mm512_castsi512_ps(magnitude), moved));
    let exponent = _mm512_set1_epi32(0x7c00);
    let is_special = _mm512_cmpeq_epi32_mask(_mm512_and_si512(bits, exponent), exponent);
    let infinity = _mm512_set1_epi32(0x7f80_0000);
    let value = _mm512_mask_or_epi32(scaled, is_special, infinity, magnitude);
    let sign = _mm512_slli_epi32::<16>(_mm512_and_si512(bits, _mm512_set1_epi32(0x8000)));
    _mm512_castsi512_ps(_mm512_or_si512(value, sign))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn vector(words: &[u32; WIDE]) -> __m512i {
    // SAFETY: so many words are there.
    unsafe { _mm512_loadu_si512(words.as_ptr().cast()) }
}

/// Both halves of a register's lanes.
#[inline]
#[target_feature(enable = "avx512f")]
fn load(row: &[u32; LANES]) -> [__m512i; 2] {
    let [first, second] = [&row[..WIDE], &row[WIDE..]];
    // SAFETY: so many words are there.
    unsafe { [_mm512_loadu_si512(first.as_ptr().cast()), _mm512_loadu_si512(second.as_ptr().cast())] }
}

#[cfg(test)]
mod tests {
    use super::super::matrix::multiply16;
    use super::*;
    use crate::exec::values::half::{Bfloat, Format, Half};
    use crate::isa::{MatrixOp, Op};

    /// Registers 0 to 3 have A, 4 and 5 B, 6 to 9 C, and 10 to 13 become D.
    fn compare<T: Format, const BF16: bool, const K: usize>(
        mask: u32,
        mut word: impl FnMut(u32) -> u32,
    ) {
        let lists: Vec<u32> = (0..14).collect();
        let instruction =
            Instruction { b: 4, c: 6, d: 10, ..Instruction::new(Op::Matrix(MatrixOp::M16N8K16F16)) };
        let [mut got, mut expected] = [(); 2].map(|()| Registers::new(14, 0));
        for register in 0..14 {
            let row = [(); LANES].map(|()| word(register));
            *got.row32_mut(register) = row;
            *expected.row32_mut(register) = row;
        }
        multiply16::<T, K>(&mut expected, &instruction, mask, &lists);
        // SAFETY: whoever calls this has asked.
        unsafe { multiply::<BF16, K>(&mut got, &instruction, mask, &lists) };
        for register in 0..14 {
            assert_eq!(got.row32(register), expected.row32(register), "register {register}, K {K}");
        }
    }

    /// On a CPU without these vectors there is nothing to compare.
    #[test]
    fn wide_vectors_give_the_same_bits() {
        if !is_x86_feature_detected!("avx512f") {
            return;
        }
        let mut state = 1u64;
        let mut number = move || {
            state =
                state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 32) as u32
        };
        for round in 0..200 {
            let mask = if round % 4 == 0 { number() } else { !0 };
            // Of all numbers, denormals and infinities among them, but not NaN: which of two comes out is
            // open.
            let mut halves = |exponent: u32| {
                let mut half = || match number() & 0xffff {
                    bits if bits & exponent == exponent => bits & 0x8000 | exponent,
                    bits => bits,
                };
                half() | half() << 16
            };
            let words: Vec<u32> = (0..6 * LANES).map(|_| halves(0x7c00)).collect();
            let wide: Vec<u32> = (0..6 * LANES).map(|_| halves(0x7f80)).collect();
            let sums: Vec<u32> = (0..8 * LANES).map(|_| number() & !0x0080_0000).collect();
            let of = |words: &[u32]| {
                let all: Vec<u32> = words.iter().chain(&sums).copied().collect();
                let mut next = all.into_iter();
                move |_| next.next().unwrap()
            };
            compare::<Half, false, 16>(mask, of(&words));
            compare::<Half, false, 8>(mask, of(&words));
            compare::<Bfloat, true, 16>(mask, of(&wide));
            compare::<Bfloat, true, 8>(mask, of(&wide));
        }
    }
}
