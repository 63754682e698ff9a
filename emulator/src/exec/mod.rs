//! Execution: the grid, its blocks, their warps, and the instruction families.

#![allow(clippy::needless_range_loop, reason = "a lane or row number indexes several arrays at once")]

mod async_copy;
mod barrier;
mod block;
mod boxes;
mod bulk;
mod chain;
mod context;
mod exchange;
mod flight;
mod global_race;
mod grid;
mod limits;
mod mbarrier;
mod ops;
mod poison;
mod race;
mod reduce;
mod region;
mod regions;
mod step;
mod step_async;
mod strong;
mod stuck;
mod target;
mod trace;
mod values;
mod warp;
mod warpgroup;
mod watch;
mod wgmma;
mod window;

pub use grid::{launch, launch_dependent};
