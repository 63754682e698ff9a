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
//! order of all additions depends on the problem alone. Each warp has 16 queries.

use crate::abi::{Access, BackwardParams, RowStatistic};
use crate::arch::{async_copy, barrier, global, math, shared, specialize, thread};
use crate::attention::key_block::{self, references, statistics};
use crate::attention::score::bias_tile::FromGlobal;
use crate::attention::score::{BackwardScale, ScorePlace, ScoreTile, dropout, features, mask_map};
use crate::attention::sequence::Sequence;
use crate::geometry::row_heads::RowHeads;
use crate::tile::element::{self, Element, F32, TensorCoreElement};
use crate::tile::fragment::{FmaFragment, Fragment, MmaFragment};
use crate::tile::shared_tile::SharedTile;
use crate::tile::{fma, mma};
use core::f32::consts::LOG2_E;
use core::marker::PhantomData;

/// Rows of a warp.
const WARP_ROWS: u32 = 16;

/// Which of a dimension a block sums over: `begin..end`.
#[derive(Clone, Copy)]
struct Range {
    begin: u32,
    end: u32,
}

impl Range {
    /// Item `index` alone or, of one for all, all `count`.
    #[inline(always)]
    fn of(index: u32, extent: u32, count: u32) -> Self {
        if extent == 1 { Range { begin: 0, end: count } } else { Range { begin: index, end: index + 1 } }
    }
}

/// The elements of a block.
#[derive(Clone, Copy)]
struct Part {
    batch: u32,
    head: u32,
    query_tile: u32,
    key_tile: u32,
}

impl Part {
    /// That of this block, of tiles of `rows` queries and keys.
    #[inline(always)]
    fn of_this_block(p: &BackwardParams, rows: u32) -> Self {
        let [_, heads, queries, keys] = p.d_bias_shape;
        let (query_tiles, key_tiles) = (queries.div_ceil(rows), keys.div_ceil(rows));
        let index = thread::block_idx_x();
        let row = math::divide(index, key_tiles);
        let pair = math::divide(row, query_tiles);
        let batch = math::divide(pair, heads);
        Part {
            batch,
            head: pair - batch * heads,
            query_tile: row - pair * query_tiles,
            key_tile: index - row * key_tiles,
        }
    }
}

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
        let [products] = mma::multiply_transposed::<E, _, _, _, 1, S>(lane, a, first_row, b);
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
    let part = Part::of_this_block(p, ROWS);
    let [batches, heads, queries, keys] = p.d_bias_shape;
    let scale = BackwardScale::new::<M::E>(p);

    let mut sums = [0.0; S];
    let heads_of_one = math::divide(p.query_heads, heads);
    let batches = Range::of(part.batch, batches, p.batches);
    let mut batch = batches.begin;
    while batch < batches.end {
        let sequence = key_block::sequence(p, batch);
        let workspace_row = key_block::workspace_row(p, &sequence, batch);
        let tiles = |rows: i32| (rows as u32).div_ceil(ROWS);
        let query_tiles = Range::of(part.query_tile, queries, tiles(sequence.query_rows));
        let key_tiles = Range::of(part.key_tile, keys, tiles(sequence.visible.key_rows));
        let mut head = part.head * heads_of_one;
        let end_head = head + heads_of_one;
        while head < end_head {
            let key_head = math::divide(head, p.group_size);
            let mut query_tile = query_tiles.begin;
            while query_tile < query_tiles.end {
                let first_query = (query_tile * ROWS) as i32;
                let mut key_tile = key_tiles.begin;
                while key_tile < key_tiles.end {
                    let first_key = (key_tile * ROWS) as i32;
                    let place = ScorePlace { sequence: batch, head, key_head, first_key: 0 };
                    if is_visible(&sequence, first_query, ROWS, key_tile)
                        && shows_some(p, &sequence, &place, (first_query, first_key), ROWS)
                    {
                        load::<M::E, VECTOR, ROWS, ROW_BYTES, THREADS>(
                            p,
                            &sequence,
                            (head, key_head),
                            (first_query, first_key),
                            [q_tile, k_tile, d_o_tile, v_tile],
                        );
                        let mut scores = M::multiply(lane, q_tile, warp_row, k_tile);
                        if specialize::softcap() {
                            scale.softcap.apply::<M::E, true, S>(&mut scores, true);
                        }
                        let tile = ScoreTile {
                            first_row: first_query + warp_row as i32,
                            first_column: first_key,
                            end_row: sequence.query_rows,
                            visible: sequence.visible,
                            row_heads: RowHeads::One,
                        };
                        features::apply::<M::E, M::F, LANE_ROWS, S>(
                            lane,
                            &mut scores,
                            &p.score,
                            &FromGlobal,
                            &tile,
                            &place,
                            scale.factor,
                            false,
                        );
                        tile.apply_mask::<M::F, LANE_ROWS, S>(lane, &mut scores);
                        let mut dp = M::multiply(lane, d_o_tile, warp_row, v_tile);
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
                            let at = warp_row + M::F::row(lane, row);
                            let query = first_query + at as i32;
                            let given = statistics_of(p, &sequence, workspace_row, head, query);
                            let mut column = 0;
                            while column < M::F::COLUMNS {
                                let register = M::F::register(row, column);
                                let exponent = given.exponent(scores[register]) * LOG2_E;
                                let ds = math::exp2_down(exponent) * (dp[register] - given.delta);
                                // What dO of a row that sees no key holds is nothing to it.
                                sums[register] += if given.is_dead() { 0.0 } else { ds };
                                column += 1;
                            }
                            row += 1;
                        }
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

/// Whether some query of a tile of `rows` sees some key of a tile of as many.
#[inline(always)]
fn is_visible(sequence: &Sequence, first_query: i32, rows: u32, key_tile: u32) -> bool {
    if first_query >= sequence.query_rows {
        return false;
    }
    let last = first_query + rows as i32;
    let last = if last < sequence.query_rows { last } else { sequence.query_rows } - 1;
    let tiles = sequence.visible.tiles(first_query, last, rows as i32);
    (key_tile as i32) >= tiles.begin && (key_tile as i32) < tiles.end
}

/// Whether a boolean mask, if there is one, shows some pair of a tile of `rows` queries and keys from these
/// on.
#[inline(always)]
unsafe fn shows_some(
    p: &BackwardParams,
    sequence: &Sequence,
    place: &ScorePlace,
    (first_query, first_key): (i32, i32),
    rows: u32,
) -> bool {
    if !specialize::attn_mask() {
        return true;
    }
    let tile = |first: i32, all: i32| {
        let end = first + rows as i32;
        (first, if end < all { end } else { all } - 1)
    };
    let queries = tile(first_query, sequence.query_rows);
    let keys = tile(first_key, sequence.visible.key_rows);
    mask_map::shown(&p.score, place, 1, queries, keys).some
}

/// What is known of a row ([`RowStatistic`]). Of no row, what makes its probabilities 0.
struct RowStatistics {
    minus_lse: f32,
    reference: f32,
    rest: f32,
    delta: f32,
}

impl RowStatistics {
    /// Whether the row sees no key, or is no row.
    #[inline(always)]
    fn is_dead(&self) -> bool {
        self.minus_lse == f32::NEG_INFINITY
    }

    /// `s - lse` of a natural score, in the order of the main kernel.
    #[inline(always)]
    fn exponent(&self, score: f32) -> f32 {
        score + self.minus_lse - self.reference + self.rest
    }
}

#[inline(always)]
unsafe fn statistics_of(
    p: &BackwardParams,
    sequence: &Sequence,
    workspace_row: u32,
    head: u32,
    query: i32,
) -> RowStatistics {
    if query >= sequence.query_rows {
        return RowStatistics { minus_lse: f32::NEG_INFINITY, reference: 0.0, rest: 0.0, delta: 0.0 };
    }
    let row = workspace_row + query as u32;
    let [reference, rest] = global::load_u32x2(references(p, head, row));
    RowStatistics {
        minus_lse: global::load_f32(statistics(p, RowStatistic::Lse, head, row)),
        reference: f32::from_bits(reference),
        rest: f32::from_bits(rest),
        delta: global::load_f32(statistics(p, RowStatistic::Delta, head, row)),
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
