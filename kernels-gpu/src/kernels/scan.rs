//! What is in a tensor: how many elements are not finite, the first of them, and the sum of squares; elements
//! can be multiplied on the way.
//!
//! One pass at the speed of memory: the test of an element is a multiplication by 0, whose sum is NaN if any
//! of a group is not finite, and only then elements are looked at one by one. The order of all additions
//! depends on the launch alone. A block leaves a record, and the host adds these up in their order.

use crate::abi::{SCAN_GROUP_BYTES, SCAN_PIECES, SCAN_THREADS, ScanParams};
use crate::arch::{barrier, global, math, shared, thread, warp};
use crate::tile::element::{self, Element, TensorCoreElement};

/// Pieces that a lane has in flight, as an index.
const PIECES: usize = SCAN_PIECES as usize;
/// Bytes of the record of a block, and of a warp in shared memory.
const RECORD_BYTES: u32 = 32;
/// The bits of an f32 without its sign: infinity, beyond which is NaN.
const INFINITY_BITS: u32 = 0x7f80_0000;

/// An element type, by 32-bit words.
trait Words: Element {
    /// Elements of a word.
    const PER_WORD: u32 = 4 / Self::BYTES;
    /// The elements of a word; the second one is 0 where there is one only.
    fn values(word: u32) -> (f32, f32);
    /// A word of elements, rounded to nearest even.
    fn word(low: f32, high: f32) -> u32;
    /// An element that this thread may write later.
    unsafe fn read(address: u64) -> f32;
}

macro_rules! narrow {
    ($type:ident) => {
        impl Words for element::$type {
            #[inline(always)]
            fn values(word: u32) -> (f32, f32) {
                <Self as TensorCoreElement>::unpack(word)
            }

            #[inline(always)]
            fn word(low: f32, high: f32) -> u32 {
                <Self as TensorCoreElement>::pack(low, high)
            }

            #[inline(always)]
            unsafe fn read(address: u64) -> f32 {
                Self::values(global::load_written_u16(address) as u32).0
            }
        }
    };
}
narrow!(Bf16);
narrow!(F16);

impl Words for element::F32 {
    #[inline(always)]
    fn values(word: u32) -> (f32, f32) {
        (f32::from_bits(word), 0.0)
    }

    #[inline(always)]
    fn word(low: f32, _high: f32) -> u32 {
        low.to_bits()
    }

    #[inline(always)]
    unsafe fn read(address: u64) -> f32 {
        global::load_written_f32(address)
    }
}

/// What a thread has found.
struct Found {
    squares: f32,
    nan: u32,
    positive_infinity: u32,
    negative_infinity: u32,
    first: u64,
}

impl Found {
    /// Counts an element, if it is not finite.
    #[inline(always)]
    fn look(&mut self, p: &ScanParams, value: f32, index: u64) {
        let bits = value.to_bits();
        let size = bits & !(1 << 31);
        if size < INFINITY_BITS {
            return;
        }
        if size > INFINITY_BITS {
            self.nan += 1;
        } else if bits == size {
            self.positive_infinity += 1;
        } else if p.allows_negative_infinity == 0 {
            self.negative_infinity += 1;
        } else {
            return;
        }
        if index < self.first {
            self.first = index;
        }
    }

    /// Adds the square of a product.
    #[inline(always)]
    fn add(&mut self, p: &ScanParams, product: f32) {
        let scaled = product * p.unit;
        self.squares = math::fma(scaled, scaled, self.squares);
    }
}

/// Some groups of rows: where the lane reads.
#[derive(Clone, Copy)]
struct Group {
    address: u64,
    /// Index of its first element in the tensor.
    index: u64,
    /// Elements that it has.
    elements: u32,
}

/// The group of a lane in piece `piece` of the tensor.
#[inline(always)]
unsafe fn group<E: Words>(p: &ScanParams, piece: u32, lane: u32) -> Group {
    let per_group = SCAN_GROUP_BYTES / E::BYTES;
    let row = if p.rows == 1 { 0 } else { math::divide(piece, p.row_pieces) };
    let column = ((((piece - row * p.row_pieces) << p.piece_groups_log2) as u64) + lane as u64)
        * per_group as u64;
    let mut offset = column as i64 * p.strides[3];
    if p.rows != 1 {
        let outer = math::divide(row, p.sizes[1]);
        let first = math::divide(outer, p.sizes[0]);
        offset += first as i64 * p.strides[0]
            + (outer - first * p.sizes[0]) as i64 * p.strides[1]
            + (row - outer * p.sizes[1]) as i64 * p.strides[2];
    }
    let rest = if row < p.rows && column < p.columns { p.columns - column } else { 0 };
    let elements = if rest < per_group as u64 { rest as u32 } else { per_group };
    Group {
        address: p.address.wrapping_add((offset * E::BYTES as i64) as u64),
        index: row as u64 * p.columns + column,
        elements,
    }
}

/// Four words of a group that is all there.
#[inline(always)]
unsafe fn whole<E: Words>(p: &ScanParams, group: &Group, words: [u32; 4], found: &mut Found) {
    let mut products = [0; 4];
    let mut test = 0.0;
    let mut i = 0;
    while i < 4 {
        let (low, high) = E::values(words[i]);
        test = math::fma(low, 0.0, test);
        let (mut a, mut b) = (low * p.factor, 0.0);
        if E::PER_WORD == 2 {
            test = math::fma(high, 0.0, test);
            b = high * p.factor;
        }
        if p.writes != 0 {
            // What is written, not what it was rounded from.
            products[i] = E::word(a, b);
            (a, b) = E::values(products[i]);
        }
        found.add(p, a);
        if E::PER_WORD == 2 {
            found.add(p, b);
        }
        i += 1;
    }
    if p.writes != 0 {
        global::store_u32x4(group.address, products);
    }
    // NaN is not equal to anything.
    if test != 0.0 {
        let mut i = 0;
        while i < 4 {
            let (low, high) = E::values(words[i]);
            let index = group.index + i as u64 * E::PER_WORD as u64;
            found.look(p, low, index);
            if E::PER_WORD == 2 {
                found.look(p, high, index + 1);
            }
            i += 1;
        }
    }
}

/// A group element by element.
#[inline(always)]
unsafe fn ragged<E: Words>(p: &ScanParams, group: &Group, found: &mut Found) {
    let step = (p.strides[3] * E::BYTES as i64) as u64;
    let mut address = group.address;
    let mut i = 0;
    while i < thread::opaque(group.elements) {
        let value = E::read(address);
        found.look(p, value, group.index + i as u64);
        let mut product = value * p.factor;
        if p.writes != 0 {
            E::store(address, product);
            product = E::values(E::word(product, 0.0)).0;
        }
        found.add(p, product);
        address = address.wrapping_add(step);
        i += 1;
    }
}

/// The sum over the warp, in all lanes, of counts that are below 2^32 together.
#[inline(always)]
unsafe fn warp_count(mut count: u32) -> u32 {
    let mut mask = 16;
    while mask > 0 {
        count += warp::exchange(count, mask);
        mask /= 2;
    }
    count
}

/// The least of the warp, in all lanes.
#[inline(always)]
unsafe fn warp_first(mut first: u64) -> u64 {
    let mut mask = 16;
    while mask > 0 {
        let (low, high) =
            (warp::exchange(first as u32, mask), warp::exchange((first >> 32) as u32, mask));
        let other = (high as u64) << 32 | low as u64;
        if other < first {
            first = other;
        }
        mask /= 2;
    }
    first
}

#[inline(always)]
unsafe fn scan<E: Words>(p: &ScanParams) {
    let (lane, own_warp) = (thread::thread_idx_x() % 32, thread::thread_idx_x() / 32);
    let warps = thread::grid_dim_x() * (SCAN_THREADS / 32);
    let side = lane >> p.piece_groups_log2;
    let sides = 32 >> p.piece_groups_log2;
    let in_piece = lane - (side << p.piece_groups_log2);
    let mut found =
        Found { squares: 0.0, nan: 0, positive_infinity: 0, negative_infinity: 0, first: u64::MAX };
    let mut step = thread::block_idx_x() * (SCAN_THREADS / 32) + own_warp;
    while step < p.steps {
        let mut groups = [Group { address: 0, index: 0, elements: 0 }; PIECES];
        let mut words = [[0; 4]; PIECES];
        let mut i = 0;
        while i < PIECES {
            groups[i] = group::<E>(p, (step * SCAN_PIECES + i as u32) * sides + side, in_piece);
            let is_whole = p.is_aligned != 0 && groups[i].elements == SCAN_GROUP_BYTES / E::BYTES;
            words[i] = global::load_written_u32x4_if(groups[i].address, is_whole);
            i += 1;
        }
        i = 0;
        while i < PIECES {
            if p.is_aligned != 0 && groups[i].elements == SCAN_GROUP_BYTES / E::BYTES {
                whole::<E>(p, &groups[i], words[i], &mut found);
            } else {
                ragged::<E>(p, &groups[i], &mut found);
            }
            i += 1;
        }
        step += warps;
    }
    leave(&found, p.records, lane, own_warp);
}

/// Adds up what the threads of a block have found, in the order of lanes and warps, and writes the record.
#[inline(always)]
unsafe fn leave(found: &Found, records: u64, lane: u32, own_warp: u32) {
    let squares = warp::sum(found.squares);
    let nan = warp_count(found.nan);
    let positive_infinity = warp_count(found.positive_infinity);
    let negative_infinity = warp_count(found.negative_infinity);
    let first = warp_first(found.first);
    let base = shared::dynamic_base();
    if lane == 0 {
        let address = base + own_warp * RECORD_BYTES;
        shared::store_u32x4(address, [squares.to_bits(), nan, positive_infinity, negative_infinity]);
        shared::store_u32x2(address + 16, [first as u32, (first >> 32) as u32]);
    }
    barrier::block_sync();
    if own_warp == 0 && lane == 0 {
        let (mut squares, mut counts, mut first) = (0.0, [0; 3], u64::MAX);
        let mut i = 0;
        while i < SCAN_THREADS / 32 {
            let [sum, nan, positive, negative] = shared::load_u32x4(base + i * RECORD_BYTES);
            let [low, high] = shared::load_u32x2(base + i * RECORD_BYTES + 16);
            squares += f32::from_bits(sum);
            counts = [counts[0] + nan, counts[1] + positive, counts[2] + negative];
            let other = (high as u64) << 32 | low as u64;
            if other < first {
                first = other;
            }
            i += 1;
        }
        let address = records.wrapping_add((thread::block_idx_x() * RECORD_BYTES) as u64);
        global::store_u32x4(address, [squares.to_bits(), counts[0], counts[1], counts[2]]);
        global::store_u32x4(address.wrapping_add(16), [first as u32, (first >> 32) as u32, 0, 0]);
    }
}

macro_rules! entries {
    ($(($name:ident, $dtype:ident))*) => {
        $(
            /// The kernel of one element type.
            ///
            /// # Safety
            /// `p` is as [`ScanParams`] says; a record for each block.
            #[unsafe(no_mangle)]
            pub unsafe extern "ptx-kernel" fn $name(p: ScanParams) {
                scan::<element::$dtype>(&p);
            }
        )*
    };
}
crate::for_each_scan_sm80!(entries);
