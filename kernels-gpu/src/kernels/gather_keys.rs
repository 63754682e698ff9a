//! Attention over gathered keys, where a dynamic mask keeps the same keys for all queries: the kept keys'
//! positions, their rows of k, v and bias side by side, which of them each query sees, and the way back of
//! their gradients.
//!
//! The main kernels know nothing of positions: causal mask and window are a range of the gathered keys, since
//! positions ascend, and that becomes bits of a boolean mask.

use crate::abi::{GATHER_THREADS, GatherParams, POSITIONS_THREADS, TensorView};
use crate::arch::{global, math, thread, warp};
use crate::geometry::bit_planes::range_bits;
use crate::geometry::visible::Visible;
use crate::kernels::team::Team;
use crate::tile::element::{self, Element as _};

/// Warps of a block.
const WARPS: u32 = GATHER_THREADS / 32;

/// The kernel that finds positions.
///
/// # Safety
/// `p` is as [`GatherParams`] says; a block for each choice.
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn key_positions_sm80(p: GatherParams) {
    let mut team = Team::<POSITIONS_THREADS>::new();
    let choice = thread::block_idx_x();
    let bits = p.bits.wrapping_add(4 * choice as u64 * p.words as u64);
    let positions = positions(&p, choice);
    let (mut found, mut first) = (0, 0);
    while first < p.words {
        let word = first + team.index;
        let mut kept = global::load_u32_if(bits.wrapping_add(4 * word as u64), word < p.words);
        let (before, all) = team.sum_before(kept.count_ones());
        let mut place = found + before;
        while kept != 0 && place < p.capacity {
            let position = word * 32 + kept.trailing_zeros();
            global::store_u32(positions.wrapping_add(4 * place as u64), position);
            kept &= kept - 1;
            place += 1;
        }
        found += all;
        first += POSITIONS_THREADS;
    }
    if team.index == 0 {
        let count = if found < p.capacity { found } else { p.capacity };
        global::store_u32(p.counts.wrapping_add(4 * choice as u64), count);
    }
}

/// Where the positions of a choice begin.
#[inline(always)]
fn positions(p: &GatherParams, choice: u32) -> u64 {
    p.positions.wrapping_add(4 * choice as u64 * p.capacity as u64)
}

/// The first of `count` ascending positions that is not below `key`; `count` if there is none.
#[inline(always)]
unsafe fn first_from(positions: u64, count: u32, key: i32) -> u32 {
    let (mut low, mut high) = (0, count);
    while low < high {
        let middle = (low + high) / 2;
        if (global::load_u32(positions.wrapping_add(4 * middle as u64)) as i32) < key {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

/// Which gathered keys a query sees: a warp for each query of each choice.
#[inline(always)]
unsafe fn write_seen(p: &GatherParams, index: u32) {
    let choice = math::divide(index, p.seen_queries);
    if choice >= p.choice_batches * p.choice_heads {
        return;
    }
    let query = (index - choice * p.seen_queries) as i32;
    let visible = Visible {
        key_rows: p.keys as i32,
        diagonal: p.diagonal,
        left: p.window_left,
        right: p.window_right,
    };
    let count = global::load_u32(p.counts.wrapping_add(4 * choice as u64));
    let positions = positions(p, choice);
    let begin = first_from(positions, count, visible.begin(query));
    let end = first_from(positions, count, visible.end(query));
    let row = p.seen.wrapping_add(4 * index as u64 * p.seen_words as u64);
    let mut word = thread::thread_idx_x() % 32;
    while word < p.seen_words {
        let seen = range_bits(word as i32 * 32, begin as i32, end as i32);
        global::store_u32(row.wrapping_add(4 * word as u64), seen);
        word += 32;
    }
}

/// Where a row of a tensor begins.
#[inline(always)]
fn row(view: &TensorView, at: [u32; 3], element_log2: u32) -> u64 {
    let [batch, row, head] = at.map(|index| index as i64);
    let elements = batch * view.batch_stride + row * view.row_stride + head * view.head_stride;
    view.address.wrapping_add((elements << element_log2) as u64)
}

/// Copies a row, or writes zeros, all lanes of a warp together.
#[inline(always)]
unsafe fn copy_row(to: u64, from: u64, is_there: bool, units: u32, unit_log2: u32) {
    let mut unit = thread::thread_idx_x() % 32;
    while unit < units {
        let offset = (unit as u64) << unit_log2;
        let (to, from) = (to.wrapping_add(offset), from.wrapping_add(offset));
        if unit_log2 == 4 {
            global::store_u32x4(to, global::load_u32x4_if(from, is_there));
        } else {
            copy_element(to, from, is_there, unit_log2);
        }
        unit += 32;
    }
}

/// Copies an element of 2 or 4 bytes, or writes 0.
#[inline(always)]
unsafe fn copy_element(to: u64, from: u64, is_there: bool, bytes_log2: u32) {
    if bytes_log2 == 2 {
        global::store_u32(to, global::load_u32_if(from, is_there));
    } else {
        global::store_u16(to, global::load_u16_if(from, is_there));
    }
}

/// Which warp of the launch this is.
#[inline(always)]
fn warp_index() -> u32 {
    thread::block_idx_x() * WARPS + thread::thread_idx_x() / 32
}

/// Which (batch, key head, row) a warp has, of so many rows, and which choice is theirs.
#[inline(always)]
fn own_row(p: &GatherParams, rows: u32) -> ([u32; 3], u32) {
    let index = warp_index();
    let pair = math::divide(index, rows);
    let batch = math::divide(pair, p.key_heads);
    let (head, row) = (pair - batch * p.key_heads, index - pair * rows);
    let choice_batch = if p.choice_batches == 1 { 0 } else { batch };
    let choice_head = if p.choice_heads == 1 { 0 } else { head };
    ([batch, row, head], choice_batch * p.choice_heads + choice_head)
}

/// Where the element of the bias of a key stands, of a batch and head of its own.
#[inline(always)]
fn bias_place(p: &GatherParams, [batch, head]: [u32; 2], key: u32) -> u64 {
    let at = batch as i64 * p.bias.batch_stride
        + head as i64 * p.bias.head_stride
        + key as i64 * p.bias.key_stride;
    p.bias.address.wrapping_add((at << bias_bytes_log2(p)) as u64)
}

/// Bytes of an element of the bias, as a power of two.
#[inline(always)]
fn bias_bytes_log2(p: &GatherParams) -> u32 {
    if p.bias_type == 2 { 2 } else { 1 }
}

/// Which element of the gathered bias is that of a batch, query head and gathered key.
#[inline(always)]
fn gathered_element(p: &GatherParams, batch: u32, query_head: u32, place: u32) -> u64 {
    let row = batch as u64 * (p.key_heads * p.group_size) as u64 + query_head as u64;
    row * p.capacity as u64 + place as u64
}

/// Copies the bias of a key to all query heads of a key head.
#[inline(always)]
unsafe fn copy_bias(p: &GatherParams, [batch, place, head]: [u32; 3], key: u32, is_there: bool) {
    let own_batch = if p.choice_batches == 1 { 0 } else { batch };
    let own_head = if p.choice_heads == 1 { 0 } else { head };
    let from = bias_place(p, [own_batch, own_head], key);
    let mut of_group = thread::thread_idx_x() % 32;
    while of_group < p.group_size {
        let element = gathered_element(p, batch, head * p.group_size + of_group, place);
        let to = p.gathered_bias.wrapping_add(element << bias_bytes_log2(p));
        copy_element(to, from, is_there, bias_bytes_log2(p));
        of_group += 32;
    }
}

/// Adds up the gradients of the bias of a key over all that have its choice, in the same order in every run,
/// and rounds them once.
#[inline(always)]
unsafe fn add_bias(p: &GatherParams, [batch, key, head]: [u32; 3], place: u32, is_there: bool) {
    let batches = if p.choice_batches == 1 { p.batches } else { 1 };
    let heads = p.group_size * if p.choice_heads == 1 { p.key_heads } else { 1 };
    let (mut sum, mut index) = (0.0, thread::thread_idx_x() % 32);
    while index < batches * heads {
        let of_batch = math::divide(index, heads);
        let query_head = head * p.group_size + index - of_batch * heads;
        let element = gathered_element(p, batch + of_batch, query_head, place);
        let address = p.gathered_bias.wrapping_add(4 * element);
        sum += f32::from_bits(global::load_u32_if(address, is_there));
        index += 32;
    }
    let sum = warp::sum(sum);
    if thread::thread_idx_x() % 32 == 0 {
        let to = bias_place(p, [batch, head], key);
        match p.bias_type {
            0 => element::Bf16::store(to, sum),
            1 => element::F16::store(to, sum),
            _ => element::F32::store(to, sum),
        }
    }
}

/// The kernel that gathers rows of k and v, and elements of the bias, a warp for each gathered row, and says
/// which of them queries see. Rows of keys that there are not are 0.
///
/// # Safety
/// `p` is as [`GatherParams`] says, and positions are there.
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn gather_keys_sm80(p: GatherParams) {
    if thread::block_idx_x() >= p.gather_blocks {
        write_seen(&p, warp_index() - p.gather_blocks * WARPS);
        return;
    }
    let ([batch, place, head], choice) = own_row(&p, p.capacity);
    if batch >= p.batches {
        return;
    }
    let is_there = place < global::load_u32(p.counts.wrapping_add(4 * choice as u64));
    let position = positions(&p, choice).wrapping_add(4 * place as u64);
    let key = global::load_u32_if(position, is_there);
    let (to, from) = ([batch, place, head], [batch, key, head]);
    let at = |view: &TensorView, at: [u32; 3]| row(view, at, p.element_log2);
    copy_row(at(&p.gathered_k, to), at(&p.k, from), is_there, p.k_units, p.unit_log2);
    copy_row(at(&p.gathered_v, to), at(&p.v, from), is_there, p.v_units, p.unit_log2);
    if p.bias.address != 0 {
        copy_bias(&p, to, key, is_there);
    }
}

/// The kernel that scatters gradients of gathered rows and of the bias: a warp for each key. Those of keys
/// that were not gathered are 0.
///
/// # Safety
/// As [`gather_keys_sm80`].
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn scatter_keys_sm80(p: GatherParams) {
    let ([batch, key, head], choice) = own_row(&p, p.keys);
    if batch >= p.batches {
        return;
    }
    let count = global::load_u32(p.counts.wrapping_add(4 * choice as u64));
    let positions = positions(&p, choice);
    let place = first_from(positions, count, key as i32);
    let position = positions.wrapping_add(4 * place as u64);
    let is_there = place < count && global::load_u32_if(position, place < count) == key;
    let (to, from) = ([batch, key, head], [batch, place, head]);
    let at = |view: &TensorView, at: [u32; 3]| row(view, at, p.element_log2);
    copy_row(at(&p.k, to), at(&p.gathered_k, from), is_there, p.k_units, p.unit_log2);
    copy_row(at(&p.v, to), at(&p.gathered_v, from), is_there, p.v_units, p.unit_log2);
    if p.bias.address != 0 && batch < p.choice_batches && head < p.choice_heads {
        add_bias(&p, to, place, is_there);
    }
}
