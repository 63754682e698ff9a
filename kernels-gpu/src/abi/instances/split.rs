//! Kernels that multiply f32 in two parts.

/// As `for_each_forward_sm90a`, for f32 in two f16 parts, by which tiles are twice as wide as the head dim.
///
/// Scores, packed probabilities and two sums of the output leave no room for three warpgroups: with 160
/// registers the one of head dim 64 spilled.
#[macro_export]
macro_rules! for_each_forward_split_sm90a {
    ($callback:ident) => {
        $callback! {
            (forward_f32_d64_sm90a, F32, 64, 128, 64, 2)
            (forward_f32_d128_sm90a, F32, 128, 128, 64, 2)
        }
    };
}

/// As `for_each_forward_mma_sm80`, for f32 in two f16 parts: tiles are twice as wide as the head dim.
///
/// Eight warps to a multiprocessor, which 255 registers are left for. At head dim 64 tiles fit 99 KiB, what a
/// block has on sm_86 and sm_89; at 128 they need no less than what a block has on sm_80, as those of the
/// fused multiply-adds that follow do. Chosen so, not measured.
#[macro_export]
macro_rules! for_each_forward_split_sm80 {
    ($callback:ident) => {
        $callback! {
            (forward_f32_d64_parts_sm80, F32, 64, Vector16, 64, 64, 4, 2)
            (forward_f32_d128_parts_sm80, F32, 128, Vector16, 128, 32, 8, 1)
        }
    };
}

/// As `for_each_backward_mma_sm80`, for f32 in two f16 parts: tiles are twice as wide as the head dim.
///
/// Head dim 64: 32 queries a step leave room for 128 keys, of which fragments serve two products, as of 16
/// bits; at 128 dK and dV leave registers for 64. Chosen so, not measured.
#[macro_export]
macro_rules! for_each_backward_parts_sm80 {
    ($callback:ident) => {
        $callback! {
            (backward_f32_d64_parts_sm80, F32, 64, Vector16, 32, 128, 8, 1)
            (backward_f32_d128_parts_sm80, F32, 128, Vector16, 32, 64, 8, 1)
        }
    };
}

/// Calls `$callback!` with one row for each kernel that ends a backward of
/// [`for_each_backward_parts_sm80`]: columns as there.
#[macro_export]
macro_rules! for_each_backward_convert_parts_sm80 {
    ($callback:ident) => {
        $callback! {
            (backward_convert_f32_d64_parts_sm80, F32, 64, Vector16, 32, 128, 8, 1)
            (backward_convert_f32_d128_parts_sm80, F32, 128, Vector16, 32, 64, 8, 1)
        }
    };
}
