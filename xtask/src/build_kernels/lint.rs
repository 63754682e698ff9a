//! Stage 5: what a finished kernel must not contain, and how often it may synchronise.

use std::collections::BTreeMap;

use kernels_gpu::abi::{Access, KernelSpec, Marker};

use super::ptx::opcodes;

/// Instructions whose number is pinned per kernel: one more or less means that a pass copied or merged
/// them.
const CONVERGENT: &[&str] = &[
    "activemask",
    "bar.arrive",
    "bar.red",
    "bar.sync",
    "bar.warp.sync",
    "barrier",
    "cp.async.bulk",
    "cp.async.commit_group",
    "cp.async.wait_all",
    "cp.async.wait_group",
    "cp.async",
    "elect.sync",
    "ldmatrix",
    "match",
    "mbarrier",
    "mma.sync",
    "redux.sync",
    "setmaxnreg",
    "shfl.sync",
    "stmatrix",
    "vote.sync",
    "wgmma",
];

/// How often each convergent instruction stands in a kernel.
pub type Counts = BTreeMap<String, u32>;

/// What is wrong with the PTX of a kernel; empty when nothing is.
pub fn faults(ptx: &str, spec: &KernelSpec) -> Vec<String> {
    let mut faults = Vec::new();
    let mut fault = |text: String| faults.push(format!("{}: {text}", spec.name));
    for line in ptx.lines().map(str::trim) {
        if line.starts_with(".extern .func") {
            fault(format!(
                "calls what is not there (a panic, or a function of core that is not inline): {line}"
            ));
        } else if line.starts_with(".func") || line.starts_with(".visible .func") {
            fault(format!("a function was not inlined: {line}"));
        } else if line.starts_with(".local") && spec.access == Access::Vector16 {
            fault(format!(
                "an array in local memory (a loop not unrolled, an index not constant): {line}"
            ));
        } else if ["\"/", "// /", "@[ /"].iter().any(|start| line.contains(start)) {
            fault(format!("a path of the building machine: {line}"));
        }
    }
    for opcode in opcodes(ptx) {
        if opcode == "call" || opcode.starts_with("call.") {
            fault("a call remains".into());
        } else if opcode == "trap" {
            fault("a trap remains: unreachable code or a panic".into());
        }
    }
    switch_faults(ptx, spec).into_iter().for_each(fault);
    faults
}

/// The text has markers of exactly the switches of its row, all of them off.
fn switch_faults(ptx: &str, spec: &KernelSpec) -> Vec<String> {
    let mut faults = Vec::new();
    let mut found: Vec<&str> = Vec::new();
    for line in ptx.lines() {
        match Marker::of_line(line) {
            Ok(None) => {}
            Ok(Some(marker)) => {
                if marker.is_on {
                    faults.push(format!("the switch {} is on as compiled", marker.switch));
                }
                found.push(marker.switch);
            }
            Err(bad) => faults.push(format!("a switch that cannot be set: {bad}")),
        }
    }
    let is_in_row = |name: &str| spec.switches.iter().any(|switch| switch.name() == name);
    let missing = spec.switches.iter().filter(|switch| !found.contains(&switch.name()));
    faults.extend(missing.map(|switch| format!("no marker of its switch {}", switch.name())));
    found.sort();
    found.dedup();
    let unknown = found.into_iter().filter(|name| !is_in_row(name));
    faults.extend(unknown.map(|name| format!("a marker of {name}, which is no switch in its row")));
    faults
}

/// Counts the convergent instructions.
pub fn convergent(ptx: &str) -> Counts {
    let mut counts = Counts::new();
    for opcode in opcodes(ptx) {
        let is = |name: &&&str| {
            opcode == **name || opcode.strip_prefix(**name).is_some_and(|r| r.starts_with('.'))
        };
        // The longest name wins: cp.async.wait_group is not one more cp.async.
        if let Some(name) = CONVERGENT.iter().filter(is).max_by_key(|name| name.len()) {
            *counts.entry((*name).to_owned()).or_default() += 1;
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels_gpu::abi::{KERNELS, Switch, Switches};

    fn entry(body: &str) -> String {
        format!(".visible .entry k(\n)\n{{\n{body}\n}}\n")
    }

    fn fast() -> KernelSpec {
        KernelSpec { access: Access::Vector16, switches: Switches::NONE, ..KERNELS[0] }
    }

    #[test]
    fn a_clean_kernel_has_no_faults() {
        assert_eq!(faults(&entry("\tmov.b32 %r1, 0;\n\tret;"), &fast()), Vec::<String>::new());
    }

    #[test]
    fn each_fault_is_found() {
        let faulty = [
            entry("\tcall.uni core_panic, ();"),
            entry("\ttrap;"),
            format!(".extern .func core_panic\n{}", entry("\tret;")),
            format!(".func helper()\n{}", entry("\tret;")),
            entry("\t.local .align 16 .b8 \t__local_depot0[64];"),
            format!("{}\t.file\t1 \"/usr/src/lib.rs\"\n", entry("\tret;")),
        ];
        for ptx in faulty {
            assert_eq!(faults(&ptx, &fast()).len(), 1, "{ptx}");
        }
    }

    #[test]
    fn strided_kernels_may_use_local_memory() {
        let spec = KernelSpec { access: Access::Element, ..fast() };
        assert!(faults(&entry("\t.local .align 16 .b8 \t__local_depot0[64];"), &spec).is_empty());
    }

    #[test]
    fn markers_are_those_of_the_switches_in_the_row() {
        let spec = KernelSpec { switches: Switches::NONE.with(Switch::Softcap), ..fast() };
        let marker = "\tmov.b32 %r1, 0; // specialize softcap\n";
        let twice = entry(&marker.repeat(2));
        assert_eq!(faults(&twice, &spec), Vec::<String>::new());
        let fault_of = |ptx: &str, spec: &KernelSpec| {
            let [fault] = &faults(ptx, spec)[..] else { panic!("{:?}", faults(ptx, spec)) };
            fault.strip_prefix(spec.name).unwrap().trim_start_matches(": ").to_owned()
        };
        assert_eq!(fault_of(&entry("\tret;"), &spec), "no marker of its switch softcap");
        assert_eq!(fault_of(&twice, &fast()), "a marker of softcap, which is no switch in its row");
        let on = twice.replacen(" 0;", " 1;", 1);
        assert_eq!(fault_of(&on, &spec), "the switch softcap is on as compiled");
        let bad = twice.replacen(" 0;", " %r0;", 1);
        assert!(fault_of(&bad, &spec).starts_with("a switch that cannot be set: expected `mov.b32"));
        let other = twice + "// specialize elsewhere";
        assert_eq!(faults(&other, &spec).len(), 1);
    }

    #[test]
    fn counting_takes_the_longest_name() {
        let body = "cp.async.cg.shared.global [%r1], [%rd1], 16; cp.async.commit_group;\n\
                    cp.async.wait_group 0; bar.sync 0;";
        let counts = convergent(&entry(body));
        let want =
            [("bar.sync", 1), ("cp.async", 1), ("cp.async.commit_group", 1), ("cp.async.wait_group", 1)];
        assert_eq!(counts, want.map(|(name, n)| (name.to_owned(), n)).into());
    }
}
