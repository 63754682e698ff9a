//! A point: where it falls, and how it gets from the lane that computes it to those that use it.

use super::levels::Levels;
use super::strip::{Strip, Strips};
use super::tensor::Row;
use crate::abi::{MSDA_POINT_BYTES, MsdaLevel, MsdaParams};
use crate::arch::{math, shared, thread};
use crate::geometry::sample::{Place, Sampling};

/// A point of a query.
#[derive(Clone, Copy)]
pub struct Point {
    /// Along the width.
    pub x: Place,
    /// Along the height.
    pub y: Place,
    /// Its weight.
    pub weight: f32,
    /// Its level.
    pub level: MsdaLevel,
}

impl Point {
    /// One without corners, and of weight 0.
    #[inline(always)]
    pub fn none() -> Self {
        let place = Place { cell: -2, fraction: 0.0, slope: 0.0 };
        let level = MsdaLevel { height: 1, width: 1, start: 0, first_bin: 0 };
        Point { x: place, y: place, weight: 0.0, level }
    }

    /// Point `index` of a query with these locations and weights.
    ///
    /// # Safety
    /// They are readable, and not written during the kernel; `index` is less than `p.points`.
    #[inline(always)]
    pub unsafe fn new<E: Strips<Element: Strip<Values = [f32; 1]>>>(
        p: &MsdaParams,
        levels: Levels,
        locations: Row,
        weights: Row,
        index: u32,
    ) -> Self {
        let level = levels.of_point(index);
        let sampling = Sampling { align_corners: p.align_corners != 0, border: p.border != 0 };
        let x = sampling.place(locations.load::<E>(2 * index), level.width);
        let y = sampling.place(locations.load::<E>(2 * index + 1), level.height);
        Point { x, y, weight: weights.load::<E>(index), level }
    }

    /// The cell of its first corner among all cells; wraps where that is outside.
    #[inline(always)]
    fn cell(&self) -> i32 {
        let row = self.y.cell.wrapping_mul(self.level.width as i32);
        (self.level.start as i32).wrapping_add(row).wrapping_add(self.x.cell)
    }

    /// Which corners there are: bit `2 lower + right`, lower and right 0 or 1.
    #[inline(always)]
    fn corners(&self) -> u32 {
        let MsdaLevel { width, height, .. } = self.level;
        let columns = self.x.has_lower(width) as u32 + 2 * self.x.has_upper(width) as u32;
        (if self.y.has_lower(height) { columns } else { 0 })
            | (if self.y.has_upper(height) { columns << 2 } else { 0 })
    }

    /// What the sample counts of each corner, times the weight; NaN if a coordinate is no number.
    #[inline(always)]
    pub fn shares(&self) -> [f32; 4] {
        corner_shares(self.x.fraction, self.y.fraction, self.weight)
    }

    /// 0, or NaN if a coordinate is no number.
    #[inline(always)]
    pub fn poison(&self) -> f32 {
        0.0 * self.x.fraction + 0.0 * self.y.fraction
    }
}

/// What a sample counts of each corner, times `weight`.
#[inline(always)]
pub fn corner_shares(x: f32, y: f32, weight: f32) -> [f32; 4] {
    let (upper, lower) = (weight * (1.0 - y), weight * y);
    [upper * (1.0 - x), upper * x, lower * (1.0 - x), lower * x]
}

/// Where lanes leave their points for the others of their warp: four numbers of each, and its corners.
#[derive(Clone, Copy)]
pub struct Board {
    /// Place of lane 0 of this thread's group in `points`.
    numbers: u32,
    /// The same in `cells`.
    cells: u32,
    /// Which lane of its group this is.
    slot: u32,
}

/// Where the table of levels stands in a block of `threads` threads, behind the regions of numbers and cells.
pub const fn levels_offset(threads: u32) -> u32 {
    threads * (MSDA_POINT_BYTES[0] + MSDA_POINT_BYTES[1])
}

impl Board {
    /// That of the groups of `lanes` lanes of a block of `threads`, in the shared memory from `base` on.
    #[inline(always)]
    pub fn new(base: u32, threads: u32, lanes: u32) -> Self {
        let thread = thread::thread_idx_x();
        let slot = thread & (lanes - 1);
        let first = thread - slot;
        Board {
            numbers: base + MSDA_POINT_BYTES[0] * first,
            cells: base + MSDA_POINT_BYTES[0] * threads + MSDA_POINT_BYTES[1] * first,
            slot,
        }
    }

    /// Leaves a point, and `numbers` with it, at this lane's place.
    ///
    /// # Safety
    /// Nobody reads the place until the warp has met.
    #[inline(always)]
    pub unsafe fn write(self, point: &Point, numbers: [f32; 4]) {
        shared::store_u32x4(self.numbers + MSDA_POINT_BYTES[0] * self.slot, numbers.map(f32::to_bits));
        let cells = self.cells + MSDA_POINT_BYTES[1] * self.slot;
        shared::store_u32x2(cells, [point.cell() as u32, point.level.width << 4 | point.corners()]);
    }

    /// What lane `slot` of this group left.
    ///
    /// # Safety
    /// It did, and the warp has met since.
    #[inline(always)]
    pub unsafe fn read(self, slot: u32) -> ([f32; 4], Corners) {
        let numbers = shared::load_f32x4(self.numbers + MSDA_POINT_BYTES[0] * slot);
        let [cell, rest] = shared::load_u32x2(self.cells + MSDA_POINT_BYTES[1] * slot);
        (numbers, Corners { cell: cell as i32, width: rest >> 4, there: rest & 15 })
    }
}

/// The corners of a point.
#[derive(Clone, Copy)]
pub struct Corners {
    cell: i32,
    width: u32,
    there: u32,
}

impl Corners {
    /// Whether corner `index` is in the level.
    #[inline(always)]
    pub fn has(self, index: u32) -> bool {
        self.there & (1 << index) != 0
    }

    /// None, where `condition` does not hold.
    #[inline(always)]
    pub fn only_if(self, condition: bool) -> Self {
        Corners { there: if condition { self.there } else { 0 }, ..self }
    }

    /// Addresses of the four corners, of rows `stride` bytes apart from `base` on.
    #[inline(always)]
    pub fn addresses(self, base: u64, stride: i32) -> [u64; 4] {
        let upper = math::mad_wide(self.cell, stride, base);
        let lower = math::mad_wide(self.width as i32, stride, upper);
        let next = stride as i64 as u64;
        [upper, upper.wrapping_add(next), lower, lower.wrapping_add(next)]
    }

    /// The corners of a strip; zeros for those that are outside.
    ///
    /// # Safety
    /// Those in the level are readable, aligned as the strip wants, and not written during the kernel.
    #[inline(always)]
    pub unsafe fn load<S: Strip>(self, base: u64, stride: i32) -> [S::Raw; 4] {
        let [a, b, c, d] = self.addresses(base, stride);
        [
            S::load_if(a, self.has(0)),
            S::load_if(b, self.has(1)),
            S::load_if(c, self.has(2)),
            S::load_if(d, self.has(3)),
        ]
    }
}
