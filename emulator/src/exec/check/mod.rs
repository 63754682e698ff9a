//! What is looked at when an instruction touches memory or registers, and what is reported then.

mod flight;
mod global_race;
mod mbarrier;
mod poison;
mod poison_matrix;
pub mod race;
mod region;
pub mod sparse;
pub mod strong;
pub mod trace;
mod warpgroup;
mod watch;
pub mod window;
