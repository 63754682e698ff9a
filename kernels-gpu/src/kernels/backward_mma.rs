//! The tensor-core backward for sm_80 and newer: dV, dK and a share of dQ
//! (docs/semantics.md, section 1).
//!
//! A block takes `KEYS` keys of one key head and walks over the query tiles that see them, of every
//! query head of the group. Tiles are transposed (rows are keys): then p and ds feed the products with
//! dO and q from registers.
//!
//! Four pairs of warps share the keys. In a pair, one warp makes `p` and sums dV, the other makes `dp`
//! and sums dK; p passes from the first to the second, which makes ds of it:
//!
//! ```text
//! value warp:  s  = k q^T     p = e^(s - lse)     give p            dv += p dO
//! key warp:    dp = v dO^T    take p              ds = p (dp - delta)   dk += ds q
//! all:                                                              dq  = ds^T k   (added to global f32)
//! ```
//!
//! f32 is multiplied as two f16 parts ([`SplitF32`]), which another kernel has made of q, k, v and dO; p and
//! ds are made parts here ([`GradientUnits`]). Where that kernel found that parts would not be as exact as
//! f32, this one returns at once.

use super::backward_convert::add_in_lane_order;
use crate::abi::{Access, BackwardParams, BackwardPartsParams};
use crate::arch::{barrier, global, shared, specialize, thread};
use crate::attention::gradient::units::{GradientUnits, SplitGradientUnits};
use crate::attention::gradient::{block_max, multiply_all, range_factor, scale_all, subtract_delta};
use crate::attention::key_block::{KeyBlock, Step};
use crate::attention::score::backward::{BackwardScale, StepScores};
use crate::attention::score::bias_tile::FromGlobal;
use crate::attention::score::dropout;
use crate::attention::score::references::References;
use crate::pipeline::query_ring::{QueryRing, QuerySource};
use crate::pipeline::warp_pair::WarpPair;
use crate::tile::add::add_pairs;
use crate::tile::element::{self, SplitF32, TensorCoreElement};
use crate::tile::fragment::MmaFragment;
use crate::tile::global_rows::GlobalRows;
use crate::tile::mma::{
    multiply_accumulate, multiply_left_transposed, multiply_transposed, words_of_all,
};
use crate::tile::shared_tile::SharedTile;
use crate::tile::store::store_pairs;

/// Threads of a block: four pairs of warps.
const THREADS: u32 = 256;
/// Pairs of warps.
const PAIRS: u32 = 4;

/// Sizes: `M = KEYS / 64` tiles of 16 keys per pair; registers per lane: `S = QUERIES / 2` for 16 keys
/// of scores, `P` half of that packed, `O = ROW_BYTES / 4` for 16 keys of a gradient; dQ is split among
/// the warps in `ROW_GROUPS` groups of `16 DM` rows, each `DO / 4 * 8` columns wide.
#[inline(always)]
unsafe fn backward<
    E: TensorCoreElement,
    U: GradientUnits,
    const VECTOR: bool,
    const QUERIES: u32,
    const KEYS: u32,
    const ROW_BYTES: u32,
    const QUERY_BYTES: u32,
    const ROW_GROUPS: u32,
    const M: usize,
    const S: usize,
    const P: usize,
    const O: usize,
    const DM: usize,
    const DO: usize,
>(
    p: &BackwardParams,
    units: U,
) {
    let thread = thread::thread_idx_x();
    let (lane, warp) = (thread % 32, thread / 32);
    let (pair, is_key_warp) = (warp % PAIRS, warp >= PAIRS);
    let pair_row = pair * 16 * M as u32;
    let block = KeyBlock::of_this_block(p);

    let k_tile = SharedTile::<KEYS, ROW_BYTES>::at(shared::dynamic_base());
    let v_tile = SharedTile::<KEYS, ROW_BYTES>::at(k_tile.address + KEYS * ROW_BYTES);
    let ds_tile = SharedTile::<KEYS, QUERY_BYTES>::at(v_tile.address + KEYS * ROW_BYTES);
    let ring = QueryRing::<2, QUERIES, ROW_BYTES, THREADS, VECTOR>::new(
        ds_tile.address + KEYS * QUERY_BYTES,
        thread,
    );
    let exchange = WarpPair::new(pair, ds_tile.address + pair_row * QUERY_BYTES, lane);
    let scale = BackwardScale::new::<E>(p);
    // Parts have no columns but those of the tile.
    let operand = |rows: GlobalRows| {
        let columns = if E::IN_PARTS { ROW_BYTES / E::BYTES } else { rows.columns };
        GlobalRows { columns, ..rows }
    };
    let operands = |source: QuerySource| {
        let (q, d_o) = (operand(source.q), operand(source.d_o));
        QuerySource { q, d_o, ..source }
    };

    let mut key_tile = block.first_tile;
    while block.has_key(key_tile * KEYS) {
        let first_key = (key_tile * KEYS) as i32;
        let walk = block.walk(p, first_key, KEYS, QUERIES);
        let mut gradient = [[0.0; O]; M];
        let tile = (key_tile, KEYS);
        let (mut at, mut shows_all) = block.first_shown(p, tile, QUERIES, &walk, walk.start());
        // How many steps have been taken, where some are skipped.
        let mut taken = 0;
        if at.step < walk.steps {
            let k = operand(block.key_rows::<2>(&p.k, first_key, p.head_dim));
            let v = operand(block.key_rows::<2>(&p.v, first_key, p.value_dim));
            k_tile.load::<E, THREADS, VECTOR>(thread, &k);
            v_tile.load::<E, THREADS, VECTOR>(thread, &v);
            ring.request::<E>(0, &operands(block.source::<2>(p, &at, QUERIES, E::NARROW)));
        }
        let mut largest_value = 0.0;
        if E::NARROW && at.step < walk.steps {
            ring.wait();
            largest_value = block_max::<THREADS>(
                thread,
                v_tile.largest::<E, THREADS>(thread),
                ds_tile.address,
                || barrier::block_sync(),
            ) * dropout::dp_scale(&p.score);
        }
        while at.step < walk.steps {
            let (next, next_shows_all) = block.first_shown(p, tile, QUERIES, &walk, walk.next(&at));
            let stage = if specialize::attn_mask() { taken } else { at.step };
            ring.wait();
            if next.step < walk.steps {
                let source = block.source::<2>(p, &next, QUERIES, E::NARROW);
                ring.request::<E>(stage + 1, &operands(source));
            }
            // What ds is multiplied by to be in the range of E, and sums of it in that of f32; nearly
            // always 1.
            let mut factor = if E::IN_PARTS { 1.0 } else { p.ds_scale };
            if E::NARROW {
                let (norm, delta) = (ring.norm(stage), ring.delta(stage));
                factor = range_factor(lane, QUERIES, largest_value, norm, delta);
            }
            let (own, first, second) = if is_key_warp {
                (v_tile, ring.d_o(stage), ring.q(stage))
            } else {
                (k_tile, ring.q(stage), ring.d_o(stage))
            };
            // Parts have no norms: what brings sums over keys to natural units is there.
            let of_pairs = if E::IN_PARTS { ring.norm(stage) } else { 0 };
            let head = || (block.sequence.batch, block.key_head * p.group_size + at.head);
            let of_step = units.of_step(head, is_key_warp);
            // Scores are those of the forward for sm_80, bit by bit, and so of its lse.
            let mut scores: [[f32; S]; M] =
                multiply_transposed::<E, true, _, _, _, M, S>(lane, own, pair_row, first);
            if E::IN_PARTS {
                scores.iter_mut().for_each(|scores| U::apply(of_step, scores));
            }
            let (packed, factors): ([[u32; P]; M], [U::Rows; M]) = if is_key_warp {
                let has_dropout = specialize::dropout();
                let mut m = 0;
                while m < M && !has_dropout {
                    subtract_delta::<MmaFragment, 2, S>(lane, &mut scores[m], ring.delta(stage));
                    m += 1;
                }
                exchange.receive();
                let mut m = 0;
                while m < M {
                    let mut probability: [f32; S] =
                        E::from_words::<S, P>(|i| exchange.read(m * (P / 4) + i));
                    if has_dropout {
                        dropout::apply_to_dp(&mut scores[m], &mut probability, &p.score);
                        subtract_delta::<MmaFragment, 2, S>(lane, &mut scores[m], ring.delta(stage));
                    }
                    multiply_all(&mut scores[m], &probability);
                    m += 1;
                }
                if factor != 1.0 {
                    scale_all(scores.as_flattened_mut(), factor);
                    if E::NARROW {
                        scale_all(gradient.as_flattened_mut(), factor);
                    }
                }
                let (tile, of_pair) = ((ds_tile, pair_row), of_pairs + 4 * pair);
                U::give_ds::<E, _, _, M, S, P>(of_step, lane, &scores, tile, of_pair)
            } else {
                let (lse, is_masked) = (ring.lse(stage), walk.is_masked(&at));
                make_probabilities::<E, U, QUERIES, M, S, P>(
                    p,
                    of_step,
                    (lane, (lse, &scale), &exchange),
                    (&block, &at, is_masked, shows_all),
                    (first_key, pair_row),
                    &mut scores,
                )
            };
            multiply_accumulate::<E, U::Rows, QUERIES, ROW_BYTES, M, P, O>(
                lane,
                &mut gradient,
                &packed,
                second,
                &factors,
            );
            if E::NARROW && factor != 1.0 && is_key_warp {
                scale_all(gradient.as_flattened_mut(), 1.0 / factor);
            }
            barrier::block_sync();

            let of_warps = |step| of_pairs + 4 * (step / M as u32);
            add_dq::<E, U, KEYS, QUERY_BYTES, ROW_BYTES, ROW_GROUPS, DM, DO>(
                (lane, warp),
                (ds_tile, k_tile),
                of_warps,
                factor,
                || block.dq_accumulator(p, &at, QUERIES),
            );
            (at, shows_all) = (next, next_shows_all);
            taken += 1;
        }
        barrier::block_sync();
        let warp = (lane, is_key_warp, pair_row);
        store_gradient::<E, VECTOR, M, O>(p, &block, first_key, warp, &mut gradient);
        key_tile += p.key_blocks;
    }
}

/// The value warp of a pair: `p = e^(s - lse)` of scores of keys from `first_key` on, packed for the product
/// with dO. The other warp is given what it multiplies dp - delta by.
#[inline(always)]
unsafe fn make_probabilities<
    E: TensorCoreElement,
    U: GradientUnits,
    const QUERIES: u32,
    const M: usize,
    const S: usize,
    const P: usize,
>(
    p: &BackwardParams,
    of_step: U::Step,
    (lane, (lse, scale), exchange): (u32, (u32, &BackwardScale), &WarpPair),
    (block, at, is_masked, shows_all): (&KeyBlock, &Step, bool, bool),
    (first_key, pair_row): (i32, u32),
    scores: &mut [[f32; S]; M],
) -> ([[u32; P]; M], [U::Rows; M]) {
    let references = || block.references(p, at, QUERIES);
    let references = References::find::<E>(p, QUERIES, lse, references);
    if references.are_needed::<E>() {
        let mut m = 0;
        while m < M {
            references.subtract_if_needed::<E, MmaFragment, 2, S>(&mut scores[m]);
            m += 1;
        }
    }
    let (mut packed, mut factors) = ([[0; P]; M], [U::Rows::default(); M]);
    let mut m = 0;
    while m < M {
        let step = StepScores {
            lane,
            lse,
            scale,
            references: &references,
            score: &p.score,
            bias: FromGlobal,
            shows_all,
            tile: || {
                let first_row = first_key + (pair_row + 16 * m as u32) as i32;
                (lane, block.score_tile(first_row, at.tile * QUERIES as i32))
            },
            place: || block.score_place(p, block.key_head * p.group_size + at.head),
        };
        step.exponents::<E, MmaFragment, 2, S>(&mut scores[m]);
        let probability = step.probabilities::<E, MmaFragment, 2, S>(&mut scores[m], is_masked);
        (packed[m], factors[m]) = U::pack::<E, S, P>(of_step, &probability);
        m += 1;
    }
    exchange.give(&words_of_all::<E, M, S, P>(scores));
    (packed, factors)
}

/// Adds a warp's part of `dq = ds^T k` to the accumulator at device address `accumulator`; `of_keys` says at
/// which shared address stands what sums over 16 keys are to be multiplied by.
#[inline(always)]
unsafe fn add_dq<
    E: TensorCoreElement,
    U: GradientUnits,
    const KEYS: u32,
    const QUERY_BYTES: u32,
    const ROW_BYTES: u32,
    const ROW_GROUPS: u32,
    const DM: usize,
    const DO: usize,
>(
    (lane, warp): (u32, u32),
    (ds_tile, k_tile): (SharedTile<KEYS, QUERY_BYTES>, SharedTile<KEYS, ROW_BYTES>),
    of_keys: impl Fn(u32) -> u32,
    factor: f32,
    accumulator: impl FnOnce() -> u64,
) {
    // Registers are for the products: addresses of parts are made anew in each step.
    let lane = if E::IN_PARTS { thread::opaque_here(lane) } else { lane };
    let (row_group, column_group) = (warp % ROW_GROUPS, warp / ROW_GROUPS);
    let mut dq: [[f32; DO]; DM] =
        multiply_left_transposed::<E, U::Keys, KEYS, QUERY_BYTES, ROW_BYTES, DM, DO>(
            lane,
            ds_tile,
            row_group * 16 * DM as u32,
            k_tile,
            column_group * DO as u32 / 8,
            |step| U::of_keys(of_keys(step)),
        );
    if E::NARROW && factor != 1.0 {
        scale_all(dq.as_flattened_mut(), 1.0 / factor);
    }
    add_in_lane_order(lane, warp, dq.as_flattened(), accumulator());
}

/// Writes a warp's keys of a gradient. Where gradients are merged it is added to what is there.
#[inline(always)]
unsafe fn store_gradient<E: TensorCoreElement, const VECTOR: bool, const M: usize, const O: usize>(
    p: &BackwardParams,
    block: &KeyBlock,
    first_key: i32,
    (lane, is_key_warp, pair_row): (u32, bool, u32),
    gradient: &mut [[f32; O]; M],
) {
    let kept = dropout::scale(&p.score);
    let (view, columns, factor) =
        if is_key_warp { (&p.dk, p.head_dim, p.gradient_scale) } else { (&p.dv, p.value_dim, kept) };
    let is_f32 = E::IN_PARTS || p.gradients_f32 != 0;
    let target = if is_f32 {
        block.key_rows::<4>(view, first_key, columns)
    } else {
        block.key_rows::<2>(view, first_key, columns)
    };
    let mut m = 0;
    while m < M {
        scale_all(&mut gradient[m], factor);
        let row = pair_row + 16 * m as u32;
        if specialize::merge() {
            add_pairs::<O, VECTOR>(lane, &mut gradient[m], [1.0; 2], row, 0, &target);
        }
        store_pairs::<E, O, VECTOR>(lane, &gradient[m], row, 0, &target, is_f32);
        m += 1;
    }
}

macro_rules! entries {
    ($(($name:ident, $dtype:ident, $dim:literal, $access:ident, $queries:literal, $keys:literal,
        $warps:literal,
        $blocks:literal))*) => {
        $(
            /// An instance of [`backward`], chosen in [`crate::abi`].
            ///
            /// # Safety
            /// `p` is as [`BackwardParams`] says, for this kernel's row of the table.
            #[unsafe(no_mangle)]
            pub unsafe extern "ptx-kernel" fn $name(p: BackwardParams) {
                const ROW_GROUPS: u32 = dq_row_groups($dim, $queries);
                backward::<
                    element::$dtype, (), { matches!(Access::$access, Access::Vector16) }, $queries,
                        $keys, { $dim * 2 },
                    { $queries * 2 }, ROW_GROUPS, { $keys / 64 }, { $queries / 2 },
                        { $queries / 4 }, { $dim / 2 },
                    { ($queries / ROW_GROUPS / 16) as usize }, { ($dim / (8 / ROW_GROUPS) / 2) as usize },
                >(&p, ());
            }
        )*
    };
}
crate::for_each_backward_mma_sm80!(entries);

macro_rules! parts_entries {
    ($(($name:ident, $dtype:ident, $dim:literal, $access:ident, $queries:literal, $keys:literal,
        $warps:literal,
        $blocks:literal))*) => {
        $(
            /// An instance of [`backward`] for f32 in two parts, chosen in [`crate::abi`].
            ///
            /// # Safety
            /// `p` is as [`BackwardPartsParams`] says, for this kernel's row of the table.
            #[unsafe(no_mangle)]
            pub unsafe extern "ptx-kernel" fn $name(p: BackwardPartsParams) {
                const ROW_GROUPS: u32 = dq_row_groups($dim, $queries);
                if global::load_u32(p.turn) != 0 {
                    return;
                }
                backward::<
                    SplitF32, SplitGradientUnits, { matches!(Access::$access, Access::Vector16) },
                        $queries, $keys, { $dim * 4 },
                    { $queries * 4 }, ROW_GROUPS, { $keys / 64 }, { $queries / 2 },
                        { $queries / 2 }, { $dim / 2 },
                    { ($queries / ROW_GROUPS / 16) as usize }, { ($dim / (8 / ROW_GROUPS) / 2) as usize },
                >(&p.backward, SplitGradientUnits::new(&p));
            }
        )*
    };
}
crate::for_each_backward_parts_sm80!(parts_entries);

/// Into how many groups of rows dQ is split among the eight warps: two of 32 rows where that leaves each
/// a multiple of 16 columns, else groups of 16 rows.
pub const fn dq_row_groups(head_dim: u32, queries: u32) -> u32 {
    if head_dim % 64 == 0 { 2 } else { queries / 16 }
}
