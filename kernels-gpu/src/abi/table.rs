//! The table of kernels: what is compiled, and with which sizes.

use super::shared_bytes::*;
use super::{
    ACCUMULATE_THREADS, Access, Arch, COMBINE_WARPS, Dtype, DynamicStage, Family, GATHER_THREADS,
    KernelSpec, MASK_BITS_THREADS, MsdaStage, POSITIONS_THREADS, SCAN_THREADS, SINK_GRADIENT_THREADS,
    Switches, backward_sm90a_warpgroups, layout, select_words,
};

/// One kernel: what it computes, its target, a row as those of the lists, and what these do not have.
macro_rules! spec {
    ($family:ident, $arch:ident, ($name:ident, $dtype:ident, $dim:literal, $access:ident, $queries:literal,
        $keys:literal, $threads:expr, $blocks:literal), $shared_bytes:expr, $gathers_heads:literal) => {
        KernelSpec {
            name: stringify!($name),
            family: Family::$family,
            arch: Arch::$arch,
            dtype: Dtype::$dtype,
            head_dim: $dim,
            access: Access::$access,
            query_rows: $queries,
            key_rows: $keys,
            threads: $threads,
            min_blocks: $blocks,
            shared_bytes: $shared_bytes,
            gathers_heads: $gathers_heads,
            multiplies_parts: false,
            switches: Switches::of_family(Family::$family, Dtype::$dtype),
        }
    };
}

macro_rules! table {
    ($family:ident, $shared:expr, $(($name:ident, $dtype:ident, $dim:literal, $access:ident, $queries:literal,
        $keys:literal, $warps:literal, $blocks:literal))*) => {
        &[$(spec!(
            $family, Sm80, ($name, $dtype, $dim, $access, $queries, $keys, $warps * 32, $blocks),
            $shared($dim, $queries, $keys), false
        )),*]
    };
}

macro_rules! forward_sm90a_table {
    ($gathers_heads:literal, $(($name:ident, $dtype:ident, $dim:literal, $queries:literal, $keys:literal,
        $warpgroups:literal))*) => {
        &[$(spec!(
            Forward, Sm90a, ($name, $dtype, $dim, Vector16, $queries, $keys, (1 + $warpgroups) * 128, 1),
            forward_sm90a_shared_bytes($dim, $queries, $keys), $gathers_heads
        )),*]
    };
}

mod split;

/// Threads of a block of the Hopper backward: those that compute, and a warpgroup of helpers.
const fn backward_sm90a_threads(key_rows: u32) -> u32 {
    (1 + backward_sm90a_warpgroups(key_rows)) * 128
}

macro_rules! backward_sm90a_table {
    ($(($name:ident, $convert:ident, $dtype:ident, $dim:literal, $queries:literal,
        $keys:literal))*) => {
        &[$(
            spec!(
                Backward, Sm90a,
                ($name, $dtype, $dim, Vector16, $queries, $keys, backward_sm90a_threads($keys), 1),
                backward_sm90a_shared_bytes($dim, $queries, $keys), false
            ),
            // 32 elements for each thread.
            spec!(
                BackwardConvert, Sm90a,
                ($convert, $dtype, $dim, Vector16, $queries, $keys, $queries * $dim / 32, 1), 0, false
            ),
        )*]
    };
}

const FORWARD_MMA: &[KernelSpec] = {
    macro_rules! rows { ($($row:tt)*) => { table!(Forward, forward_mma_shared_bytes, $($row)*) }; }
    for_each_forward_mma_sm80!(rows)
};

const FORWARD_FMA: &[KernelSpec] = {
    macro_rules! rows { ($($row:tt)*) => { table!(Forward, forward_fma_shared_bytes, $($row)*) }; }
    for_each_forward_fma_sm80!(rows)
};

const FORWARD_SM90A: &[KernelSpec] = {
    macro_rules! rows { ($($row:tt)*) => { forward_sm90a_table!(false, $($row)*) }; }
    for_each_forward_sm90a!(rows)
};

const FORWARD_HEADS_SM90A: &[KernelSpec] = {
    macro_rules! rows { ($($row:tt)*) => { forward_sm90a_table!(true, $($row)*) }; }
    for_each_forward_heads_sm90a!(rows)
};

macro_rules! forward_combine_table {
    ($arch:ident, $(($name:ident, $dtype:ident, $rows:literal))*) => {
        &[$(spec!(
            ForwardCombine, $arch, ($name, $dtype, 256, Element, $rows, 1, COMBINE_WARPS * 32, 8),
            forward_combine_shared_bytes(256, $rows, 1), false
        )),*]
    };
}

const FORWARD_COMBINE: &[KernelSpec] = {
    macro_rules! rows { ($($row:tt)*) => { forward_combine_table!(Sm80, $($row)*) }; }
    for_each_forward_combine_sm80!(rows)
};

const FORWARD_COMBINE_SM90A: &[KernelSpec] = {
    macro_rules! rows { ($($row:tt)*) => { forward_combine_table!(Sm90a, $($row)*) }; }
    for_each_forward_combine_sm90a!(rows)
};

const BACKWARD_DELTA_MMA: &[KernelSpec] = {
    macro_rules! rows {
        ($(($name:ident, $dtype:ident))*) => {
            table!(
                BackwardDelta, backward_delta_shared_bytes, $(($name, $dtype, 256, Element, 64, 1, 4, 5))*
            )
        };
    }
    for_each_backward_delta_mma_sm80!(rows)
};

const BACKWARD_DELTA_FMA: &[KernelSpec] = {
    macro_rules! rows {
        ($(($name:ident, $dtype:ident))*) => {
            table!(BackwardDelta, no_shared, $(($name, $dtype, 256, Element, 64, 1, 4, 1))*)
        };
    }
    for_each_backward_delta_fma_sm80!(rows)
};

const BACKWARD_SUM: &[KernelSpec] = {
    macro_rules! rows {
        ($(($name:ident, $dtype:ident))*) => {
            &[$(spec!(BackwardSum, Sm90a, ($name, $dtype, 256, Element, 1, 16, 128, 1), 0, false)),*]
        };
    }
    for_each_backward_sum_sm90a!(rows)
};

const ACCUMULATE: &[KernelSpec] = {
    macro_rules! rows {
        ($(($name:ident, $dtype:ident))*) => {
            &[$(spec!(
                Accumulate, Sm80, ($name, $dtype, 256, Element, 1, 1, ACCUMULATE_THREADS, 1), 0, false
            )),*]
        };
    }
    for_each_accumulate_sm80!(rows)
};

const BACKWARD_MMA: &[KernelSpec] = {
    macro_rules! rows { ($($row:tt)*) => { table!(Backward, backward_mma_shared_bytes, $($row)*) }; }
    for_each_backward_mma_sm80!(rows)
};

const BACKWARD_FMA: &[KernelSpec] = {
    macro_rules! rows { ($($row:tt)*) => { table!(Backward, backward_fma_shared_bytes, $($row)*) }; }
    for_each_backward_fma_sm80!(rows)
};

const BACKWARD_CONVERT_MMA: &[KernelSpec] = {
    macro_rules! rows { ($($row:tt)*) => { table!(BackwardConvert, no_shared, $($row)*) }; }
    for_each_backward_convert_mma_sm80!(rows)
};

const BACKWARD_CONVERT_FMA: &[KernelSpec] = {
    macro_rules! rows { ($($row:tt)*) => { table!(BackwardConvert, no_shared, $($row)*) }; }
    for_each_backward_convert_fma_sm80!(rows)
};

const BIAS_GRADIENT_MMA: &[KernelSpec] = {
    macro_rules! rows { ($($row:tt)*) => { table!(BiasGradient, bias_gradient_mma_shared_bytes, $($row)*) }; }
    for_each_bias_gradient_mma_sm80!(rows)
};

const BIAS_GRADIENT_FMA: &[KernelSpec] = {
    macro_rules! rows { ($($row:tt)*) => { table!(BiasGradient, bias_gradient_fma_shared_bytes, $($row)*) }; }
    for_each_bias_gradient_fma_sm80!(rows)
};

const BIAS_GRADIENT_SM90A: &[KernelSpec] = {
    macro_rules! rows {
        ($(($name:ident, $dtype:ident, $dim:literal, $pairs:literal))*) => {
            &[$(spec!(
                BiasGradient, Sm90a, ($name, $dtype, $dim, Vector16, 128, 128, 384, 1),
                layout::BiasGradientHopperLayout::new($dim, 128).regions.bytes(), false
            )),*]
        };
    }
    for_each_bias_gradient_sm90a!(rows)
};

/// The gradient of the sinks, the bits of a boolean mask and the map of its tiles: for all element types.
const OF_ANY_DTYPE: &[KernelSpec] = &[
    spec!(
        SinkGradient,
        Sm80,
        (sink_gradient_sm80, F32, 256, Element, 1, 1, SINK_GRADIENT_THREADS, 1),
        sink_gradient_shared_bytes(),
        false
    ),
    spec!(MaskBits, Sm80, (mask_bits_sm80, F32, 256, Element, 1, 32, MASK_BITS_THREADS, 1), 0, false),
    spec!(
        MaskMap,
        Sm80,
        (mask_map_sm80, F32, 256, Element, 64, 64, MASK_BITS_THREADS, 1),
        layout::mask_map().bytes(),
        false
    ),
];

const SCAN: &[KernelSpec] = {
    macro_rules! rows {
        ($(($name:ident, $dtype:ident))*) => {
            &[$(spec!(
                Scan, Sm80, ($name, $dtype, 256, Element, 1, 1, SCAN_THREADS, 4),
                layout::scan().bytes(), false
            )),*]
        };
    }
    for_each_scan_sm80!(rows)
};

/// A kernel of dynamic masks: of a stage, for `$rows` rows a block, `$keys` keys in registers.
macro_rules! dynamic {
    ($stage:ident, $name:ident, $dtype:ident, $rows:expr, $keys:expr, $threads:expr, $blocks:expr) => {
        KernelSpec {
            name: stringify!($name),
            family: Family::Dynamic(DynamicStage::$stage),
            arch: Arch::Sm80,
            dtype: Dtype::$dtype,
            head_dim: 256,
            access: Access::Element,
            query_rows: $rows,
            key_rows: $keys,
            threads: $threads,
            min_blocks: $blocks,
            shared_bytes: layout::dynamic(DynamicStage::$stage, $threads, $rows).bytes(),
            gathers_heads: false,
            multiplies_parts: false,
            switches: Switches::NONE,
        }
    };
}

const SELECT_KEYS: &[KernelSpec] = {
    macro_rules! rows {
        ($(($name:ident, $dtype:ident, $lanes:literal, $threads:literal, $blocks:literal))*) => {
            &[$(dynamic!(
                Select, $name, $dtype, $threads / $lanes, $lanes * 32 * select_words(Dtype::$dtype), $threads,
                $blocks
            )),*]
        };
    }
    for_each_select_keys_sm80!(rows)
};

const DYNAMIC: &[KernelSpec] = &[
    dynamic!(Blocks, mask_blocks_sm80, F32, 1, 32, MASK_BITS_THREADS, 1),
    dynamic!(Positions, key_positions_sm80, F32, 1, 32, POSITIONS_THREADS, 1),
    dynamic!(Gather, gather_keys_sm80, F32, 1, 1, GATHER_THREADS, 1),
    dynamic!(Scatter, scatter_keys_sm80, F32, 1, 1, GATHER_THREADS, 1),
];

const BACKWARD_SM90A: &[KernelSpec] = for_each_backward_sm90a!(backward_sm90a_table);

const BACKWARD_THREE_SM90A: &[KernelSpec] = for_each_backward_three_sm90a!(backward_sm90a_table);

const BACKWARD_WIDE_SM90A: &[KernelSpec] = for_each_backward_wide_sm90a!(backward_sm90a_table);

/// A kernel of multi-scale deformable attention.
macro_rules! msda {
    ($stage:ident, $arch:ident, $name:ident, $dtype:ident, $access:ident) => {
        KernelSpec {
            name: stringify!($name),
            family: Family::Msda(MsdaStage::$stage),
            arch: Arch::$arch,
            dtype: Dtype::$dtype,
            head_dim: 256,
            access: Access::$access,
            query_rows: 1,
            key_rows: 1,
            threads: MsdaStage::$stage.threads(),
            min_blocks: MsdaStage::$stage.min_blocks(),
            shared_bytes: layout::msda(MsdaStage::$stage).bytes(),
            gathers_heads: false,
            multiplies_parts: false,
            switches: Switches::NONE,
        }
    };
}

const MSDA_SAMPLING: &[KernelSpec] = {
    macro_rules! rows {
        ($(($forward:ident, $backward:ident, $gather:ident, $dtype:ident, $access:ident))*) => {
            &[$(
                msda!(Forward, Sm80, $forward, $dtype, $access),
                msda!(Backward, Sm80, $backward, $dtype, $access),
                msda!(Gather, Sm80, $gather, $dtype, $access),
            )*]
        };
    }
    for_each_msda_sampling_sm80!(rows)
};

const MSDA_BACKWARD_SM90A: &[KernelSpec] = {
    macro_rules! rows {
        ($(($name:ident, $dtype:ident))*) => { &[$(msda!(Backward, Sm90a, $name, $dtype, Vector16)),*] };
    }
    for_each_msda_backward_sm90a!(rows)
};

const MSDA_SORT: &[KernelSpec] = {
    macro_rules! rows {
        ($(($count:ident, $fill:ident, $dtype:ident))*) => {
            &[$(
                msda!(Count, Sm80, $count, $dtype, Element),
                msda!(Fill, Sm80, $fill, $dtype, Element),
            )*]
        };
    }
    for_each_msda_sort_sm80!(rows)
};

macro_rules! msda_table {
    ($stage:ident, $(($name:ident, $dtype:ident))*) => {
        &[$(msda!($stage, Sm80, $name, $dtype, Element)),*]
    };
}

const MSDA_CONVERT: &[KernelSpec] = {
    macro_rules! rows { ($($row:tt)*) => { msda_table!(Convert, $($row)*) }; }
    for_each_msda_convert_sm80!(rows)
};

const MSDA_ZERO: &[KernelSpec] = {
    macro_rules! rows { ($($row:tt)*) => { msda_table!(Zero, $($row)*) }; }
    for_each_msda_zero_sm80!(rows)
};

const MSDA_SCAN: &[KernelSpec] = {
    macro_rules! rows { ($($row:tt)*) => { msda_table!(Scan, $($row)*) }; }
    for_each_msda_scan_sm80!(rows)
};

const FAMILIES: &[&[KernelSpec]] = &[
    FORWARD_MMA,
    FORWARD_FMA,
    FORWARD_SM90A,
    FORWARD_HEADS_SM90A,
    split::FORWARD_SM90A,
    split::FORWARD_SM80,
    split::OPERANDS,
    FORWARD_COMBINE,
    FORWARD_COMBINE_SM90A,
    BACKWARD_DELTA_MMA,
    BACKWARD_DELTA_FMA,
    BACKWARD_MMA,
    BACKWARD_FMA,
    split::BACKWARD_SM80,
    BACKWARD_SM90A,
    BACKWARD_THREE_SM90A,
    BACKWARD_WIDE_SM90A,
    BACKWARD_CONVERT_MMA,
    BACKWARD_CONVERT_FMA,
    split::BACKWARD_CONVERT_SM80,
    BACKWARD_SUM,
    ACCUMULATE,
    BIAS_GRADIENT_MMA,
    BIAS_GRADIENT_FMA,
    BIAS_GRADIENT_SM90A,
    OF_ANY_DTYPE,
    SELECT_KEYS,
    DYNAMIC,
    SCAN,
    MSDA_SAMPLING,
    MSDA_BACKWARD_SM90A,
    MSDA_SORT,
    MSDA_CONVERT,
    MSDA_ZERO,
    MSDA_SCAN,
];

const COUNT: usize = {
    let (mut count, mut family) = (0, 0);
    while family < FAMILIES.len() {
        count += FAMILIES[family].len();
        family += 1;
    }
    count
};

/// Every compiled kernel.
pub const KERNELS: &[KernelSpec] = &{
    let mut all = [FAMILIES[0][0]; COUNT];
    let (mut next, mut family) = (0, 0);
    while family < FAMILIES.len() {
        let mut i = 0;
        while i < FAMILIES[family].len() {
            all[next] = FAMILIES[family][i];
            (next, i) = (next + 1, i + 1);
        }
        family += 1;
    }
    all
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::MAX_HEAD_DIM;

    #[test]
    fn names_are_unique_and_say_what_the_kernel_is() {
        for (i, spec) in KERNELS.iter().enumerate() {
            assert!(
                KERNELS[..i].iter().all(|other| other.name != spec.name),
                "{} stands twice",
                spec.name
            );
            assert!(spec.takes_any_dtype() || spec.name.contains(spec.dtype.name()));
            let of_any_access = spec.takes_any_strides();
            let strided = spec.access == Access::Element && !of_any_access;
            assert_eq!(spec.name.contains("_strided"), strided);
        }
    }

    #[test]
    fn every_dtype_and_access_reaches_the_largest_head_dim() {
        for dtype in [Dtype::Bf16, Dtype::F16, Dtype::F32] {
            for access in [Access::Vector16, Access::Element] {
                assert!(
                    KERNELS
                        .iter()
                        .any(|k| (k.dtype, k.access, k.head_dim) == (dtype, access, MAX_HEAD_DIM))
                );
            }
        }
    }

    #[test]
    fn shared_memory_fits_the_smallest_device_of_the_arch() {
        // sm_86 and sm_89 have 99 KiB per block, sm_80 163 KiB, sm_90 227 KiB. The aligned kernels want
        // sm_80's.
        for spec in KERNELS {
            let most = match spec.arch {
                Arch::Sm80 => 163 * 1024,
                Arch::Sm90a => 227 * 1024,
            };
            assert!(spec.shared_bytes <= most, "{} needs {} bytes", spec.name, spec.shared_bytes);
        }
    }
}
