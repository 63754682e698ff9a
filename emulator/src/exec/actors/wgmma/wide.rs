//! The arithmetic of [`super::multiply`] with vectors of 512 bits, by intrinsics: the compiler makes none of
//! plain loops.

use super::multiply::{Left, VECTOR};
use crate::exec::values::registers::Registers;
use crate::isa::WGMMA_K;
use std::arch::x86_64::{
    __m512, _mm256_loadu_ps, _mm512_broadcast_f32x8, _mm512_fmadd_ps, _mm512_loadu_ps,
    _mm512_setzero_ps, _mm512_storeu_ps,
};

/// Lanes of a vector.
const WIDE: usize = 2 * VECTOR;

/// [`super::multiply::accumulate`]: the same operations in the same order.
#[target_feature(enable = "avx512f,avx512dq")]
pub fn accumulate(r: &mut Registers, rows: &[u32], left: &Left, right: &[f32], accumulates: bool) {
    for (rows, right) in rows.chunks_exact(4).zip(right.chunks_exact(2 * WGMMA_K * VECTOR)) {
        // By register, 2h + e, and half of its lanes.
        let mut sums = [[_mm512_setzero_ps(); 2]; 4];
        if accumulates {
            for (sum, &row) in sums.iter_mut().zip(rows) {
                *sum = load(&r.row32(row).map(f32::from_bits));
            }
        }
        for k in 0..WGMMA_K {
            let columns = [0, 1].map(|e| {
                let four_twice = &right[(e * WGMMA_K + k) * VECTOR..][..VECTOR];
                // SAFETY: so many values are there.
                _mm512_broadcast_f32x8(unsafe { _mm256_loadu_ps(four_twice.as_ptr()) })
            });
            let values = [load(&left[0][k]), load(&left[1][k])];
            for (register, sum) in sums.iter_mut().enumerate() {
                for (part, sum) in sum.iter_mut().enumerate() {
                    *sum = _mm512_fmadd_ps(values[register / 2][part], columns[register % 2], *sum);
                }
            }
        }
        for (sum, &row) in sums.iter().zip(rows) {
            let row = r.row32_mut(row);
            for (part, &sum) in sum.iter().enumerate() {
                let lanes = &mut row[part * WIDE..][..WIDE];
                // SAFETY: there is room for so many.
                unsafe { _mm512_storeu_ps(lanes.as_mut_ptr().cast(), sum) };
            }
        }
    }
}

#[target_feature(enable = "avx512f")]
fn load(lanes: &[f32; 2 * WIDE]) -> [__m512; 2] {
    // SAFETY: so many values are there.
    [0, WIDE].map(|first| unsafe { _mm512_loadu_ps(lanes[first..first + WIDE].as_ptr()) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::actors::wgmma::multiply;
    use crate::exec::values::registers::LANES;

    /// On a CPU without these vectors there is nothing to compare.
    #[test]
    fn wide_vectors_give_the_same_bits() {
        if !is_x86_feature_detected!("avx512f") || !is_x86_feature_detected!("avx512dq") {
            return;
        }
        let mut state = 1u32;
        let mut number = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            f32::from_bits(state >> 9 | 0x3f80_0000) - 1.4
        };
        let mut left: Left = [[[0.0; LANES]; WGMMA_K]; 2];
        left.iter_mut().flatten().flatten().for_each(|value| *value = number());
        let values: Vec<f32> = (0..24 * WGMMA_K).map(|_| number()).collect();
        let mut right = Vec::new();
        multiply::pack_right(&values, &mut right);
        let rows: Vec<u32> = (0..12).collect();
        let mut registers = Registers::new(12, 0);
        rows.iter()
            .for_each(|&row| *registers.row32_mut(row) = [(); LANES].map(|()| number().to_bits()));
        for accumulates in [true, false] {
            let mut expected = Registers::new(12, 0);
            rows.iter().for_each(|&row| *expected.row32_mut(row) = *registers.row32(row));
            multiply::accumulate(&mut expected, &rows, &left, &right, accumulates);
            // SAFETY: the CPU has these features, as was asked above.
            unsafe { accumulate(&mut registers, &rows, &left, &right, accumulates) };
            for &row in &rows {
                assert_eq!(registers.row32(row), expected.row32(row), "register {row}");
            }
        }
    }
}
