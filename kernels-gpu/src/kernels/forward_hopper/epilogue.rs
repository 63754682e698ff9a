//! How the output of a work tile leaves.
//!
//! In 16 bits it leaves through shared memory, where the kernel has room for that
//! ([`super::tile::OutputPath`]). Where it fills whole boxes ([`super::tile::ForwardTile::sends_output`])
//! the tensor memory accelerator sends each warp's 16 rows from there while the warp goes on. The end of a
//! sequence, rows of several heads, and tensors that no tensor map describes, are left to threads, 16 bytes
//! at a time.

use crate::abi::{ForwardParams, OUTPUT_BOX_ROWS};
use crate::arch::{bulk_copy, specialize, warp};
use crate::attention::query_block::QueryBlock;
use crate::attention::score::{Scale, features};
use crate::attention::softmax::{DEAD_SUM, Finished, OnlineSoftmax};
use crate::geometry::size::TileSize;
use crate::tile::add;
use crate::tile::bulk::Place;
use crate::tile::element::TensorCoreElement;
use crate::tile::fragment::{Fragment, MmaFragment};
use crate::tile::global_rows::{HeadRows, Rows};
use crate::tile::shared_tile::SharedTileOf;
use crate::tile::store;
use crate::tile::warpgroup::store_rows;

/// Writes a warp's 16 rows of the output, from `row` on, in 16 bits, through those of `staging`. Where
/// `is_sent`, a constant, these may be read until [`bulk_copy::wait_read`].
///
/// # Safety
/// All 32 lanes call it together, and have met since the warp's rows of `staging` were used.
#[inline(always)]
pub unsafe fn write_output<E: TensorCoreElement, Q: TileSize, const O: usize>(
    p: &ForwardParams,
    map: u64,
    is_sent: bool,
    block: &QueryBlock,
    (lane, row): (u32, u32),
    output: &[f32; O],
    staging: SharedTileOf<Q>,
    target: &HeadRows,
) {
    if !is_sent {
        store::store_by_matrix::<E, Q, O>(lane, output, staging, row, target);
        return;
    }
    store_rows::<E, Q, O>(lane, output, staging, row);
    bulk_copy::fence();
    warp::warp_sync();
    // In one register of the warp: behind a branch that lanes could disagree on, the assembler would not
    // know any more that stages are uniform.
    let is_whole = warp::uniform(((row + OUTPUT_BOX_ROWS) as i32 <= target.count()) as u32);
    if p.o_is_mapped != 0 && is_whole != 0 {
        if lane == 0 {
            let first_row = block.sequence.first_query + block.first_row + row as i32;
            let place = Place::of_rows(first_row, block.head, block.part);
            staging.send(map, &place, row);
            bulk_copy::commit();
        }
    } else {
        store::copy_staged::<Q, O>(lane, staging, row, target);
        bulk_copy::fence();
        warp::warp_sync();
    }
}

/// Writes lse of a warp's 16 rows from `row` on, and gives what their output, while it is still being
/// computed, must be multiplied by, and what passes before have left of it.
///
/// # Safety
/// All 32 lanes call it together; `p.lse` is as [`ForwardParams::lse`] says.
#[inline(always)]
pub unsafe fn finalize<E: TensorCoreElement, const O: usize>(
    p: &ForwardParams,
    is_split: bool,
    softmax: &OnlineSoftmax<2>,
    scale: &Scale,
    block: &QueryBlock,
    (lane, row): (u32, u32),
) -> Finished<2> {
    let row_of = |half| row + <MmaFragment as Fragment<2, O>>::row(lane, half);
    // SAFETY: `p` is as it says.
    let sink = |half| unsafe { block.sink(p, row_of(half)) };
    // SAFETY: likewise.
    let previous = |half| unsafe { block.previous(p, row_of(half)) };
    let mut hidden = [0; 2];
    if features::hide_pairs::<E>() {
        let mut half = 0;
        while half < 2 {
            let row_max = softmax.row_max()[half];
            let nothing = block.sees_nothing::<E, MmaFragment, 2, O>(p, lane, row_of(half), row_max);
            hidden[half] = nothing as u32;
            half += 1;
        }
    }
    let is_dead = |half: usize| hidden[half] != 0 || block.is_dead(row_of(half));
    let finished = softmax.finalize_early::<MmaFragment, O>(scale, is_split, is_dead, sink, previous);
    store_statistics::<O>(p, is_split, block, (lane, row), &finished);
    finished
}

/// Writes lse of a warp's 16 rows from `row` on, or reference and sum.
#[inline(always)]
unsafe fn store_statistics<const O: usize>(
    p: &ForwardParams,
    is_split: bool,
    block: &QueryBlock,
    (lane, row): (u32, u32),
    finished: &Finished<2>,
) {
    // Of the four lanes that share two rows, each of the first two writes one.
    let half = (lane % 4) as usize;
    if half < 2 {
        let own = |of_rows: [f32; 2]| if half == 0 { of_rows[0] } else { of_rows[1] };
        let row = row + <MmaFragment as Fragment<2, O>>::row(lane, half);
        let Finished { references, lse_or_sum, .. } = *finished;
        block.store_statistics(p, is_split, row, own(references), own(lse_or_sum));
    }
}

/// Adds what passes before have left of a warp's 16 rows of the output, from `row` on.
///
/// # Safety
/// All 32 lanes call it together; `p` is as [`ForwardParams`] says.
#[inline(always)]
pub unsafe fn add_previous<const O: usize>(
    p: &ForwardParams,
    block: &QueryBlock,
    (lane, row): (u32, u32),
    output: &mut [f32; O],
    of_previous: &[f32; 2],
) {
    if specialize::merge() && p.previous.statistics != 0 {
        let source = block.previous_o_of_heads(p);
        add::add_pairs::<O, true>(lane, output, *of_previous, row, 0, &source);
    }
}

/// Writes output and lse of a warp's 16 rows from `row` on, which see no key tile.
///
/// # Safety
/// All 32 lanes call it together; `p` is as [`ForwardParams`] says.
#[inline(always)]
pub unsafe fn write_dead<E: TensorCoreElement, const O: usize>(
    p: &ForwardParams,
    is_split: bool,
    scale: &Scale,
    block: &QueryBlock,
    (lane, row): (u32, u32),
) {
    let mut output = [0.0; O];
    if specialize::merge() {
        let row_of = |half| row + <MmaFragment as Fragment<2, O>>::row(lane, half);
        // SAFETY: `p` is as it says.
        let sink = |half| unsafe { block.sink(p, row_of(half)) };
        // SAFETY: likewise.
        let previous = |half| unsafe { block.previous(p, row_of(half)) };
        let finished = Finished::<2>::of_previous(scale, is_split, sink, previous);
        store_statistics::<O>(p, is_split, block, (lane, row), &finished);
        add_previous(p, block, (lane, row), &mut output, &finished.of_previous);
    } else if lane < 16 {
        let lse = if is_split { DEAD_SUM } else { f32::NEG_INFINITY };
        block.store_statistics(p, is_split, row + lane, 0.0, lse);
    }
    let as_f32 = E::BYTES == 4 || p.output_f32 != 0;
    let target = if as_f32 { block.o_of_heads::<4>(p) } else { block.o_of_heads::<2>(p) };
    store::store_pairs::<E, O, true>(lane, &output, row, 0, &target, as_f32);
}
