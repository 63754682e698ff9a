//! Variants: kernels with some of their switches on. Which of them the assembler sees, and their text.

use kernels_gpu::abi::{KernelSpec, KernelVariant, Marker, Switch, Switches};

/// Variants whose figures are pinned: kernels of both passes, of both targets, and of f32.
const PINNED: [(&str, Switch); 26] = [
    ("forward_bf16_d64_sm90a", Switch::Softcap),
    ("forward_bf16_d128_sm90a", Switch::Softcap),
    ("forward_bf16_d128_sm80", Switch::Softcap),
    ("forward_f32_d64_sm80", Switch::Softcap),
    ("forward_bf16_d64_sm90a", Switch::Merge),
    ("forward_bf16_d128_sm90a", Switch::Merge),
    ("forward_bf16_d128_q128_sm90a", Switch::Merge),
    ("forward_bf16_d128_sm80", Switch::Merge),
    ("backward_bf16_d64_sm90a", Switch::Merge),
    ("backward_bf16_d128_sm90a", Switch::Merge),
    ("backward_bf16_d64_sm90a", Switch::Softcap),
    ("backward_bf16_d128_sm90a", Switch::Softcap),
    ("backward_bf16_d128_sm80", Switch::Softcap),
    ("backward_f32_d64_sm80", Switch::Softcap),
    ("forward_bf16_d64_q128_sm90a", Switch::AttnMask),
    ("forward_bf16_d128_q128_sm90a", Switch::AttnMask),
    ("forward_bf16_d128_sm80", Switch::AttnMask),
    ("backward_bf16_d64_sm90a", Switch::AttnMask),
    ("backward_bf16_d128_sm90a", Switch::AttnMask),
    ("backward_bf16_d128_sm80", Switch::AttnMask),
    ("forward_bf16_d64_sm90a", Switch::Bias),
    ("forward_bf16_d128_q128_sm90a", Switch::Bias),
    ("forward_bf16_d64_sm90a", Switch::Alibi),
    ("forward_bf16_d128_sm90a", Switch::Alibi),
    ("backward_bf16_d64_k192_sm90a", Switch::Bias),
    ("backward_bf16_d128_q80_sm90a", Switch::Bias),
];

/// The kernel as it is compiled, then its variants that are pinned.
pub fn assembled(kernel: &'static KernelSpec) -> Vec<KernelVariant> {
    let pinned = PINNED.iter().filter(|(name, _)| *name == kernel.name);
    let on = pinned.map(|&(_, switch)| KernelVariant { kernel, switches: Switches::NONE.with(switch) });
    std::iter::once(kernel.into()).chain(on).collect()
}

/// The text of a kernel, one that the lint has passed, with these switches on.
pub fn switched(ptx: &str, switches: Switches) -> String {
    let set = |line: &str| match Marker::of_line(line) {
        Ok(Some(marker)) => {
            format!("{}\n", marker.set(switches.iter().any(|switch| switch.name() == marker.switch)))
        }
        _ => format!("{line}\n"),
    };
    ptx.lines().map(set).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels_gpu::abi::KERNELS;

    #[test]
    fn pinned_variants_are_of_kernels_with_the_switch() {
        for (name, switch) in PINNED {
            let kernel = KERNELS.iter().find(|kernel| kernel.name == name);
            assert!(kernel.is_some_and(|kernel| kernel.switches.contains(switch)), "{name}");
        }
    }

    #[test]
    fn a_kernel_is_assembled_as_compiled_first() {
        let of = |name: &str| assembled(KERNELS.iter().find(|kernel| kernel.name == name).unwrap());
        let names: Vec<_> = of("forward_f32_d64_sm80").iter().map(ToString::to_string).collect();
        assert_eq!(names, ["forward_f32_d64_sm80", "forward_f32_d64_sm80+softcap"]);
        assert_eq!(of("backward_delta_bf16_sm80").len(), 1);
    }

    #[test]
    fn markers_of_the_switches_are_set_and_no_others() {
        let text = "a\nmov.b32 %r1, 0; // specialize softcap\nmov.b32 %r2, 0; // specialize x\n";
        let on = switched(text, Switches::NONE.with(Switch::Softcap));
        assert_eq!(on, text.replacen(" 0;", " 1;", 1));
        assert_eq!(switched(&on, Switches::NONE), text);
    }
}
