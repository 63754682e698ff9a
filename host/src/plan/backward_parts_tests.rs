//! What is planned for a backward pass of f32 in two parts.

use super::backward_tests::{families, plan, pointers, problem};
use super::tests::{device, plan as forward_plan, pointers as forward_pointers};
use super::*;
use crate::problem::{BackwardProblem, Bias, ForwardProblem, Mode, Precision, ScoreLayout};
use kernels_gpu::abi::BackwardParams;

fn of_parts(head_dim: usize) -> BackwardProblem {
    let problem = problem(Dtype::F32, head_dim);
    BackwardProblem { forward: problem.forward.with_precision(Precision::Fast3), ..problem }
}

#[test]
fn gradients_of_f32_are_of_parts_where_that_is_asked_for() {
    for (head_dim, main, exact) in [
        (64, "backward_f32_d64_parts_sm80", "backward_f32_d64_sm80"),
        (100, "backward_f32_d128_parts_sm80", "backward_f32_d128_sm80"),
    ] {
        let plan = plan(&of_parts(head_dim));
        let names: Vec<_> = plan.launches.iter().map(|launch| launch.variant.kernel.name).collect();
        let converts = [main, exact].map(|name| name.replace("backward_", "backward_convert_"));
        let [of_parts, of_exact] = &converts;
        let forward = exact.replace("backward_", "forward_");
        let expected = [
            "measure_operands_f32_sm80",
            "split_operands_f32_sm80",
            "accumulate_f32_sm80",
            "accumulate_f32_sm80",
            &forward,
            "backward_delta_f32_sm80",
            main,
            of_parts,
            "backward_delta_f32_sm80",
            exact,
            of_exact,
        ];
        assert_eq!(names, expected);
        // What is in the workspace is aligned, and does not overlap.
        let operands = plan.operands.unwrap();
        let (address, bytes) = (1 << 20, plan.workspace_bytes());
        let params = plan.params_with(address, bytes).unwrap();
        let (split, parts) = plan.operands_at(address, params).unwrap();
        let before = params.dq_accumulator + plan.accumulator_bytes();
        let first = split.turn;
        assert!(first >= before && first.is_multiple_of(256));
        assert_eq!([parts.turn, parts.units], [split.turn, split.gradient_units]);
        assert!(first + operands.workspace_bytes <= params.lse);
        assert!(params.lse + 4 * 2 * 4 * 300 <= params.o.address);
        assert_eq!(params.o.address + 4 * 2 * 4 * 300 * head_dim as u64, address + bytes);
        assert!([params.lse, params.o.address].iter().all(|address| address.is_multiple_of(256)));
        let again = plan.again_at(&params, split.turn).unwrap();
        let (forwards, [o, lse]) = (again.forwards, again.fills);
        assert_eq!(forwards.map(|forward| forward.turn), [split.turn, 0]);
        assert!(forwards.iter().all(|again| again.forward.lse == params.lse));
        assert!(forwards.iter().all(|again| again.forward.o == params.o));
        assert_eq!((o.output.address, o.first.address), (params.o.address, 0));
        assert_eq!((lse.output.address, lse.first.address), (params.lse, 0));
        let given = [again.delta.o.address, again.delta.lse];
        assert_eq!((given, again.delta.head_dim), ([pointers().o, pointers().lse], 0));
        assert!(split.tensors.iter().all(|tensor| tensor.parts > first && tensor.records > first));
        let BackwardParams { q, k, v, d_o, .. } = parts.backward;
        assert_eq!([q, k, v, d_o].map(|view| view.address), split.tensors.map(|tensor| tensor.parts));
        assert_eq!(parts.backward.dq, params.dq);
    }
    let unasked = plan(&problem(Dtype::F32, 64));
    assert_eq!((unasked.operands, unasked.launches.len()), (None, 3));
}

#[test]
fn gradients_of_parts_have_as_many_sums_of_dq_as_those_of_fma() {
    let plan_of =
        |problem: BackwardProblem| plan(&BackwardProblem { mode: Mode::Deterministic, ..problem });
    let (parts, exact) = (plan_of(of_parts(64)), plan_of(problem(Dtype::F32, 64)));
    assert_eq!(parts.params.splits, exact.params.splits);
    assert_eq!(parts.operands.unwrap().key_blocks, exact.params.key_blocks);
}

#[test]
fn the_plan_of_a_backward_says_why_not() {
    let reason = |problem: &BackwardProblem| {
        let plan = plan(problem);
        assert_eq!(plan.operands, None);
        plan.reasons.into_iter().find(|reason| reason.starts_with("fma: ")).unwrap()
    };
    let few = "fma: a query sees at most 200 keys: parts would take as long to make";
    assert_eq!(reason(&problem(Dtype::F32, 64)), few);
    assert_eq!(reason(&of_parts(200)), "fma: head_dim 200 is above 128");
    assert_eq!(reason(&of_parts(63)), "fma: not every row of q starts on 16 bytes");
    let unaligned = |problem: BackwardProblem| {
        let [batches, rows, heads, columns] = problem.dk.shape;
        let strides =
            [(rows * (heads * columns + 1)) as i64, (heads * columns + 1) as i64, columns as i64, 1];
        BackwardProblem { dk: Layout { shape: [batches, rows, heads, columns], strides }, ..problem }
    };
    assert_eq!(reason(&unaligned(of_parts(64))), "fma: rows do not start on 16 bytes");
    // The forward is of parts all the same.
    let behind_parts = plan(&unaligned(of_parts(64)));
    let again = "o and lse again by fma: those of the forward are of parts".to_owned();
    assert!(behind_parts.reasons.contains(&again), "{:?}", behind_parts.reasons);
    let [first, rest @ ..] = &families(&behind_parts)[..] else { panic!("no launches") };
    assert_eq!((*first, rest.len()), (Family::Forward, 3));
    let asked = unaligned(of_parts(64));
    let forward = asked.forward.with_precision(Precision::Fma);
    let fma = plan(&BackwardProblem { forward, ..asked });
    assert_eq!((fma.again, fma.launches.len()), (None, 3));
}

#[test]
fn a_gradient_of_the_bias_behind_parts_has_a_forward_of_its_own() {
    let problem = of_parts(64);
    let bias = Bias { layout: ScoreLayout::dense([1, 1, 300, 200]), dtype: Dtype::F32 };
    let problem = BackwardProblem { forward: problem.forward.with_bias(bias), ..problem };
    let problem = BackwardProblem { d_bias: Some(bias), ..problem };
    let score = ScorePointers { bias: 0xd000, ..Default::default() };
    let pointers = BackwardPointers { score, d_bias: 0xe000, ..pointers() };
    let plan = plan_backward(&problem.validate().unwrap(), &device(), &pointers).unwrap();
    let last = &families(&plan)[11..];
    assert_eq!(last, [Family::Forward, Family::BackwardDelta, Family::BiasGradient]);
    assert_eq!(plan.launches[11], plan.launches[4]);
    assert_eq!(plan.launches[12], plan.launches[8]);
}

/// Forward passes over some of the keys are by fma, one over all of them, too.
#[test]
fn passes_over_some_of_the_keys_are_by_fma() {
    for (is_first, is_last) in [(true, true), (true, false), (false, true)] {
        let dq_dtype = Dtype::F32;
        let partial =
            PartialBackward { state: 0x10000, is_first, is_last, dq_dtype, adds_to_keys: false };
        for precision in [None, Some(Precision::Fast3)] {
            let mut problem = large();
            problem.forward.precision = precision;
            let valid = problem.validate().unwrap();
            let plan = plan_backward_partial(&valid, &device(), &pointers(), &partial).unwrap();
            assert_eq!((plan.operands, plan.again), (None, None));
        }
    }
}

/// Enough to do for parts unasked.
fn large() -> BackwardProblem {
    let layout = Layout::bshd([2, 1024, 8, 64]);
    BackwardProblem::new(ForwardProblem::new(Dtype::F32, layout, layout, layout))
}

/// A backward need not be told how its forward was shared out, and whether it gave lse.
#[test]
fn gradients_are_of_parts_unasked_where_the_forward_before_them_is() {
    for problem in [large(), problem(Dtype::F32, 64)] {
        let forward = problem.forward;
        let of_forward = forward_plan(&forward.with_num_splits(2), &forward_pointers()).operands;
        for forward in [forward, forward.without_lse()] {
            let of_backward = plan(&BackwardProblem { forward, ..problem }).operands;
            assert_eq!(of_forward.is_some(), of_backward.is_some());
        }
    }
    assert!(plan(&large()).operands.is_some());
}

/// Case 68 of seed 7 of `fattn check --precision fast3`: a forward in ranges of keys is computed by fma, and
/// dq of parts was off by three times what the rule allows, since with logits of 200 its scores were not
/// those of lse.
#[test]
fn gradients_are_made_of_parts_where_the_forward_before_them_is() {
    let mut problem = of_parts(64);
    problem.forward.num_splits = Some(5);
    let plan = plan(&problem);
    assert_eq!(plan.operands, None);
    assert!(
        plan.reasons.contains(&"fma: ranges of keys are asked for".to_owned()),
        "{:?}",
        plan.reasons
    );
}
