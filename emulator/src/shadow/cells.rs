//! What is known of a word of shared memory, and what an access meets there.
//!
//! Nearly all words were written last by one plain access of all their bytes: its epoch is at hand. Others,
//! whose bytes have several writers or were written by a strong access, name a set of writes.

use super::clock::{CLOCK_BITS, View};
use super::sets::{BYTES, FLAG, Mark, Sets};

/// Marks a word whose writes are a set.
const MIXED: u32 = FLAG;

/// The last writes of a word and the reads since.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cell {
    write: u32,
    reads: u32,
}

impl Cell {
    /// Like no word that there is.
    pub const NONE: Cell = Cell { write: u32::MAX, reads: u32::MAX };

    /// Written by one plain access, and not read since.
    pub fn written(epoch: u32) -> Self {
        Cell { write: epoch, reads: 0 }
    }

    /// Not 0 if it differs.
    #[inline(always)]
    fn differs(self, other: Cell) -> u32 {
        (self.write ^ other.write) | (self.reads ^ other.reads)
    }

    fn is_mixed(self) -> bool {
        self.reads & MIXED != 0
    }

    /// The set of its reads.
    fn reads(self) -> u32 {
        self.reads & !MIXED
    }

    /// Whether an access with this epoch wrote some of it last.
    pub fn is_written_by(self, epoch: u32, sets: &Sets) -> bool {
        if self.is_mixed() {
            sets.of(self.write).iter().any(|mark| mark.epoch == epoch)
        } else {
            self.write == epoch
        }
    }

    /// What becomes of it.
    #[inline(always)]
    pub fn after(self, look: &Look, sets: &mut Sets) -> Self {
        let mark = Mark { epoch: look.epoch, how: look.how };
        if !look.write {
            let reads = sets.read(self.reads(), mark);
            return Cell { write: self.write, reads: reads | self.reads & MIXED };
        }
        if look.how == BYTES { Cell::written(look.epoch) } else { self.after_write(mark, sets) }
    }

    #[inline(never)]
    fn after_write(self, mark: Mark, sets: &mut Sets) -> Self {
        let before = match self.write {
            set if self.is_mixed() => set,
            0 => 0,
            epoch => sets.write(0, Mark { epoch, how: BYTES }),
        };
        let writes = sets.write(before, mark);
        let reads = sets.forget(self.reads(), mark.how & BYTES);
        match sets.of(writes) {
            [Mark { epoch, how: BYTES }] => Cell { write: *epoch, reads },
            _ => Cell { write: writes, reads: reads | MIXED },
        }
    }

    /// What an access meets in a word: an epoch, whether it wrote, and whether only the fence is missing.
    #[inline(always)]
    pub fn check(self, sets: &Sets, view: &View, look: &Look) -> Option<(u32, bool, bool)> {
        let plain = [Mark { epoch: self.write, how: BYTES }];
        let writes = if self.is_mixed() { sets.of(self.write) } else { &plain };
        // Writes of one actor are its own affair.
        let meets = |mark: &&Mark| mark.meets(look.how, look.epoch >> CLOCK_BITS, look.warps);
        let is_own = |epoch: u32| epoch >> CLOCK_BITS == look.epoch >> CLOCK_BITS;
        let unordered = |epoch: u32| !view.threads.covers(epoch);
        let unseen = |epoch: u32| look.asynchronous && !view.proxy.covers(epoch);
        let mut late = None;
        for &Mark { epoch, .. } in writes.iter().filter(meets) {
            if unordered(epoch) {
                if !(look.write && is_own(epoch)) {
                    return Some((epoch, true, false));
                }
            } else if unseen(epoch) {
                late = late.or(Some((epoch, true, true)));
            }
        }
        if late.is_some() || !look.write {
            return late;
        }
        let reads = sets.of(self.reads()).iter();
        let epochs = reads.filter(meets).map(|mark| mark.epoch);
        let mut others = epochs.filter(|&epoch| !is_own(epoch));
        if let Some(epoch) = others.clone().find(|&epoch| unordered(epoch)) {
            return Some((epoch, false, false));
        }
        others.find(|&epoch| unseen(epoch)).map(|epoch| (epoch, false, true))
    }
}

/// How one access looks at the cells.
#[derive(Clone, Copy)]
pub struct Look {
    /// Who, and when.
    pub epoch: u32,
    /// Its bytes of a word, and whether it is strong.
    pub how: u32,
    /// Whether it writes.
    pub write: bool,
    /// Whether the asynchronous proxy makes it.
    pub asynchronous: bool,
    /// Warps of a block.
    pub warps: u32,
}

/// An instruction of a warp that accesses one range after the other.
pub struct Sweep {
    /// The warp.
    pub warp: u32,
    /// How it looks at the cells.
    pub look: Look,
    /// Whether its ranges are whole words.
    pub whole: bool,
    /// The last cell that it met, and what becomes of it: neighbours nearly always look alike.
    pub known: Cell,
    /// What becomes of that one.
    pub next: Cell,
}

impl Sweep {
    /// One that has met nothing.
    pub fn new(warp: u32, look: Look, whole: bool) -> Self {
        Sweep { warp, look, whole, known: Cell::NONE, next: Cell::default() }
    }

    /// Takes these bytes of the words that come next.
    pub fn take(&mut self, bytes: u32) {
        let how = self.look.how & !BYTES | bytes;
        if how != self.look.how {
            (self.look.how, self.known) = (how, Cell::NONE);
        }
    }
}

/// The numbers of the sets that are in use.
pub fn sets_of(cells: &mut [Cell]) -> impl Iterator<Item = &mut u32> {
    cells.iter_mut().filter(|cell| cell.reads != 0).flat_map(|Cell { write, reads }| {
        [(*reads & MIXED != 0).then_some(write), Some(reads)].into_iter().flatten()
    })
}

/// Whether these cells look alike, as they nearly always do.
#[inline(always)]
pub fn are_all(cells: &[Cell], known: Cell) -> bool {
    let (chunks, rest) = cells.as_chunks::<4>();
    let differs = |cells: &[Cell]| cells.iter().fold(0, |all, cell| all | cell.differs(known));
    chunks.iter().fold(0, |all, chunk| all | differs(chunk)) | differs(rest) == 0
}

/// Fills what is mostly four, or a multiple of it.
#[inline(always)]
pub fn fill<T: Copy>(all: &mut [T], value: T) {
    let (chunks, rest) = all.as_chunks_mut();
    chunks.fill([value; 4]);
    rest.fill(value);
}
