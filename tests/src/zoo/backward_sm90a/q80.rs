//! 80 queries a step: dq as the transposed product, and rows of 64-column halves that are no power of two. Not planned
//! in most cases that other kernels are run in.

use super::{
    BARRIER, DEADLOCK, DQ, FENCE, FIRST_WRITER, IN_FLIGHT, LSE, Mutant, NO_FENCE, PRODUCT_WITH_D_O,
    QUERIES, RACE, REGISTER, SCORES, STUCK, UNINITIALISED, WRITER, moved,
};
use crate::ptx::{Which, dropped};
use crate::shapes::ragged;
use crate::sweep::no_wait;
use finite_attention::check::Case;

const KERNEL: &str = "backward_bf16_d128_q80_sm90a";

pub(super) fn mutants() -> Vec<Mutant> {
    // Two steps of 80 queries, the second one ragged, where there would be three of 64.
    let mutant = |name| Mutant::new(name, KERNEL, Case { query_rows: 151, ..ragged(KERNEL) });
    vec![
        mutant("queries of a step of 80 are multiplied before they have come")
            .edit("mbarrier.try_wait", &[QUERIES], Which::All, no_wait)
            .finding(IN_FLIGHT, &[SCORES]),
        mutant("dO of a step of 80 is multiplied before it has come")
            .edit("mbarrier.try_wait", &["room.d_os.counted_by().wait(stages);"], Which::All, no_wait)
            .finding(IN_FLIGHT, &[PRODUCT_WITH_D_O]),
        mutant("ds of 80 queries is multiplied before the other warpgroup has written it")
            .edit("bar.sync 1", &[BARRIER], Which::All, dropped)
            .finding(IN_FLIGHT, &["store_transposed"])
            .finding(RACE, &[DQ])
            .finding(UNINITIALISED, &[DQ]),
        mutant("ds of 80 queries is not fenced from the product with keys")
            .edit("fence.proxy.async", &[FENCE], Which::Number(1), dropped)
            .finding(NO_FENCE, &[DQ]),
        mutant("dq of 80 queries is handed over in the next step without a fence")
            .edit("fence.proxy.async", &[FENCE], Which::Number(0), dropped)
            .finding(NO_FENCE, &[FIRST_WRITER]),
        mutant("dq of the last step of 80 queries is not fenced from its adding")
            .edit("fence.proxy.async", &[FENCE], Which::Last, dropped)
            .finding(NO_FENCE, &[FIRST_WRITER]),
        mutant("dq of the last step of 80 queries is never handed over")
            .edit("mbarrier.arrive.shared", &["stage.fill(turn);"], Which::Last, dropped)
            .finding(DEADLOCK, &[STUCK]),
        mutant("dq of 80 queries is read before it is there")
            .edit("wgmma.wait_group", &["dq.wait::<1>();"], Which::All, |line| {
                line.replacen(" 1", " 2", 1)
            })
            .finding(REGISTER, &["hand_over"]),
        mutant("dq of 80 queries is overwritten while it is added")
            .edit("mbarrier.try_wait", &["consumer.rs: stage.acquire(&turn);"], Which::All, no_wait)
            .finding(IN_FLIGHT, &["hand_over"])
            .finding(RACE, &["hand_over"]),
        mutant("dq of 80 queries is added before it is written")
            .edit("mbarrier.try_wait", &["writer.rs: stage.wait(turns);"], Which::All, no_wait)
            .finding(IN_FLIGHT, &["hand_over"])
            .finding(UNINITIALISED, &[FIRST_WRITER]),
        mutant("the last 16 of 80 rows of dq are never added")
            .edit("cp.reduce.async.bulk", &[WRITER], Which::All, |line| moved(line, 2, "s32", -4096))
            .wrong("dq"),
        mutant("lse of 80 queries is that of the next one")
            .edit("ld.shared.v2", &[LSE], Which::All, |line| line.replace("]", "+8]"))
            .wrong("dq")
            .finding(IN_FLIGHT, &[LSE])
            .finding(UNINITIALISED, &[LSE]),
    ]
}
