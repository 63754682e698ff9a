//! Which element of a tile a lane holds in which register, for the tensor-core fragments and the
//! plain-FMA one.

/// Accumulator of `mma.m16n8k16` (PTX ISA, "Matrix Fragments for mma.m16n8k16"), and of `wgmma` for each
/// warp: the 16 rows of a warp, in tiles of 8 columns with 4 registers each.
///
/// ```text
/// lane = 4 * group + pair:  registers 0, 1: row group,     columns 2 pair, 2 pair + 1
///                           registers 2, 3: row group + 8, the same columns
/// ```
pub mod mma_accumulator {
    /// Row (of 16) of register `register` (of 4) in `lane`.
    #[inline(always)]
    pub const fn row(lane: u32, register: u32) -> u32 {
        lane / 4 + 8 * (register / 2 % 2)
    }

    /// Column of register `register` (of `4 * tiles`) in `lane`.
    #[inline(always)]
    pub const fn column(lane: u32, register: u32) -> u32 {
        register / 4 * 8 + 2 * (lane % 4) + register % 2
    }

    /// How many columns of a row a lane holds less than `distance` from its first.
    #[inline(always)]
    pub const fn columns_before(distance: u32) -> u32 {
        let in_tile = distance % 8;
        distance / 8 * 2 + if in_tile < 2 { in_tile } else { 2 }
    }
}

/// The row and the chunk, of a 16 x 16 block of 16-bit elements, whose address a lane gives to
/// `ldmatrix.x4`.
pub mod ldmatrix_x4 {
    /// For an A operand stored row by row, and (with `.trans`) for a B operand stored as k rows of n
    /// columns: registers 0..4 are the quarters (top, left), (bottom, left), (top, right), (bottom,
    /// right).
    #[inline(always)]
    pub const fn rows_first(lane: u32) -> (u32, u32) {
        (lane % 16, lane / 16)
    }

    /// For a B operand stored as n rows of k columns: registers 0, 1 are the two k halves of the first 8
    /// rows, registers 2, 3 those of the other 8.
    #[inline(always)]
    pub const fn chunks_first(lane: u32) -> (u32, u32) {
        (lane % 8 + lane / 16 * 8, lane / 8 % 2)
    }
}

/// The fragment of the plain-FMA kernels: a warp is `LANE_ROWS x 32 / LANE_ROWS` lanes; each lane holds
/// `ROWS` rows and `COLUMNS` columns, `LANE_ROWS` and `LANE_COLUMNS` apart, so that neighbouring lanes
/// read neighbouring rows.
pub mod fma_accumulator {
    /// Row of a lane's `index`-th row.
    #[inline(always)]
    pub const fn row(lane: u32, lane_columns: u32, index: u32) -> u32 {
        lane / lane_columns + index * (32 / lane_columns)
    }

    /// Column of a lane's `index`-th column.
    #[inline(always)]
    pub const fn column(lane: u32, lane_columns: u32, index: u32) -> u32 {
        lane % lane_columns + index * lane_columns
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn columns_before_a_distance_are_those_nearer() {
        for distance in 0..=130 {
            // Registers 0, 1, 4, 5, 8, 9, ... hold a row.
            let near = |column: u32| mma_accumulator::column(0, column / 2 * 4 + column % 2) < distance;
            let count = (0..64).filter(|&column| near(column)).count() as u32;
            assert_eq!(mma_accumulator::columns_before(distance), count, "{distance}");
        }
    }

    #[test]
    fn the_accumulators_hold_every_element_once() {
        let mut seen = HashSet::new();
        for lane in 0..32 {
            for register in 0..4 * 8 {
                let place =
                    (mma_accumulator::row(lane, register % 4), mma_accumulator::column(lane, register));
                assert!(place.0 < 16 && place.1 < 64 && seen.insert(place));
            }
        }
        for lane_columns in [4, 8, 16] {
            let (rows, columns) = (8, 4);
            let mut seen = HashSet::new();
            for lane in 0..32 {
                for (i, j) in (0..rows).flat_map(|i| (0..columns).map(move |j| (i, j))) {
                    let row = fma_accumulator::row(lane, lane_columns, i);
                    let column = fma_accumulator::column(lane, lane_columns, j);
                    assert!(row < rows * 32 / lane_columns && column < columns * lane_columns);
                    assert!(seen.insert((row, column)));
                }
            }
        }
    }

    #[test]
    fn ldmatrix_lanes_name_every_row_of_every_quarter_once() {
        for map in [ldmatrix_x4::rows_first, ldmatrix_x4::chunks_first] {
            let places: HashSet<(u32, u32)> = (0..32).map(map).collect();
            assert_eq!(places.len(), 32);
            assert!(places.iter().all(|&(row, chunk)| row < 16 && chunk < 2));
        }
    }
}
