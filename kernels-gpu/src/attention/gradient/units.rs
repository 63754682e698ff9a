//! What products of the backward are in units of, and what ds and p are before they are multiplied: as they
//! are, or in two f16 parts ([`SplitF32`](crate::tile::element::SplitF32)).
//!
//! Parts of q, k, v and dO are in units of their head, powers of two. Scores and dp are brought to natural
//! units behind their product. p and ds are made parts in registers, in units of their largest number: of a
//! key for dv and dk, and for dq, whose sum is over keys, of all pairs of a warp. A sum of products is
//! brought to natural units as it is added ([`SumFactor`]), so that units may differ from step to step, and
//! heads of a group have their own.
//!
//! So a part is off by at most 2^-40 of the largest p, or ds, of the same key in a step; of dq, of the
//! largest ds of the 16 or 32 keys of a warp. Sums below 2^-121 are lost, where f32 ends at 2^-149.

use crate::abi::BackwardPartsParams;
use crate::arch::{global, math, shared, warp};
use crate::tile::element::TensorCoreElement;
use crate::tile::fragment::{Fragment, MmaFragment};
use crate::tile::mma::split::SumFactor;
use crate::tile::mma::{pack_all, store_packed};
use crate::tile::shared_tile::SharedTile;

/// Units of the operands of a backward.
pub trait GradientUnits: Copy {
    /// What those of a step are.
    type Step: Copy;
    /// What brings sums of a lane's two keys of 16 to natural units.
    type Rows: SumFactor + Default;
    /// What brings a sum over 16 keys to natural units.
    type Keys: SumFactor;

    /// Those of a step, of a batch and query head that `place` says; `is_key_warp`: of dp and q, else of
    /// scores and dO.
    ///
    /// # Safety
    /// They are some of the problem.
    unsafe fn of_step(self, place: impl FnOnce() -> (u32, u32), is_key_warp: bool) -> Self::Step;

    /// Brings scores, or dp, to natural units.
    fn apply<const N: usize>(step: Self::Step, products: &mut [f32; N]);

    /// Packs 16 rows of p, and says what sums of their products with dO are to be multiplied by.
    ///
    /// # Safety
    /// All 32 lanes call it together.
    unsafe fn pack<E: TensorCoreElement, const S: usize, const P: usize>(
        step: Self::Step,
        p: &[f32; S],
    ) -> ([u32; P], Self::Rows);

    /// Packs ds of a warp, and writes it to its rows of a tile, from `first_row` on, with what sums over
    /// these rows are to be multiplied by at shared address `factor`. What is returned is for products with
    /// q, and what sums of these are to be multiplied by.
    ///
    /// # Safety
    /// All 32 lanes call it together; rows and factor are this warp's, when it has met itself.
    unsafe fn give_ds<
        E: TensorCoreElement,
        const KEYS: u32,
        const QUERY_BYTES: u32,
        const M: usize,
        const S: usize,
        const P: usize,
    >(
        step: Self::Step,
        lane: u32,
        ds: &[[f32; S]; M],
        tile: (SharedTile<KEYS, QUERY_BYTES>, u32),
        factor: u32,
    ) -> ([[u32; P]; M], [Self::Rows; M]);

    /// What a warp has written at shared address `factor`.
    ///
    /// # Safety
    /// It is visible.
    unsafe fn of_keys(factor: u32) -> Self::Keys;
}

/// Operands as they are in memory.
impl GradientUnits for () {
    type Step = ();
    type Rows = ();
    type Keys = ();

    #[inline(always)]
    unsafe fn of_step(self, _: impl FnOnce() -> (u32, u32), _: bool) {}

    #[inline(always)]
    fn apply<const N: usize>(_: (), _: &mut [f32; N]) {}

    #[inline(always)]
    unsafe fn pack<E: TensorCoreElement, const S: usize, const P: usize>(
        _: (),
        p: &[f32; S],
    ) -> ([u32; P], ()) {
        (E::pack_all(p), ())
    }

    #[inline(always)]
    unsafe fn give_ds<
        E: TensorCoreElement,
        const KEYS: u32,
        const QUERY_BYTES: u32,
        const M: usize,
        const S: usize,
        const P: usize,
    >(
        _: (),
        lane: u32,
        ds: &[[f32; S]; M],
        (tile, first_row): (SharedTile<KEYS, QUERY_BYTES>, u32),
        _: u32,
    ) -> ([[u32; P]; M], [(); M]) {
        let packed = pack_all::<E, M, S, P>(ds);
        warp::warp_sync();
        let mut m = 0;
        while m < M {
            store_packed(lane, |i| packed[m][i], tile, first_row + 16 * m as u32);
            m += 1;
        }
        (packed, [(); M])
    }

    #[inline(always)]
    unsafe fn of_keys(_: u32) {}
}

/// Units of heads in global memory.
#[derive(Clone, Copy)]
pub struct SplitGradientUnits {
    /// [`BackwardPartsParams::units`].
    units: u64,
    /// Hq.
    query_heads: u32,
    /// [`BackwardParams::ds_scale`](crate::abi::BackwardParams::ds_scale), which is multiplied into sums.
    ds_scale: f32,
}

impl SplitGradientUnits {
    /// Those of a launch.
    #[inline(always)]
    pub fn new(p: &BackwardPartsParams) -> Self {
        let backward = &p.backward;
        SplitGradientUnits {
            units: p.units,
            query_heads: backward.query_heads,
            ds_scale: backward.ds_scale,
        }
    }
}

/// Units of a step of a warp.
#[derive(Clone, Copy)]
pub struct StepUnits {
    /// What makes scores, or dp, of products.
    products: f32,
    /// What a number of dO, or of q, is in units of.
    rows: f32,
    /// The same of k.
    keys: f32,
}

impl GradientUnits for SplitGradientUnits {
    type Step = StepUnits;
    type Rows = [f32; 2];
    type Keys = f32;

    #[inline(always)]
    unsafe fn of_step(self, place: impl FnOnce() -> (u32, u32), is_key_warp: bool) -> StepUnits {
        let (batch, head) = place();
        let pair = batch as u64 * self.query_heads as u64 + head as u64;
        let address = self.units.wrapping_add(32 * pair + if is_key_warp { 16 } else { 0 });
        let [products, rows, keys, _] = global::load_u32x4(address).map(f32::from_bits);
        let ds_scale = if is_key_warp { self.ds_scale } else { 1.0 };
        StepUnits { products, rows: rows * ds_scale, keys: keys * ds_scale }
    }

    #[inline(always)]
    fn apply<const N: usize>(step: StepUnits, products: &mut [f32; N]) {
        let mut i = 0;
        while i < N {
            products[i] *= step.products;
            i += 1;
        }
    }

    #[inline(always)]
    unsafe fn pack<E: TensorCoreElement, const S: usize, const P: usize>(
        step: StepUnits,
        p: &[f32; S],
    ) -> ([u32; P], [f32; 2]) {
        pack_rows::<E, S, P>(p, largest_of_rows(p), step.rows)
    }

    #[inline(always)]
    unsafe fn give_ds<
        E: TensorCoreElement,
        const KEYS: u32,
        const QUERY_BYTES: u32,
        const M: usize,
        const S: usize,
        const P: usize,
    >(
        step: StepUnits,
        lane: u32,
        ds: &[[f32; S]; M],
        (tile, first_row): (SharedTile<KEYS, QUERY_BYTES>, u32),
        factor: u32,
    ) -> ([[u32; P]; M], [[f32; 2]; M]) {
        let mut of_rows = [[0.0; 2]; M];
        let mut largest = 0.0;
        let mut m = 0;
        while m < M {
            of_rows[m] = largest_of_rows(&ds[m]);
            largest = math::max(largest, math::max(of_rows[m][0], of_rows[m][1]));
            m += 1;
        }
        // Lanes that share rows have the same already.
        let mut mask = <MmaFragment as Fragment<2, S>>::LANES_PER_ROW;
        while mask < 32 {
            largest = math::max(largest, warp::shuffle_xor(largest, mask));
            mask *= 2;
        }
        let unit = Unit::of(largest);
        warp::warp_sync();
        if lane == 0 {
            shared::store_u32(factor, (unit.inverse * step.keys).to_bits());
        }
        let mut m = 0;
        while m < M {
            let packed: [u32; P] = scaled::<E, S, P>(&ds[m], [unit.factor; 2]);
            store_packed(lane, |i| packed[i], tile, first_row + 16 * m as u32);
            m += 1;
        }
        let (mut packed, mut factors) = ([[0; P]; M], [[0.0; 2]; M]);
        let mut m = 0;
        while m < M {
            (packed[m], factors[m]) = pack_rows::<E, S, P>(&ds[m], of_rows[m], step.rows);
            m += 1;
        }
        (packed, factors)
    }

    #[inline(always)]
    unsafe fn of_keys(factor: u32) -> f32 {
        f32::from_bits(shared::load_u32(factor))
    }
}

/// A power of two, and what undoes it.
struct Unit {
    factor: f32,
    inverse: f32,
}

/// The exponent field that the largest number is brought to: 2^14.
const LARGEST_FIELD: u32 = 127 + 14;
/// The least exponent field of a largest number, so that both powers of two are normal: where it is less, it
/// is brought to less than 2^14, which still is 2^14 above where parts of it end.
const LEAST_FIELD: u32 = 15;

impl Unit {
    /// What brings a number to between 2^14 and 2^15.
    #[inline(always)]
    fn of(largest: f32) -> Self {
        let field = (largest.to_bits() >> 23).max(LEAST_FIELD);
        Unit {
            factor: f32::from_bits((LARGEST_FIELD + 127 - field) << 23),
            inverse: f32::from_bits((field + 127 - LARGEST_FIELD) << 23),
        }
    }
}

/// The largest sizes in the two rows of a lane, of those that are finite.
///
/// # Safety
/// All 32 lanes call it together.
#[inline(always)]
unsafe fn largest_of_rows<const S: usize>(values: &[f32; S]) -> [f32; 2] {
    let mut all = [0.0; 2];
    let mut row = 0;
    while row < 2 {
        let mut largest = 0.0;
        let mut i = 0;
        while i < S / 2 {
            let value = values[<MmaFragment as Fragment<2, S>>::register(row, i)];
            largest = math::max(largest, value.abs());
            i += 1;
        }
        if largest == f32::INFINITY {
            largest = largest_finite(values, row);
        }
        all[row] = <MmaFragment as Fragment<2, S>>::row_max(largest);
        row += 1;
    }
    all
}

/// The largest size in a row of a lane, of those that are finite: what is not shall not cost others theirs.
#[inline(always)]
fn largest_finite<const S: usize>(values: &[f32; S], row: usize) -> f32 {
    let mut largest = 0.0;
    let mut i = 0;
    while i < S / 2 {
        let size = values[<MmaFragment as Fragment<2, S>>::register(row, i)].abs();
        largest = math::max(largest, if size < f32::INFINITY { size } else { 0.0 });
        i += 1;
    }
    largest
}

/// Rows in units of their largest numbers, packed, and what sums of products with numbers in units of `unit`
/// are to be multiplied by.
#[inline(always)]
fn pack_rows<E: TensorCoreElement, const S: usize, const P: usize>(
    values: &[f32; S],
    largest: [f32; 2],
    unit: f32,
) -> ([u32; P], [f32; 2]) {
    let [first, second] = largest.map(Unit::of);
    let packed = scaled::<E, S, P>(values, [first.factor, second.factor]);
    (packed, [first.inverse * unit, second.inverse * unit])
}

/// Rows times factors, packed.
#[inline(always)]
fn scaled<E: TensorCoreElement, const S: usize, const P: usize>(
    values: &[f32; S],
    factors: [f32; 2],
) -> [u32; P] {
    let mut scaled = [0.0; S];
    let mut i = 0;
    while i < S {
        scaled[i] = values[i] * factors[i / 2 % 2];
        i += 1;
    }
    E::pack_all(&scaled)
}
