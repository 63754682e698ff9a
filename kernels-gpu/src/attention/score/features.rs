//! What is added to scores, and what hides keys pair by pair: bias, ALiBi and the boolean mask.
//!
//! ```text
//! s = scale (q . k) + bias - slope |i + diagonal - j|        natural, whatever the unit of scores is
//! otherwise s = -inf                                                   where the bit of the pair is 0
//! ```
//!
//! Elements come from global memory when they are needed: each lane reads those of the scores that it holds,
//! neighbouring ones together where it can.

use super::bias_tile::BiasSource;
use super::{ScorePlace, ScoreTile};
use crate::abi::{MASK_BITS, ScoreParams, ScoreView};
use crate::arch::{global, math, specialize};
use crate::geometry::swizzle::CHUNK_BYTES;
use crate::geometry::visible::Visible;
use crate::tile::element::{Element, F32};
use crate::tile::fragment::Fragment;

/// Keys of the words of a boolean mask that are read at once.
const WORD_BITS: u32 = 2 * MASK_BITS;

/// Whether the bias, if there is one, is f32 where elements are not.
#[inline(always)]
fn has_f32_bias<E: Element>() -> bool {
    E::BYTES == 2 && specialize::bias_f32()
}

/// Whether scores have a bias.
#[inline(always)]
pub fn have_bias<E: Element>() -> bool {
    specialize::bias() || has_f32_bias::<E>()
}

/// Whether batches share a bias of the type of q.
#[inline(always)]
pub fn bias_is_of_all_batches(p: &ScoreParams) -> bool {
    specialize::bias() && p.bias.batch_stride == 0
}

/// The same, for kernels without switches.
#[inline(always)]
pub fn bias_of_all_batches_is_there(p: &ScoreParams) -> bool {
    p.bias.address != 0 && p.bias_f32 == 0 && p.bias.batch_stride == 0
}

/// Whether something is added to scores, which are natural then.
#[inline(always)]
pub fn are_natural<E: Element>() -> bool {
    have_bias::<E>() || specialize::alibi()
}

/// Whether slopes alone are added, to scores that are products: a kernel may then have its tensor cores add
/// them, and scores are not natural. Not of parts of f32: these are f16.
#[inline(always)]
pub fn slopes_may_be_products<E: Element>() -> bool {
    E::BYTES == 2 && specialize::alibi() && !specialize::softcap() && !have_bias::<E>()
}

/// Whether keys may be hidden pair by pair.
#[inline(always)]
pub fn hide_pairs<E: Element>() -> bool {
    have_bias::<E>() || specialize::attn_mask()
}

/// Whether a tile has any of these features.
#[inline(always)]
pub fn are_on<E: Element>() -> bool {
    are_natural::<E>() || specialize::attn_mask()
}

/// The elements of a tensor over scores from one query and one key on.
#[derive(Clone, Copy)]
pub struct Elements {
    /// Of the first.
    pub(super) address: u64,
    query_bytes: i64,
    key_bytes: i64,
}

impl Elements {
    #[inline(always)]
    fn new<const ELEMENT_BYTES: i64>(view: &ScoreView, place: &ScorePlace, head: u32) -> Self {
        let offset = place.sequence as i64 * view.batch_stride
            + (place.head + head) as i64 * view.head_stride
            + place.key_head as i64 * view.key_head_stride;
        Elements {
            address: view.address.wrapping_add((offset * ELEMENT_BYTES) as u64),
            query_bytes: view.query_stride * ELEMENT_BYTES,
            key_bytes: view.key_stride * ELEMENT_BYTES,
        }
    }

    /// From `query` and `key` on.
    #[inline(always)]
    pub fn from(self, query: i32, key: i32) -> Self {
        let offset = query as i64 * self.query_bytes + key as i64 * self.key_bytes;
        Elements { address: self.address.wrapping_add(offset as u64), ..self }
    }

    /// Whether those of a query are chunks of 16 bytes, for elements of 16 bits.
    #[inline(always)]
    pub(super) fn are_in_chunks(self) -> bool {
        self.key_bytes == 2 && (self.address | self.query_bytes as u64) % CHUNK_BYTES as u64 == 0
    }

    /// The address of the element so many keys further on.
    #[inline(always)]
    pub(super) fn key(self, key: u32) -> u64 {
        self.address.wrapping_add((key as i64 * self.key_bytes) as u64)
    }

    /// The address of the element so many queries further on.
    #[inline(always)]
    pub(super) fn query(self, query: u32) -> u64 {
        self.address.wrapping_add((query as i64 * self.query_bytes) as u64)
    }
}

/// A lane's rows and columns of a tile.
#[derive(Clone, Copy)]
pub(super) struct LaneTile<'t> {
    tile: &'t ScoreTile,
    lane: u32,
    /// Its first column in the sequence.
    pub(super) first_column: i32,
}

impl<'t> LaneTile<'t> {
    #[inline(always)]
    pub(super) fn new<F: Fragment<ROWS, N>, const ROWS: usize, const N: usize>(
        tile: &'t ScoreTile,
        lane: u32,
    ) -> Self {
        LaneTile { tile, lane, first_column: tile.first_column + F::first_column(lane) as i32 }
    }

    /// Its `row`-th row in the sequence, and whether it is the tile's own.
    #[inline(always)]
    pub(super) fn row<F: Fragment<ROWS, N>, const ROWS: usize, const N: usize>(
        &self,
        row: usize,
    ) -> (i32, bool) {
        let row = self.tile.first_row + F::row(self.lane, row) as i32;
        (row, row < self.tile.end_row)
    }

    /// How many columns there are from its first one on.
    #[inline(always)]
    pub(super) fn columns(&self) -> i32 {
        self.tile.visible.key_rows - self.first_column
    }
}

/// Makes natural scores of products, or of scores in units of the cap, which `factor` does, and adds ALiBi
/// and the bias, which comes from `bias`, to them. `TRANSPOSED`: rows are keys and columns queries.
///
/// # Safety
/// The tensors are as [`ScoreParams`] says; something is added.
#[inline(always)]
pub unsafe fn add<
    E: Element,
    F: Fragment<ROWS, N>,
    const ROWS: usize,
    const N: usize,
    const TRANSPOSED: bool,
>(
    lane: u32,
    scores: &mut [f32; N],
    p: &ScoreParams,
    bias: &impl BiasSource<E>,
    tile: &ScoreTile,
    place: &ScorePlace,
    factor: f32,
) {
    if specialize::bias() {
        bias.add::<F, ROWS, N, TRANSPOSED>(lane, scores, p, tile, place, factor);
    } else if has_f32_bias::<E>() {
        super::bias::add::<F32, F, ROWS, N, TRANSPOSED>(lane, scores, p, tile, place, factor);
    }
    let rest = if have_bias::<E>() { None } else { Some(factor) };
    if specialize::alibi() {
        add_slopes::<F, ROWS, N>(lane, scores, tile, rest, |head| slope(p, place, head));
    } else if let Some(factor) = rest {
        let mut i = 0;
        while i < N {
            scores[i] *= factor;
            i += 1;
        }
    }
}

/// Adds ALiBi to scores, or to products that `factor` makes scores, with the slopes that `slope_of` gives for
/// the heads of the tile.
///
/// # Safety
/// As [`add`].
#[inline(always)]
unsafe fn add_slopes<F: Fragment<ROWS, N>, const ROWS: usize, const N: usize>(
    lane: u32,
    scores: &mut [f32; N],
    tile: &ScoreTile,
    factor: Option<f32>,
    slope_of: impl Fn(u32) -> f32,
) {
    let of_lane = LaneTile::new::<F, ROWS, N>(tile, lane);
    let mut row = 0;
    while row < ROWS {
        let (this_row, _) = of_lane.row::<F, ROWS, N>(row);
        let (query_or_key, head) = tile.row_heads.place(this_row);
        let slope = slope_of(head);
        // The diagonal of a transposed tile is transposed, too. One conversion for a row: conversions are
        // as slow as exponentials. Sums with offsets are exact up to 2^24.
        let first = (of_lane.first_column - (query_or_key + tile.visible.diagonal)) as f32;
        let mut column = 0;
        while column < F::COLUMNS {
            let register = F::register(row, column);
            let distance = first + F::column_offset(column) as f32;
            scores[register] = with_slope(scores[register], factor, slope, distance);
            column += 1;
        }
        row += 1;
    }
}

/// Adds ALiBi to products of a tile whose rows are queries, in their unit.
///
/// # Safety
/// As [`add`]; [`slopes_may_be_products`].
#[inline(always)]
pub unsafe fn add_slopes_to_products<F: Fragment<ROWS, N>, const ROWS: usize, const N: usize>(
    lane: u32,
    scores: &mut [f32; N],
    p: &ScoreParams,
    tile: &ScoreTile,
    place: &ScorePlace,
    unit: f32,
) {
    let slope_of = |head| slope_in_units(p, place, head, unit);
    add_slopes::<F, ROWS, N>(lane, scores, tile, None, slope_of);
}

/// A natural score with ALiBi: of a score that is natural, or of one that `factor` makes so.
#[inline(always)]
fn with_slope(score: f32, factor: Option<f32>, slope: f32, distance: f32) -> f32 {
    match factor {
        Some(factor) => math::fma(score, factor, -(slope * distance.abs())),
        None => math::fma(-slope, distance.abs(), score),
    }
}

/// Hides what the boolean mask hides, over a tile whose rows are queries.
///
/// # Safety
/// The tensors are as [`ScoreParams`] says.
#[inline(always)]
pub unsafe fn hide<F: Fragment<ROWS, N>, const ROWS: usize, const N: usize>(
    lane: u32,
    scores: &mut [f32; N],
    p: &ScoreParams,
    tile: &ScoreTile,
    place: &ScorePlace,
) {
    let of_lane = LaneTile::new::<F, ROWS, N>(tile, lane);
    // Words of 32 keys, of which the tile may begin in the middle of one.
    let first_key = place.first_key + tile.first_column;
    let skipped = first_key % WORD_BITS as i32;
    let first_column = tile.first_column - skipped;
    let mut row = 0;
    while row < ROWS {
        let (this_row, is_there) = of_lane.row::<F, ROWS, N>(row);
        let (query, head) = tile.row_heads.place(this_row);
        let bits = Elements::new::<2>(&p.mask, place, head);
        let bits = bits.from(query, (first_key - skipped) / MASK_BITS as i32);
        let load = |keys: u32| {
            let is_there = is_there && first_column + (keys as i32) < tile.visible.key_rows;
            global::load_u32_if(bits.key(keys / MASK_BITS), is_there)
        };
        let mut next = load(0);
        let mut word = 0;
        let mut column = 0;
        while column < F::COLUMNS {
            // Lanes have their first column among the first eight, and the others multiples of eight
            // further on, or next to these.
            let offset = F::column_offset(column);
            if offset % WORD_BITS == 0 {
                let low = next;
                next = load(offset + WORD_BITS);
                let both = (next as u64) << WORD_BITS | low as u64;
                word = (both >> (skipped as u32 + F::first_column(lane))) as u32;
            }
            if word & 1 << (offset % WORD_BITS) == 0 {
                scores[F::register(row, column)] = f32::NEG_INFINITY;
            }
            column += 1;
        }
        row += 1;
    }
}

/// The same over a tile whose rows are keys and columns queries.
///
/// # Safety
/// As [`hide`].
#[inline(always)]
pub unsafe fn hide_transposed<F: Fragment<ROWS, N>, const ROWS: usize, const N: usize>(
    lane: u32,
    scores: &mut [f32; N],
    p: &ScoreParams,
    tile: &ScoreTile,
    place: &ScorePlace,
) {
    let of_lane = LaneTile::new::<F, ROWS, N>(tile, lane);
    let queries = of_lane.columns();
    let bits = Elements::new::<2>(&p.mask, place, 0);
    let mut column = 0;
    while column < F::COLUMNS {
        let offset = F::column_offset(column);
        let mut word = 0;
        let mut row = 0;
        while row < ROWS {
            let (key, is_there) = of_lane.row::<F, ROWS, N>(row);
            let key = key + place.first_key;
            // The two rows of a tensor-core fragment are of the same 16.
            if row == 0 || !F::PAIRED {
                let bits = bits.from(of_lane.first_column, key / MASK_BITS as i32);
                let is_there = (is_there || F::PAIRED) && (offset as i32) < queries;
                let is_there = is_there && key / (MASK_BITS as i32) * (MASK_BITS as i32) < tile.end_row;
                word = global::load_u16_if(bits.query(offset), is_there) as u32;
            }
            if word & 1 << (key as u32 % MASK_BITS) == 0 {
                scores[F::register(row, column)] = f32::NEG_INFINITY;
            }
            row += 1;
        }
        column += 1;
    }
}

/// [`add`] if something is added, and [`hide`] if there is a boolean mask, unless it `shows_all`, over a tile
/// whose rows are queries.
///
/// # Safety
/// The tensors are as [`ScoreParams`] says.
#[inline(always)]
pub unsafe fn apply<E: Element, F: Fragment<ROWS, N>, const ROWS: usize, const N: usize>(
    lane: u32,
    scores: &mut [f32; N],
    p: &ScoreParams,
    bias: &impl BiasSource<E>,
    tile: &ScoreTile,
    place: &ScorePlace,
    factor: f32,
    shows_all: bool,
) {
    if are_natural::<E>() {
        add::<E, F, ROWS, N, false>(lane, scores, p, bias, tile, place, factor);
    }
    if specialize::attn_mask() && !shows_all {
        hide::<F, ROWS, N>(lane, scores, p, tile, place);
    }
}

/// Whether a query sees a key among `visible`'s, of which neither the boolean mask nor the bias hides all;
/// `lane` is one of the `lanes` lanes that look for it together.
///
/// # Safety
/// The tensors are as [`ScoreParams`] says.
#[inline(always)]
pub unsafe fn sees_a_key<E: Element>(
    p: &ScoreParams,
    place: &ScorePlace,
    (query, head): (i32, u32),
    visible: &Visible,
    (lane, lanes): (u32, u32),
) -> bool {
    let (begin, end) = (visible.begin(query), visible.end(query));
    let mask = Elements::new::<2>(&p.mask, place, head);
    let bias = elements::<E>(&p.bias, place, head);
    let bias_f32 = elements::<F32>(&p.bias, place, head);
    let mut group = begin / MASK_BITS as i32 + lane as i32;
    while group * (MASK_BITS as i32) < end {
        let first = group * MASK_BITS as i32;
        // A bit for each key of the group that is one of `visible`'s.
        let (before, behind) = ((begin - first).max(0), (first + MASK_BITS as i32 - end).max(0));
        let mut word = 0xffff << before & 0xffff >> behind;
        if specialize::attn_mask() {
            let mask = mask.from(query, (place.first_key + first) / MASK_BITS as i32);
            word &= global::load_u16(mask.address) as u32;
        }
        if word != 0 && (specialize::bias() || has_f32_bias::<E>()) {
            let mut bit = 0;
            while bit < MASK_BITS {
                // One that is there, whether or not it is asked for: so all of them are loaded at once.
                let key = place.first_key + (first + bit as i32).min(end - 1);
                let value = if specialize::bias() {
                    E::load(bias.from(query, key).address)
                } else {
                    F32::load(bias_f32.from(query, key).address)
                };
                word &= !(((value == f32::NEG_INFINITY) as u32) << bit);
                bit += 1;
            }
        }
        if word != 0 {
            return true;
        }
        group += lanes as i32;
    }
    false
}

/// The natural score of one pair: of a product, or of a score in units of the cap, which `factor` makes
/// natural; minus infinity if the boolean mask hides it. For kernels without switches: each feature is one
/// whose tensor has an address.
///
/// # Safety
/// The tensors are as [`ScoreParams`] says, or their addresses are 0.
#[inline(always)]
pub unsafe fn score_of_pair<E: Element>(
    p: &ScoreParams,
    place: &ScorePlace,
    (query, key): (i32, i32),
    diagonal: i32,
    score: f32,
    factor: f32,
) -> f32 {
    let has_bias = p.bias.address != 0;
    let own = has_bias && p.bias_f32 == 0;
    let of_f32 = has_bias && p.bias_f32 != 0;
    let bias = E::load_if(elements::<E>(&p.bias, place, 0).from(query, key).address, own)
        + F32::load_if(elements::<F32>(&p.bias, place, 0).from(query, key).address, of_f32);
    let with_bias = math::fma(score, factor, bias);
    let mut natural = if has_bias { with_bias } else { score * factor };
    if p.alibi_slopes != 0 {
        let distance = (query + diagonal - key) as f32;
        let (score, factor) = if has_bias { (with_bias, None) } else { (score, Some(factor)) };
        natural = with_slope(score, factor, slope(p, place, 0), distance);
    }
    if p.mask.address != 0 {
        let bits = Elements::new::<2>(&p.mask, place, 0).from(query, key / MASK_BITS as i32);
        if global::load_u16(bits.address) as u32 & 1 << (key as u32 % MASK_BITS) == 0 {
            natural = f32::NEG_INFINITY;
        }
    }
    natural
}

/// The slope of ALiBi of a head of the tile.
#[inline(always)]
unsafe fn slope(p: &ScoreParams, place: &ScorePlace, head: u32) -> f32 {
    let index = place.sequence as i64 * p.alibi_batch_stride + (place.head + head) as i64;
    global::load_f32(p.alibi_slopes.wrapping_add((4 * index) as u64))
}

/// The largest slope, in units of scores, that a finite one becomes: times any distance it is finite.
pub const LARGEST_SLOPE: f32 = (1u128 << 90) as f32;

/// The slope of a head of the tile in units of scores, which are products of q and k: finite if it was.
///
/// # Safety
/// As [`add`]; there are slopes.
#[inline(always)]
pub unsafe fn slope_in_units(p: &ScoreParams, place: &ScorePlace, head: u32, unit: f32) -> f32 {
    let natural = slope(p, place, head);
    if natural.abs() < f32::INFINITY {
        math::clamp_or_nan(natural / unit, LARGEST_SLOPE)
    } else {
        natural
    }
}

/// Elements of type `B`, of a head of several.
#[inline(always)]
pub fn elements<B: Element>(view: &ScoreView, place: &ScorePlace, head: u32) -> Elements {
    if B::BYTES == 2 {
        Elements::new::<2>(view, place, head)
    } else {
        Elements::new::<4>(view, place, head)
    }
}
