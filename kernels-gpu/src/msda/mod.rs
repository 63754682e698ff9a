//! Multi-scale deformable attention (docs/semantics.md, section 5): what its kernels share.
//!
//! A group of lanes takes one query of one head, each lane some channels. The lanes first compute a point
//! each, and leave it in shared memory; then all of them take all points.

pub mod bin;
pub mod levels;
pub mod point;
pub mod strip;
pub mod tensor;
pub mod walk;
