//! Dynamic masks: which keys of each row of a bias are kept. Exact, and the same in every run: no number is
//! compared with another, and nothing is atomic.
//!
//! A team of threads has a row, each thread some words of 32 keys as bit planes ([`bit_planes`]): a word for
//! each bit of the rank of the keys' numbers. The k largest are found bit by bit, from the highest one on:
//!
//! 1. how many candidates have the bit set? Over all words and threads, n;
//! 2. if n is at least k, the k-th largest has it: the others are no candidates any more;
//! 3. else those n are kept, k becomes k - n, and they are no candidates any more.
//!
//! What is left are equal numbers, of which the first k are kept. Of 32 keys a bit costs four instructions.
//! A row that is too long for the registers of a block is read again for each bit.

use crate::abi::{SelectParams, select_words};
use crate::arch::{global, math, thread};
use crate::attention::sequence::{Sequence, Sequences};
use crate::geometry::bit_planes;
use crate::kernels::team::Team;
use crate::tile::element;

/// Most words that a thread has.
const MOST_WORDS: usize = 4;

/// Threads of the team that takes rows which are too long for its registers.
const LONG_LANES: u32 = 512;

/// The bit planes of 32 keys, as many as the element type has bits.
type Planes = [u32; 32];

/// An element type of a bias.
trait Number {
    /// Bits of a rank.
    const BITS: usize;
    /// Words that a thread has.
    const WORDS: usize;
    /// The rank of the lowest finite number.
    const LOWEST: u32;

    /// The planes of 32 keys that stand side by side.
    unsafe fn load(address: u64, condition: bool, planes: &mut Planes);

    /// The planes of the keys that have a bit in `wanted`, `step` bytes apart.
    unsafe fn load_apart(address: u64, step: u64, wanted: u32, planes: &mut Planes);
}

macro_rules! sixteen_bits {
    ($type:ident, $infinity:literal) => {
        impl Number for element::$type {
            const BITS: usize = 16;
            const WORDS: usize = select_words(crate::abi::Dtype::$type) as usize;
            const LOWEST: u32 = bit_planes::rank_of_lowest(16, $infinity);

            #[inline(always)]
            unsafe fn load(address: u64, condition: bool, planes: &mut Planes) {
                let mut group = 0;
                while group < 4 {
                    let words =
                        global::load_u32x4_if(address.wrapping_add(16 * group as u64), condition);
                    let mut i = 0;
                    while i < 4 {
                        planes[4 * group + i] = bit_planes::rank_pair(words[i], $infinity);
                        i += 1;
                    }
                    group += 1;
                }
                bit_planes::pair_far_keys(planes);
                bit_planes::transpose::<16>(planes);
            }

            #[inline(always)]
            unsafe fn load_apart(address: u64, step: u64, wanted: u32, planes: &mut Planes) {
                let at = |key: u32| address.wrapping_add(step.wrapping_mul(key as u64));
                let mut i = 0;
                while i < 16 {
                    let low = global::load_u16_if(at(i as u32), (wanted >> i) & 1 != 0) as u32;
                    let high =
                        global::load_u16_if(at(i as u32 + 16), (wanted >> (i + 16)) & 1 != 0) as u32;
                    planes[i] = bit_planes::rank_pair(low | (high << 16), $infinity);
                    i += 1;
                }
                bit_planes::transpose::<16>(planes);
            }
        }
    };
}
sixteen_bits!(Bf16, 0x7f80);
sixteen_bits!(F16, 0x7c00);

impl Number for element::F32 {
    const BITS: usize = 32;
    const WORDS: usize = select_words(crate::abi::Dtype::F32) as usize;
    const LOWEST: u32 = bit_planes::rank_of_lowest(32, 0x7f80_0000);

    #[inline(always)]
    unsafe fn load(address: u64, condition: bool, planes: &mut Planes) {
        let mut group = 0;
        while group < 8 {
            let words = global::load_u32x4_if(address.wrapping_add(16 * group as u64), condition);
            let mut i = 0;
            while i < 4 {
                planes[4 * group + i] = bit_planes::rank_f32(words[i]);
                i += 1;
            }
            group += 1;
        }
        bit_planes::transpose::<32>(planes);
    }

    #[inline(always)]
    unsafe fn load_apart(address: u64, step: u64, wanted: u32, planes: &mut Planes) {
        let mut i = 0;
        while i < 32 {
            let at = address.wrapping_add(step.wrapping_mul(i as u64));
            planes[i] = bit_planes::rank_f32(global::load_u32_if(at, (wanted >> i) & 1 != 0));
            i += 1;
        }
        bit_planes::transpose::<32>(planes);
    }
}

/// A row of the bias, and what of it may be kept.
struct Row {
    /// Key 0 of the bias.
    bias: u64,
    /// Bytes from key to key.
    step: u64,
    /// Word 0 of the padding mask; 0 if there is none.
    padding: u64,
    /// The first key that one of the queries sees, and the last one.
    begin: i32,
    end: i32,
    /// Word 0 of the row of bits.
    bits: u64,
    /// Position of the first kept key.
    positions: u64,
}

impl Row {
    /// Bits of the keys of a word that the padding mask shows.
    #[inline(always)]
    unsafe fn shown(&self, p: &SelectParams, word: u32) -> u32 {
        if self.padding == 0 {
            return u32::MAX;
        }
        global::load_u32_if(self.padding.wrapping_add(4 * word as u64), word < p.words)
    }

    /// The planes of a word of keys, and a bit for each of them that is a candidate.
    #[inline(always)]
    unsafe fn load<E: Number>(&self, p: &SelectParams, word: u32, planes: &mut Planes) -> u32 {
        let first = word.wrapping_mul(32);
        let mut seen = 0;
        if word < p.words {
            seen = bit_planes::range_bits(first as i32, self.begin, self.end) & self.shown(p, word);
        }
        let address = self.bias.wrapping_add(self.step.wrapping_mul(first as u64));
        if p.is_aligned != 0 && word < p.keys / 32 {
            E::load(address, seen != 0, planes);
        } else {
            E::load_apart(address, self.step, seen, planes);
        }
        seen & above::<E>(planes, E::LOWEST, 0)
    }

    /// Writes words of bits from `word` on, as far as the row has them.
    #[inline(always)]
    unsafe fn store<E: Number>(
        &self,
        p: &SelectParams,
        word: u32,
        share: u32,
        kept: &[u32; MOST_WORDS],
    ) {
        let address = self.bits.wrapping_add(4 * word as u64);
        if share == E::WORDS as u32 && p.words.is_multiple_of(share) {
            if word < p.words {
                if E::WORDS == 4 {
                    global::store_u32x4(address, *kept);
                } else {
                    global::store_u32x2(address, [kept[0], kept[1]]);
                }
            }
            return;
        }
        let mut j = 0;
        while j < E::WORDS as u32 {
            if j < share && word + j < p.words {
                global::store_u32(address.wrapping_add(4 * j as u64), kept[j as usize]);
            }
            j += 1;
        }
    }

    /// Writes words of bits of all threads, each from its `word` on, and positions of kept keys, behind the
    /// `found` ones. How many there are then.
    #[inline(always)]
    unsafe fn put<E: Number, const LANES: u32>(
        &self,
        p: &SelectParams,
        team: &mut Team<LANES>,
        (word, share): (u32, u32),
        kept: &[u32; MOST_WORDS],
        found: u32,
    ) -> u32 {
        self.store::<E>(p, word, share, kept);
        if p.positions == 0 {
            return 0;
        }
        let (before, all) = team.sum_before(count(kept));
        let mut place = found + before;
        let mut j = 0;
        while j < E::WORDS {
            let mut rest = kept[j];
            while rest != 0 && place < p.capacity {
                let position = (word + j as u32) * 32 + rest.trailing_zeros();
                global::store_u32(self.positions.wrapping_add(4 * place as u64), position);
                rest &= rest - 1;
                place += 1;
            }
            j += 1;
        }
        found + all
    }
}

#[inline(always)]
fn above<E: Number>(planes: &Planes, rank: u32, or_equal: u32) -> u32 {
    if E::BITS == 16 {
        bit_planes::above::<16>(planes, rank, or_equal)
    } else {
        bit_planes::above::<32>(planes, rank, or_equal)
    }
}

/// Set bits of all words of a thread.
#[inline(always)]
fn count(words: &[u32; MOST_WORDS]) -> u32 {
    words[0].count_ones() + words[1].count_ones() + words[2].count_ones() + words[3].count_ones()
}

/// Of a row that the team has in registers: the kept keys.
#[inline(always)]
unsafe fn keep<E: Number, const LANES: u32>(
    p: &SelectParams,
    team: &mut Team<LANES>,
    planes: &[Planes; MOST_WORDS],
    mut candidates: [u32; MOST_WORDS],
) -> [u32; MOST_WORDS] {
    let mut kept = [0; MOST_WORDS];
    if p.relu != 0 {
        let mut j = 0;
        while j < E::WORDS {
            let zero = bit_planes::rank_of_zero(E::BITS as u32);
            kept[j] = candidates[j] & above::<E>(&planes[j], zero, 0);
            j += 1;
        }
        return kept;
    }
    if team.sum(count(&candidates)) <= p.window {
        return candidates;
    }
    let mut left = p.window;
    let mut bit = E::BITS;
    while bit > 0 {
        bit -= 1;
        let mut set = [0; MOST_WORDS];
        let mut j = 0;
        while j < E::WORDS {
            set[j] = candidates[j] & planes[j][bit];
            j += 1;
        }
        let all = team.sum(count(&set));
        // All bits set if the k-th largest has the bit.
        let has = 0u32.wrapping_sub((all >= left) as u32);
        left -= all & !has;
        j = 0;
        while j < E::WORDS {
            kept[j] |= set[j] & !has;
            // Those with the bit, or those without it.
            candidates[j] = (set[j] & has) | (candidates[j] & !set[j] & !has);
            j += 1;
        }
    }
    first_of(team, left, &candidates, &mut kept);
    kept
}

/// Keeps the first `left` of equal keys. How many there are, over all threads.
#[inline(always)]
unsafe fn first_of<const LANES: u32>(
    team: &mut Team<LANES>,
    left: u32,
    equal: &[u32; MOST_WORDS],
    kept: &mut [u32; MOST_WORDS],
) -> u32 {
    let (mut before, all) = team.sum_before(count(equal));
    let mut j = 0;
    while j < MOST_WORDS {
        kept[j] |= bit_planes::lowest_bits(equal[j], if left > before { left - before } else { 0 });
        before += equal[j].count_ones();
        j += 1;
    }
    all
}

/// A row that is too long for registers: reads it for each bit of the rank of the k-th largest number, and
/// once more to keep what is not below.
#[inline(always)]
unsafe fn keep_long<E: Number, const LANES: u32>(
    p: &SelectParams,
    team: &mut Team<LANES>,
    row: &Row,
) -> u32 {
    let pass = LANES * E::WORDS as u32;
    let own = team.index * E::WORDS as u32;
    // How many candidates are above a rank, or equal to it.
    let at_least = |team: &mut Team<LANES>, rank: u32| {
        let (mut found, mut first) = (0, 0);
        while first < p.words {
            let mut j = 0;
            // Not unrolled: nothing of it is kept.
            while j < thread::opaque(E::WORDS as u32) {
                let mut planes = [0; 32];
                let candidates = row.load::<E>(p, first + own + j, &mut planes);
                found += (candidates & above::<E>(&planes, rank, u32::MAX)).count_ones();
                j += 1;
            }
            first += pass;
        }
        team.sum(found)
    };
    let mut threshold = bit_planes::rank_of_zero(E::BITS as u32);
    let mut left = 0;
    if p.relu == 0 {
        threshold = 0;
        // All, then each bit from the highest one on, and what is above the k-th largest.
        let (mut step, last) = (0, thread::opaque(E::BITS as u32 + 1));
        while step <= last {
            let tried = match step {
                0 => 0,
                step if step < last => threshold | 1 << (E::BITS as u32 - step),
                _ => threshold.wrapping_add(1),
            };
            let is_highest = threshold == u32::MAX >> (32 - E::BITS);
            let found = if step == last && is_highest { 0 } else { at_least(&mut *team, tried) };
            if step == 0 && found <= p.window {
                // No candidate has rank 0.
                break;
            }
            if step == last {
                left = p.window - found;
            } else if step > 0 && found >= p.window {
                threshold = tried;
            }
            step += 1;
        }
    }
    let (mut first, mut kept_keys) = (0, 0);
    while first < p.words {
        let (mut kept, mut equal) = ([0; MOST_WORDS], [0; MOST_WORDS]);
        let mut j = 0;
        while j < E::WORDS {
            let mut planes = [0; 32];
            let candidates = row.load::<E>(p, first + own + j as u32, &mut planes);
            kept[j] = candidates & above::<E>(&planes, threshold, 0);
            equal[j] = candidates & above::<E>(&planes, threshold, u32::MAX) & !kept[j];
            j += 1;
        }
        let equal = first_of(team, left, &equal, &mut kept);
        left = if left > equal { left - equal } else { 0 };
        kept_keys = row.put::<E, LANES>(p, team, (first + own, E::WORDS as u32), &kept, kept_keys);
        first += pass;
    }
    kept_keys
}

/// A row of which all keys are kept that the padding mask shows.
#[inline(always)]
unsafe fn keep_all<E: Number, const LANES: u32>(
    p: &SelectParams,
    team: &mut Team<LANES>,
    row: &Row,
    keys: i32,
) -> u32 {
    let (mut first, mut kept_keys) = (0, 0);
    while first < p.words {
        let word = first + team.index;
        let all = bit_planes::range_bits((word * 32) as i32, 0, keys);
        let shown = if p.blocks_follow != 0 { u32::MAX } else { row.shown(p, word) };
        kept_keys = row.put::<E, LANES>(p, team, (word, 1), &[all & shown, 0, 0, 0], kept_keys);
        first += LANES;
    }
    kept_keys
}

#[inline(always)]
unsafe fn select<E: Number + element::Element, const LANES: u32, const THREADS: u32>(p: &SelectParams) {
    let index = thread::block_idx_x() * (THREADS / LANES) + thread::thread_idx_x() / LANES;
    if index >= p.rows {
        return;
    }
    let mut team = Team::<LANES>::new();
    let pair = math::divide(index, p.queries);
    let batch = math::divide(pair, p.heads);
    let (head, query) = (pair - batch * p.heads, index - pair * p.queries);
    let sequences = Sequences {
        cu_seqlens_q: p.cu_seqlens_q,
        cu_seqlens_k: p.cu_seqlens_k,
        query_rows: p.query_rows,
        key_rows: p.keys,
        bottom_right: p.bottom_right,
        window_left: p.window_left,
        window_right: p.window_right,
    };
    let sequence = Sequence::new(&sequences, batch);
    let (mut first_query, mut last_query) = (query as i32, query as i32);
    if p.of_all_queries != 0 {
        (first_query, last_query) = (0, sequence.query_rows - 1);
    }
    let place = |view: &crate::abi::ScoreView, group: u32| {
        batch as i64 * view.batch_stride
            + math::divide(head, group) as i64 * view.head_stride
            + query as i64 * view.query_stride
    };
    let bytes = E::BYTES as i64;
    let mut row = Row {
        bias: p.bias.address.wrapping_add((place(&p.bias, p.bias_group) * bytes) as u64),
        step: (p.bias.key_stride * bytes) as u64,
        padding: 0,
        begin: sequence.visible.begin(first_query),
        end: sequence.visible.end(last_query),
        bits: p.bits.wrapping_add(4 * index as u64 * p.words as u64),
        positions: p.positions.wrapping_add(4 * index as u64 * p.capacity as u64),
    };
    if p.padding.address != 0 {
        row.padding = p.padding.address.wrapping_add(4 * place(&p.padding, p.padding_group) as u64);
    }
    if last_query >= sequence.query_rows || last_query < first_query {
        row.end = 0;
    }
    let keys = sequence.visible.key_rows;
    // Words of a thread.
    let share = math::divide(p.words + (LANES - 1), LANES);
    let mut kept_keys = 0;
    if p.relu == 0 && keys as u32 <= p.window {
        kept_keys = keep_all::<E, LANES>(p, &mut team, &row, keys);
    } else if share <= E::WORDS as u32 {
        let own = team.index * share;
        let (mut planes, mut candidates) = ([[0; 32]; MOST_WORDS], [0; MOST_WORDS]);
        let mut j = 0;
        while j < E::WORDS {
            if (j as u32) < share {
                candidates[j] = row.load::<E>(p, own + j as u32, &mut planes[j]);
            }
            j += 1;
        }
        let kept = keep::<E, LANES>(p, &mut team, &planes, candidates);
        kept_keys = row.put::<E, LANES>(p, &mut team, (own, share), &kept, 0);
    } else if LANES == LONG_LANES {
        kept_keys = keep_long::<E, LANES>(p, &mut team, &row);
    }
    if p.positions != 0 && team.index == 0 {
        let count = if kept_keys < p.capacity { kept_keys } else { p.capacity };
        global::store_u32(p.counts.wrapping_add(4 * index as u64), count);
    }
}

macro_rules! entries {
    ($(($name:ident, $dtype:ident, $lanes:literal, $threads:literal, $blocks:literal))*) => {
        $(
            /// The kernel of one element type, with so many threads for a row.
            ///
            /// # Safety
            /// `p` is as [`SelectParams`] says; a team for each row.
            #[unsafe(no_mangle)]
            pub unsafe extern "ptx-kernel" fn $name(p: SelectParams) {
                select::<element::$dtype, $lanes, $threads>(&p);
            }
        )*
    };
}
crate::for_each_select_keys_sm80!(entries);
