//! How much shared memory a block of each family of kernels needs: all that stands in it.

use super::layout;

/// Shared memory of the f32 backward.
pub const fn backward_fma_shared_bytes(head_dim: u32, query_rows: u32, key_rows: u32) -> u32 {
    layout::backward_fma(head_dim, query_rows, key_rows).bytes()
}

/// Shared memory of the tensor-core backward.
pub const fn backward_mma_shared_bytes(head_dim: u32, query_rows: u32, key_rows: u32) -> u32 {
    layout::backward_mma(head_dim, query_rows, key_rows).bytes()
}

/// Shared memory of the backward of f32 in two parts.
pub const fn backward_parts_shared_bytes(head_dim: u32, query_rows: u32, key_rows: u32) -> u32 {
    layout::backward_parts(head_dim, query_rows, key_rows).bytes()
}

/// Shared memory of the delta kernel with tensor cores.
pub const fn backward_delta_shared_bytes(_head_dim: u32, query_rows: u32, _key_rows: u32) -> u32 {
    layout::backward_delta(query_rows).bytes()
}

/// Shared memory of the tensor-core forward.
pub const fn forward_mma_shared_bytes(head_dim: u32, query_rows: u32, key_rows: u32) -> u32 {
    layout::forward_mma(head_dim, query_rows, key_rows).bytes()
}

/// Shared memory of the Hopper forward.
pub const fn forward_sm90a_shared_bytes(head_dim: u32, query_rows: u32, key_rows: u32) -> u32 {
    layout::ForwardHopperLayout::new(head_dim, query_rows, key_rows).regions.bytes()
}

/// Shared memory of the Hopper backward, for wide heads too.
pub const fn backward_sm90a_shared_bytes(head_dim: u32, query_rows: u32, key_rows: u32) -> u32 {
    layout::BackwardHopperLayout::new(head_dim, query_rows, key_rows).regions.bytes()
}

/// Shared memory of the f32 forward.
pub const fn forward_fma_shared_bytes(head_dim: u32, query_rows: u32, key_rows: u32) -> u32 {
    layout::forward_fma(head_dim, query_rows, key_rows).bytes()
}

/// Shared memory of the kernel that combines ranges of keys.
pub const fn forward_combine_shared_bytes(head_dim: u32, query_rows: u32, _key_rows: u32) -> u32 {
    layout::forward_combine(head_dim, query_rows).bytes()
}

/// Shared memory of the tensor-core kernel for the gradient of the bias.
pub const fn bias_gradient_mma_shared_bytes(head_dim: u32, query_rows: u32, _key_rows: u32) -> u32 {
    layout::bias_gradient(2, head_dim, query_rows).bytes()
}

/// Shared memory of the f32 kernel for the gradient of the bias.
pub const fn bias_gradient_fma_shared_bytes(head_dim: u32, query_rows: u32, _key_rows: u32) -> u32 {
    layout::bias_gradient(4, head_dim, query_rows).bytes()
}

/// Shared memory of the kernel for the gradient of the sinks.
pub const fn sink_gradient_shared_bytes() -> u32 {
    layout::sink_gradient().bytes()
}

/// Shared memory of the kernels that make two parts of f32.
pub const fn measure_operands_shared_bytes() -> u32 {
    layout::measure_operands().bytes()
}

/// Of kernels without shared memory.
pub const fn no_shared(_head_dim: u32, _query_rows: u32, _key_rows: u32) -> u32 {
    0
}
