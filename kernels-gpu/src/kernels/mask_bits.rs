//! The bits of a boolean mask: a warp makes a word of 32 keys, a bit from each lane.

use crate::abi::{MASK_BITS_THREADS, MaskBitsParams};
use crate::arch::{global, math, thread, warp};

/// The kernel.
///
/// # Safety
/// `p` is as [`MaskBitsParams`] says; a warp for each word.
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn mask_bits_sm80(p: MaskBitsParams) {
    let (lane, warp) = (thread::thread_idx_x() % 32, thread::thread_idx_x() / 32);
    let index = thread::block_idx_x() * (MASK_BITS_THREADS / 32) + warp;
    let row = math::divide(index, p.words);
    if row >= p.rows {
        return;
    }
    let pair = math::divide(row, p.queries);
    let batch = math::divide(pair, p.heads);
    let (head, query) = (pair - batch * p.heads, row - pair * p.queries);
    let key = (index - row * p.words) * 32 + lane;
    let offset = batch as i64 * p.mask.batch_stride
        + head as i64 * p.mask.head_stride
        + query as i64 * p.mask.query_stride
        + key as i64 * p.mask.key_stride;
    let byte = global::load_u8_if(p.mask.address.wrapping_add(offset as u64), key < p.keys);
    let word = warp::ballot(byte != 0);
    if lane == 0 {
        global::store_u32(p.bits.wrapping_add(4 * index as u64), word);
    }
}
