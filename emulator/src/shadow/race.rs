//! Which accesses to the shared memory of a cluster are ordered, which is a block where there are no
//! clusters.
//!
//! Vector clocks, as in other race detectors, with two additions for the asynchronous proxy. Bulk copies
//! and multiplications are actors of their own, whose clocks count phases and groups: waiting is what
//! makes them known. And every warp has two clocks: what its own accesses come after, and which accesses
//! of threads the asynchronous proxy can see; `fence.proxy.async` makes the second catch up.
//!
//! The proxy needs that fence behind what threads wrote before it reads or writes the bytes, and behind what
//! they read before it writes them: an arrival at a memory barrier, or any other meeting of threads, orders
//! accesses of one proxy only. The reader may execute it before it arrives, or whoever starts the copy after
//! having waited. The other way round, what the proxy read or wrote is ordered by the wait for it alone.
//!
//! For each word of shared memory there are the last writes, and the reads since, each with its bytes. An
//! access is an epoch: an actor and its clock. Strong accesses of threads are in each other's way no more
//! than reads are, but in that of all others.

use super::actor::Actor;
use super::cells::{Cell, Look, Sweep, are_all, fill, sets_of};
use super::clock::{CLOCK, CLOCK_BITS, View};
use super::global::parts;
use super::lanes::Lanes;
use super::meetings::Mbarrier;
use super::orders::{Scope, Strong};
use super::sets::{BYTES, NARROW, STRONG, Sets};
use foldhash::fast::FixedState;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

/// Bytes of a word.
pub const WORD: u32 = 4;
/// Words of 16 elements of 16 bits.
const PIECE_WORDS: usize = 8;
/// Actors that an epoch can name.
const MAX_ACTORS: usize = 1 << (32 - CLOCK_BITS);

/// What a copy of the asynchronous proxy does with bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copying {
    Reads,
    Writes,
    /// Each element strongly: in no other such copy's way.
    Reduces,
}

/// Two accesses that are not ordered, or not for the asynchronous proxy.
#[derive(Clone, Copy, Debug)]
pub struct Conflict {
    /// Who accesses now.
    pub own: Actor,
    /// Who did before.
    pub other: Actor,
    /// Whether that was a write.
    pub wrote: bool,
    /// The instruction of the other, if it is the last that did so there.
    pub other_pc: Option<u32>,
    /// Offset in shared memory.
    pub offset: u32,
    /// The two are ordered, and only the fence between the proxies is missing; or a barrier lives here.
    pub fenceless: bool,
}

/// Reads by a multiplication. There are many of many words each: they are looked up when somebody asks.
#[derive(Clone, Debug)]
struct OperandRead {
    place: Place,
    ranges: Arc<[Range<u32>]>,
}

/// Reads by multiplications that are remembered, for reports: those of a block of eight warps in its last
/// thousand multiplications. Of older ones a report does not name the instruction.
const OPERANDS: usize = 1 << 14;

/// Which instruction an access was, above it the epoch. In one number, so that many are filled together.
#[derive(Clone, Copy, Debug, Default)]
struct Place(u64);

impl Place {
    #[inline(always)]
    fn new(epoch: u32, pc: u32) -> Self {
        Place(u64::from(epoch) << 32 | u64::from(pc))
    }

    fn epoch(self) -> u32 {
        (self.0 >> 32) as u32
    }

    fn pc(self) -> u32 {
        self.0 as u32
    }
}

/// The shadow of a block's shared memory.
#[derive(Debug)]
pub struct Race {
    /// The instruction whose accesses are told of.
    pub pc: u32,
    /// The lanes of each warp.
    pub lanes: Lanes,
    cells: Vec<Cell>,
    /// The last write and the last read of each word, for reports,
    writers: Vec<Place>,
    readers: Vec<Place>,
    /// and the last reads by multiplications.
    operands: VecDeque<OperandRead>,
    sets: Sets,
    actors: Vec<Actor>,
    numbers: HashMap<Actor, usize, FixedState>,
    pub(super) warps: Vec<View>,
    /// Warps of a block: the first of the cluster has the first ones.
    pub(super) of_block: u32,
    /// Position of the rank of a block in its shared addresses.
    pub(super) rank_shift: u32,
    pub(super) mbarriers: HashMap<u32, Mbarrier, FixedState>,
    pub(super) barriers: HashMap<u32, View, FixedState>,
    /// What each warp's strong accesses have to do with others.
    pub(super) strong: Vec<Strong>,
    /// What was made known through each address of a strong access to a block, by its rank, or to all of the
    /// cluster, and how often that grew.
    pub(super) places: HashMap<(u64, u32), (View, u32), FixedState>,
}

impl Race {
    /// The shadow of so many bytes and warps, of which a block has some; where the rank of a block stands in
    /// its addresses.
    pub fn new(bytes: usize, warps: u32, of_block: u32, rank_shift: u32) -> Self {
        let words = bytes.div_ceil(WORD as usize);
        let [writers, readers] = [(); 2].map(|()| vec![Place::default(); words]);
        let lanes = Lanes::new(words, warps);
        Race::with(vec![Cell::default(); words], writers, readers, lanes, [warps, of_block, rank_shift])
    }

    /// The shadow of another block of the same size. Writers and readers need not be forgotten: they are
    /// asked for only where a cell says that somebody wrote or read.
    pub fn reset(self) -> Self {
        let Race { mut cells, writers, readers, mut lanes, warps, of_block, rank_shift, .. } = self;
        cells.fill(Cell::default());
        lanes.reset();
        let numbers = [warps.len() as u32, of_block, rank_shift];
        Race::with(cells, writers, readers, lanes, numbers)
    }

    fn with(
        cells: Vec<Cell>,
        writers: Vec<Place>,
        readers: Vec<Place>,
        lanes: Lanes,
        [warps, of_block, rank_shift]: [u32; 3],
    ) -> Self {
        let mut race = Race {
            pc: 0,
            cells,
            writers,
            readers,
            operands: VecDeque::new(),
            lanes,
            sets: Sets::new(),
            actors: Vec::new(),
            numbers: HashMap::default(),
            warps: vec![View::default(); warps as usize],
            of_block,
            rank_shift,
            mbarriers: HashMap::default(),
            barriers: HashMap::default(),
            strong: vec![Strong::default(); warps as usize],
            places: HashMap::default(),
        };
        for warp in 0..warps {
            race.number(Actor::Warp(warp));
            race.warps[warp as usize].threads.raise(warp as usize, 1);
        }
        // The numbers of these two are computed elsewhere.
        for actor in (0..warps).map(Actor::Wgmma).chain((0..warps).map(Actor::Copy)) {
            race.number(actor);
        }
        race
    }

    /// The number of an actor; too many share the last.
    pub(super) fn number(&mut self, actor: Actor) -> usize {
        if let Some(&number) = self.numbers.get(&actor) {
            return number;
        }
        let number = self.actors.len();
        if number >= MAX_ACTORS {
            return MAX_ACTORS - 1;
        }
        self.actors.push(actor);
        self.numbers.insert(actor, number);
        number
    }

    /// The number of what completes at a memory barrier.
    pub fn loads_of(&mut self, barrier: u32) -> u32 {
        self.number(Actor::Load(barrier)) as u32
    }

    pub(super) fn actor_of(epoch: u32) -> usize {
        (epoch >> CLOCK_BITS) as usize
    }

    pub(super) fn epoch(number: usize, clock: u32) -> u32 {
        (number as u32) << CLOCK_BITS | clock.min(CLOCK)
    }

    /// What a warp's threads do now.
    #[inline(always)]
    pub(super) fn now(&self, warp: u32) -> u32 {
        Race::epoch(warp as usize, self.clock(warp))
    }

    /// Accesses of a warp's threads, of so many bytes each; `strong`: for whom.
    #[inline(always)]
    pub fn accesses(&self, warp: u32, bytes: u32, write: bool, strong: Option<Scope>) -> Sweep {
        let how = match strong {
            None => BYTES,
            Some(Scope::Block) if self.has_clusters() => BYTES | STRONG | NARROW,
            Some(_) => BYTES | STRONG,
        };
        let look = Look { epoch: self.now(warp), how, write, asynchronous: false, warps: self.of_block };
        Sweep::new(warp, look, bytes >= WORD)
    }

    /// One access of a warp's threads.
    pub fn access(&mut self, warp: u32, offset: u32, bytes: u32, write: bool) -> Option<Conflict> {
        self.sweep(&mut self.accesses(warp, bytes, write, None), offset, bytes)
    }

    /// The epoch of a warp's copies that have not been waited for.
    fn copying(&self, warp: u32) -> u32 {
        Race::epoch(2 * self.warps.len() + warp as usize, CLOCK)
    }

    /// The `cp.async` copies of a warp that begin. Nobody else may come near before they have been waited
    /// for.
    pub fn copies(&self, warp: u32) -> Sweep {
        let look = Look {
            epoch: self.copying(warp),
            how: BYTES,
            write: true,
            asynchronous: false,
            warps: self.of_block,
        };
        Sweep::new(warp, look, true)
    }

    /// It has been waited for: now it is as if the warp had written itself.
    #[inline(always)]
    pub fn copy_ends(&mut self, warp: u32, offset: u32, bytes: u32) {
        let begun = self.copying(warp);
        let write = self.now(warp);
        let (first, end) = ((offset / WORD) as usize, (offset + bytes).div_ceil(WORD) as usize);
        let Race { cells, sets, .. } = self;
        for cell in cells[first..end].iter_mut().filter(|cell| cell.is_written_by(begun, sets)) {
            *cell = Cell::written(write);
        }
        for place in self.writers[first..end].iter_mut().filter(|place| place.epoch() == begun) {
            *place = Place::new(write, place.pc());
        }
    }

    /// What an actor accesses that a warp has started; `clock` is what a wait will make known.
    fn look_of(&mut self, actor: Actor, clock: u32, write: bool) -> Look {
        let epoch = Race::epoch(self.number(actor), clock);
        Look { epoch, how: BYTES, write, asynchronous: false, warps: self.of_block }
    }

    /// Writes that a warp has started and does not wait for: whoever waits for the memory barrier sees them.
    pub fn store_later(
        &mut self,
        warp: u32,
        actor: Actor,
        clock: u32,
        offset: u32,
        bytes: u32,
    ) -> Option<Conflict> {
        let look = self.look_of(actor, clock, true);
        self.sweep(&mut Sweep::new(warp, look, bytes >= WORD), offset, bytes)
    }

    /// An access of the asynchronous proxy that a warp issued; `clock` is what a wait will make known.
    pub fn asynchronous(
        &mut self,
        warp: u32,
        actor: Actor,
        clock: u32,
        bytes: Range<u32>,
        copying: Copying,
    ) -> Option<Conflict> {
        let look = self.look_of(actor, clock, copying != Copying::Reads);
        let how = if copying == Copying::Reduces { look.how | STRONG } else { look.how };
        let look = Look { asynchronous: true, how, ..look };
        self.sweep(&mut Sweep::new(warp, look, true), bytes.start, bytes.end - bytes.start)
    }

    /// Reads of ranges of whole words by a multiplication of a warp.
    #[inline(always)]
    pub fn operand(&mut self, warp: u32, group: u32, ranges: &Arc<[Range<u32>]>) -> Option<Conflict> {
        let number = self.warps.len() + warp as usize;
        let epoch = Race::epoch(number, group);
        let look = Look { epoch, how: BYTES, write: false, asynchronous: true, warps: self.of_block };
        let mut sweep = Sweep::new(warp, look, true);
        let mut found = None;
        for range in ranges.iter() {
            let (first, end) = ((range.start / WORD) as usize, (range.end / WORD) as usize);
            let conflict = self.sweep_cells(&mut sweep, first, end - first);
            found = found.or(conflict);
        }
        if self.operands.len() == OPERANDS {
            self.operands.pop_front();
        }
        let place = Place::new(epoch, self.pc);
        self.operands.push_back(OperandRead { place, ranges: ranges.clone() });
        found
    }

    /// The next range of an instruction.
    #[inline(always)]
    pub fn sweep(&mut self, sweep: &mut Sweep, offset: u32, bytes: u32) -> Option<Conflict> {
        if !sweep.whole {
            return self.sweep_parts(sweep, offset, bytes);
        }
        let first = (offset / WORD) as usize;
        let last = ((offset + bytes.max(1) - 1) / WORD) as usize;
        self.sweep_words(sweep, first, last + 1 - first)
    }

    /// A range that begins or ends within a word.
    #[inline(never)]
    fn sweep_parts(&mut self, sweep: &mut Sweep, offset: u32, bytes: u32) -> Option<Conflict> {
        let mut found = None;
        for (words, bytes) in parts(u64::from(offset), bytes) {
            if !words.is_empty() {
                sweep.take(bytes);
                let (first, end) = (words.start as usize, words.end as usize);
                let conflict = self.sweep_words(sweep, first, end - first);
                found = found.or(conflict);
            }
        }
        found
    }

    #[inline(always)]
    fn sweep_words(&mut self, sweep: &mut Sweep, first: usize, count: usize) -> Option<Conflict> {
        let found = self.sweep_cells(sweep, first, count);
        let places = if sweep.look.write { &mut self.writers } else { &mut self.readers };
        fill(&mut places[first..][..count], Place::new(sweep.look.epoch, self.pc));
        found
    }

    /// [`Race::sweep_words`], with no note of the instruction.
    #[inline(always)]
    fn sweep_cells(&mut self, sweep: &mut Sweep, first: usize, count: usize) -> Option<Conflict> {
        let mut found = None;
        if count == PIECE_WORDS {
            // Rows of operands.
            let cells = &mut self.cells[first..first + PIECE_WORDS];
            if are_all(cells, sweep.known) {
                cells.fill(sweep.next);
                return None;
            }
        }
        if self.cells[first] != sweep.known {
            found = self.meet(sweep, first);
        }
        let cells = &mut self.cells[first..][..count];
        if are_all(cells, sweep.known) {
            fill(cells, sweep.next);
        } else {
            for word in first..first + count {
                if self.cells[word] != sweep.known {
                    let conflict = self.meet(sweep, word);
                    found = found.or(conflict);
                }
                self.cells[word] = sweep.next;
            }
        }
        found
    }

    /// An instruction meets a cell that is not like the one before.
    #[inline(never)]
    fn meet(&mut self, sweep: &mut Sweep, word: usize) -> Option<Conflict> {
        let Sweep { warp, look, known, next, .. } = sweep;
        let cell = self.cells[word];
        *known = cell;
        *next = cell.after(look, &mut self.sets);
        let view = &self.warps[*warp as usize];
        let (epoch, wrote, fenceless) = cell.check(&self.sets, view, look)?;
        let actor = |epoch: u32| self.actors[Race::actor_of(epoch)];
        Some(Conflict {
            own: actor(look.epoch),
            other: actor(epoch),
            wrote,
            other_pc: self.pc_of(word, epoch, wrote),
            offset: word as u32 * WORD,
            fenceless: fenceless || matches!(actor(epoch), Actor::Mbarrier(_)),
        })
    }

    /// The instruction of an access to a word, unless somebody else did the same since, or, of a read by a
    /// multiplication, many others did.
    fn pc_of(&self, word: usize, epoch: u32, wrote: bool) -> Option<u32> {
        let place = if wrote { self.writers[word] } else { self.readers[word] };
        if wrote || place.epoch() == epoch {
            return (place.epoch() == epoch).then_some(place.pc());
        }
        let offset = word as u32 * WORD;
        let is_it = |read: &&OperandRead| {
            read.place.epoch() == epoch && read.ranges.iter().any(|range| range.contains(&offset))
        };
        self.operands.iter().rev().find(is_it).map(|read| read.place.pc())
    }

    /// A warp lets others know what it has done, and goes on to the next clock.
    pub(super) fn release(&mut self, warp: u32) -> View {
        let number = warp as usize;
        let view = &mut self.warps[number];
        let released = view.clone();
        let next = view.threads.get(number) + 1;
        view.threads.raise(number, next);
        self.trim();
        released
    }

    /// Gives up sets that no word has any more, from time to time.
    #[inline(always)]
    fn trim(&mut self) {
        if self.sets.are_many() {
            self.sets.keep(sets_of(&mut self.cells));
        }
    }

    /// Lanes of a warp meet: what they did is known to each of them.
    pub fn lanes_meet(&mut self, warp: u32, lanes: u32) {
        let number = warp as usize;
        let view = &mut self.warps[number];
        let clock = view.threads.get(number);
        if self.lanes.meet(warp, lanes, clock) {
            view.threads.raise(number, clock + 1);
        }
    }

    /// Lanes of a warp have waited for a memory barrier, which comes after so many arrivals of the warp: they
    /// meet if all are among those who arrived.
    pub fn lanes_wait(&mut self, warp: u32, lanes: u32, arrivals: u32) {
        if self.lanes.wait(warp, lanes, arrivals) {
            self.lanes_meet(warp, lanes);
        }
    }

    /// A warp has waited for an actor.
    pub fn complete(&mut self, warp: u32, actor: Actor, clock: u32) {
        let number = self.number(actor);
        let view = &mut self.warps[warp as usize];
        view.threads.raise(number, clock);
        view.proxy.raise(number, clock);
        self.trim();
    }

    /// From now on bytes are as if they had been written so, and by the current instruction.
    pub(super) fn fill(&mut self, offset: u32, bytes: u32, epoch: u32) {
        let (first, end) = ((offset / WORD) as usize, (offset + bytes).div_ceil(WORD) as usize);
        self.cells[first..end].fill(Cell::written(epoch));
        self.writers[first..end].fill(Place::new(epoch, self.pc));
    }
}

#[cfg(test)]
#[path = "race_tests.rs"]
mod tests;
