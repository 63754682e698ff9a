//! The true-f32 forward for sm_80 and newer: as [`super::forward_mma`], with fused multiply-adds instead
//! of tensor cores, and one key tile and one value tile on their way in turns.
//!
//! Behind kernels that multiply f32 in two parts ([`super::split_operands`]) it computes only what these have
//! found that they cannot.
//!
//! No tf32 anywhere: the error stays at the level of f32. Each warp has 16 query rows; probabilities
//! pass from the lanes that made them to the lanes that need them through shared memory of the warp.

use crate::abi::{Access, ForwardFmaParams, ForwardParams};
use crate::arch::{global, shared, specialize, thread};
use crate::attention::query_block::QueryBlock;
use crate::attention::query_rows::QueryRows;
use crate::pipeline::key_value_turns::KeyValueTurns;
use crate::tile::add;
use crate::tile::element::F32;
use crate::tile::fma::{multiply_accumulate, multiply_transposed, store_probabilities};
use crate::tile::fragment::FmaFragment;
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
    const {
        assert!(QUERIES == THREADS / 32 * QueryRows::<1, LANE_ROWS, O>::WARP_ROWS);
        assert!(2 * S == KEYS as usize && 8 * O == ROW_BYTES as usize && P_ROW_BYTES == 4 * KEYS);
    }
    let block = QueryBlock::of_this_block(p, QUERIES);
    if block.is_empty() {
        return;
    }
    let mut rows = QueryRows::<1, LANE_ROWS, O>::of_this_warp::<F32>(p, block, QUERIES, KEYS, true);
    let thread = thread::thread_idx_x();
    let q = SharedTile::<QUERIES, ROW_BYTES>::at(shared::dynamic_base());
    let p_tile = SharedTile::<QUERIES, P_ROW_BYTES>::at(q.address + QUERIES * ROW_BYTES);
    let (k, v) = (block.k::<4>(p), block.v::<4>(p));
    let after_p = p_tile.address + QUERIES * P_ROW_BYTES;
    let key_values = KeyValueTurns::<KEYS, ROW_BYTES, THREADS, VECTOR>::new(after_p, thread, k, v);

    let has_rows = rows.walk::<F32, (), QUERIES, KEYS, ROW_BYTES>(
        q,
        #[inline(always)]
        || q.load::<F32, THREADS, VECTOR>(thread, &block.q::<4>(p)),
        &key_values,
        #[inline(always)]
        |rows, at, key| {
            let scores = multiply_transposed::<_, _, _, LANE_ROWS, S>(rows.lane, q, rows.first_row, key);
            let mut scores = [scores];
            rows.probabilities::<F32, FmaFragment, S>(&mut scores, at, KEYS);
            rows.drop::<FmaFragment, S>(&mut scores, at.tile, KEYS);
            store_probabilities::<_, _, LANE_ROWS, S>(rows.lane, &scores[0], p_tile, rows.first_row);
        },
        #[inline(always)]
        |rows, (), value| {
            let (lane, first_row, output) = (rows.lane, rows.first_row, &mut rows.output[0]);
            multiply_accumulate::<_, _, _, _, LANE_ROWS, O>(lane, output, p_tile, first_row, value);
        },
    );
    if !has_rows {
        return;
    }
    let of_previous = rows.finalize::<F32, FmaFragment>(0);
    if specialize::merge() && p.previous.statistics != 0 {
        let (output, source) = (&mut rows.output[0], block.previous_o(p));
        add::add_fma_f32::<LANE_ROWS, O, true>(rows.lane, output, &of_previous, rows.first_row, &source);
    }
    let target = block.o::<4>(p);
    store::store_fma_f32::<LANE_ROWS, O, VECTOR>(rows.lane, &rows.output[0], rows.first_row, &target);
}

macro_rules! entries {
    ($(($name:ident, $dtype:ident, $dim:literal, $access:ident, $queries:literal, $keys:literal,
        $warps:literal,
        $blocks:literal))*) => {
        $(
            /// An instance of [`forward`], chosen in [`crate::abi`].
            ///
            /// # Safety
            /// `p` is as [`ForwardFmaParams`] says, for this kernel's row of the table.
            #[unsafe(no_mangle)]
            pub unsafe extern "ptx-kernel" fn $name(p: ForwardFmaParams) {
                if p.turn != 0 {
                    let [of_operands, of_output] = global::load_u32x2(p.turn);
                    if of_operands | of_output == 0 {
                        return;
                    }
                }
                forward::<
                    { matches!(Access::$access, Access::Vector16) }, $queries, $keys, { $dim * 4 },
                        { $keys * 4 },
                    { $warps * 32 }, { $keys / 2 }, { $dim / 2 },
                >(&p.forward);
            }
        )*
    };
}
crate::for_each_forward_fma_sm80!(entries);
