//! The map of a boolean mask's tiles ([`crate::geometry::mask_map`]): each warp of a block looks at one
//! granule of queries of one window, a granule of keys for each lane, and elements of one to four granules
//! are made of what neighbouring warps have seen.

use crate::abi::{MASK_MAP_GRANULES, MaskMapParams};
use crate::arch::{barrier, global, math, shared, thread, warp};
use crate::geometry::mask_map::{GRANULE, LEVELS, WINDOW_STEP};

/// Keys of a word of bits.
const BITS: u32 = u32::BITS;

/// The kernel.
///
/// # Safety
/// `p` is as [`MaskMapParams`] says; a block for each window of [`MASK_MAP_GRANULES`] granules of queries.
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn mask_map_sm80(p: MaskMapParams) {
    let (thread, index) = (thread::thread_idx_x(), thread::block_idx_x());
    let (lane, warp) = (thread % 32, thread / 32);
    let groups = p.granules.div_ceil(MASK_MAP_GRANULES);
    let row = math::divide(index, p.windows);
    let pair = math::divide(row, groups);
    let window = index - row * p.windows;
    let first_granule = (row - pair * groups) * MASK_MAP_GRANULES;

    let seen = look(&p, pair, (window * WINDOW_STEP + lane) * GRANULE, first_granule + warp);
    let words = [warp::ballot(seen[0] != 0), warp::ballot(seen[1] == u32::MAX)];
    let of_warp = |warp: u32| shared::dynamic_base() + 8 * warp;
    if lane == 0 {
        shared::store_u32x2(of_warp(warp), words);
    }
    barrier::block_sync();

    let (granule, level) = (thread / LEVELS, thread % LEVELS);
    if granule >= MASK_MAP_GRANULES || first_granule + granule >= p.granules {
        return;
    }
    let [mut some, mut all] = shared::load_u32x2(of_warp(granule));
    let mut further = 1;
    while further <= level {
        let next = shared::load_u32x2(of_warp(granule + further));
        (some, all) = (some | next[0], all & next[1]);
        further += 1;
    }
    let element = (pair * p.windows + window) as u64 * LEVELS as u64 + level as u64;
    let element = element * p.granules as u64 + (first_granule + granule) as u64;
    global::store_u32x2(p.map.wrapping_add(8 * element), [some, all]);
}

/// The bits that some query of a granule has of the granule of keys from `first_key` on, and those that all
/// of them have. Keys that do not exist are hidden, and shown; of no query, nothing is shown, and all.
#[inline(always)]
unsafe fn look(p: &MaskMapParams, pair: u32, first_key: u32, granule: u32) -> [u32; 2] {
    let bits = p.bits.wrapping_add(4 * (pair as u64 * p.queries as u64 * p.words as u64));
    let column = bits.wrapping_add(4 * (first_key / BITS) as u64);
    // Bits of keys that do not exist are 0.
    let missing = [missing_bits(p.keys, first_key), missing_bits(p.keys, first_key + BITS)];
    let (mut some, mut all) = (0, u32::MAX);
    let mut query = granule * GRANULE;
    let end = if p.queries < query + GRANULE { p.queries } else { query + GRANULE };
    while query < end {
        let address = column.wrapping_add(4 * query as u64 * p.words as u64);
        let mut word = 0;
        while word < 2 {
            let is_there = missing[word] != u32::MAX;
            let bits = global::load_u32_if(address.wrapping_add(4 * word as u64), is_there);
            some |= bits;
            all &= bits | missing[word];
            word += 1;
        }
        query += 1;
    }
    [some, all]
}

/// The bits of a word, of keys from `first` on, that are of no key.
#[inline(always)]
fn missing_bits(keys: u32, first: u32) -> u32 {
    if keys >= first + BITS {
        0
    } else if keys <= first {
        u32::MAX
    } else {
        u32::MAX << (keys - first)
    }
}
