//! Orders in which unfused code may add up what columns have.

use std::borrow::Cow;

/// How many orders there are.
const ORDERS: usize = 4;

/// An order of the columns of q and k, and of those of v, o and their gradients: they go round from one of
/// them on. Sums over columns, which no formula gives an order, have other roundings in each.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ColumnOrder {
    /// In fourths of the columns.
    first: usize,
}

impl ColumnOrder {
    /// As they stand in memory.
    pub const OF_MEMORY: ColumnOrder = ColumnOrder { first: 0 };

    /// The others.
    pub fn others() -> impl Iterator<Item = ColumnOrder> {
        (1..ORDERS).map(|first| ColumnOrder { first })
    }

    /// Rows in this order.
    pub fn apply(self, rows: &[f32], columns: usize) -> Cow<'_, [f32]> {
        turned(rows, columns, columns * self.first / ORDERS)
    }

    /// Rows that stand in this order, as they stand in memory.
    pub fn undo(self, rows: &[f32], columns: usize) -> Cow<'_, [f32]> {
        turned(rows, columns, columns - columns * self.first / ORDERS)
    }
}

/// Rows that begin with their column `first`.
fn turned(rows: &[f32], columns: usize, first: usize) -> Cow<'_, [f32]> {
    if first == 0 || first == columns {
        return Cow::Borrowed(rows);
    }
    let mut rows = rows.to_vec();
    rows.chunks_exact_mut(columns).for_each(|row| row.rotate_left(first));
    Cow::Owned(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_differ_and_can_be_undone() {
        let rows: Vec<f32> = (0..15).map(|index| index as f32).collect();
        let orders: Vec<_> = ColumnOrder::others().collect();
        let turned: Vec<_> = orders.iter().map(|order| order.apply(&rows, 5).into_owned()).collect();
        assert_eq!(turned[1][..6], [2.0, 3.0, 4.0, 0.0, 1.0, 7.0]);
        for (order, turned) in orders.iter().zip(&turned) {
            assert_eq!(*order.undo(turned, 5), rows);
        }
        assert!(turned[0] != rows && turned[0] != turned[1] && turned[1] != turned[2]);
        assert_eq!(*ColumnOrder::OF_MEMORY.apply(&rows, 5), rows);
        assert_eq!(*orders[0].apply(&rows, 1), rows);
    }
}
