//! The Rust types that stand for the element types of tensors.

use half::{bf16, f16};
use kernels_gpu::abi::Dtype;

/// A number that tensors can hold on a device: `half::bf16`, `half::f16` or `f32`.
pub trait Element: bytemuck::Pod + PartialEq + Send + Sync {
    /// Its name at run time.
    const DTYPE: Dtype;

    /// Rounds to nearest, ties to even; overflow gives infinity.
    fn from_f32(value: f32) -> Self;

    /// Exact.
    fn to_f32(self) -> f32;
}

impl Element for bf16 {
    const DTYPE: Dtype = Dtype::Bf16;

    fn from_f32(value: f32) -> Self {
        bf16::from_f32(value)
    }

    fn to_f32(self) -> f32 {
        self.to_f32()
    }
}

impl Element for f16 {
    const DTYPE: Dtype = Dtype::F16;

    fn from_f32(value: f32) -> Self {
        f16::from_f32(value)
    }

    fn to_f32(self) -> f32 {
        self.to_f32()
    }
}

impl Element for f32 {
    const DTYPE: Dtype = Dtype::F32;

    fn from_f32(value: f32) -> Self {
        value
    }

    fn to_f32(self) -> f32 {
        self
    }
}
