//! Products of elements as they are, and of f32 as two f16 parts
//! ([`SplitF32`](crate::tile::element::SplitF32)): three for one, and sums in registers. A row of a tile is
//! its high parts, then its low ones.
//!
//! Tensor cores cut off what a sum has beyond its last bit instead of rounding it. That adds up, always
//! towards zero: each 32 columns of queries and keys, and each 32 keys of probabilities and values, begin a
//! sum of their own, small products first, which is added to the others as f32 is. In the backward so do
//! each 32 queries of dK and dV, and each 16 keys of dQ; there a power of two brings a sum to natural units
//! as it is added, with no rounding more. What is cut off of scores, of which lse is made, is
//! [made up for](factor_of_columns).

use crate::arch::math;
use crate::tile::element::TensorCoreElement;

/// Most parts, and most steps of a sum.
const MOST: usize = 2;
/// Which part is which.
const HIGH: usize = 0;
const LOW: usize = 1;

/// Fragments of an operand that are multiplied at once: of each part, those of the steps of a sum. Where
/// elements have no parts, the first alone.
pub type Fragments = FragmentsOf<MOST>;

/// The same of one step.
pub type StepFragments = FragmentsOf<1>;

/// Of each part, fragments of `STEPS` steps.
type FragmentsOf<const STEPS: usize> = [[[u32; 4]; STEPS]; MOST];

/// Fragments before they are loaded.
pub const NONE: Fragments = [[[0; 4]; MOST]; MOST];
/// The same of one step.
pub const NONE_OF_STEP: StepFragments = [[[0; 4]; 1]; MOST];

/// What a sum of products of parts is multiplied by as it is added.
pub trait SumFactor: Copy {
    /// Adds `sum` times the factor of the `row`-th of a lane's two rows to an accumulator.
    fn add(self, accumulator: &mut f32, sum: f32, row: usize);
}

/// Nothing.
impl SumFactor for () {
    #[inline(always)]
    fn add(self, accumulator: &mut f32, sum: f32, _: usize) {
        *accumulator += sum;
    }
}

/// One for all rows.
impl SumFactor for f32 {
    #[inline(always)]
    fn add(self, accumulator: &mut f32, sum: f32, _: usize) {
        *accumulator = math::fma(sum, self, *accumulator);
    }
}

/// One for each row.
impl SumFactor for [f32; 2] {
    #[inline(always)]
    fn add(self, accumulator: &mut f32, sum: f32, row: usize) {
        *accumulator = math::fma(sum, self[row], *accumulator);
    }
}

/// What the `sum`-th sum of 32 columns is multiplied by as it is added. Tensor cores cut off a little more
/// than half a unit in the last place of a sum on average, always towards zero; every second one is made
/// larger by `2^-23`, a unit of it or two. Nothing smaller can be told from 1.
#[inline(always)]
pub const fn factor_of_columns(sum: u32) -> f32 {
    if sum.is_multiple_of(2) { 1.0 } else { 1.0 + f32::EPSILON }
}

/// Steps of a sum, 16 deep each: of elements without parts each product is added to what is there.
pub const fn steps<E: TensorCoreElement>() -> u32 {
    if E::WORDS_OF_PAIR > 1 { MOST as u32 } else { 1 }
}

/// Those that `load` gives for a part and a step.
#[inline(always)]
pub fn fragments<E: TensorCoreElement>(load: impl Fn(u32, u32) -> [u32; 4]) -> Fragments {
    let mut all = NONE;
    let mut part = 0;
    while part < E::WORDS_OF_PAIR {
        let mut step = 0;
        while step < steps::<E>() {
            all[part][step as usize] = load(part as u32, step);
            step += 1;
        }
        part += 1;
    }
    all
}

/// Adds products to 16 columns of an accumulator, from the `tile`-th 8 on; those of parts times `factor`.
/// `SWAPPED`: as if a were b and b were a, bit by bit.
///
/// # Safety
/// All 32 lanes call it together.
#[inline(always)]
pub unsafe fn accumulate<E: TensorCoreElement, R: SumFactor, const SWAPPED: bool, const N: usize>(
    accumulator: &mut [f32; N],
    tile: usize,
    a: &Fragments,
    b: &Fragments,
    factor: R,
) {
    if E::WORDS_OF_PAIR == 1 {
        super::accumulate::<E, N>(accumulator, tile, a[0][0], &b[0][0]);
    } else {
        add_sums::<E, R, SWAPPED, MOST, N>(accumulator, tile, a, b, factor);
    }
}

/// [`accumulate`] of one step.
///
/// # Safety
/// As there.
#[inline(always)]
pub unsafe fn accumulate_step<E: TensorCoreElement, R: SumFactor, const N: usize>(
    accumulator: &mut [f32; N],
    tile: usize,
    a: &StepFragments,
    b: &StepFragments,
    factor: R,
) {
    if E::WORDS_OF_PAIR == 1 {
        super::accumulate::<E, N>(accumulator, tile, a[0][0], &b[0][0]);
    } else {
        add_sums::<E, R, false, 1, N>(accumulator, tile, a, b, factor);
    }
}

/// Adds the sum of the three largest products of parts, of all steps.
#[inline(always)]
unsafe fn add_sums<
    E: TensorCoreElement,
    R: SumFactor,
    const SWAPPED: bool,
    const STEPS: usize,
    const N: usize,
>(
    accumulator: &mut [f32; N],
    tile: usize,
    a: &FragmentsOf<STEPS>,
    b: &FragmentsOf<STEPS>,
    factor: R,
) {
    let mut sums = [0.0; 8];
    let factors = [(LOW, HIGH), (HIGH, LOW)];
    let mut i = 0;
    while i < 3 * STEPS {
        // Of each step the two small products, then of each the large one.
        let small = i < 2 * STEPS;
        let (of_a, of_b) = if small { factors[(i + SWAPPED as usize) % 2] } else { (HIGH, HIGH) };
        let step = if small { i / 2 } else { i - 2 * STEPS };
        super::accumulate::<E, 8>(&mut sums, 0, a[of_a][step], &b[of_b][step]);
        i += 1;
    }
    let mut i = 0;
    while i < 8 {
        factor.add(&mut accumulator[4 * tile + i], sums[i], i / 2 % 2);
        i += 1;
    }
}
