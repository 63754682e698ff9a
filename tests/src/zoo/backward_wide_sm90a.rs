//! The backward for Hopper at large head dimensions: one warpgroup makes dV, the other dK.

use super::{Family, Mutant, ONE, SLOPE, result_is};
use crate::ptx::{Which, dropped, operand, with_operand};
use crate::shapes::{cases, many_key_tiles, ragged};
use crate::sweep::no_wait;
use finite_attention::check::Case;

const KERNEL: &str = "backward_bf16_d256_sm90a";

pub(super) const FAMILY: Family = Family { kernels: &[KERNEL], cases, mutants };

fn mutant(name: &'static str) -> Mutant {
    Mutant::new(name, KERNEL, ragged(KERNEL))
}

const IN_FLIGHT: &str = "asynchronous copy in flight";
const RACE: &str = "race in shared memory";
const REGISTER: &str = "register in flight";
const UNINITIALISED: &str = "uninitialised shared read";
const READ_P: &str = "wide.rs: let four = shared::load_u32x4(probabilities";
const WRITE_P: &str = "wide.rs: put::<S";
const TURN: &str = "wide.rs: dq_stage.acquire(";

fn mutants() -> Vec<Mutant> {
    vec![
        mutant("p is taken before it is given: nobody waits for anybody")
            .edit("bar.sync", &["barrier::sync_constant::<P_READY"], Which::All, dropped)
            .edit("bar.arrive", &["barrier::arrive_constant::<P_READY"], Which::All, dropped)
            .finding(RACE, &[READ_P])
            .finding(UNINITIALISED, &[READ_P]),
        mutant("p is given to nobody")
            .edit("bar.arrive", &["barrier::arrive_constant::<P_READY"], Which::All, dropped)
            .finding("deadlock", &[]),
        mutant("ds is multiplied before it is there: nobody waits for anybody")
            .edit("bar.sync", &["barrier::sync_constant::<DS_READY"], Which::All, dropped)
            .finding(RACE, &["E::start_dq"])
            .finding(IN_FLIGHT, &["store_transposed"])
            .finding(UNINITIALISED, &["E::start_dq"]),
        mutant("ds is not fenced from its product")
            .edit("fence.proxy.async", &["wide.rs: bulk_copy::fence();"], Which::All, dropped)
            .finding("missing proxy fence", &["E::start_dq"]),
        mutant("p is written over dq that is still added")
            .edit("mbarrier.try_wait", &[TURN], Which::Number(0), no_wait)
            .finding(IN_FLIGHT, &[WRITE_P]),
        mutant("the second part of dq is written over the first")
            .edit("mbarrier.try_wait", &[TURN], Which::Last, no_wait)
            .finding("deadlock", &["self.orders.begin(&progress"])
            .finding(IN_FLIGHT, &["consumer.rs: shared::store_u32x4("]),
        mutant("dO is let go while dv is added to")
            .edit("wgmma.wait_group", &["dv.wait::<1>();"], Which::All, dropped)
            .edit("wgmma.wait_group", &["wide.rs: dq.wait::<0>();"], Which::All, |line| {
                line.replace(" 0", " 1")
            })
            .finding(REGISTER, &["hand_over"])
            .finding(IN_FLIGHT, &["self.d_o(stage).request"]),
        mutant("scores are read before they are there")
            .edit("wgmma.wait_group", &["scores.wait::<0>();"], Which::All, dropped)
            .finding(REGISTER, &["wide.rs: "]),
        mutant("keys are never released by those who make dv")
            .edit("mbarrier.arrive.shared", &["wide.rs: self.keys.release"], Which::Number(0), dropped)
            .finding("deadlock", &["self.keys.acquire(turn);"]),
        Mutant::new("the first share of dq is not waited for", KERNEL, many_key_tiles(KERNEL))
            .blocks(3)
            .edit("setp.eq.u32", &["global::wait_for_u32(note"], Which::All, |line| {
                with_operand(line, 2, operand(line, 1))
            })
            .finding("race in global memory", &["bulk_copy::add_f32("])
            .finding("race in global memory", &["bulk_copy::store_bytes("]),
        Mutant::new(
            "dS is that of the capped score",
            KERNEL,
            Case { softcap: Some(0.5), ..ragged(KERNEL) },
        )
        .edit("fma.rn.sat.f32", &[SLOPE], Which::All, |line| result_is(line, ONE))
        .wrong("d"),
    ]
}
