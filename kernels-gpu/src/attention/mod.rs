//! The mathematics of attention on tiles in registers, written once for every kernel.

pub mod gradient;
pub mod key_block;
pub mod key_order;
pub mod key_schedule;
pub mod key_stretch;
pub mod packed_work;
pub mod query_block;
pub mod query_rows;
pub mod score;
pub mod sequence;
pub mod softmax;
pub mod visited;
pub mod work_tile;
