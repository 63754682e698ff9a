//! A tile of the bias in shared memory: how a warp copies its own part of it there, and adds it to scores.
//!
//! Elements of a lane's scores stand two by two in rows of their own: read from global memory, each load of a
//! warp touches eight rows, and 32 bytes of each at most. Copies of 16 bytes touch few rows and no register,
//! and come beside products; `ldmatrix` then gives each lane its pairs. A warp copies and reads what is its
//! own: nobody else is waited for.

use super::features::Elements;
use super::{ScorePlace, ScoreTile, bias};
use crate::abi::ScoreParams;
use crate::arch::{async_copy, global, math, matrix, shared, thread, warp};
use crate::geometry::fragment::ldmatrix_x4;
use crate::geometry::size::TileSize;
use crate::geometry::swizzle::{CHUNK_BYTES, row_xor};
use crate::tile::element::{Element, TensorCoreElement};
use crate::tile::fragment::Fragment;
use crate::tile::shared_tile::SharedTileOf;

/// Elements of a chunk.
const CHUNK: u32 = CHUNK_BYTES / 2;
/// Bytes of a row of a panel, and its chunks.
const PANEL_BYTES: u32 = 128;
const PANEL_CHUNKS: u32 = PANEL_BYTES / CHUNK_BYTES;
/// Words that a lane reads one by one before it writes them.
const WORDS_AT_ONCE: usize = 4;

/// Where the bias of a tile of scores comes from.
pub trait BiasSource<E: Element> {
    /// `scores = scores factor + bias`, of a bias of type `E`.
    ///
    /// # Safety
    /// As [`bias::add`].
    unsafe fn add<F: Fragment<ROWS, N>, const ROWS: usize, const N: usize, const TRANSPOSED: bool>(
        &self,
        lane: u32,
        scores: &mut [f32; N],
        p: &ScoreParams,
        tile: &ScoreTile,
        place: &ScorePlace,
        factor: f32,
    );
}

/// From global memory, when it is needed.
pub struct FromGlobal;

impl<E: Element> BiasSource<E> for FromGlobal {
    #[inline(always)]
    unsafe fn add<F: Fragment<ROWS, N>, const ROWS: usize, const N: usize, const TRANSPOSED: bool>(
        &self,
        lane: u32,
        scores: &mut [f32; N],
        p: &ScoreParams,
        tile: &ScoreTile,
        place: &ScorePlace,
        factor: f32,
    ) {
        bias::add::<E, F, ROWS, N, TRANSPOSED>(lane, scores, p, tile, place, factor);
    }
}

/// A warp's part of a tile whose rows are queries and columns keys: all keys of 16 queries, or 16 keys of all
/// queries.
#[derive(Clone, Copy)]
pub struct WarpBias {
    /// Shared address of its first row in the first panel that it has a part of.
    address: u32,
    /// From one panel to the next.
    panel_bytes: u32,
    /// Its first chunk of that panel: one of 0, 2, 4 and 6.
    chunk: u32,
}

/// What of the bias a warp copies.
#[derive(Clone, Copy)]
pub struct BiasPart {
    /// From the first query and the first key on; elements of 16 bits.
    pub elements: Elements,
    /// Queries that there are from there on.
    pub queries: i32,
    /// Keys that there are from there on.
    pub keys: i32,
}

impl WarpBias {
    /// Queries `row..row + 16` of a tile.
    #[inline(always)]
    pub fn of_queries<S: TileSize>(tile: SharedTileOf<S>, row: u32) -> Self {
        const { assert!(S::ROW_BYTES.is_multiple_of(PANEL_BYTES)) };
        let address = tile.address + row * PANEL_BYTES;
        WarpBias { address, panel_bytes: S::ROWS * PANEL_BYTES, chunk: 0 }
    }

    /// Keys `key..key + 16` of a tile.
    #[inline(always)]
    pub fn of_keys<S: TileSize>(tile: SharedTileOf<S>, key: u32) -> Self {
        let panel = tile.panel(key / (PANEL_BYTES / 2));
        let chunk = key / CHUNK % PANEL_CHUNKS;
        WarpBias { address: panel.address, panel_bytes: S::ROWS * PANEL_BYTES, chunk }
    }

    /// The address of a chunk.
    #[inline(always)]
    fn address(self, row: u32, chunk: u32) -> u32 {
        let (panel, chunk) = (chunk / PANEL_CHUNKS, chunk % PANEL_CHUNKS);
        let in_row = (chunk ^ row_xor(PANEL_BYTES, row)) * CHUNK_BYTES;
        self.address + panel * self.panel_bytes + row * PANEL_BYTES + in_row
    }

    /// Starts to copy `part` there, `rows` rows of `CHUNKS` chunks, and zeros in place of what there is
    /// not; it has come when [`BiasSource::add`] asks for it.
    ///
    /// # Safety
    /// All 32 lanes call it together; nobody else uses the memory; the bias is as [`ScoreParams`] says.
    #[inline(always)]
    pub unsafe fn fetch<const CHUNKS: u32>(
        self,
        lane: u32,
        rows: u32,
        p: &ScoreParams,
        part: &BiasPart,
    ) {
        // What other lanes have read of it, or of what stood there.
        warp::warp_sync();
        let keys = part.keys;
        let ends_in_a_chunk = keys % CHUNK as i32 != 0 && keys < (CHUNKS * CHUNK) as i32;
        if part.elements.are_in_chunks() && !ends_in_a_chunk {
            self.copy::<CHUNKS>(lane, rows, part);
        } else {
            self.read::<CHUNKS>(lane, rows, p, part);
        }
    }

    /// [`WarpBias::fetch`] of rows that are whole chunks.
    #[inline(always)]
    unsafe fn copy<const CHUNKS: u32>(self, lane: u32, rows: u32, part: &BiasPart) {
        let rows_at_once = const { 32 / CHUNKS };
        let (row, chunk) = (lane / CHUNKS, lane % CHUNKS);
        let is_there = ((chunk * CHUNK) as i32) < part.keys;
        let to = self.address(row, self.chunk + chunk);
        let mut from = part.elements.query(row).wrapping_add((chunk * CHUNK_BYTES) as u64);
        let step = part.elements.query(rows_at_once).wrapping_sub(part.elements.address);
        let mut further = 0;
        while further < rows {
            // Panels begin at multiples of 1024 bytes: what chunks of other rows are XORed with changes
            // bits of the address.
            let swizzle = row_xor(PANEL_BYTES, further) * CHUNK_BYTES;
            let whole = is_there && ((row + further) as i32) < part.queries;
            async_copy::copy16_or_zeros((to ^ swizzle) + further * PANEL_BYTES, from, whole);
            from = from.wrapping_add(step);
            further += rows_at_once;
        }
    }

    /// [`WarpBias::fetch`] element by element, or by pairs.
    #[inline(always)]
    unsafe fn read<const CHUNKS: u32>(self, lane: u32, rows: u32, p: &ScoreParams, part: &BiasPart) {
        let words_of_row = const { CHUNKS * CHUNK / 2 };
        let place = |word: u32| (word / words_of_row, word % words_of_row);
        let mut first = lane;
        while first < thread::opaque(rows * words_of_row) {
            let mut words = [0; WORDS_AT_ONCE];
            let mut i = 0;
            while i < WORDS_AT_ONCE {
                let (row, pair) = place(first + 32 * i as u32);
                let left = if (row as i32) < part.queries { part.keys - 2 * pair as i32 } else { 0 };
                let low = part.elements.from(row as i32, 2 * pair as i32);
                words[i] = if p.bias_in_pairs != 0 && left > 1 {
                    global::load_u32(low.address)
                } else {
                    let second = global::load_u16_if(low.key(1), left > 1);
                    global::load_u16_if(low.address, left > 0) as u32 | (second as u32) << 16
                };
                i += 1;
            }
            let mut i = 0;
            while i < WORDS_AT_ONCE {
                let (row, pair) = place(first + 32 * i as u32);
                let chunk = self.address(row, self.chunk + pair / (CHUNK / 2));
                shared::store_u32(chunk + pair % (CHUNK / 2) * 4, words[i]);
                i += 1;
            }
            first += 32 * WORDS_AT_ONCE as u32;
        }
    }

    /// All lanes have read it: what stands there next may be written by others.
    ///
    /// # Safety
    /// All 32 lanes call it together.
    #[inline(always)]
    unsafe fn let_go(self) {
        warp::warp_sync();
    }

    /// Four 8 x 8 matrices, those of 16 columns of scores from `16 index` on: of a lane's first row the first
    /// and the third, of its second row the others.
    #[inline(always)]
    unsafe fn matrices<const TRANSPOSED: bool>(self, lane: u32, index: u32) -> [u32; 4] {
        if TRANSPOSED {
            let (row, chunk) = ldmatrix_x4::chunks_first(lane);
            let first = self.address(row, self.chunk + chunk);
            return matrix::load_matrix_x4_transposed(first + index * 16 * PANEL_BYTES);
        }
        let (row, chunk) = ldmatrix_x4::rows_first(lane);
        let (panel, further) = (2 * index / PANEL_CHUNKS, 2 * index % PANEL_CHUNKS);
        let first = self.address(row, chunk) ^ further * CHUNK_BYTES;
        matrix::load_matrix_x4(first + panel * self.panel_bytes)
    }
}

/// From shared memory, where it has come: the warp has waited for what [`WarpBias::fetch`] started, and its
/// lanes for each other.
impl<E: TensorCoreElement> BiasSource<E> for WarpBias {
    #[inline(always)]
    unsafe fn add<F: Fragment<ROWS, N>, const ROWS: usize, const N: usize, const TRANSPOSED: bool>(
        &self,
        lane: u32,
        scores: &mut [f32; N],
        _: &ScoreParams,
        _: &ScoreTile,
        _: &ScorePlace,
        factor: f32,
    ) {
        const { assert!(F::PAIRED && ROWS == 2) };
        let mut index = 0;
        while index < N / 8 {
            let four = self.matrices::<TRANSPOSED>(lane, index as u32);
            let mut i = 0;
            while i < 4 {
                let (row, column) = (i % 2, 4 * index + i / 2 * 2);
                let (first, second) = (F::register(row, column), F::register(row, column + 1));
                let (even, odd) = E::unpack(four[i]);
                scores[first] = math::fma(scores[first], factor, even);
                scores[second] = math::fma(scores[second], factor, odd);
                i += 1;
            }
            index += 1;
        }
    }
}

/// From shared memory if there is room for it, where [`WarpBias::fetch`] has had it brought.
impl<E: TensorCoreElement> BiasSource<E> for Option<WarpBias> {
    #[inline(always)]
    unsafe fn add<F: Fragment<ROWS, N>, const ROWS: usize, const N: usize, const TRANSPOSED: bool>(
        &self,
        lane: u32,
        scores: &mut [f32; N],
        p: &ScoreParams,
        tile: &ScoreTile,
        place: &ScorePlace,
        factor: f32,
    ) {
        let Some(part) = self else {
            bias::add::<E, F, ROWS, N, TRANSPOSED>(lane, scores, p, tile, place, factor);
            return;
        };
        async_copy::wait_all();
        warp::warp_sync();
        BiasSource::<E>::add::<F, ROWS, N, TRANSPOSED>(part, lane, scores, p, tile, place, factor);
        part.let_go();
    }
}
