//! The kernels that multiply f32 in two parts, and those that make the parts.

use crate::abi::shared_bytes::*;
use crate::abi::{Access, Arch, Dtype, Family, KernelSpec, SPLIT_THREADS, Switches};

pub(super) const FORWARD_SM90A: &[KernelSpec] = {
    macro_rules! rows {
        ($(($name:ident, $dtype:ident, $dim:literal, $queries:literal, $keys:literal,
            $warpgroups:literal))*) => {
            &[$(KernelSpec { multiplies_parts: true, ..spec!(
                Forward, Sm90a, ($name, $dtype, $dim, Vector16, $queries, $keys, (1 + $warpgroups) * 128, 1),
                forward_sm90a_shared_bytes(2 * $dim, $queries, $keys), false
            ) }),*]
        };
    }
    for_each_forward_split_sm90a!(rows)
};

pub(super) const FORWARD_SM80: &[KernelSpec] = {
    macro_rules! rows {
        ($(($name:ident, $dtype:ident, $dim:literal, $access:ident, $queries:literal, $keys:literal,
            $warps:literal, $blocks:literal))*) => {
            &[$(KernelSpec { multiplies_parts: true, ..spec!(
                Forward, Sm80, ($name, $dtype, $dim, $access, $queries, $keys, $warps * 32, $blocks),
                forward_mma_shared_bytes(2 * $dim, $queries, $keys), false
            ) }),*]
        };
    }
    for_each_forward_split_sm80!(rows)
};

/// The kernels that make two f16 parts of f32.
pub(super) const OPERANDS: &[KernelSpec] = &[
    spec!(
        MeasureOperands,
        Sm80,
        (measure_operands_f32_sm80, F32, 128, Element, 1, 1, SPLIT_THREADS, 4),
        measure_operands_shared_bytes(),
        false
    ),
    spec!(
        SplitOperands,
        Sm80,
        (split_operands_f32_sm80, F32, 128, Element, 1, 1, SPLIT_THREADS, 4),
        measure_operands_shared_bytes(),
        false
    ),
];

/// As `table!`, of kernels that multiply parts.
macro_rules! parts_table {
    ($family:ident, $shared:expr, $(($name:ident, $dtype:ident, $dim:literal, $access:ident, $queries:literal,
        $keys:literal, $warps:literal, $blocks:literal))*) => {
        &[$(KernelSpec { multiplies_parts: true, ..spec!(
            $family, Sm80, ($name, $dtype, $dim, $access, $queries, $keys, $warps * 32, $blocks),
            $shared($dim, $queries, $keys), false
        ) }),*]
    };
}

pub(super) const BACKWARD_SM80: &[KernelSpec] = {
    macro_rules! rows { ($($row:tt)*) => { parts_table!(Backward, backward_parts_shared_bytes, $($row)*) }; }
    for_each_backward_parts_sm80!(rows)
};

pub(super) const BACKWARD_CONVERT_SM80: &[KernelSpec] = {
    macro_rules! rows { ($($row:tt)*) => { parts_table!(BackwardConvert, no_shared, $($row)*) }; }
    for_each_backward_convert_parts_sm80!(rows)
};
