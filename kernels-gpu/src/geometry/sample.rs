//! Where a location of multi-scale deformable attention falls: cell and fraction, by the one function that
//! kernels, reference and tests share (docs/semantics.md, section 5).
//!
//! Two formulas for this that differ in the last bit put a location near the edge of a cell into different
//! cells. The sample hardly changes, but its gradient with respect to the location jumps. So there is one
//! formula, in f32, of operations that are rounded the same everywhere: a product, a difference, comparisons,
//! and conversions that are exact.

/// How a level is sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampling {
    /// Locations 0 and 1 are the centres of the outermost cells, not their outer edges.
    pub align_corners: bool,
    /// Locations outside take the nearest cell, instead of zeros.
    pub border: bool,
}

/// A coordinate of a location along one side of a level.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Place {
    /// The lower of the two cells that it is between, -1 to `size - 1`; -2 where it is outside, or no number.
    pub cell: i32,
    /// The fraction of the way to the cell after it; NaN where the coordinate is NaN or infinite.
    pub fraction: f32,
    /// Cells that it moves by when the coordinate grows by 1; 0 where the border holds it.
    pub slope: f32,
}

impl Sampling {
    /// Where the coordinate `x` is along a side of `size` cells, 1 to
    /// [`MSDA_MAX_SIDE`](crate::abi::MSDA_MAX_SIDE).
    #[inline(always)]
    pub fn place(self, x: f32, size: u32) -> Place {
        let cells = size as f32;
        let last = cells - 1.0;
        let mut slope = if self.align_corners { last } else { cells };
        let mut position = x * slope;
        if !self.align_corners {
            position -= 0.5;
        }
        if self.border {
            // Comparisons that NaN passes through.
            if position <= 0.0 {
                (position, slope) = (0.0, 0.0);
            } else if position >= last {
                (position, slope) = (last, 0.0);
            }
        }
        let inside = position >= -1.0 && position < cells && x.abs() < f32::INFINITY;
        let position = if inside { position } else { -2.0 };
        // SAFETY: it is a number, -2 to 2^24.
        let truncated: i32 = unsafe { position.to_int_unchecked() };
        let cell = truncated - (position < truncated as f32) as i32;
        // The last summand is 0, or NaN where x is not finite.
        let fraction = (position - cell as f32) + x * 0.0;
        Place { cell, fraction, slope }
    }
}

impl Place {
    /// Whether the lower cell is one of the `size` of the level.
    #[inline(always)]
    pub fn has_lower(self, size: u32) -> bool {
        (self.cell as u32) < size
    }

    /// Whether the cell after it is.
    #[inline(always)]
    pub fn has_upper(self, size: u32) -> bool {
        ((self.cell + 1) as u32) < size
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use proptest::prelude::*;

    const PLAIN: Sampling = Sampling { align_corners: false, border: false };

    fn all() -> impl Iterator<Item = Sampling> {
        [false, true].into_iter().flat_map(|align_corners| {
            [false, true].into_iter().map(move |border| Sampling { align_corners, border })
        })
    }

    #[test]
    fn centres_of_cells_have_fraction_0() {
        for size in [1, 2, 8] {
            for cell in 0..size {
                let centre = (cell as f32 + 0.5) / size as f32;
                let place = PLAIN.place(centre, size);
                assert_eq!((place.cell, place.fraction), (cell as i32, 0.0), "{cell} of {size}");
            }
        }
    }

    #[test]
    fn outside_there_is_no_cell() {
        for x in [-3e38, -1.0, -0.126, 1.125, 2.0, 3e38] {
            let place = PLAIN.place(x, 8);
            assert!(!place.has_lower(8) && !place.has_upper(8), "{x}: {place:?}");
            assert_eq!(place.fraction, 0.0, "{x}");
        }
        let first = PLAIN.place(-0.0625, 8);
        assert_eq!((first.cell, first.has_lower(8), first.has_upper(8)), (-1, false, true));
    }

    #[test]
    fn the_border_holds_what_is_outside() {
        for align_corners in [false, true] {
            let sampling = Sampling { align_corners, border: true };
            for (x, cell) in [(-3e38, 0), (-0.5, 0), (1.5, 7), (3e38, 7)] {
                let place = sampling.place(x, 8);
                assert_eq!(place, Place { cell, fraction: 0.0, slope: 0.0 }, "{x}");
            }
        }
    }

    #[test]
    fn what_is_no_number_has_no_cell_and_says_so() {
        for sampling in all() {
            for x in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                for size in [1, 7] {
                    let place = sampling.place(x, size);
                    assert!(place.fraction.is_nan(), "{sampling:?} {x} {size}");
                    assert_eq!(place.cell, -2, "{sampling:?} {x} {size}");
                }
            }
        }
    }

    proptest! {
        #[test]
        fn cell_and_fraction_make_up_the_position(
            x in -0.5f32..1.5, size in 1u32..5000, align_corners: bool, border: bool
        ) {
            let place = Sampling { align_corners, border }.place(x, size);
            let (side, x) = (f64::from(size), f64::from(x));
            let exact = if align_corners { x * (side - 1.0) } else { x * side - 0.5 };
            let exact = if border { exact.clamp(0.0, side - 1.0) } else { exact };
            prop_assert!((0.0..=1.0).contains(&place.fraction));
            if place.cell == -2 {
                prop_assert!(exact < -1.0 + 1e-3 || exact > side - 1e-3, "{exact}");
            } else {
                let position = f64::from(place.cell) + f64::from(place.fraction);
                prop_assert!((position - exact).abs() <= 2e-7 * side, "{position} {exact}");
            }
        }
    }
}
