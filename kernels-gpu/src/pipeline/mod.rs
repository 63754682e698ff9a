//! Stages of data on their way from global memory to the tensor cores.

pub mod key_value_ring;
pub mod key_value_turns;
pub mod query_ring;
pub mod warp_pair;
