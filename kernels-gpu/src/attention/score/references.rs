//! Steep rows: those whose lse is so large that its rounding, and that of the scale in powers of two, are no
//! longer small next to 1. What their scores are relative to stands in global memory
//! ([`RowStatistic::Reference`](crate::abi::RowStatistic::Reference)).

use super::backward::{BackwardScale, in_unit};
use super::features;
use crate::abi::{BackwardParams, STEEP_CAP};
use crate::arch::{global, math, shared, specialize, thread, warp};
use crate::tile::element::Element;
use crate::tile::fragment::Fragment;

/// The statistic of a steep row, in place of -lse: nothing next to any score. Such a row's products are made
/// relative to its [reference](References) first.
pub const STEEP: f32 = f32::MIN_POSITIVE;

/// From which size of lse on rows are steep. Below, its rounding and that of the scale in powers of two cost
/// p less than 2^-14, a fraction of what its rounding to 16 bits does.
pub(super) const STEEP_LSE: f32 = 256.0;

const _: () = assert!(STEEP_CAP + 64.0 * core::f32::consts::LN_2 < STEEP_LSE);

/// Up to which scale or cap rows can be steep: products relative to their reference are normal numbers.
pub(super) const LARGEST_FACTOR: f32 = (1u128 << 112) as f32;

/// What exponents of rows are in units of, for kernels without switches: the scale, or the cap of capped
/// scores.
#[inline(always)]
pub fn factor(p: &BackwardParams) -> f32 {
    if p.lse_is_natural != 0 {
        1.0
    } else if is_capped(p) {
        p.softcap
    } else {
        p.scale
    }
}

/// Whether scores are capped, for kernels without switches.
#[inline(always)]
pub fn is_capped(p: &BackwardParams) -> bool {
    p.softcap != 0.0
}

/// Whether all rows have a reference, be they steep or not, for kernels without switches.
#[inline(always)]
pub fn all_rows_have_one(p: &BackwardParams) -> bool {
    is_capped(p) && p.lse_is_natural == 0
}

/// Whether this is the statistic of a steep row; capped, of one that may be: all rows have references then.
#[inline(always)]
fn is_steep_statistic<E: Element>(statistic: f32) -> bool {
    if specialize::softcap() && !features::are_natural::<E>() {
        statistic.abs() >= in_unit::<E>(STEEP_LSE) && statistic.abs() < f32::INFINITY
    } else {
        statistic == STEEP
    }
}

/// The references of a step's rows, if it has a steep one.
pub struct References<A: Fn() -> u64> {
    /// Whether some row is steep; the same for all lanes of a warp.
    pub(super) are_needed: bool,
    /// The scale, or the cap of capped scores.
    factor: f32,
    /// Their device address.
    address: A,
}

impl<A: Fn() -> u64> References<A> {
    /// Of the `queries` rows whose statistics stand at shared address `lse`, and whose references are at
    /// device address `address()`, which only steps with a steep row ask for.
    ///
    /// # Safety
    /// The statistics are written and visible; all 32 lanes call it together.
    #[inline(always)]
    pub unsafe fn find<E: Element>(p: &BackwardParams, queries: u32, lse: u32, address: A) -> Self {
        let factor = BackwardScale::natural(p);
        if specialize::softcap() && !specialize::steep_cap() && !features::are_natural::<E>() {
            return References { are_needed: false, factor, address };
        }
        // Worked out anew: registers are for what every step needs.
        let lane = thread::thread_idx_x_here() % 32;
        let mut is_steep = false;
        let mut first = 0;
        while first < queries {
            // The last 32 may be some of those before.
            let last = queries - 32;
            let column = lane + if first < last { first } else { last };
            is_steep |= is_steep_statistic::<E>(f32::from_bits(shared::load_u32(lse + 4 * column)));
            first += 32;
        }
        let can_be = !specialize::softcap()
            || features::are_natural::<E>()
            || (factor >= f32::MIN_POSITIVE && factor <= LARGEST_FACTOR);
        References { are_needed: warp::any(is_steep & can_be), factor, address }
    }

    /// Whether some row is steep, so that products change.
    #[inline(always)]
    pub fn are_needed<E: Element>(&self) -> bool {
        self.are_needed && !specialize::softcap() && !features::are_natural::<E>()
    }

    /// Makes products of steep rows relative to their references, if they are: before they are exponents.
    ///
    /// # Safety
    /// The references of steps with a steep row are written and visible; all 32 lanes call it together.
    #[inline(always)]
    pub unsafe fn subtract_if_needed<
        E: Element,
        F: Fragment<ROWS, N>,
        const ROWS: usize,
        const N: usize,
    >(
        &self,
        products: &mut [f32; N],
    ) {
        if self.are_needed::<E>() {
            self.subtract_from::<E, F, ROWS, N>(products);
        }
    }

    /// Makes natural exponents of rows that are steep relative to their references: of other rows these are
    /// 0.
    ///
    /// # Safety
    /// As [`References::subtract_from`].
    #[inline(always)]
    pub(super) unsafe fn subtract_natural<F: Fragment<ROWS, N>, const ROWS: usize, const N: usize>(
        &self,
        exponents: &mut [f32; N],
    ) {
        self.each::<F, ROWS, N>(|register, reference, rest| {
            exponents[register] = exponents[register] - reference + rest;
        });
    }

    /// Makes products q . k (capped: scores in units of the cap) relative to their references: times the
    /// factor, minus reference, in two roundings, and without the factor again. Where a score is its row's
    /// reference, nothing is left, however large they are. Products of rows without one stay the same, but
    /// for a rounding.
    ///
    /// # Safety
    /// They are needed, written and visible.
    #[inline(always)]
    pub(super) unsafe fn subtract_from<
        E: Element,
        F: Fragment<ROWS, N>,
        const ROWS: usize,
        const N: usize,
    >(
        &self,
        products: &mut [f32; N],
    ) {
        let without_factor = math::reciprocal(self.factor);
        self.each::<F, ROWS, N>(|register, reference, rest| {
            let product = products[register];
            let relative = math::fma(product * self.factor - reference, without_factor, rest);
            let is_same = E::NATURAL_EXPONENTS && reference == 0.0;
            products[register] = if is_same { product } else { relative };
        });
    }

    /// Calls `apply(register, reference, rest)` for all registers.
    ///
    /// Registers are for what every step needs: the lane is worked out anew, and loads of more than 4 bytes,
    /// whose registers must stand side by side, make the assembler spill.
    ///
    /// # Safety
    /// As [`References::subtract_from`].
    #[inline(always)]
    unsafe fn each<F: Fragment<ROWS, N>, const ROWS: usize, const N: usize>(
        &self,
        mut apply: impl FnMut(usize, f32, f32),
    ) {
        let lane = thread::thread_idx_x_here() % 32;
        let first = (self.address)().wrapping_add(8 * F::first_column(lane) as u64);
        let mut column = 0;
        while column < F::COLUMNS {
            let address = first.wrapping_add(8 * F::column_offset(column) as u64);
            let reference = global::load_written_f32(address);
            let rest = global::load_written_f32(address.wrapping_add(4));
            let mut row = 0;
            while row < ROWS {
                apply(F::register(row, column), reference, rest);
                row += 1;
            }
            column += 1;
        }
    }
}
