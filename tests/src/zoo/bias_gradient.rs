//! The gradient of the bias, on tensor cores of both targets.

use super::{Family, Mutant, moved};
use crate::ptx::{Which, dropped};
use crate::shapes::{ragged, with_shared_bias};
use crate::sweep::no_wait;
use finite_attention::check::{
    BiasFeature, BiasValues, Case, Dimensions, MaskFeature, ScoreHeads, ScorePlacement,
};
use finite_attention::{Dtype, Mask};

const HOPPER: &str = "bias_gradient_bf16_d64_sm90a";
const OLDER: &str = "bias_gradient_bf16_d64_sm80";

pub(super) const FAMILY: Family = Family { kernels: &[HOPPER, OLDER], cases, mutants };

const DELTA: &str = "rows.rs: delta: global::load_f32(";
const LSE: &str = "rows.rs: minus_lse: global::load_f32(";
const MULTIPLIED: &str = "hopper.rs: E::start_scores::<T>(";

/// Several tiles, ragged ones among them and, under the causal mask, empty ones; shared by two batches.
fn shared(kernel: &str) -> Case {
    with_shared_bias(Case { batches: 2, query_rows: 200, key_rows: 264, ..ragged(kernel) }, true)
}

/// As [`shared`]; of full heads, of each batch for itself and all heads, in f32, in odd places, and with a boolean
/// mask that hides whole tiles and rows.
fn cases(kernel: &str) -> Vec<Case> {
    let shared = shared(kernel);
    let with_bias = |change: fn(&mut BiasFeature)| {
        let mut case = shared.clone();
        case.features.bias.iter_mut().for_each(change);
        case
    };
    let of_heads = with_bias(|bias| {
        bias.dimensions = Dimensions { batches: true, heads: ScoreHeads::One, ..bias.dimensions };
    });
    let in_f32 = with_bias(|bias| (bias.dtype, bias.gradient) = (Dtype::F32, Some(Dtype::F32)));
    let odd = with_bias(|bias| bias.placement = ScorePlacement::Unaligned);
    let hiding = with_bias(|bias| bias.values = BiasValues::Hiding);
    let (dimensions, placement) = (Dimensions::ALL, ScorePlacement::Dense);
    let mask = MaskFeature { dimensions, placement, density: 0.4, block: 64, has_dead_rows: true };
    let mut masked = shared.clone();
    (masked.mask, masked.features.mask) = (Mask::Full, Some(mask));
    vec![
        Case { head_dim: 64, value_dim: 64, mask: Mask::Full, tight: true, ..shared.clone() },
        Case { softcap: Some(2.0), ..in_f32.clone() },
        Case { amplitude: 30.0, ..hiding },
        shared,
        of_heads,
        in_f32,
        odd,
        masked,
    ]
}

fn mutants() -> Vec<Mutant> {
    let on_both = [HOPPER, OLDER].into_iter().flat_map(|kernel| {
        let mutant = move |name| Mutant::new(name, kernel, shared(kernel));
        let next_row = |line: &str| moved(line, 1, "u64", 4);
        [
            mutant("delta is that of the next row")
                .edit("ld.global", &[DELTA], Which::All, next_row)
                .wrong("dbias")
                .finding("uninitialised global read", &[DELTA]),
            mutant("lse is that of the next row")
                .edit("ld.global", &[LSE], Which::All, next_row)
                .wrong("dbias")
                .finding("uninitialised global read", &[LSE]),
        ]
    });
    let hopper = |name| Mutant::new(name, HOPPER, shared(HOPPER));
    let older = |name| Mutant::new(name, OLDER, shared(OLDER));
    let others = [
        hopper("tiles are multiplied before they have come")
            .edit("mbarrier.try_wait", &["hopper.rs: self.pairs.wait(pairs);"], Which::All, no_wait)
            .finding("asynchronous copy in flight", &[MULTIPLIED])
            .finding("uninitialised shared read", &[MULTIPLIED]),
        hopper("tiles are let go while scores are made of them")
            .edit("wgmma.wait_group", &["scores.wait::<1>();"], Which::All, dropped)
            .finding("register in flight", &["hopper.rs: features::apply::"]),
        hopper("sums are of dp that is still made")
            .edit("wgmma.wait_group", &["dp.wait::<0>();"], Which::All, dropped)
            .finding("register in flight", &["hopper.rs: rows.add_gradient("]),
        hopper("tiles of scores are never let go")
            .edit("mbarrier.arrive", &["self.pairs.release(&of_scores);"], Which::All, dropped)
            .finding("deadlock", &["self.pairs.acquire(pairs);"]),
        hopper("the bias is added before it has come")
            .edit("cp.async.wait_all", &["hopper.rs: async_copy::wait_all();"], Which::All, dropped)
            .finding("asynchronous copy in flight", &["bias_tile.rs: "])
            .finding("uninitialised shared read", &["bias_tile.rs: "]),
        hopper("rows of the gradient stand eight keys further on")
            .edit("st.global", &["store_exchanged"], Which::All, |line| moved(line, 0, "u64", 16))
            .wrong("dbias")
            .finding("out-of-bounds global access", &["store_exchanged"]),
        older("tiles are loaded while others still read those before")
            .edit("bar.sync", &["bias_gradient.rs: barrier::block_sync();"], Which::All, dropped)
            .finding("race in shared memory", &[]),
        older("elements of the gradient stand a key further on")
            .edit("st.global", &["bias_gradient.rs: E::store("], Which::All, |line| {
                moved(line, 0, "u64", 2)
            })
            .wrong("dbias")
            .finding("out-of-bounds global access", &["bias_gradient.rs: E::store("]),
    ];
    on_both.chain(others).collect()
}
