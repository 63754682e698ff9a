//! The gradient of the bias: `dbias = sum p (dp - delta)` over all that the bias is broadcast over, in f32
//! and rounded once (docs/semantics.md, section 1).
//!
//! A block owns `ROWS` x `ROWS` elements of the gradient (one row or column of them, where the bias has one
//! for all queries or keys) and walks over the batches, heads and tiles that share them:
//!
//! ```text
//! for each:   s = q k^T            features and mask (attention/score)
//!             p = e^(s - lse)
//!             dp = dO v^T
//!             sum += p (dp - delta)
//! ```
//!
//! So it makes two of the backward's five products again, and needs no memory between batches and heads: the
//! order of all additions depends on the problem alone. q and k of the next step come while dp is made, and
//! dO and v while its scores are.

mod steps;
mod tiles;

use crate::abi::{Access, BackwardParams, RowStatistic};
use crate::arch::{barrier, global, math, shared, specialize, thread};
use crate::attention::key_block::{self, references, statistics};
use crate::attention::score::bias_tile::FromGlobal;
use crate::attention::score::{BackwardScale, ScoreTile, dropout, features};
use crate::attention::sequence::Sequence;
use crate::geometry::row_heads::RowHeads;
use crate::tile::element::{self, Element, F32, TensorCoreElement};
use crate::tile::fragment::{FmaFragment, Fragment, MmaFragment};
use crate::tile::shared_tile::SharedTile;
use crate::tile::{fma, mma};
use core::f32::consts::LOG2_E;
use core::marker::PhantomData;
use steps::{Part, Step, Steps};
use tiles::{Tiles, commit, wait_for_all_but_the_last};

/// Queries of a fragment.
const FRAGMENT_ROWS: u32 = 16;

/// Keys of a warp, of tiles of so many rows.
const fn warp_keys(rows: u32) -> u32 {
    if rows < 64 { rows } else { 64 }
}

/// Fragments of a warp, of so many that share a tile of `rows` by `rows`.
const fn fragments(rows: u32, warps: u32) -> usize {
    (rows * rows / (warps * FRAGMENT_ROWS * warp_keys(rows))) as usize
}

/// How the rows of a fragment are multiplied with all of another tile.
trait Products<
    const ROWS: u32,
    const KEYS: u32,
    const ROW_BYTES: u32,
    const LANE_ROWS: usize,
    const S: usize,
>
{
    type E: Element;
    type F: Fragment<LANE_ROWS, S>;

    /// The products of the rows from `first_row` on.
    ///
    /// # Safety
    /// All 32 lanes call it together; both tiles are written and visible.
    unsafe fn multiply(
        lane: u32,
        a: SharedTile<ROWS, ROW_BYTES>,
        first_row: u32,
        b: SharedTile<KEYS, ROW_BYTES>,
    ) -> [f32; S];
}

/// On tensor cores.
struct TensorCores<E>(PhantomData<E>);

impl<E: TensorCoreElement, const ROWS: u32, const KEYS: u32, const ROW_BYTES: u32, const S: usize>
    Products<ROWS, KEYS, ROW_BYTES, 2, S> for TensorCores<E>
{
    type E = E;
    type F = MmaFragment;

    #[inline(always)]
    unsafe fn multiply(
        lane: u32,
        a: SharedTile<ROWS, ROW_BYTES>,
        first_row: u32,
        b: SharedTile<KEYS, ROW_BYTES>,
    ) -> [f32; S] {
        let [products] = mma::multiply_transposed::<E, _, _, _, 1, S>(lane, a, first_row, b);
        products
    }
}

/// By fused multiply-adds.
struct MultiplyAdds;

impl<const ROWS: u32, const KEYS: u32, const ROW_BYTES: u32, const S: usize>
    Products<ROWS, KEYS, ROW_BYTES, 4, S> for MultiplyAdds
{
    type E = F32;
    type F = FmaFragment;

    #[inline(always)]
    unsafe fn multiply(
        lane: u32,
        a: SharedTile<ROWS, ROW_BYTES>,
        first_row: u32,
        b: SharedTile<KEYS, ROW_BYTES>,
    ) -> [f32; S] {
        fma::multiply_transposed::<_, _, _, 4, S>(lane, a, first_row, b)
    }
}

/// A warp has `G` fragments of queries and `KEYS` keys of the block's `ROWS` by `ROWS` elements: `S`
/// registers of each; a lane holds `LANE_ROWS` rows of a fragment.
#[inline(always)]
unsafe fn gradient<
    M: Products<ROWS, KEYS, ROW_BYTES, LANE_ROWS, S>,
    const VECTOR: bool,
    const ROWS: u32,
    const KEYS: u32,
    const ROW_BYTES: u32,
    const THREADS: u32,
    const LANE_ROWS: usize,
    const S: usize,
    const G: usize,
>(
    p: &BackwardParams,
) {
    let warp_rows = const { G as u32 * FRAGMENT_ROWS };
    const { assert!(THREADS / 32 * G as u32 * FRAGMENT_ROWS * KEYS == ROWS * ROWS) };
    const { assert!(2 * S == KEYS as usize && ROWS.is_multiple_of(KEYS)) };
    let thread = thread::thread_idx_x();
    let (lane, warp) = (thread % 32, thread / 32);
    let (warp_row, first_warp_key) =
        (warp % (ROWS / warp_rows) * warp_rows, warp / (ROWS / warp_rows) * KEYS);
    let tiles = Tiles::<ROWS, KEYS, ROW_BYTES>::at(shared::dynamic_base());
    let k_tile = SharedTile::<KEYS, ROW_BYTES>::at(tiles.k + first_warp_key * ROW_BYTES);
    let v_tile = SharedTile::<KEYS, ROW_BYTES>::at(tiles.v + first_warp_key * ROW_BYTES);
    let scale = BackwardScale::new::<M::E>(p);

    let mut sums = [[0.0; S]; G];
    let mut steps = Steps::<ROWS>::new(p);
    let mut next = steps.next(p);
    if let Some(step) = &next {
        tiles.load_q_and_k::<M::E, VECTOR, THREADS>(p, step);
        tiles.load_d_o_and_v::<M::E, VECTOR, THREADS>(p, step);
    }
    while let Some(step) = next {
        let (sequence, place) = (step.sequence(p), step.place(p));
        let workspace_row = key_block::workspace_row(p, &sequence, place.sequence);
        wait_for_all_but_the_last::<VECTOR>();
        // One fragment after the other: registers are full.
        let mut scores = [[0.0; S]; G];
        let mut g = 0;
        while g < G {
            scores[g] = M::multiply(lane, tiles.q, warp_row + g as u32 * FRAGMENT_ROWS, k_tile);
            g += 1;
        }
        barrier::block_sync();
        next = steps.next(p);
        if let Some(step) = &next {
            tiles.load_q_and_k::<M::E, VECTOR, THREADS>(p, step);
        } else {
            commit::<VECTOR>();
        }
        let mut g = 0;
        while g < G {
            if specialize::softcap() {
                scale.softcap.apply::<M::E, true, S>(&mut scores[g], true);
            }
            let tile = tile_of::<ROWS>(&step, &sequence, warp_row, g, first_warp_key);
            let (lane, scores, from) = (lane, &mut scores[g], &FromGlobal);
            features::apply::<M::E, M::F, LANE_ROWS, S>(
                lane,
                scores,
                &p.score,
                from,
                &tile,
                &place,
                scale.factor,
                false,
            );
            tile.apply_mask::<M::F, LANE_ROWS, S>(lane, scores);
            let mut row = 0;
            while row < LANE_ROWS {
                let at = tile.first_row + M::F::row(lane, row) as i32;
                let given = RowExponents::of(p, &sequence, workspace_row, place.head, at);
                let mut column = 0;
                while column < M::F::COLUMNS {
                    let register = M::F::register(row, column);
                    let exponent = given.exponent(scores[register]) * LOG2_E;
                    scores[register] = math::exp2_down(exponent);
                    column += 1;
                }
                row += 1;
            }
            g += 1;
        }
        wait_for_all_but_the_last::<VECTOR>();
        let mut g = 0;
        while g < G {
            let tile = tile_of::<ROWS>(&step, &sequence, warp_row, g, first_warp_key);
            let (probabilities, sums) = (&scores[g], &mut sums[g]);
            let mut dp = M::multiply(lane, tiles.d_o, warp_row + g as u32 * FRAGMENT_ROWS, v_tile);
            if specialize::dropout() {
                dropout::each::<M::F, LANE_ROWS, S, false>(
                    lane,
                    &p.score,
                    &tile,
                    &place,
                    |register, is_kept| {
                        let kept = dp[register] * p.score.dropout.dp_scale;
                        dp[register] = if is_kept { kept } else { 0.0 };
                    },
                );
            }
            let mut row = 0;
            while row < LANE_ROWS {
                let at = tile.first_row + M::F::row(lane, row) as i32;
                let delta = delta_of(p, &sequence, workspace_row, place.head, at);
                // What dO of a row that sees no key holds is nothing to it.
                let is_dead = delta.is_none();
                let delta = delta.unwrap_or(0.0);
                let mut column = 0;
                while column < M::F::COLUMNS {
                    let register = M::F::register(row, column);
                    let ds = probabilities[register] * (dp[register] - delta);
                    sums[register] += if is_dead { 0.0 } else { ds };
                    column += 1;
                }
                row += 1;
            }
            g += 1;
        }
        barrier::block_sync();
        if let Some(step) = &next {
            tiles.load_d_o_and_v::<M::E, VECTOR, THREADS>(p, step);
        } else {
            commit::<VECTOR>();
        }
    }
    let place = (warp_row, first_warp_key);
    let part = Part::of_this_block(p, ROWS);
    store::<M::E, M::F, ROWS, THREADS, LANE_ROWS, S, G>(p, &part, lane, place, &sums, tiles.q.address);
}

/// Fragment `g` of a warp's rows from `row` on, and its keys from `key` on, of the tiles of a step.
#[inline(always)]
fn tile_of<const ROWS: u32>(
    step: &Step,
    sequence: &Sequence,
    row: u32,
    g: usize,
    key: u32,
) -> ScoreTile {
    ScoreTile {
        first_row: (step.query_tile * ROWS + row + g as u32 * FRAGMENT_ROWS) as i32,
        first_column: (step.key_tile * ROWS + key) as i32,
        end_row: sequence.query_rows,
        visible: sequence.visible,
        row_heads: RowHeads::One,
    }
}

/// What the exponents of a row are relative to ([`RowStatistic`]). Of no row, what makes its probabilities 0.
struct RowExponents {
    minus_lse: f32,
    reference: f32,
    rest: f32,
}

impl RowExponents {
    #[inline(always)]
    unsafe fn of(
        p: &BackwardParams,
        sequence: &Sequence,
        workspace_row: u32,
        head: u32,
        query: i32,
    ) -> Self {
        if query >= sequence.query_rows {
            return RowExponents { minus_lse: f32::NEG_INFINITY, reference: 0.0, rest: 0.0 };
        }
        let row = workspace_row + query as u32;
        let [reference, rest] = global::load_u32x2(references(p, head, row));
        RowExponents {
            minus_lse: global::load_f32(statistics(p, RowStatistic::Lse, head, row)),
            reference: f32::from_bits(reference),
            rest: f32::from_bits(rest),
        }
    }

    /// `s - lse` of a natural score, in the order of the main kernel.
    #[inline(always)]
    fn exponent(&self, score: f32) -> f32 {
        score + self.minus_lse - self.reference + self.rest
    }
}

/// Delta of a row; of one that sees no key, or is none, nothing.
#[inline(always)]
unsafe fn delta_of(
    p: &BackwardParams,
    sequence: &Sequence,
    workspace_row: u32,
    head: u32,
    query: i32,
) -> Option<f32> {
    if query >= sequence.query_rows {
        return None;
    }
    let row = workspace_row + query as u32;
    let is_dead = global::load_f32(statistics(p, RowStatistic::Lse, head, row)) == f32::NEG_INFINITY;
    let delta = global::load_f32(statistics(p, RowStatistic::Delta, head, row));
    if is_dead { None } else { Some(delta) }
}

/// Writes the elements of a block through shared memory, where rows or columns that are one are added up.
#[inline(always)]
unsafe fn store<
    E: Element,
    F: Fragment<LANE_ROWS, S>,
    const ROWS: u32,
    const THREADS: u32,
    const LANE_ROWS: usize,
    const S: usize,
    const G: usize,
>(
    p: &BackwardParams,
    part: &Part,
    lane: u32,
    (first_row, first_column): (u32, u32),
    sums: &[[f32; S]; G],
    address: u32,
) {
    // A word more than there are columns: rows stand in banks of their own.
    const { assert!(THREADS.is_multiple_of(ROWS)) };
    let word = |row: u32, column: u32| address + 4 * (row * (ROWS + 1) + column);
    let first_column = first_column + F::first_column(lane);
    let mut g = 0;
    while g < G {
        let first_row = first_row + g as u32 * FRAGMENT_ROWS;
        let mut row = 0;
        while row < LANE_ROWS {
            let mut column = 0;
            while column < F::COLUMNS {
                let word = word(first_row + F::row(lane, row), first_column + F::column_offset(column));
                shared::store_u32(word, sums[g][F::register(row, column)].to_bits());
                column += 1;
            }
            row += 1;
        }
        g += 1;
    }
    barrier::block_sync();
    let [_, _, queries, keys] = p.d_bias_shape;
    let (rows, columns) = (if queries == 1 { 1 } else { ROWS }, if keys == 1 { 1 } else { ROWS });
    let mut item = thread::thread_idx_x();
    while item < rows * columns {
        let row = if keys == 1 { item } else { item / ROWS };
        let column = if keys == 1 { 0 } else { item % ROWS };
        let (query, key) = (part.query_tile * ROWS + row, part.key_tile * ROWS + column);
        if query < queries && key < keys {
            let mut sum = 0.0;
            let mut i = 0;
            while i < ROWS / rows {
                let mut j = 0;
                while j < ROWS / columns {
                    sum += f32::from_bits(shared::load_u32(word(row + i, column + j)));
                    j += 1;
                }
                i += 1;
            }
            sum *= dropout::gradient_scale(&p.score);
            let head_stride = p.d_bias.head_stride + p.d_bias.key_head_stride;
            let offset = part.batch as i64 * p.d_bias.batch_stride
                + part.head as i64 * head_stride
                + query as i64 * p.d_bias.query_stride
                + key as i64 * p.d_bias.key_stride;
            if p.d_bias_f32 != 0 {
                global::store_f32(p.d_bias.address.wrapping_add((4 * offset) as u64), sum);
            } else {
                E::store(p.d_bias.address.wrapping_add((E::BYTES as i64 * offset) as u64), sum);
            }
        }
        item += THREADS;
    }
}

/// What multiplies elements of a type.
macro_rules! products {
    (F32) => { MultiplyAdds };
    ($dtype:ident) => { TensorCores<element::$dtype> };
}

macro_rules! entries {
    ($lane_rows:literal, $bytes:literal, $(($name:ident, $dtype:ident, $dim:literal,
        $access:ident, $rows:literal, $keys:literal, $warps:literal, $blocks:literal))*) => {
        $(
            /// An instance of [`gradient`], chosen in [`crate::abi`].
            ///
            /// # Safety
            /// `p` is as [`BackwardParams`] says, with a gradient of the bias.
            #[unsafe(no_mangle)]
            pub unsafe extern "ptx-kernel" fn $name(p: BackwardParams) {
                gradient::<
                    products!($dtype), { matches!(Access::$access, Access::Vector16) }, $rows,
                    { warp_keys($rows) }, { $dim * $bytes }, { $warps * 32 }, $lane_rows,
                    { warp_keys($rows) as usize / 2 }, { fragments($rows, $warps) },
                >(&p);
            }
        )*
    };
}

macro_rules! mma_entries {
    ($($rows:tt)*) => { entries!(2, 2, $($rows)*); };
}
crate::for_each_bias_gradient_mma_sm80!(mma_entries);

macro_rules! fma_entries {
    ($($rows:tt)*) => { entries!(4, 4, $($rows)*); };
}
crate::for_each_bias_gradient_fma_sm80!(fma_entries);
