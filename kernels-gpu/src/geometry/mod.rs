//! Pure arithmetic, of integers but for the cell of a location: no memory, no GPU, tested on the host.

pub mod bit_planes;
pub mod descriptor;
pub mod fragment;
pub mod mask_map;
pub mod philox;
pub mod row_heads;
pub mod sample;
pub mod schedule;
pub mod size;
pub mod stretch;
pub mod swizzle;
pub mod visible;
