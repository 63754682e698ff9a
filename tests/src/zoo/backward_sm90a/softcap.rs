//! Capped scores: what dS is multiplied by, and tanh itself.

use super::super::{ARE_NEAR, ONE, SLOPE, never, result_is};
use super::{F16, KERNEL, Mutant};
use crate::ptx::Which;
use crate::shapes::ragged;
use finite_attention::check::Case;

/// With 192 keys a step.
const THREE: &str = "backward_bf16_d64_k192_sm90a";

pub(super) fn mutants() -> Vec<Mutant> {
    // Scores that come near the cap, and beyond it.
    let capped = |name, kernel| Mutant::new(name, kernel, Case { softcap: Some(0.5), ..ragged(kernel) });
    let without_slope = |kernel| {
        capped("dS is that of the capped score", kernel)
            .edit("fma.rn.sat.f32", &[SLOPE], Which::All, |line| result_is(line, ONE))
            .wrong("d")
    };
    let far = capped("scores far from 0 are taken for near ones", KERNEL)
        .edit("setp.geu.f32", &[ARE_NEAR], Which::All, never)
        .wrong("d");
    [KERNEL, F16, THREE].into_iter().map(without_slope).chain([far]).collect()
}
