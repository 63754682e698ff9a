//! Stage 4: finish the PTX text: launch bounds and aligned parameters, which rustc has no attribute for,
//! and no debug sections.

use anyhow::{Result, bail};
use kernels_gpu::abi::{Arch, KernelSpec};

/// Labels that only the dropped sections refer to.
const LINE_LABEL: &str = "$L__tmp";

/// What the hardware wants of a tensor map; rustc cannot align a kernel's parameter to more than 16.
const TENSOR_MAP_ALIGNMENT: &str = ".align 64 ";

/// Adds `.maxntid` and `.minnctapersm` to the entry, aligns parameters with tensor maps, and drops every
/// `.section` with its labels; `.file` and `.loc` stay.
///
/// # Errors
/// When the text holds another number of entries than one, or another entry than the table says.
pub fn finish(raw: &str, spec: &KernelSpec) -> Result<String> {
    let mut text = String::with_capacity(raw.len());
    let mut lines = raw.lines();
    let mut entries = 0;
    while let Some(line) = lines.next() {
        if line.trim_start().starts_with(".section") {
            skip_section(line, &mut lines);
            continue;
        }
        if line.starts_with(LINE_LABEL) {
            continue;
        }
        text.push_str(line.trim_end());
        text.push('\n');
        if let Some(after) = line.strip_prefix(".visible .entry ") {
            entries += 1;
            if after.trim_end_matches(['(', ')']) != spec.name {
                bail!("the PTX defines the entry `{after}`, the table says `{}`", spec.name);
            }
            let mut closed = after.contains(')');
            while !closed {
                let Some(line) = lines.next() else {
                    bail!("the parameter list of {} does not end", spec.name)
                };
                text.push_str(&parameter(line.trim_end(), spec.arch));
                text.push('\n');
                closed = line.trim_end() == ")";
            }
            text.push_str(&format!(
                ".maxntid {}, 1, 1\n.minnctapersm {}\n",
                spec.threads, spec.min_blocks
            ));
        }
    }
    if entries != 1 {
        bail!("{entries} entries in the PTX of {}, wanted one", spec.name);
    }
    Ok(text)
}

/// A line of the parameter list: kernels for Hopper have tensor maps at the start of their parameter.
fn parameter(line: &str, arch: Arch) -> String {
    let aligned = || line.split_once(".align ")?.1.split_once(' ').map(|(alignment, _)| alignment);
    match (arch, aligned()) {
        (Arch::Sm90a, Some(alignment)) => {
            line.replacen(&format!(".align {alignment} "), TENSOR_MAP_ALIGNMENT, 1)
        }
        _ => line.to_owned(),
    }
}

/// Skips to the brace that closes the section.
fn skip_section<'a>(first: &'a str, lines: &mut impl Iterator<Item = &'a str>) {
    let mut line = first;
    while !line.contains('}') {
        match lines.next() {
            Some(next) => line = next,
            None => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels_gpu::abi::KERNELS;

    fn raw(name: &str) -> String {
        format!(
            ".version 8.0\n.target sm_80\n\n\
             .visible .entry {name}(\n\t.param .align 8 .b8 {name}_param_0[16]\n)\n\
             {{\n\t.loc\t1 2 3\n$L__tmp0:\n\tret;\n}}\n\
             \t.section\t.debug_abbrev\n\t{{\n.b8 1\n\t}}\n\t.file\t1 \"a.rs\"\n"
        )
    }

    #[test]
    fn launch_bounds_follow_the_parameter_list() {
        let spec = &KERNELS[0];
        let text = finish(&raw(spec.name), spec).unwrap();
        let bounds =
            format!(")\n.maxntid {}, 1, 1\n.minnctapersm {}\n{{\n", spec.threads, spec.min_blocks);
        assert!(text.contains(&bounds), "{text}");
    }

    #[test]
    fn parameters_with_tensor_maps_are_aligned_for_them() {
        let aligned = |arch| {
            let spec = KERNELS.iter().find(|spec| spec.arch == arch).unwrap();
            finish(&raw(spec.name), spec).unwrap().contains("\t.param .align 64 .b8 ")
        };
        assert_eq!((aligned(Arch::Sm80), aligned(Arch::Sm90a)), (false, true));
    }

    #[test]
    fn line_tables_stay_and_sections_go() {
        let text = finish(&raw(KERNELS[0].name), &KERNELS[0]).unwrap();
        assert!(text.contains(".loc\t1 2 3") && text.contains(".file\t1"), "{text}");
        assert!(!text.contains(".section") && !text.contains("$L__tmp"), "{text}");
    }

    #[test]
    fn another_entry_is_refused() {
        assert!(finish(&raw("someone_else"), &KERNELS[0]).is_err());
        assert!(finish(".version 8.0\n", &KERNELS[0]).is_err());
    }
}
