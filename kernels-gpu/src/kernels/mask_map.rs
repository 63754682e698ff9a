//! The map of a boolean mask's tiles ([`crate::geometry::mask_map`]): a warp makes the elements of one window
//! and of one to four granules of queries, a bit of each from each lane.

use crate::abi::{MASK_BITS_THREADS, MaskMapParams};
use crate::arch::{global, math, thread, warp};
use crate::geometry::mask_map::{GRANULE, LEVELS, WINDOW_STEP};

/// Keys of a word of bits.
const BITS: u32 = u32::BITS;

/// The kernel.
///
/// # Safety
/// `p` is as [`MaskMapParams`] says; a warp for each window of each granule of queries.
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn mask_map_sm80(p: MaskMapParams) {
    let (lane, warp) = (thread::thread_idx_x() % 32, thread::thread_idx_x() / 32);
    let index = thread::block_idx_x() * (MASK_BITS_THREADS / 32) + warp;
    let row = math::divide(index, p.windows);
    let pair = math::divide(row, p.granules);
    if pair >= p.pairs {
        return;
    }
    let (window, first_granule) = (index - row * p.windows, row - pair * p.granules);
    let first_key = (window * WINDOW_STEP + lane) * GRANULE;
    let bits = p.bits.wrapping_add(4 * (pair as u64 * p.queries as u64 * p.words as u64));
    let column = bits.wrapping_add(4 * (first_key / BITS) as u64);
    // Bits of keys that do not exist are 0.
    let missing = [missing_bits(p.keys, first_key), missing_bits(p.keys, first_key + BITS)];
    let (mut some, mut all) = (0, u32::MAX);
    let mut level = 0;
    while level < LEVELS {
        let mut query = (first_granule + level) * GRANULE;
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
        let words = [warp::ballot(some != 0), warp::ballot(all == u32::MAX)];
        if lane == 0 {
            let element = (pair * p.windows + window) as u64 * LEVELS as u64 + level as u64;
            let element = element * p.granules as u64 + first_granule as u64;
            global::store_u32x2(p.map.wrapping_add(8 * element), words);
        }
        level += 1;
    }
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
