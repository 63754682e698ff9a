//! What is planned for f32 in two parts.

use super::tests::{device, plan, pointers};
use super::*;
use crate::problem::{ForwardProblem, Precision};

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
    assert_eq!(name(&large(64)), "forward_f32_d64_sm80");
    assert_eq!(name(&small()), "forward_f32_d64_sm80");
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
    assert_eq!(reason(&fast(large(64)).with_num_splits(2)), "fma: ranges of keys are asked for");
    assert_eq!(reason(&fast(large(63))), "fma: not every row of o starts on 16 bytes");
    assert_eq!(reason(&large(64)), "fma: fast3 is not asked for");
    let keys = Layout::bshd([1, 0, 2, 64]);
    let none = ForwardProblem::new(Dtype::F32, small().q, keys, keys);
    assert_eq!(reason(&fast(none)), "fma: there are no keys");
}

#[test]
fn only_f32_on_hopper_is_split() {
    let older = DeviceProperties { compute_capability: (8, 0), ..device() };
    let problem = large(64).with_precision(Precision::Fast3);
    let plan = plan_forward(&problem.validate().unwrap(), &older, &pointers()).unwrap().unwrap();
    assert_eq!(plan.operands, None);
    let problem = ForwardProblem { dtype: Dtype::F16, output_dtype: Dtype::F16, ..problem };
    let plan = plan_forward(&problem.validate().unwrap(), &device(), &pointers()).unwrap().unwrap();
    assert_eq!(plan.operands, None);
}

#[test]
fn what_is_in_the_workspace_does_not_overlap() {
    let plan = plan(&large(72).with_precision(Precision::Fast3), &pointers());
    let operands = plan.operands.unwrap();
    let (params, factors, exact) = operands.at(1 << 20);
    assert_eq!([factors.turn, exact.turn], [params.turn; 2]);
    assert_eq!([factors.query_heads, factors.key_heads], [8, 2]);
    // f16 in two parts of 128 columns, and a record of 130 words for 128 rows.
    let mut parts =
        vec![(params.turn, 8), (params.score_factors, 4 * 2 * 8), (params.value_factors, 4 * 2 * 2)];
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
    assert_eq!(blocks, [0, 16 * 16, 16 * 16 + 4 * 8]);
    assert!(operands.launches.iter().all(|launch| launch.blocks == 16 * 16 + 2 * 4 * 8));
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
    assert_eq!(strides(&plan)[1..], [-row; 2]);
}
