//! Operands of multiplications in shared memory, widened to f32 and kept while their bytes stay.

use super::descriptor::{Descriptor, PIECE, PIECE_BYTES};
use crate::exec::ops::half::{Bfloat, Format, Half};
use crate::isa::{WGMMA_K, WgmmaType};
use crate::memory::SHARED_BASE;
use crate::memory::shared::{PAGE_BYTES, SharedMemory};
use std::collections::HashMap;
use std::rc::Rc;

/// What identifies an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    pub descriptor: u64,
    pub rows: u32,
    pub transposed: bool,
    pub half: bool,
}

impl Key {
    pub fn new(descriptor: u64, rows: u32, transposed: bool, ty: WgmmaType) -> Self {
        Key { descriptor, rows, transposed, half: ty == WgmmaType::F16 }
    }
}

/// An operand.
#[derive(Debug)]
pub struct Tile {
    /// Addresses of its pieces.
    pub pieces: Rc<[u32]>,
    /// Address of its first byte, and of that behind its last.
    pub hull: [u32; 2],
    /// The pages of shared memory that they lie in.
    pages: Vec<u32>,
    /// The version of the pages at the last packing.
    version: u64,
    /// Values, `row * 16 + k`; empty before the first packing.
    values: Vec<f32>,
    /// Values of B in the order of the accumulators; see [`super::multiply`].
    pub packed: Vec<f32>,
}

/// The operands that a block has used.
#[derive(Debug, Default)]
pub struct Tiles {
    places: HashMap<Key, usize>,
    tiles: Vec<Tile>,
}

impl Tiles {
    /// Forgets everything, for the next block.
    pub fn clear(&mut self) {
        self.tiles.iter_mut().for_each(|tile| tile.version = u64::MAX);
    }

    /// The place of an operand; an error is the address of the first piece outside shared memory.
    pub fn find(&mut self, key: Key, shared: &SharedMemory) -> Result<usize, u32> {
        if let Some(&place) = self.places.get(&key) {
            return Ok(place);
        }
        let pieces: Rc<[u32]> =
            Descriptor::decode(key.descriptor).pieces(key.rows, key.transposed).into();
        let end = SHARED_BASE + shared.bytes() as u32;
        let outside = |&&piece: &&u32| piece < SHARED_BASE || piece + PIECE_BYTES > end;
        if let Some(&piece) = pieces.iter().find(outside) {
            return Err(piece);
        }
        let mut pages: Vec<u32> =
            pieces.iter().map(|piece| (piece - SHARED_BASE) / PAGE_BYTES as u32).collect();
        pages.sort_unstable();
        pages.dedup();
        let (first, last) = (pieces.iter().min(), pieces.iter().max());
        let hull = [first.map_or(end, |&first| first), last.map_or(end, |last| last + PIECE_BYTES)];
        let (values, packed) = (Vec::new(), Vec::new());
        self.tiles.push(Tile { pieces, hull, pages, version: u64::MAX, values, packed });
        self.places.insert(key, self.tiles.len() - 1);
        Ok(self.tiles.len() - 1)
    }

    /// An operand.
    pub fn get(&self, place: usize) -> &Tile {
        &self.tiles[place]
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
            if key.half {
                tile.read::<Half>(key, shared)
            } else {
                tile.read::<Bfloat>(key, shared)
            }
            pack(&tile.values, &mut tile.packed);
        }
        if tile.packed.is_empty() { &tile.values } else { &tile.packed }
    }
}

impl Tile {
    #[inline(always)]
    fn read<T: Format>(&mut self, key: Key, shared: &mut SharedMemory) {
        let data = shared.data();
        let per_line = if key.transposed { key.rows as usize / PIECE } else { WGMMA_K / PIECE };
        for (index, &piece) in self.pieces.iter().enumerate() {
            // SAFETY: `find` checked that the piece lies in shared memory.
            let halves = unsafe {
                data.add((piece - SHARED_BASE) as usize).cast::<[u16; PIECE]>().read_unaligned()
            };
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
