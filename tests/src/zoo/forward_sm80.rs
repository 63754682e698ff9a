//! The tensor-core forward for sm_80, of f32 in two parts too, and the one in f32.

use super::{ARE_NEAR, Family, Mutant, NEAR, VISIBLE_END, features, never, result_is};
use crate::ptx::{Which, dropped, off_by_one, one_more, operand, with_operand};
use crate::shapes::{cases, ragged};
use finite_attention::check::Case;

const KERNEL: &str = "forward_bf16_d64_sm80";
const F32: &str = "forward_f32_d64_sm80";
const PARTS: &str = "forward_f32_d64_parts_sm80";
const RING_WAIT: &str = "key_values.rs: async_copy::wait::<0>();";
const RING_BARRIER: &str = "key_values.rs: barrier::block_sync();";
const LOOP: &str = "key_value_ring.rs: self.wait();";
const PRODUCT: &str = "multiply_transposed";
/// 1 as f32.
const ONE: &str = "0x3F800000";

pub(super) const FAMILY: Family = Family { kernels: &[KERNEL, F32], cases, mutants };

fn mutant(name: &'static str) -> Mutant {
    Mutant::new(name, KERNEL, ragged(KERNEL))
}

/// Scores that come near a cap, and beyond it.
fn capped(name: &'static str, kernel: &'static str) -> Mutant {
    Mutant::new(name, kernel, Case { softcap: Some(0.5), ..ragged(kernel) })
}

fn mutants() -> Vec<Mutant> {
    let tight = Case { tight: true, ..ragged(KERNEL) };
    let own = vec![
        mutant("tiles are used without a wait for their copies")
            .edit("cp.async.wait_group", &[RING_WAIT, LOOP], Which::Last, dropped)
            .finding("asynchronous copy in flight", &[PRODUCT])
            .finding("uninitialised shared read", &[PRODUCT]),
        mutant("one group of copies too few is waited for")
            .edit("cp.async.wait_group", &[RING_WAIT, LOOP], Which::Last, |_| "cp.async.wait_group 1;".into())
            .finding("asynchronous copy in flight", &[PRODUCT])
            .finding("uninitialised shared read", &[PRODUCT]),
        mutant("copies belong to no group")
            .edit("cp.async.commit_group", &["key_value_ring.rs: async_copy::commit();"], Which::All, dropped)
            .finding("asynchronous copy in flight", &[PRODUCT])
            .finding("uninitialised shared read", &[PRODUCT]),
        mutant("tiles are used before other threads' copies are there")
            .edit("bar.sync", &[RING_BARRIER, LOOP], Which::Last, dropped)
            .finding("race in shared memory", &[PRODUCT])
            .finding("asynchronous copy in flight", &[PRODUCT]),
        mutant("barrier and wait change places")
            .edit("cp.async.wait_group", &[RING_WAIT, LOOP], Which::Last, |_| "bar.sync 0;".into())
            .edit("bar.sync", &[RING_BARRIER, LOOP], Which::Last, |_| "cp.async.wait_group 0;".into())
            .finding("uninitialised shared read", &[PRODUCT])
            .finding("asynchronous copy in flight", &[PRODUCT]),
        mutant("one warp skips the barrier by a flag of its own")
            .edit("bar.sync", &[RING_BARRIER, LOOP], Which::Last, |_| {
                "{ .reg .pred %skip; .reg .b32 %who; mov.u32 %who, %tid.x; setp.ge.u32 %skip, %who, 32; \
                 @%skip bar.sync 0; }"
                    .into()
            })
            .finding("race in shared memory", &[PRODUCT])
            .finding("deadlock", &[RING_BARRIER]),
        mutant("half a warp skips the barrier")
            .edit("bar.sync", &[RING_BARRIER, LOOP], Which::Last, |_| {
                "{ .reg .pred %skip; .reg .b32 %who; mov.u32 %who, %laneid; setp.ge.u32 %skip, %who, 16; \
                 @%skip bar.sync 0; }"
                    .into()
            })
            .finding("barrier divergence", &[RING_BARRIER]),
        Mutant::new("rows past the end are not replaced by zeros", KERNEL, tight.clone())
            .edit("cp.async.cg", &["key_value_ring.rs: self.value(step).load"], Which::All, |line| {
                with_operand(line, 3, "16")
            })
            .finding("out-of-bounds global access", &["async_copy::copy16_if", "self.value(step).load"]),
        mutant("rows past the end are stored")
            .edit("setp.ge.s32", &["store.rs: ", "store::store_staged"], Which::All, |line| {
                with_operand(&line.replacen(".ge.", ".ne.", 1), 2, operand(line, 1))
            })
            .finding("out-of-bounds global access", &["store.rs: store_chunk"])
            .wrong("o"),
        mutant("one column too many is stored")
            .edit("setp.ge.u32", &["store.rs: if column + i < target.columns {"], Which::All, off_by_one)
            .wrong("o"),
        mutant("one key too many is visible")
            .edit("sub.s32", &[VISIBLE_END], Which::All, one_more)
            .wrong("o"),
        mutant("values are written on top of keys")
            .edit("add.s32", &["key_value_ring.rs: SharedTile::at(self.key(step).address"], Which::All, |line| {
                with_operand(line, 2, "0")
            })
            .finding("uninitialised shared read", &["forward_mma.rs: multiply_accumulate"]),
        mutant("values are not transposed")
            .edit("ldmatrix.sync.aligned.m8n8.x4.trans", &[], Which::All, |line| line.replace(".trans", ""))
            .wrong("o"),
        mutant("the swizzle of stores is not that of loads")
            .edit("xor.b32", &["shared_tile.rs: ", "q.load::<E"], Which::All, |line| line.replacen("xor.b32", "or.b32", 1))
            .finding("uninitialised shared read", &["multiply_transposed"]),
        mutant("a product is left out of the output")
            .edit("mma.sync", &["forward_mma.rs: multiply_accumulate::"], Which::Number(0), dropped)
            .wrong("o"),
        mutant("the maximum is taken over half the lanes")
            .edit("shfl.sync.bfly", &["softmax.rs: "], Which::Last, |line| with_operand(line, 2, "0"))
            .wrong("o"),
        Mutant::new("keys in f32 are used without a wait for their copies", F32, ragged(F32))
            .edit("cp.async.wait_group", &[], Which::Last, dropped)
            .finding("asynchronous copy in flight", &["forward_fma.rs: multiply_accumulate"])
            .finding("uninitialised shared read", &["forward_fma.rs: multiply_accumulate"]),
        Mutant::new("a small product of parts is left out of scores", PARTS, ragged(PARTS))
            .edit("mma.sync", &["mma/split.rs: ", "forward_mma.rs: multiply_transposed::"], Which::Number(0), dropped)
            .wrong("o"),
        Mutant::new("scores are in units of their parts", PARTS, ragged(PARTS))
            .edit("ld.global", &["forward_mma.rs: let of_scores"], Which::All, |line| result_is(line, ONE))
            .wrong("o"),
        Mutant::new("output is in units of its parts", PARTS, ragged(PARTS))
            .edit("ld.global", &["forward_mma.rs: U::apply(units.of_output"], Which::All, |line| {
                result_is(line, ONE)
            })
            .wrong("o"),
        capped("scores near 0 are not capped", KERNEL)
            .on(Case { softcap: Some(8.0), ..ragged(KERNEL) })
            .edit("fma.rn.f32", &[NEAR], Which::All, |line| result_is(line, operand(line, 3)))
            .wrong("lse")
            .wrong("o"),
        capped("scores far from 0 are taken for near ones", KERNEL)
            .edit("setp.geu.f32", &[ARE_NEAR], Which::All, never)
            .wrong("o"),
        capped("scores in f32 far from 0 are taken for near ones", F32)
            .edit("setp.lt.f32", &["softcap.rs: if x.abs() < NEAR {"], Which::All, |line| {
                with_operand(line, 2, "0f7F800000")
            })
            .wrong("o"),
        capped("scores in f32 near 0 are not capped", F32)
            .on(Case { softcap: Some(8.0), ..ragged(F32) })
            .edit("fma.rn.f32", &["softcap.rs: let near = math::fma("], Which::All, |line| {
                result_is(line, operand(line, 3))
            })
            .wrong("o"),
    ];
    own.into_iter().chain(features::forward(KERNEL)).chain(features::forward_bias(KERNEL)).collect()
}
