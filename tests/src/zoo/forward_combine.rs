//! The kernels that combine ranges of keys: one row of all warps of a block, and one row each.

use super::{Family, Mutant};
use crate::ptx::{Which, dropped, off_by_one, one_more};
use crate::shapes::cases;
use finite_attention::check::Case;

const BY_BLOCKS: &str = "forward_combine_bf16_q1_sm80";
const BY_WARPS: &str = "forward_combine_bf16_sm90a";

pub(super) const FAMILY: Family = Family { kernels: &[BY_BLOCKS, BY_WARPS], cases, mutants };

fn mutant(name: &'static str, kernel: &'static str) -> Mutant {
    Mutant::new(name, kernel, cases(kernel).swap_remove(0))
}

/// Four packed sequences.
fn packed(kernel: &str) -> Case {
    let is_small = |case: &Case| case.packed && case.batches == 4;
    cases(kernel).into_iter().find(is_small).expect("a case with packed sequences")
}

fn mutants() -> Vec<Mutant> {
    vec![
        mutant("shares are added before other warps have them", BY_BLOCKS)
            .edit("bar.sync", &["forward_combine.rs: barrier::block_sync();"], Which::All, dropped)
            .finding("race in shared memory", &["shared::load_f32x4(place(other))"])
            .finding("uninitialised shared read", &["shared::load_f32x4(place(other))"]),
        mutant("every warp writes the row that they share", BY_BLOCKS)
            .edit("bra", &["forward_combine.rs: barrier::block_sync();"], Which::All, dropped)
            .finding("race in global memory", &["forward_combine.rs: E::store"]),
        mutant("ranges that there are not count", BY_BLOCKS)
            .edit("bra", &["forward_combine.rs: if range < self.ranges {"], Which::All, dropped)
            .finding("out-of-bounds global access", &["global::load_f32(pair)"])
            .finding("uninitialised global read", &["global::load_f32(pair)"]),
        mutant("a row behind the last is combined", BY_WARPS)
            .edit("setp", &["forward_combine.rs: if index >= p.rows {"], Which::All, off_by_one)
            .finding("out-of-bounds global access", &["global::load_f32(pair)"]),
        mutant("sequences have a range too many", BY_WARPS)
            .on(packed(BY_WARPS))
            .edit("div.u32", &["sequence.rs: let ranges = math::divide"], Which::All, one_more)
            .finding("uninitialised global read", &["global::load_f32(pair)"]),
    ]
}
