//! The mathematics of attention on tiles in registers, written once for every kernel.

pub mod gradient;
pub mod key_block;
pub mod mask;
pub mod problem;
pub mod softmax;
