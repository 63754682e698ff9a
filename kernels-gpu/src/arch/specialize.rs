//! Switches of a kernel that the host sets in its PTX text before the driver assembles it.
//!
//! ```text
//! mov.b32 %r1, 0; // specialize softcap          as compiled: off
//! mov.b32 %r1, 1; // specialize softcap          as edited: on
//! ```
//!
//! rustc and LLVM do not know the value, and keep the code of both cases. The assembler of the driver does:
//! with 0, what a switch guards is gone, registers included. So one PTX text serves every combination of
//! features, and a feature that is off costs nothing. Which switches a kernel has is
//! [`KernelSpec::switches`](crate::abi::KernelSpec::switches), and the build checks that its text has the
//! markers of exactly these.
//!
//! A switch guards arithmetic on registers, loads and branches around them, and never a matrix product: the
//! assembler waits for each product that is behind a branch. Such a line is a comment as compiled, which the
//! host makes code where the switch is on ([`SlopeStep`](crate::arch::wgmma::SlopeStep)):
//!
//! ```text
//! // wgmma.mma_async ...; // only with alibi      as compiled: off
//! wgmma.mma_async ...; // only with alibi         as edited: on
//! ```

use core::arch::asm;

macro_rules! switches {
    ($($(#[$doc:meta])* $name:ident, $marker:literal;)*) => {
        $(
            $(#[$doc])*
            #[inline(always)]
            pub fn $name() -> bool {
                let on: u32;
                // SAFETY: sets a register.
                unsafe {
                    asm!(concat!("mov.b32 {}, 0; // specialize ", $marker), out(reg32) on,
                        options(pure, nomem, nostack))
                };
                on != 0
            }
        )*
    };
}

switches! {
    /// Whether scores are capped: [`Switch::Softcap`](crate::abi::Switch::Softcap).
    softcap, "softcap";
    /// Whether capped rows can be steep: [`Switch::SteepCap`](crate::abi::Switch::SteepCap).
    steep_cap, "steep-cap";
    /// Whether scores have a bias of the dtype of q: [`Switch::Bias`](crate::abi::Switch::Bias).
    bias, "bias";
    /// Whether scores have a bias of f32: [`Switch::BiasF32`](crate::abi::Switch::BiasF32).
    bias_f32, "bias-f32";
    /// Whether a boolean mask hides keys: [`Switch::AttnMask`](crate::abi::Switch::AttnMask).
    attn_mask, "mask";
    /// Whether scores sink with the distance: [`Switch::Alibi`](crate::abi::Switch::Alibi).
    alibi, "alibi";
    /// Whether sums have a sink: [`Switch::Sinks`](crate::abi::Switch::Sinks).
    sinks, "sinks";
    /// Whether probabilities are dropped: [`Switch::Dropout`](crate::abi::Switch::Dropout).
    dropout, "dropout";
    /// Whether passes before have left something: [`Switch::Merge`](crate::abi::Switch::Merge).
    merge, "merge";
}
