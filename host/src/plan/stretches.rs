//! Into what key tiles of a backward for Hopper are divided, where whole ones would leave multiprocessors
//! idle: few tiles of many steps, as with few heads, or the last ones of many.

use super::lengths::{self, Alike};
use super::steps::{Count, Step};
use super::waves::ends_at_the_diagonal;
use crate::driver::DeviceProperties;
use crate::problem::{Mode, ValidForward};
use kernels_gpu::abi::{BackwardParams, KernelSpec};
use kernels_gpu::geometry::stretch::Division;

/// How key tiles are divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stretches {
    /// Said to the kernels.
    pub division: Division,
    /// Tiles that are divided; of packed sequences as many as there may be.
    pub divided_tiles: u32,
}

/// What a tile takes besides its steps, in tenths of a step. Measured (H100): 2.5 steps.
const TILE_COST: u64 = 25;
/// What a stretch takes besides its steps.
const STRETCH_COST: u64 = 45;
/// What the kernel that adds up takes.
const SUM_COST: u64 = 40;
/// How much longer steps take where turns end anywhere. Measured (H200, 32 query heads of one key head, S
/// 2048 and 4096): 2 and 14 %.
const TURNS_PERCENT: u64 = 12;
/// Units of a tile where turns end anywhere.
const FINE_BITS: u32 = 10;
/// Least steps of a stretch, where all tiles have as many stretches.
const LEAST_STEPS: u64 = 2;
/// Most stretches of a tile, as a power of two, where all have as many.
const MOST_EQUAL_BITS: u32 = 4;
/// Most stretches of each of the last tiles, as a power of two, where those wait for each other.
const MOST_LAST_BITS: u32 = 3;

impl Stretches {
    /// Nothing is divided.
    pub const NONE: Stretches = Stretches { division: Division::NONE, divided_tiles: 0 };

    /// How the key tiles of a main kernel for Hopper are divided.
    pub fn choose(
        valid: &ValidForward,
        mode: Mode,
        main: &KernelSpec,
        device: &DeviceProperties,
        reasons: &mut Vec<String>,
    ) -> Self {
        let tiles = Tiles::of(valid, main);
        let multiprocessors = u64::from(device.multiprocessors.max(1));
        let chosen = if mode == Mode::Deterministic {
            // All at once: each stretch waits for the same one of the next tile. That takes time, too.
            let all_at_once = tiles.unlike(multiprocessors, multiprocessors, 80);
            let last_are_longest = ends_at_the_diagonal(valid) && !valid.is_packed();
            all_at_once.or_else(|| tiles.last(multiprocessors).filter(|_| last_are_longest))
        } else if valid.sees_all() && !valid.is_packed() {
            // What a boolean mask shows is in device memory alone.
            let under_mask = valid.problem.attn_mask.and_then(|_| tiles.perhaps_unlike(multiprocessors));
            under_mask.or_else(|| tiles.alike(multiprocessors))
        } else {
            tiles.unlike(multiprocessors, 2 * multiprocessors, 95)
        };
        let Some(chosen) = chosen.filter(|chosen| tiles.can_be_counted(chosen, multiprocessors)) else {
            return Stretches::NONE;
        };
        let divided = chosen.divided_tiles;
        let stretches = chosen.division.turns(divided);
        reasons.push(format!("{divided} of {} key tiles in {stretches} stretches", tiles.most));
        chosen
    }

    /// How often a block takes something, all blocks together.
    pub fn turns(&self) -> u32 {
        self.division.whole_tiles + self.division.turns(self.divided_tiles)
    }

    /// Slots for sums of dK and dV.
    pub fn slots(&self) -> u32 {
        self.division.slots(self.divided_tiles)
    }

    /// Says it to the kernels.
    pub fn tell(&self, params: &mut BackwardParams) {
        let Division { whole_tiles, unit_bits, turn_units } = self.division;
        (params.whole_tiles, params.unit_bits) = (whole_tiles, unit_bits);
        params.turn_units = turn_units;
    }
}

/// The key tiles of a problem, and their steps.
struct Tiles {
    /// All tiles; of packed sequences as many as are likely.
    count: u64,
    /// As many as there may be.
    most: u32,
    /// Key tiles of the longest sequence of a head.
    of_head: u64,
    /// Query heads of a key head: the steps of a tile are as many for each.
    group: u64,
    /// Steps of all.
    steps: u64,
    /// Steps of the longest one; of packed sequences of the likely ones.
    longest: u64,
    /// More steps than this no tile can have.
    most_steps: u64,
}

impl Tiles {
    fn of(valid: &ValidForward, main: &KernelSpec) -> Self {
        let step = Step { keys: main.key_rows, queries: main.query_rows as i32 };
        let heads = u64::from(valid.key_heads);
        let group = u64::from(valid.group_size);
        let head_tiles = |rows: u32| u64::from(rows.div_ceil(main.key_rows));
        let (mut count, mut steps, mut longest) = (0, 0, 0);
        for Alike { count: sequences, sequence } in lengths::likely(valid) {
            let of_head = Count::of(&sequence, step);
            count += sequences * heads * head_tiles(sequence.key_rows);
            steps += sequences * heads * group * of_head.all as u64;
            longest = longest.max(group * of_head.most as u64);
        }
        let of_head = head_tiles(valid.key_rows);
        let most = if valid.is_packed() {
            let keys = valid.problem.k.shape[1] as u64;
            heads * (keys / u64::from(main.key_rows) + u64::from(valid.batches))
        } else {
            count
        };
        let most_steps = group * u64::from(valid.query_rows.div_ceil(main.query_rows));
        let most = most.min(u64::from(u32::MAX)) as u32;
        Tiles { count, most, of_head, group, steps, longest, most_steps }
    }

    /// Where all tiles take equally long: those of the last wave in turns of as many steps each, or, where
    /// there is but one wave, all of them in equal parts, if that is as good.
    fn alike(&self, multiprocessors: u64) -> Option<Stretches> {
        let (waves, rest) = (self.count / multiprocessors, self.count % multiprocessors);
        let whole = 10 * self.longest + TILE_COST;
        let steps = 10 * rest * self.longest;
        let in_turns =
            (steps + steps / 100 * TURNS_PERCENT) / multiprocessors + 2 * STRETCH_COST + SUM_COST;
        let in_parts = |&bits: &u32| {
            let waves = (rest << bits).div_ceil(multiprocessors);
            waves * (10 * (self.longest >> bits) + STRETCH_COST) + SUM_COST
        };
        let fits = |bits: &u32| self.can_be_in_parts(*bits, 2 * multiprocessors);
        let parts = (1..=MOST_EQUAL_BITS).filter(fits);
        let parts = parts.min_by_key(in_parts).filter(|bits| waves == 0 && in_parts(bits) <= in_turns);
        let time = parts.as_ref().map_or(in_turns, in_parts);
        // A twentieth of all: slots are memory, and idle multiprocessors leave power to the others.
        if rest == 0 || time + (waves + 1) * whole / 20 >= whole {
            return None;
        }
        if let Some(bits) = parts {
            return Some(self.in_equal_parts(bits));
        }
        let division = Division {
            whole_tiles: (self.count - rest) as u32,
            unit_bits: FINE_BITS,
            turn_units: (rest << FINE_BITS).div_ceil(multiprocessors) as u32,
        };
        Some(Stretches { division, divided_tiles: rest as u32 })
    }

    /// Where tiles differ, or their order matters: into as many parts each, at most `most` of all, if that
    /// takes at most `percent` of the time.
    fn unlike(&self, multiprocessors: u64, most: u64, percent: u64) -> Option<Stretches> {
        let time = |bits: u32| {
            let cost = if bits == 0 { TILE_COST } else { STRETCH_COST };
            let all = 10 * self.steps + cost * (self.count << bits);
            let longest = 10 * (self.longest >> bits) + cost;
            let end = if bits == 0 { 0 } else { SUM_COST };
            (all / multiprocessors + longest / 4).max(longest) + end
        };
        let fits = |bits: &u32| self.can_be_in_parts(*bits, most);
        let best = (1..=MOST_EQUAL_BITS).filter(fits).min_by_key(|&bits| time(bits))?;
        (100 * time(best) <= percent * time(0)).then(|| self.in_equal_parts(best))
    }

    /// Where tiles may differ and may not: as those that do, if what is taken last keeps nearly all
    /// multiprocessors busy, so that little is lost where they are alike.
    fn perhaps_unlike(&self, multiprocessors: u64) -> Option<Stretches> {
        let most = 2 * multiprocessors;
        let fills = |chosen: &Stretches| {
            let turns = u64::from(chosen.turns());
            10 * turns >= 9 * turns.next_multiple_of(multiprocessors)
        };
        self.unlike(multiprocessors, most, 95).filter(fills)
    }

    /// Where tiles go in order, the longest ones last: a wave of those, each in as many parts, if that takes
    /// at most 95 % of the time. A part is of whole heads: it waits for the same part of the tile before,
    /// which works on those, too.
    fn last(&self, multiprocessors: u64) -> Option<Stretches> {
        let divided = multiprocessors.min(self.count);
        let mean = self.steps.checked_div(self.count)?;
        let time = |bits: u32| {
            let (cost, sum) = if bits == 0 { (0, 0) } else { (STRETCH_COST << bits, SUM_COST) };
            let all = 10 * self.steps + TILE_COST * self.count + cost * divided;
            all / multiprocessors + ((10 * self.longest.saturating_sub(mean)) >> bits) + sum
        };
        let fits = |bits: &u32| {
            self.group.is_multiple_of(1 << bits) && mean >> bits >= LEAST_STEPS && divided > 0
        };
        let bits = (1..=MOST_LAST_BITS).filter(fits).min_by_key(|&bits| time(bits))?;
        let division =
            Division { whole_tiles: (self.count - divided) as u32, unit_bits: bits, turn_units: 1 };
        let stretches = Stretches { division, divided_tiles: divided as u32 };
        (100 * time(bits) <= 95 * time(0)).then_some(stretches)
    }

    /// Whether `2^bits` parts of each tile have steps enough, and all are at most `most`, each of which
    /// takes a slot.
    fn can_be_in_parts(&self, bits: u32, most: u64) -> bool {
        self.count << bits <= most && self.longest >> bits >= LEAST_STEPS
    }

    fn in_equal_parts(&self, unit_bits: u32) -> Stretches {
        Stretches { division: Division { unit_bits, ..Division::NONE }, divided_tiles: self.most }
    }

    /// Whether the kernels can count so far: see [`BackwardParams::unit_bits`].
    fn can_be_counted(&self, chosen: &Stretches, multiprocessors: u64) -> bool {
        let tiles = u64::from(chosen.divided_tiles) + 2 * multiprocessors;
        let most = (2 * self.of_head).max(tiles).max(self.most_steps);
        most << chosen.division.unit_bits < 1 << 31
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::device;
    use crate::problem::{CausalAlignment, ForwardProblem, Layout, Mask, MaskShape, Sequences};
    use kernels_gpu::abi::{Dtype, KERNELS};

    const CAUSAL: Mask = Mask::Causal(CausalAlignment::BottomRight);

    fn chosen(problem: ForwardProblem, mode: Mode) -> Stretches {
        let main = KERNELS.iter().find(|kernel| kernel.name == "backward_bf16_d128_sm90a").unwrap();
        Stretches::choose(&problem.validate().unwrap(), mode, main, &device(), &mut Vec::new())
    }

    /// `heads` query heads of `key_heads` key heads.
    fn dense([batches, rows]: [usize; 2], [heads, key_heads]: [usize; 2], mask: Mask) -> ForwardProblem {
        let layout = |heads| Layout::bshd([batches, rows, heads, 128]);
        let keys = layout(key_heads);
        ForwardProblem::new(Dtype::Bf16, layout(heads), keys, keys).with_mask(mask)
    }

    #[test]
    fn few_key_heads_are_shared_by_all_multiprocessors() {
        for rows in [1024, 2048, 4096] {
            let full = chosen(dense([1, rows], [32, 1], Mask::Full), Mode::Fast);
            assert_eq!(full.divided_tiles as usize, rows / 128);
            assert_eq!((full.turns(), full.division.turn_units), (128, 1), "{rows}: {full:?}");
            let causal = chosen(dense([1, rows], [32, 1], CAUSAL), Mode::Fast);
            assert_eq!(causal.divided_tiles as usize, rows / 128);
            assert!((128..=264).contains(&causal.turns()), "{rows}: {causal:?}");
        }
    }

    #[test]
    fn what_keeps_all_multiprocessors_busy_is_not_divided() {
        for mode in [Mode::Fast, Mode::Deterministic] {
            for mask in [Mask::Full, CAUSAL] {
                for (batches, rows) in
                    [(32, 512), (16, 1024), (8, 2048), (4, 4096), (2, 8192), (1, 16384)]
                {
                    assert_eq!(chosen(dense([batches, rows], [16, 16], mask), mode), Stretches::NONE);
                }
            }
        }
        // As many tiles as multiprocessors, and one of few steps.
        assert_eq!(chosen(dense([1, 132 * 128], [1, 1], Mask::Full), Mode::Fast), Stretches::NONE);
        assert_eq!(chosen(dense([1, 128], [2, 1], CAUSAL), Mode::Fast), Stretches::NONE);
    }

    /// With one stretch for each multiprocessor all would wait for the tile of which a mask shows the most.
    #[test]
    fn under_a_boolean_mask_few_key_tiles_have_more_stretches_than_multiprocessors() {
        let of = |tiles: usize, is_masked: bool| {
            let layout = |rows, heads| Layout::bshd([1, rows, heads, 128]);
            let (q, keys) = (layout(4096, 16), layout(128 * tiles / 2, 2));
            let problem = ForwardProblem::new(Dtype::Bf16, q, keys, keys);
            let mask = MaskShape { batches: 1, heads: 2, queries: 4096, keys: 128 * tiles / 2 };
            let problem = if is_masked { problem.with_attn_mask(mask) } else { problem };
            chosen(problem, Mode::Fast)
        };
        assert_eq!([false, true].map(|is_masked| of(16, is_masked).turns()), [128, 256]);
        assert_eq!([false, true].map(|is_masked| of(64, is_masked).turns()), [128, 256]);
        // Where twice as many would leave some idle in the end, and of many, as without one.
        for tiles in [48, 100, 144, 2048] {
            assert_eq!(of(tiles, true), of(tiles, false), "{tiles}");
        }
    }

    /// 48 tiles in halves are for 96 multiprocessors, in quarters for 132 and 60.
    #[test]
    fn turns_end_within_tiles_where_equal_parts_leave_too_much_idle() {
        let stretches = chosen(dense([1, 48 * 128], [8, 1], Mask::Full), Mode::Fast);
        assert_eq!((stretches.divided_tiles, stretches.turns()), (48, 132), "{stretches:?}");
        assert!(stretches.slots() <= 132 + 48 && stretches.division.turn_units > 1);
    }

    #[test]
    fn of_a_second_wave_the_tiles_that_are_too_few_are_divided() {
        let stretches = chosen(dense([1, 144 * 128], [1, 1], Mask::Full), Mode::Fast);
        assert_eq!((stretches.division.whole_tiles, stretches.divided_tiles), (132, 12));
        assert!(stretches.turns() <= 264 && stretches.slots() <= 132 + 12, "{stretches:?}");
    }

    /// In order, all stretches are there at once: whom one waits for is being worked on.
    #[test]
    fn in_order_there_are_no_more_stretches_than_multiprocessors() {
        for rows in [1024, 2048, 4096] {
            for mask in [Mask::Full, CAUSAL] {
                let stretches = chosen(dense([1, rows], [32, 1], mask), Mode::Deterministic);
                assert!(stretches.turns() <= 132 && stretches.division.turn_units == 1, "{stretches:?}");
                assert!(stretches.division.unit_bits > 0);
            }
        }
    }

    /// In order, the longest tiles of a causal mask come last.
    #[test]
    fn in_order_the_last_tiles_of_groups_are_divided_by_heads() {
        let of = |shape, heads, mask| chosen(dense(shape, heads, mask), Mode::Deterministic);
        for (shape, heads, unit_bits) in [
            ([1, 8192], [32, 8], 2),
            ([2, 4096], [32, 8], 2),
            ([1, 4096], [64, 8], 3),
            ([1, 8192], [96, 16], 1),
        ] {
            let stretches = of(shape, heads, CAUSAL);
            let tiles = (shape[0] * shape[1] / 128 * heads[1]) as u32;
            let division = Division { whole_tiles: tiles - 132, unit_bits, turn_units: 1 };
            assert_eq!(stretches, Stretches { division, divided_tiles: 132 }, "{shape:?} {heads:?}");
        }
        // Tiles of one length, heads that cannot be shared out evenly, so many tiles that the last are few.
        assert_eq!(of([1, 8192], [32, 8], Mask::Full), Stretches::NONE);
        assert_eq!(of([1, 8192], [24, 8], CAUSAL), Stretches::NONE);
        assert_eq!(of([16, 8192], [32, 8], CAUSAL), Stretches::NONE);
        let window =
            Mask::Window { left: Some(1000), right: Some(0), alignment: CausalAlignment::TopLeft };
        assert_eq!(of([1, 8192], [32, 8], window), Stretches::NONE);
    }

    #[test]
    fn packed_sequences_have_slots_for_as_many_tiles_as_there_may_be() {
        let layout = |heads| Layout::packed([3000, heads, 128]);
        let sequences = Sequences::Packed { count: 7, max_query_rows: 1500, max_key_rows: 1500 };
        let problem = ForwardProblem::new(Dtype::Bf16, layout(32), layout(1), layout(1));
        let stretches = chosen(problem.with_sequences(sequences), Mode::Fast);
        assert_eq!(stretches.divided_tiles, 3000 / 128 + 7);
        assert_eq!(stretches.slots(), stretches.divided_tiles << stretches.division.unit_bits);
        assert!(stretches.division.unit_bits > 0);
    }

    #[test]
    fn what_kernels_cannot_count_is_not_divided() {
        let of = |rows: usize| {
            let keys = Layout::bshd([1, 1024, 1, 128]);
            ForwardProblem::new(Dtype::Bf16, Layout::bshd([1, rows, 32768, 128]), keys, keys)
        };
        assert_ne!(chosen(of(1024), Mode::Fast), Stretches::NONE);
        assert_eq!(chosen(of(1 << 20), Mode::Fast), Stretches::NONE);
    }
}
