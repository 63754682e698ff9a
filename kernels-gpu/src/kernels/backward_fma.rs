//! The true-f32 backward for sm_80 and newer: as [`super::backward_mma`], with fused multiply-adds (no
//! tf32).
//!
//! Each warp has `4 R` keys. p and then ds pass through the warp's rows of one shared tile:
//!
//! ```text
//! each warp:  s = k q^T    p = e^(s - lse)      -> shared    dv += p dO
//!             dp = v dO^T  ds = p (dp - delta)  -> shared    dk += ds q
//! all:        dq = ds^T k   (added to global f32), while the next q and dO arrive
//! ```

use super::backward_convert::add_in_lane_order;
use crate::abi::{Access, BackwardFmaParams, BackwardParams};
use crate::arch::{barrier, global, shared, specialize, thread, warp};
use crate::attention::gradient::{multiply_all, scale_all, subtract_delta};
use crate::attention::key_block::{KeyBlock, Step, Walk};
use crate::attention::score::backward::{BackwardScale, StepScores};
use crate::attention::score::bias_tile::FromGlobal;
use crate::attention::score::dropout;
use crate::attention::score::references::References;
use crate::pipeline::query_ring::QueryRing;
use crate::tile::add::add_fma_f32;
use crate::tile::element::F32;
use crate::tile::fma::{
    multiply_accumulate, multiply_left_transposed, multiply_transposed, store_probabilities,
};
use crate::tile::fragment::FmaFragment;
use crate::tile::shared_tile::SharedTile;
use crate::tile::store::store_fma_f32;

/// Threads of a block.
const THREADS: u32 = 128;

/// Sizes: `R = KEYS / 16` rows of a lane; registers per lane: `S = R * QUERIES / 8` of scores, `O = R *
/// ROW_BYTES / 32` of a gradient, `N = QUERIES / 32 * 16 * C` of dQ, with `C = ROW_BYTES / 256` chunks
/// of its columns.
#[inline(always)]
unsafe fn backward<
    const VECTOR: bool,
    const QUERIES: u32,
    const KEYS: u32,
    const ROW_BYTES: u32,
    const QUERY_BYTES: u32,
    const R: usize,
    const S: usize,
    const O: usize,
    const C: usize,
    const N: usize,
>(
    p: &BackwardParams,
) {
    let thread = thread::thread_idx_x();
    let (lane, warp) = (thread % 32, thread / 32);
    let warp_row = warp * 4 * R as u32;
    let block = KeyBlock::of_this_block(p);

    let k_tile = SharedTile::<KEYS, ROW_BYTES>::at(shared::dynamic_base());
    let v_tile = SharedTile::<KEYS, ROW_BYTES>::at(k_tile.address + KEYS * ROW_BYTES);
    let ds_tile = SharedTile::<KEYS, QUERY_BYTES>::at(v_tile.address + KEYS * ROW_BYTES);
    let ring = QueryRing::<1, QUERIES, ROW_BYTES, THREADS, VECTOR>::new(
        ds_tile.address + KEYS * QUERY_BYTES,
        thread,
    );

    let scale = BackwardScale::new::<F32>(p);
    let mut key_tile = block.first_tile;
    while block.has_key(key_tile * KEYS) {
        let first_key = (key_tile * KEYS) as i32;
        let walk = block.walk(p, first_key, KEYS, QUERIES);
        let (mut dk, mut dv) = ([0.0; O], [0.0; O]);
        let tile = (key_tile, KEYS);
        let (mut at, mut shows_all) = block.first_shown(p, tile, QUERIES, &walk, walk.start());
        let has_keys = block.has_key(key_tile * KEYS + warp_row);
        if !has_keys {
            // Past the last key: the warp does nothing, but dQ reads its part of ds.
            store_probabilities::<_, _, R, S>(lane, &[0.0; S], ds_tile, warp_row);
        }
        if at.step < walk.steps {
            let k = block.key_rows::<4>(&p.k, first_key, p.head_dim);
            let v = block.key_rows::<4>(&p.v, first_key, p.value_dim);
            k_tile.load::<F32, THREADS, VECTOR>(thread, &k);
            v_tile.load::<F32, THREADS, VECTOR>(thread, &v);
            ring.request::<F32>(0, &block.source::<4>(p, &at, QUERIES, false));
        }
        while at.step < walk.steps {
            let (next, next_shows_all) = block.first_shown(p, tile, QUERIES, &walk, walk.next(&at));
            ring.wait();
            if has_keys {
                let step = QueryStep { walk: &walk, at: &at, first_key, shows_all };
                add_gradients::<VECTOR, QUERIES, KEYS, ROW_BYTES, QUERY_BYTES, R, S, O>(
                    p,
                    (&block, &scale, &step),
                    (lane, warp_row),
                    (k_tile, v_tile, ds_tile, &ring),
                    (&mut dk, &mut dv),
                );
            }
            barrier::block_sync();
            if next.step < walk.steps {
                ring.request::<F32>(0, &block.source::<4>(p, &next, QUERIES, false));
            }
            let dq: [f32; N] =
                multiply_left_transposed::<_, _, _, C, N>(lane, ds_tile, k_tile, warp * 4 * C as u32);
            add_in_lane_order(lane, warp, &dq, block.dq_accumulator(p, &at, QUERIES));
            (at, shows_all) = (next, next_shows_all);
        }
        barrier::block_sync();
        store_gradients::<VECTOR, R, O>(p, &block, first_key, (lane, warp_row), &mut dk, &mut dv);
        key_tile += p.key_blocks;
    }
}

/// A query tile with a key tile.
struct QueryStep<'a> {
    walk: &'a Walk,
    at: &'a Step,
    /// The first key of the tile.
    first_key: i32,
    /// Whether the boolean mask, if there is one, hides nothing.
    shows_all: bool,
}

/// Adds a step to the gradients of a warp's keys, and leaves their ds in its rows of a tile.
#[inline(always)]
unsafe fn add_gradients<
    const VECTOR: bool,
    const QUERIES: u32,
    const KEYS: u32,
    const ROW_BYTES: u32,
    const QUERY_BYTES: u32,
    const R: usize,
    const S: usize,
    const O: usize,
>(
    p: &BackwardParams,
    (block, scale, step): (&KeyBlock, &BackwardScale, &QueryStep),
    (lane, warp_row): (u32, u32),
    (k_tile, v_tile, ds_tile, ring): (
        SharedTile<KEYS, ROW_BYTES>,
        SharedTile<KEYS, ROW_BYTES>,
        SharedTile<KEYS, QUERY_BYTES>,
        &QueryRing<1, QUERIES, ROW_BYTES, THREADS, VECTOR>,
    ),
    (dk, dv): (&mut [f32; O], &mut [f32; O]),
) {
    let &QueryStep { walk, at, first_key, shows_all } = step;
    let mut scores: [f32; S] = multiply_transposed::<_, _, _, R, S>(lane, k_tile, warp_row, ring.q(0));
    let references = || block.references(p, at, QUERIES);
    let step = StepScores {
        lane,
        lse: ring.lse(0),
        scale,
        references: &References::find::<F32>(p, QUERIES, ring.lse(0), references),
        score: &p.score,
        bias: FromGlobal,
        shows_all,
        tile: || {
            let first_row = first_key + warp_row as i32;
            (lane, block.score_tile(first_row, at.tile * QUERIES as i32))
        },
        place: || block.score_place(p, block.key_head * p.group_size + at.head),
    };
    step.references.subtract_if_needed::<F32, FmaFragment, R, S>(&mut scores);
    step.exponents::<F32, FmaFragment, R, S>(&mut scores);
    let probability = step.probabilities::<F32, FmaFragment, R, S>(&mut scores, walk.is_masked(at));
    store_probabilities::<_, _, R, S>(lane, &probability, ds_tile, warp_row);
    warp::warp_sync();
    multiply_accumulate::<_, _, _, _, R, O>(lane, dv, ds_tile, warp_row, ring.d_o(0));
    let mut ds: [f32; S] = multiply_transposed::<_, _, _, R, S>(lane, v_tile, warp_row, ring.d_o(0));
    dropout::apply_to_dp(&mut ds, &mut scores, &p.score);
    subtract_delta::<FmaFragment, R, S>(lane, &mut ds, ring.delta(0));
    multiply_all(&mut ds, &scores);
    scale_all(&mut ds, p.ds_scale);
    warp::warp_sync();
    store_probabilities::<_, _, R, S>(lane, &ds, ds_tile, warp_row);
    warp::warp_sync();
    multiply_accumulate::<_, _, _, _, R, O>(lane, dk, ds_tile, warp_row, ring.q(0));
}

/// Writes a warp's rows of the gradients of a key tile. Where gradients are merged they are added to what is
/// there.
#[inline(always)]
unsafe fn store_gradients<const VECTOR: bool, const R: usize, const O: usize>(
    p: &BackwardParams,
    block: &KeyBlock,
    first_key: i32,
    (lane, warp_row): (u32, u32),
    dk: &mut [f32; O],
    dv: &mut [f32; O],
) {
    let mut i = 0;
    while i < O {
        dk[i] *= p.gradient_scale;
        dv[i] *= dropout::scale(&p.score);
        i += 1;
    }
    let dk_rows = block.key_rows::<4>(&p.dk, first_key, p.head_dim);
    let dv_rows = block.key_rows::<4>(&p.dv, first_key, p.value_dim);
    if specialize::merge() {
        add_fma_f32::<R, O, VECTOR>(lane, dk, &[1.0; R], warp_row, &dk_rows);
        add_fma_f32::<R, O, VECTOR>(lane, dv, &[1.0; R], warp_row, &dv_rows);
    }
    store_fma_f32::<R, O, VECTOR>(lane, dk, warp_row, &dk_rows);
    store_fma_f32::<R, O, VECTOR>(lane, dv, warp_row, &dv_rows);
}

macro_rules! entries {
    ($(($name:ident, $dtype:ident, $dim:literal, $access:ident, $queries:literal, $keys:literal,
        $warps:literal,
        $blocks:literal))*) => {
        $(
            /// An instance of [`backward`], chosen in [`crate::abi`].
            ///
            /// # Safety
            /// `p` is as [`BackwardFmaParams`] says, for this kernel's row of the table.
            #[unsafe(no_mangle)]
            pub unsafe extern "ptx-kernel" fn $name(p: BackwardFmaParams) {
                if p.turn != 0 && global::load_u32(p.turn) == 0 {
                    return;
                }
                backward::<
                    { matches!(Access::$access, Access::Vector16) }, $queries, $keys, { $dim * 4 },
                        { $queries * 4 },
                    { $keys / 16 }, { $keys / 16 * $queries / 8 }, { $keys / 16 * $dim / 8 }, { $dim / 64 },
                    { $queries / 32 * 16 * ($dim / 64) },
                >(&p.backward);
            }
        )*
    };
}
crate::for_each_backward_fma_sm80!(entries);
