//! The tensor-core backward for sm_80, with what comes before and after it.

use super::{
    ARE_NEAR, Family, Mutant, ONE, REFERENCE, REST, SLOPE, STATISTIC, STEEP_VOTE, VISIBLE_END, coarse,
    features, moved, never, result_is, steep, voted_down,
};
use crate::ptx::{Which, dropped, one_more, operand, with_operand};
use crate::shapes::{cases, ragged};
use finite_attention::check::Case;
use finite_attention::{CausalAlignment, Mask};

const KERNEL: &str = "backward_bf16_d64_sm80";
const F32: &str = "backward_f32_d64_sm80";
const PARTS: &str = "backward_f32_d64_parts_sm80";
/// 1 as the bits of an f32.
const ONE_BITS: &str = "0x3F800000";

pub(super) const FAMILY: Family = Family { kernels: &[KERNEL], cases, mutants };

/// Scores that come near a cap, and beyond it.
fn capped(name: &'static str, kernel: &'static str) -> Mutant {
    Mutant::new(name, kernel, Case { softcap: Some(0.5), ..ragged(kernel) })
}

fn mutant(name: &'static str) -> Mutant {
    Mutant::new(name, KERNEL, ragged(KERNEL))
}

const WINDOW: Mask =
    Mask::Window { left: Some(20), right: Some(3), alignment: CausalAlignment::TopLeft };
const RING_WAIT: &str = "query_ring.rs: async_copy::wait::<0>();";
const RING_BARRIER: &str = "query_ring.rs: barrier::block_sync();";

fn mutants() -> Vec<Mutant> {
    let own = vec![
        Mutant::new("a small product of parts is left out of gradients", PARTS, ragged(PARTS))
            .edit(
                "mma.sync",
                &["mma/split.rs: ", "backward_mma.rs: multiply_accumulate::"],
                Which::Number(0),
                dropped,
            )
            .wrong("dk"),
        Mutant::new("dq is in units of its parts", PARTS, ragged(PARTS))
            .edit(
                "ld.shared",
                &["units.rs: f32::from_bits(shared::load_u32(factor))"],
                Which::All,
                |line| result_is(line, ONE_BITS),
            )
            .wrong("dq"),
        mutant("dO is used without a wait for its copies")
            .edit("cp.async.wait_group", &[RING_WAIT], Which::All, dropped)
            .finding("asynchronous copy in flight", &["backward_mma.rs: multiply_transposed"])
            .finding("uninitialised shared read", &["backward_mma.rs: multiply_transposed"]),
        mutant("dO is used before other threads' copies are there")
            .edit("bar.sync 0", &[RING_BARRIER], Which::All, dropped)
            .finding("uninitialised shared read", &["backward_mma.rs: multiply_transposed"]),
        mutant("p is taken without waiting for it")
            .edit("bar.sync", &["exchange.receive();"], Which::All, dropped)
            .finding("deadlock", &["exchange.give(&words_of_all"]),
        mutant("p is given to nobody")
            .edit("bar.sync", &["exchange.give(&words_of_all"], Which::All, dropped)
            .finding("deadlock", &["backward_mma.rs: barrier::block_sync();"]),
        mutant("p is taken before it is given: nobody waits for anybody")
            .edit("bar.sync", &["self.meet();"], Which::All, dropped)
            .finding("race in shared memory", &["exchange.read"])
            .finding("uninitialised shared read", &["exchange.read"]),
        mutant("a pair of warps meets at the barrier of another")
            .edit("bar.sync 2, 64", &["exchange.receive();"], Which::All, |line| line.replace('2', "3"))
            .finding("deadlock", &["backward_mma.rs: barrier::block_sync();"]),
        mutant("a pair's barrier counts another warp")
            .edit("bar.sync 1, 64", &["exchange.receive();"], Which::All, |line| {
                line.replace("64", "96")
            })
            .finding("barrier divergence", &["exchange.receive();"]),
        mutant("dq is made of dS that is not there yet")
            .edit("bar.sync 0", &["backward_mma.rs: barrier::block_sync();"], Which::Number(0), dropped)
            .finding("race in shared memory", &["backward_mma.rs: "])
            .wrong("dq"),
        mutant("the next key tile overwrites what is still read")
            .edit("bar.sync 0", &["backward_mma.rs: barrier::block_sync();"], Which::Last, dropped)
            .finding("race in shared memory", &["backward_mma.rs: "])
            .wrong("dq"),
        mutant("lse is that of the tile before")
            .edit(
                "cp.async.cg",
                &["query_ring.rs: async_copy::copy16(self.lse(step)"],
                Which::Last,
                |line| line.replacen("], 16", "+-256], 16", 1),
            )
            .wrong("dq"),
        mutant("lse is brought once and never again")
            .edit(
                "cp.async.cg",
                &["query_ring.rs: async_copy::copy16(self.lse(step)"],
                Which::Last,
                dropped,
            )
            .finding("uninitialised shared read", &[STATISTIC]),
        mutant("delta is that of two rows before")
            .edit(
                "ld.shared.v2",
                &["gradient.rs: |register, value| dp[register] -= value"],
                Which::Number(0),
                |line| line.replace("]", "+-8]"),
            )
            .wrong("dq"),
        mutant("rows of dO past the end are not replaced by zeros")
            .edit("cp.async.cg", &["query_ring.rs: self.d_o(step).load"], Which::All, |line| {
                with_operand(line, 3, "16")
            })
            .finding("out-of-bounds global access", &["async_copy::copy16_if", "self.d_o(step).load"]),
        mutant("keys past the end have a gradient")
            .edit("bra", &["store.rs: if row < target.count() {"], Which::All, dropped)
            .finding("out-of-bounds global access", &["store.rs: ", "backward_mma.rs: store_pairs"]),
        Mutant::new("one query too many sees a key", KERNEL, Case { mask: WINDOW, ..ragged(KERNEL) })
            .edit("sub.s32", &[VISIBLE_END], Which::All, one_more)
            .wrong("dq"),
        mutant("a product is left out of dv and dk")
            .edit("mma.sync", &["multiply_accumulate"], Which::Last, dropped)
            .wrong("dk"),
        mutant("dS lies on top of values")
            .edit("st.shared", &["units.rs: store_packed"], Which::All, |line| {
                moved(line, 0, "u32", -(128 * 128))
            })
            .finding("race in shared memory", &["exchange.give(&words_of_all"])
            .wrong("dq"),
        mutant("steep rows are not looked for")
            .on(steep(KERNEL))
            .edit("vote.sync.any", &[STEEP_VOTE], Which::All, voted_down)
            .wrong("d"),
        mutant("scores of steep rows are relative to the row before")
            .on(steep(KERNEL))
            .edit("ld.global.b32", &[REFERENCE], Which::All, |line| line.replace("]", "+-8]"))
            .wrong("d"),
        mutant("of rows with a coarse lse the sum is forgotten")
            .on(coarse(KERNEL))
            .edit("ld.global.b32", &[REST], Which::All, |line| result_is(line, "0f00000000"))
            .wrong("d"),
        mutant("dS of a small scale is not multiplied by its power of two")
            .on(Case { scale: Some(1e-3), ..ragged(KERNEL) })
            .edit(
                "mul.rn.f32",
                &["backward_mma.rs: scale_all(scores.as_flattened_mut(), factor);"],
                Which::All,
                |line| result_is(line, operand(line, 1)),
            )
            .wrong("dq"),
        capped("dS is that of the capped score", KERNEL)
            .edit("fma.rn.sat.f32", &[SLOPE], Which::All, |line| result_is(line, ONE))
            .wrong("dq"),
        capped("scores far from 0 are taken for near ones", KERNEL)
            .edit("setp.geu.f32", &[ARE_NEAR], Which::All, never)
            .wrong("dq"),
        capped("dS in f32 is that of the capped score", F32)
            .edit("fma.rn.sat.f32", &[SLOPE], Which::All, |line| result_is(line, ONE))
            .wrong("dq"),
    ];
    own.into_iter().chain(features::backward(KERNEL)).chain(features::backward_bias(KERNEL)).collect()
}
