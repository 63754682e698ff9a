//! Switches in the text of a kernel: each marker says whether its switch is on.

use super::entries;
use crate::error::{Error, Result};
use kernels_gpu::abi::{KernelVariant, Marker, Switch, Switches};
use std::fmt::Write as _;

/// The text with the markers of the variant's kernel set as its switches say; `None` if it says so already.
/// Markers of other entries, and of switches that this library does not know, stay as they are.
///
/// # Errors
/// [`Error::SwitchMissing`] if a switch is on that the kernel has no marker of,
/// [`Error::KernelImageCorrupt`] if the comment of a known marker stands behind other code.
pub(super) fn specialized(text: &str, variant: KernelVariant) -> Result<Option<String>> {
    let kernel = variant.kernel.name;
    let mut edited = String::with_capacity(text.len());
    let (mut is_inside, mut found) = (false, Switches::NONE);
    let (mut entries, mut begin) = (entries(text).peekable(), 0);
    for (number, line) in (1..).zip(text.split_inclusive('\n')) {
        if let Some((_, entry)) = entries.next_if(|&(of_entry, _)| of_entry == begin) {
            is_inside = entry == kernel;
        }
        begin += line.len();
        let marker = if is_inside { known_marker(line) } else { Ok(None) };
        let marker = marker.map_err(|bad| Error::KernelImageCorrupt {
            kernel: variant.to_string(),
            reason: format!("PTX line {number}: {bad}"),
        })?;
        match marker {
            None => edited.push_str(line),
            Some((switch, marker)) => {
                found = found.with(switch);
                // Writing to a String cannot fail.
                let _ = writeln!(edited, "{}", marker.set(variant.switches.contains(switch)));
            }
        }
    }
    match variant.switches.iter().find(|&switch| !found.contains(switch)) {
        Some(switch) => Err(Error::SwitchMissing { kernel: kernel.to_owned(), switch: switch.name() }),
        None => Ok((edited != text).then_some(edited)),
    }
}

/// The marker that a line is, if it is one of a known switch: of many lines most are none by their end.
fn known_marker(line: &str) -> Result<Option<(Switch, Marker<'_>)>, String> {
    if !Switch::ALL.iter().any(|switch| line.trim_end().ends_with(switch.name())) {
        return Ok(None);
    }
    let known = |name: &str| Switch::ALL.into_iter().find(|switch| switch.name() == name);
    match Marker::of_line(line.trim_end()) {
        Ok(marker) => Ok(marker.and_then(|marker| Some((known(marker.switch)?, marker)))),
        Err(bad) if known(bad.switch).is_some() => Err(bad.to_string()),
        Err(_) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels_gpu::abi::KERNELS;

    const TWO: &str = ".visible .entry forward_bf16_d64_sm80(\n)\n{\n\
        \tmov.b32 %r1, 0; // specialize softcap\n\tmov.b32 %r2, 0; // specialize other\n\
        \tmov.b32 %r3, 0; // specialize softcap\n}\n\
        .visible .entry forward_f16_d64_sm80(\n)\n{\n\tmov.b32 %r1, 0; // specialize softcap\n}\n\
        .visible .entry forward_f32_d64_sm80(\n)\n{\n\tmov.b32 %r1, 0;\n}\n";

    fn variant(name: &str, switches: Switches) -> KernelVariant {
        let kernel = KERNELS.iter().find(|kernel| kernel.name == name).unwrap();
        KernelVariant { kernel, switches }
    }

    fn capped(name: &str) -> KernelVariant {
        variant(name, Switches::NONE.with(Switch::Softcap))
    }

    #[test]
    fn every_marker_of_the_kernel_is_set_and_no_other_line_changes() {
        let edited = specialized(TWO, capped("forward_bf16_d64_sm80")).unwrap().unwrap();
        let changed: Vec<_> = TWO.lines().zip(edited.lines()).filter(|(old, new)| old != new).collect();
        assert_eq!(edited.len(), TWO.len());
        assert_eq!(
            changed.iter().map(|(_, new)| new.trim()).collect::<Vec<_>>(),
            ["mov.b32 %r1, 1; // specialize softcap", "mov.b32 %r3, 1; // specialize softcap"]
        );
        // And back.
        let off = variant("forward_bf16_d64_sm80", Switches::NONE);
        assert_eq!(specialized(&edited, off).unwrap().unwrap(), TWO);
        assert_eq!(specialized(TWO, off), Ok(None));
        // Lines that end otherwise are shorter then; those of the kernel behind stay as they are.
        let text = TWO.replace('\n', "\r\n");
        let of_lines = specialized(&text, capped("forward_bf16_d64_sm80")).unwrap().unwrap();
        assert!(of_lines.lines().eq(TWO.lines().zip(edited.lines()).map(|(_, edited)| edited)));
        assert_eq!(specialized(&edited, capped("forward_bf16_d64_sm80")), Ok(None));
    }

    #[test]
    fn a_switch_without_a_marker_in_its_kernel_is_an_error() {
        for (text, name) in [(TWO, "forward_f32_d64_sm80"), ("", "forward_f16_d64_sm80")] {
            let error = specialized(text, capped(name)).unwrap_err().to_string();
            assert_eq!(
                error,
                format!("kernel {name}: expected a marker `// specialize softcap` in the PTX, got none")
            );
        }
    }

    #[test]
    fn a_marker_that_cannot_be_set_is_an_error_that_names_the_line() {
        let text = TWO.replace("mov.b32 %r3, 0;", "mov.b32 %r3, %r2;");
        for switches in [Switches::NONE, Switches::NONE.with(Switch::Softcap)] {
            let broken = variant("forward_bf16_d64_sm80", switches);
            let error = specialized(&text, broken).unwrap_err().to_string();
            assert!(error.contains("PTX line 6: expected `mov.b32 <register>, 0;`"), "{error}");
            assert!(error.starts_with(&format!("kernel {broken}: ")), "{error}");
        }
        assert!(specialized(&text, capped("forward_f16_d64_sm80")).is_ok());
        // Nothing is known of other switches.
        let text = TWO.replace("mov.b32 %r2, 0;", "add.s32 %r2, %r1, 1;");
        assert!(specialized(&text, capped("forward_bf16_d64_sm80")).unwrap().is_some());
    }
}
