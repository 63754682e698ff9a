//! Tensor maps: what is accepted, and that encoding loses nothing.

use ptx_emulator::{TensorMap, TensorMapElement, TensorMapSwizzle};

fn map() -> TensorMap {
    TensorMap {
        element: TensorMapElement::Bf16,
        address: 3 << 40,
        dims: vec![64, 1000, 2, 16, 4],
        strides_bytes: vec![4096, 128, 256, 4_096_000],
        box_dims: vec![64, 128, 2, 1, 1],
        swizzle: TensorMapSwizzle::B128,
    }
}

#[test]
fn encoding_loses_nothing() {
    for rank in 1..=5 {
        for swizzle in [
            TensorMapSwizzle::None,
            TensorMapSwizzle::B32,
            TensorMapSwizzle::B64,
            TensorMapSwizzle::B128,
        ] {
            let mut map = map();
            map.dims.truncate(rank);
            map.strides_bytes.truncate(rank - 1);
            map.box_dims.truncate(rank);
            (map.box_dims[0], map.swizzle) = (16, swizzle);
            assert_eq!(TensorMap::decode(&map.encode().unwrap()), Ok(map));
        }
    }
}

type Break = fn(&mut TensorMap);

#[test]
fn a_broken_rule_is_named() {
    let cases: [(Break, &str); 15] = [
        (|map| map.address += 8, "address: expected a multiple of 16, got 3298534883336"),
        (|map| map.dims[1] = 0, "dims[1]: expected 1 to 2^32, got 0"),
        (|map| map.dims[1] = (1 << 32) + 1, "dims[1]: expected 1 to 2^32, got 4294967297"),
        (|map| map.strides_bytes[0] = 24, "strides_bytes[0]: expected a multiple of 16, got 24"),
        (
            |map| map.strides_bytes[2] = 1 << 40,
            "strides_bytes[2]: expected less than 2^40, got 1099511627776",
        ),
        (|map| map.box_dims[1] = 0, "box_dims[1]: expected 1 to 256, got 0"),
        (|map| map.box_dims[1] = 257, "box_dims[1]: expected 1 to 256, got 257"),
        (|map| map.box_dims[0] = 12, "box_dims[0]: expected a multiple of 16 bytes, got 24"),
        (
            |map| map.swizzle = TensorMapSwizzle::B64,
            "box_dims[0]: expected at most 64 bytes, the swizzle's span, got 128",
        ),
        (
            |map| map.strides_bytes.truncate(3),
            "strides_bytes: expected 4 strides, one less than dimensions, got 3",
        ),
        (
            |map| map.box_dims[1..].copy_from_slice(&[256, 1, 15, 1]),
            "box_dims: expected at most 232448 bytes, the shared memory of a block, got 491520",
        ),
        // A multiple of 2^32.
        (
            |map| map.box_dims[1..].copy_from_slice(&[256, 256, 256, 2]),
            "box_dims: expected at most 232448 bytes, the shared memory of a block, got 4294967296",
        ),
        (
            |map| (map.box_dims[0], map.box_dims[1], map.box_dims[2]) = (16, 256, 8),
            "box_dims: expected at most 232448 bytes, the shared memory of a block, got 262144",
        ),
        (|map| map.box_dims.push(1), "box_dims: expected 5 dimensions like dims, got 6"),
        (|map| map.dims.clear(), "dims: expected 1 to 5 dimensions, got 0"),
    ];
    for (breaks, message) in cases {
        let mut map = map();
        breaks(&mut map);
        assert_eq!(map.encode().unwrap_err().to_string(), format!("tensor map: {message}"));
    }
}

#[test]
fn other_bytes_are_no_map() {
    assert!(TensorMap::decode(&[0; 16]).is_err());
    for word in 0..16 {
        let mut words = map().encode().unwrap();
        words[word] ^= 1 << 20;
        assert!(TensorMap::decode(&words).is_err(), "word {word}");
    }
}

/// The product of the sizes is 2^32: in 32 bits nothing, which would fit anywhere.
#[test]
fn a_box_larger_than_shared_memory_is_refused() {
    let map = TensorMap {
        element: TensorMapElement::U8,
        dims: vec![256; 4],
        strides_bytes: vec![256, 1 << 16, 1 << 24],
        box_dims: vec![256; 4],
        swizzle: TensorMapSwizzle::None,
        ..map()
    };
    assert_eq!(map.box_bytes(), u32::MAX);
    let error = map.encode().unwrap_err();
    assert_eq!((error.field.as_str(), error.got), ("box_dims", 1 << 32));
    let fits = TensorMap { box_dims: vec![256, 227, 4, 1], ..map.clone() };
    assert_eq!(TensorMap::decode(&fits.encode().unwrap()).unwrap().box_bytes(), 227 * 1024);
    assert!(TensorMap { box_dims: vec![256, 228, 4, 1], ..map }.encode().is_err());
}
