//! Tiles: pieces of a tensor in shared memory or spread over the registers of a warp, and what moves
//! between them.
//!
//! Names say place, then shape. A tile operation is one line in a kernel; which lane holds what stays in
//! here.

pub mod add;
pub mod bulk;
pub mod element;
pub mod fma;
pub mod fragment;
pub mod global_rows;
pub mod mma;
pub mod shared_tile;
pub mod store;
pub mod warpgroup;
