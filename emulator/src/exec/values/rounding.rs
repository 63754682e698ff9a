//! Roundings that Rust's own arithmetic does not have: to odd, and towards one side.

use crate::isa::Rounding;

/// Rounds an f64 to f32 such that rounding again to fewer bits gives the nearest value of all: to odd.
#[inline(always)]
pub fn to_odd(value: f64) -> f32 {
    let nearest = value as f32;
    let back = f64::from(nearest);
    if back == value || !nearest.is_finite() || value.is_nan() {
        return nearest;
    }
    // Truncate towards zero, then set the last bit.
    let bits = nearest.to_bits();
    let truncated = if back.abs() > value.abs() { bits - 1 } else { bits };
    f32::from_bits(truncated | 1)
}

/// The sum, exact or rounded to its odd neighbour, which no later rounding takes for a tie. The error of a
/// sum is exact: Knuth, The Art of Computer Programming, volume 2, section 4.2.2, theorem B.
#[inline(always)]
pub fn sum_to_odd(a: f64, b: f64) -> f64 {
    let sum = a + b;
    let of_b = sum - a;
    let error = (a - (sum - of_b)) + (b - of_b);
    let is_exact = error == 0.0 || !error.is_finite();
    if is_exact || sum.to_bits() & 1 == 1 {
        sum
    } else if error > 0.0 {
        sum.next_up()
    } else {
        sum.next_down()
    }
}

macro_rules! direct {
    ($name:ident, $type:ty) => {
        /// Moves the nearest value to the one on the required side; `order` compares it with the
        /// exact one.
        pub fn $name(
            nearest: $type,
            order: std::cmp::Ordering,
            negative: bool,
            rounding: Rounding,
        ) -> $type {
            let (above, below) = (order.is_gt(), order.is_lt());
            match rounding {
                Rounding::Down if above => nearest.next_down(),
                Rounding::Up if below => nearest.next_up(),
                Rounding::Zero if above && !negative => nearest.next_down(),
                Rounding::Zero if below && negative => nearest.next_up(),
                _ => nearest,
            }
        }
    };
}

direct!(direct32, f32);
direct!(direct64, f64);
