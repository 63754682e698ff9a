//! Which accesses to the shared memory of a block are ordered.
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
//! For each word of shared memory there is the last write, and the set of reads since. An access is an
//! epoch: an actor and its clock.

use super::actor::Actor;
use super::clock::{CLOCK, CLOCK_BITS, ReadSets, View};
use super::lanes::Lanes;
use super::orders::Strong;
use foldhash::fast::FixedState;
use std::collections::HashMap;
use std::ops::Range;

/// Bytes of a word.
pub const WORD: u32 = 4;
/// Actors that an epoch can name.
const MAX_ACTORS: usize = 1 << (32 - CLOCK_BITS);

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

/// The last write of a word and the reads since.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Cell {
    write: u32,
    reads: u32,
}

impl Cell {
    /// Not 0 if it differs.
    #[inline(always)]
    fn differs(self, other: Cell) -> u32 {
        (self.write ^ other.write) | (self.reads ^ other.reads)
    }
}

/// Which instruction an access was.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    epoch: u32,
    pc: u32,
}

/// The shadow of a block's shared memory.
#[derive(Debug)]
pub struct Race {
    /// The instruction whose accesses are told of.
    pub pc: u32,
    /// The lanes of each warp.
    pub lanes: Lanes,
    cells: Vec<Cell>,
    /// The last write and the last read of each word, for reports.
    writers: Vec<Place>,
    readers: Vec<Place>,
    reads: ReadSets,
    actors: Vec<Actor>,
    numbers: HashMap<Actor, usize, FixedState>,
    pub(super) warps: Vec<View>,
    /// Arrivals of the current phase, and what completed phases made known.
    mbarriers: HashMap<u32, View, FixedState>,
    barriers: HashMap<u32, View, FixedState>,
    /// When each memory barrier began to live.
    begun: HashMap<u32, u32, FixedState>,
    met: View,
    /// What each warp's strong accesses have to do with other blocks.
    pub(super) strong: Vec<Strong>,
}

/// How one access looks at the cells.
#[derive(Clone, Copy)]
struct Look {
    epoch: u32,
    write: bool,
    asynchronous: bool,
    /// Whether smaller pieces than a word are accessed, which other warps may share.
    partial: bool,
    /// Actors below this number are warps.
    warps: u32,
}

/// An instruction of a warp that accesses one range after the other.
pub struct Sweep {
    warp: u32,
    look: Look,
    /// The last cell that it met, and what becomes of it: neighbours nearly always look alike.
    known: Cell,
    next: Cell,
}

impl Sweep {
    fn new(warp: u32, look: Look) -> Self {
        let known = Cell { write: u32::MAX, reads: u32::MAX };
        Sweep { warp, look, known, next: Cell::default() }
    }
}

impl Race {
    /// The shadow of so many bytes and warps.
    pub fn new(bytes: usize, warps: u32) -> Self {
        let words = bytes.div_ceil(WORD as usize);
        let [writers, readers] = [(); 2].map(|()| vec![Place::default(); words]);
        Race::with(vec![Cell::default(); words], writers, readers, Lanes::new(words, warps), warps)
    }

    /// The shadow of another block of the same size. Writers and readers need not be forgotten: they are
    /// asked for only where a cell says that somebody wrote or read.
    pub fn reset(self) -> Self {
        let Race { mut cells, writers, readers, mut lanes, warps, .. } = self;
        cells.fill(Cell::default());
        lanes.reset();
        Race::with(cells, writers, readers, lanes, warps.len() as u32)
    }

    fn with(
        cells: Vec<Cell>,
        writers: Vec<Place>,
        readers: Vec<Place>,
        lanes: Lanes,
        warps: u32,
    ) -> Self {
        let mut race = Race {
            pc: 0,
            cells,
            writers,
            readers,
            lanes,
            reads: ReadSets::new(),
            actors: Vec::new(),
            numbers: HashMap::default(),
            warps: vec![View::default(); warps as usize],
            mbarriers: HashMap::default(),
            barriers: HashMap::default(),
            begun: HashMap::default(),
            met: View::default(),
            strong: vec![Strong::default(); warps as usize],
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
    fn number(&mut self, actor: Actor) -> usize {
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

    fn epoch(number: usize, clock: u32) -> u32 {
        (number as u32) << CLOCK_BITS | clock.min(CLOCK)
    }

    /// Accesses of a warp's threads, of so many bytes each.
    #[inline(always)]
    pub fn accesses(&self, warp: u32, bytes: u32, write: bool) -> Sweep {
        let epoch = Race::epoch(warp as usize, self.warps[warp as usize].threads.get(warp as usize));
        let (warps, partial) = (self.warps.len() as u32, bytes < WORD);
        Sweep::new(warp, Look { epoch, write, asynchronous: false, partial, warps })
    }

    /// One access of a warp's threads.
    pub fn access(&mut self, warp: u32, offset: u32, bytes: u32, write: bool) -> Option<Conflict> {
        self.sweep(&mut self.accesses(warp, bytes, write), offset, bytes)
    }

    /// The epoch of a warp's copies that have not been waited for.
    fn copying(&self, warp: u32) -> u32 {
        Race::epoch(2 * self.warps.len() + warp as usize, CLOCK)
    }

    /// The `cp.async` copies of a warp that begin, and will write so many bytes each. Nobody else may come
    /// near before they have been waited for.
    pub fn copies(&self, warp: u32, bytes: u32) -> Sweep {
        let (warps, partial) = (self.warps.len() as u32, bytes < WORD);
        let epoch = self.copying(warp);
        Sweep::new(warp, Look { epoch, write: true, asynchronous: false, partial, warps })
    }

    /// It has been waited for: now it is as if the warp had written itself.
    pub fn copy_ends(&mut self, warp: u32, offset: u32, bytes: u32) {
        let begun = self.copying(warp);
        let write = Race::epoch(warp as usize, self.warps[warp as usize].threads.get(warp as usize));
        let (first, end) = ((offset / WORD) as usize, (offset + bytes).div_ceil(WORD) as usize);
        for cell in self.cells[first..end].iter_mut().filter(|cell| cell.write == begun) {
            *cell = Cell { write, reads: 0 };
        }
        for place in self.writers[first..end].iter_mut().filter(|place| place.epoch == begun) {
            place.epoch = write;
        }
    }

    /// An access of the asynchronous proxy that a warp issued; `clock` is what a wait will make known.
    pub fn asynchronous(
        &mut self,
        warp: u32,
        actor: Actor,
        clock: u32,
        offset: u32,
        bytes: u32,
        write: bool,
    ) -> Option<Conflict> {
        let epoch = Race::epoch(self.number(actor), clock);
        let look = Look { epoch, write, asynchronous: true, partial: false, warps: 0 };
        self.sweep(&mut Sweep::new(warp, look), offset, bytes)
    }

    /// Reads of ranges by a multiplication of a warp.
    #[inline(always)]
    pub fn operand(&mut self, warp: u32, group: u32, ranges: &[Range<u32>]) -> Option<Conflict> {
        let number = self.warps.len() + warp as usize;
        let epoch = Race::epoch(number, group);
        let look = Look { epoch, write: false, asynchronous: true, partial: false, warps: 0 };
        let mut sweep = Sweep::new(warp, look);
        let mut found = None;
        for range in ranges {
            let conflict = self.sweep(&mut sweep, range.start, range.end - range.start);
            found = found.or(conflict);
        }
        found
    }

    /// The next range of an instruction.
    #[inline(always)]
    pub fn sweep(&mut self, sweep: &mut Sweep, offset: u32, bytes: u32) -> Option<Conflict> {
        let first = (offset / WORD) as usize;
        let last = ((offset + bytes.max(1) - 1) / WORD) as usize;
        self.sweep_words(sweep, first, last + 1 - first)
    }

    #[inline(always)]
    fn sweep_words(&mut self, sweep: &mut Sweep, first: usize, count: usize) -> Option<Conflict> {
        let mut found = None;
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
        let places = if sweep.look.write { &mut self.writers } else { &mut self.readers };
        fill(&mut places[first..][..count], Place { epoch: sweep.look.epoch, pc: self.pc });
        found
    }

    /// An instruction meets a cell that is not like the one before.
    #[inline(never)]
    fn meet(&mut self, sweep: &mut Sweep, word: usize) -> Option<Conflict> {
        let Sweep { warp, look, known, next } = sweep;
        let cell = self.cells[word];
        *known = cell;
        *next = if look.write {
            Cell { write: look.epoch, reads: 0 }
        } else {
            Cell { write: cell.write, reads: self.reads.add(cell.reads, look.epoch) }
        };
        let view = &self.warps[*warp as usize];
        let (epoch, wrote, fenceless) = check(&self.reads, view, look, cell)?;
        let actor = |epoch: u32| self.actors[(epoch >> CLOCK_BITS) as usize];
        Some(Conflict {
            own: actor(look.epoch),
            other: actor(epoch),
            wrote,
            other_pc: self.pc_of(word, epoch, wrote),
            offset: word as u32 * WORD,
            fenceless: fenceless || matches!(actor(epoch), Actor::Mbarrier(_)),
        })
    }

    /// The instruction of an access to a word, unless somebody else did the same since.
    fn pc_of(&self, word: usize, epoch: u32, wrote: bool) -> Option<u32> {
        let place = if wrote { self.writers[word] } else { self.readers[word] };
        (place.epoch == epoch).then_some(place.pc)
    }

    /// A warp lets others know what it has done, and goes on to the next clock.
    pub(super) fn release(&mut self, warp: u32) -> View {
        let number = warp as usize;
        let view = &mut self.warps[number];
        let released = view.clone();
        let next = view.threads.get(number) + 1;
        view.threads.raise(number, next);
        released
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

    /// Lanes of a warp have waited for a memory barrier: they meet if all arrived before.
    pub fn lanes_wait(&mut self, warp: u32, lanes: u32) {
        if self.lanes.wait(warp, lanes) {
            self.lanes_meet(warp, lanes);
        }
    }

    /// An arrival of some lanes at a memory barrier.
    pub fn release_to_mbarrier(&mut self, warp: u32, lanes: u32, address: u32) {
        let mut released = self.release(warp);
        if let Some(clock) = self.lanes.arrive(warp, lanes) {
            released.threads.lower(warp as usize, clock);
            released.proxy.lower(warp as usize, clock);
        }
        self.mbarriers.entry(address).or_default().join(&released);
    }

    /// A warp learns that so many phases are complete.
    pub fn acquire_from_mbarrier(&mut self, warp: u32, address: u32, phases: u32) {
        let number = self.number(Actor::Load(address));
        let view = &mut self.warps[warp as usize];
        if let Some(known) = self.mbarriers.get(&address) {
            view.join(known);
        }
        view.threads.raise(number, phases);
        view.proxy.raise(number, phases);
    }

    /// An arrival at a named barrier.
    pub fn release_to_barrier(&mut self, warp: u32, id: u32) {
        self.lanes_meet(warp, !0);
        let released = self.release(warp);
        self.barriers.entry(id).or_default().join(&released);
    }

    /// Warps go on behind a named barrier.
    pub fn acquire_from_barrier(&mut self, warps: &[u32], id: u32) {
        let Some(known) = self.barriers.remove(&id) else { return };
        for &warp in warps {
            self.warps[warp as usize].join(&known);
        }
    }

    /// A strong access, which may order anything.
    pub fn strong_access(&mut self, warp: u32) {
        let released = self.release(warp);
        self.met.join(&released);
        let Race { warps, met, .. } = self;
        warps[warp as usize].join(met);
    }

    /// A warp has waited for an actor.
    pub fn complete(&mut self, warp: u32, actor: Actor, clock: u32) {
        let number = self.number(actor);
        let view = &mut self.warps[warp as usize];
        view.threads.raise(number, clock);
        view.proxy.raise(number, clock);
    }

    /// The asynchronous proxy sees what a warp knows of.
    pub fn proxy_fence(&mut self, warp: u32) {
        let number = warp as usize;
        let View { threads, proxy, .. } = &mut self.warps[number];
        proxy.join(threads);
        // What the warp does next comes after the fence.
        threads.raise(number, threads.get(number) + 1);
    }

    /// A memory barrier takes its bytes.
    pub fn mbarrier_begins(&mut self, warp: u32, address: u32, offset: u32, bytes: u32) {
        let epoch = Race::epoch(self.number(Actor::Mbarrier(address)), CLOCK);
        self.fill(offset, bytes, Cell { write: epoch, reads: 0 });
        self.mbarriers.remove(&address);
        let begun = Race::epoch(warp as usize, self.warps[warp as usize].threads.get(warp as usize));
        self.begun.insert(address, begun);
    }

    /// Whether a memory barrier began to live before what a warp does now.
    pub fn mbarrier_is_known(&self, warp: u32, address: u32) -> bool {
        let begun = self.begun.get(&address);
        begun.is_none_or(|&begun| self.warps[warp as usize].threads.covers(begun))
    }

    /// A memory barrier gives its bytes back.
    pub fn mbarrier_ends(&mut self, offset: u32, bytes: u32) {
        self.fill(offset, bytes, Cell::default());
    }

    fn fill(&mut self, offset: u32, bytes: u32, cell: Cell) {
        let (first, end) = ((offset / WORD) as usize, (offset + bytes).div_ceil(WORD) as usize);
        self.cells[first..end].fill(cell);
        self.writers[first..end].fill(Place { epoch: cell.write, pc: self.pc });
    }
}

/// Whether these cells look alike, as they nearly always do.
#[inline(always)]
fn are_all(cells: &[Cell], known: Cell) -> bool {
    let (chunks, rest) = cells.as_chunks::<4>();
    let differs = |cells: &[Cell]| cells.iter().fold(0, |all, cell| all | cell.differs(known));
    chunks.iter().fold(0, |all, chunk| all | differs(chunk)) | differs(rest) == 0
}

/// Fills what is mostly four, or a multiple of it.
#[inline(always)]
fn fill<T: Copy>(all: &mut [T], value: T) {
    let (chunks, rest) = all.as_chunks_mut();
    chunks.fill([value; 4]);
    rest.fill(value);
}

/// What an access meets in a word: an epoch, whether it wrote, and whether only the fence is missing.
#[inline(always)]
fn check(reads: &ReadSets, view: &View, look: &Look, cell: Cell) -> Option<(u32, bool, bool)> {
    let own = look.epoch >> CLOCK_BITS;
    // Several warps may use parts of one word.
    let shared = |epoch: u32| look.partial && epoch >> CLOCK_BITS < look.warps;
    let write = cell.write;
    if !view.threads.covers(write) {
        // Writes of one actor are its own affair.
        if !(shared(write) || look.write && write >> CLOCK_BITS == own) {
            return Some((write, true, false));
        }
    } else if look.asynchronous && !view.proxy.covers(write) {
        return Some((write, true, true));
    }
    if !look.write {
        return None;
    }
    let others = reads.sets[cell.reads as usize].iter().filter(|&&read| read >> CLOCK_BITS != own);
    let unordered = others.clone().find(|&&read| !view.threads.covers(read) && !shared(read));
    if let Some(&read) = unordered {
        return Some((read, false, false));
    }
    let mut unseen = others.filter(|&&read| look.asynchronous && !view.proxy.covers(read));
    unseen.next().map(|&read| (read, false, true))
}

#[cfg(test)]
#[path = "race_tests.rs"]
mod tests;
