//! The Rust types that stand for the element types of tensors.

use half::{bf16, f16};
use kernels_gpu::abi::Dtype;

mod sealed {
    //! Kernels read as many bytes per element as a dtype has: nobody else may say which dtype a type is.

    /// Only the types of this file are.
    pub trait Sealed {}

    impl Sealed for half::bf16 {}
    impl Sealed for half::f16 {}
    impl Sealed for f32 {}
}

/// A number that tensors can hold on a device: `half::bf16`, `half::f16` or `f32`.
///
/// Sealed: a type of another size than its dtype would let safe functions read and write past the end of a
/// slice.
///
/// ```compile_fail,E0277
/// use finite_attention::{Dtype, Element};
///
/// #[repr(transparent)]
/// #[derive(Clone, Copy, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
/// struct Byte(u8);
///
/// impl Element for Byte {
///     const DTYPE: Dtype = Dtype::F32;
///
///     fn from_f32(value: f32) -> Self {
///         Byte(value as u8)
///     }
///
///     fn to_f32(self) -> f32 {
///         f32::from(self.0)
///     }
/// }
/// ```
pub trait Element: sealed::Sealed + bytemuck::Pod + PartialEq + Send + Sync {
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
