//! Three warpgroups that take turns at dq, and writers that do.

use super::{
    DEADLOCK, DQ, FIRST_WRITER, IN_FLIGHT, Mutant, NO_FENCE, PRODUCT_WITH_D_O, RACE, REGISTER, SCORES,
    UNINITIALISED, WRITER, moved,
};
use crate::ptx::{Which, dropped, with_operand};
use crate::shapes::ragged;
use crate::sweep::no_wait;

const KERNEL: &str = "backward_bf16_d64_k192_sm90a";
const F16: &str = "backward_f16_d64_k192_sm90a";
/// Where the warpgroup whose turn it is waits for ds, and where others tell of it.
const WAITS_FOR_DS: &str = "barrier::sync(DS_READY + turn, CONSUMERS);";
const TELLS_OF_DS: &str = "barrier::arrive(DS_READY + turn, CONSUMERS);";
/// Where the producer stands when consumers are stuck.
const WAITS_FOR_D_O: &str = "self.d_os.acquire(&turn);";
const HAND_OVER: &str = "three.rs: hand_over::<";

pub(super) fn mutants() -> Vec<Mutant> {
    let mutant = |name| Mutant::new(name, KERNEL, ragged(KERNEL));
    vec![
        mutant("queries are multiplied by three warpgroups before they have come")
            .edit("mbarrier.try_wait", &["three.rs: room.queries.wait(&stages);"], Which::All, no_wait)
            .finding(IN_FLIGHT, &[SCORES]),
        mutant("dO is multiplied by three warpgroups before it has come")
            .edit("mbarrier.try_wait", &["room.d_os.wait(&d_o_turn);"], Which::All, no_wait)
            .finding(IN_FLIGHT, &[PRODUCT_WITH_D_O]),
        mutant("ds of three warpgroups is multiplied before two have written it")
            .edit("bar.sync", &[WAITS_FOR_DS], Which::All, dropped)
            .finding(IN_FLIGHT, &["store_transposed"])
            .finding(RACE, &[DQ])
            .finding(UNINITIALISED, &[DQ]),
        mutant("one of three warpgroups is not waited for")
            .edit("bar.sync", &[WAITS_FOR_DS], Which::All, |line| with_operand(line, 1, "256"))
            .edit("bar.arrive", &[TELLS_OF_DS], Which::All, |line| with_operand(line, 1, "256"))
            .finding(IN_FLIGHT, &["store_transposed"])
            .finding(RACE, &[DQ])
            .finding(UNINITIALISED, &[DQ])
            .finding(DEADLOCK, &[]),
        mutant("two of three warpgroups do not tell of their ds")
            .edit("bar.arrive", &[TELLS_OF_DS], Which::All, dropped)
            .finding(DEADLOCK, &[WAITS_FOR_D_O]),
        mutant("three warpgroups tell of ds at one barrier")
            .edit("bar.sync", &[WAITS_FOR_DS], Which::All, |line| with_operand(line, 0, "1"))
            .edit("bar.arrive", &[TELLS_OF_DS], Which::All, |line| with_operand(line, 0, "1"))
            .finding(IN_FLIGHT, &["store_transposed"])
            .finding(RACE, &[DQ])
            .finding(UNINITIALISED, &[DQ])
            .finding(DEADLOCK, &[]),
        mutant("ds of three warpgroups is not fenced from the product with keys")
            .edit("fence.proxy.async", &["three.rs: bulk_copy::fence();"], Which::All, dropped)
            .finding(NO_FENCE, &[DQ]),
        mutant("dq of all keys is read before it is there")
            .edit("wgmma.wait_group", &["three.rs: dq.wait::<0>();"], Which::All, dropped)
            .finding(REGISTER, &[HAND_OVER]),
        mutant("dO is released for good while it is multiplied")
            .edit("wgmma.wait_group", &["three.rs: dv.wait::<1>();"], Which::All, |line| {
                line.replacen(" 1", " 2", 1)
            })
            .finding(IN_FLIGHT, &["self.d_o(stage).request"]),
        mutant("statistics are let go of by one lane for all")
            .edit(
                "bar.warp.sync",
                &["room.d_os.release_together(lane, &d_o_turn);"],
                Which::All,
                dropped,
            )
            .finding(IN_FLIGHT, &["self.delta(stage), source.delta"]),
        mutant("a whole tile of dq is overwritten while it is added")
            .edit("mbarrier.try_wait", &["dq_stage.acquire(&dq_turn);"], Which::All, no_wait)
            .finding(IN_FLIGHT, &[HAND_OVER])
            .finding(RACE, &[HAND_OVER]),
        mutant("a whole tile of dq is not fenced from its adding")
            .edit("fence.proxy.async", &[HAND_OVER], Which::All, dropped)
            .finding(NO_FENCE, &[WRITER])
            .finding(NO_FENCE, &[FIRST_WRITER]),
        mutant("a whole tile of dq is never handed over")
            .edit("mbarrier.arrive.shared", &[HAND_OVER], Which::All, dropped)
            .finding(DEADLOCK, &[WAITS_FOR_D_O]),
        mutant("half of a whole tile of dq is never added")
            .edit("cp.reduce.async.bulk", &[WRITER], Which::All, |line| moved(line, 2, "s32", -8192))
            .wrong("dq"),
        mutant("the last 16 of 192 keys count to no dq")
            .edit("wgmma.mma_async", &[DQ], Which::Last, dropped)
            .wrong("dq"),
        Mutant::new("factors of three warpgroups are those before norms have come", F16, ragged(F16))
            .edit("mbarrier.try_wait", &["room.d_os.wait(&d_o_turn);"], Which::All, no_wait)
            .finding(IN_FLIGHT, &["range_factor"]),
        Mutant::new("the largest value of three warpgroups is that of one warp", F16, ragged(F16))
            .edit("bar.sync", &["block_max::<THREADS>"], Which::All, dropped)
            .finding(RACE, &["block_max"])
            .finding(UNINITIALISED, &["block_max"]),
    ]
}
