//! Which (query tile, head, batch) a block works on.
//!
//! (batch, query head) pairs are taken in waves that share the level-2 cache; inside a wave the last
//! query tile comes first for every head: with a causal mask it is the longest, and long tiles started
//! last would leave the machine idle.

use crate::abi::WINDOW_OPEN;

/// One block's piece of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// Query tile of the head.
    pub tile: u32,
    /// Query head.
    pub head: u32,
    /// Batch.
    pub batch: u32,
}

/// The size of the problem in blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Query tiles per head, at least 1.
    pub tiles: u32,
    /// Query heads per batch, at least 1.
    pub heads: u32,
    /// Batches, at least 1.
    pub batches: u32,
    /// (batch, head) pairs worked on together, at least 1.
    pub heads_per_wave: u32,
    /// Whether a head of all batches comes before the next head, so that what batches share stays in the
    /// level-2 cache; otherwise all heads of a batch come before the next batch.
    pub batches_are_neighbours: bool,
}

impl Schedule {
    /// Pieces of work.
    #[inline(always)]
    pub const fn count(&self) -> u32 {
        self.tiles * self.heads * self.batches
    }

    /// The work of block `block`, below `tiles * heads * batches`.
    ///
    /// Division goes through `divide`, because a kernel must not contain the panic of a division by
    /// zero.
    #[inline(always)]
    pub fn work(&self, block: u32, divide: impl Fn(u32, u32) -> u32) -> Work {
        let pairs = self.heads * self.batches;
        let wave = divide(block, self.tiles * self.heads_per_wave);
        let first_pair = wave * self.heads_per_wave;
        let rest = block - first_pair * self.tiles;
        let left = pairs - first_pair;
        let width = if left < self.heads_per_wave { left } else { self.heads_per_wave };
        let rank = divide(rest, width);
        let pair = first_pair + (rest - rank * width);
        let tile = self.tiles - 1 - rank;
        if self.batches_are_neighbours {
            let head = divide(pair, self.batches);
            return Work { tile, head, batch: pair - head * self.batches };
        }
        let batch = divide(pair, self.heads);
        Work { tile, head: pair - batch * self.heads, batch }
    }
}

/// How many rows the first of the tiles of `rows` rows of a sequence of `count` lacks: as many whole steps of
/// `step` as they have too many, where a query sees `right` keys past its own position and no more.
///
/// Its rows then see the fewest keys, and those of the last tile as many as there are. Where `right` is
/// [`WINDOW_OPEN`] it lacks none.
#[inline(always)]
pub const fn missing_rows(rows: u32, step: u32, count: u32, right: i32) -> u32 {
    let past = count % rows;
    if past == 0 || right == WINDOW_OPEN { 0 } else { (rows - past) / step * step }
}

/// Rows `begin..end` of query tile `tile` in a sequence of `count` rows, in tiles of `rows`; none for a tile
/// that the sequence does not have. The first tile lacks `missing` of them, as [`missing_rows`] says, and the
/// last one what else there is too much.
#[inline(always)]
pub const fn tile_rows(tile: u32, rows: u32, missing: u32, count: u32) -> (u32, u32) {
    let end = (tile + 1) * rows - missing;
    (if tile == 0 { 0 } else { end - rows }, if end < count { end } else { count })
}

/// Query tile and head of piece `number` of a packed sequence of `tiles` query tiles: as in a wave of all its
/// heads.
#[inline(always)]
pub fn within_sequence(
    number: u32,
    tiles: u32,
    heads: u32,
    divide: impl Fn(u32, u32) -> u32,
) -> (u32, u32) {
    let rank = divide(number, heads);
    (tiles - 1 - rank, number - rank * heads)
}

/// The number that `lane` has when the 32 lanes of a warp, which have a `number` each, have sorted them, the
/// largest first. `exchange(own, distance)` gives that of lane `lane ^ distance`.
///
/// A bitonic sort (Batcher 1968): of two lanes one keeps the larger number, so that descending runs of 2, 4,
/// 8, 16, 32 come about, and ascending ones in turn.
#[inline(always)]
pub fn sort_descending(lane: u32, number: u32, mut exchange: impl FnMut(u32, u32) -> u32) -> u32 {
    let mut own = number;
    let mut run = 2;
    while run <= 32 {
        let mut distance = run / 2;
        while distance > 0 {
            let other = exchange(own, distance);
            let keeps_larger = (lane & distance == 0) == (lane & run == 0);
            if (other > own) == keeps_larger {
                own = other;
            }
            distance /= 2;
        }
        run *= 2;
    }
    own
}

/// Tile `turn` of block `block`, when `blocks` blocks share tiles that come longest first: back and forth, so
/// that who had the longest of one turn has the shortest of the next.
#[inline(always)]
pub const fn dealt(turn: u32, block: u32, blocks: u32) -> u32 {
    turn * blocks + if turn.is_multiple_of(2) { block } else { blocks - 1 - block }
}

/// How many (batch, query head) pairs to work on together so that their keys and values fill at most
/// half of the level-2 cache: `group_size` query heads share one set. A multiple of `group_size`, at
/// least `group_size`.
///
/// Measured: DRAM traffic of the causal forward halves against taking all heads at once.
pub const fn heads_per_wave(bytes_per_key_head: u64, group_size: u32, l2_bytes: u64, pairs: u32) -> u32 {
    let sets = match (l2_bytes / 2).checked_div(bytes_per_key_head) {
        None => u64::MAX,
        Some(0) => 1,
        Some(sets) => sets,
    };
    let heads = sets.saturating_mul(group_size as u64);
    let limit = if pairs == 0 { 1 } else { pairs as u64 };
    if heads < limit { heads as u32 } else { limit as u32 }
}

/// A number of pairs to work on together, at most `most` and more than half of it where possible, such that
/// the last wave is as full as can be: a small one leaves much of the machine idle while its longest tiles
/// are worked on (simulated at head dim 256, S 4096 causal, 32 pairs: waves of 7 take 9 % longer than of 8).
/// A multiple of `group_size`.
pub const fn even_wave(pairs: u32, most: u32, group_size: u32) -> u32 {
    let most = if most < pairs { most } else { pairs };
    let most = if most < group_size { group_size } else { most / group_size * group_size };
    let (mut best, mut best_missing) = (most, u32::MAX);
    let mut wave = most;
    while wave >= group_size && wave > most / 2 {
        let missing = (wave - pairs % wave) % wave;
        if missing < best_missing {
            (best, best_missing) = (wave, missing);
        }
        wave -= group_size;
    }
    best
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::abi::MAX_ROWS;
    use proptest::prelude::*;
    use std::collections::HashSet;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicU32, Ordering};

    proptest! {
        #[test]
        fn every_tile_of_every_head_is_worked_on_once(
            tiles in 1..9u32, heads in 1..7u32, batches in 1..5u32, heads_per_wave in 1..40u32,
            batches_are_neighbours: bool,
        ) {
            let heads_per_wave = heads_per_wave.min(heads * batches);
            let schedule = Schedule { tiles, heads, batches, heads_per_wave, batches_are_neighbours };
            let mut seen = HashSet::new();
            for block in 0..tiles * heads * batches {
                let work = schedule.work(block, |a, b| a / b);
                prop_assert!(work.tile < tiles && work.head < heads && work.batch < batches);
                prop_assert!(seen.insert((work.tile, work.head, work.batch)));
            }
        }

        #[test]
        fn a_wave_is_never_empty_and_never_more_than_there_is(
            bytes in 0..1u64 << 40, group in 1..64u32, l2 in 0..1u64 << 30, pairs in 0..1u32 << 20,
        ) {
            let wave = heads_per_wave(bytes, group, l2, pairs);
            prop_assert!(wave >= 1 && wave <= pairs.max(1));
        }
    }

    proptest! {
        #[test]
        fn an_even_wave_keeps_groups_whole_and_its_limit(
            groups in 1..2000u32, group in 1..33u32, most in 1..5000u32,
        ) {
            let pairs = groups * group;
            let wave = even_wave(pairs, most, group);
            prop_assert!(wave >= 1 && wave.is_multiple_of(group) && wave <= most.max(group) && wave <= pairs);
        }
    }

    proptest! {
        #[test]
        fn tiles_hold_every_row_once_and_lack_whole_steps_in_the_first_one_only(
            steps in 1..13u32, step in 1..65u32, count in 0..2000u32, moves: bool,
        ) {
            let rows = steps * step;
            let missing = missing_rows(rows, step, count, if moves { 0 } else { WINDOW_OPEN });
            let tiles = count.div_ceil(rows);
            let mut next = 0;
            for tile in 0..tiles {
                let (begin, end) = tile_rows(tile, rows, missing, count);
                prop_assert_eq!(begin, next);
                prop_assert!(begin < end && end <= begin + rows && begin % step == 0);
                prop_assert!(end == begin + rows || tile == 0 || end == count);
                prop_assert!(!moves || tile == 0 || end > begin + rows - step);
                next = end;
            }
            prop_assert_eq!(next, count);
            for tile in tiles..tiles + 3 {
                let (begin, end) = tile_rows(tile, rows, missing, count);
                prop_assert!(begin >= end);
            }
        }
    }

    #[test]
    fn the_first_tile_is_short_where_later_queries_see_more_keys() {
        let tiles = |step, right| {
            let missing = missing_rows(192, step, 400, right);
            [0, 1, 2].map(|tile| tile_rows(tile, 192, missing, 400))
        };
        assert_eq!(tiles(64, 0), [(0, 64), (64, 256), (256, 400)]);
        assert_eq!(tiles(16, 5), [(0, 16), (16, 208), (208, 400)]);
        assert_eq!(tiles(16, WINDOW_OPEN), [(0, 192), (192, 384), (384, 400)]);
        let (count, last) = (MAX_ROWS - 66, MAX_ROWS / 192 - 1);
        let missing = missing_rows(192, 16, count, 0);
        assert_eq!(tile_rows(last, 192, missing, count), (192 * last - 64, count));
    }

    #[test]
    fn a_sequence_has_every_tile_of_every_head_once_and_the_last_tile_first() {
        let pieces: std::vec::Vec<_> = (0..6).map(|n| within_sequence(n, 3, 2, |a, b| a / b)).collect();
        assert_eq!(pieces, [(2, 0), (2, 1), (1, 0), (1, 1), (0, 0), (0, 1)]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(50))]
        #[test]
        fn a_warp_sorts_its_numbers_with_the_largest_first(numbers in proptest::array::uniform32(0..99u32)) {
            // A thread for each lane; they exchange by a table, between two barriers.
            let table: [AtomicU32; 32] = Default::default();
            let meet = Barrier::new(32);
            let sort = |lane: u32| {
                sort_descending(lane, numbers[lane as usize], |own, distance| {
                    table[lane as usize].store(own, Ordering::Relaxed);
                    meet.wait();
                    let other = table[(lane ^ distance) as usize].load(Ordering::Relaxed);
                    meet.wait();
                    other
                })
            };
            let sorted = std::thread::scope(|scope| {
                let lanes: [_; 32] = std::array::from_fn(|lane| scope.spawn(move || sort(lane as u32)));
                lanes.map(|lane| lane.join().unwrap())
            });
            let mut expected = numbers;
            expected.sort_unstable_by(|a, b| b.cmp(a));
            prop_assert_eq!(sorted, expected);
        }
    }

    #[test]
    fn the_last_wave_is_full_where_it_can_be() {
        assert_eq!(even_wave(64, 16, 1), 16);
        assert_eq!(even_wave(32, 8, 1), 8);
        assert_eq!(even_wave(64, 15, 1), 8);
        assert_eq!(even_wave(61, 15, 1), 9); // 6 x 9 + 7, all others are further from full
        assert_eq!(even_wave(64, 30, 8), 16);
        assert_eq!(even_wave(5, 100, 1), 5);
    }

    #[test]
    fn every_tile_is_dealt_out_once() {
        for blocks in 1..9 {
            let mut seen: std::vec::Vec<u32> = (0..6)
                .flat_map(|turn| (0..blocks).map(move |block| dealt(turn, block, blocks)))
                .collect();
            seen.sort_unstable();
            assert_eq!(seen, (0..6 * blocks).collect::<std::vec::Vec<_>>());
        }
    }

    #[test]
    fn the_longest_causal_tiles_come_first() {
        let heads_per_wave = 2;
        let schedule =
            Schedule { tiles: 4, heads: 2, batches: 1, heads_per_wave, batches_are_neighbours: false };
        let tiles: std::vec::Vec<u32> = (0..8).map(|b| schedule.work(b, |a, b| a / b).tile).collect();
        assert_eq!(tiles, [3, 3, 2, 2, 1, 1, 0, 0]);
    }

    #[test]
    fn of_neighbours_a_head_of_all_batches_comes_first() {
        let schedule =
            Schedule { tiles: 1, heads: 2, batches: 3, heads_per_wave: 1, batches_are_neighbours: true };
        let places = (0..6).map(|b| schedule.work(b, |a, b| a / b)).map(|work| (work.head, work.batch));
        let expected = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)];
        assert_eq!(places.collect::<std::vec::Vec<_>>(), expected);
    }
}
