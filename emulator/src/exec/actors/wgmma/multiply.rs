//! The arithmetic of a warp's share of a multiplication: 16 rows of A, all columns of B.
//!
//! Accumulator register `4j + 2h + e` of lane `4r + q` holds row `8h + r`, column `8j + 2q + e`. So 32
//! lanes of a register are 8 rows times 4 columns, and both operands are laid out for that: A with each
//! value four times, B with each four columns twice, for vectors of eight. Products are added in the
//! order of k, each with one fused f32 operation.

use crate::exec::values::half::Format;
use crate::exec::values::registers::{LANES, Registers};
use crate::isa::WGMMA_K;

/// Values of A: by half, by k, by lane.
pub type Left = [[[f32; LANES]; WGMMA_K]; 2];

/// Rows of A that a warp multiplies.
pub const WARP_ROWS: usize = 16;
/// Lanes of a vector.
pub const VECTOR: usize = 8;
/// Vectors of a register.
const VECTORS: usize = LANES / VECTOR;

/// A from registers: register 0 holds rows 0 to 7 and k 0 to 7, register 1 rows 8 to 15, registers 2
/// and 3 the same rows and k 8 to 15; four lanes a row, two values a lane.
#[inline(always)]
pub fn left_from_registers<T: Format>(r: &Registers, rows: &[u32], sign: f32, left: &mut Left) {
    for (register, &row) in rows.iter().enumerate() {
        let words = r.row32(row);
        let (half, first) = (register % 2, register / 2 * 8);
        for k in 0..8 {
            let out = &mut left[half][first + k];
            for row in 0..8 {
                let word = words[row * 4 + k / 2];
                let value = T::from_bits((word >> (k % 2 * 16)) as u16).to_f32() * sign;
                out[row * 4..row * 4 + 4].fill(value);
            }
        }
    }
}

/// A from values `row * 16 + k`, of which the warp takes 16 rows.
#[inline(always)]
pub fn left_from_values(values: &[f32], sign: f32, left: &mut Left) {
    for half in 0..2 {
        for row in 0..8 {
            let from = &values[(half * 8 + row) * WGMMA_K..][..WGMMA_K];
            for k in 0..WGMMA_K {
                left[half][k][row * 4..row * 4 + 4].fill(from[k] * sign);
            }
        }
    }
}

/// B from values `column * 16 + k`: for each pair (j, e) and each k, the four columns, twice.
#[inline(always)]
pub fn pack_right(values: &[f32], packed: &mut Vec<f32>) {
    packed.resize(values.len() * 2, 0.0);
    for (group, out) in packed.chunks_exact_mut(WGMMA_K * VECTOR).enumerate() {
        let (j, e) = (group / 2, group % 2);
        for k in 0..WGMMA_K {
            for quad in 0..4 {
                let value = values[(j * 8 + quad * 2 + e) * WGMMA_K + k];
                out[k * VECTOR + quad] = value;
                out[k * VECTOR + quad + 4] = value;
            }
        }
    }
}

/// `d = a * b + d`, or `a * b`.
#[inline(always)]
pub fn accumulate(r: &mut Registers, rows: &[u32], left: &Left, right: &[f32], accumulates: bool) {
    for (j, rows) in rows.chunks_exact(4).enumerate() {
        let right = &right[j * 2 * WGMMA_K * VECTOR..][..2 * WGMMA_K * VECTOR];
        for half in 0..2 {
            let rows = [rows[2 * half], rows[2 * half + 1]];
            let mut sums = [[0f32; VECTOR]; 2 * VECTORS];
            if accumulates {
                for (index, sum) in sums.iter_mut().enumerate() {
                    let row = r.row32(rows[index / VECTORS]);
                    for lane in 0..VECTOR {
                        sum[lane] = f32::from_bits(row[index % VECTORS * VECTOR + lane]);
                    }
                }
            }
            products(&mut sums, &left[half], right);
            for (index, sum) in sums.iter().enumerate() {
                let row = r.row32_mut(rows[index / VECTORS]);
                for lane in 0..VECTOR {
                    row[index % VECTORS * VECTOR + lane] = sum[lane].to_bits();
                }
            }
        }
    }
}

/// Adds 16 products to each of the sums: eight independent chains, which is what keeps a CPU busy.
#[inline(always)]
fn products(sums: &mut [[f32; VECTOR]; 2 * VECTORS], left: &[[f32; LANES]; WGMMA_K], right: &[f32]) {
    let (even, odd) = right.split_at(WGMMA_K * VECTOR);
    let mut local = *sums;
    for k in 0..WGMMA_K {
        let columns = [vector(even, k * VECTOR), vector(odd, k * VECTOR)];
        for part in 0..VECTORS {
            let values = vector(&left[k], part * VECTOR);
            for (e, column) in columns.iter().enumerate() {
                for lane in 0..VECTOR {
                    let sum = &mut local[e * VECTORS + part][lane];
                    *sum = values[lane].mul_add(column[lane], *sum);
                }
            }
        }
    }
    *sums = local;
}

#[inline(always)]
fn vector(values: &[f32], at: usize) -> &[f32; VECTOR] {
    values[at..at + VECTOR].try_into().expect("a whole vector")
}
