//! Pure integer arithmetic of attention on tiles: no memory, no GPU, tested on the host.

pub mod descriptor;
pub mod fragment;
pub mod row_heads;
pub mod schedule;
pub mod stretch;
pub mod swizzle;
pub mod visible;
