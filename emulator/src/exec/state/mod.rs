//! What a launch, its blocks and their warps hold, the queues of asynchronous actors included.

pub mod barrier;
pub mod boxes;
pub mod bulk;
pub mod calls;
pub mod chain;
pub mod cluster;
pub mod context;
pub mod copies;
mod descriptor;
pub mod families;
pub mod flight;
pub mod mbarrier;
pub mod poison;
pub mod regions;
pub mod remote;
pub mod steps;
pub mod tiles;
pub mod warp;
pub mod warpgroup;
pub mod wgmma;
pub mod window;
