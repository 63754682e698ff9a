//! Which accesses of a warp's lanes to shared memory are ordered, where parts of the warp meet.
//!
//! A vector clock for each lane, as other race detectors have for each thread. Slower than [`super::lanes`],
//! and exact.

use super::lanes::{LANES, LaneConflict, Words};
use foldhash::fast::FixedState;
use std::collections::{HashMap, VecDeque};

/// A lane and its clock.
type Moment = (u8, u32);
/// A clock of each lane.
type Clocks = [u32; LANES];

/// Arrivals that are remembered: a wait that comes after earlier ones only is taken to come after none.
const ARRIVALS: usize = 256;

/// The writes of a word that no later one comes after, and the reads since.
#[derive(Clone, Debug, Default)]
struct Word {
    writes: Vec<Moment>,
    reads: Vec<Moment>,
}

/// The lanes of a warp.
#[derive(Clone, Debug)]
pub struct LaneClocks {
    /// The clock of each, from 1.
    now: Clocks,
    /// Up to which clock each knows the others.
    known: [Clocks; LANES],
    /// The latest arrivals at memory barriers, by the warp's count, and what those know who wait for one that
    /// comes after them.
    arrived: VecDeque<(u32, Clocks)>,
    /// When each accessed something last.
    last: Clocks,
    /// The warp's clock when each last met others.
    met: Clocks,
    words: HashMap<usize, Word, FixedState>,
}

fn members(lanes: u32) -> impl Iterator<Item = usize> + Clone {
    (0..LANES).filter(move |lane| lanes >> lane & 1 != 0)
}

/// Knows what another one knows.
fn learn(own: &mut Clocks, other: &Clocks) {
    own.iter_mut().zip(other).for_each(|(own, &other)| *own = (*own).max(other));
}

impl LaneClocks {
    /// Of lanes that have done nothing.
    pub fn new() -> Self {
        let none = [0; LANES];
        LaneClocks {
            now: [1; LANES],
            known: [none; LANES],
            arrived: VecDeque::new(),
            last: none,
            met: none,
            words: HashMap::default(),
        }
    }

    /// An instruction of the warp.
    #[cold]
    pub fn access(&mut self, words: Words<'_>, write: bool) -> Option<LaneConflict> {
        members(words.lanes).for_each(|lane| self.last[lane] = self.now[lane]);
        let mut found = None;
        let range = |first: usize| first..first + words.count as usize;
        // Lanes of one instruction do not come one after the other.
        for (lane, first) in words.lanes() {
            for word in range(first) {
                let known = &self.known[lane as usize];
                found = found.or_else(|| conflict(self.words.get(&word)?, known, lane, word, write));
            }
        }
        for (lane, first) in words.lanes() {
            let (known, now) = (&self.known[lane as usize], self.now[lane as usize]);
            let stays =
                |&(other, clock): &Moment| u32::from(other) != lane && known[usize::from(other)] < clock;
            for word in range(first) {
                let Word { writes, reads } = self.words.entry(word).or_default();
                if write {
                    writes.retain(stays);
                    writes.push((lane as u8, now));
                }
                reads.retain(stays);
                if !write {
                    reads.push((lane as u8, now));
                }
            }
        }
        found
    }

    /// A bulk copy that a lane starts.
    #[cold]
    pub fn copy(&self, lane: u32, offset: u32, bytes: u32, write: bool) -> Option<LaneConflict> {
        // Lanes that have arrived at a memory barrier are taken to be those that this one has waited for.
        let mut known = self.known[lane as usize];
        if let Some((_, arrived)) = self.arrived.back() {
            learn(&mut known, arrived);
        }
        let (first, end) = (offset as usize / 4, (offset + bytes).div_ceil(4) as usize);
        (first..end).find_map(|word| conflict(self.words.get(&word)?, &known, lane, word, write))
    }

    /// These lanes meet; whether they did something since they last met. `clock` is the warp's.
    #[cold]
    pub fn meet(&mut self, lanes: u32, clock: u32) -> bool {
        let mut all = [0; LANES];
        let mut acted = false;
        for lane in members(lanes) {
            learn(&mut all, &self.known[lane]);
            all[lane] = self.now[lane];
            acted |= self.last[lane] == self.now[lane];
        }
        for lane in members(lanes) {
            self.known[lane] = all;
            self.now[lane] += 1;
            if acted {
                self.met[lane] = clock;
            }
        }
        if lanes == !0 {
            self.words.clear();
        }
        acted
    }

    /// These lanes have waited for a memory barrier, which comes after so many arrivals of the warp.
    #[cold]
    pub fn wait(&mut self, lanes: u32, arrivals: u32) {
        let seen = self.arrived.iter().rev().find(|(arrival, _)| *arrival <= arrivals);
        if let Some((_, arrived)) = seen {
            members(lanes).for_each(|lane| learn(&mut self.known[lane], arrived));
        }
    }

    /// These lanes arrive at a memory barrier, an arrival of this number. How much of the warp's clock that
    /// makes known, if not all of it: those with whom they meet, or anybody if they never did, accessed
    /// something since.
    #[cold]
    pub fn arrive(&mut self, lanes: u32, arrival: u32) -> Option<u32> {
        let knows = |other: usize, clock: u32| {
            members(lanes).any(|lane| lane == other || self.known[lane][other] >= clock)
        };
        let alone = (0..LANES).all(|other| lanes >> other & 1 != 0 || !knows(other, 1));
        let unknown = |&other: &usize| {
            let last = self.last[other];
            last != 0 && !knows(other, last) && (alone || knows(other, 1))
        };
        let is_short = (0..LANES).any(|other| unknown(&other));
        let clock = members(lanes).map(|lane| self.met[lane]).min();
        let mut arrived = self.arrived.back().map_or([0; LANES], |(_, arrived)| *arrived);
        for lane in members(lanes) {
            learn(&mut arrived, &self.known[lane]);
            arrived[lane] = self.now[lane];
            self.now[lane] += 1;
        }
        self.arrived.push_back((arrival, arrived));
        if self.arrived.len() > ARRIVALS {
            self.arrived.pop_front();
        }
        clock.filter(|_| is_short)
    }
}

/// What is wrong with an access of a word by a lane that knows so much of the others.
fn conflict(word: &Word, known: &Clocks, lane: u32, index: usize, write: bool) -> Option<LaneConflict> {
    let unknown =
        |&&(other, clock): &&Moment| u32::from(other) != lane && known[usize::from(other)] < clock;
    let find = |moments: &[Moment], wrote: bool| {
        let mut others = moments.iter().filter(unknown);
        let first = u32::from(others.next()?.0);
        let other = others.next().is_none().then_some(first);
        Some(LaneConflict { lane, other, wrote, offset: index as u64 * 4 })
    };
    find(&word.writes, true).or_else(|| if write { find(&word.reads, false) } else { None })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOW: u32 = 0xffff;

    /// An access of each lane to the word that it is given.
    fn access(lanes: &mut LaneClocks, who: &[(u32, u64)], write: bool) -> Option<LaneConflict> {
        let mut offsets = [0; LANES];
        who.iter().for_each(|&(lane, word)| offsets[lane as usize] = word * 4);
        let mask = who.iter().fold(0, |mask, &(lane, _)| mask | 1 << lane);
        lanes.access(Words { offsets: &offsets, lanes: mask, count: 1, contiguous: false }, write)
    }

    #[test]
    fn a_part_that_meets_orders_its_own_accesses_alone() {
        let mut lanes = LaneClocks::new();
        assert_eq!(access(&mut lanes, &[(0, 0), (15, 15), (16, 16)], true), None);
        assert!(lanes.meet(LOW, 1));
        assert_eq!(access(&mut lanes, &[(3, 0), (4, 15)], false), None);
        let conflict = access(&mut lanes, &[(3, 16)], false);
        assert_eq!(conflict, Some(LaneConflict { lane: 3, other: Some(16), wrote: true, offset: 64 }));
        let conflict = access(&mut lanes, &[(20, 0)], false);
        assert_eq!(conflict, Some(LaneConflict { lane: 20, other: Some(0), wrote: true, offset: 0 }));
        // Lane 4 passes on what it has learnt.
        assert!(lanes.meet(1 << 4 | 1 << 20, 2));
        assert_eq!(access(&mut lanes, &[(20, 0)], false), None);
        assert_eq!(access(&mut lanes, &[(20, 15)], true), None);
    }

    #[test]
    fn readers_of_a_part_are_all_remembered() {
        let mut lanes = LaneClocks::new();
        assert_eq!(access(&mut lanes, &[(0, 7), (1, 7), (20, 7)], false), None);
        lanes.meet(LOW, 1);
        let conflict = access(&mut lanes, &[(0, 7)], true);
        assert_eq!(conflict, Some(LaneConflict { lane: 0, other: Some(20), wrote: false, offset: 28 }));
        lanes.meet(!0, 2);
        assert_eq!(access(&mut lanes, &[(31, 7), (30, 7)], true), None);
        let conflict = access(&mut lanes, &[(30, 7)], false);
        assert_eq!(conflict, Some(LaneConflict { lane: 30, other: Some(31), wrote: true, offset: 28 }));
    }

    #[test]
    fn a_lane_speaks_for_those_it_has_met_at_a_memory_barrier() {
        let mut lanes = LaneClocks::new();
        access(&mut lanes, &[(0, 0), (1, 1), (16, 16)], true);
        assert_eq!(lanes.arrive(1, 1), Some(0));
        assert!(lanes.meet(LOW, 5));
        assert_eq!(lanes.arrive(1, 2), None);
        access(&mut lanes, &[(1, 1)], true);
        assert_eq!(lanes.arrive(1, 3), Some(5));
        // Who has waited knows what lane 0 did and knew, if that comes after its arrival.
        lanes.wait(1 << 16, 0);
        assert!(access(&mut lanes, &[(16, 0)], false).is_some());
        lanes.wait(1 << 16, 2);
        assert_eq!(access(&mut lanes, &[(16, 0)], true), None);
        assert!(access(&mut lanes, &[(16, 1)], false).is_some());
        assert!(lanes.copy(16, 4, 4, false).is_some() && lanes.copy(16, 0, 4, true).is_none());
    }
}
