//! Dynamic masks: the kernels that choose keys, and those around attention over gathered keys.

use super::{Family, Mutant, moved, result_is};
use crate::ptx::{Which, dropped, off_by_one, operand};
use finite_attention::check::{
    BiasFeature, BiasValues, Case, Dimensions, Features, Gradients, ScoreHeads, ScorePlacement,
};
use finite_attention::problem::{DynamicMask, DynamicWay};
use finite_attention::{Dtype, Mask, Mode};

const BY_WARPS: &str = "select_keys_bf16_sm80";
const BY_BLOCKS: &str = "select_keys_bf16_block_sm80";
const IN_BLOCKS: &str = "mask_blocks_sm80";
const POSITIONS: &str = "key_positions_sm80";
const GATHER: &str = "gather_keys_sm80";
const SCATTER: &str = "scatter_keys_sm80";

pub(super) const FAMILY: Family =
    Family { kernels: &[BY_WARPS, BY_BLOCKS, IN_BLOCKS, POSITIONS, GATHER, SCATTER], cases, mutants };

/// A quarter of so many keys is kept: for each query, or for all.
fn case(rows: [usize; 2], way: DynamicWay) -> Case {
    let queries = way == DynamicWay::Mask;
    let dimensions = Dimensions { batches: true, heads: ScoreHeads::Key, queries, keys: true };
    let (dtype, placement, values) = (Dtype::Bf16, ScorePlacement::Dense, BiasValues::Normal);
    let bias = BiasFeature { dtype, dimensions, placement, values, gradient: Some(dtype) };
    let dynamic_mask = Some(DynamicMask::top_k(rows[1] / 4).with_way(way));
    Case {
        query_rows: rows[0],
        key_rows: rows[1],
        mask: Mask::Full.and_causal(),
        features: Features { bias: Some(bias), dynamic_mask, ..Features::default() },
        gradients: Some(Gradients { dtype, has_d_lse: false, mode: Mode::Fast }),
        ..Case::small()
    }
}

/// The same in blocks of eight.
fn in_blocks(way: DynamicWay) -> Case {
    let mut case = case([70, 200], way);
    case.features.dynamic_mask = case.features.dynamic_mask.map(|mask| mask.with_block_size(8));
    case
}

/// Those that show the mutants of a kernel.
fn cases(kernel: &str) -> Vec<Case> {
    let own = mutants().into_iter().filter(|mutant| mutant.kernel == kernel);
    own.map(|mutant| mutant.case).collect()
}

fn mutants() -> Vec<Mutant> {
    let masked = || case([70, 200], DynamicWay::Mask);
    let gathered = || case([70, 200], DynamicWay::Gather);
    vec![
        Mutant::new("a lane counts its own keys alone", BY_WARPS, masked())
            .edit(
                "redux.sync.add",
                &["select_keys.rs: let all = team.sum(count(&set));"],
                Which::All,
                |line| result_is(line, operand(line, 1)),
            )
            .wrong("o"),
        Mutant::new("equal keys of lanes before are not counted", BY_WARPS, masked())
            .edit(
                "shfl.sync.up",
                &["select_keys.rs: let (mut before, all) = team.sum_before(count(equal));"],
                Which::All,
                |line| result_is(line, "0"),
            )
            .wrong("o"),
        Mutant::new("positions stand one further on", BY_WARPS, gathered())
            .edit(
                "st.global",
                &["select_keys.rs: global::store_u32(self.positions.wrapping_add("],
                Which::All,
                |line| moved(line, 0, "u64", 4),
            )
            .finding(
                "race in global memory",
                &["select_keys.rs: global::store_u32(p.counts.wrapping_add("],
            ),
        Mutant::new(
            "sums are taken before other warps have theirs",
            BY_BLOCKS,
            case([3, 4100], DynamicWay::Mask),
        )
        .edit("bar.sync", &["team.rs: barrier::block_sync();"], Which::All, dropped)
        .finding("race in shared memory", &["team.rs: of_lane = shared::load_u32("])
        .finding("uninitialised shared read", &["team.rs: of_lane = shared::load_u32("]),
        Mutant::new("half a block is enough", IN_BLOCKS, in_blocks(DynamicWay::Mask))
            .edit("setp", &["mask_blocks.rs: if 2 * count > next - begin {"], Which::All, off_by_one)
            .wrong("o"),
        Mutant::new("counts of warps are read too early", POSITIONS, in_blocks(DynamicWay::Gather))
            .edit("bar.sync", &["team.rs: barrier::block_sync();"], Which::All, dropped)
            .finding("race in shared memory", &["team.rs: of_lane = shared::load_u32("])
            .finding("uninitialised shared read", &["team.rs: of_lane = shared::load_u32("]),
        Mutant::new("a query sees the gathered key behind its own", GATHER, gathered())
            .edit(
                "setp",
                &["gather_keys.rs: if (global::load_u32(positions.wrapping_add("],
                Which::All,
                off_by_one,
            )
            .wrong("o"),
        Mutant::new("a key behind the last is gathered", GATHER, in_blocks(DynamicWay::Gather))
            .edit(
                "setp",
                &["gather_keys.rs: let is_there = place < global::load_u32(p.counts"],
                Which::All,
                off_by_one,
            )
            .finding(
                "uninitialised global read",
                &["gather_keys.rs: let key = global::load_u32_if(position, is_there);"],
            ),
        Mutant::new("gradients of the key before are looked for", SCATTER, gathered())
            .edit(
                "setp",
                &["gather_keys.rs: if (global::load_u32(positions.wrapping_add("],
                Which::All,
                off_by_one,
            )
            .wrong("d"),
    ]
}
