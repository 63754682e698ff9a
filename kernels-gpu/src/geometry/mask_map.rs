//! The map of a boolean mask's tiles: for each granule of 64 queries and 64 keys, whether the mask shows some
//! pair, and whether it shows all.
//!
//! Tiles of kernels are of many sizes, and the map is made once for all of them. A tile is taken to show
//! what the granules show that it touches: it may be said to show a pair, or to hide one, that is its
//! neighbour's, and never the other way round. Where sides of tiles are multiples of 64, the map is exact.
//!
//! An element says it of 32 granules of keys, a window, and of one to four granules of queries together, so
//! that one element is enough for any tile. Windows overlap by half:
//!
//! ```text
//! granules of keys      0       16      32      48      64
//! windows               |--- 0 ---------|
//!                               |--- 1 ---------|
//!                                       |--- 2 ---------|
//! ```

/// Queries, and keys, of a granule.
pub const GRANULE: u32 = 64;
/// Granules from one window to the next.
pub const WINDOW_STEP: u32 = 16;
/// Granules of queries that an element is of, at most.
pub const LEVELS: u32 = 4;
/// Queries, and keys, that a tile may have.
pub const MOST_ROWS: u32 = (LEVELS - 1) * GRANULE;

/// Granules of so many queries or keys.
pub const fn granules(rows: usize) -> usize {
    rows.div_ceil(GRANULE as usize)
}

/// Windows of so many keys.
pub const fn windows(keys: usize) -> usize {
    granules(keys).div_ceil(WINDOW_STEP as usize)
}

/// Which element is of a tile, and which of its bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The first granule of queries.
    pub granule: u32,
    /// How many more there are: below [`LEVELS`].
    pub level: u32,
    /// The window.
    pub window: u32,
    /// The bits of its granules of keys.
    pub bits: u32,
}

impl Place {
    /// Of queries and keys, each the first and the last one, of a tile of at most [`MOST_ROWS`] of either.
    #[inline(always)]
    pub const fn of((first_query, last_query): (i32, i32), (first_key, last_key): (i32, i32)) -> Self {
        let granule = first_query as u32 / GRANULE;
        let first = first_key as u32 / GRANULE;
        let count = last_key as u32 / GRANULE - first + 1;
        Place {
            granule,
            level: last_query as u32 / GRANULE - granule,
            window: first / WINDOW_STEP,
            bits: ((1 << count) - 1) << (first % WINDOW_STEP),
        }
    }
}

/// What a mask shows of the pairs of a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shown {
    /// Some of them.
    pub some: bool,
    /// All of them.
    pub all: bool,
}

impl Shown {
    /// Of no pairs.
    pub const NOTHING: Shown = Shown { some: false, all: true };

    /// Of these pairs, and of those of granules `bits` of an element.
    #[inline(always)]
    #[must_use]
    pub const fn and(self, [some, all]: [u32; 2], bits: u32) -> Self {
        Shown { some: self.some | (some & bits != 0), all: self.all & (!all & bits == 0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::{Family, KERNELS};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_element_is_of_the_granules_that_a_tile_touches(
            query in 0..5000i32, queries in 1..=MOST_ROWS as i32,
            key in 0..5000i32, keys in 1..=MOST_ROWS as i32,
        ) {
            let of = |first: i32, count: i32| (first, first + count - 1);
            let place = Place::of(of(query, queries), of(key, keys));
            prop_assert!(place.level < LEVELS);
            let touches = |(first, count): (i32, i32), granule: u32| {
                let rows = granule as i32 * 64..(granule as i32 + 1) * 64;
                (first..first + count).any(|row| rows.contains(&row))
            };
            for granule in 0..100 {
                let is_queries = (place.granule..=place.granule + place.level).contains(&granule);
                prop_assert_eq!(is_queries, touches((query, queries), granule));
                let bit = granule.wrapping_sub(place.window * WINDOW_STEP);
                let is_keys = bit < 32 && place.bits >> bit & 1 == 1;
                prop_assert_eq!(is_keys, touches((key, keys), granule));
            }
            prop_assert!((place.window as usize) < windows((key + keys) as usize));
        }
    }

    #[test]
    fn a_tile_shows_what_its_granules_show() {
        let of = |some, all, bits| Shown::NOTHING.and([some, all], bits);
        assert_eq!(of(0b0110, 0b0100, 0b0001), Shown { some: false, all: false });
        assert_eq!(of(0b0110, 0b0100, 0b0011), Shown { some: true, all: false });
        assert_eq!(of(0b0110, 0b0100, 0b0100), Shown { some: true, all: true });
        assert_eq!(of(0b0110, 0b0100, 0b0110), Shown { some: true, all: false });
    }

    #[test]
    fn no_tile_of_a_kernel_is_too_large() {
        for kernel in KERNELS {
            if matches!(kernel.family, Family::Forward | Family::Backward) {
                let most = kernel.query_rows.max(kernel.key_rows);
                assert!(most <= MOST_ROWS, "{}", kernel.name);
            }
        }
    }
}
