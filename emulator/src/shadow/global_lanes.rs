//! Which lanes of a warp accessed a word of global memory since the warp last met: as in [`super::lanes`], of
//! words that are far apart, and with meetings of their own. Accesses of other warps are
//! [`super::global`]'s.

use super::lane_clocks::LaneClocks;
use super::lanes::{LANES, LaneConflict, MEETINGS, Mark, Words, mark};
use foldhash::fast::FixedState;
use std::collections::HashMap;

/// Words of a page.
const PAGE_WORDS: usize = 1024;
const PAGE_BYTES: u64 = 4 * PAGE_WORDS as u64;

/// A warp since it last met.
#[derive(Clone, Copy, Debug, Default)]
struct Since {
    meeting: u32,
    /// Lanes that accessed something.
    apart: u32,
    /// As in [`super::lanes`].
    arrived: u32,
}

/// The lanes of all warps of a block.
#[derive(Debug)]
pub(super) struct GlobalLanes {
    pages: HashMap<u64, Box<[Mark; PAGE_WORDS]>, FixedState>,
    warps: Vec<Since>,
    meetings: u32,
    /// The same lane by lane, if parts of warps meet.
    apart: Option<Vec<LaneClocks>>,
}

impl GlobalLanes {
    /// Of so many warps.
    pub(super) fn new(warps: u32) -> Self {
        let since = |meeting| Since { meeting, ..Since::default() };
        let warps: Vec<_> = (0..warps).map(since).collect();
        GlobalLanes { pages: HashMap::default(), meetings: warps.len() as u32, warps, apart: None }
    }

    /// From now on parts of warps may meet.
    pub(super) fn meet_in_parts(&mut self) {
        self.apart = Some(vec![LaneClocks::new(); self.warps.len()]);
    }

    /// Forgets everything, for the next block: what is marked has no meaning once all warps have met.
    pub(super) fn reset(&mut self) {
        if let Some(warps) = &mut self.apart {
            warps.fill(LaneClocks::new());
        }
        if self.meetings + self.warps.len() as u32 >= MEETINGS - 1 {
            self.pages.clear();
            self.meetings = 0;
        }
        for (meeting, warp) in (self.meetings..).zip(&mut self.warps) {
            *warp = Since { meeting, ..Since::default() };
        }
        self.meetings += self.warps.len() as u32;
    }

    /// An instruction of a warp, whose offsets are addresses.
    pub(super) fn access(&mut self, warp: u32, words: Words<'_>, write: bool) -> Option<LaneConflict> {
        if words.count == 0 {
            return None;
        }
        if let Some(warps) = &mut self.apart {
            return warps[warp as usize].access(words, write);
        }
        let since = &mut self.warps[warp as usize];
        since.arrived = 0;
        since.apart |= words.lanes;
        let meeting = since.meeting;
        let mut found = None;
        let mut rest = words.lanes;
        while rest != 0 {
            // Of a word that goes on in the next page only the beginning is looked at: aligned ones do not.
            let page = words.offsets[rest.trailing_zeros() as usize] / PAGE_BYTES;
            let in_page = |lane: &usize| words.offsets[*lane] / PAGE_BYTES == page;
            let lanes = (0..LANES).filter(in_page).fold(0, |lanes, lane| lanes | 1 << lane) & rest;
            rest &= !lanes;
            let offsets =
                words.offsets.map(|offset| offset.wrapping_sub(page * PAGE_BYTES) % PAGE_BYTES);
            let contiguous = words.contiguous && lanes == words.lanes;
            let of_page = Words { offsets: &offsets, lanes, contiguous, ..words };
            let marks = self.pages.entry(page);
            let marks = marks.or_insert_with(|| Box::new([Mark::NEVER; PAGE_WORDS]));
            let conflict = mark(&mut marks[..], meeting, of_page, write);
            found = found.or(conflict);
        }
        found
    }

    /// These lanes of a warp meet.
    pub(super) fn meet(&mut self, warp: u32, lanes: u32) {
        if let Some(warps) = &mut self.apart {
            warps[warp as usize].meet(lanes, 0);
            return;
        }
        let since = &mut self.warps[warp as usize];
        if since.apart == 0 || since.apart & !lanes != 0 {
            return;
        }
        *since = Since { meeting: self.meetings, ..Since::default() };
        self.meetings += 1;
        if self.meetings == MEETINGS - 1 {
            self.reset();
        }
    }

    /// Lanes have waited for a memory barrier, which comes after so many arrivals of the warp.
    pub(super) fn wait(&mut self, warp: u32, lanes: u32, arrivals: u32) {
        if let Some(warps) = &mut self.apart {
            warps[warp as usize].wait(lanes, arrivals);
        } else if (1..=arrivals).contains(&self.warps[warp as usize].arrived) {
            self.meet(warp, lanes);
        }
    }

    /// These lanes of a warp arrive at a memory barrier, an arrival of this number.
    pub(super) fn arrive(&mut self, warp: u32, lanes: u32, arrival: u32) {
        if let Some(warps) = &mut self.apart {
            warps[warp as usize].arrive(lanes, arrival);
            return;
        }
        let since = &mut self.warps[warp as usize];
        if since.apart & !lanes == 0 && since.arrived == 0 {
            since.arrived = arrival;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An access of each lane to the address that it is given.
    fn access(lanes: &mut GlobalLanes, who: &[(u32, u64)], write: bool) -> Option<(u32, Option<u32>)> {
        let mut offsets = [0; LANES];
        who.iter().for_each(|&(lane, address)| offsets[lane as usize] = address);
        let mask = who.iter().fold(0, |mask, &(lane, _)| mask | 1 << lane);
        let words = Words { offsets: &offsets, lanes: mask, count: 1, contiguous: false };
        lanes.access(0, words, write).map(|conflict| (conflict.lane, conflict.other))
    }

    #[test]
    fn lanes_that_do_not_meet_race_wherever_the_words_are() {
        for far in [0, 1 << 40] {
            let mut lanes = GlobalLanes::new(1);
            assert_eq!(access(&mut lanes, &[(0, far), (1, far + 4096), (2, far + 8)], true), None);
            assert_eq!(access(&mut lanes, &[(3, far + 4096), (4, far + 4)], false), Some((3, Some(1))));
            lanes.meet(0, 1);
            assert_eq!(access(&mut lanes, &[(3, far + 8)], false), Some((3, Some(2))));
            lanes.meet(0, !0);
            assert_eq!(access(&mut lanes, &[(3, far + 8), (5, far + 8)], false), None);
            assert_eq!(access(&mut lanes, &[(3, far + 8)], true), Some((3, None)));
        }
    }

    #[test]
    fn blocks_know_nothing_of_those_before_them() {
        let mut lanes = GlobalLanes::new(2);
        // More meetings than a mark can name.
        for _ in 0..MEETINGS / 2 + 2 {
            assert_eq!(access(&mut lanes, &[(3, 64)], true), None);
            lanes.reset();
            assert_eq!(access(&mut lanes, &[(4, 64)], false), None);
            assert_eq!(access(&mut lanes, &[(3, 64)], true), Some((3, Some(4))));
            lanes.reset();
        }
    }

    #[test]
    fn a_memory_barrier_that_all_arrive_at_orders_lanes() {
        let mut lanes = GlobalLanes::new(1);
        assert_eq!(access(&mut lanes, &[(0, 64), (1, 68)], true), None);
        lanes.arrive(0, 1, 1);
        lanes.wait(0, !0, 1);
        assert_eq!(access(&mut lanes, &[(1, 64)], false), Some((1, Some(0))));
        lanes.arrive(0, 3, 2);
        lanes.wait(0, !0, 2);
        assert_eq!(access(&mut lanes, &[(1, 64)], true), None);
    }
}
