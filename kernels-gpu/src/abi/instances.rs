//! Which kernels there are: lists that both the kernels and the table of the host are made from.

#[macro_use]
mod split;

/// Calls `$callback!` with one row for each tensor-core forward kernel for sm_80.
///
/// This and its sibling for f32 are the only places where instantiations are chosen; the kernels and the
/// table of the host are both made from them. Columns: name, element type (a variant of
/// [`Dtype`](crate::abi::Dtype)), head dim, access, query rows, keys per step, warps, blocks per
/// multiprocessor.
///
/// - 128 query rows on 4 warps (two 16-row tiles each): a key fragment read from shared memory feeds two
///   products. Measured at head dim 128, S 4096, against FlashAttention-2 in the same run on an H200:
///   128 x 64 on 4 warps 1.00, 128 x 32 on 4 warps 0.91, 64 x 64 on 4 warps 0.85, 128 x 64 on 8 warps 0.74.
///   At head dim 64: 128 x 64 at two or three blocks 0.99, 128 x 128 0.98, 64 x 64 at four blocks 0.90.
/// - From head dim 192 on, the output accumulators leave room for one 16-row tile per warp only.
/// - The strided kernels read element by element and are far from these limits: one 16-row tile per warp, and
///   little shared memory, so that they run on every device of the family.
#[macro_export]
macro_rules! for_each_forward_mma_sm80 {
    ($callback:ident) => {
        $callback! {
            (forward_bf16_d32_sm80, Bf16, 32, Vector16, 128, 64, 4, 2)
            (forward_bf16_d64_sm80, Bf16, 64, Vector16, 128, 64, 4, 2)
            (forward_bf16_d96_sm80, Bf16, 96, Vector16, 128, 64, 4, 2)
            (forward_bf16_d128_sm80, Bf16, 128, Vector16, 128, 64, 4, 2)
            (forward_bf16_d192_sm80, Bf16, 192, Vector16, 64, 64, 4, 1)
            (forward_bf16_d256_sm80, Bf16, 256, Vector16, 64, 64, 4, 1)
            (forward_f16_d32_sm80, F16, 32, Vector16, 128, 64, 4, 2)
            (forward_f16_d64_sm80, F16, 64, Vector16, 128, 64, 4, 2)
            (forward_f16_d96_sm80, F16, 96, Vector16, 128, 64, 4, 2)
            (forward_f16_d128_sm80, F16, 128, Vector16, 128, 64, 4, 2)
            (forward_f16_d192_sm80, F16, 192, Vector16, 64, 64, 4, 1)
            (forward_f16_d256_sm80, F16, 256, Vector16, 64, 64, 4, 1)
            (forward_bf16_d32_strided_sm80, Bf16, 32, Element, 64, 64, 4, 1)
            (forward_bf16_d64_strided_sm80, Bf16, 64, Element, 64, 64, 4, 1)
            (forward_bf16_d128_strided_sm80, Bf16, 128, Element, 64, 64, 4, 1)
            (forward_bf16_d256_strided_sm80, Bf16, 256, Element, 64, 32, 4, 1)
            (forward_f16_d32_strided_sm80, F16, 32, Element, 64, 64, 4, 1)
            (forward_f16_d64_strided_sm80, F16, 64, Element, 64, 64, 4, 1)
            (forward_f16_d128_strided_sm80, F16, 128, Element, 64, 64, 4, 1)
            (forward_f16_d256_strided_sm80, F16, 256, Element, 64, 32, 4, 1)
        }
    };
}

/// Calls `$callback!` with one row for each true-f32 forward kernel for sm_80 (fused multiply-adds, no tf32).
///
/// Columns as in [`for_each_forward_mma_sm80`]. Measured at head dim 128, S 4096, against the best peer in
/// f32 on an H200: 64 x 64 at two blocks 0.79, 64 x 32 at two blocks 0.76, 64 x 32 at three blocks 0.66.
#[macro_export]
macro_rules! for_each_forward_fma_sm80 {
    ($callback:ident) => {
        $callback! {
            (forward_f32_d32_sm80, F32, 32, Vector16, 64, 64, 4, 2)
            (forward_f32_d64_sm80, F32, 64, Vector16, 64, 64, 4, 2)
            (forward_f32_d128_sm80, F32, 128, Vector16, 64, 64, 4, 2)
            (forward_f32_d256_sm80, F32, 256, Vector16, 64, 32, 4, 1)
            (forward_f32_d64_strided_sm80, F32, 64, Element, 64, 64, 4, 1)
            (forward_f32_d256_strided_sm80, F32, 256, Element, 32, 32, 2, 1)
        }
    };
}

/// Calls `$callback!` with one row for each forward kernel for Hopper.
///
/// Columns: name, element type, head dim, query rows, keys per step, warpgroups that compute.
///
/// - A warpgroup takes 64 query rows. Two of them have 232 registers per thread, three have 160: enough up to
///   head dim 128, with as many keys per step as registers of scores and probabilities are left for. Three
///   fill each other's gaps, and tiles of 192 rows read keys and values a third less often, which is less
///   power: full, S 4096 and 16384, measured 8 and 11 % quicker than 128 rows at head dims 80 and 96, 5 and
///   8 % at 128. Tiles of 128 rows are for lengths and masks of which tiles of 192 waste more.
/// - Keys per step from head dim 160 on: what two stages of keys and values leave of 227 KiB.
/// - Tiles of head dims that are no multiple of 64 arrive with zeros up to the next one, but only whole steps
///   of 16 columns are multiplied: measured 17 % quicker at head dim 96 than as 128, 9 % at 160 than as 192.
#[macro_export]
macro_rules! for_each_forward_sm90a {
    ($callback:ident) => {
        $callback! {
            (forward_bf16_d64_sm90a, Bf16, 64, 192, 128, 3)
            (forward_bf16_d64_q128_sm90a, Bf16, 64, 128, 128, 2)
            (forward_bf16_d80_sm90a, Bf16, 80, 192, 112, 3)
            (forward_bf16_d80_q128_sm90a, Bf16, 80, 128, 128, 2)
            (forward_bf16_d96_sm90a, Bf16, 96, 192, 112, 3)
            (forward_bf16_d96_q128_sm90a, Bf16, 96, 128, 128, 2)
            (forward_bf16_d128_sm90a, Bf16, 128, 192, 80, 3)
            (forward_bf16_d128_q128_sm90a, Bf16, 128, 128, 128, 2)
            (forward_bf16_d160_sm90a, Bf16, 160, 128, 112, 2)
            (forward_bf16_d192_sm90a, Bf16, 192, 128, 112, 2)
            (forward_bf16_d256_sm90a, Bf16, 256, 128, 80, 2)
            (forward_f16_d64_sm90a, F16, 64, 192, 128, 3)
            (forward_f16_d64_q128_sm90a, F16, 64, 128, 128, 2)
            (forward_f16_d80_sm90a, F16, 80, 192, 112, 3)
            (forward_f16_d80_q128_sm90a, F16, 80, 128, 128, 2)
            (forward_f16_d96_sm90a, F16, 96, 192, 112, 3)
            (forward_f16_d96_q128_sm90a, F16, 96, 128, 128, 2)
            (forward_f16_d128_sm90a, F16, 128, 192, 80, 3)
            (forward_f16_d128_q128_sm90a, F16, 128, 128, 128, 2)
            (forward_f16_d160_sm90a, F16, 160, 128, 112, 2)
            (forward_f16_d192_sm90a, F16, 192, 128, 112, 2)
            (forward_f16_d256_sm90a, F16, 256, 128, 80, 2)
        }
    };
}

/// As [`for_each_forward_sm90a`], for rows of several heads. What they are for waits for memory: other head
/// dims take the next larger one of these.
#[macro_export]
macro_rules! for_each_forward_heads_sm90a {
    ($callback:ident) => {
        $callback! {
            (forward_bf16_d64_heads_sm90a, Bf16, 64, 128, 128, 2)
            (forward_bf16_d128_heads_sm90a, Bf16, 128, 128, 128, 2)
            (forward_bf16_d256_heads_sm90a, Bf16, 256, 128, 80, 2)
            (forward_f16_d64_heads_sm90a, F16, 64, 128, 128, 2)
            (forward_f16_d128_heads_sm90a, F16, 128, 128, 128, 2)
            (forward_f16_d256_heads_sm90a, F16, 256, 128, 80, 2)
        }
    };
}

/// Calls `$callback!` with one row for each kernel that ends a forward whose keys were split.
///
/// Columns: name, element type, rows per block of four warps: one each, or one of all, for few rows.
#[macro_export]
macro_rules! for_each_forward_combine_sm80 {
    ($callback:ident) => {
        $callback! {
            (forward_combine_bf16_sm80, Bf16, 4)
            (forward_combine_bf16_q1_sm80, Bf16, 1)
            (forward_combine_f16_sm80, F16, 4)
            (forward_combine_f16_q1_sm80, F16, 1)
            (forward_combine_f32_sm80, F32, 4)
            (forward_combine_f32_q1_sm80, F32, 1)
        }
    };
}

/// The same for Hopper, where they start while the main kernel ends: 1 us of 12 to 46 (H200). With one row
/// per block that gained nothing.
#[macro_export]
macro_rules! for_each_forward_combine_sm90a {
    ($callback:ident) => {
        $callback! {
            (forward_combine_bf16_sm90a, Bf16, 4)
            (forward_combine_f16_sm90a, F16, 4)
        }
    };
}

/// Calls `$callback!` with one row for each tensor-core backward main kernel for sm_80.
///
/// Columns: name, element type, head dim, access, query rows per step, keys per block, warps, blocks per
/// multiprocessor. The eight warps work in pairs on `keys / 4` keys; 32 keys make fragments of k and v
/// serve two products, 16 is what the accumulators of wide heads leave room for.
#[macro_export]
macro_rules! for_each_backward_mma_sm80 {
    ($callback:ident) => {
        $callback! {
            (backward_bf16_d64_sm80, Bf16, 64, Vector16, 64, 128, 8, 1)
            (backward_bf16_d96_sm80, Bf16, 96, Vector16, 64, 128, 8, 1)
            (backward_bf16_d128_sm80, Bf16, 128, Vector16, 64, 128, 8, 1)
            (backward_bf16_d192_sm80, Bf16, 192, Vector16, 64, 64, 8, 1)
            (backward_bf16_d256_sm80, Bf16, 256, Vector16, 32, 64, 8, 1)
            (backward_bf16_d64_strided_sm80, Bf16, 64, Element, 64, 128, 8, 1)
            (backward_bf16_d128_strided_sm80, Bf16, 128, Element, 64, 128, 8, 1)
            (backward_bf16_d256_strided_sm80, Bf16, 256, Element, 32, 64, 8, 1)
            (backward_f16_d64_sm80, F16, 64, Vector16, 64, 128, 8, 1)
            (backward_f16_d96_sm80, F16, 96, Vector16, 64, 128, 8, 1)
            (backward_f16_d128_sm80, F16, 128, Vector16, 64, 128, 8, 1)
            (backward_f16_d192_sm80, F16, 192, Vector16, 64, 64, 8, 1)
            (backward_f16_d256_sm80, F16, 256, Vector16, 32, 64, 8, 1)
            (backward_f16_d64_strided_sm80, F16, 64, Element, 64, 128, 8, 1)
            (backward_f16_d128_strided_sm80, F16, 128, Element, 64, 128, 8, 1)
            (backward_f16_d256_strided_sm80, F16, 256, Element, 32, 64, 8, 1)
        }
    };
}

/// Calls `$callback!` with one row for each backward main kernel for Hopper and the kernel that ends it.
///
/// Columns: name, name of the ending kernel, element type, head dim, query rows per step, keys per block.
/// Where there are several for a head dim, the host chooses.
#[macro_export]
macro_rules! for_each_backward_sm90a {
    ($callback:ident) => {
        $callback! {
            (backward_bf16_d64_sm90a, backward_convert_bf16_d64_sm90a, Bf16, 64, 128, 128)
            (backward_bf16_d128_sm90a, backward_convert_bf16_d128_sm90a, Bf16, 128, 64, 128)
            (backward_bf16_d128_q80_sm90a, backward_convert_bf16_d128_q80_sm90a, Bf16, 128, 80, 128)
            (backward_f16_d64_sm90a, backward_convert_f16_d64_sm90a, F16, 64, 128, 128)
            (backward_f16_d128_sm90a, backward_convert_f16_d128_sm90a, F16, 128, 64, 128)
            (backward_f16_d128_q80_sm90a, backward_convert_f16_d128_q80_sm90a, F16, 128, 80, 128)
        }
    };
}

/// As [`for_each_backward_sm90a`], with three warpgroups that compute 64 keys each.
#[macro_export]
macro_rules! for_each_backward_three_sm90a {
    ($callback:ident) => {
        $callback! {
            (backward_bf16_d64_k192_sm90a, backward_convert_bf16_d64_k192_sm90a, Bf16, 64, 64, 192)
            (backward_f16_d64_k192_sm90a, backward_convert_f16_d64_k192_sm90a, F16, 64, 64, 192)
        }
    };
}

/// As [`for_each_backward_sm90a`], for wide heads.
///
/// One warpgroup holds dV and the other dK, 64 x head dim each: what their registers have room for.
#[macro_export]
macro_rules! for_each_backward_wide_sm90a {
    ($callback:ident) => {
        $callback! {
            (backward_bf16_d192_sm90a, backward_convert_bf16_d192_sm90a, Bf16, 192, 64, 64)
            (backward_bf16_d256_sm90a, backward_convert_bf16_d256_sm90a, Bf16, 256, 64, 64)
            (backward_f16_d192_sm90a, backward_convert_f16_d192_sm90a, F16, 192, 64, 64)
            (backward_f16_d256_sm90a, backward_convert_f16_d256_sm90a, F16, 256, 64, 64)
        }
    };
}

/// Calls `$callback!` with name and element type of each kernel that prepares a backward on sm_80 with tensor
/// cores.
#[macro_export]
macro_rules! for_each_backward_delta_mma_sm80 {
    ($callback:ident) => {
        $callback! {
            (backward_delta_bf16_sm80, Bf16)
            (backward_delta_f16_sm80, F16)
        }
    };
}

/// As [`for_each_backward_delta_mma_sm80`], without tensor cores.
#[macro_export]
macro_rules! for_each_backward_delta_fma_sm80 {
    ($callback:ident) => {
        $callback! {
            (backward_delta_f32_sm80, F32)
        }
    };
}

/// Calls `$callback!` with name and element type of each kernel that adds up dK and dV of key tiles that
/// the Hopper backward has divided.
#[macro_export]
macro_rules! for_each_backward_sum_sm90a {
    ($callback:ident) => {
        $callback! {
            (backward_sum_bf16_sm90a, Bf16)
            (backward_sum_f16_sm90a, F16)
        }
    };
}

/// Calls `$callback!` with name and element type of each kernel that adds f32 tensors.
#[macro_export]
macro_rules! for_each_accumulate_sm80 {
    ($callback:ident) => {
        $callback! {
            (accumulate_bf16_sm80, Bf16)
            (accumulate_f16_sm80, F16)
            (accumulate_f32_sm80, F32)
        }
    };
}

/// Calls `$callback!` with one row for each kernel that ends a backward of
/// [`for_each_backward_mma_sm80`]: columns as there.
#[macro_export]
macro_rules! for_each_backward_convert_mma_sm80 {
    ($callback:ident) => {
        $callback! {
            (backward_convert_bf16_d64_sm80, Bf16, 64, Vector16, 64, 128, 8, 1)
            (backward_convert_bf16_d96_sm80, Bf16, 96, Vector16, 64, 128, 8, 1)
            (backward_convert_bf16_d128_sm80, Bf16, 128, Vector16, 64, 128, 8, 1)
            (backward_convert_bf16_d192_sm80, Bf16, 192, Vector16, 64, 64, 8, 1)
            (backward_convert_bf16_d256_sm80, Bf16, 256, Vector16, 32, 64, 8, 1)
            (backward_convert_bf16_d64_strided_sm80, Bf16, 64, Element, 64, 128, 8, 1)
            (backward_convert_bf16_d128_strided_sm80, Bf16, 128, Element, 64, 128, 8, 1)
            (backward_convert_bf16_d256_strided_sm80, Bf16, 256, Element, 32, 64, 8, 1)
            (backward_convert_f16_d64_sm80, F16, 64, Vector16, 64, 128, 8, 1)
            (backward_convert_f16_d96_sm80, F16, 96, Vector16, 64, 128, 8, 1)
            (backward_convert_f16_d128_sm80, F16, 128, Vector16, 64, 128, 8, 1)
            (backward_convert_f16_d192_sm80, F16, 192, Vector16, 64, 64, 8, 1)
            (backward_convert_f16_d256_sm80, F16, 256, Vector16, 32, 64, 8, 1)
            (backward_convert_f16_d64_strided_sm80, F16, 64, Element, 64, 128, 8, 1)
            (backward_convert_f16_d128_strided_sm80, F16, 128, Element, 64, 128, 8, 1)
            (backward_convert_f16_d256_strided_sm80, F16, 256, Element, 32, 64, 8, 1)
        }
    };
}

/// Calls `$callback!` with one row for each true-f32 backward main kernel for sm_80. Columns as in
/// [`for_each_backward_mma_sm80`].
#[macro_export]
macro_rules! for_each_backward_fma_sm80 {
    ($callback:ident) => {
        $callback! {
            (backward_f32_d64_sm80, F32, 64, Vector16, 64, 64, 4, 2)
            (backward_f32_d128_sm80, F32, 128, Vector16, 32, 64, 4, 2)
            (backward_f32_d256_sm80, F32, 256, Vector16, 32, 32, 4, 1)
            (backward_f32_d64_strided_sm80, F32, 64, Element, 64, 64, 4, 1)
            (backward_f32_d256_strided_sm80, F32, 256, Element, 32, 32, 4, 1)
        }
    };
}

/// Calls `$callback!` with one row for each kernel that ends a backward of
/// [`for_each_backward_fma_sm80`].
#[macro_export]
macro_rules! for_each_backward_convert_fma_sm80 {
    ($callback:ident) => {
        $callback! {
            (backward_convert_f32_d64_sm80, F32, 64, Vector16, 64, 64, 4, 2)
            (backward_convert_f32_d128_sm80, F32, 128, Vector16, 32, 64, 4, 2)
            (backward_convert_f32_d256_sm80, F32, 256, Vector16, 32, 32, 4, 1)
            (backward_convert_f32_d64_strided_sm80, F32, 64, Element, 64, 64, 4, 1)
            (backward_convert_f32_d256_strided_sm80, F32, 256, Element, 32, 32, 4, 1)
        }
    };
}

/// Calls `$callback!` with one row for each tensor-core kernel for the gradient of the bias. Columns as in
/// [`for_each_forward_mma_sm80`]; as many keys as query rows.
#[macro_export]
macro_rules! for_each_bias_gradient_mma_sm80 {
    ($callback:ident) => {
        $callback! {
            (bias_gradient_bf16_d64_sm80, Bf16, 64, Vector16, 64, 64, 4, 1)
            (bias_gradient_bf16_d128_sm80, Bf16, 128, Vector16, 64, 64, 4, 1)
            (bias_gradient_bf16_d256_sm80, Bf16, 256, Vector16, 64, 64, 4, 1)
            (bias_gradient_bf16_d256_strided_sm80, Bf16, 256, Element, 32, 32, 2, 1)
            (bias_gradient_f16_d64_sm80, F16, 64, Vector16, 64, 64, 4, 1)
            (bias_gradient_f16_d128_sm80, F16, 128, Vector16, 64, 64, 4, 1)
            (bias_gradient_f16_d256_sm80, F16, 256, Vector16, 64, 64, 4, 1)
            (bias_gradient_f16_d256_strided_sm80, F16, 256, Element, 32, 32, 2, 1)
        }
    };
}

/// Calls `$callback!` with one row for each kernel for the gradient of the bias for Hopper, whose tiles have
/// 128 queries and 128 keys.
///
/// Columns: name, element type, head dim, pairs of tiles on their way or in use.
#[macro_export]
macro_rules! for_each_bias_gradient_sm90a {
    ($callback:ident) => {
        $callback! {
            (bias_gradient_bf16_d64_sm90a, Bf16, 64, 6)
            (bias_gradient_bf16_d128_sm90a, Bf16, 128, 3)
            (bias_gradient_f16_d64_sm90a, F16, 64, 6)
            (bias_gradient_f16_d128_sm90a, F16, 128, 3)
        }
    };
}

/// As [`for_each_bias_gradient_mma_sm80`], without tensor cores.
#[macro_export]
macro_rules! for_each_bias_gradient_fma_sm80 {
    ($callback:ident) => {
        $callback! {
            (bias_gradient_f32_d64_sm80, F32, 64, Vector16, 32, 32, 2, 1)
            (bias_gradient_f32_d128_sm80, F32, 128, Vector16, 32, 32, 2, 1)
            (bias_gradient_f32_d256_sm80, F32, 256, Vector16, 32, 32, 2, 1)
            (bias_gradient_f32_d256_strided_sm80, F32, 256, Element, 32, 32, 2, 1)
        }
    };
}

/// Calls `$callback!` with one row for each element type and access of multi-scale deformable attention.
///
/// Columns: names of the forward, of the main kernel of the backward and of the kernel that adds up gradients
/// of value in order, element type, access.
#[macro_export]
macro_rules! for_each_msda_sampling_sm80 {
    ($callback:ident) => {
        $callback! {
            (msda_forward_bf16_sm80, msda_backward_bf16_sm80, msda_gather_bf16_sm80, Bf16, Vector16)
            (
                msda_forward_bf16_strided_sm80, msda_backward_bf16_strided_sm80,
                msda_gather_bf16_strided_sm80, Bf16, Element
            )
            (msda_forward_f16_sm80, msda_backward_f16_sm80, msda_gather_f16_sm80, F16, Vector16)
            (
                msda_forward_f16_strided_sm80, msda_backward_f16_strided_sm80,
                msda_gather_f16_strided_sm80, F16, Element
            )
            (msda_forward_f32_sm80, msda_backward_f32_sm80, msda_gather_f32_sm80, F32, Vector16)
            (
                msda_forward_f32_strided_sm80, msda_backward_f32_strided_sm80,
                msda_gather_f32_strided_sm80, F32, Element
            )
        }
    };
}

/// Calls `$callback!` with name and element type of each main kernel of a backward of multi-scale deformable
/// attention for Hopper: lanes have four channels, and add their gradients to sums 16 bytes at a time; all
/// else is as in those for sm_80 with 16-byte access.
#[macro_export]
macro_rules! for_each_msda_backward_sm90a {
    ($callback:ident) => {
        $callback! {
            (msda_backward_bf16_sm90a, Bf16)
            (msda_backward_f16_sm90a, F16)
            (msda_backward_f32_sm90a, F32)
        }
    };
}

/// Calls `$callback!` with names and element type of the kernels that sort points.
#[macro_export]
macro_rules! for_each_msda_sort_sm80 {
    ($callback:ident) => {
        $callback! {
            (msda_count_bf16_sm80, msda_fill_bf16_sm80, Bf16)
            (msda_count_f16_sm80, msda_fill_f16_sm80, F16)
            (msda_count_f32_sm80, msda_fill_f32_sm80, F32)
        }
    };
}

/// Calls `$callback!` with name and element type of each kernel that rounds gradients of value.
#[macro_export]
macro_rules! for_each_msda_convert_sm80 {
    ($callback:ident) => {
        $callback! {
            (msda_convert_bf16_sm80, Bf16)
            (msda_convert_f16_sm80, F16)
        }
    };
}

/// The same of the kernel that zeroes the sums of these gradients.
#[macro_export]
macro_rules! for_each_msda_zero_sm80 {
    ($callback:ident) => {
        $callback! { (msda_zero_f32_sm80, F32) }
    };
}

/// The same of the kernel that scans counts, which are the same for every element type.
#[macro_export]
macro_rules! for_each_msda_scan_sm80 {
    ($callback:ident) => {
        $callback! { (msda_scan_f32_sm80, F32) }
    };
}

/// The same of each kernel that scans a tensor.
#[macro_export]
macro_rules! for_each_scan_sm80 {
    ($callback:ident) => {
        $callback! {
            (scan_bf16_sm80, Bf16)
            (scan_f16_sm80, F16)
            (scan_f32_sm80, F32)
        }
    };
}

/// Each kernel that chooses keys of a row of a bias: name, element type, threads that share a row, threads of
/// a block, blocks at once.
#[macro_export]
macro_rules! for_each_select_keys_sm80 {
    ($callback:ident) => {
        $callback! {
            (select_keys_bf16_sm80, Bf16, 32, 128, 4)
            (select_keys_bf16_block_sm80, Bf16, 128, 128, 4)
            (select_keys_bf16_long_sm80, Bf16, 512, 512, 1)
            (select_keys_f16_sm80, F16, 32, 128, 4)
            (select_keys_f16_block_sm80, F16, 128, 128, 4)
            (select_keys_f16_long_sm80, F16, 512, 512, 1)
            (select_keys_f32_sm80, F32, 32, 128, 3)
            (select_keys_f32_block_sm80, F32, 128, 128, 3)
            (select_keys_f32_long_sm80, F32, 512, 512, 1)
        }
    };
}
