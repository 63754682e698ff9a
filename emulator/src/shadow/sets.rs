//! Sets of accesses to a word, each once; an access that is added to one leads to another.

use super::clock::CLOCK_BITS;
use foldhash::fast::FixedState;
use std::collections::HashMap;

/// Bits of a word's bytes: all four.
pub const BYTES: u32 = 15;
/// The bit of a strong access.
pub const STRONG: u32 = 16;
/// The bit of a strong access for its block alone.
pub const NARROW: u32 = 32;
/// A bit above the number of a set, for whoever keeps it.
pub const FLAG: u32 = 1 << 31;
/// Transitions that are remembered at hand.
const RECENT: usize = 256;
/// Sets after which those that nobody uses any more are given up; more if so many are in use.
const LIMIT: usize = 1 << 15;

/// One access to some bytes of a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mark {
    /// Who, and when.
    pub epoch: u32,
    /// Its bytes, and whether it is strong.
    pub how: u32,
}

impl Mark {
    /// Whether this access is in the way of another one, by an actor, where blocks have so many warps: they
    /// have bytes in common, and are not both strong, each for the other.
    #[inline(always)]
    pub fn meets(self, how: u32, actor: u32, warps: u32) -> bool {
        let both = self.how & how;
        both & BYTES != 0 && (both & STRONG == 0 || self.is_apart(how, actor, warps))
    }

    /// Whether one of two strong accesses is for its block, which is not that of the other.
    #[inline(always)]
    fn is_apart(self, how: u32, actor: u32, warps: u32) -> bool {
        (self.how | how) & NARROW != 0 && self.actor() / warps != actor / warps
    }

    fn actor(self) -> u32 {
        self.epoch >> CLOCK_BITS
    }
}

/// What happens to a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Change {
    /// A read: replaces those of the same actor.
    Read,
    /// A write: replaces those of its bytes, but a strong one does not replace those of other actors that are
    /// strong as well.
    Write,
    /// Bytes of which nothing matters any more.
    Forget,
}

type Key = (u32, Mark, Change);

/// All sets; the first is empty.
#[derive(Debug)]
pub struct Sets {
    sets: Vec<Vec<Mark>>,
    after: HashMap<Key, u32, FixedState>,
    recent: Vec<(Key, u32)>,
    limit: usize,
}

impl Sets {
    /// The empty set alone.
    pub fn new() -> Self {
        let never = (u32::MAX, Mark { epoch: 0, how: 0 }, Change::Read);
        Sets {
            sets: vec![Vec::new()],
            after: HashMap::default(),
            recent: vec![(never, 0); RECENT],
            limit: LIMIT,
        }
    }

    /// The accesses of a set.
    #[inline(always)]
    pub fn of(&self, set: u32) -> &[Mark] {
        &self.sets[set as usize]
    }

    /// The set with one read more.
    #[inline(always)]
    pub fn read(&mut self, set: u32, mark: Mark) -> u32 {
        self.change((set, mark, Change::Read))
    }

    /// The set with one write more.
    pub fn write(&mut self, set: u32, mark: Mark) -> u32 {
        self.change((set, mark, Change::Write))
    }

    /// The set without some bytes.
    pub fn forget(&mut self, set: u32, bytes: u32) -> u32 {
        if set == 0 { 0 } else { self.change((set, Mark { epoch: 0, how: bytes }, Change::Forget)) }
    }

    #[inline(always)]
    fn change(&mut self, key: Key) -> u32 {
        let (set, Mark { epoch, how }, _) = key;
        let hash = (set ^ epoch ^ epoch >> 17 ^ how << 4).wrapping_mul(0x9e37_79b1) >> 24;
        let (known, then) = self.recent[hash as usize];
        if known == key {
            return then;
        }
        let then = self.change_slowly(key);
        self.recent[hash as usize] = (key, then);
        then
    }

    #[inline(never)]
    fn change_slowly(&mut self, key: Key) -> u32 {
        if let Some(&then) = self.after.get(&key) {
            return then;
        }
        let (set, mark, change) = key;
        let mut marks = self.sets[set as usize].clone();
        let bytes = mark.how & BYTES;
        let alike =
            |known: &Mark| known.actor() == mark.actor() && known.how & STRONG == mark.how & STRONG;
        for known in &mut marks {
            let stays = match change {
                Change::Read => !alike(known),
                Change::Write => known.how & mark.how & STRONG != 0 && !alike(known),
                Change::Forget => false,
            };
            known.how &= if stays { !0 } else { !bytes };
        }
        if change != Change::Forget {
            match marks.iter_mut().find(|known| known.epoch == mark.epoch && alike(known)) {
                Some(known) => known.how |= bytes,
                None => marks.push(mark),
            }
        }
        marks.retain(|known| known.how & BYTES != 0);
        let then = if marks.is_empty() { 0 } else { self.sets.len() as u32 };
        if then != 0 {
            self.sets.push(marks);
        }
        self.after.insert(key, then);
        then
    }

    /// Whether there are so many sets that it is time to look which are in use.
    #[inline(always)]
    pub fn are_many(&self) -> bool {
        self.sets.len() >= self.limit
    }

    /// Gives up all sets but those with these numbers, which change.
    pub fn keep<'n>(&mut self, numbers: impl Iterator<Item = &'n mut u32>) {
        let mut old = std::mem::replace(self, Sets::new()).sets;
        let mut new = vec![0; old.len()];
        for number in numbers.filter(|number| **number & !FLAG != 0) {
            let place = (*number & !FLAG) as usize;
            if new[place] == 0 {
                new[place] = self.sets.len() as u32;
                self.sets.push(std::mem::take(&mut old[place]));
            }
            *number = new[place] | *number & FLAG;
        }
        self.limit = LIMIT.max(2 * self.sets.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(actor: u32, clock: u32, how: u32) -> Mark {
        Mark { epoch: actor << CLOCK_BITS | clock, how }
    }

    #[test]
    fn a_later_read_of_an_actor_replaces_its_bytes() {
        let mut sets = Sets::new();
        let first = sets.read(0, mark(1, 1, BYTES));
        let second = sets.read(first, mark(1, 2, 3));
        assert_eq!(sets.of(second), [mark(1, 1, 12), mark(1, 2, 3)]);
        let third = sets.read(second, mark(2, 1, BYTES | STRONG));
        let third = sets.read(third, mark(1, 3, BYTES));
        assert_eq!(sets.of(third), [mark(2, 1, BYTES | STRONG), mark(1, 3, BYTES)]);
        assert_eq!(sets.read(0, mark(1, 1, BYTES)), first);
    }

    #[test]
    fn a_write_replaces_what_others_wrote_to_its_bytes() {
        let mut sets = Sets::new();
        let whole = sets.write(0, mark(1, 1, BYTES));
        let half = sets.write(whole, mark(2, 1, 3));
        assert_eq!(sets.of(half), [mark(1, 1, 12), mark(2, 1, 3)]);
        let both = sets.write(half, mark(2, 1, 12));
        assert_eq!(sets.of(both), [mark(2, 1, BYTES)]);
        assert_eq!(sets.forget(both, BYTES), 0);
    }

    #[test]
    fn strong_writes_are_all_kept_until_a_plain_one() {
        let mut sets = Sets::new();
        let one = sets.write(0, mark(1, 1, BYTES | STRONG));
        let two = sets.write(one, mark(2, 1, BYTES | STRONG));
        let two = sets.write(two, mark(1, 4, BYTES | STRONG));
        assert_eq!(sets.of(two), [mark(2, 1, BYTES | STRONG), mark(1, 4, BYTES | STRONG)]);
        let plain = sets.write(two, mark(3, 1, BYTES));
        assert_eq!(sets.of(plain), [mark(3, 1, BYTES)]);
    }

    #[test]
    fn sets_that_nobody_uses_are_given_up() {
        let mut sets = Sets::new();
        let mut set = 0;
        let mut clock = 0;
        while !sets.are_many() {
            clock += 1;
            set = sets.read(set, mark(clock % 7, clock, BYTES));
        }
        let (before, mut empty, mut same) = (sets.of(set).to_vec(), FLAG, set | FLAG);
        sets.keep([&mut set, &mut empty, &mut same].into_iter());
        assert_eq!((sets.of(set), empty, same, sets.sets.len()), (&before[..], FLAG, set | FLAG, 2));
    }
}
