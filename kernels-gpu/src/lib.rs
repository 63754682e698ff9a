//! Everything of finite-attention that runs on the GPU, and the integer arithmetic that it shares with
//! the host.
//!
//! Layers, each importing only what stands to its left:
//!
//! ```text
//! abi, geometry <- arch <- tile <- pipeline <- attention, msda <- kernels
//! ```
//!
//! `abi` and `geometry` are plain integer Rust and build everywhere: the host plans with them and the
//! tests check them with no GPU. The other layers build for `nvptx64-nvidia-cuda` alone, by `cargo xtask
//! build-kernels`. What they were compiled to is in `packs`, with the feature of that name.
#![no_std]
#![cfg_attr(
    target_arch = "nvptx64",
    feature(abi_ptx, asm_experimental_arch, core_intrinsics, stmt_expr_attributes)
)]
#![cfg_attr(target_arch = "nvptx64", allow(internal_features))]

pub mod abi;
pub mod geometry;
#[cfg(feature = "packs")]
pub mod packs;

#[cfg(target_arch = "nvptx64")]
pub mod arch;
#[cfg(target_arch = "nvptx64")]
pub mod attention;
#[cfg(target_arch = "nvptx64")]
pub mod kernels;
#[cfg(target_arch = "nvptx64")]
pub mod msda;
#[cfg(target_arch = "nvptx64")]
pub mod pipeline;
#[cfg(target_arch = "nvptx64")]
pub mod tile;

/// A kernel has nobody to unwind to. The PTX lint refuses any kernel that can reach this.
#[cfg(target_arch = "nvptx64")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {}
}
