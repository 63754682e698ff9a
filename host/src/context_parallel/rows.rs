//! Sets of rows, as ranges.

use super::schedule::Rows;
use std::ops::Range;

/// Rows of a tensor: ranges in ascending order that neither touch nor overlap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RowSet(Vec<Range<usize>>);

impl Rows {
    /// From the first to behind the last.
    pub(super) fn range(&self) -> Range<usize> {
        self.first..self.first + self.count
    }
}

impl From<Range<usize>> for Rows {
    fn from(range: Range<usize>) -> Self {
        Rows { first: range.start, count: range.len(), chunk: None }
    }
}

impl RowSet {
    /// Those in it.
    pub fn ranges(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        self.0.iter().cloned()
    }

    /// Adds rows, whether or not they are in it.
    pub fn insert(&mut self, rows: &Rows) {
        let mut new = rows.range();
        if new.is_empty() {
            return;
        }
        self.0.retain(|range| {
            let apart = range.end < new.start || new.end < range.start;
            if !apart {
                new = new.start.min(range.start)..new.end.max(range.end);
            }
            apart
        });
        let place = self.0.partition_point(|range| range.start < new.start);
        self.0.insert(place, new);
    }

    /// Those of some rows that are in it.
    pub fn within(&self, rows: &Range<usize>) -> Vec<Range<usize>> {
        let common = self.0.iter().map(|range| range.start.max(rows.start)..range.end.min(rows.end));
        common.filter(|range| !range.is_empty()).collect()
    }

    /// Those of some rows that are not in it.
    pub fn gaps(&self, rows: &Rows) -> Vec<Range<usize>> {
        let all = rows.range();
        let mut from = all.start;
        let mut gaps = Vec::new();
        for range in &self.0 {
            let end = range.start.min(all.end);
            if from < end {
                gaps.push(from..end);
            }
            from = from.max(range.end);
        }
        if from < all.end {
            gaps.push(from..all.end);
        }
        gaps
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_set_holds_what_was_inserted(
            inserted in prop::collection::vec((0..40_usize, 0..10_usize), 0..8),
            (first, count) in (0..40_usize, 0..20_usize),
        ) {
            let mut set = RowSet::default();
            let mut has = [false; 64];
            for &(first, count) in &inserted {
                set.insert(&Rows::from(first..first + count));
                has[first..first + count].fill(true);
            }
            let mut listed = [false; 64];
            set.ranges().for_each(|range| listed[range].fill(true));
            prop_assert_eq!(listed, has);
            prop_assert!(set.0.windows(2).all(|pair| pair[0].end < pair[1].start));
            let mut missing = [false; 64];
            set.gaps(&Rows::from(first..first + count)).into_iter().for_each(|gap| missing[gap].fill(true));
            let mut there = [false; 64];
            set.within(&(first..first + count)).into_iter().for_each(|range| there[range].fill(true));
            for row in 0..64 {
                prop_assert_eq!(there[row], (first..first + count).contains(&row) && has[row]);
                prop_assert_eq!(missing[row], (first..first + count).contains(&row) && !has[row]);
            }
        }
    }
}
