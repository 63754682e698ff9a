//! The tensor-core forward for sm_80 and newer: `o = softmax(scale q k^T) v`, lse (SEMANTICS section 1).
//!
//! A block takes `QUERIES` query rows of one head and walks over the visible key tiles. Each warp has
//! `16 M` rows to itself, so that softmax never crosses warps:
//!
//! ```text
//! for each key tile:   s = q k^T      (tensor cores, q and k from shared memory)
//!                      softcap, mask  (attention/score)
//!                      p = 2^(c (s - m)), o rescaled if m moved
//!                      o += p v       (tensor cores, p from registers)
//! o = o / sum,  lse = ln(sum) + m
//! ```

use crate::abi::{Access, ForwardParams};
use crate::arch::{shared, thread, warp};
use crate::attention::query_block::{QueryBlock, is_split};
use crate::attention::score::{self, Scale, split_sign};
use crate::attention::softmax::OnlineSoftmax;
use crate::pipeline::key_value_ring::KeyValueRing;
use crate::tile::element::{self, TensorCoreElement};
use crate::tile::fragment::{Fragment, MmaFragment};
use crate::tile::mma::{multiply_accumulate, multiply_transposed, pack_all};
use crate::tile::shared_tile::SharedTile;
use crate::tile::store;

/// One block. `S = KEYS / 2` and `O = ROW_BYTES / 4` registers per lane hold 16 rows of scores and of
/// output, `P = S / 2` those of packed probabilities; `QUERIES = WARPS * 16 * M`.
#[inline(always)]
unsafe fn forward<
    E: TensorCoreElement,
    const VECTOR: bool,
    const QUERIES: u32,
    const KEYS: u32,
    const ROW_BYTES: u32,
    const THREADS: u32,
    const M: usize,
    const S: usize,
    const P: usize,
    const O: usize,
>(
    p: &ForwardParams,
) {
    let lane = thread::thread_idx_x() % 32;
    let warp_row = thread::thread_idx_x() / 32 * 16 * M as u32;
    let block = QueryBlock::of_this_block(p, QUERIES);
    if block.is_empty() {
        return;
    }
    let tiles = block.key_tiles(QUERIES, KEYS);
    let scale = Scale::new::<E>(p);
    let (_, q_factor) = split_sign(p.scale);

    let q_tile = SharedTile::<QUERIES, ROW_BYTES> { address: shared::dynamic_base() };
    let ring = KeyValueRing::<KEYS, ROW_BYTES, THREADS, VECTOR>::new(
        q_tile.address + SharedTile::<QUERIES, ROW_BYTES>::BYTES,
        thread::thread_idx_x(),
        block.k::<2>(p),
        block.v::<2>(p),
    );
    let mut output = [[0.0; O]; M];
    let mut softmax = [OnlineSoftmax::<2>::new(p.is_exact()); M];

    if tiles.begin < tiles.end {
        q_tile.load::<E, THREADS, VECTOR>(thread::thread_idx_x(), &block.q::<2>(p));
        ring.request::<E>(tiles.begin);
        if q_factor != 1.0 {
            ring.wait();
            let mut m = 0;
            while m < M {
                q_tile.scale_rows::<E, 16>(lane, warp_row + 16 * m as u32, q_factor);
                m += 1;
            }
            warp::warp_sync();
        }
    }
    let has_rows = block.has_row(warp_row);
    let mut tile = tiles.begin;
    while tile < tiles.end {
        ring.wait();
        if tile + 1 < tiles.end {
            ring.request::<E>(tile + 1);
        }
        if !has_rows {
            // Past the last query: such a warp only helps to load.
            tile += 1;
            continue;
        }
        let mut scores: [[f32; S]; M] =
            multiply_transposed::<E, _, _, _, M, S>(lane, q_tile, warp_row, ring.key(tile));
        let is_masked = tile < tiles.full_begin || tile >= tiles.full_end;
        let mut m = 0;
        while m < M {
            score::apply::<MmaFragment, 2, S>(&mut scores[m], &scale, is_masked, || {
                (lane, block.score_tile(warp_row + 16 * m as u32, tile * KEYS as i32))
            });
            m += 1;
        }
        let mut m = 0;
        while m < M {
            softmax[m].update::<MmaFragment, S, O>(&mut scores[m], &mut output[m], &scale);
            m += 1;
        }
        let probabilities: [[u32; P]; M] = pack_all::<E, M, S, P>(&scores);
        multiply_accumulate::<E, KEYS, ROW_BYTES, M, P, O>(
            lane,
            &mut output,
            &probabilities,
            ring.value(tile),
        );
        tile += 1;
    }
    if !has_rows {
        return;
    }
    let target = if p.output_f32 != 0 { block.o::<4>(p) } else { block.o::<2>(p) };
    let mut m = 0;
    while m < M {
        let row = warp_row + 16 * m as u32;
        let lse = softmax[m].finalize::<MmaFragment, O>(
            &mut output[m],
            &scale,
            is_split(p, QUERIES),
            |half| block.is_dead(row + <MmaFragment as Fragment<2, O>>::row(lane, half)),
        );
        let mut half = 0;
        while half < 2 {
            if lane % 4 == 0 {
                let row = row + <MmaFragment as Fragment<2, O>>::row(lane, half);
                if is_split(p, QUERIES) {
                    block.store_range(p, row, softmax[m].row_max()[half], lse[half]);
                } else {
                    block.store_lse(p, row, lse[half]);
                }
            }
            half += 1;
        }
        if VECTOR && p.output_f32 == 0 {
            store::store_staged::<E, QUERIES, ROW_BYTES, O>(lane, &output[m], q_tile, row, &target);
        } else {
            store::store_pairs::<E, O, VECTOR>(lane, &output[m], row, 0, &target, p.output_f32 != 0);
        }
        m += 1;
    }
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
                    element::$dtype, { matches!(Access::$access, Access::Vector16) }, $queries,
                        $keys, { $dim * 2 },
                    { $warps * 32 }, { $queries / ($warps * 16) }, { $keys / 2 }, { $keys / 4 }, { $dim / 2 },
                >(&p);
            }
        )*
    };
}
crate::for_each_forward_mma_sm80!(entries);
