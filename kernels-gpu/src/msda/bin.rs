//! Bins: points that have the same corners, for sums over points that are taken in order.
//!
//! A level of h x w cells has `(h + 1) (w + 1)` bins, one for each place that the first corner of a point
//! can have, -1 included. A cell is the first corner of the points of one bin, the second of those of
//! another, and so on.

use super::point::Point;
use crate::abi::MsdaLevel;

/// What has no bin: a point without corners.
pub const NO_BIN: u32 = u32::MAX;

/// The bin of points whose first corner is in row `y` and column `x` of the level, -1 or more.
#[inline(always)]
pub fn of_corner(level: &MsdaLevel, y: i32, x: i32) -> u32 {
    level.first_bin + (y + 1) as u32 * (level.width + 1) + (x + 1) as u32
}

/// The bin of a point.
#[inline(always)]
pub fn of_point(point: &Point) -> u32 {
    if point.x.cell < -1 || point.y.cell < -1 {
        return NO_BIN;
    }
    of_corner(&point.level, point.y.cell, point.x.cell)
}
