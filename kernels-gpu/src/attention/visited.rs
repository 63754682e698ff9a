//! The tiles that a block visits under a boolean mask: those of which it shows something.

use super::key_block::Step;
use crate::geometry::mask_map::Shown;

/// A key tile that a query block visits, as the producer of a Hopper block tells the other warps.
#[derive(Clone, Copy)]
pub struct VisitedTile {
    /// Number of the tile.
    pub tile: i32,
    /// Whether it is the last one that is visited.
    pub is_last: bool,
    /// Whether the mask shows all of its pairs.
    pub shows_all: bool,
}

impl VisitedTile {
    /// As a word. There are fewer than 2^30 tiles.
    #[inline(always)]
    pub const fn word(self) -> u32 {
        (self.tile as u32) << 2 | (self.is_last as u32) << 1 | self.shows_all as u32
    }

    /// From [`VisitedTile::word`].
    #[inline(always)]
    pub const fn from_word(word: u32) -> Self {
        VisitedTile { tile: (word >> 2) as i32, is_last: word >> 1 & 1 != 0, shows_all: word & 1 != 0 }
    }

    /// The last tile that is visited, as far as can be told: this one, or one below all.
    #[inline(always)]
    pub const fn last(self) -> i32 {
        if self.is_last { self.tile } else { -1 }
    }
}

/// The tile that comes next, and whether the mask shows all of it; none if it lies below all.
#[derive(Clone, Copy)]
pub struct NextTile {
    /// Number of the tile.
    pub tile: i32,
    /// What the mask shows of it.
    pub shown: Shown,
}

/// A step of a key tile that is visited, as the producer of a Hopper block tells the other warps.
#[derive(Clone, Copy)]
pub struct VisitedStep {
    /// The query tile, and which step it is.
    pub tile: VisitedTile,
    /// Its query head, of all.
    pub head: u32,
}

impl VisitedStep {
    /// As words.
    #[inline(always)]
    pub const fn words(self) -> [u32; 2] {
        [self.tile.word(), self.head]
    }

    /// From [`VisitedStep::words`].
    #[inline(always)]
    pub const fn from_words([tile, head]: [u32; 2]) -> Self {
        VisitedStep { tile: VisitedTile::from_word(tile), head }
    }

    /// The step, with a head of all, of a walk of so many steps, were all visited: it counts as the last of
    /// these if it is the last one that is visited, and otherwise as the first, which is not the last then.
    #[inline(always)]
    pub const fn step(self, steps: u32) -> Step {
        let VisitedTile { tile, is_last, .. } = self.tile;
        Step { step: if is_last { steps - 1 } else { 0 }, head: self.head, tile }
    }
}
