//! Gradients of value of multi-scale deformable attention, in an order that no schedule changes.
//!
//! A group of lanes takes a cell, which is a corner of the points of four bins ([`crate::msda::bin`]), and
//! adds up their shares bin after bin, each in the order of queries and points. Nothing is atomic, and sums
//! are rounded once.

use crate::abi::{MSDA_SMALL_THREADS, MsdaLevel, MsdaParams};
use crate::arch::{global, math, shared, thread};
use crate::msda::bin::of_corner;
use crate::msda::levels::Levels;
use crate::msda::point::corner_shares;
use crate::msda::strip::{Strip, Strips};
use crate::msda::tensor::row_address;
use crate::tile::element;

/// Entries that are read at once.
const AT_ONCE: usize = 4;

/// Adds up what entries `first` to `end` of a list give to corner `CORNER`.
#[inline(always)]
unsafe fn add_bin<S: Strip, const CORNER: usize>(
    p: &MsdaParams,
    sum: &mut S::Values,
    entries: u64,
    [first, end]: [u32; 2],
    output: u64,
) {
    let stride = p.output.row_stride * S::ELEMENT_BYTES as i64;
    let mut next = first;
    while next < end {
        let entry = |i: usize| {
            let at = next.wrapping_add(i as u32);
            global::load_u32x4_if(entries.wrapping_add(16 * at as u64), i as u32 <= end - 1 - next)
        };
        let read = [entry(0), entry(1), entry(2), entry(3)];
        let g = |i: usize| {
            let at = output.wrapping_add((read[i][0] as i64 * stride) as u64);
            S::load_if(at, i as u32 <= end - 1 - next)
        };
        let g: [S::Raw; AT_ONCE] = [g(0), g(1), g(2), g(3)];
        let mut i = 0;
        while i < AT_ONCE {
            let [_, x, y, weight] = read[i].map(f32::from_bits);
            S::add(sum, corner_shares(x, y, weight)[CORNER], g[i]);
            i += 1;
        }
        next += AT_ONCE as u32;
    }
}

#[inline(always)]
unsafe fn gather<S: Strip>(p: &MsdaParams) {
    let levels = Levels::new(p, shared::dynamic_base());
    let thread = thread::thread_idx_x();
    let per_block = MSDA_SMALL_THREADS >> p.lanes_log2;
    let blocks = math::divide(p.cells + per_block - 1, per_block);
    let pair = math::divide(thread::block_idx_x(), blocks);
    let within = thread::block_idx_x() - pair * blocks;
    let cell = within * per_block + (thread >> p.lanes_log2);
    let channel = (thread & (p.lanes - 1)) * S::CHANNELS;
    if cell >= p.cells || channel >= p.channels {
        return;
    }
    let batch = math::divide(pair, p.heads);
    let head = pair - batch * p.heads;
    let level = level_of(p, levels, cell);
    let y = math::divide(cell - level.start, level.width);
    let x = cell - level.start - y * level.width;
    let starts = p.bin_starts.wrapping_add(4 * pair as u64 * (p.bins + 1) as u64);
    let list = |up: i32, left: i32| {
        let bin = of_corner(&level, y as i32 - up, x as i32 - left);
        let at = starts.wrapping_add(4 * bin as u64);
        [global::load_u32(at), global::load_u32(at.wrapping_add(4))]
    };
    let lists = [list(0, 0), list(0, 1), list(1, 0), list(1, 1)];
    let entries = p.entries.wrapping_add(16 * pair as u64 * (p.queries as u64 * p.points as u64));
    let mut channel = channel;
    while channel < p.channels {
        let skipped = (channel * S::ELEMENT_BYTES) as u64;
        let output = row_address(&p.output, batch, 0, head, S::ELEMENT_BYTES).wrapping_add(skipped);
        let mut sum = S::ZEROS;
        add_bin::<S, 0>(p, &mut sum, entries, lists[0], output);
        add_bin::<S, 1>(p, &mut sum, entries, lists[1], output);
        add_bin::<S, 2>(p, &mut sum, entries, lists[2], output);
        add_bin::<S, 3>(p, &mut sum, entries, lists[3], output);
        let row = row_address(&p.d_value, batch, cell, head, S::ELEMENT_BYTES);
        S::store(row.wrapping_add(skipped), &sum);
        channel += p.lanes * S::CHANNELS;
    }
}

/// The level that has a cell.
#[inline(always)]
unsafe fn level_of(p: &MsdaParams, levels: Levels, cell: u32) -> MsdaLevel {
    let mut level = levels.get(0);
    let mut index = 1;
    while index < p.levels {
        let next = levels.get(index);
        if cell >= next.start {
            level = next;
        }
        index += 1;
    }
    level
}

macro_rules! entries {
    ($(($forward:ident, $backward:ident, $name:ident, $dtype:ident, $access:ident))*) => {
        $(
            /// The kernel that adds up gradients of value, of one element type and access.
            ///
            /// # Safety
            /// `p` is as [`MsdaParams`] says.
            #[unsafe(no_mangle)]
            pub unsafe extern "ptx-kernel" fn $name(p: MsdaParams) {
                gather::<<element::$dtype as Strips>::$access>(&p);
            }
        )*
    };
}
crate::for_each_msda_sampling_sm80!(entries);
