//! Which lanes of a warp accessed a word of shared or global memory since the warp last met.
//!
//! Lanes of a warp that run together are still ordered by nothing but what they meet at: `bar.warp.sync`, a
//! barrier of the block, or a memory barrier at which all of them arrived, and then waited; or waited at
//! another one that comes after it. So are the bulk copies that one of them starts. Accesses of less than a
//! word are not looked at.
//!
//! As long as whole warps meet, one number says which accesses were since. Kernels in which parts of warps
//! meet have clocks instead, lane by lane: [`LaneClocks`].

use super::global_lanes::GlobalLanes;
use super::lane_clocks::LaneClocks;
use std::collections::HashMap;

/// Lanes of a warp.
pub(super) const LANES: usize = 32;
/// Bits that name a lane.
const WHO_BITS: u32 = 6;
/// No lane.
const NOBODY: u32 = (1 << WHO_BITS) - 1;
/// Several lanes.
const SEVERAL: u32 = NOBODY - 1;
/// Meetings that a mark can name; the last is none.
pub(super) const MEETINGS: u32 = 1 << (u32::BITS - 2 * WHO_BITS);

/// The last write of a word and the reads since, by lanes of one warp between two meetings: the number of
/// the first meeting, the writer and the reader. In one number, so that many are looked at together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark(u32);

impl Mark {
    /// Of no warp.
    pub(super) const NEVER: Mark = Mark::new(MEETINGS - 1, NOBODY, NOBODY);

    #[inline(always)]
    const fn new(meeting: u32, writer: u32, reader: u32) -> Self {
        Mark(meeting << (2 * WHO_BITS) | writer << WHO_BITS | reader)
    }

    #[inline(always)]
    fn meeting(self) -> u32 {
        self.0 >> (2 * WHO_BITS)
    }

    /// The writer and the reader since a meeting.
    #[inline(always)]
    fn since(self, meeting: u32) -> (u32, u32) {
        let who = if self.meeting() == meeting { self.0 } else { Mark::NEVER.0 };
        (who >> WHO_BITS & NOBODY, who & NOBODY)
    }

    /// Whether another lane than this one wrote, and, if that matters to a write, read.
    #[inline(always)]
    fn others(self, meeting: u32, lane: u32, write: bool) -> (bool, bool) {
        let is_other = |who: u32| (who != NOBODY) & (who != lane);
        let (writer, reader) = self.since(meeting);
        (is_other(writer), is_other(reader) & write)
    }

    /// What is wrong with an access of the word by a lane, since a meeting.
    fn conflict(self, meeting: u32, lane: u32, word: usize, write: bool) -> Option<LaneConflict> {
        let (wrote, read) = self.others(meeting, lane, write);
        let (writer, reader) = self.since(meeting);
        (wrote || read).then(|| {
            let other = if wrote { writer } else { reader };
            let other = (other != SEVERAL).then_some(other);
            LaneConflict { lane, other, wrote, offset: word as u64 * 4 }
        })
    }

    /// The same if several lanes read.
    #[inline(always)]
    fn read_by_several(self) -> Self {
        Mark(self.0 & !NOBODY | SEVERAL)
    }

    /// After an access by a lane.
    #[inline(always)]
    fn after(self, meeting: u32, lane: u32, write: bool) -> Self {
        let (writer, reader) = self.since(meeting);
        let joined = |who: u32| if (who == NOBODY) | (who == lane) { lane } else { SEVERAL };
        let (writer, reader) = if write { (joined(writer), reader) } else { (writer, joined(reader)) };
        Mark::new(meeting, writer, reader)
    }
}

/// A warp since it last met.
#[derive(Clone, Copy, Debug, Default)]
struct Since {
    meeting: u32,
    /// Lanes that accessed something.
    apart: u32,
    /// The first arrival at a memory barrier, by the warp's count, at which all of those were behind their
    /// accesses; 0 if there was none.
    arrived: u32,
    /// What the warp's clock was at the meeting.
    clock: u32,
}

/// Two lanes whose accesses are not ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneConflict {
    /// The lane that accesses now.
    pub lane: u32,
    /// The lane that did before, unless that were several.
    pub other: Option<u32>,
    /// Whether that was a write.
    pub wrote: bool,
    /// Offset in shared memory, or address.
    pub offset: u64,
}

/// Words that the lanes of an instruction access.
#[derive(Clone, Copy, Debug)]
pub struct Words<'a> {
    /// The first byte of each lane.
    pub offsets: &'a [u64; LANES],
    /// The lanes.
    pub lanes: u32,
    /// Words of a lane; none of accesses to less than one.
    pub count: u32,
    /// Whether all lanes take part, and each begins where the one before ends.
    pub contiguous: bool,
}

impl Words<'_> {
    /// Each lane and its first word.
    pub(super) fn lanes(self) -> impl Iterator<Item = (u32, usize)> {
        let lanes = (0..LANES).filter(move |lane| self.lanes >> lane & 1 != 0);
        lanes.map(move |lane| (lane as u32, self.offsets[lane] as usize / 4))
    }
}

/// The lanes of all warps of a block.
#[derive(Debug)]
pub struct Lanes {
    marks: Vec<Mark>,
    warps: Vec<Since>,
    meetings: u32,
    /// The same lane by lane, if parts of warps meet.
    apart: Option<Vec<LaneClocks>>,
    global: GlobalLanes,
}

impl Lanes {
    /// Of so many words and warps.
    pub fn new(words: usize, warps: u32) -> Self {
        let since = |meeting| Since { meeting, ..Since::default() };
        Lanes {
            marks: vec![Mark::NEVER; words],
            warps: (0..warps).map(since).collect(),
            meetings: warps,
            apart: None,
            global: GlobalLanes::new(warps),
        }
    }

    /// From now on parts of warps may meet.
    pub fn meet_in_parts(&mut self) {
        self.apart = Some(vec![LaneClocks::new(); self.warps.len()]);
        self.global.meet_in_parts();
    }

    /// Forgets everything, for the next block: what is marked has no meaning once all warps have met.
    pub fn reset(&mut self) {
        self.global.reset();
        if let Some(warps) = &mut self.apart {
            warps.fill(LaneClocks::new());
        }
        if self.meetings + self.warps.len() as u32 >= MEETINGS - 1 {
            self.marks.fill(Mark::NEVER);
            self.meetings = 0;
        }
        for (meeting, warp) in (self.meetings..).zip(&mut self.warps) {
            *warp = Since { meeting, ..Since::default() };
        }
        self.meetings += self.warps.len() as u32;
    }

    /// An instruction of a warp.
    #[inline(always)]
    pub fn access(&mut self, warp: u32, words: Words<'_>, write: bool) -> Option<LaneConflict> {
        if let Some(warps) = &mut self.apart {
            return warps[warp as usize].access(words, write);
        }
        let since = &mut self.warps[warp as usize];
        since.arrived = 0;
        since.apart |= words.lanes;
        let meeting = since.meeting;
        mark(&mut self.marks, meeting, words, write)
    }

    /// The same of words of global memory.
    pub fn access_global(&mut self, warp: u32, words: Words<'_>, write: bool) -> Option<LaneConflict> {
        self.global.access(warp, words, write)
    }

    /// A bulk copy that a lane starts, of so many bytes from an offset on; `write` if it writes them. What
    /// it does itself is not noted: a wait for it orders that. Lanes that have all arrived at a memory
    /// barrier are taken to be those that this one has waited for.
    pub fn copy(
        &self,
        warp: u32,
        lane: u32,
        offset: u32,
        bytes: u32,
        write: bool,
    ) -> Option<LaneConflict> {
        if let Some(warps) = &self.apart {
            return warps[warp as usize].copy(lane, offset, bytes, write);
        }
        let since = &self.warps[warp as usize];
        if since.arrived != 0 || since.apart & !(1 << lane) == 0 {
            return None;
        }
        let (first, end) = (offset as usize / 4, (offset + bytes).div_ceil(4) as usize);
        let mut marks = (first..).zip(&self.marks[first..end]);
        marks.find_map(|(word, mark)| mark.conflict(since.meeting, lane, word, write))
    }

    /// These lanes of a warp meet; whether that orders anything. `clock` is the warp's.
    pub fn meet(&mut self, warp: u32, lanes: u32, clock: u32) -> bool {
        self.global.meet(warp, lanes);
        if let Some(warps) = &mut self.apart {
            return warps[warp as usize].meet(lanes, clock);
        }
        let since = &mut self.warps[warp as usize];
        if since.apart == 0 || since.apart & !lanes != 0 {
            return false;
        }
        *since = Since { meeting: self.meetings, clock, ..Since::default() };
        self.meetings += 1;
        if self.meetings == MEETINGS - 1 {
            self.renumber();
        }
        true
    }

    /// Begins to count meetings anew: those that still matter are each warp's last.
    #[cold]
    fn renumber(&mut self) {
        let new: HashMap<u32, u32> =
            (0..).zip(&self.warps).map(|(new, old)| (old.meeting, new)).collect();
        for mark in &mut self.marks {
            *mark = match new.get(&mark.meeting()) {
                Some(&meeting) => Mark::new(meeting, mark.0 >> WHO_BITS & NOBODY, mark.0 & NOBODY),
                None => Mark::NEVER,
            };
        }
        for (meeting, warp) in (0..).zip(&mut self.warps) {
            warp.meeting = meeting;
        }
        self.meetings = self.warps.len() as u32;
    }

    /// Lanes have waited for a memory barrier, which comes after so many arrivals of the warp; whether that
    /// is a meeting.
    pub fn wait(&mut self, warp: u32, lanes: u32, arrivals: u32) -> bool {
        self.global.wait(warp, lanes, arrivals);
        if let Some(warps) = &mut self.apart {
            warps[warp as usize].wait(lanes, arrivals);
            return false;
        }
        (1..=arrivals).contains(&self.warps[warp as usize].arrived)
    }

    /// These lanes of a warp arrive at a memory barrier, an arrival of this number. How much of the warp's
    /// clock that makes known, if not all of it: others have accessed something since they met.
    pub fn arrive(&mut self, warp: u32, lanes: u32, arrival: u32) -> Option<u32> {
        self.global.arrive(warp, lanes, arrival);
        if let Some(warps) = &mut self.apart {
            return warps[warp as usize].arrive(lanes, arrival);
        }
        let since = &mut self.warps[warp as usize];
        let all = since.apart & !lanes == 0;
        if all && since.arrived == 0 {
            since.arrived = arrival;
        }
        (!all).then_some(since.clock)
    }
}

/// Marks the words that the lanes of a warp access which last met at `meeting`; what is wrong with that.
#[inline(always)]
pub(super) fn mark(
    marks: &mut [Mark],
    meeting: u32,
    words: Words<'_>,
    write: bool,
) -> Option<LaneConflict> {
    let done = match words.count {
        0 => true,
        1 => mark_all::<32, 1>(marks, meeting, words, write),
        2 => mark_all::<64, 2>(marks, meeting, words, write),
        4 => mark_all::<128, 4>(marks, meeting, words, write),
        _ => false,
    };
    if done { None } else { mark_slowly(marks, meeting, words, write) }
}

#[inline(never)]
fn mark_slowly(marks: &mut [Mark], meeting: u32, words: Words<'_>, write: bool) -> Option<LaneConflict> {
    let len = marks.len();
    let range = |first: usize| first.min(len)..(first + words.count as usize).min(len);
    let mut found = None;
    // Lanes of one instruction do not come one after the other: writes are looked at before they are noted.
    // Reads are in no other read's way.
    if write {
        for (lane, first) in words.lanes() {
            for (word, mark) in range(first).zip(&marks[range(first)]) {
                found = found.or_else(|| mark.conflict(meeting, lane, word, write));
            }
        }
    }
    for (lane, first) in words.lanes() {
        for (word, mark) in range(first).zip(&mut marks[range(first)]) {
            if !write {
                found = found.or_else(|| mark.conflict(meeting, lane, word, write));
            }
            *mark = mark.after(meeting, lane, write);
        }
    }
    found
}

/// Marks the words of all lanes, `COUNT` each. If there is a conflict, or several lanes write a word, nothing
/// is marked and the answer is no.
#[inline(always)]
fn mark_all<const WORDS: usize, const COUNT: usize>(
    marks: &mut [Mark],
    meeting: u32,
    words: Words<'_>,
    write: bool,
) -> bool {
    let places = words.offsets.map(|offset| offset as usize / 4);
    if words.contiguous {
        let marks = marks.get_mut(places[0]..).and_then(|marks| marks.first_chunk_mut::<WORDS>());
        let Some(marks) = marks else { return false };
        let (after, conflict) = after_all::<WORDS, COUNT>(marks, meeting, write);
        if !conflict {
            *marks = after;
        }
        return !conflict;
    }
    if words.lanes != !0 || places.iter().any(|place| place + COUNT > marks.len()) {
        return false;
    }
    let before = gather::<WORDS, COUNT>(marks, &places);
    let (after, conflict) = after_all::<WORDS, COUNT>(&before, meeting, write);
    if conflict {
        return false;
    }
    scatter::<WORDS, COUNT>(marks, &places, &after);
    let now = gather::<WORDS, COUNT>(marks, &places);
    if now == after {
        return true;
    }
    if write {
        scatter::<WORDS, COUNT>(marks, &places, &before);
        return false;
    }
    // The lane whose mark remains, the last, has read the word together with those before it: theirs say that
    // several did, and the first of them remains now.
    let mut several = after;
    for (mark, now) in several.iter_mut().zip(&now) {
        *mark = if mark == now { *mark } else { mark.read_by_several() };
    }
    scatter_from_the_last::<WORDS, COUNT>(marks, &places, &several);
    true
}

/// `COUNT` marks of each place.
#[inline(always)]
fn gather<const WORDS: usize, const COUNT: usize>(
    marks: &[Mark],
    places: &[usize; LANES],
) -> [Mark; WORDS] {
    let mut all = [Mark::NEVER; WORDS];
    for (chunk, &place) in all.as_chunks_mut::<COUNT>().0.iter_mut().zip(places) {
        chunk.copy_from_slice(&marks[place..place + COUNT]);
    }
    all
}

/// The other way round. Where places have marks in common, those of the last remain.
#[inline(always)]
fn scatter<const WORDS: usize, const COUNT: usize>(
    marks: &mut [Mark],
    places: &[usize; LANES],
    all: &[Mark; WORDS],
) {
    for (chunk, &place) in all.as_chunks::<COUNT>().0.iter().zip(places) {
        marks[place..place + COUNT].copy_from_slice(chunk);
    }
}

/// The same, but those of the first remain.
#[inline(always)]
fn scatter_from_the_last<const WORDS: usize, const COUNT: usize>(
    marks: &mut [Mark],
    places: &[usize; LANES],
    all: &[Mark; WORDS],
) {
    for (chunk, &place) in all.as_chunks::<COUNT>().0.iter().zip(places).rev() {
        marks[place..place + COUNT].copy_from_slice(chunk);
    }
}

/// What becomes of the words of all lanes, `COUNT` each, if they have none in common; and whether there is
/// a conflict.
#[inline(always)]
fn after_all<const WORDS: usize, const COUNT: usize>(
    before: &[Mark; WORDS],
    meeting: u32,
    write: bool,
) -> ([Mark; WORDS], bool) {
    let mut conflict = false;
    let mut after = [Mark::NEVER; WORDS];
    for word in 0..WORDS {
        let lane = (word / COUNT) as u32;
        let (wrote, read) = before[word].others(meeting, lane, write);
        conflict |= wrote | read;
        after[word] = before[word].after(meeting, lane, write);
    }
    (after, conflict)
}

#[cfg(test)]
#[path = "lanes_tests.rs"]
mod tests;
