//! The true-f32 forward for sm_80 and newer: as [`super::forward_mma`], with fused multiply-adds instead
//! of tensor cores.
//!
//! No tf32 anywhere: the error stays at the level of f32. Each warp has 16 query rows; probabilities
//! pass from the lanes that made them to the lanes that need them through shared memory of the warp.

use crate::abi::{Access, ForwardParams};
use crate::arch::{shared, thread, warp};
use crate::attention::query_block::{QueryBlock, is_split};
use crate::attention::score::{self, Scale, split_sign};
use crate::attention::softmax::OnlineSoftmax;
use crate::pipeline::key_value_turns::KeyValueTurns;
use crate::tile::element::F32;
use crate::tile::fma::{multiply_accumulate, multiply_transposed, store_probabilities};
use crate::tile::fragment::{FMA_LANE_COLUMNS, FmaFragment, Fragment};
use crate::tile::shared_tile::SharedTile;
use crate::tile::store;

/// Rows of each lane: 16 per warp.
const LANE_ROWS: usize = 4;

/// One block. `S = KEYS / 2` and `O = ROW_BYTES / 8` registers per lane hold 16 rows of scores and of
/// output; `QUERIES` is 16 rows per warp.
#[inline(always)]
unsafe fn forward<
    const VECTOR: bool,
    const QUERIES: u32,
    const KEYS: u32,
    const ROW_BYTES: u32,
    const P_ROW_BYTES: u32,
    const THREADS: u32,
    const S: usize,
    const O: usize,
>(
    p: &ForwardParams,
) {
    let thread = thread::thread_idx_x();
    let (lane, warp_row) = (thread % 32, thread / 32 * 16);
    let block = QueryBlock::of_this_block(p, QUERIES);
    if block.is_empty() {
        return;
    }
    let tiles = block.key_tiles(QUERIES, KEYS);
    let scale = Scale::new::<F32>(p);
    let (_, q_factor) = split_sign(p.scale);

    let q_tile = SharedTile::<QUERIES, ROW_BYTES> { address: shared::dynamic_base() };
    let p_tile = SharedTile::<QUERIES, P_ROW_BYTES> { address: q_tile.address + QUERIES * ROW_BYTES };
    let key_value = KeyValueTurns::<KEYS, ROW_BYTES, THREADS, VECTOR>::new(
        p_tile.address + QUERIES * P_ROW_BYTES,
        thread,
        block.k::<4>(p),
        block.v::<4>(p),
    );
    let mut output = [0.0; O];
    let mut softmax = OnlineSoftmax::<LANE_ROWS>::new(true);

    if tiles.begin < tiles.end {
        q_tile.load::<F32, THREADS, VECTOR>(thread, &block.q::<4>(p));
        key_value.request_key::<F32>(tiles.begin);
        if q_factor != 1.0 {
            key_value.wait();
            q_tile.scale_rows::<F32, 16>(lane, warp_row, q_factor);
            warp::warp_sync();
        }
    }
    // Past the last query a warp only helps to load.
    let has_rows = block.has_row(warp_row);
    let mut tile = tiles.begin;
    while tile < tiles.end {
        key_value.wait();
        key_value.request_value::<F32>(tile);
        if has_rows {
            let mut scores: [f32; S] =
                multiply_transposed::<_, _, _, LANE_ROWS, S>(lane, q_tile, warp_row, key_value.key);
            let is_masked = tile < tiles.full_begin || tile >= tiles.full_end;
            score::apply::<FmaFragment, LANE_ROWS, S>(&mut scores, &scale, is_masked, || {
                (lane, block.score_tile(warp_row, tile * KEYS as i32))
            });
            softmax.update::<FmaFragment, S, O>(&mut scores, &mut output, &scale);
            store_probabilities::<_, _, LANE_ROWS, S>(lane, &scores, p_tile, warp_row);
        }
        key_value.wait();
        if tile + 1 < tiles.end {
            key_value.request_key::<F32>(tile + 1);
        }
        if has_rows {
            multiply_accumulate::<_, _, _, _, LANE_ROWS, O>(
                lane,
                &mut output,
                p_tile,
                warp_row,
                key_value.value,
            );
        }
        tile += 1;
    }
    if !has_rows {
        return;
    }
    let lse = softmax.finalize::<FmaFragment, O>(&mut output, &scale, is_split(p, QUERIES), |row| {
        block.is_dead(warp_row + <FmaFragment as Fragment<LANE_ROWS, O>>::row(lane, row))
    });
    let mut row = 0;
    while row < LANE_ROWS {
        if lane % FMA_LANE_COLUMNS == 0 {
            let at = warp_row + <FmaFragment as Fragment<LANE_ROWS, O>>::row(lane, row);
            if is_split(p, QUERIES) {
                block.store_range(p, at, softmax.row_max()[row], lse[row]);
            } else {
                block.store_lse(p, at, lse[row]);
            }
        }
        row += 1;
    }
    store::store_fma_f32::<LANE_ROWS, O, VECTOR>(lane, &output, warp_row, &block.o::<4>(p));
}

macro_rules! entries {
    ($(($name:ident, $dtype:ident, $dim:literal, $access:ident, $queries:literal, $keys:literal,
        $warps:literal,
        $blocks:literal))*) => {
        $(
            /// An instance of [`forward`], chosen in [`crate::abi`].
            ///
            /// # Safety
            /// `p` is as [`ForwardParams`] says, for this kernel's row of the table.
            #[unsafe(no_mangle)]
            pub unsafe extern "ptx-kernel" fn $name(p: ForwardParams) {
                forward::<
                    { matches!(Access::$access, Access::Vector16) }, $queries, $keys, { $dim * 4 },
                        { $keys * 4 },
                    { $warps * 32 }, { $keys / 2 }, { $dim / 2 },
                >(&p);
            }
        )*
    };
}
crate::for_each_forward_fma_sm80!(entries);
