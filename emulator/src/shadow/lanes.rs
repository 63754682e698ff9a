//! Which lanes of a warp accessed a word of shared memory since the warp last met.
//!
//! Lanes of a warp that run together are still ordered by nothing but what they meet at: `bar.warp.sync`, a
//! barrier of the block, or a memory barrier at which all of them arrived, and then waited. Accesses of less
//! than a word are not looked at.

/// No lane.
const NOBODY: u8 = u8::MAX;
/// Several lanes.
const SEVERAL: u8 = NOBODY - 1;

/// The last write of a word and the reads since, by lanes of one warp between two meetings.
#[derive(Clone, Copy, Debug)]
struct Mark {
    meeting: u32,
    writer: u8,
    reader: u8,
}

impl Mark {
    /// What is wrong with an access of the word by a lane, since the same meeting.
    #[inline(always)]
    fn conflict(&self, lane: u32, word: usize, write: bool) -> Option<LaneConflict> {
        let is_other = |who: u8| who != NOBODY && u32::from(who) != lane;
        let (wrote, read) = (is_other(self.writer), write && is_other(self.reader));
        (wrote || read).then(|| {
            let other = if wrote { self.writer } else { self.reader };
            let other = (other != SEVERAL).then(|| other.into());
            LaneConflict { lane, other, wrote, offset: word as u32 * 4 }
        })
    }
}

/// A warp since it last met.
#[derive(Clone, Copy, Debug, Default)]
struct Since {
    meeting: u32,
    /// Lanes that accessed something.
    apart: u32,
    /// Whether all of those arrived at a memory barrier behind their accesses.
    arrived: bool,
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
    /// Offset in shared memory.
    pub offset: u32,
}

/// The lanes of all warps of a block.
#[derive(Debug)]
pub struct Lanes {
    marks: Vec<Mark>,
    warps: Vec<Since>,
    meetings: u32,
}

impl Lanes {
    /// Of so many words and warps.
    pub fn new(words: usize, warps: u32) -> Self {
        let since = |meeting| Since { meeting, ..Since::default() };
        Lanes {
            marks: vec![Mark { meeting: u32::MAX, writer: NOBODY, reader: NOBODY }; words],
            warps: (0..warps).map(since).collect(),
            meetings: warps,
        }
    }

    /// An instruction of a warp: lanes with their first word, so many words each, none for less than one.
    pub fn access(
        &mut self,
        warp: u32,
        lanes: impl Iterator<Item = (u32, u32)> + Clone,
        words: u32,
        write: bool,
    ) -> Option<LaneConflict> {
        let since = &mut self.warps[warp as usize];
        let meeting = since.meeting;
        since.arrived = false;
        let len = self.marks.len();
        let range = |first: u32| (first as usize).min(len)..((first + words) as usize).min(len);
        let mut found = None;
        // Lanes of one instruction do not come one after the other: writes are looked at before they are
        // noted. Reads are in no other read's way.
        if write {
            for (lane, first) in lanes.clone() {
                for (word, mark) in range(first).zip(&self.marks[range(first)]) {
                    if mark.meeting == meeting && found.is_none() {
                        found = mark.conflict(lane, word, write);
                    }
                }
            }
        }
        for (lane, first) in lanes {
            since.apart |= 1 << lane;
            for (word, mark) in range(first).zip(&mut self.marks[range(first)]) {
                if mark.meeting != meeting {
                    *mark = Mark { meeting, writer: NOBODY, reader: NOBODY };
                } else if !write && found.is_none() {
                    found = mark.conflict(lane, word, write);
                }
                let who = if write { &mut mark.writer } else { &mut mark.reader };
                *who = if *who == NOBODY || u32::from(*who) == lane { lane as u8 } else { SEVERAL };
            }
        }
        found
    }

    /// These lanes of a warp meet; whether that orders anything. `clock` is the warp's.
    pub fn meet(&mut self, warp: u32, lanes: u32, clock: u32) -> bool {
        let since = &mut self.warps[warp as usize];
        if since.apart == 0 || since.apart & !lanes != 0 {
            return false;
        }
        self.meetings += 1;
        *since = Since { meeting: self.meetings, apart: 0, arrived: false, clock };
        true
    }

    /// Whether lanes that have waited for a memory barrier met there.
    pub fn have_arrived(&self, warp: u32) -> bool {
        self.warps[warp as usize].arrived
    }

    /// These lanes of a warp arrive at a memory barrier. How much of the warp's clock that makes known, if
    /// not all of it: others have accessed something since they met.
    pub fn arrive(&mut self, warp: u32, lanes: u32) -> Option<u32> {
        let since = &mut self.warps[warp as usize];
        since.arrived = since.apart & !lanes == 0;
        (!since.arrived).then_some(since.clock)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(first: u32) -> impl Iterator<Item = (u32, u32)> + Clone {
        (0..32).map(move |lane| (lane, first + lane))
    }

    #[test]
    fn a_lane_reads_what_another_wrote_only_behind_a_meeting() {
        let mut lanes = Lanes::new(64, 1);
        assert_eq!(lanes.access(0, all(0), 1, true), None);
        assert_eq!(lanes.access(0, all(0), 1, false), None);
        let conflict = lanes.access(0, [(5, 6)].into_iter(), 1, false);
        let expected = LaneConflict { lane: 5, other: Some(6), wrote: true, offset: 24 };
        assert_eq!(conflict, Some(expected));
        assert!(!lanes.meet(0, 1, 1));
        assert!(lanes.meet(0, !0, 1));
        assert_eq!(lanes.access(0, [(5, 6)].into_iter(), 1, false), None);
    }

    #[test]
    fn a_lane_overwrites_what_others_read_only_behind_a_meeting() {
        let mut lanes = Lanes::new(64, 2);
        assert_eq!(lanes.access(1, [(1, 9), (2, 9)].into_iter(), 1, false), None);
        let conflict = lanes.access(1, [(2, 8)].into_iter(), 2, true);
        assert_eq!(conflict, Some(LaneConflict { lane: 2, other: None, wrote: false, offset: 36 }));
        // Other warps are ordered, or not, by other means.
        assert_eq!(lanes.access(0, [(7, 9)].into_iter(), 1, true), None);
    }

    #[test]
    fn one_lane_cannot_speak_for_others() {
        let mut lanes = Lanes::new(64, 1);
        assert_eq!(lanes.arrive(0, 1), None);
        lanes.access(0, all(0), 1, false);
        assert_eq!(lanes.arrive(0, 1), Some(0));
        assert!(!lanes.have_arrived(0));
        assert_eq!(lanes.arrive(0, !0), None);
        assert!(lanes.have_arrived(0));
        lanes.meet(0, !0, 7);
        assert_eq!(lanes.arrive(0, 1), None);
        lanes.access(0, all(0), 0, false);
        assert!(!lanes.have_arrived(0));
        assert_eq!(lanes.arrive(0, 1), Some(7));
    }
}
