//! Launches: grids, their blocks, and whose turn it is.

mod block;
mod families;
pub mod grid;
mod limits;
mod stuck;
