//! Lanes that meet as a whole warp.

use super::*;

/// An access of lanes to their words, one after the other from `first` on.
fn access(
    lanes: &mut Lanes,
    warp: u32,
    who: &[(u32, u32)],
    count: u32,
    write: bool,
) -> Option<LaneConflict> {
    let mut offsets = [0; LANES];
    who.iter().for_each(|&(lane, word)| offsets[lane as usize] = u64::from(word) * 4);
    let mask = who.iter().fold(0, |mask, &(lane, _)| mask | 1 << lane);
    let follows = |pair: &[(u32, u32)]| pair[1].1 == pair[0].1 + count;
    let contiguous = mask == !0 && who.windows(2).all(follows);
    lanes.access(warp, Words { offsets: &offsets, lanes: mask, count, contiguous }, write)
}

/// All lanes, their words one after the other.
fn all(first: u32, count: u32) -> Vec<(u32, u32)> {
    (0..32).map(|lane| (lane, first + lane * count)).collect()
}

#[test]
fn a_lane_reads_what_another_wrote_only_behind_a_meeting() {
    let mut lanes = Lanes::new(64, 1);
    assert_eq!(access(&mut lanes, 0, &all(0, 1), 1, true), None);
    assert_eq!(access(&mut lanes, 0, &all(0, 1), 1, false), None);
    let conflict = access(&mut lanes, 0, &[(5, 6)], 1, false);
    let expected = LaneConflict { lane: 5, other: Some(6), wrote: true, offset: 24 };
    assert_eq!(conflict, Some(expected));
    assert!(!lanes.meet(0, 1, 1));
    assert!(lanes.meet(0, !0, 1));
    assert_eq!(access(&mut lanes, 0, &[(5, 6)], 1, false), None);
}

#[test]
fn a_lane_overwrites_what_others_read_only_behind_a_meeting() {
    let mut lanes = Lanes::new(64, 2);
    assert_eq!(access(&mut lanes, 1, &[(1, 9), (2, 9)], 1, false), None);
    let conflict = access(&mut lanes, 1, &[(2, 8)], 2, true);
    assert_eq!(conflict, Some(LaneConflict { lane: 2, other: None, wrote: false, offset: 36 }));
    // Other warps are ordered, or not, by other means.
    assert_eq!(access(&mut lanes, 0, &[(7, 9)], 1, true), None);
}

#[test]
fn lanes_side_by_side_find_what_lanes_apart_find() {
    for count in [1, 2, 4] {
        let mut lanes = Lanes::new(160, 1);
        assert_eq!(access(&mut lanes, 0, &all(0, count), count, true), None);
        assert_eq!(access(&mut lanes, 0, &all(0, count), count, false), None);
        // Each lane reads what the next one wrote.
        let conflict = access(&mut lanes, 0, &all(count, count), count, false);
        let expected =
            LaneConflict { lane: 0, other: Some(1), wrote: true, offset: u64::from(4 * count) };
        assert_eq!(conflict, Some(expected));
        let mut lanes = Lanes::new(160, 1);
        assert_eq!(access(&mut lanes, 0, &[(9, 7)], 1, false), None);
        let conflict = access(&mut lanes, 0, &all(0, count), count, true);
        let expected = LaneConflict { lane: 7 / count, other: Some(9), wrote: false, offset: 28 };
        assert_eq!(conflict, Some(expected));
    }
}

#[test]
fn lanes_that_share_a_word_are_all_remembered() {
    let swapped = |count| (0..32).map(|lane| (lane, (lane ^ 1) * count)).collect::<Vec<_>>();
    let shared = |count| (0..32).map(|lane| (lane, lane / 2 * count)).collect::<Vec<_>>();
    for count in [1, 2, 4] {
        let mut lanes = Lanes::new(128, 1);
        assert_eq!(access(&mut lanes, 0, &shared(count), count, false), None);
        let conflict = access(&mut lanes, 0, &[(1, 0)], 1, true);
        assert_eq!(conflict, Some(LaneConflict { lane: 1, other: None, wrote: false, offset: 0 }));
        // Of one instruction no lane comes before another.
        let mut lanes = Lanes::new(128, 1);
        assert_eq!(access(&mut lanes, 0, &shared(count), count, true), None);
        let conflict = access(&mut lanes, 0, &[(1, 0)], 1, false);
        assert_eq!(conflict, Some(LaneConflict { lane: 1, other: None, wrote: true, offset: 0 }));
        // Apart from each other, but one for one.
        let mut lanes = Lanes::new(128, 1);
        assert_eq!(access(&mut lanes, 0, &swapped(count), count, true), None);
        assert_eq!(access(&mut lanes, 0, &swapped(count), count, false), None);
        let conflict = access(&mut lanes, 0, &all(0, count), count, false);
        let expected = LaneConflict { lane: 0, other: Some(1), wrote: true, offset: 0 };
        assert_eq!(conflict, Some(expected));
    }
}

#[test]
fn reads_together_leave_what_reads_one_by_one_leave() {
    for count in [1, 2, 4] {
        // Lanes that share all words, some, or none with the next, the later ones behind or before.
        for step in [0, 1, count, count + 1] {
            let forth: Vec<_> = (0..32).map(|lane| (lane, lane * step)).collect();
            let back: Vec<_> = (0..32).map(|lane| (lane, (31 - lane) * step)).collect();
            for who in [&forth, &back] {
                let (mut together, mut apart) = (Lanes::new(192, 1), Lanes::new(192, 1));
                for lanes in [&mut together, &mut apart] {
                    assert_eq!(access(lanes, 0, &[(7, 40), (9, 3)], 1, false), None);
                }
                assert_eq!(access(&mut together, 0, who, count, false), None);
                for one in who.iter() {
                    assert_eq!(access(&mut apart, 0, std::slice::from_ref(one), count, false), None);
                }
                assert_eq!(together.marks, apart.marks, "{count} words, {step} apart");
            }
        }
    }
}

#[test]
fn marks_outlive_the_numbers_of_meetings() {
    let mut lanes = Lanes::new(64, 2);
    access(&mut lanes, 1, &[(3, 5)], 1, true);
    for _ in 0..MEETINGS {
        access(&mut lanes, 0, &[(0, 0)], 1, true);
        assert!(lanes.meet(0, !0, 1));
    }
    assert_eq!(access(&mut lanes, 0, &[(1, 0)], 1, true), None);
    let conflict = access(&mut lanes, 1, &[(4, 5)], 1, false);
    assert_eq!(conflict, Some(LaneConflict { lane: 4, other: Some(3), wrote: true, offset: 20 }));
}

#[test]
fn one_lane_cannot_speak_for_others() {
    let mut lanes = Lanes::new(64, 1);
    assert_eq!(lanes.arrive(0, 1, 1), None);
    access(&mut lanes, 0, &all(0, 1), 1, false);
    assert_eq!(lanes.arrive(0, 1, 2), Some(0));
    assert!(!lanes.wait(0, !0, 2));
    assert_eq!(lanes.arrive(0, !0, 3), None);
    assert!(lanes.wait(0, !0, 3));
    lanes.meet(0, !0, 7);
    assert_eq!(lanes.arrive(0, 1, 4), None);
    access(&mut lanes, 0, &all(0, 1), 0, false);
    assert!(!lanes.wait(0, !0, 4));
    assert_eq!(lanes.arrive(0, 1, 5), Some(7));
}

#[test]
fn a_wait_for_another_memory_barrier_orders_no_lanes() {
    let mut lanes = Lanes::new(64, 1);
    access(&mut lanes, 0, &[(0, 5)], 1, true);
    assert_eq!(lanes.arrive(0, 1, 3), None);
    // One that does not come after that arrival, and one that does, although lane 0 has arrived again since.
    assert!(!lanes.wait(0, !0, 2));
    assert_eq!(lanes.arrive(0, 1, 4), None);
    assert!(lanes.wait(0, !0, 3));
}
