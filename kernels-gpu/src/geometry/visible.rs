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

impl TileRange {
    /// Whether some pair of one of its tiles may be hidden, so that the mask must be applied.
    #[inline(always)]
    pub const fn is_masked(&self, tile: i32) -> bool {
        tile < self.full_begin || tile >= self.full_end
    }

    /// As words of a message.
    #[inline(always)]
    pub const fn words(&self) -> [u32; 4] {
        [self.begin as u32, self.full_begin as u32, self.full_end as u32, self.end as u32]
    }

    /// From [`TileRange::words`].
    #[inline(always)]
    pub const fn from_words([begin, full_begin, full_end, end]: [u32; 4]) -> Self {
        TileRange {
            begin: begin as i32,
            full_begin: full_begin as i32,
            full_end: full_end as i32,
            end: end as i32,
        }
    }
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

    /// The tiles that queries `first..last + 1`, some of those that `whole` is for, must visit, of a range
    /// that is not empty; at most `most_trailing` of `whole` are before them. There is always one: where the
    /// queries see nothing, it is the first of `whole`. Where there are no queries, it is all of `whole`.
    #[inline(always)]
    pub const fn tiles_of_rows(
        &self,
        whole: &TileRange,
        (first, last): (i32, i32),
        keys: i32,
        most_trailing: i32,
    ) -> TileRange {
        if first > last {
            return *whole;
        }
        let mut part = self.tiles(first, last, keys);
        if part.begin == part.end {
            let end = whole.begin + 1;
            part = TileRange { begin: whole.begin, full_begin: end, full_end: end, end };
        }
        part.begin = min(part.begin, whole.begin + most_trailing);
        part
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
        fn a_part_visits_what_it_sees_of_the_whole(
            queries in 1..100i32, keys in 1..100i32, top_left: bool, left in side(), right in side(),
            first in 0..100i32, rows in 1..64i32, begin in 0..64i32, part in 0..64i32,
            most_trailing in 0..5i32,
        ) {
            let first = first % queries;
            let last = (first + rows).min(queries) - 1;
            let diagonal = if top_left { 0 } else { keys - queries };
            let v = Visible { key_rows: keys, diagonal, left, right };
            let whole = v.tiles(first, last, TILE);
            prop_assume!(whole.begin < whole.end);
            // With none, or none that exists, too.
            let begin = first + begin;
            let end = (begin + part).min(last + 1);
            let range = v.tiles_of_rows(&whole, (begin, end - 1), TILE, most_trailing);
            prop_assert!(whole.begin <= range.begin && range.begin < range.end && range.end <= whole.end);
            prop_assert!(range.begin <= range.full_begin && range.full_begin <= range.full_end);
            prop_assert!(range.full_end <= range.end);
            prop_assert!(range.begin <= whole.begin + most_trailing || begin >= end);
            let mut all = begin < end;
            for i in begin..end {
                all &= (0..keys).any(|j| sees(&v, i, j));
                for j in 0..keys {
                    let tile = j / TILE;
                    prop_assert!(!sees(&v, i, j) || (range.begin..range.end).contains(&tile));
                    prop_assert!(sees(&v, i, j) || !(range.full_begin..range.full_end).contains(&tile));
                }
            }
            // No more than those, unless some see nothing.
            let seen = |tile: i32| {
                let keys = tile * TILE..((tile + 1) * TILE).min(keys);
                (begin..end).any(|i| keys.clone().any(|j| sees(&v, i, j)))
            };
            prop_assert!(!all || seen(range.end - 1));
            prop_assert!(!all || seen(range.begin) || range.begin == whole.begin + most_trailing);
            prop_assert!(begin < end || range == whole);
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
