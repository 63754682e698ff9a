//! The kernels: one file per family, instantiated from the tables in [`crate::abi`].

/// Types of sizes that follow from the tile of a kernel `K`.
macro_rules! sizes_of {
    ($kernel:ident: $($(#[$doc:meta])* $name:ident: $size:ident { $($constant:ident: $value:expr),* })*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy)]
            pub struct $name<K>(core::marker::PhantomData<K>);

            impl<K: $kernel> $size for $name<K> {
                $(const $constant: u32 = $value;)*
            }
        )*
    };
}

pub mod accumulate;
pub mod backward_convert;
pub mod backward_delta;
pub mod backward_fma;
pub mod backward_hopper;
pub mod backward_mma;
pub mod backward_sum;
pub mod bias_gradient;
pub mod forward_combine;
pub mod forward_fma;
pub mod forward_hopper;
pub mod forward_mma;
pub mod gather_keys;
pub mod mask_bits;
pub mod mask_blocks;
pub mod mask_map;
pub mod msda_backward;
pub mod msda_forward;
pub mod msda_gather;
pub mod msda_sort;
pub mod msda_sums;
pub mod scan;
pub mod select_keys;
pub mod sink_gradient;
pub mod split_operands;
mod team;
