//! What is planned for f32 in two parts.

use super::tests::{device, plan, pointers};
use super::*;
use crate::problem::{AlibiSlopes, BackwardProblem, ForwardProblem, Precision, Sequences};

/// Heads that share keys.
fn large(head_dim: usize) -> ForwardProblem {
    let (q, kv) = (Layout::bshd([2, 2048, 8, head_dim]), Layout::bshd([2, 1024, 2, head_dim]));
    ForwardProblem::new(Dtype::F32, q, kv, kv)
}

fn small() -> ForwardProblem {
    let layout = Layout::bshd([1, 70, 2, 64]);
    ForwardProblem::new(Dtype::F32, layout, layout, layout)
}

fn name(problem: &ForwardProblem) -> &'static str {
    plan(problem, &pointers()).variant.kernel.name
}

#[test]
fn f32_is_split_where_that_is_asked_for() {
    let fast = |problem: ForwardProblem| name(&problem.with_precision(Precision::Fast3));
    assert_eq!(fast(large(64)), "forward_f32_d64_sm90a");
    assert_eq!(fast(large(72)), "forward_f32_d128_sm90a");
    assert_eq!(fast(large(32)), "forward_f32_d64_sm90a");
    assert_eq!(fast(small()), "forward_f32_d64_sm90a");
    assert_eq!(name(&large(64).with_precision(Precision::Fma)), "forward_f32_d64_sm80");
}

/// A problem of one batch, `heads` heads, so many queries and keys, and 64 columns.
fn of_size(heads: usize, queries: usize, keys: usize) -> ForwardProblem {
    let [q, kv] = [queries, keys].map(|rows| Layout::bshd([1, rows, heads, 64]));
    ForwardProblem::new(Dtype::F32, q, kv, kv)
}

#[test]
fn f32_is_split_unasked_where_there_is_enough_to_do() {
    let fast = "forward_f32_d64_sm90a";
    let fma = "forward_f32_d64_sm80";
    assert_eq!(name(&large(64)), fast);
    assert_eq!(name(&small()), fma);
    assert_eq!(name(&of_size(16, 512, 512)), fast);
    assert_eq!(name(&of_size(16, 256, 512)), fma);
    assert_eq!(name(&of_size(16, 8192, 256)), fast);
    assert_eq!(name(&of_size(16, 8192, 255)), fma);
    assert_eq!(name(&of_size(16, 8192, 8192).with_window(Some(100), Some(100))), fma);
    assert_eq!(name(&of_size(16, 8192, 8192).with_window(None, Some(0))), fast);
    // Few query tiles: fused multiply-adds over ranges of keys have more blocks.
    assert_eq!(name(&of_size(8, 64, 65536).with_num_splits(1)), fma);
    assert_eq!(name(&of_size(40, 64, 65536).with_num_splits(1)), fast);
    // A backward does not know of ranges, so that these decide nothing.
    assert_eq!(name(&large(64).with_num_splits(3)), fast);
    let obstructed = plan(&large(63), &pointers());
    assert_eq!(obstructed.operands, None);
    let why = "fma: not every row of q starts on 16 bytes".to_owned();
    assert!(obstructed.reasons.contains(&why), "{:?}", obstructed.reasons);
}

#[test]
fn packed_sequences_are_split_unasked_by_what_there_is_at_most() {
    let of = |sequences: usize, longest: usize| {
        let layout = Layout::packed([sequences * longest / 2, 16, 64]);
        let (count, max_query_rows, max_key_rows) = (sequences, longest, longest);
        let packed = Sequences::Packed { count, max_query_rows, max_key_rows };
        let problem = ForwardProblem::new(Dtype::F32, layout, layout, layout).with_sequences(packed);
        let pointers = ForwardPointers { cu_seqlens_q: 0x6000, cu_seqlens_k: 0x7000, ..pointers() };
        plan(&problem, &pointers).operands.is_some()
    };
    assert!(of(8, 1024));
    assert!(!of(64, 128));
    assert!(!of(1, 512));
}

/// Where gradients cannot be of parts, lse would have to be computed again: that is not worth it unasked, but
/// for an output alone.
#[test]
fn a_device_without_gradients_of_parts_splits_an_output_unasked() {
    let device = older(99 << 10);
    let of = |problem: &ForwardProblem| plan_on(problem, &device).operands.is_some();
    assert!(of(&large(64).with_precision(Precision::Fast3)));
    assert!(of(&large(64).without_lse()));
    assert!(!of(&large(64)));
    let why = "fma: of gradients no kernel runs with 101376 bytes of shared memory".to_owned();
    let reasons = plan_on(&large(64), &device).reasons;
    assert!(reasons.contains(&why), "{reasons:?}");
}

#[test]
fn the_plan_says_why_not() {
    let fast = |problem: ForwardProblem| problem.with_precision(Precision::Fast3);
    let reason = |problem: &ForwardProblem| {
        let plan = plan(problem, &pointers());
        assert_eq!((plan.operands, plan.variant.kernel.arch), (None, Arch::Sm80), "{problem:?}");
        plan.reasons.into_iter().find(|reason| reason.starts_with("fma: ")).unwrap()
    };
    assert_eq!(reason(&large(64).with_precision(Precision::Fma)), "fma: asked for");
    assert_eq!(reason(&fast(large(200))), "fma: head_dim 200 is above 128");
    assert_eq!(reason(&fast(large(4))), "fma: head_dim 4 is below 8");
    assert_eq!(reason(&fast(large(64)).with_softcap(1.5)), "fma: softcap 1.5 is below 2");
    assert_eq!(reason(&fast(large(64)).with_num_splits(2)), "fma: ranges of keys are asked for");
    assert_eq!(reason(&fast(large(63))), "fma: not every row of q starts on 16 bytes");
    let little = "fma: 2508800 operations: parts would take as long to make";
    assert_eq!(
        reason(&of_size(1, 70, 140)),
        "fma: a query sees at most 140 keys: parts would take as long to make"
    );
    assert_eq!(reason(&of_size(1, 35, 280)), little);
    assert_eq!(
        reason(&of_size(8, 64, 65536).with_num_splits(1)),
        "fma: 8 query tiles of parts would leave the device idle"
    );
    let keys = Layout::bshd([1, 0, 2, 64]);
    let none = ForwardProblem::new(Dtype::F32, small().q, keys, keys);
    assert_eq!(reason(&fast(none)), "fma: there are no keys");
    let keys = Layout::bshd([1, 1, 2, 64]);
    let one = ForwardProblem::new(Dtype::F32, small().q, keys, keys);
    assert_eq!(reason(&fast(one)), "fma: a query sees a single key");
}

/// They were counted as rows of all sequences together, and had a dq of rounding errors.
#[test]
fn packed_sequences_of_one_key_are_left_to_fma() {
    let layout = Layout::packed([4, 2, 64]);
    let of = |max_key_rows| {
        let packed = Sequences::Packed { count: 4, max_query_rows: 1, max_key_rows };
        let problem = ForwardProblem::new(Dtype::F32, layout, layout, layout).with_sequences(packed);
        let pointers = ForwardPointers { cu_seqlens_q: 0x6000, cu_seqlens_k: 0x7000, ..pointers() };
        plan(&problem.with_precision(Precision::Fast3), &pointers)
    };
    let (one, two) = (of(1), of(2));
    assert!(one.operands.is_none() && two.operands.is_some());
    let why = "fma: a query sees a single key".to_owned();
    assert!(one.reasons.contains(&why), "{:?}", one.reasons);
}

/// What a forward can know that its backward cannot have in parts it has not either: scores are off alike
/// then, with nothing computed again.
#[test]
fn a_forward_is_of_parts_only_where_its_backward_can_be() {
    for (rows, [head_dim, value_dim], of_parts) in [
        ([300, 200], [64, 128], true),
        ([2, 2], [8, 4], true),
        ([300, 200], [33, 92], false),
        ([300, 200], [92, 33], false),
        ([1, 200], [64, 64], false),
        ([300, 1], [64, 64], false),
        ([300, 200], [4, 64], false),
    ] {
        let [q, k, v] = [(rows[0], 4, head_dim), (rows[1], 2, head_dim), (rows[1], 2, value_dim)]
            .map(|(rows, heads, columns)| Layout::bshd([2, rows, heads, columns]));
        let forward = ForwardProblem::new(Dtype::F32, q, k, v).with_precision(Precision::Fast3);
        let backward = BackwardProblem::new(forward).validate().unwrap();
        let [q, k, v, o, lse] = [0x1000, 0x2000, 0x3000, 0x4000, 0x5000];
        let [d_o, dq, dk, dv] = [0x6000, 0x7000, 0x8000, 0x9000];
        let of_backward = BackwardPointers { q, k, v, o, lse, d_o, dq, dk, dv, ..Default::default() };
        let of_backward = plan_backward(&backward, &device(), &of_backward).unwrap();
        let of_forward = plan(&forward, &pointers()).operands;
        let got = [of_forward.is_some(), of_backward.operands.is_some(), of_backward.again.is_some()];
        assert_eq!(got, [of_parts; 3], "{rows:?} {head_dim} {value_dim}");
    }
}

/// A device with so many bytes of shared memory to a block, and no instructions of Hopper.
fn older(shared_bytes_per_block: u32) -> DeviceProperties {
    DeviceProperties { compute_capability: (8, 6), shared_bytes_per_block, ..device() }
}

fn plan_on(problem: &ForwardProblem, device: &DeviceProperties) -> ForwardPlan {
    plan_forward(&problem.validate().unwrap(), device, &pointers()).unwrap().unwrap()
}

#[test]
fn older_devices_multiply_parts_by_kernels_of_their_own() {
    let problem = large(72).with_precision(Precision::Fast3);
    let plan = plan_on(&problem, &older(163 << 10));
    assert_eq!((plan.variant.kernel.name, plan.hopper), ("forward_f32_d128_parts_sm80", None));
    let operands = plan.operands.unwrap();
    let parts = operands.params.tensors.map(|tensor| tensor.parts);
    let views = [plan.params.q, plan.params.k, plan.params.v];
    assert_eq!(views.map(|view| view.address), parts[..3]);
    // Both parts of 128 columns to a row, rows of a head one behind the other.
    let [q, k, v] = views.map(|view| [view.row_stride, view.head_stride, view.batch_stride]);
    assert_eq!(q, [256, 256 * 2048, 256 * 2048 * 8]);
    assert_eq!([k, v], [[256, 256 * 1024, 256 * 1024 * 2]; 2]);
    assert_eq!(plan.params.o.address, pointers().o);
    assert_eq!(plan.blocks, 2 * 8 * 2048 / 128);
    let small = plan_on(&small().with_precision(Precision::Fast3), &older(99 << 10));
    assert_eq!(small.variant.kernel.name, "forward_f32_d64_parts_sm80");
    let unasked = plan_on(&large(64), &older(163 << 10));
    assert_eq!(unasked.variant.kernel.name, "forward_f32_d64_parts_sm80");
}

#[test]
fn a_device_with_too_little_shared_memory_computes_in_f32() {
    let plan = plan_on(&large(64).with_precision(Precision::Fast3), &older(64 << 10));
    assert_eq!((plan.variant.kernel.name, plan.operands), ("forward_f32_d64_sm80", None));
    let why = "fma: no kernel runs with 65536 bytes of shared memory".to_owned();
    assert!(plan.reasons.contains(&why), "{:?}", plan.reasons);
}

/// Kernels for Hopper count no more batches than 2^16, where their scores differ.
#[test]
fn more_batches_than_hopper_counts_are_for_the_other_kernels() {
    let layout = Layout::bshd([(1 << 16) + 1, 9, 1, 64]);
    let problem =
        ForwardProblem::new(Dtype::F32, layout, layout, layout).with_precision(Precision::Fast3);
    let score = ScorePointers { alibi_slopes: 0x6000, ..Default::default() };
    let pointers = ForwardPointers { score, ..pointers() };
    assert_eq!(plan(&problem, &pointers).variant.kernel.name, "forward_f32_d64_sm90a");
    let sloped = problem.with_alibi(AlibiSlopes::PerBatchAndHead);
    assert_eq!(plan(&sloped, &pointers).variant.kernel.name, "forward_f32_d64_parts_sm80");
}

#[test]
fn only_f32_is_split() {
    let problem = large(64).with_precision(Precision::Fast3);
    let problem = ForwardProblem { dtype: Dtype::F16, output_dtype: Dtype::F16, ..problem };
    for device in [device(), older(163 << 10)] {
        assert_eq!(plan_on(&problem, &device).operands, None);
    }
}

#[test]
fn what_is_in_the_workspace_does_not_overlap() {
    let plan = plan(&large(72).with_precision(Precision::Fast3), &pointers());
    let operands = plan.operands.unwrap();
    let OperandsParams { measure, split: params, factors, exact } = operands.at(1 << 20);
    // The words of operands and of the output are one behind the other, each in a pair with a 0.
    assert_eq!(
        [factors.turn, measure.turn + 4, exact[0].turn + 4, exact[1].turn],
        [params.turn, params.turn, params.turn, params.turn + 4]
    );
    assert!(exact.iter().all(|exact| exact.turn % 8 == 0));
    assert_eq!(exact.map(|exact| exact.forward.lse), [pointers().lse, 0]);
    // A record of zeros, by a block more of the kernel that measures, has the second pair.
    let zeros = params.tensors[3];
    assert_eq!((zeros.records, zeros.rows, zeros.chunks), (params.turn + 4, 0, 1));
    assert_eq!([factors.query_heads, factors.key_heads], [8, 2]);
    // f16 in two parts of 128 columns, and a record of 130 words for 128 rows.
    let mut parts = vec![
        (measure.turn, 8 + 4 * 130),
        (params.score_factors, 4 * 2 * 8),
        (params.value_factors, 4 * 2 * 2),
    ];
    for (tensor, rows) in params.tensors.iter().zip([2048, 1024, 1024]) {
        let heads = u64::from(2 * tensor.heads);
        parts.push((tensor.parts, heads * rows * 2 * 2 * 128));
        parts.push((tensor.records, heads * rows / 128 * 4 * 130));
    }
    parts.sort_unstable();
    let ends =
        parts.iter().skip(1).map(|&(first, _)| first).chain([(1 << 20) + operands.workspace_bytes]);
    for (&(first, bytes), end) in parts.iter().zip(ends) {
        assert!(first % 256 == 0 && first + bytes <= end, "{parts:?}");
    }
    let blocks = params.tensors.map(|tensor| tensor.first_block);
    // Of dO, which a forward has not, there are none.
    let all = 16 * 16 + 2 * 4 * 8;
    assert_eq!(blocks, [0, 16 * 16, 16 * 16 + 4 * 8, all]);
    assert_eq!(operands.launches.map(|launch| launch.blocks), [all + 1, all]);
}

#[test]
fn maps_are_of_parts() {
    let plan = plan(&large(72).with_precision(Precision::Fast3), &pointers());
    let (maps, operands) = (plan.hopper.unwrap(), plan.operands.unwrap());
    let q = maps.q.unwrap();
    assert_eq!((q.dims, q.box_dims), ([256, 2048, 8, 2], [64, 128, 1, 1]));
    assert_eq!(q.strides_bytes, [512, 512 * 2048, 512 * 2048 * 8]);
    assert_eq!(q.address, operands.params.tensors[0].parts);
    assert_eq!(maps.v.unwrap().box_dims, [64, 64, 1, 1]);
    assert_eq!(maps.o, None);
}

/// Tensor maps of the tensors themselves need strides that are not negative, those of their parts do not.
#[test]
fn tensors_may_be_of_any_strides() {
    let layout = large(64).k;
    let [batch, row, head, column] = layout.strides;
    let reversed = Layout { strides: [batch, -row, head, column], ..layout };
    let dense = large(64).with_precision(Precision::Fast3);
    let problem = ForwardProblem { k: reversed, v: reversed, ..dense };
    let [plan, usual] = [problem, dense].map(|problem| plan(&problem, &pointers()));
    let strides = |plan: &ForwardPlan| {
        plan.operands.as_ref().unwrap().params.tensors.map(|tensor| tensor.tensor.row_stride)
    };
    assert_eq!(plan.hopper, usual.hopper);
    assert_eq!(strides(&plan)[1..3], [-row; 2]);
}
