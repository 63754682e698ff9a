//! Which accesses to global memory meet.

use super::*;

#[test]
fn parts_hold_each_byte_of_a_range_once() {
    for (address, bytes) in (96..104).flat_map(|address| (1..14).map(move |bytes| (address, bytes))) {
        let mut found = Vec::new();
        for (words, mask) in parts(address, bytes) {
            let of_word = |word| {
                (0..WORD).filter(|byte| mask >> byte & 1 != 0).map(move |byte| word * WORD + byte)
            };
            found.extend(words.flat_map(of_word));
        }
        assert_eq!(found, (address..address + u64::from(bytes)).collect::<Vec<_>>());
    }
}

fn met(
    race: &mut GlobalRace,
    address: u64,
    bytes: u32,
    (actor, manner): (u32, Manner),
    touch: Touch,
) -> Option<(u32, bool)> {
    let mut sweep = race.sweep(Access { actor, clock: 1, pc: actor, manner }, touch);
    let order = |other: Access| if other.actor == actor { Order::Before } else { Order::None };
    let meeting = race.access(&mut sweep, address, bytes, order)?;
    Some((meeting.other.actor, meeting.wrote))
}

fn actors(first: u32, of_block: u32) -> Actors {
    Actors { first, of_cluster: of_block, warps: of_block, of_block }
}

fn one_grid(of_block: u32) -> GlobalRace {
    GlobalRace::new(vec![actors(0, of_block)])
}

const PLAIN: Manner = Manner::Plain;
const STRONG: Manner = Manner::Strong(Scope::Launch);

#[test]
fn bytes_that_two_actors_share_are_a_race_unless_both_only_read() {
    let mut race = one_grid(1);
    assert_eq!(met(&mut race, 4096, 4, (1, PLAIN), Touch::Read), None);
    assert_eq!(met(&mut race, 4096, 4, (2, PLAIN), Touch::Read), None);
    assert_eq!(met(&mut race, 4098, 2, (3, PLAIN), Touch::Write), Some((1, false)));
    // The other half of the word is nobody's yet; across the end of a page it is one access.
    assert_eq!(met(&mut race, 4096, 2, (4, PLAIN), Touch::Read), None);
    assert_eq!(met(&mut race, 8188, 8, (1, PLAIN), Touch::Write), None);
    assert_eq!(met(&mut race, 8192, 4, (2, PLAIN), Touch::Read), Some((1, true)));
    let mut sweep = race.sweep(Access { actor: 3, clock: 1, pc: 0, manner: PLAIN }, Touch::Write);
    assert_eq!(race.access(&mut sweep, 8192, 4, |_| Order::Before), None);
}

#[test]
fn ranges_of_one_access_are_each_looked_at() {
    let mut race = one_grid(1);
    assert_eq!(met(&mut race, 4100, 4, (1, PLAIN), Touch::Write), None);
    let mut sweep = race.sweep(Access { actor: 2, clock: 1, pc: 0, manner: PLAIN }, Touch::Write);
    let mut next = |address, bytes| race.access(&mut sweep, address, bytes, |_| Order::None).is_some();
    // Bytes of a word that nobody accessed, its others, a word that somebody did, and another page.
    let ranges = [(4096, 2), (4098, 2), (4100, 4), (16384, 4)];
    assert_eq!(ranges.map(|(address, bytes)| next(address, bytes)), [false, false, true, false]);
    assert_eq!(met(&mut race, 4096, 2, (3, PLAIN), Touch::Read), Some((2, true)));
    assert_eq!(met(&mut race, 4099, 1, (3, PLAIN), Touch::Read), Some((2, true)));
}

#[test]
fn launches_know_nothing_of_those_before_them() {
    for _ in 0..3 {
        let mut race = one_grid(1);
        for page in 0..4 {
            assert_eq!(met(&mut race, 4096 * page, 4, (1, PLAIN), Touch::Write), None);
        }
    }
    let mut race = one_grid(1);
    assert_eq!(met(&mut race, 4096, 4, (2, PLAIN), Touch::Read), None);
}

#[test]
fn halves_of_a_word_have_writers_of_their_own() {
    let mut race = one_grid(1);
    assert_eq!(met(&mut race, 64, 2, (1, PLAIN), Touch::Write), None);
    assert_eq!(met(&mut race, 66, 2, (2, PLAIN), Touch::Write), None);
    assert_eq!(met(&mut race, 64, 2, (1, PLAIN), Touch::Read), None);
    assert_eq!(met(&mut race, 65, 1, (3, PLAIN), Touch::Read), Some((1, true)));
    assert_eq!(met(&mut race, 67, 1, (3, PLAIN), Touch::Write), Some((2, true)));
}

#[test]
fn strong_accesses_meet_each_other_and_race_with_others() {
    let mut race = one_grid(1);
    assert_eq!(met(&mut race, 64, 4, (1, STRONG), Touch::Write), None);
    assert_eq!(met(&mut race, 64, 4, (2, STRONG), Touch::Write), None);
    assert_eq!(met(&mut race, 64, 4, (3, PLAIN), Touch::Read), Some((2, true)));
}

#[test]
fn strong_accesses_for_a_block_meet_those_of_its_warps_alone() {
    let of_block = Manner::Strong(Scope::Block);
    let mut race = one_grid(2);
    assert_eq!(met(&mut race, 64, 4, (0, of_block), Touch::Write), None);
    assert_eq!(met(&mut race, 64, 4, (1, STRONG), Touch::Write), None);
    assert_eq!(met(&mut race, 64, 4, (2, of_block), Touch::Write), Some((1, true)));
}

#[test]
fn accesses_that_no_word_remembers_are_given_up() {
    let mut race = one_grid(1);
    assert_eq!(met(&mut race, 64, 4, (7, PLAIN), Touch::Write), None);
    for clock in 0..LIMIT as u32 {
        race.number(Access { actor: 1, clock, pc: 0, manner: PLAIN });
    }
    assert!(race.accesses.len() < 8);
    assert_eq!(met(&mut race, 64, 4, (3, PLAIN), Touch::Read), Some((7, true)));
}

#[test]
fn a_grid_that_has_ended_may_have_written_what_is_read_only() {
    for (order, meets) in [(Order::Before, true), (Order::Unseen, true), (Order::Ended, false)] {
        let mut race = one_grid(1);
        assert_eq!(met(&mut race, 64, 4, (1, PLAIN), Touch::Write), None);
        let access = Access { actor: 2, clock: 1, pc: 0, manner: Manner::ReadOnly };
        let mut sweep = race.sweep(access, Touch::Read);
        assert_eq!(race.access(&mut sweep, 64, 4, |_| order).is_some(), meets, "{order:?}");
    }
}

#[test]
fn each_grid_has_blocks_of_its_own() {
    let grids = [actors(0, 2), actors(6, 3)];
    let block = |actor| {
        let grid = Actors::grid(&grids, actor);
        let (block, warp, _) = grids[grid].warp(actor);
        (grid, (block, warp))
    };
    assert_eq!([0, 5, 6, 10].map(block), [(0, (0, 0)), (0, (2, 1)), (1, (0, 0)), (1, (1, 1))]);
    let mut race = GlobalRace::new(grids.to_vec());
    let in_block = Manner::Strong(Scope::Block);
    assert_eq!(met(&mut race, 64, 4, (5, in_block), Touch::Write), None);
    assert_eq!(met(&mut race, 64, 4, (6, in_block), Touch::Read), Some((5, true)));
}
