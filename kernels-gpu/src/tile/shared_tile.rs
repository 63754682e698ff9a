//! A tile in shared memory, swizzled (see [`crate::geometry::swizzle`]), and how it is filled from
//! global memory.

use super::element::{Element, TensorCoreElement};
use super::global_rows::GlobalRows;
use crate::arch::{async_copy, global, math, shared, thread};
use crate::geometry::size::{Size, TileSize};
use crate::geometry::swizzle::{CHUNK_BYTES, chunk_offset, panel_bytes, row_xor};
use core::marker::PhantomData;

/// A tile of the size `S` at a shared-memory address that is a multiple of 1024.
#[derive(Clone, Copy)]
pub struct SharedTileOf<S: TileSize> {
    /// Shared-memory address.
    pub address: u32,
    size: PhantomData<S>,
}

/// A tile whose size is written out: `ROWS` rows of `ROW_BYTES` bytes.
pub type SharedTile<const ROWS: u32, const ROW_BYTES: u32> = SharedTileOf<Size<ROWS, ROW_BYTES>>;

/// The size of a panel of a tile of the size `S`, where that has panels of 128 bytes.
#[derive(Clone, Copy)]
pub struct Panel<S>(PhantomData<S>);

impl<S: TileSize> TileSize for Panel<S> {
    const ROWS: u32 = S::ROWS;
    const ROW_BYTES: u32 = 128;
}

impl<S: TileSize> SharedTileOf<S> {
    /// Bytes of the tile.
    pub const BYTES: u32 = S::ROWS * S::ROW_BYTES;
    const PANEL: u32 = panel_bytes(S::ROW_BYTES);
    const CHUNKS: u32 = panel_bytes(S::ROW_BYTES) / CHUNK_BYTES;

    /// The tile at shared address `address`.
    #[inline(always)]
    pub fn at(address: u32) -> Self {
        SharedTileOf { address, size: PhantomData }
    }

    /// Address of chunk `chunk` of row `row`.
    #[inline(always)]
    pub fn chunk(self, row: u32, chunk: u32) -> u32 {
        self.address + chunk_offset(S::ROWS, S::ROW_BYTES, row, chunk)
    }

    /// Address of chunk `chunk` of row `8 eight + row`, for a row below 8. The swizzle repeats every 8 rows:
    /// addresses of different constants `eight` differ by constants, which loads and stores take as they are.
    #[inline(always)]
    pub fn chunk_in_eight(self, eight: u32, row: u32, chunk: u32) -> u32 {
        self.chunk(row, chunk) + eight * 8 * Self::PANEL
    }

    /// Panel `index` as a tile of its own.
    #[inline(always)]
    pub fn panel(self, index: u32) -> SharedTileOf<Panel<S>> {
        const { assert!(panel_bytes(S::ROW_BYTES) == 128) };
        SharedTileOf::at(self.address + index * S::ROWS * 128)
    }

    /// Fills the tile from `source`, rows and columns outside of it with zeros; nothing outside is read.
    ///
    /// `VECTOR`: rows start on 16-byte boundaries, and the copy is asynchronous: done after
    /// [`async_copy::wait`] and a barrier. Otherwise elements are read one by one, and the tile is
    /// done after a barrier.
    ///
    /// # Safety
    /// All `THREADS` threads of the block call it, `thread` is the caller's index; the tile is not in
    /// use.
    #[inline(always)]
    pub unsafe fn load<E: Element, const THREADS: u32, const VECTOR: bool>(
        self,
        thread: u32,
        source: &GlobalRows,
    ) {
        let (row, chunk) = (thread / Self::CHUNKS, thread % Self::CHUNKS);
        let step = THREADS / Self::CHUNKS;
        // step is a multiple of 8: the swizzle of a thread's rows is that of its first.
        let target =
            self.address + row * Self::PANEL + (chunk ^ row_xor(Self::PANEL, row)) * CHUNK_BYTES;
        let row_bytes = source.columns * E::BYTES;
        let (whole_chunks, rest) = (row_bytes / CHUNK_BYTES, row_bytes % CHUNK_BYTES);
        let step_bytes = step as i64 * source.row_bytes;
        let mut from = source.row(row as i32).wrapping_add((chunk * CHUNK_BYTES) as u64);
        let mut pass = 0;
        while pass < S::ROWS / step {
            let row_is_valid = ((row + pass * step) as i32) < source.rows;
            let mut panel = 0;
            while panel < S::ROW_BYTES / Self::PANEL {
                let to = target + (panel * S::ROWS + pass * step) * Self::PANEL;
                let from = from.wrapping_add((panel * Self::PANEL) as u64);
                let this_chunk = panel * Self::CHUNKS + chunk;
                if VECTOR {
                    let whole = row_is_valid && this_chunk < whole_chunks;
                    async_copy::copy16_if(to, from, whole, rest == 0 || this_chunk != whole_chunks);
                } else {
                    let left = row_bytes as i32 - (this_chunk * CHUNK_BYTES) as i32;
                    let bytes = if left < 0 || !row_is_valid { 0 } else { left as u32 };
                    shared::store_u32x4(to, load_elements::<E>(from, bytes));
                }
                panel += 1;
            }
            from = from.wrapping_add(step_bytes as u64);
            pass += 1;
        }
        if VECTOR && rest != 0 {
            self.load_last_chunks::<E, THREADS>(thread, source, whole_chunks, rest);
        }
    }

    /// Fills chunk `chunk` of every row, of which `bytes` are valid, element by element.
    #[inline(always)]
    unsafe fn load_last_chunks<E: Element, const THREADS: u32>(
        self,
        thread: u32,
        source: &GlobalRows,
        chunk: u32,
        bytes: u32,
    ) {
        let mut row = thread;
        while row < thread::opaque(S::ROWS) {
            let from = source.row(row as i32).wrapping_add((chunk * CHUNK_BYTES) as u64);
            let bytes = if (row as i32) < source.rows { bytes } else { 0 };
            shared::store_u32x4(self.chunk(row, chunk), load_elements::<E>(from, bytes));
            row += THREADS;
        }
    }

    /// The largest absolute value of this thread's share of the tile; 0 for a share of NaN.
    ///
    /// # Safety
    /// The tile is written and visible; `thread` is below `THREADS`.
    #[inline(always)]
    pub unsafe fn largest<E: TensorCoreElement, const THREADS: u32>(self, thread: u32) -> f32 {
        let mut largest = 0.0;
        let mut offset = thread * CHUNK_BYTES;
        while offset < thread::opaque(Self::BYTES) {
            let words = shared::load_u32x4(self.address + offset);
            let mut i = 0;
            while i < 4 {
                let (low, high) = E::unpack(words[i]);
                largest = math::max(largest, math::max(low.abs(), high.abs()));
                i += 1;
            }
            offset += THREADS * CHUNK_BYTES;
        }
        largest
    }

    /// Multiplies every element of rows `first..first + count` by `factor`; for factors -1, 0 and 1,
    /// which are exact.
    ///
    /// # Safety
    /// One warp calls it, for rows that no other warp uses.
    #[inline(always)]
    pub unsafe fn scale_rows<E: Element>(self, lane: u32, first: u32, count: u32, factor: f32) {
        let mut panel = 0;
        while panel < S::ROW_BYTES / Self::PANEL {
            let mut offset = lane * CHUNK_BYTES;
            while offset < count * Self::PANEL {
                let address = self.address + (panel * S::ROWS + first) * Self::PANEL + offset;
                let words = shared::load_u32x4(address);
                let scaled = words.map(|word| E::scale_word(word, factor));
                shared::store_u32x4(address, scaled);
                offset += 32 * CHUNK_BYTES;
            }
            panel += 1;
        }
    }
}

/// The first `bytes` bytes at `address`, element by element, then zeros.
#[inline(always)]
unsafe fn load_elements<E: Element>(address: u64, bytes: u32) -> [u32; 4] {
    let mut words = [0; 4];
    let mut i = 0;
    while i < 4 {
        let at = address.wrapping_add(4 * i as u64);
        let first = 4 * i as u32;
        words[i] = if E::BYTES == 4 {
            global::load_u32_if(at, first < bytes)
        } else {
            let low = global::load_u16_if(at, first < bytes);
            let high = global::load_u16_if(at.wrapping_add(2), first + 2 < bytes);
            low as u32 | (high as u32) << 16
        };
        i += 1;
    }
    words
}
