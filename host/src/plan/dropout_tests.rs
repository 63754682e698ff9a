//! What is planned with dropout.

use super::tests::{device, plan, pointers};
use super::*;
use crate::problem::{BackwardProblem, Bias, ForwardProblem, Layout, ScoreLayout, Sequences};
use kernels_gpu::abi::{ForwardParams, Switch};

/// So many queries of eight heads and 4096 keys of two.
fn problem(queries: usize) -> ForwardProblem {
    let (q, kv) = (Layout::bshd([2, queries, 8, 128]), Layout::bshd([2, 4096, 2, 128]));
    ForwardProblem::new(Dtype::Bf16, q, kv, kv)
}

/// Numbers are those of a head and a query, wherever heads share keys and whatever is asked for.
#[test]
fn heads_are_not_rows_of_a_tile() {
    let alone = "heads that share keys are worked on alone: each has numbers of its own".to_owned();
    for queries in [1, 4, 32] {
        for pack_gqa in [None, Some(true)] {
            let problem = ForwardProblem { pack_gqa, ..problem(queries) };
            for rate in [0.0, 1e-6] {
                let planned = plan(&problem.with_dropout(rate, 3, 4), &pointers());
                let ForwardParams { query_rows, row_heads, score, .. } = planned.params;
                assert!(query_rows != queries as u32 || row_heads > 1, "{planned:#}");
                assert_eq!((score.dropout.threshold, score.dropout.query_heads), (0, 0));
                assert!(!planned.variant.switches.contains(Switch::Dropout), "{planned:#}");
            }
            let planned = plan(&problem.with_dropout(0.5, 3, 4), &pointers());
            let ForwardParams { query_heads, query_rows, row_heads, score, .. } = planned.params;
            assert_eq!([query_heads, query_rows, row_heads], [8, queries as u32, 1], "{planned:#}");
            assert_eq!(score.dropout.threshold, 1 << 31);
            assert_eq!((score.dropout.offset, score.dropout.query_heads), (4, 8));
            assert_eq!((score.dropout.scale, score.dropout.key), (2.0, [3, 0]));
            assert!(planned.variant.switches.contains(Switch::Dropout), "{planned:#}");
            assert!(planned.reasons.contains(&alone), "{planned:#}");
            assert!(planned.reasons.contains(&"dropout is switched on".to_owned()), "{planned:#}");
        }
    }
}

/// A range of keys begins where a call of the numbers does.
#[test]
fn ranges_of_keys_are_whole_blocks() {
    for kernel in KERNELS.iter().filter(|kernel| kernel.family == Family::Forward) {
        assert!(kernel.key_rows.is_multiple_of(16), "{}", kernel.name);
    }
    let planned = plan(&problem(4).with_dropout(0.1, 1, 2).with_num_splits(7), &pointers());
    assert_eq!(planned.params.splits, 7);
    assert!(planned.params.split_keys.is_multiple_of(16) && planned.params.split_keys > 0);
    assert!(planned.variant.switches.contains(Switch::Dropout));
    let combine = planned.combine.expect("a plan in ranges");
    assert!(!combine.variant.switches.contains(Switch::Dropout), "it is told a factor");
    assert_eq!(combine.params.kept, planned.params.score.dropout.scale);
    let without = plan(&problem(4).with_num_splits(7), &pointers());
    assert_eq!(without.combine.map(|combine| combine.params.kept), Some(1.0));
}

/// A message between warps of kernels for Hopper has 16 bits for the batch.
#[test]
fn kernels_for_hopper_count_batches_in_16_bits() {
    for (sequences, is_hopper) in [(1 << 16, true), ((1 << 16) + 1, false)] {
        let (q, kv) = (Layout::packed([sequences, 2, 64]), Layout::packed([sequences, 2, 64]));
        let packed = Sequences::Packed { count: sequences, max_query_rows: 1, max_key_rows: 1 };
        let problem = ForwardProblem::new(Dtype::Bf16, q, kv, kv).with_sequences(packed);
        let pointers = ForwardPointers { cu_seqlens_q: 0x6000, cu_seqlens_k: 0x7000, ..pointers() };
        let planned = plan(&problem.with_dropout(0.1, 1, 2), &pointers);
        assert_eq!(planned.hopper.is_some(), is_hopper, "{planned:#}");
        assert!(plan(&problem, &pointers).hopper.is_some());
    }
}

/// What makes probabilities again drops them again.
#[test]
fn the_main_kernel_and_that_of_dbias_drop() {
    let bias = Bias { layout: ScoreLayout::dense([1, 1, 300, 4096]), dtype: Dtype::Bf16 };
    let forward = problem(300).with_bias(bias).with_sinks().with_dropout(0.25, 1 << 32, 1 << 32 | 9);
    let problem = BackwardProblem::new(forward).with_d_bias(bias).with_d_sinks();
    let [q, k, v, o, d_o] = [0x1000, 0x2000, 0x3000, 0x4000, 0x5000];
    let [dq, dk, dv, lse, d_bias, d_sinks] = [0x6000, 0x7000, 0x8000, 0x9000, 0xa000, 0xb000];
    let score = ScorePointers { bias: 0xc000, sinks: 0xd000, ..Default::default() };
    let pointers = BackwardPointers { q, k, v, o, d_o, dq, dk, dv, lse, score, ..Default::default() };
    let pointers = BackwardPointers { d_bias, d_sinks, ..pointers };
    let planned = plan_backward(&problem.validate().unwrap(), &device(), &pointers).unwrap();
    let drops: Vec<Family> = planned
        .launches
        .iter()
        .filter(|launch| launch.variant.switches.contains(Switch::Dropout))
        .map(|launch| launch.variant.kernel.family)
        .collect();
    assert_eq!(drops, [Family::Backward, Family::BiasGradient], "{planned:#}");
    let dropout = planned.params.score.dropout;
    assert_eq!((dropout.threshold, dropout.scale), (1 << 30, 4.0 / 3.0));
    assert_eq!((dropout.key, dropout.offset, dropout.query_heads), ([0, 1 ^ 1], 9, 8));
}
