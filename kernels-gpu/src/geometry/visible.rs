//! Which keys a query sees, and which key tiles a block of queries must visit.

/// The visible keys of one sequence: key `j` is visible to query `i` iff `0 <= j < key_rows` and
/// `i + diagonal - left <= j <= i + diagonal + right`.
///
/// `left` and `right` are at most [`crate::abi::WINDOW_OPEN`], row counts at most
/// [`crate::abi::MAX_ROWS`]: every sum below then fits an `i32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Visible {
    /// Number of keys of the sequence.
    pub key_rows: i32,
    /// Key position that query 0 is aligned with.
    pub diagonal: i32,
    /// Keys visible to the left of the diagonal.
    pub left: i32,
    /// Keys visible to the right of the diagonal.
    pub right: i32,
}

/// A half-open range of key tiles, and the part of it in which every key is visible to every query of
/// the block.
///
/// `begin <= full_begin <= full_end <= end`; only tiles of `full_begin..full_end` may skip the mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TileRange {
    /// First tile with a visible key.
    pub begin: i32,
    /// First tile that needs no mask.
    pub full_begin: i32,
    /// One past the last tile that needs no mask.
    pub full_end: i32,
    /// One past the last tile with a visible key.
    pub end: i32,
}

impl Visible {
    /// First key visible to query `row`.
    #[inline(always)]
    pub const fn begin(&self, row: i32) -> i32 {
        max(row + self.diagonal - self.left, 0)
    }

    /// One past the last key visible to query `row`; `end <= begin` when there is none.
    #[inline(always)]
    pub const fn end(&self, row: i32) -> i32 {
        // row + diagonal < key_rows or, aligned top-left, < MAX_ROWS: the sum fits, the + 1 comes last.
        min(row + self.diagonal + self.right, self.key_rows - 1) + 1
    }

    /// The same with the roles of queries and keys exchanged: which of `query_rows` queries see a key.
    ///
    /// It knows the number of queries instead of that of the keys: keys past the end must be hidden by
    /// the caller.
    #[inline(always)]
    pub const fn transposed(&self, query_rows: i32) -> Visible {
        Visible { key_rows: query_rows, diagonal: -self.diagonal, left: self.right, right: self.left }
    }

    /// The tiles of `keys` keys each that queries `first..last + 1` (`first <= last`) must visit.
    #[inline(always)]
    pub const fn tiles(&self, first: i32, last: i32, keys: i32) -> TileRange {
        let (lowest, highest) = (self.begin(first), self.end(last));
        if highest <= lowest {
            return TileRange { begin: 0, full_begin: 0, full_end: 0, end: 0 };
        }
        let begin = lowest / keys;
        let end = ceil_div(highest, keys);
        // Visible to every query of the block: from the last query's first key to the first query's last
        // key.
        let full_begin = min(ceil_div(self.begin(last), keys), end);
        let full_end = max(max(self.end(first), 0) / keys, full_begin);
        TileRange { begin, full_begin, full_end, end }
    }

    /// How many of the last tiles of a range that is not empty, `keys` keys each, no query up to `last` sees.
    /// The first tile is never one of them.
    #[inline(always)]
    pub const fn unseen_tiles(&self, tiles: &TileRange, last: i32, keys: i32) -> i32 {
        let end = ceil_div(max(self.end(last), 0), keys);
        max(tiles.end - max(end, tiles.begin + 1), 0)
    }
}

#[inline(always)]
const fn min(a: i32, b: i32) -> i32 {
    if a < b { a } else { b }
}

#[inline(always)]
const fn max(a: i32, b: i32) -> i32 {
    if a > b { a } else { b }
}

/// `a / b` rounded up, for `a >= 0`, `b > 0`.
#[inline(always)]
const fn ceil_div(a: i32, b: i32) -> i32 {
    // Written without a + b - 1, which could overflow. The operands are not negative: unsigned division
    // is cheaper.
    let (a, b) = (a as u32, b as u32);
    (a / b + (a % b != 0) as u32) as i32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::{MAX_ROWS, WINDOW_OPEN};
    use proptest::prelude::*;

    const TILE: i32 = 16;

    fn sees(v: &Visible, i: i32, j: i32) -> bool {
        let (i, j, d) = (i64::from(i), i64::from(j), i64::from(v.diagonal));
        let (left, right) = (i64::from(v.left), i64::from(v.right));
        j >= 0 && j < i64::from(v.key_rows) && j >= i + d - left && j <= i + d + right
    }

    fn side() -> impl Strategy<Value = i32> {
        prop_oneof![Just(WINDOW_OPEN), 0..80i32]
    }

    proptest! {
        #[test]
        fn row_limits_agree_with_the_definition(
            queries in 1..100i32, keys in 0..100i32, top_left: bool, left in side(), right in side(),
        ) {
            let diagonal = if top_left { 0 } else { keys - queries };
            let v = Visible { key_rows: keys, diagonal, left, right };
            for i in 0..queries {
                for j in 0..keys {
                    prop_assert_eq!(sees(&v, i, j), v.begin(i) <= j && j < v.end(i), "query {} key {}", i, j);
                }
            }
        }

        #[test]
        fn transposing_keeps_who_sees_whom(
            queries in 1..100i32, keys in 1..100i32, top_left: bool, left in side(), right in side(),
        ) {
            let diagonal = if top_left { 0 } else { keys - queries };
            let v = Visible { key_rows: keys, diagonal, left, right };
            let t = v.transposed(queries);
            for i in 0..queries {
                for j in 0..keys {
                    prop_assert_eq!(sees(&v, i, j), sees(&t, j, i), "query {} key {}", i, j);
                }
            }
        }

        #[test]
        fn tiles_hold_every_visible_key_and_full_tiles_no_hidden_one(
            queries in 1..100i32, keys in 0..100i32, top_left: bool, left in side(), right in side(),
            first in 0..100i32, rows in 1..64i32,
        ) {
            let first = first % queries;
            let last = (first + rows).min(queries) - 1;
            let diagonal = if top_left { 0 } else { keys - queries };
            let v = Visible { key_rows: keys, diagonal, left, right };
            let range = v.tiles(first, last, TILE);
            prop_assert!(range.begin <= range.full_begin && range.full_begin <= range.full_end);
            prop_assert!(range.full_end <= range.end);
            for i in first..=last {
                for j in 0..keys {
                    let tile = j / TILE;
                    if sees(&v, i, j) {
                        prop_assert!((range.begin..range.end).contains(&tile));
                    } else {
                        prop_assert!(!(range.full_begin..range.full_end).contains(&tile));
                    }
                }
            }
            prop_assert!(range.full_begin == range.full_end || range.full_end * TILE <= keys);
        }
    }

    proptest! {
        #[test]
        fn unseen_tiles_are_all_behind_the_last_that_is_seen(
            queries in 1..100i32, keys in 1..100i32, top_left: bool, left in side(), right in side(),
            first in 0..100i32, rows in 1..64i32, part in 1..64i32,
        ) {
            let first = first % queries;
            let last = (first + rows).min(queries) - 1;
            let part = (first + part).min(last + 1) - 1;
            let diagonal = if top_left { 0 } else { keys - queries };
            let v = Visible { key_rows: keys, diagonal, left, right };
            let range = v.tiles(first, last, TILE);
            prop_assume!(range.begin < range.end);
            let end = range.end - v.unseen_tiles(&range, part, TILE);
            prop_assert!(range.begin < end && end <= range.end);
            let seen = |tile: i32| {
                let keys = tile * TILE..((tile + 1) * TILE).min(keys);
                (first..=part).any(|i| keys.clone().any(|j| sees(&v, i, j)))
            };
            prop_assert!((end..range.end).all(|tile| !seen(tile)));
            // No fewer than that, unless the rows see nothing, or the window is closed to the left.
            prop_assert!(end == range.begin + 1 || left < WINDOW_OPEN || seen(end - 1));
        }
    }

    #[test]
    fn the_largest_sizes_do_not_overflow() {
        let most = MAX_ROWS as i32;
        for (queries, keys, diagonal) in
            [(most, most, 0), (1, most, most - 1), (most, 1, 1 - most), (most, 1, 0)]
        {
            let v = Visible { key_rows: keys, diagonal, left: WINDOW_OPEN, right: WINDOW_OPEN };
            for row in [0, queries - 1] {
                assert_eq!((v.begin(row), v.end(row)), (0, keys));
            }
            let range = v.tiles(0, queries - 1, 64);
            assert_eq!((range.begin, range.end), (0, (keys + 63) / 64));
        }
    }
}
