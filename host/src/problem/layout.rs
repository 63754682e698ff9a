//! Where the elements of a tensor stand in memory.

use super::LIMITS;
use crate::error::{Error, Result};
use kernels_gpu::abi::Dtype;

/// Names of the four logical dimensions, as they appear in errors.
pub const DIMENSIONS: [&str; 4] = ["batch", "rows", "heads", "head_dim"];

/// Shape and strides of a tensor. The dimensions are always in the logical order `[batch, row, head,
/// column]`, whatever their order in memory.
///
/// Strides are in elements. Inputs may have any strides, also zero (broadcast) and negative ones;
/// outputs must have positive strides and elements that are apart. Columns are contiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    /// `[batch, row, head, column]`.
    pub shape: [usize; 4],
    /// Elements from one index to the next, per dimension.
    pub strides: [i64; 4],
}

impl Layout {
    /// Dense, in memory order `[batch, row, head, column]`. `shape` is in that order too.
    pub fn bshd(shape: [usize; 4]) -> Self {
        Layout::dense(shape, [0, 1, 2, 3])
    }

    /// Dense, in memory order `[batch, head, row, column]`. `shape` stays logical: `[batch, row, head,
    /// column]`.
    pub fn bhsd(shape: [usize; 4]) -> Self {
        Layout::dense(shape, [0, 2, 1, 3])
    }

    /// Dense rows of packed sequences, `[row, head, column]`: a batch size of 1.
    pub fn packed([rows, heads, columns]: [usize; 3]) -> Self {
        Layout::bshd([1, rows, heads, columns])
    }

    /// From slices of any length, both in logical order; strides in elements.
    ///
    /// # Errors
    /// [`Error::WrongRank`], naming `argument`, unless both have length 4.
    pub fn from_slices(argument: &'static str, shape: &[usize], strides: &[i64]) -> Result<Self> {
        let wrong = |got| {
            let names = "[batch, row, head, column]";
            Error::WrongRank { argument, expected: 4, names, got }
        };
        let shape = shape.try_into().map_err(|_| wrong(shape.len()))?;
        let strides = strides.try_into().map_err(|_| wrong(strides.len()))?;
        Ok(Layout { shape, strides })
    }

    /// Dense, `order` from the slowest dimension to the fastest.
    fn dense(shape: [usize; 4], order: [usize; 4]) -> Self {
        Layout { shape, strides: dense_strides(shape, order) }
    }

    /// How many elements the shape has.
    pub fn elements(&self) -> u128 {
        elements(self.shape)
    }

    /// Lowest and highest element offset from element (0, 0, 0, 0), inclusive; `None` when there are no
    /// elements.
    pub fn offsets(&self) -> Option<(i128, i128)> {
        offsets(self.shape, self.strides)
    }

    /// Elements from the lowest to the highest address, both included: the length of a slice that holds
    /// the tensor. Only for layouts that were validated.
    pub fn span(&self) -> usize {
        self.offsets().map_or(0, |(low, high)| (high - low + 1) as usize)
    }

    /// Where element (0, 0, 0, 0) stands in a slice of [`Layout::span`] elements: above 0 with negative
    /// strides.
    pub fn origin(&self) -> usize {
        self.offsets().map_or(0, |(low, _)| (-low) as usize)
    }

    /// Offset of one element from element (0, 0, 0, 0).
    pub fn offset(&self, index: [usize; 4]) -> isize {
        let steps = index.iter().zip(&self.strides);
        steps.map(|(&index, &stride)| index as isize * stride as isize).sum()
    }

    /// Where the elements of some rows stand in a slice of [`Layout::span`] elements, in logical order.
    pub(crate) fn places_of_rows(&self, rows: &[usize]) -> impl Iterator<Item = usize> {
        let [batches, _, heads, columns] = self.shape;
        (0..batches).flat_map(move |batch| {
            rows.iter().flat_map(move |&row| {
                (0..heads).flat_map(move |head| {
                    let place = move |column| {
                        self.origin().wrapping_add_signed(self.offset([batch, row, head, column]))
                    };
                    (0..columns).map(place)
                })
            })
        })
    }

    /// Whether every row starts on a multiple of `bytes`, given the address of element (0, 0, 0, 0).
    pub fn rows_aligned(&self, address: u64, dtype: Dtype, bytes: u64) -> bool {
        let strides_fit = (0..3).all(|dimension| {
            let step = i128::from(self.strides[dimension]) * i128::from(dtype.bytes());
            self.shape[dimension] <= 1 || step % i128::from(bytes) == 0
        });
        self.elements() == 0 || (address.is_multiple_of(bytes) && strides_fit)
    }

    /// Every size is one that the kernels accept.
    pub(super) fn check_extents(&self, argument: &'static str) -> Result<()> {
        for ((got, dimension), (min, max)) in self.shape.into_iter().zip(DIMENSIONS).zip(LIMITS) {
            if (got as u64) < min || got as u64 > max {
                return Err(Error::SizeRange { argument, dimension, min, max, got });
            }
        }
        Ok(())
    }

    /// Columns are contiguous.
    pub(crate) fn check_columns(&self, argument: &'static str) -> Result<()> {
        let contiguous = self.shape[3] <= 1 || self.strides[3] == 1 || self.elements() == 0;
        if contiguous { Ok(()) } else { Err(Error::ColumnStride { argument, got: self.strides[3] }) }
    }

    /// All byte offsets fit an i64.
    pub(crate) fn check_span(&self, argument: &'static str, dtype: Dtype) -> Result<()> {
        let Some((low, high)) = self.offsets() else { return Ok(()) };
        let bytes = high.saturating_sub(low).saturating_add(1).saturating_mul(i128::from(dtype.bytes()));
        if bytes <= i128::from(i64::MAX) {
            return Ok(());
        }
        Err(Error::AddressSpan { argument, shape: self.shape, strides: self.strides })
    }

    /// No two elements share an address: see [`check_apart`].
    pub(crate) fn check_output(&self, argument: &'static str) -> Result<()> {
        check_apart(argument, &DIMENSIONS, self.shape, self.strides)
    }
}

/// How many elements a shape has.
pub(super) fn elements(shape: [usize; 4]) -> u128 {
    shape.iter().fold(1, |product: u128, &size| product.saturating_mul(size as u128))
}

/// Strides of dense elements, `order` from the slowest dimension to the fastest. Products too large for an
/// i64 saturate, which validation then refuses.
pub(super) fn dense_strides(shape: [usize; 4], order: [usize; 4]) -> [i64; 4] {
    let mut strides = [0; 4];
    let mut step: i64 = 1;
    for dimension in order.into_iter().rev() {
        strides[dimension] = step;
        step = step.saturating_mul(i64::try_from(shape[dimension]).unwrap_or(i64::MAX).max(1));
    }
    strides
}

/// Lowest and highest element offset from element (0, 0, 0, 0), inclusive; `None` when there are no elements.
pub(super) fn offsets(shape: [usize; 4], strides: [i64; 4]) -> Option<(i128, i128)> {
    if elements(shape) == 0 {
        return None;
    }
    let mut bounds = (0i128, 0i128);
    for (size, stride) in shape.into_iter().zip(strides) {
        let reach = (size as i128 - 1).saturating_mul(i128::from(stride));
        bounds = (bounds.0.saturating_add(reach.min(0)), bounds.1.saturating_add(reach.max(0)));
    }
    Some(bounds)
}

/// No two elements of a tensor share an address: taken by ascending stride, each dimension steps over all
/// that the ones before it span. Dense orders and slices of them pass; so does any padding. `names` are those
/// of the dimensions.
pub(super) fn check_apart(
    argument: &'static str,
    names: &[&'static str; 4],
    shape: [usize; 4],
    strides: [i64; 4],
) -> Result<()> {
    if shape.contains(&0) {
        return Ok(());
    }
    let mut dimensions: Vec<usize> = (0..4).filter(|&dimension| shape[dimension] > 1).collect();
    if let Some(&wrong) = dimensions.iter().find(|&&dimension| strides[dimension] <= 0) {
        let (dimension, got) = (names[wrong], strides[wrong]);
        return Err(Error::OutputStride { argument, dimension, got });
    }
    dimensions.sort_by_key(|&dimension| strides[dimension]);
    let mut spanned: i128 = 1;
    for dimension in dimensions {
        let stride = i128::from(strides[dimension]);
        if stride < spanned {
            let (dimension, got) = (names[dimension], strides[dimension]);
            return Err(Error::OutputOverlap { argument, dimension, expected: spanned, got });
        }
        spanned += stride * (shape[dimension] as i128 - 1);
    }
    Ok(())
}
