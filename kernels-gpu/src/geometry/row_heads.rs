//! Which query, and which of the heads that share keys, a row of a query tile is.
//!
//! A tile takes as long with few rows as with many. Where there are few queries, those of several heads that
//! share keys and values fill it together:
//!
//! ```text
//! row       0  1  2  3   4  5  6  7   ...          with four heads
//! query     0  0  0  0   1  1  1  1
//! head      0  1  2  3   0  1  2  3                counted from the tile's first one
//! ```

/// How rows are shared out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowHeads {
    /// A row is a query: known when the kernel is compiled.
    One,
    /// So many heads side by side.
    Several {
        /// The heads.
        count: u32,
        /// Their [`reciprocal`].
        reciprocal: u32,
    },
}

/// What [`RowHeads`] multiplies by to divide by `heads`, at least 1.
pub const fn reciprocal(heads: u32) -> u32 {
    (1u32 << 31).div_ceil(heads)
}

/// Rows times heads that [`RowHeads::query`] is exact below.
pub const EXACT_BELOW: u64 = 1 << 31;

impl RowHeads {
    /// The query that row `row`, at least 0, is of: `row / heads`.
    ///
    /// A product instead of a division (Granlund and Montgomery 1994): the reciprocal is too large by less
    /// than `heads / 2^31`, which shows nowhere while `row heads` is below [`EXACT_BELOW`].
    #[inline(always)]
    pub const fn query(self, row: i32) -> i32 {
        match self {
            RowHeads::One => row,
            RowHeads::Several { reciprocal, .. } => {
                (((2 * row as u32) as u64 * reciprocal as u64) >> 32) as i32
            }
        }
    }

    /// Query and head of row `row`, at least 0.
    #[inline(always)]
    pub const fn place(self, row: i32) -> (i32, u32) {
        match self {
            RowHeads::One => (row, 0),
            RowHeads::Several { count, .. } => {
                let query = self.query(row);
                (query, (row - query * count as i32) as u32)
            }
        }
    }

    /// Heads of a tile.
    #[inline(always)]
    pub const fn count(self) -> u32 {
        match self {
            RowHeads::One => 1,
            RowHeads::Several { count, .. } => count,
        }
    }

    /// The first head of tiles that are the `index`th of all heads.
    #[inline(always)]
    pub const fn first_head(self, index: u32) -> u32 {
        match self {
            RowHeads::One => index,
            RowHeads::Several { count, .. } => index * count,
        }
    }

    /// The first and the last query of rows `first..last + 1`. Where these are none, the last one is below
    /// the first one still.
    #[inline(always)]
    pub const fn queries(self, (first, last): (i32, i32)) -> (i32, i32) {
        if first > last { (first, last) } else { (self.query(first), self.query(last)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::MAX_ROWS;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn rows_are_divided_exactly(heads in 1..=128u32, row in 0..MAX_ROWS) {
            let row = (u64::from(row) % (EXACT_BELOW / u64::from(heads))) as i32;
            let rows = RowHeads::Several { count: heads, reciprocal: reciprocal(heads) };
            let (query, head) = (row / heads as i32, row as u32 % heads);
            prop_assert_eq!(rows.query(row), query);
            prop_assert_eq!(rows.place(row), (query, head));
        }
    }

    #[test]
    fn the_last_exact_row_of_each_number_of_heads() {
        for heads in 1..=128u32 {
            let rows = RowHeads::Several { count: heads, reciprocal: reciprocal(heads) };
            let last = (EXACT_BELOW.div_ceil(u64::from(heads)) - 1) as i32;
            for row in [last, last - last % heads as i32, last - last % heads as i32 - 1] {
                assert_eq!(rows.query(row), row.div_euclid(heads as i32), "{row} / {heads}");
            }
        }
    }

    #[test]
    fn no_rows_are_no_queries() {
        let rows = RowHeads::Several { count: 4, reciprocal: reciprocal(4) };
        assert_eq!(rows.queries((5, 4)), (5, 4));
        assert_eq!(rows.queries((5, 9)), (1, 2));
        assert_eq!(RowHeads::One.queries((5, 9)), (5, 9));
    }
}
