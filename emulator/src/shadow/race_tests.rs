//! The race shadow alone: who must wait for whom.

use super::*;
use crate::shadow::lanes::Words;

fn two_warps() -> Race {
    Race::new(1024, 2, 2, 24)
}

#[test]
fn a_barrier_orders_what_was_before_with_what_comes_after() {
    let mut race = two_warps();
    assert!(race.access(0, 0, 4, true).is_none());
    let conflict = race.access(1, 0, 4, false).expect("nothing orders them");
    assert_eq!((conflict.own, conflict.other, conflict.wrote), (Actor::Warp(1), Actor::Warp(0), true));
    (0..2).for_each(|warp| race.release_to_barrier(warp, 0));
    race.acquire_from_barrier(&[0, 1], 0);
    assert!(race.access(1, 0, 4, false).is_none());
    // The read of the other warp is behind the barrier, and so is this write.
    let conflict = race.access(0, 0, 4, true).expect("nothing orders them");
    assert!(!conflict.wrote);
}

#[test]
fn parts_of_a_word_belong_to_different_warps() {
    let mut race = two_warps();
    assert!(race.access(0, 0, 2, true).is_none());
    assert!(race.access(1, 2, 2, true).is_none());
    assert!(race.access(0, 0, 4, false).is_some());
}

#[test]
fn bytes_of_a_word_are_the_affair_of_those_who_access_them() {
    let mut race = two_warps();
    assert!(race.access(0, 0, 2, true).is_none());
    assert!(race.access(1, 3, 1, false).is_none());
    assert!(race.access(1, 1, 1, false).is_some_and(|conflict| conflict.wrote));
    assert!(race.access(0, 2, 1, true).is_none());
    assert!(race.access(0, 3, 1, true).is_some_and(|conflict| !conflict.wrote));
    // A range from the middle of a word to the middle of another.
    let sweep = |race: &mut Race, warp, offset| {
        let mut sweep = race.accesses(warp, 2, true, None);
        race.sweep(&mut sweep, offset, 12)
    };
    assert!(sweep(&mut race, 0, 66).is_none());
    assert!(race.access(1, 64, 2, true).is_none() && race.access(1, 78, 2, true).is_none());
    assert!(race.access(1, 70, 1, false).is_some() && race.access(1, 76, 2, false).is_some());
}

#[test]
fn strong_accesses_meet_each_other_alone() {
    let mut race = two_warps();
    let strong = |race: &mut Race, warp, offset, write| {
        let mut sweep = race.accesses(warp, 4, write, Some(Scope::Block));
        race.sweep(&mut sweep, offset, 4)
    };
    assert!(strong(&mut race, 0, 0, true).is_none() && strong(&mut race, 1, 0, true).is_none());
    assert!(strong(&mut race, 0, 0, false).is_none());
    assert!(race.access(1, 0, 4, false).is_some_and(|conflict| conflict.wrote));
    assert!(race.access(1, 64, 4, false).is_none());
    assert!(strong(&mut race, 0, 64, true).is_some_and(|conflict| !conflict.wrote));
}

#[test]
fn a_wait_learns_of_the_phases_that_it_waited_for() {
    let mut race = two_warps();
    race.access(0, 0, 4, true);
    race.release_to_mbarrier((0, !0), 512, 0, Scope::Block);
    race.access(0, 4, 4, true);
    race.release_to_mbarrier((0, !0), 512, 1, Scope::Block);
    race.acquire_from_mbarrier(1, 512, 1, Some(Scope::Block));
    assert!(race.access(1, 0, 4, false).is_none());
    assert!(race.access(1, 4, 4, false).is_some());
    race.acquire_from_mbarrier(1, 512, 2, Some(Scope::Block));
    assert!(race.access(1, 4, 4, true).is_none());
}

#[test]
fn the_proxy_sees_what_a_fence_showed_it() {
    let mut race = two_warps();
    race.access(0, 0, 16, true);
    let store = |race: &mut Race| race.asynchronous(0, Actor::Store(0, 0), 1, 0..16, Copying::Reads);
    assert!(store(&mut race).is_some_and(|conflict| conflict.fenceless));
    race.proxy_fence(0);
    assert!(store(&mut race).is_none());
    // What is written after the fence is not covered by it; and the store is still reading.
    let conflict = race.access(0, 0, 4, true).expect("the store has not been waited for");
    assert_eq!(conflict.other, Actor::Store(0, 0));
    race.complete(0, Actor::Store(0, 0), 1);
    assert!(race.access(0, 4, 4, true).is_none());
    assert!(store(&mut race).is_some_and(|conflict| conflict.fenceless));
}

#[test]
fn a_load_is_known_to_those_who_saw_its_phase() {
    let mut race = two_warps();
    assert!(race.asynchronous(0, Actor::Load(2048), 1, 0..64, Copying::Writes).is_none());
    assert!(race.access(1, 60, 4, false).is_some_and(|conflict| conflict.other == Actor::Load(2048)));
    race.acquire_from_mbarrier(1, 2048, 1, Some(Scope::Block));
    assert!(race.access(1, 60, 4, false).is_none());
    // The next load into the same bytes must come after that read.
    assert!(race.asynchronous(0, Actor::Load(2048), 2, 0..64, Copying::Writes).is_some());
    race.release_to_mbarrier((1, !0), 4096, 0, Scope::Block);
    race.acquire_from_mbarrier(0, 4096, 1, Some(Scope::Block));
    assert!(race.asynchronous(0, Actor::Load(2048), 2, 0..64, Copying::Writes).is_none());
}

#[test]
fn nothing_is_left_of_the_block_before() {
    let mut race = two_warps();
    let mut offsets = [0; 32];
    (offsets[3], offsets[4]) = (64, 64);
    let lane = |lane: u32| Words { offsets: &offsets, lanes: 1 << lane, count: 1, contiguous: false };
    race.pc = 7;
    race.access(0, 64, 4, true);
    race.lanes.access(0, lane(3), true);
    let mut race = race.reset();
    assert!(race.access(1, 64, 4, true).is_none());
    let conflict = race.access(0, 64, 4, true).expect("nothing orders them");
    assert_eq!(conflict.other_pc, Some(0));
    assert_eq!(race.lanes.access(0, lane(4), true), None);
    assert!(race.lanes.access(0, lane(3), true).is_some());
}

#[test]
fn bytes_of_a_barrier_are_nobodys() {
    let mut race = two_warps();
    race.mbarrier_begins(0, 1032, 8, 8);
    assert!(race.access(0, 12, 4, false).is_some_and(|conflict| conflict.fenceless));
    assert!(!race.mbarrier_is_used(1, 1032));
    assert_eq!(race.mbarrier_ends(0, 1032, 8, 8), Some(1));
    assert!(race.access(0, 12, 4, false).is_none());
}

/// Reads by multiplications are told of by the instruction that read these bytes, though others of the
/// group read more.
#[test]
fn a_read_by_a_multiplication_has_its_instruction() {
    let mut race = two_warps();
    let rows = |first: u32| -> Arc<[Range<u32>]> {
        (0..4).map(|row| first + 128 * row..first + 128 * row + 32).collect()
    };
    for (pc, first) in [(7, 0), (8, 32), (9, 64)] {
        race.pc = pc;
        assert!(race.operand(0, 1, &rows(first)).is_none());
    }
    race.pc = 20;
    let conflict = race.access(1, 128 + 40, 4, true).expect("nothing orders them");
    assert_eq!((conflict.other, conflict.wrote, conflict.other_pc), (Actor::Wgmma(0), false, Some(8)));
    // A whole row at once meets the same.
    let conflict = race.access(1, 256 + 64, 32, true).expect("nothing orders them");
    assert_eq!(conflict.other_pc, Some(9));
}
