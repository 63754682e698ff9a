//! What a bulk copy moves: pieces of shared memory and where they belong in global memory, or come from in
//! that of a cluster.
//!
//! A box of a tensor is taken row by row. A row's elements inside the tensor lie together in global
//! memory, and in 16-byte pieces, exchanged as the map's swizzle says, in shared memory.

use crate::tensor_map::{MAX_RANK, TensorMap, TensorMapSwizzle};
use std::rc::Rc;

/// The bytes that one copy moves.
#[derive(Clone, Debug)]
pub enum Bytes {
    /// So many from a global address on.
    Plain {
        /// The global address.
        address: u64,
        /// Bytes.
        bytes: u32,
    },
    /// So many of a block's shared memory.
    Shared {
        /// The shared address.
        address: u32,
        /// Bytes.
        bytes: u32,
    },
    /// A box of a tensor.
    Box {
        /// The tensor and the size of the box.
        map: Rc<TensorMap>,
        /// The first element of the box in each dimension.
        first: [i32; MAX_RANK],
    },
}

/// A row of a copy.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Where it starts in shared memory, before the swizzle, from the start of the copy.
    pub shared: u32,
    /// Its bytes in shared memory.
    pub bytes: u32,
    /// The first of its bytes that exists in global memory.
    pub from: u32,
    /// The first behind `from` that does not.
    pub to: u32,
    /// Global address of the byte at `from`, if it comes from or goes to global memory.
    pub global: u64,
}

impl Row {
    /// Whether any of it has a place in global memory.
    pub fn exists(&self) -> bool {
        self.to > self.from
    }
}

impl Bytes {
    /// Bytes that a barrier counts.
    pub fn counted(&self) -> u32 {
        match self {
            Bytes::Plain { bytes, .. } | Bytes::Shared { bytes, .. } => *bytes,
            Bytes::Box { map, .. } => map.box_bytes(),
        }
    }

    /// Bytes of shared memory that it takes.
    pub fn shared(&self) -> u32 {
        match self {
            Bytes::Plain { bytes, .. } | Bytes::Shared { bytes, .. } => *bytes,
            Bytes::Box { map, .. } => map.shared_bytes(),
        }
    }

    /// The arrangement in shared memory.
    pub fn swizzle(&self) -> TensorMapSwizzle {
        match self {
            Bytes::Plain { .. } | Bytes::Shared { .. } => TensorMapSwizzle::None,
            Bytes::Box { map, .. } => map.swizzle,
        }
    }

    /// The rows in the order of shared memory.
    pub fn rows(&self) -> Vec<Row> {
        match self {
            &Bytes::Plain { address, bytes } => {
                vec![Row { shared: 0, bytes, from: 0, to: bytes, global: address }]
            }
            &Bytes::Shared { bytes, .. } => {
                vec![Row { shared: 0, bytes, from: 0, to: bytes, global: 0 }]
            }
            Bytes::Box { map, first } => box_rows(map, first),
        }
    }
}

/// Elements from `first` on, `size` of them, that lie inside a dimension: from and to.
fn inside(first: i32, size: u32, dimension: u64) -> (u32, u32) {
    let from = (-i64::from(first)).clamp(0, i64::from(size));
    let left = (dimension as i64 - i64::from(first)).clamp(0, i64::from(size));
    (from as u32, left as u32)
}

fn box_rows(map: &TensorMap, first: &[i32; MAX_RANK]) -> Vec<Row> {
    let element = map.element.bytes();
    let (from, to) = inside(first[0], map.box_dims[0], map.dims[0]);
    let (from, to) = (from * element, to.max(from) * element);
    let bytes = map.box_dims[0] * element;
    let inner = (i64::from(first[0]) * i64::from(element) + i64::from(from)) as u64;
    let count = map.shared_bytes() / map.row_pitch();
    let mut rows = Vec::with_capacity(count as usize);
    for row in 0..count {
        let mut rest = row;
        let mut global = map.address.wrapping_add(inner);
        let mut exists = true;
        for dimension in 1..map.dims.len() {
            let size = map.box_dims[dimension];
            let position = i64::from(first[dimension]) + i64::from(rest % size);
            rest /= size;
            exists &= position >= 0 && (position as u64) < map.dims[dimension];
            let step = map.strides_bytes[dimension - 1].wrapping_mul(position as u64);
            global = global.wrapping_add(step);
        }
        let to = if exists { to } else { from };
        rows.push(Row { shared: row * map.row_pitch(), bytes, from, to, global });
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor_map::TensorMapElement;

    #[test]
    fn rows_outside_the_tensor_are_empty_and_those_across_its_edge_are_short() {
        let map = TensorMap {
            element: TensorMapElement::U32,
            address: 1 << 40,
            dims: vec![10, 5],
            strides_bytes: vec![48],
            box_dims: vec![8, 3],
            swizzle: TensorMapSwizzle::None,
        };
        let rows = |first: [i32; 5]| Bytes::Box { map: Rc::new(map.clone()), first }.rows();
        let corner = rows([-2, -1, 0, 0, 0]);
        assert_eq!(corner.len(), 3);
        assert_eq!((corner[0].from, corner[0].to), (8, 8));
        assert_eq!((corner[1].from, corner[1].to, corner[1].global), (8, 32, 1 << 40));
        assert_eq!((corner[2].shared, corner[2].global), (64, (1 << 40) + 48));
        let end = rows([6, 4, 0, 0, 0]);
        assert_eq!((end[0].from, end[0].to, end[0].global), (0, 16, (1 << 40) + 4 * 48 + 24));
        assert_eq!((end[1].from, end[1].to), (0, 0));
    }
}
