//! Values that are not finite: which tensors have them, and which stage of a kernel made the first.

mod part;
mod scores;
mod search;
mod source;
mod stage;
mod tensors;

pub use part::Part;
pub use scores::{BiasElements, ScoreElements};
pub use search::{Cause, ScannedTensor, arch_of, search};
pub use stage::{Stage, stage};
pub use tensors::{Computation, Source, lse_layout, named};

use serde::Serialize;

/// What is not finite in a tensor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NonFinite {
    /// Elements that are NaN.
    pub nan: usize,
    /// Elements that are infinity.
    pub positive_infinity: usize,
    /// Elements that are minus infinity.
    pub negative_infinity: usize,
    /// The index of the first of them all, in the order of the elements.
    pub first: Option<usize>,
}

impl NonFinite {
    /// Looks at the elements of a tensor; those of which `is_expected` says so do not count.
    pub fn scan(
        values: impl IntoIterator<Item = f32>,
        is_expected: impl Fn(usize, f32) -> bool,
    ) -> Self {
        let mut found = NonFinite::default();
        for (index, value) in values.into_iter().enumerate() {
            if value.is_finite() || is_expected(index, value) {
                continue;
            }
            let count = match value {
                f32::INFINITY => &mut found.positive_infinity,
                f32::NEG_INFINITY => &mut found.negative_infinity,
                _ => &mut found.nan,
            };
            *count += 1;
            found.first = found.first.or(Some(index));
        }
        found
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.nan + self.positive_infinity + self.negative_infinity
    }
}

/// The index in each dimension of an element of a dense tensor.
pub fn coordinates(shape: &[usize], index: usize) -> Vec<usize> {
    let mut rest = index;
    let mut found: Vec<usize> = shape
        .iter()
        .rev()
        .map(|&size| {
            let at = rest % size.max(1);
            rest /= size.max(1);
            at
        })
        .collect();
    found.reverse();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_counted_and_the_first_is_found() {
        let values = [0.0, f32::NEG_INFINITY, f32::INFINITY, f32::NAN, f32::NAN, 1.0];
        let found = NonFinite::scan(values, |_, _| false);
        assert_eq!((found.nan, found.positive_infinity, found.negative_infinity), (2, 1, 1));
        assert_eq!((found.first, found.count()), (Some(1), 4));
        let found = NonFinite::scan(values, |index, value| index == 1 && value < 0.0);
        assert_eq!((found.first, found.count()), (Some(2), 3));
        assert_eq!(NonFinite::scan([1.0], |_, _| false), NonFinite::default());
        assert_eq!(coordinates(&[2, 3, 4], 23), [1, 2, 3]);
        assert_eq!(coordinates(&[2, 3, 4], 5), [0, 1, 1]);
    }
}
