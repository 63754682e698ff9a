//! Execution: the grid, its blocks, their warps, and the instruction families.

#![allow(clippy::needless_range_loop, reason = "a lane or row number indexes several arrays at once")]

mod actors;
mod check;
mod launch;
mod ops;
mod state;
mod step;
mod values;

pub use launch::grid::{launch, launch_dependent};
