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
//! order of all additions depends on the problem alone. Each warp has 16 queries. For Hopper see [`hopper`].

mod hopper;
mod lanes;
mod part;
mod rows;

use crate::abi::{Access, BackwardParams};
use crate::arch::{async_copy, barrier, global, math, shared, specialize, thread};
use crate::attention::key_block;
use crate::attention::score::bias_tile::FromGlobal;
use crate::attention::score::{BackwardScale, ScorePlace, ScoreTile, dropout, features};
use crate::attention::sequence::Sequence;
use crate::tile::element::{self, Element, F32, TensorCoreElement};
use crate::tile::fragment::{FmaFragment, Fragment, MmaFragment};
use crate::tile::shared_tile::SharedTile;
use crate::tile::{fma, mma};
use core::f32::consts::LOG2_E;
use core::marker::PhantomData;
use part::{Part, Range, drop_dp, score_tile, shown_by_mask, shown_by_positions};
use rows::{RowReference, RowStatistics};

/// Rows of a warp.
const WARP_ROWS: u32 = 16;

/// How 16 rows of a tile are multiplied with all of another, into fragments of `F`.
trait Products<const ROWS: u32, const ROW_BYTES: u32, const LANE_ROWS: usize, const S: usize> {
    type E: Element;
    type F: Fragment<LANE_ROWS, S>;

    /// The products of rows from `first_row` on.
    ///
    /// # Safety
    /// All 32 lanes call it together; both tiles are written and visible.
    unsafe fn multiply(
        lane: u32,
        a: SharedTile<ROWS, ROW_BYTES>,
        first_row: u32,
        b: SharedTile<ROWS, ROW_BYTES>,
    ) -> [f32; S];
}

/// On tensor cores.
struct TensorCores<E>(PhantomData<E>);

impl<E: TensorCoreElement, const ROWS: u32, const ROW_BYTES: u32, const S: usize>
    Products<ROWS, ROW_BYTES, 2, S> for TensorCores<E>
{
    type E = E;
    type F = MmaFragment;

    #[inline(always)]
    unsafe fn multiply(
        lane: u32,
        a: SharedTile<ROWS, ROW_BYTES>,
        first_row: u32,
        b: SharedTile<ROWS, ROW_BYTES>,
    ) -> [f32; S] {
        let [products] = mma::multiply_transposed::<E, false, _, _, _, 1, S>(lane, a, first_row, b);
        products
    }
}

/// By fused multiply-adds.
struct MultiplyAdds;

impl<const ROWS: u32, const ROW_BYTES: u32, const S: usize> Products<ROWS, ROW_BYTES, 4, S>
    for MultiplyAdds
{
    type E = F32;
    type F = FmaFragment;

    #[inline(always)]
    unsafe fn multiply(
        lane: u32,
        a: SharedTile<ROWS, ROW_BYTES>,
        first_row: u32,
        b: SharedTile<ROWS, ROW_BYTES>,
    ) -> [f32; S] {
        fma::multiply_transposed::<_, _, _, 4, S>(lane, a, first_row, b)
    }
}

/// `S` registers of a warp's scores; a lane holds `LANE_ROWS` rows.
#[inline(always)]
unsafe fn gradient<
    M: Products<ROWS, ROW_BYTES, LANE_ROWS, S>,
    const VECTOR: bool,
    const ROWS: u32,
    const ROW_BYTES: u32,
    const THREADS: u32,
    const LANE_ROWS: usize,
    const S: usize,
>(
    p: &BackwardParams,
) {
    const { assert!(THREADS / 32 * WARP_ROWS == ROWS && 2 * S == ROWS as usize) };
    let thread = thread::thread_idx_x();
    let (lane, warp_row) = (thread % 32, thread / 32 * WARP_ROWS);
    let q_tile = SharedTile::<ROWS, ROW_BYTES>::at(shared::dynamic_base());
    let tile_at = |index: u32| SharedTile::at(q_tile.address + index * ROWS * ROW_BYTES);
    let (k_tile, d_o_tile, v_tile) = (tile_at(1), tile_at(2), tile_at(3));
    let part = Part::nth(p, ROWS, thread::block_idx_x());
    let [_, _, queries, keys] = p.d_bias_shape;
    let scale = BackwardScale::new::<M::E>(p);

    let mut sums = [0.0; S];
    let (batches, heads) = (part.batches(p), part.heads(p));
    let mut batch = batches.begin;
    while batch < batches.end {
        let sequence = key_block::sequence(p, batch);
        let workspace_row = key_block::workspace_row(p, &sequence, batch);
        let tiles = |rows: i32| (rows as u32).div_ceil(ROWS);
        let query_tiles = Range::of(part.query_tile, queries, tiles(sequence.query_rows));
        let key_tiles = Range::of(part.key_tile, keys, tiles(sequence.visible.key_rows));
        let mut head = heads.begin;
        while head < heads.end {
            let key_head = math::divide(head, p.group_size);
            let mut query_tile = query_tiles.begin;
            while query_tile < query_tiles.end {
                let first_query = (query_tile * ROWS) as i32;
                let mut key_tile = key_tiles.begin;
                while key_tile < key_tiles.end {
                    let first_key = (key_tile * ROWS) as i32;
                    let place = ScorePlace { sequence: batch, head, key_head, first_key: 0 };
                    if shown_by_positions(&sequence, first_query, ROWS, key_tile).some
                        && shown_by_mask(p, &sequence, &place, (first_query, first_key), ROWS).some
                    {
                        load::<M::E, VECTOR, ROWS, ROW_BYTES, THREADS>(
                            p,
                            &sequence,
                            (head, key_head),
                            (first_query, first_key),
                            [q_tile, k_tile, d_o_tile, v_tile],
                        );
                        let tile = score_tile(&sequence, first_query + warp_row as i32, first_key);
                        let scores = make_scores::<M, ROWS, ROW_BYTES, LANE_ROWS, S>(
                            p,
                            &scale,
                            (lane, warp_row),
                            (&tile, &place),
                            (q_tile, k_tile),
                        );
                        let mut dp = M::multiply(lane, d_o_tile, warp_row, v_tile);
                        drop_dp::<M::F, LANE_ROWS, S>(lane, &p.score, &tile, &place, &mut dp);
                        add_gradient::<M::F, LANE_ROWS, S>(
                            p,
                            (lane, warp_row),
                            (&sequence, workspace_row, head, first_query),
                            (&scores, &dp),
                            &mut sums,
                        );
                        barrier::block_sync();
                    }
                    key_tile += 1;
                }
                query_tile += 1;
            }
            head += 1;
        }
        batch += 1;
    }
    store::<M::E, M::F, ROWS, THREADS, LANE_ROWS, S>(p, &part, lane, warp_row, &sums, q_tile.address);
}

/// Scores of a warp's queries, of the tile and place that `scored` says: all that is done to them but the
/// exponentials.
#[inline(always)]
unsafe fn make_scores<
    M: Products<ROWS, ROW_BYTES, LANE_ROWS, S>,
    const ROWS: u32,
    const ROW_BYTES: u32,
    const LANE_ROWS: usize,
    const S: usize,
>(
    p: &BackwardParams,
    scale: &BackwardScale,
    (lane, warp_row): (u32, u32),
    (tile, place): (&ScoreTile, &ScorePlace),
    (q_tile, k_tile): (SharedTile<ROWS, ROW_BYTES>, SharedTile<ROWS, ROW_BYTES>),
) -> [f32; S] {
    let mut scores = M::multiply(lane, q_tile, warp_row, k_tile);
    if specialize::softcap() {
        scale.softcap.apply::<M::E, true, S>(&mut scores, true);
    }
    features::apply::<M::E, M::F, LANE_ROWS, S>(
        lane,
        &mut scores,
        &p.score,
        &FromGlobal,
        tile,
        place,
        scale.factor,
        false,
    );
    tile.apply_mask::<M::F, LANE_ROWS, S>(lane, &mut scores);
    scores
}

/// `sums += p (dp - delta)` with `p = e^(s - lse)`, of a warp's queries and query head `head`; `first_query`
/// is the first of the tile, and that of the sequence has row `workspace_row` in the workspace.
#[inline(always)]
unsafe fn add_gradient<F: Fragment<LANE_ROWS, S>, const LANE_ROWS: usize, const S: usize>(
    p: &BackwardParams,
    (lane, warp_row): (u32, u32),
    (sequence, workspace_row, head, first_query): (&Sequence, u32, u32, i32),
    (scores, dp): (&[f32; S], &[f32; S]),
    sums: &mut [f32; S],
) {
    let mut row = 0;
    while row < LANE_ROWS {
        let at = warp_row + F::row(lane, row);
        let query = first_query + at as i32;
        let (mut given, mut reference) = (RowStatistics::NOTHING, RowReference::NOTHING);
        if query < sequence.query_rows {
            let row = workspace_row + query as u32;
            given = RowStatistics::load(p, head, row);
            reference = RowReference::load(p, head, row);
        }
        let mut column = 0;
        while column < F::COLUMNS {
            let register = F::register(row, column);
            let exponent = reference.relative(scores[register]) + given.minus_lse;
            let ds = math::exp2_down(exponent * LOG2_E) * (dp[register] - given.delta);
            // What dO of a row that sees no key holds is nothing to it.
            sums[register] += if given.is_dead() { 0.0 } else { ds };
            column += 1;
        }
        row += 1;
    }
}

/// Fills the tiles of q, k, dO and v.
#[inline(always)]
unsafe fn load<
    E: Element,
    const VECTOR: bool,
    const ROWS: u32,
    const ROW_BYTES: u32,
    const THREADS: u32,
>(
    p: &BackwardParams,
    sequence: &Sequence,
    (head, key_head): (u32, u32),
    (query, key): (i32, i32),
    [q_tile, k_tile, d_o_tile, v_tile]: [SharedTile<ROWS, ROW_BYTES>; 4],
) {
    let thread = thread::thread_idx_x();
    let (q, k, d_o, v) = if E::BYTES == 2 {
        (
            sequence.query_rows::<2>(&p.q, head, query, p.head_dim),
            sequence.key_rows::<2>(&p.k, key_head, key, p.head_dim),
            sequence.query_rows::<2>(&p.d_o, head, query, p.value_dim),
            sequence.key_rows::<2>(&p.v, key_head, key, p.value_dim),
        )
    } else {
        (
            sequence.query_rows::<4>(&p.q, head, query, p.head_dim),
            sequence.key_rows::<4>(&p.k, key_head, key, p.head_dim),
            sequence.query_rows::<4>(&p.d_o, head, query, p.value_dim),
            sequence.key_rows::<4>(&p.v, key_head, key, p.value_dim),
        )
    };
    q_tile.load::<E, THREADS, VECTOR>(thread, &q);
    k_tile.load::<E, THREADS, VECTOR>(thread, &k);
    d_o_tile.load::<E, THREADS, VECTOR>(thread, &d_o);
    v_tile.load::<E, THREADS, VECTOR>(thread, &v);
    if VECTOR {
        async_copy::commit();
        async_copy::wait::<0>();
    }
    barrier::block_sync();
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
>(
    p: &BackwardParams,
    part: &Part,
    lane: u32,
    warp_row: u32,
    sums: &[f32; S],
    address: u32,
) {
    // A word more than there are columns: rows stand in banks of their own.
    const { assert!(THREADS.is_multiple_of(ROWS)) };
    let word = |row: u32, column: u32| address + 4 * (row * (ROWS + 1) + column);
    let mut row = 0;
    while row < LANE_ROWS {
        let mut column = 0;
        while column < F::COLUMNS {
            let at = (warp_row + F::row(lane, row), F::first_column(lane) + F::column_offset(column));
            shared::store_u32(word(at.0, at.1), sums[F::register(row, column)].to_bits());
            column += 1;
        }
        row += 1;
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
            let offset = part.offset(p, ROWS)
                + row as i64 * p.d_bias.query_stride
                + column as i64 * p.d_bias.key_stride;
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
                    { $dim * $bytes }, { $warps * 32 }, $lane_rows, { $rows / 2 },
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
