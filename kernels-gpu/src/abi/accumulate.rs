//! What the kernels that add f32 tensors are told.

use super::TensorView;

/// Threads of a block of the kernels that add.
pub const ACCUMULATE_THREADS: u32 = 256;

/// Parameters of the kernels that add two f32 tensors and round the sum once, passed by value as the only
/// kernel parameter: `output = first + second`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccumulateParams {
    /// `[B, S, H, D]` of the kernel's element type, written. In f32 it may be one of the others.
    pub output: TensorView,
    /// f32 `[B, S, H, D]`; zeros where its address is 0.
    pub first: TensorView,
    /// f32 `[B, S, H, D]`; zeros where its address is 0.
    pub second: TensorView,
    /// B.
    pub batches: u32,
    /// S.
    pub rows: u32,
    /// H.
    pub heads: u32,
    /// D.
    pub columns: u32,
    /// 1: the columns are a multiple of 4, and rows start on 16 bytes, or on 8 of an output in 16 bits.
    pub is_aligned: u32,
    /// Nothing.
    pub reserved: u32,
}
