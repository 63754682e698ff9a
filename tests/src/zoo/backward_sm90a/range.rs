//! Rows with large lse.

use super::super::{REFERENCE, REST, STEEP_VOTE, coarse, result_is, steep, voted_down};
use super::{F16, KERNEL, Mutant};
use crate::ptx::Which;

pub(super) fn mutants() -> Vec<Mutant> {
    let is_missed = |kernel| {
        Mutant::new("steep rows are not looked for", kernel, steep(kernel))
            .edit("vote.sync.any", &[STEEP_VOTE], Which::All, voted_down)
            .wrong("d")
    };
    let other_row =
        Mutant::new("scores of steep rows are relative to the row before", KERNEL, steep(KERNEL))
            .edit("ld.global.b32", &[REFERENCE], Which::All, |line| line.replace("]", "+-8]"))
            .wrong("d");
    let no_rest = Mutant::new("of rows with a coarse lse the sum is forgotten", KERNEL, coarse(KERNEL))
        .edit("ld.global.b32", &[REST], Which::All, |line| result_is(line, "0f00000000"))
        .wrong("d");
    [KERNEL, F16].into_iter().map(is_missed).chain([other_row, no_rest]).collect()
}
