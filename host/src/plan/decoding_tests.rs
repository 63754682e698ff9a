//! What is planned where there are few queries: heads together, and ranges of keys.

use super::tests::{device, plan, pointers};
use super::*;
use crate::driver::L2Promotion;
use crate::problem::{CausalAlignment, ForwardProblem, Mask, Sequences};
use kernels_gpu::abi::{ForwardParams, Switch, WINDOW_OPEN};

#[test]
fn heads_that_share_keys_are_rows_where_there_is_one_query() {
    let (q, kv) = (Layout::bhsd([2, 1, 12, 64]), Layout::bshd([2, 200, 3, 64]));
    let one = ForwardProblem::new(Dtype::Bf16, q, kv, kv);
    let planned = plan(&one.causal(), &pointers());
    assert!(planned.reasons[0].starts_with("a single query: 4 heads"), "{planned:#}");
    assert_eq!(planned.blocks, 2 * 3);
    let ForwardParams { q, k, o, lse_batch_stride, lse_head_stride, .. } = planned.params;
    let ForwardParams { query_rows, key_rows, query_heads, group_size, .. } = planned.params;
    assert_eq!((query_rows, key_rows, query_heads, group_size), (4, 200, 3, 1));
    assert_eq!(q, TensorView { address: 0x1000, batch_stride: 768, row_stride: 64, head_stride: 256 });
    assert_eq!(o, TensorView { address: 0x4000, ..q });
    assert_eq!((k.address, lse_batch_stride, lse_head_stride), (0x2000, 12, 4));
    assert_eq!((planned.params.window_left, planned.params.window_right), (WINDOW_OPEN, WINDOW_OPEN));

    let others = [
        ForwardProblem::new(Dtype::Bf16, Layout::bshd([2, 2, 12, 64]), kv, kv),
        ForwardProblem::new(Dtype::Bf16, Layout::bshd([2, 1, 3, 64]), kv, kv),
        ForwardProblem::new(
            Dtype::Bf16,
            Layout::packed([1, 12, 64]),
            Layout::packed([200, 3, 64]),
            Layout::packed([200, 3, 64]),
        )
        .with_sequences(Sequences::Packed { count: 1, max_query_rows: 1, max_key_rows: 200 }),
    ];
    let pointers = ForwardPointers { cu_seqlens_q: 0x6000, cu_seqlens_k: 0x7000, ..pointers() };
    for problem in others {
        let params = plan(&problem, &pointers).params;
        let [_, rows, heads, _] = problem.q.shape.map(|size| size as u32);
        assert_eq!((params.query_rows, params.query_heads * params.row_heads), (rows, heads));
    }
    let alone = plan(&one.with_pack_gqa(false), &pointers).params;
    assert_eq!((alone.query_rows, alone.query_heads), (1, 12));
}

#[test]
fn keys_that_are_read_once_or_in_pieces_are_fetched_by_128_bytes() {
    let promotions = |problem: &ForwardProblem| {
        let pointers = ForwardPointers { cu_seqlens_q: 0x6000, cu_seqlens_k: 0x7000, ..pointers() };
        let maps = plan(problem, &pointers).hopper.expect("a plan for Hopper");
        [maps.q, maps.k, maps.v].map(|map| map.expect("a tensor with elements").l2_promotion)
    };
    let (few, many) = (L2Promotion::Bytes128, L2Promotion::Bytes256);
    let (by_128, by_256) = ([many, few, few], [many; 3]);
    assert_eq!(promotions(&grouped(2, 1, 4)), by_128);
    assert_eq!(promotions(&grouped(2, 32, 4)), by_128);
    assert_eq!(promotions(&grouped(2, 128, 1)), by_128);
    assert_eq!(promotions(&grouped(2, 1, 4).with_num_splits(8)), by_128);
    assert_eq!(promotions(&grouped(2, 33, 4)), by_256);
    assert_eq!(promotions(&grouped(2, 32, 4).with_pack_gqa(false)), by_256);
    assert_eq!(promotions(&grouped(2, 193, 1)), by_256);
    let dense = |columns| {
        let layout = Layout::bshd([1, 512, 2, columns]);
        ForwardProblem::new(Dtype::Bf16, layout, layout, layout)
    };
    assert_eq!(promotions(&dense(72)), by_128, "rows of 144 bytes start between sectors");
    assert_eq!(promotions(&dense(80)), by_256);
    let packed = |max_query_rows| {
        let kv = Layout::packed([4096, 2, 128]);
        let sequences = Sequences::Packed { count: 4, max_query_rows, max_key_rows: 2048 };
        ForwardProblem::new(Dtype::Bf16, Layout::packed([64, 8, 128]), kv, kv).with_sequences(sequences)
    };
    assert_eq!(promotions(&packed(32)), by_128);
    assert_eq!(promotions(&packed(33)), by_256);
}

/// `group` query heads to each of two key heads, of head dim 128.
fn grouped(batches: usize, queries: usize, group: usize) -> ForwardProblem {
    let q = Layout::bshd([batches, queries, 2 * group, 128]);
    let kv = Layout::bshd([batches, 4096, 2, 128]);
    ForwardProblem::new(Dtype::Bf16, q, kv, kv).with_num_splits(1)
}

/// Heads and queries of a tile.
fn tile_rows(problem: &ForwardProblem) -> [u32; 2] {
    let pointers = ForwardPointers { cu_seqlens_q: 0x6000, cu_seqlens_k: 0x7000, ..pointers() };
    let ForwardParams { row_heads, tile_queries, .. } = plan(problem, &pointers).params;
    [row_heads, tile_queries]
}

#[test]
fn heads_that_share_keys_fill_tiles_where_there_are_few_queries() {
    let planned = plan(&grouped(32, 4, 4), &pointers());
    let params = planned.params;
    assert_eq!((planned.blocks, params.query_heads, params.group_size), (64, 2, 1));
    assert_eq!([params.row_heads, params.tile_queries, params.query_tiles], [4, 32, 1]);
    let maps = planned.hopper.unwrap();
    let q = maps.q.unwrap();
    assert_eq!((q.dims, q.box_dims), ([128, 8, 4, 32], [64, 4, 32, 1]));
    assert_eq!(q.strides_bytes, [128 * 2, 8 * 128 * 2, 4 * 8 * 128 * 2]);
    assert_eq!((maps.o, params.o_is_mapped), (None, 0));
    let text = format!("{planned:#}");
    assert!(text.contains("tiles of 32 queries of 4 heads, which share keys"), "{text}");
    assert_eq!(tile_rows(&grouped(2, 4, 7)), [7, 18]);
    assert_eq!(tile_rows(&grouped(2, 4, 96)), [32, 4]); // 96 would leave 32 rows to nobody
    assert_eq!(tile_rows(&grouped(2, 1, 256).with_pack_gqa(false)), [1, 128]);
    assert_eq!(tile_rows(&grouped(2, 2, 256)), [128, 1]);
    let parts = plan(&grouped(1, 4, 4).with_num_splits(8), &pointers());
    assert_eq!((parts.params.row_heads, parts.params.splits, parts.blocks), (4, 8, 16));
    assert_eq!(parts.combine.unwrap().params.query_heads, 8);
}

#[test]
fn heads_stay_alone_where_their_queries_fill_tiles() {
    assert_eq!(tile_rows(&grouped(2, 96, 4)), [4, 32]);
    assert_eq!(tile_rows(&grouped(2, 260, 4)), [4, 32]);
    for queries in [128, 130, 192, 250, 330, 1024, 4096] {
        assert_eq!(tile_rows(&grouped(2, queries, 4))[0], 1, "{queries}");
        assert_eq!(tile_rows(&grouped(2, queries, 4).with_pack_gqa(true)), [4, 32], "{queries}");
    }
    assert_eq!(tile_rows(&grouped(2, 4, 1))[0], 1);
    assert_eq!(tile_rows(&grouped(2, 4, 1).with_pack_gqa(true))[0], 1);
    let packed = |rows, count| {
        let (q, kv) = (Layout::packed([rows, 8, 128]), Layout::packed([9999, 2, 128]));
        let sequences = Sequences::Packed { count, max_query_rows: rows, max_key_rows: 9999 };
        ForwardProblem::new(Dtype::Bf16, q, kv, kv).with_sequences(sequences)
    };
    assert_eq!(tile_rows(&packed(64, 64)), [4, 32]);
    assert_eq!(tile_rows(&packed(16384, 12))[0], 1);
    // At head dim 80 the kernel for several heads has 128 columns.
    let of_80 = |queries| {
        let (q, kv) = (Layout::bshd([2, queries, 8, 80]), Layout::bshd([2, 4096, 2, 80]));
        tile_rows(&ForwardProblem::new(Dtype::Bf16, q, kv, kv).with_num_splits(1))[0]
    };
    assert_eq!([4, 64, 96].map(of_80), [4, 4, 1]);
    // Kernels could not tell the queries of so many rows apart.
    let many = |queries| {
        let (q, kv) = (Layout::bshd([1, queries, 128, 8]), Layout::bshd([1, 9, 1, 8]));
        tile_rows(&ForwardProblem::new(Dtype::Bf16, q, kv, kv).with_pack_gqa(true))
    };
    assert_eq!(many(130_000), [128, 1]);
    assert_eq!(many(140_000), [64, 2]);
    // Rows of portable kernels are queries.
    let device = DeviceProperties { compute_capability: (8, 0), ..device() };
    let valid = grouped(2, 4, 4).with_pack_gqa(true).validate().unwrap();
    let planned = plan_forward(&valid, &device, &pointers()).unwrap().unwrap();
    assert_eq!((planned.params.row_heads, planned.params.query_heads), (1, 8));
}

#[test]
fn a_single_query_has_only_the_keys_that_it_sees() {
    use CausalAlignment::{BottomRight, TopLeft};
    let (q, kv) = (Layout::bshd([1, 1, 4, 64]), Layout::bshd([1, 100, 2, 64]));
    let keys = |mask| {
        let params =
            plan(&ForwardProblem::new(Dtype::Bf16, q, kv, kv).with_mask(mask), &pointers()).params;
        let row = 2 * 64 * 2;
        assert_eq!(params.k.address - 0x2000, params.v.address - 0x3000);
        let first = (params.k.address - 0x2000) as u32 / row;
        (first, first + params.key_rows)
    };
    let window = |left, right, alignment| Mask::Window { left, right, alignment };
    assert_eq!(keys(Mask::Full), (0, 100));
    assert_eq!(keys(Mask::Causal(BottomRight)), (0, 100));
    assert_eq!(keys(Mask::Causal(TopLeft)), (0, 1));
    assert_eq!(keys(window(Some(9), Some(0), BottomRight)), (90, 100));
    assert_eq!(keys(window(Some(0), Some(7), BottomRight)), (99, 100));
    assert_eq!(keys(window(Some(200), None, BottomRight)), (0, 100));
    assert_eq!(keys(window(Some(5), Some(7), TopLeft)), (0, 8));
    assert_eq!(keys(window(None, Some(u32::MAX), TopLeft)), (0, 100));
}

/// One query of 32 heads, of which four share keys.
fn decoding(batches: usize, keys: usize) -> ForwardProblem {
    let (q, kv) = (Layout::bshd([batches, 1, 32, 128]), Layout::bshd([batches, keys, 8, 128]));
    ForwardProblem::new(Dtype::Bf16, q, kv, kv)
}

#[test]
fn keys_are_split_until_every_multiprocessor_has_work() {
    let ranges = |batches, keys| plan(&decoding(batches, keys), &pointers()).params.splits;
    assert_eq!(ranges(1, 65536), 16); // 8 key heads x 16 of 132 multiprocessors
    assert_eq!(ranges(8, 16384), 2); // 64 x 2
    assert_eq!(ranges(32, 4096), 1); // 256 tiles are enough
    assert_eq!(ranges(1, 512), 1); // a few key tiles are done before others could begin
    let of_dense = |[batches, queries, keys, heads]: [usize; 4], mask| {
        let (q, kv) = ([batches, queries, heads, 128], [batches, keys, heads, 128]);
        let [q, kv] = [q, kv].map(Layout::bshd);
        plan(&ForwardProblem::new(Dtype::Bf16, q, kv, kv).with_mask(mask), &pointers()).params.splits
    };
    let causal = Mask::Causal(CausalAlignment::BottomRight);
    assert_eq!(of_dense([1, 2048, 2048, 4], Mask::Full), 2); // 64 query tiles
    assert_eq!(of_dense([1, 4096, 4096, 3], causal), 2); // 96, of which one sees all keys
    assert_eq!(of_dense([1, 1024, 4096, 4], causal), 4);
    // Of 65,536 keys these see 64 to 512.
    let top_left = Mask::Causal(CausalAlignment::TopLeft);
    assert_eq!([[1, 64, 65536, 1], [1, 512, 65536, 8]].map(|sizes| of_dense(sizes, top_left)), [1, 1]);
    for (rows, batches) in [(512, 32), (1024, 16), (2048, 8), (4096, 4), (8192, 2), (16384, 1)] {
        for mask in [Mask::Full, causal] {
            assert_eq!(of_dense([batches, rows, rows, 16], mask), 1, "{rows} {mask}");
        }
    }
}

#[test]
fn causal_ranges_are_those_that_were_measured_to_be_fastest() {
    let ranges = |batches, heads, queries, keys| {
        let (q, kv) = ([batches, queries, heads, 128], [batches, keys, heads, 128]);
        let [q, kv] = [q, kv].map(Layout::bshd);
        plan(&ForwardProblem::new(Dtype::Bf16, q, kv, kv).causal(), &pointers()).params.splits
    };
    // All query tiles see nearly as many keys as each other.
    assert_eq!(ranges(1, 16, 512, 8192), 2);
    assert_eq!(ranges(1, 32, 256, 16384), 2);
    assert_eq!(ranges(2, 16, 256, 8192), 2);
    // Nearly as many query tiles as multiprocessors.
    assert_eq!(ranges(4, 16, 256, 8192), 1);
    assert_eq!(ranges(1, 40, 384, 8192), 1);
    assert_eq!(ranges(1, 8, 2048, 2048), 1);
    // Some see few keys, some many.
    assert_eq!(ranges(1, 4, 4096, 4096), 2);
    assert_eq!(ranges(1, 2, 8192, 8192), 2);
    assert_eq!(ranges(1, 4, 2048, 2048), 3);
    assert_eq!(ranges(1, 12, 2048, 4096), 1);
}

#[test]
fn ranges_are_whole_key_tiles_and_hold_every_key_once() {
    for (keys, asked) in [(1, 7), (128, 2), (129, 2), (1000, 3), (5000, 128), (128 * 200, 128)] {
        let plan = plan(&decoding(1, keys).with_num_splits(asked), &pointers());
        let ForwardParams { splits, split_keys, .. } = plan.params;
        assert!(splits <= asked);
        match &plan.combine {
            None => assert!(splits == 1 && keys <= 128),
            Some(combine) => {
                assert!(splits > 1 && combine.params.splits == splits, "{keys} {asked}");
                assert_eq!(split_keys % plan.variant.kernel.key_rows, 0);
                assert!((splits - 1) * split_keys < keys as u32 && splits * split_keys >= keys as u32);
                // 32 rows of 128 columns, reference and sum for each range.
                assert_eq!(combine.workspace_bytes, u64::from(splits) * 32 * (128 + 2) * 4);
                assert_eq!(
                    (plan.params.o.address, plan.params.lse),
                    (0, u64::from(splits) * 32 * 128 * 4)
                );
                assert_eq!((combine.params.o.address, combine.params.lse), (0x4000, 0x5000));
                assert_eq!((plan.params.output_f32, combine.params.output_f32), (2, 0));
                assert_eq!(plan.hopper.map(|maps| maps.o), Some(None));
            }
        }
    }
}

#[test]
fn keys_are_not_split_where_nobody_asks_or_it_cannot_be_done() {
    let splits = |problem: &ForwardProblem| plan(problem, &pointers()).params.splits;
    let few = decoding(1, 65536);
    assert_eq!(splits(&few.with_num_splits(1)), 1);
    let window =
        Mask::Window { left: Some(100), right: Some(0), alignment: CausalAlignment::BottomRight };
    let rows = Layout::bshd([1, 2, 8, 128]);
    let keys = Layout::bshd([1, 65536, 8, 128]);
    let problem = ForwardProblem::new(Dtype::Bf16, rows, keys, keys);
    assert!(splits(&problem) > 1);
    assert_eq!(splits(&problem.with_mask(window)), 1);
    for got in [0, 129, u32::MAX] {
        let error = few.with_num_splits(got).validate().unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("num_splits: expected 1 to 128 ranges of keys, got {got}")
        );
    }
}

#[test]
fn a_split_says_what_comes_after_it() {
    let text = format!("{:#}", plan(&decoding(1, 65536), &pointers()));
    for part in [
        "16 ranges of keys in",
        "bytes of workspace; forward_combine_bf16_q1_sm80: 32 blocks",
        "few query tiles",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

/// However a problem is rewritten, its kernels cap scores, and what combines them knows their unit.
#[test]
fn capped_scores_are_capped_in_every_kind_of_plan() {
    let alone = decoding(1, 3000).with_pack_gqa(false).with_scale(-0.5);
    for problem in [decoding(1, 3000).with_scale(-0.5), alone, grouped(2, 9, 4).with_scale(-0.5)] {
        let [off, on] = [problem, problem.with_softcap(20.0)].map(|problem| plan(&problem, &pointers()));
        assert_eq!((on.variant.kernel, off.variant.switches), (off.variant.kernel, Switches::NONE));
        assert!(on.variant.switches.contains(Switch::Softcap), "{on}");
        assert!(on.to_string().contains("+softcap: "), "{on}");
        assert_eq!((on.params.softcap, on.params.softcap_factor, on.params.scale), (20.0, -0.025, -0.5));
        assert_eq!((off.params.softcap, off.params.softcap_factor), (0.0, 0.0));
        let scales =
            [off.combine, on.combine].map(|combine| combine.map(|combine| combine.params.scale));
        assert!(scales == [Some(-0.5), Some(20.0)] || scales == [None, None], "{scales:?}");
        assert_eq!(
            on.combine.map(|combine| combine.variant),
            off.combine.map(|combine| combine.variant)
        );
    }
}

#[test]
fn few_rows_of_many_ranges_are_combined_by_a_block_each() {
    let kernel = |batch, ranges| {
        let plan = plan(&decoding(batch, 65536).with_num_splits(ranges), &pointers());
        let combine = plan.combine.expect("ranges were asked for");
        (combine.variant.kernel.name, combine.blocks)
    };
    assert_eq!(kernel(66, 8), ("forward_combine_bf16_q1_sm80", 66 * 32));
    assert_eq!(kernel(67, 8), ("forward_combine_bf16_sm90a", 67 * 8));
    assert_eq!(kernel(1, 4), ("forward_combine_bf16_sm90a", 8));
    // A main kernel that does not let the next one start early.
    let unaligned = ForwardPointers { q: 0x1002, ..pointers() };
    let plan = plan(&decoding(67, 65536).with_num_splits(8), &unaligned);
    assert_eq!(
        plan.combine.map(|combine| combine.variant.kernel.name),
        Some("forward_combine_bf16_sm80")
    );
}

/// Packed sequences of these queries and keys, 32 heads to 8 of 128 columns.
fn packed(lengths: &[[usize; 2]]) -> ForwardProblem {
    let rows = |side: usize| lengths.iter().map(|lengths| lengths[side]).sum();
    let longest = |side: usize| lengths.iter().map(|lengths| lengths[side]).max().unwrap();
    let (q, kv) = (Layout::packed([rows(0), 32, 128]), Layout::packed([rows(1), 8, 128]));
    ForwardProblem::new(Dtype::Bf16, q, kv, kv).causal().with_sequences(Sequences::Packed {
        count: lengths.len(),
        max_query_rows: longest(0),
        max_key_rows: longest(1),
    })
}

fn plan_packed(problem: &ForwardProblem) -> ForwardPlan {
    plan(problem, &ForwardPointers { cu_seqlens_q: 0x6000, cu_seqlens_k: 0x7000, ..pointers() })
}

/// The host knows of packed sequences how many they are, all rows, and the longest.
#[test]
fn packed_sequences_are_split_where_the_longest_would_be_waited_for() {
    let ranges = |lengths: &[[usize; 2]]| plan_packed(&packed(lengths)).params.splits;
    // Measured to be the fastest of 1 to 128 (H200).
    assert_eq!(ranges(&[[1, 65536]; 4]), 4);
    assert_eq!(ranges(&[[1, 8192]; 16]), 1);
    assert_eq!(ranges(&[[1, 4096]; 32]), 1);
    let among_others = |longest, count, others| {
        let mut lengths = vec![[1, others]; count];
        lengths[3] = [1, longest];
        ranges(&lengths)
    };
    // 10 to 64 take 168 to 183 us, one takes 1346.
    assert!((10..=64).contains(&among_others(131_072, 32, 1024)));
    assert_eq!(among_others(4092, 128, 2230), 1);
    // Queries and keys alike: enough tiles.
    assert_eq!(ranges(&[[4096; 2], [1000; 2], [300; 2], [2000; 2]]), 1);
}

/// Prompts beside texts to go on with: what these need is planned for, although most queries are those of
/// prompts.
#[test]
fn heads_are_rows_and_keys_are_split_for_the_few_queries_beside_a_prompt() {
    let long = [1, 32768];
    // Measured (H200): 370 us, in two ranges 386, heads apart 435.
    let params = plan_packed(&packed(&[[4096, 4096], long, long, long])).params;
    assert_eq!((params.row_heads, params.splits), (4, 1));
    // 8 to 40 ranges 115 to 126, 5 ranges 169, one 676.
    let params = plan_packed(&packed(&[[1024, 1024], [1, 65536]])).params;
    assert_eq!(params.row_heads, 4);
    assert!((8..=40).contains(&params.splits), "{}", params.splits);
    let prompts = plan_packed(&packed(&[[4096, 4096], [700, 700], [2000, 2000]])).params;
    assert_eq!((prompts.row_heads, prompts.splits), (1, 1));
}

/// The last tile of sequences that are taken to have no query was once looked for before the first. Those
/// with a query were once taken for prompts with a key each, which need no ranges.
#[test]
fn sequences_without_queries_are_no_work() {
    let ranges = |lengths: &[[usize; 2]]| plan_packed(&packed(lengths)).params.splits;
    let alone = ranges(&[[1, 65536]]);
    assert!(alone > 8, "{alone}");
    assert_eq!(ranges(&[[1, 65536], [0, 10]]), alone);
    // Padded to a number of sequences.
    let mut padded = vec![[0, 0]; 32];
    padded[..4].fill([1, 65536]);
    assert!(ranges(&padded) >= 4);
}

#[test]
fn ranges_of_packed_sequences_stand_in_a_workspace_for_all_rows() {
    let plan = plan_packed(&packed(&[[3, 1000], [0, 20], [5, 10]]).with_num_splits(5));
    let combine = plan.combine.expect("ranges were asked for");
    let ForwardParams { splits, split_keys, lse_batch_stride, lse_head_stride, o, .. } = plan.params;
    assert_eq!((splits, split_keys), (4, 256));
    assert_eq!(combine.workspace_bytes, 4 * 8 * 32 * (128 + 2) * 4);
    assert_eq!((o.batch_stride, lse_batch_stride, lse_head_stride), (8 * 32 * 128, 8 * 32, 8));
    let last = combine.params;
    assert_eq!((last.rows, last.batches, last.query_rows, last.split_keys), (8 * 32, 3, 8, 256));
    assert_eq!((last.cu_seqlens_q, last.cu_seqlens_k), (0x6000, 0x7000));
    assert_eq!((last.lse_batch_stride, last.lse_head_stride), (0, 8));
}

/// Of every row there is room for as many ranges as the longest sequence has, so that a long one among many
/// rows would take more memory than inputs and output together.
#[test]
fn a_workspace_that_nobody_asked_for_is_not_huge() {
    let lengths = [[4096, 65536], [1, 65536], [1, 65536]];
    let free = plan_packed(&packed(&lengths));
    assert!(free.combine.is_none_or(|combine| combine.workspace_bytes <= 1 << 30));
    let asked = plan_packed(&packed(&lengths).with_num_splits(128));
    assert!(asked.combine.unwrap().workspace_bytes > 1 << 30);
}

/// Numbers of rows and of sequences that no device has: products of them once left their types.
#[test]
fn problems_that_are_too_large_for_any_grid_are_refused() {
    let (q, kv) = (Layout::bshd([1, 1 << 28, 1 << 31, 1]), Layout::bshd([1, 64, 1, 1]));
    let (q_packed, kv_packed) = (Layout::packed([64, 2, 8]), Layout::packed([64, 1, 8]));
    let sequences = Sequences::Packed { count: u32::MAX as usize, max_query_rows: 4, max_key_rows: 4 };
    let packed =
        ForwardProblem::new(Dtype::Bf16, q_packed, kv_packed, kv_packed).with_sequences(sequences);
    let pointers = ForwardPointers { cu_seqlens_q: 0x6000, cu_seqlens_k: 0x7000, ..pointers() };
    for problem in [ForwardProblem::new(Dtype::Bf16, q, kv, kv), packed, packed.with_pack_gqa(true)] {
        let error = plan_forward(&problem.validate().unwrap(), &device(), &pointers).unwrap_err();
        assert!(matches!(error, Error::GridTooLarge { .. }), "{error}");
    }
}

#[test]
fn tiles_that_see_nearly_the_same_keys_go_head_by_head() {
    let wave = |queries, keys, mask| {
        let (q, kv) = (Layout::bshd([4, queries, 16, 128]), Layout::bshd([4, keys, 16, 128]));
        let problem = ForwardProblem::new(Dtype::Bf16, q, kv, kv).with_mask(mask).with_num_splits(1);
        plan(&problem, &pointers()).params.heads_per_wave
    };
    let causal = Mask::Causal(CausalAlignment::BottomRight);
    assert_eq!([(512, 8192), (1024, 8192)].map(|(queries, keys)| wave(queries, keys, causal)), [1, 1]);
    for (queries, keys) in [(512, 512), (1024, 1024), (4096, 8192)] {
        assert!(wave(queries, keys, causal) > 1, "{queries} {keys}");
    }
    assert!(wave(512, 8192, Mask::Causal(CausalAlignment::TopLeft)) > 1);
}
