//! Products of f32 as two f16 parts ([`SplitF32`](crate::tile::element::SplitF32)): three for one, and sums
//! in registers. A row of a tile is its high parts, then its low ones.
//!
//! Tensor cores cut off what a sum has beyond its last bit instead of rounding it. That adds up, always
//! towards zero: each 32 columns of queries and keys, and each 32 keys of probabilities and values, begin a
//! sum of their own, small products first, which is added to the others as f32 is.

use super::LaneAddress;
use crate::arch::matrix;
use crate::tile::element::TensorCoreElement;
use crate::tile::shared_tile::SharedTile;

/// Steps of a sum, 16 deep each.
const STEPS: u32 = 2;
/// Which part is which.
const HIGH: usize = 0;
const LOW: usize = 1;

/// Fragments of all steps of a sum, of both parts.
type Fragments = [[[u32; 4]; STEPS as usize]; 2];

const NONE: Fragments = [[[0; 4]; STEPS as usize]; 2];

/// As [`super::multiply_transposed`], of parts: `ROW_BYTES / 4` columns.
///
/// # Safety
/// As there.
#[inline(always)]
pub unsafe fn multiply_transposed<
    E: TensorCoreElement,
    const QUERIES: u32,
    const KEYS: u32,
    const ROW_BYTES: u32,
    const M: usize,
    const S: usize,
>(
    lane: u32,
    q: SharedTile<QUERIES, ROW_BYTES>,
    first_row: u32,
    k: SharedTile<KEYS, ROW_BYTES>,
) -> [[f32; S]; M] {
    const { assert!(E::WORDS_OF_PAIR == 1 || (ROW_BYTES / 64).is_multiple_of(STEPS)) };
    let q_lane = LaneAddress::<ROW_BYTES>::rows_first(lane);
    let k_lane = LaneAddress::<ROW_BYTES>::chunks_first(lane);
    let mut scores = [[0.0; S]; M];
    let mut block = 0;
    while block < ROW_BYTES / 64 {
        let mut a = [NONE; M];
        let mut m = 0;
        while m < M {
            let mut i = 0;
            while i < 2 * STEPS {
                let (part, step) = (i / STEPS, i % STEPS);
                let column = part * (ROW_BYTES / 64) + block + step;
                a[m][part as usize][step as usize] =
                    matrix::load_matrix_x4(q_lane.of(q, first_row + 16 * m as u32, column));
                i += 1;
            }
            m += 1;
        }
        let mut pair = 0;
        while pair < KEYS / 16 {
            let mut b = NONE;
            let mut i = 0;
            while i < 2 * STEPS {
                let (part, step) = (i / STEPS, i % STEPS);
                let column = part * (ROW_BYTES / 64) + block + step;
                b[part as usize][step as usize] =
                    matrix::load_matrix_x4(k_lane.of(k, 16 * pair, column));
                i += 1;
            }
            let mut m = 0;
            while m < M {
                add_sums::<E, S>(&mut scores[m], 2 * pair as usize, &a[m], &b);
                m += 1;
            }
            pair += 1;
        }
        block += STEPS;
    }
    scores
}

/// As [`super::multiply_accumulate`], of parts: of p the high ones of all pairs, then the low ones.
///
/// # Safety
/// As there.
#[inline(always)]
pub unsafe fn multiply_accumulate<
    E: TensorCoreElement,
    const DEPTH: u32,
    const ROW_BYTES: u32,
    const M: usize,
    const H: usize,
    const O: usize,
>(
    lane: u32,
    output: &mut [[f32; O]; M],
    p: &[[u32; H]; M],
    b: SharedTile<DEPTH, ROW_BYTES>,
) {
    const {
        let fits = (DEPTH / 16).is_multiple_of(STEPS) && 2 * H == DEPTH as usize;
        assert!(E::WORDS_OF_PAIR == 1 || fits);
    }
    let b_lane = LaneAddress::<ROW_BYTES>::rows_first(lane);
    let mut first = 0;
    while first < DEPTH / 16 {
        let mut block = 0;
        while block < ROW_BYTES / 64 {
            let mut fragments = NONE;
            let mut i = 0;
            while i < 2 * STEPS {
                let (part, step) = (i / STEPS, i % STEPS);
                let address = b_lane.of(b, 16 * (first + step), part * (ROW_BYTES / 64) + block);
                fragments[part as usize][step as usize] = matrix::load_matrix_x4_transposed(address);
                i += 1;
            }
            let mut m = 0;
            while m < M {
                let a = probabilities(&p[m], first as usize);
                add_sums::<E, O>(&mut output[m], 2 * block as usize, &a, &fragments);
                m += 1;
            }
            block += 1;
        }
        first += STEPS;
    }
}

/// Fragments of packed probabilities, from step `first` on.
#[inline(always)]
fn probabilities<const H: usize>(p: &[u32; H], first: usize) -> Fragments {
    let mut fragments = NONE;
    let mut i = 0;
    while i < 8 * STEPS as usize {
        let (part, step, word) = (i / (4 * STEPS as usize), i / 4 % STEPS as usize, i % 4);
        fragments[part][step][word] = p[part * (H / 2) + 4 * (first + step) + word];
        i += 1;
    }
    fragments
}

/// Adds the sum of all steps to 16 columns of an accumulator, from the `tile`-th 8 on.
#[inline(always)]
unsafe fn add_sums<E: TensorCoreElement, const N: usize>(
    accumulator: &mut [f32; N],
    tile: usize,
    a: &Fragments,
    b: &Fragments,
) {
    let mut sums = [[0.0; 4]; 2];
    let factors = [(LOW, HIGH), (HIGH, LOW)];
    let mut i = 0;
    while i < 3 * STEPS as usize {
        // Of each step the two small products, then of each the large one.
        let small = i < 2 * STEPS as usize;
        let (of_a, of_b) = if small { factors[i % 2] } else { (HIGH, HIGH) };
        let step = if small { i / 2 } else { i - 2 * STEPS as usize };
        let words = b[of_b][step];
        E::mma(&mut sums[0], a[of_a][step], [words[0], words[1]]);
        E::mma(&mut sums[1], a[of_a][step], [words[2], words[3]]);
        i += 1;
    }
    let mut i = 0;
    while i < 8 {
        accumulator[4 * tile + i] += sums[i / 4][i % 4];
        i += 1;
    }
}
