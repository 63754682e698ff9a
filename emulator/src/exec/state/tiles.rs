//! Operands of multiplications in shared memory, widened to f32 and kept while their bytes stay.

use super::cluster::Cluster;
use super::descriptor::{Descriptor, PIECE, PIECE_BYTES};
use crate::exec::values::half::{Bfloat, Format, Half};
use crate::isa::{MatrixType, WGMMA_K};
use crate::memory::shared::{PAGE_BYTES, SharedMemory};
use crate::space::SHARED_BASE;
use crate::unaligned;
use foldhash::fast::FixedState;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// What identifies an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    pub descriptor: u64,
    pub rows: u32,
    pub transposed: bool,
    pub ty: MatrixType,
    /// The rank of the block.
    pub rank: u32,
    /// k, of 16 bits.
    pub k: u32,
}

impl Key {
    pub fn new(descriptor: u64, rows: u32, transposed: bool, (ty, rank): (MatrixType, u32)) -> Self {
        Key { descriptor, rows, transposed, ty, rank, k: WGMMA_K as u32 }
    }

    /// With twice as much of k: B, where A is sparse.
    pub fn wide(self, is_wide: bool) -> Self {
        Key { k: (WGMMA_K as u32) << u32::from(is_wide), ..self }
    }
}

/// An operand.
#[derive(Debug)]
pub struct Tile {
    /// Addresses of its pieces, as if the cluster's shared memory were that of one block.
    pieces: Vec<u32>,
    /// The ranges of shared memory that they make up, by offset.
    pub ranges: Arc<[Range<u32>]>,
    /// The offset of its first byte, and of that behind its last.
    pub hull: [u32; 2],
    /// The pages of shared memory that they lie in.
    pages: Vec<u32>,
    /// The version of the pages at the last packing.
    version: u64,
    /// Values, `row * 16 + k`; empty before the first packing.
    values: Vec<f32>,
    /// Values of B in the order of the accumulators; see
    /// `exec::actors::wgmma::multiply`.
    pub packed: Vec<f32>,
}

/// The operands that a block has used.
#[derive(Debug, Default)]
pub struct Tiles {
    places: HashMap<Key, usize, FixedState>,
    tiles: Vec<Tile>,
}

impl Tiles {
    /// Forgets everything, for the next block.
    pub fn clear(&mut self) {
        self.tiles.iter_mut().for_each(|tile| tile.version = u64::MAX);
    }

    /// The place of an operand; an error is the address of the first piece outside the block's shared memory.
    pub fn find(&mut self, key: Key, cluster: &Cluster) -> Result<usize, u32> {
        if let Some(&place) = self.places.get(&key) {
            return Ok(place);
        }
        let mut pieces = Descriptor::decode(key.descriptor).pieces(key.rows, key.k, key.transposed);
        let end = SHARED_BASE + cluster.bytes;
        let outside = |&&piece: &&u32| piece < SHARED_BASE || piece + PIECE_BYTES > end;
        if let Some(&piece) = pieces.iter().find(outside) {
            return Err(piece);
        }
        pieces.iter_mut().for_each(|piece| *piece += cluster.start(key.rank));
        let mut pages: Vec<u32> =
            pieces.iter().map(|piece| (piece - SHARED_BASE) / PAGE_BYTES as u32).collect();
        pages.sort_unstable();
        pages.dedup();
        let (first, last) = (pieces.iter().min(), pieces.iter().max());
        let hull = [first.map_or(end, |&first| first), last.map_or(end, |last| last + PIECE_BYTES)];
        let hull = hull.map(|address| address - SHARED_BASE);
        let (values, packed) = (Vec::new(), Vec::new());
        let ranges = ranges(&pieces).into();
        self.tiles.push(Tile { pieces, ranges, hull, pages, version: u64::MAX, values, packed });
        self.places.insert(key, self.tiles.len() - 1);
        Ok(self.tiles.len() - 1)
    }

    /// An operand.
    pub fn get(&self, place: usize) -> &Tile {
        &self.tiles[place]
    }

    /// The elements of an operand, of so many bits each and k of them in a row, as shared memory has them
    /// now: `row * k + k`.
    pub fn elements(
        &self,
        place: usize,
        transposed: bool,
        (k, bits): (usize, usize),
        shared: &mut SharedMemory,
    ) -> Vec<u64> {
        let pieces = &self.tiles[place].pieces;
        let in_piece = PIECE_BYTES as usize * 8 / bits;
        let rows = pieces.len() * in_piece / k;
        let per_line = if transposed { rows / PIECE } else { k / in_piece };
        let data = shared.data();
        let mut values = vec![0; rows * k];
        for (index, &piece) in pieces.iter().enumerate() {
            // SAFETY: `find` checked that the piece lies in shared memory.
            let word: u128 = unsafe { unaligned::read(data.add((piece - SHARED_BASE) as usize)) };
            let (line, along) = (index / per_line, index % per_line * in_piece);
            for element in 0..in_piece {
                let value = (word >> (element * bits)) as u64 & ((1 << bits) - 1);
                // Transposed are 16-bit types alone, whose pieces have as many rows as values of k.
                let at =
                    if transposed { (along + element) * k + line } else { line * k + along + element };
                values[at] = value;
            }
        }
        values
    }

    /// An operand with the values that shared memory has now. `pack` rearranges new ones.
    #[inline(always)]
    pub fn load(
        &mut self,
        place: usize,
        key: Key,
        shared: &mut SharedMemory,
        pack: impl FnOnce(&[f32], &mut Vec<f32>),
    ) -> &[f32] {
        let tile = &mut self.tiles[place];
        let version = shared.version(&tile.pages);
        if tile.version != version || tile.values.is_empty() {
            tile.version = version;
            tile.values.resize(key.rows as usize * WGMMA_K, 0.0);
            if key.ty == MatrixType::F16 {
                tile.read::<Half>(key, shared)
            } else {
                tile.read::<Bfloat>(key, shared)
            }
            pack(&tile.values, &mut tile.packed);
        }
        if tile.packed.is_empty() { &tile.values } else { &tile.packed }
    }
}

/// Pieces that follow on each other, together; pieces that come more than once, once.
fn ranges(pieces: &[u32]) -> Vec<Range<u32>> {
    let mut sorted = pieces.to_vec();
    sorted.sort_unstable();
    let mut ranges: Vec<Range<u32>> = Vec::new();
    for first in sorted.into_iter().map(|piece| piece - SHARED_BASE) {
        let end = first + PIECE_BYTES;
        match ranges.last_mut().filter(|last| first <= last.end) {
            Some(last) => last.end = end,
            None => ranges.push(first..end),
        }
    }
    ranges
}

impl Tile {
    #[inline(always)]
    fn read<T: Format>(&mut self, key: Key, shared: &mut SharedMemory) {
        let data = shared.data();
        let per_line = if key.transposed { key.rows as usize / PIECE } else { WGMMA_K / PIECE };
        for (index, &piece) in self.pieces.iter().enumerate() {
            // SAFETY: `find` checked that the piece lies in shared memory.
            let halves: [u16; PIECE] =
                unsafe { unaligned::read(data.add((piece - SHARED_BASE) as usize)) };
            let (line, along) = (index / per_line, index % per_line * PIECE);
            for (element, &half) in halves.iter().enumerate() {
                let value = T::from_bits(half).to_f32();
                let at = if key.transposed {
                    (along + element) * WGMMA_K + line
                } else {
                    line * WGMMA_K + along + element
                };
                self.values[at] = value;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows of 128 bytes, whose pieces are exchanged, from the start of shared memory on.
    fn swizzled(start: u32) -> Descriptor {
        let stride = 1024 >> 4 << 32;
        Descriptor::decode(u64::from((SHARED_BASE + start) >> 4) | stride | 1 << 62)
    }

    #[test]
    fn pieces_that_follow_on_each_other_are_one_range() {
        // Sixteen of k are 32 bytes, whichever way the two halves are exchanged.
        let found = ranges(&swizzled(0).pieces(8, 16, false));
        let start = |row: u32| row * 128 + (row / 2 * 32);
        assert_eq!(found, (0..8).map(|row| start(row)..start(row) + 32).collect::<Vec<_>>());
        // Along the rows whole lines belong together, and these are neighbours.
        let whole = ranges(&swizzled(2048).pieces(64, 16, true));
        assert_eq!((whole.len(), &whole[0]), (1, &(2048..4096)));
        assert_eq!(
            ranges(&[1, 1, 0, 3].map(|piece| SHARED_BASE + piece * PIECE_BYTES)),
            [0..32, 48..64]
        );
    }
}
