//! The instruction families, a file each.

pub mod async_copy;
pub mod atomic;
pub mod builtin;
pub mod bulk;
pub mod carry;
pub mod compare;
pub mod convert;
pub mod float;
pub mod half;
pub mod integer;
pub mod matrix;
#[cfg(target_arch = "x86_64")]
mod matrix_wide;
pub mod mbarrier;
pub mod memory;
pub mod moves;
pub mod multiply;
pub mod rare;
pub mod shuffle;
pub mod sparse;
pub mod tensor_map;
mod video;
pub mod volta;
