//! Execution: the grid, its blocks, their warps, and the instruction families.

#![allow(clippy::needless_range_loop, reason = "a lane or row number indexes several arrays at once")]

mod async_copy;
mod barrier;
mod block;
mod context;
mod grid;
mod lanes;
mod ops;
mod registers;
mod step;
mod target;
mod warp;
mod window;

pub use grid::launch;
