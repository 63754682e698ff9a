//! What registers hold: the register file of a warp, number formats, and arithmetic on one value or on all
//! lanes.

pub mod atomic;
pub mod float;
pub mod fp8;
pub mod half;
pub mod map;
pub mod math;
pub mod matrix;
pub mod one_side;
pub mod registers;
pub mod rounding;
