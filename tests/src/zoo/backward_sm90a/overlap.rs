//! The conversion of dq, which starts before the main kernel has ended: of a tile that is complete.

use super::{KERNEL, Mutant, WRITER};
use crate::ptx::{Which, dropped, operand, with_operand};
use crate::shapes::several_tiles;

const CONVERT: &str = "backward_convert_bf16_d128_q80_sm90a";
const GLOBAL_RACE: &str = "race in global memory";
const READ: &str = "backward_convert.rs: global::load_written_u32x4_if";
const DECISION: &str = "backward_convert.rs: if halves == 0 ||";

pub(super) fn mutants() -> Vec<Mutant> {
    let mutant = |name, kernel| Mutant::new(name, kernel, several_tiles(KERNEL));
    let relaxed = |order: &'static str| move |line: &str| line.replacen(order, "relaxed", 1);
    vec![
        mutant("the end is counted before the last shares are written", KERNEL)
            .edit(
                "cp.async.bulk.wait_group",
                &["writer.rs: bulk_copy::wait_written::<0>();"],
                Which::Last,
                dropped,
            )
            .finding(GLOBAL_RACE, &[READ]),
        mutant("the end is counted with no release", KERNEL)
            .edit(
                "red.release",
                &["global::count_release_u32(block.finished_halves(p), stretch.end"],
                Which::All,
                relaxed("release"),
            )
            .finding(GLOBAL_RACE, &[READ]),
        // An acquire of the note alone would do.
        mutant("neither the end nor the note is read with acquire", CONVERT)
            .edit(
                "ld.acquire",
                &["backward_convert.rs: global::load_acquire_u32("],
                Which::All,
                relaxed("acquire"),
            )
            .finding(GLOBAL_RACE, &[READ]),
        // Then the main kernel is what comes second.
        mutant("tiles are read before they are complete", CONVERT)
            .edit("or.pred", &[DECISION], Which::All, |line| with_operand(line, 1, operand(line, 2)))
            .finding(GLOBAL_RACE, &[WRITER]),
        mutant("nobody waits for the main kernel", CONVERT)
            .edit(
                "griddepcontrol.wait",
                &["backward_convert.rs: grid::wait_for_previous();"],
                Which::All,
                dropped,
            )
            .finding("missing wait for the grid before", &[]),
    ]
}
