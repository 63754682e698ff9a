//! Sums over the columns of o and dO on tensor cores, and these columns' way through shared memory.

use super::{ROWS, WARP_ROWS};
use crate::abi::layout::{DELTA_COLUMNS, backward_delta_tile_bytes};
use crate::arch::{async_copy, barrier, matrix, shared, thread, warp};
use crate::tile::element::TensorCoreElement;
use crate::tile::global_rows::GlobalRows;
use crate::tile::mma::LaneAddress;
use crate::tile::shared_tile::SharedTile;

/// Threads of a block.
const THREADS: u32 = 4 * 32;
/// Columns of o and dO that arrive together.
const STEP_COLUMNS: u32 = DELTA_COLUMNS / 2;
/// Bytes of such columns of a row.
const STEP_BYTES: u32 = 2 * STEP_COLUMNS;

/// What a lane sums up of the 16 rows of a warp.
pub(super) struct Sums {
    /// The upper and the lower eight columns of `o dO^T`.
    upper: [f32; 4],
    lower: [f32; 4],
    /// What rounding an o in f32 leaves over, of rows `group` and `group + 8`.
    rests: [f32; 2],
    /// `sum |dO|` of the same rows.
    norms: [f32; 2],
}

impl Sums {
    const NONE: Sums = Sums { upper: [0.0; 4], lower: [0.0; 4], rests: [0.0; 2], norms: [0.0; 2] };

    /// Adds 16 columns: o and dO as fragments of 16 rows.
    #[inline(always)]
    unsafe fn add<E: TensorCoreElement>(&mut self, o: [u32; 4], d_o: [u32; 4]) {
        E::mma(&mut self.upper, o, [d_o[0], d_o[2]]);
        E::mma(&mut self.lower, o, [d_o[1], d_o[3]]);
        if E::NARROW {
            self.norms[0] += size::<E>(d_o[0]) + size::<E>(d_o[2]);
            self.norms[1] += size::<E>(d_o[1]) + size::<E>(d_o[3]);
        }
    }

    /// Over all columns, wherever rows start; `load` gives two columns of a row of the warp.
    #[inline(always)]
    pub(super) unsafe fn of_pairs<E: TensorCoreElement>(
        columns: u32,
        lane: u32,
        load: impl Fn(u32, u32) -> (u32, u32, f32),
    ) -> Self {
        let (group, pair) = (lane / 4, lane % 4);
        let mut sums = Sums::NONE;
        let mut first = 0;
        while first < columns {
            let column = first + 2 * pair;
            let products = [
                load(group, column),
                load(group + 8, column),
                load(group, column + 8),
                load(group + 8, column + 8),
            ];
            sums.add::<E>(products.map(|(o, ..)| o), products.map(|(_, d_o, _)| d_o));
            sums.rests[0] += products[0].2 + products[2].2;
            sums.rests[1] += products[1].2 + products[3].2;
            first += 16;
        }
        sums.rests = [quad_sum(sums.rests[0]), quad_sum(sums.rests[1])];
        sums
    }
}

/// `sum(dO o)` and `sum |dO|` of the row that a lane answers for.
pub(super) struct RowSums {
    pub product: f32,
    pub norm: f32,
}

impl RowSums {
    pub(super) const NONE: RowSums = RowSums { product: 0.0, norm: 0.0 };

    /// Those of tile `tile` go to the lanes that answer for its rows.
    #[inline(always)]
    pub(super) unsafe fn take<E: TensorCoreElement>(&mut self, lane: u32, tile: u32, sums: &Sums) {
        // Lane (group, pair) holds columns 2 pair and 2 pair + 1 of rows group and group + 8.
        let is_even = lane / 4 % 2 == 0;
        let upper = (if is_even { sums.upper[0] } else { sums.upper[1] }) + sums.rests[0];
        let lower = (if is_even { sums.lower[2] } else { sums.lower[3] }) + sums.rests[1];
        let group = lane % 8;
        let product = of_half(lane, upper, lower, 4 * group + group / 2);
        let mut norm = 0.0;
        if E::NARROW {
            norm = of_half(lane, quad_sum(sums.norms[0]), quad_sum(sums.norms[1]), 4 * group);
        }
        if lane / WARP_ROWS == tile {
            *self = RowSums { product, norm };
        }
    }
}

/// What lane `from` has: `upper` for the upper eight of 16 lanes, `lower` for the others.
#[inline(always)]
pub(super) unsafe fn of_half(lane: u32, upper: f32, lower: f32, from: u32) -> f32 {
    let (upper, lower) = (warp::shuffle(upper, from), warp::shuffle(lower, from));
    if lane % WARP_ROWS < 8 { upper } else { lower }
}

/// The sum over the four lanes of a row, the same for all.
#[inline(always)]
unsafe fn quad_sum(mut value: f32) -> f32 {
    value += warp::shuffle_xor(value, 1);
    value + warp::shuffle_xor(value, 2)
}

/// The sum of the absolute values of two elements.
#[inline(always)]
fn size<E: TensorCoreElement>(pair: u32) -> f32 {
    let (low, high) = E::unpack(pair);
    low.abs() + high.abs()
}

/// o and dO on their way through shared memory: in steps of [`STEP_COLUMNS`] columns of a tile of [`ROWS`]
/// rows, of which two are there or on their way.
pub(super) struct Steps {
    /// The rows of the block.
    o: GlobalRows,
    d_o: GlobalRows,
    /// Whether each step is a tile of its own, all of its columns; otherwise there is one tile.
    are_tiles: bool,
    count: u32,
}

impl Steps {
    #[inline(always)]
    pub(super) fn new(o: GlobalRows, d_o: GlobalRows, tiles: u32) -> Self {
        let are_tiles = tiles > 1;
        let count = if are_tiles { tiles } else { o.columns.div_ceil(STEP_COLUMNS) };
        Steps { o, d_o, are_tiles, count }
    }

    #[inline(always)]
    fn tile_of_o(step: u32) -> SharedTile<ROWS, STEP_BYTES> {
        let first = SharedTile::<ROWS, { 2 * STEP_BYTES }>::at(shared::dynamic_base());
        SharedTile::at(first.panel(step % 2).address)
    }

    #[inline(always)]
    fn tile_of_d_o(step: u32) -> SharedTile<ROWS, STEP_BYTES> {
        let tile = Self::tile_of_o(step);
        SharedTile::at(tile.address + backward_delta_tile_bytes(ROWS))
    }

    /// The part of `rows` of step `step`.
    #[inline(always)]
    fn part(&self, rows: &GlobalRows, step: u32) -> GlobalRows {
        if self.are_tiles {
            return rows.skip((step * ROWS) as i32);
        }
        let left = rows.skip_columns::<2>(step * STEP_COLUMNS);
        GlobalRows {
            columns: if left.columns < STEP_COLUMNS { left.columns } else { STEP_COLUMNS },
            ..left
        }
    }

    /// Asks for step `step`, if there is one.
    ///
    /// # Safety
    /// All threads of the block call it, for each step once; that of two steps before is done.
    #[inline(always)]
    pub(super) unsafe fn request<E: TensorCoreElement>(&self, step: u32) {
        let thread = thread::thread_idx_x();
        if step < self.count {
            Self::tile_of_o(step).load::<E, THREADS, true>(thread, &self.part(&self.o, step));
            Self::tile_of_d_o(step).load::<E, THREADS, true>(thread, &self.part(&self.d_o, step));
        }
        async_copy::commit();
    }

    /// The sums of all rows.
    ///
    /// # Safety
    /// All threads of the block call it, after the first two steps have been asked for.
    #[inline(always)]
    pub(super) unsafe fn sums<E: TensorCoreElement>(&self) -> RowSums {
        let (lane, first_row) = (thread::thread_idx_x() % 32, thread::thread_idx_x() / 32 * WARP_ROWS);
        let at = LaneAddress::<STEP_BYTES>::rows_first(lane);
        let mut row_sums = RowSums::NONE;
        let mut sums = Sums::NONE;
        let mut step = 0;
        loop {
            async_copy::wait::<1>();
            barrier::block_sync();
            // Past the last column there are zeros.
            let mut block = 0;
            while block < STEP_COLUMNS / 16 {
                let o = matrix::load_matrix_x4(at.of(Self::tile_of_o(step), first_row, block));
                let d_o = matrix::load_matrix_x4(at.of(Self::tile_of_d_o(step), first_row, block));
                sums.add::<E>(o, d_o);
                block += 1;
            }
            let tile = if self.are_tiles { step } else { 0 };
            step += 1;
            if self.are_tiles || step == self.count {
                row_sums.take::<E>(lane, tile, &sums);
                sums = Sums::NONE;
            }
            if step == self.count {
                return row_sums;
            }
            barrier::block_sync();
            self.request::<E>(step + 1);
        }
    }
}
