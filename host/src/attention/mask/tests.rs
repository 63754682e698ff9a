//! Bits and map of prepared masks, against loops over the pairs.

use super::*;
use crate::device::Device;
use kernels_gpu::abi::Arch;
use kernels_gpu::geometry::mask_map::{GRANULE, WINDOW_STEP};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::ops::Range;

/// A dense mask of blocks of 32, a quarter of which are hidden, and a quarter random.
fn drawn([batches, heads, queries, keys]: [usize; 4], seed: u64) -> Vec<u8> {
    let mut random = StdRng::seed_from_u64(seed);
    let (rows, columns) = (queries.div_ceil(32), keys.div_ceil(32));
    let blocks: Vec<u32> =
        (0..batches * heads * rows * columns).map(|_| random.random_range(0..4)).collect();
    let mut shows = |index: usize| {
        let (row, key) = (index / keys, index % keys);
        let (pair, query) = (row / queries, row % queries);
        match blocks[(pair * rows + query / 32) * columns + key / 32] {
            0 => 0,
            1 => u8::from(random.random_bool(0.9)),
            _ => 1,
        }
    };
    (0..batches * heads * queries * keys).map(&mut shows).collect()
}

/// The rows of a granule.
fn granule(index: usize, rows: usize) -> Range<usize> {
    let size = GRANULE as usize;
    (index * size).min(rows)..((index + 1) * size).min(rows)
}

fn agrees(shape: [usize; 4], of_one_key: bool, seed: u64) {
    let device = Device::emulated(Arch::Sm80).unwrap();
    let [batches, heads, queries, keys] = shape;
    let given = if of_one_key { [batches, heads, queries, 1] } else { shape };
    let mask = drawn(given, seed);
    let buffer = DeviceBuffer::from_slice(&device, &mask).unwrap();
    let layout = ScoreLayout::dense(given);
    let (pointer, stream) = (buffer.device_pointer(), Stream::default());
    // SAFETY: the buffer holds the layout, and lives until the words are read.
    let prepared = unsafe { PreparedMask::new(&device, &layout, keys, pointer, stream) }.unwrap();
    let words = prepared.bits.to_vec(stream).unwrap();
    let shows = |row: usize, key: usize| mask[if of_one_key { row } else { row * keys + key }] != 0;
    let shape = prepared.shape();
    for row in 0..batches * heads * queries {
        for word in 0..shape.row_words() {
            let bit = |bit: usize| word * 32 + bit < keys && shows(row, word * 32 + bit);
            let expected: u32 = (0..32).map(|at| u32::from(bit(at)) << at).sum();
            assert_eq!(words[row * shape.row_words() + word], expected, "row {row}, word {word}");
        }
    }
    let map = &words[shape.map_offset() as usize..];
    let [_, _, windows, granules] = shape.map_shape();
    assert_eq!(map.len(), 2 * batches * heads * windows * LEVELS as usize * granules);
    for (index, element) in map.chunks(2).enumerate() {
        let (first, level) = (index % granules, index / granules % LEVELS as usize);
        let window = index / granules / LEVELS as usize;
        let (pair, window) = (window / windows, window % windows);
        for bit in 0..32 {
            let columns = granule(window * WINDOW_STEP as usize + bit, keys);
            let rows = (first..=first + level).flat_map(|index| granule(index, queries));
            let mut pairs = rows.flat_map(|row| columns.clone().map(move |key| (row, key)));
            let mut shown = pairs.clone().map(|(row, key)| shows(pair * queries + row, key));
            let expected =
                [shown.any(|shown| shown), pairs.all(|(row, key)| shows(pair * queries + row, key))];
            let got = [element[0], element[1]].map(|word| word >> bit & 1 == 1);
            assert_eq!(
                got, expected,
                "{shape:?}: pair {pair}, window {window}, {first}, {level}, bit {bit}"
            );
        }
    }
}

#[test]
fn the_map_says_what_granules_show() {
    for (seed, shape) in
        [[1, 1, 64, 64], [2, 3, 200, 150], [1, 2, 1, 300], [1, 1, 130, 2500]].into_iter().enumerate()
    {
        agrees(shape, false, seed as u64);
    }
}

#[test]
fn a_mask_of_one_entry_for_all_keys_has_a_map() {
    agrees([2, 1, 100, 70], true, 9);
}

/// The caller's memory has room for a word more, which stays as it was.
#[test]
fn a_mask_is_prepared_in_memory_of_the_caller() {
    let device = Device::emulated(Arch::Sm80).unwrap();
    let (shape, keys, stream) = ([2, 1, 70, 100], 100, Stream::default());
    let layout = ScoreLayout::dense(shape);
    let mask = DeviceBuffer::from_slice(&device, &drawn(shape, 5)).unwrap();
    let pointer = mask.device_pointer();
    // SAFETY: the buffer holds the layout, and lives until the words are read.
    let owned = unsafe { PreparedMask::new(&device, &layout, keys, pointer, stream) }.unwrap();
    let words = owned.bits.to_vec(stream).unwrap();
    let bytes = prepared_mask_bytes(&layout, keys).unwrap();
    assert_eq!(bytes as usize, 4 * words.len());

    let memory = DeviceBuffer::from_slice(&device, &vec![7u32; words.len() + 1]).unwrap();
    let place = |offset: u64, bytes| (memory.device_pointer() + offset, bytes);
    // SAFETY: as above, and the memory is as large as is said.
    let prepare = |memory| unsafe { prepare_mask(&device, &layout, keys, pointer, memory, stream) };
    assert_eq!(prepare(place(0, bytes)), Ok(owned.shape()));
    let got = memory.to_vec(stream).unwrap();
    let gap = (2 * 70 * owned.shape().row_words())..owned.shape().map_offset() as usize;
    for (index, (got, expected)) in got.iter().zip(&words).enumerate() {
        assert!(gap.contains(&index) || got == expected, "word {index}");
    }
    assert_eq!(got[words.len()], 7);
    assert_eq!(
        prepare(place(0, bytes - 1)),
        Err(Error::WorkspaceTooSmall { expected: bytes, got: bytes - 1 })
    );
    let text = prepare(place(4, bytes)).unwrap_err().to_string();
    assert!(text.starts_with("mask: expected an address that is a multiple of 8 bytes"), "{text}");
}
