//! Which accesses to global memory are ordered, over all blocks of a launch, or of grids that run together.
//!
//! Every warp of every block is an actor with a clock; those of a block know each other's by what orders
//! them there. Blocks are ordered by nothing but what passes through strong accesses (atomic ones,
//! `volatile`, `relaxed` and stronger): a `release`, or a `fence` and then a strong write; then a strong
//! read or an atomic operation at the same address; that one an `acquire`, or a `fence` behind it; all of
//! them with a scope beyond the block. The bulk stores of a thread are an actor of their own:
//! `cp.async.bulk.wait_group` makes known what they wrote, `wait_group.read` does not.
//!
//! Nothing orders a read by `ld.global.nc` with a write of the same launch. A grid that has been waited for
//! is another launch: all that it did comes before, for both proxies.
//!
//! A bulk copy must also have been shown what threads did: by `fence.proxy.async`, of one that knows of it,
//! before the copy starts. The end of a bulk copy is such a fence.
//!
//! For each word there are the last writes and some of the reads since, each with its bytes: two of either.
//! What is kept is exact, so nothing is found that did not happen; of three that nothing orders, one may be
//! forgotten. Of a bulk load nothing is kept: it is a finding only if it comes second.

use super::knowledge::Foreign;
use super::lanes::LANES;
use super::orders::Scope;
use foldhash::fast::FixedState;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Bytes of a word.
const WORD: u64 = 4;
/// Bits of a word's bytes.
const BYTES: u32 = 15;
/// Words of a page.
const PAGE_WORDS: usize = 1024;
/// Accesses that are known; there is no room for more in a mark.
const MAX_ACCESSES: usize = 1 << 28;
/// Accesses whose numbers are at hand.
const RECENT: usize = 256;
/// Accesses after which those that no word remembers are given up; more if so many are remembered.
const LIMIT: usize = 1 << 20;

/// How an access is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Manner {
    /// As most are.
    #[default]
    Plain,
    /// A read of what no thread may write while the kernel runs.
    ReadOnly,
    /// Atomic, or otherwise meant to meet others.
    Strong(Scope),
}

/// One access of an instruction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// The warp, counted through all blocks, or its bulk stores.
    pub actor: u32,
    /// Its clock.
    pub clock: u32,
    /// The instruction.
    pub pc: u32,
    /// How it is made.
    pub manner: Manner,
}

/// What an access does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touch {
    /// It reads.
    Read,
    /// It reads, and nobody will ask whether it did.
    Look,
    /// It writes.
    Write,
}

/// How two accesses are ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Not at all.
    None,
    /// One comes before the other, but the asynchronous proxy, which makes the other, does not see it.
    Unseen,
    /// One comes before the other.
    Before,
    /// The grid of one had ended before the other.
    Ended,
}

/// Which actors are those of a grid: of each cluster its warps, block after block, and then for each of their
/// lanes its bulk stores.
#[derive(Clone, Copy, Debug)]
pub struct Actors {
    /// The first of its first cluster.
    pub first: u32,
    /// How many each of its clusters has.
    pub of_cluster: u32,
    /// Warps of a cluster,
    pub warps: u32,
    /// and of a block.
    pub of_block: u32,
}

impl Actors {
    /// The place of an actor's grid among those that run together, in the order of their actors.
    pub fn grid(all: &[Actors], actor: u32) -> usize {
        all.partition_point(|grid| grid.first <= actor).saturating_sub(1)
    }

    /// The number of an actor's cluster in the grid, its warp there, and whether it is a bulk store of that.
    pub fn warp(self, actor: u32) -> (u32, u32, bool) {
        let number = actor.wrapping_sub(self.first);
        let (cluster, number) = (number / self.of_cluster, number % self.of_cluster);
        match number.checked_sub(self.warps) {
            None => (cluster, number, false),
            Some(lane) => (cluster, lane / LANES as u32, true),
        }
    }
}

/// The number of an access, above a bit for each byte of the word; 0: none.
type Mark = u32;

/// What is known of a word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Cell {
    writes: [Mark; 2],
    reads: [Mark; 2],
}

/// The other side of a race.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meeting {
    /// The access.
    pub other: Access,
    /// Whether it wrote.
    pub wrote: bool,
    /// The two are ordered, and only the fence between the proxies is missing.
    pub fenceless: bool,
    /// One of them reads what no thread may write.
    pub read_only: bool,
}

type AddressMap<T> = HashMap<u64, T, FixedState>;
type Page = Box<[Cell; PAGE_WORDS]>;

/// Pages of launches that have ended, for those to come: to have new ones from the system, and to give them
/// back, took as long as what is noted in them.
static SPARE: Mutex<Vec<Page>> = Mutex::new(Vec::new());
/// How many are kept: 32 MiB.
const MOST_SPARE: usize = 2048;

/// A page of words that nobody accessed.
fn new_page() -> Page {
    let spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner).pop();
    let mut page = spare.unwrap_or_else(|| Box::new([Cell::default(); PAGE_WORDS]));
    page.fill(Cell::default());
    page
}

/// What a launch knows of global memory. Addresses are those of the emulator's own memory.
#[derive(Debug)]
pub struct GlobalRace {
    /// The actors of each grid.
    grids: Vec<Actors>,
    pages: AddressMap<Page>,
    accesses: Vec<Access>,
    /// How many there may be before it is time to look which are remembered.
    limit: usize,
    /// Accesses and their numbers.
    recent: Vec<(Access, u32)>,
    /// What was made known through each address of a strong access, and how often that grew.
    places: AddressMap<(Foreign, u32)>,
}

impl GlobalRace {
    /// Of grids with these actors.
    pub fn new(grids: Vec<Actors>) -> Self {
        GlobalRace {
            grids,
            pages: AddressMap::default(),
            accesses: vec![Access::default()],
            limit: LIMIT,
            recent: vec![(Access::default(), 0); RECENT],
            places: AddressMap::default(),
        }
    }

    /// An access of one range of bytes after the other, until the next one begins.
    pub fn sweep(&mut self, access: Access, touch: Touch) -> Sweep {
        Sweep { number: self.number(access), touch, known: None }
    }

    /// The number of an access.
    fn number(&mut self, access: Access) -> u32 {
        let place = access.pc.wrapping_add(access.actor.wrapping_mul(37)) as usize % RECENT;
        let (known, number) = self.recent[place];
        if known == access {
            return number;
        }
        if self.accesses.len() >= self.limit {
            self.trim();
        }
        let number = self.accesses.len();
        if number >= MAX_ACCESSES {
            return 0;
        }
        self.accesses.push(access);
        self.recent[place] = (access, number as u32);
        number as u32
    }

    /// Gives up accesses that no word remembers.
    #[cold]
    fn trim(&mut self) {
        let old = std::mem::replace(&mut self.accesses, vec![Access::default()]);
        let mut numbers = vec![0; old.len()];
        let cells = self.pages.values_mut().flat_map(|page| page.iter_mut());
        for mark in cells.flat_map(|cell| cell.writes.iter_mut().chain(&mut cell.reads)) {
            let place = (*mark / (BYTES + 1)) as usize;
            if place != 0 && numbers[place] == 0 {
                numbers[place] = self.accesses.len() as Mark;
                self.accesses.push(old[place]);
            }
            *mark = numbers[place] << 4 | *mark & BYTES;
        }
        self.recent.fill((Access::default(), 0));
        self.limit = LIMIT.max(2 * self.accesses.len());
    }

    /// The next bytes of an access; `order`, the same for all of them, says whether another actor's access
    /// comes before it.
    #[inline]
    pub fn access(
        &mut self,
        sweep: &mut Sweep,
        address: u64,
        bytes: u32,
        order: impl Fn(Access) -> Order,
    ) -> Option<Meeting> {
        let Sweep { number, touch, ref mut known } = *sweep;
        if number == 0 {
            return None;
        }
        let GlobalRace { accesses, pages, grids, .. } = self;
        let step = Step { accesses, grids, number, touch, order };
        let mut found = None;
        for (mut words, bytes) in parts(address, bytes) {
            while !words.is_empty() {
                let page = words.start / PAGE_WORDS as u64;
                let first = (words.start % PAGE_WORDS as u64) as usize;
                let count = (PAGE_WORDS - first).min((words.end - words.start) as usize);
                words.start += count as u64;
                let page = pages.entry(page).or_insert_with(new_page);
                let met = step.sweep(&mut page[first..first + count], bytes, known);
                found = found.or(met);
            }
        }
        found
    }

    /// A strong access makes something known through an address.
    pub fn publish(&mut self, address: u64, known: &Foreign) {
        let (place, version) = self.places.entry(address).or_default();
        *version += u32::from(place.join(known));
    }

    /// What was made known through an address, and how often that grew.
    pub fn place(&self, address: u64) -> Option<&(Foreign, u32)> {
        self.places.get(&address)
    }
}

impl Drop for GlobalRace {
    fn drop(&mut self) {
        let mut spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner);
        let room = MOST_SPARE.saturating_sub(spare.len());
        spare.extend(self.pages.drain().map(|(_, page)| page).take(room));
    }
}

/// The words of a range of bytes, and which bytes of each belong to it: those of the first word if it begins
/// within one, of whole words, and of the last.
#[inline(always)]
pub fn parts(address: u64, bytes: u32) -> [(Range<u64>, u32); 3] {
    let end = address + u64::from(bytes);
    let (head, tail) = (BYTES << (address % WORD) & BYTES, BYTES & !(BYTES << (end % WORD)));
    let (first, last) = (address.div_ceil(WORD), end / WORD);
    if first > last {
        return [(last..first, head & tail), (0..0, 0), (0..0, 0)];
    }
    [(address / WORD..first, head), (first..last, BYTES), (last..end.div_ceil(WORD), tail)]
}

/// A word as it was, the bytes that an access takes of it, and what becomes of it.
type Known = Option<(Cell, u32, Cell)>;

/// An access that goes from range to range.
pub struct Sweep {
    /// Its number; 0 if there was none left.
    number: u32,
    touch: Touch,
    /// The last word that it met: neighbours nearly always look alike.
    known: Known,
}

/// One access as it goes from word to word.
struct Step<'a, F> {
    accesses: &'a [Access],
    grids: &'a [Actors],
    number: u32,
    touch: Touch,
    order: F,
}

impl<F: Fn(Access) -> Order> Step<'_, F> {
    fn of(&self, mark: Mark) -> Access {
        self.accesses[(mark / (BYTES + 1)) as usize]
    }

    /// Whether one that is known comes before this access.
    fn follows(&self, mark: Mark) -> bool {
        (self.order)(self.of(mark)) != Order::None
    }

    /// Whom the access meets, if it is one that is known.
    fn meets(&self, mark: Mark, bytes: u32, wrote: bool) -> Option<Meeting> {
        let (other, now) = (self.of(mark), self.accesses[self.number as usize]);
        if mark & bytes == 0 || self.may_meet(other, now) {
            return None;
        }
        let order = (self.order)(other);
        let fenceless = order == Order::Unseen;
        let read_only = [other, now].iter().any(|access| access.manner == Manner::ReadOnly);
        let fine = order == Order::Ended || order == Order::Before && !read_only;
        (!fine).then_some(Meeting { other, wrote, fenceless, read_only })
    }

    /// Whether both are strong, and each is for the other.
    fn may_meet(&self, a: Access, b: Access) -> bool {
        let place = |access: Access| {
            let grid = Actors::grid(self.grids, access.actor);
            let (cluster, warp, _) = self.grids[grid].warp(access.actor);
            ((grid, cluster), warp / self.grids[grid].of_block)
        };
        match (a.manner, b.manner) {
            (Manner::Strong(Scope::Launch), Manner::Strong(Scope::Launch)) => true,
            (Manner::Strong(Scope::Block), Manner::Strong(_))
            | (Manner::Strong(_), Manner::Strong(Scope::Block)) => place(a) == place(b),
            (Manner::Strong(_), Manner::Strong(_)) => place(a).0 == place(b).0,
            _ => false,
        }
    }

    /// The next words, of which the access takes the same bytes.
    #[inline(always)]
    fn sweep(&self, cells: &mut [Cell], bytes: u32, known: &mut Known) -> Option<Meeting> {
        let mut found = None;
        let mut rest = cells;
        while let Some(&first) = rest.first() {
            let next = match *known {
                Some((cell, of, next)) if (cell, of) == (first, bytes) => next,
                _ => {
                    let mut next = first;
                    let met = self.run(&mut next, bytes);
                    found = found.or(met);
                    *known = Some((first, bytes, next));
                    next
                }
            };
            let alike = rest.iter().take_while(|cell| **cell == first).count();
            let (now, later) = rest.split_at_mut(alike);
            now.fill(next);
            rest = later;
        }
        found
    }

    /// What becomes of a word, and whom the access meets.
    #[inline(never)]
    fn run(&self, cell: &mut Cell, bytes: u32) -> Option<Meeting> {
        let meets =
            |marks: [Mark; 2], wrote| marks.into_iter().find_map(|mark| self.meets(mark, bytes, wrote));
        let mut found = meets(cell.writes, true);
        match self.touch {
            Touch::Look => {}
            Touch::Read => self.note(&mut cell.reads, bytes, |mark| self.follows(mark)),
            Touch::Write => {
                found = found.or_else(|| meets(cell.reads, false));
                for mark in cell.writes.iter_mut().chain(&mut cell.reads) {
                    *mark &= !bytes;
                    if *mark & BYTES == 0 {
                        *mark = 0;
                    }
                }
                self.note(&mut cell.writes, bytes, |_| false);
            }
        }
        found
    }

    /// Notes the access in the place of one like it, or in a free one, or in that of one that is past.
    fn note(&self, marks: &mut [Mark; 2], bytes: u32, passed: impl Fn(Mark) -> bool) {
        let now = self.number << 4;
        let like = |mark: Mark| {
            let (other, own) = (self.of(mark), self.of(now));
            (other.actor, other.clock, other.manner) == (own.actor, own.clock, own.manner)
        };
        let at_home = |mark: Mark| mark != 0 && (mark & !BYTES == now || like(mark));
        let free = |mark: Mark| mark == 0 || mark & BYTES & !bytes == 0 && passed(mark);
        if let Some(mark) = marks.iter_mut().find(|mark| at_home(**mark)) {
            *mark = now | *mark & BYTES | bytes;
        } else if let Some(mark) = marks.iter_mut().find(|mark| free(**mark)) {
            *mark = now | bytes;
        }
    }
}

#[cfg(test)]
#[path = "global_tests.rs"]
mod tests;
