//! Key tiles that several blocks share, each of which takes a stretch of the tile's steps: where there are
//! too few tiles for all multiprocessors, or too few are left for the last wave.
//!
//! The steps of such a tile are [`Division::tile_units`] units, and a block takes [`Division::turn_units`] of
//! them in its turn, those of one tile or of neighbouring ones:
//!
//! ```text
//! tiles    0               1               2              4 units each
//! turns    0           1           2           3          3 units each
//! ```

/// How the key tiles of a launch are divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Division {
    /// Tiles that a block takes whole, before those that are divided: a turn each.
    pub whole_tiles: u32,
    /// A tile has `2^unit_bits` units.
    pub unit_bits: u32,
    /// Units of a turn: fewer than a tile has, or 1.
    pub turn_units: u32,
}

/// A stretch of a key tile: its units `begin..end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// The first unit.
    pub begin: u32,
    /// One past the last unit.
    pub end: u32,
    /// Number of the turn.
    pub turn: u32,
    /// Number of the tile.
    pub tile: u32,
}

impl Division {
    /// Every tile is whole.
    pub const NONE: Division = Division { whole_tiles: 0, unit_bits: 0, turn_units: 1 };

    /// Units of a tile.
    #[inline(always)]
    pub const fn tile_units(&self) -> u32 {
        1 << self.unit_bits
    }

    /// The first tile of turn `turn`.
    #[inline(always)]
    pub const fn first_tile(&self, turn: u32) -> u32 {
        if turn < self.whole_tiles {
            return turn;
        }
        self.whole_tiles + (((turn - self.whole_tiles) * self.turn_units) >> self.unit_bits)
    }

    /// What of tile `tile` belongs to turn `turn`, which has some of it.
    #[inline(always)]
    pub const fn stretch(&self, turn: u32, tile: u32) -> Stretch {
        let (mut begin, mut end) = (0, self.tile_units());
        if turn >= self.whole_tiles {
            // How many units behind the beginning of the tile the turn begins; it may be before.
            let turn_begins = (turn - self.whole_tiles) * self.turn_units;
            let behind = turn_begins.wrapping_sub((tile - self.whole_tiles) << self.unit_bits) as i32;
            begin = if behind > 0 { behind as u32 } else { 0 };
            let turn_ends = behind.wrapping_add(self.turn_units as i32) as u32;
            end = if turn_ends < end { turn_ends } else { end };
        }
        Stretch { begin, end, turn, tile }
    }

    /// The first stretch of tile `tile`, which is divided.
    ///
    /// Division goes through `divide`, because a kernel must not contain the panic of a division by zero.
    #[inline(always)]
    pub fn first_stretch(&self, tile: u32, divide: impl Fn(u32, u32) -> u32) -> Stretch {
        let before = (tile - self.whole_tiles) << self.unit_bits;
        self.stretch(self.whole_tiles + divide(before, self.turn_units), tile)
    }

    /// Whether a stretch ends with its tile.
    #[inline(always)]
    pub const fn is_last(&self, stretch: &Stretch) -> bool {
        stretch.end == self.tile_units()
    }

    /// Whether a stretch is all of its tile.
    #[inline(always)]
    pub const fn is_whole(&self, stretch: &Stretch) -> bool {
        stretch.begin == 0 && self.is_last(stretch)
    }

    /// Whether the turn of a stretch goes on with the next tile.
    #[inline(always)]
    pub const fn goes_on(&self, stretch: &Stretch) -> bool {
        let turns = stretch.turn.wrapping_sub(self.whole_tiles).wrapping_add(1);
        let tiles = stretch.tile.wrapping_sub(self.whole_tiles).wrapping_add(1);
        stretch.turn >= self.whole_tiles && turns * self.turn_units > tiles << self.unit_bits
    }

    /// The number of the place for what a stretch sums up: there is one for each turn, and one more for
    /// each tile that begins within a turn.
    #[inline(always)]
    pub const fn slot(&self, stretch: &Stretch) -> u32 {
        let begun_within = if self.turn_units > 1 { stretch.tile - self.whole_tiles } else { 0 };
        stretch.turn - self.whole_tiles + begun_within
    }

    /// Turns where so many tiles are divided, those of whole tiles not counted.
    pub const fn turns(&self, divided_tiles: u32) -> u32 {
        (divided_tiles << self.unit_bits).div_ceil(self.turn_units)
    }

    /// Slots where so many tiles are divided.
    pub const fn slots(&self, divided_tiles: u32) -> u32 {
        self.turns(divided_tiles) + if self.turn_units > 1 { divided_tiles } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    extern crate std;
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use std::vec::Vec;

    /// All stretches, turn by turn, as a block goes through them.
    fn stretches(division: &Division, divided_tiles: u32) -> Vec<Stretch> {
        let mut all = Vec::new();
        for turn in 0..division.whole_tiles + division.turns(divided_tiles) {
            let mut tile = division.first_tile(turn);
            loop {
                let stretch = division.stretch(turn, tile);
                all.push(stretch);
                if !division.goes_on(&stretch) || tile + 1 == division.whole_tiles + divided_tiles {
                    break;
                }
                tile += 1;
            }
        }
        all
    }

    #[test]
    fn what_is_not_divided_is_whole_tiles() {
        for stretch in stretches(&Division::NONE, 7) {
            assert!(Division::NONE.is_whole(&stretch) && stretch.turn == stretch.tile);
        }
    }

    proptest! {
        #[test]
        fn every_unit_of_every_tile_is_in_one_stretch(
            whole_tiles in 0..5u32,
            divided in 1..200u32,
            unit_bits in 1..11u32,
            turn_units in 1..1024u32,
        ) {
            let turn_units = turn_units % (1 << unit_bits);
            let division = Division { whole_tiles, unit_bits, turn_units: turn_units.max(1) };
            let all = stretches(&division, divided);
            let mut next = (0, 0);
            let mut slots = BTreeSet::new();
            for stretch in &all {
                prop_assert_eq!((stretch.tile, stretch.begin), next);
                prop_assert!(stretch.begin < stretch.end && stretch.end <= division.tile_units());
                next = (stretch.tile, stretch.end);
                if division.is_last(stretch) {
                    next = (stretch.tile + 1, 0);
                }
                let is_divided = stretch.tile >= whole_tiles;
                prop_assert_eq!(division.is_whole(stretch), !is_divided);
                if is_divided {
                    prop_assert!(division.slot(stretch) < division.slots(divided));
                    prop_assert!(slots.insert(division.slot(stretch)), "{:?}", stretch);
                }
            }
            prop_assert_eq!(next, (whole_tiles + divided, 0));
            for tile in whole_tiles..whole_tiles + divided {
                let first = division.first_stretch(tile, |a, b| a / b);
                prop_assert_eq!(Some(&first), all.iter().find(|stretch| stretch.tile == tile));
            }
        }
    }
}
