//! Stages of data on their way from global memory to the tensor cores, and who does what.

pub mod key_value_ring;
pub mod key_value_turns;
pub mod key_values;
pub mod mailbox;
pub mod query_ring;
pub mod roles;
pub mod stages;
pub mod tile_queue;
pub mod warp_pair;
pub mod warp_scheduler;
