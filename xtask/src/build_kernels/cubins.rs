//! Kernels that also ship assembled, so that their first launch need not wait for the driver's own assembler.
//!
//! Which, stands here and nowhere else. NVIDIA's assembler makes them, of the version that pins are made
//! with, from the PTX without its lines of source: no machine code depends on these, and they would be most
//! of the file.

use kernels_gpu::abi::{Access, Dtype, Family, KernelSpec, KernelVariant};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::hex;

/// Head dims whose kernels ship assembled.
const HEAD_DIMS: [u32; 2] = [64, 128];

/// An assembled kernel in the manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cubin {
    /// SHA-256 of the file.
    pub sha256: String,
    /// SHA-256 of the PTX that it was assembled from: see [`code`].
    pub code_sha256: String,
}

/// Whether a kernel ships assembled, with no switch on: attention of 16-bit elements at the usual head dims,
/// with rows on 16-byte boundaries, and what is launched beside it.
pub fn is_shipped(variant: KernelVariant) -> bool {
    let kernel: &KernelSpec = variant.kernel;
    let is_attention = matches!(
        kernel.family,
        Family::Forward
            | Family::ForwardCombine
            | Family::Backward
            | Family::BackwardDelta
            | Family::BackwardConvert
            | Family::BackwardSum
    );
    let is_usual = HEAD_DIMS.contains(&kernel.head_dim) && kernel.access == Access::Vector16;
    variant.switches.is_empty()
        && is_attention
        && kernel.dtype != Dtype::F32
        && (is_usual || kernel.takes_any_strides())
}

/// What an assembled kernel is called: the kernel and the device that it is for.
pub fn name(kernel: &str, device: &str) -> String {
    format!("{kernel}.{device}")
}

/// PTX without the lines of its source: all that the assembler looks at.
pub fn code(ptx: &str) -> String {
    let is_code = |line: &&str| {
        let word = line.split_whitespace().next();
        word != Some(".loc") && word != Some(".file")
    };
    ptx.split_inclusive('\n').filter(is_code).collect()
}

/// The entry of the manifest.
pub fn described(cubin: &[u8], ptx: &str) -> Cubin {
    Cubin { sha256: hex(&Sha256::digest(cubin)), code_sha256: code_sha256(ptx) }
}

/// The hash of what an assembled kernel would be made from.
pub fn code_sha256(ptx: &str) -> String {
    hex(&Sha256::digest(code(ptx)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels_gpu::abi::{KERNELS, Switch, Switches};

    fn variant(name: &str) -> KernelVariant {
        KERNELS.iter().find(|kernel| kernel.name == name).unwrap().into()
    }

    #[test]
    fn what_ships_assembled_is_what_is_launched_most() {
        for name in [
            "forward_bf16_d128_sm90a",
            "forward_f16_d64_sm80",
            "forward_combine_bf16_sm90a",
            "backward_bf16_d128_q80_sm90a",
            "backward_delta_f16_sm80",
            "backward_convert_f16_d64_sm90a",
        ] {
            assert!(is_shipped(variant(name)), "{name}");
        }
        for name in ["forward_f32_d64_sm80", "forward_bf16_d64_strided_sm80", "forward_bf16_d96_sm90a"] {
            assert!(!is_shipped(variant(name)), "{name}");
        }
        let switches = Switches::NONE.with(Switch::Softcap);
        assert!(!is_shipped(KernelVariant { switches, ..variant("forward_bf16_d128_sm90a") }));
    }

    #[test]
    fn code_has_no_lines_of_source() {
        let ptx = ".version 8.0\n\t.file\t1 \"a.rs\"\n{\n\t.loc\t1 2 3 // a.rs\n\tret;\n}";
        assert_eq!(code(ptx), ".version 8.0\n{\n\tret;\n}");
        assert_eq!(code_sha256(ptx), code_sha256(&ptx.replace("1 2 3", "1 3 3")));
    }
}
