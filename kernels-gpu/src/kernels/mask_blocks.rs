//! Blocks of keys of a dynamic mask, kept or dropped whole: a thread makes a word of 32 keys, of all blocks
//! that it has a key of.

use crate::abi::{MASK_BITS_THREADS, MaskBlocksParams};
use crate::arch::{global, math, thread};
use crate::attention::sequence;
use crate::geometry::bit_planes::range_bits;

/// Keys of a word of bits.
const BITS: u32 = u32::BITS;

/// The kernel.
///
/// # Safety
/// `p` is as [`MaskBlocksParams`] says; a thread for each word.
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn mask_blocks_sm80(p: MaskBlocksParams) {
    let index = thread::block_idx_x() * MASK_BITS_THREADS + thread::thread_idx_x();
    let row = math::divide(index, p.words);
    if row >= p.rows {
        return;
    }
    let word = index - row * p.words;
    let pair = math::divide(row, p.queries);
    let batch = math::divide(pair, p.heads);
    let (head, query) = (pair - batch * p.heads, row - pair * p.queries);
    let mut keys = p.keys;
    if p.cu_seqlens_k != 0 {
        keys = sequence::length(p.cu_seqlens_k, batch);
    }
    let chosen = p.chosen.wrapping_add(4 * row as u64 * p.words as u64);
    let first = word * BITS;
    let end = if keys < first + BITS { keys } else { first + BITS };
    let mut begin = first - math::remainder(first, p.block_size);
    let mut bits = 0;
    while begin < end {
        let next = begin + p.block_size;
        let next = if keys < next { keys } else { next };
        let (mut count, mut word) = (0, begin / BITS);
        while word * BITS < next {
            let of_block = range_bits((word * BITS) as i32, begin as i32, next as i32);
            count += (global::load_u32(chosen.wrapping_add(4 * word as u64)) & of_block).count_ones();
            word += 1;
        }
        if 2 * count > next - begin {
            bits |= range_bits(first as i32, begin as i32, next as i32);
        }
        begin = next;
    }
    if p.padding.address != 0 {
        let place = batch as i64 * p.padding.batch_stride
            + math::divide(head, p.padding_group) as i64 * p.padding.head_stride
            + query as i64 * p.padding.query_stride
            + word as i64;
        bits &= global::load_u32(p.padding.address.wrapping_add(4 * place as u64));
    }
    global::store_u32(p.bits.wrapping_add(4 * index as u64), bits);
}
