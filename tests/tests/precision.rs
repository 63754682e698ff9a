//! f32 as two f16 parts on tensor cores (`Precision::Fast3`): as exact as fused multiply-adds, and where numbers are
//! such that it would not be, the same bits as these. Two kinds of kernels do it, for Hopper and for sm_80: on a GPU
//! those that it takes are tested, and in the emulator both, or of cases that are much alike one, which is drawn.

use finite_attention::check::{Case, Computed, Features, Inputs, Placement, Surroundings};
use finite_attention::driver::emulated::Schedule;
use finite_attention::reference::exact;
use finite_attention::{CausalAlignment, Device, Dtype, KernelImages, Mask, Precision};
use finite_attention_tests::cases::Cases;
use finite_attention_tests::compare::{identical, run, same_bits};
use finite_attention_tests::device::{emulated, emulated_arch, on_each};
use finite_attention_tests::errors::relative_error;
use finite_attention_tests::property::check;
use finite_attention_tests::recorder::{Launched, recording, recording_as, small};
use finite_attention_tests::rule::within_the_rule;
use finite_attention_tests::shapes::cases;
use finite_attention_tests::share::{drawn, on_one};
use finite_attention_tests::verdict::{Verdict, judge_on, options};
use kernels_gpu::abi::{Arch, KERNELS, KernelSpec};
use std::sync::Mutex;

/// Two heads for each of two key heads, of several tiles.
pub(crate) fn case(head_dim: usize) -> Case {
    Case {
        query_rows: 130,
        key_rows: 150,
        query_heads: 4,
        key_heads: 2,
        head_dim,
        value_dim: head_dim,
        dtype: Dtype::F32,
        output_dtype: Dtype::F32,
        ..Case::small()
    }
}

/// What both ways make of these numbers, fast3 and fma, and whether the first one's is what parts gave.
fn both_ways(device: &Device, case: &Case, inputs: &Inputs) -> ([Computed; 2], bool) {
    let (device, launched) = recording(device);
    let computed = Precision::ALL.map(|precision| {
        let case = Case { precision: Some(precision), ..case.clone() };
        run(&device, &case, inputs, Surroundings::Nan).unwrap()
    });
    let turns = launched.turns();
    let [turn] = turns[..] else { panic!("{case:?}: one of both in parts: {turns:?}") };
    (computed, turn == [0, 0])
}

/// By how much errors of the fast way may exceed those of the other one: by half on a GPU. The emulator adds products
/// of a matrix instruction one by one, and so rounds 384 times to a score of head dim 128, where a tensor core adds 16 at
/// once, and the kernel with fused multiply-adds 32 at a time before it adds these up, 36 times: errors that add up at
/// random then are the root of 384 / 36 as large, 3.3 times.
pub(crate) fn most_error() -> f64 {
    if emulated_arch().is_some() { 3.3 } else { 1.5 }
}

/// o and lse of both ways are exact, and neither computed both.
fn is_as_exact(case: &Case, inputs: &Inputs) {
    on_one(&case.shape_text(), |device| {
        let ([fast, fma], of_parts) = both_ways(device, case, inputs);
        assert!(of_parts, "{case:?}: fma computed both");
        let expected = exact(&case.sizes(), &inputs.q, &inputs.k, &inputs.v);
        for (what, fast, fma, expected) in
            [("o", &fast.o, &fma.o, &expected.o), ("lse", &fast.lse, &fma.lse, &expected.lse)]
        {
            let [fast, fma] = [fast, fma].map(|got| relative_error(got, expected));
            // A unit in the last place is as exact as f32 gets.
            let allowed = most_error() * fma.max(2f64.powi(-24));
            assert!(fast <= allowed, "{case:?}: {what}: {fast:e}, fma {fma:e}");
        }
    });
}

/// The fast way leaves these numbers to the other one.
fn is_left_to_fma(what: &str, case: &Case, inputs: &Inputs) {
    on_one(what, |device| {
        let ([fast, fma], of_parts) = both_ways(device, case, inputs);
        assert!(!of_parts, "{what}: {case:?}");
        identical(what, true, &fast, &fma).unwrap();
    });
}

pub(crate) fn scaled(numbers: &[f32], factor: f32) -> Vec<f32> {
    numbers.iter().map(|number| number * factor).collect()
}

#[test]
fn parts_are_as_exact_as_f32() {
    for head_dim in [64, 128] {
        for (logits, mask) in
            [(1.0, Mask::Full), (8.0, Mask::Causal(CausalAlignment::BottomRight)), (30.0, Mask::Full)]
        {
            let case = Case { mask, ..case(head_dim) };
            let inputs = Inputs::drawn(&case);
            is_as_exact(&case, &Inputs { q: scaled(&inputs.q, logits), ..inputs });
        }
    }
}

#[test]
fn numbers_may_be_of_any_size_together() {
    let case = case(64);
    let inputs = Inputs::drawn(&case);
    let sized = |q: f32, k: f32, v: f32| Inputs {
        q: scaled(&inputs.q, q),
        k: scaled(&inputs.k, k),
        v: scaled(&inputs.v, v),
        ..inputs.clone()
    };
    is_as_exact(&case, &sized(1e30, 1e-30, 1e36));
    is_as_exact(&case, &sized(1e-28, 1e27, 1e-28));
    is_as_exact(&case, &sized(1e-3, 1e-3, 1.0));
}

/// Each head is scaled by itself.
#[test]
fn heads_may_be_of_different_sizes() {
    let case = case(64);
    let mut inputs = Inputs::drawn(&case);
    let (of_q, of_k) = (case.query_heads * case.head_dim, case.key_heads * case.head_dim);
    for (tensor, row, factors) in [
        (&mut inputs.q, of_q, &[1.0, 100.0, 1e-3, 7.0][..]),
        (&mut inputs.k, of_k, &[0.01, 3.0]),
        (&mut inputs.v, of_k, &[1.0, 1e4]),
    ] {
        for numbers in tensor.chunks_exact_mut(row) {
            for (head, factor) in numbers.chunks_exact_mut(case.head_dim).zip(factors) {
                head.iter_mut().for_each(|number| *number *= factor);
            }
        }
    }
    is_as_exact(&case, &inputs);
}

/// A head for which one number stands out among small ones is not as exact in parts, nor is what is not finite.
#[test]
fn numbers_that_parts_cannot_hold_are_left_to_fma() {
    let case = case(64);
    let inputs = Inputs::drawn(&case);
    let changed = |what: &str, change: &dyn Fn(&mut Inputs)| {
        let mut changed = inputs.clone();
        change(&mut changed);
        is_left_to_fma(what, &case, &changed);
    };
    let width = case.value_dim;
    changed("a large query", &|inputs| inputs.q[0] = 1e30);
    changed("a large key", &|inputs| inputs.k[14 * width] = 1e30);
    changed("a large row of values", &|inputs| inputs.v[..width].iter_mut().for_each(|v| *v *= 1e6));
    changed("a small row of values", &|inputs| inputs.v[..width].iter_mut().for_each(|v| *v *= 1e-6));
    changed("a small column", &|inputs| inputs.v.iter_mut().step_by(2 * width).for_each(|v| *v *= 1e-6));
    changed("denormal queries", &|inputs| inputs.q = scaled(&inputs.q, 1e-40));
    changed("denormal values", &|inputs| inputs.v = scaled(&inputs.v, 1e-40));
    for number in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        changed("not finite in q", &|inputs| inputs.q[300] = number);
        changed("not finite in k", &|inputs| inputs.k[300] = number);
        changed("not finite in v", &|inputs| inputs.v[300] = number);
    }
}

/// Where the keys that count have values of 0, the output is made of probabilities that parts cannot hold.
#[test]
fn small_probabilities_that_are_all_there_is_are_left_to_fma() {
    let case = Case { query_heads: 1, key_heads: 1, ..case(64) };
    let mut inputs = Inputs::drawn(&case);
    inputs.q.iter_mut().step_by(64).for_each(|q| *q = 16.0);
    inputs.k.iter_mut().step_by(64).for_each(|k| *k = 0.0);
    // A score of 32 for the first key; that of others is about 0.
    inputs.k[0] = 16.0;
    inputs.v[..64].fill(0.0);
    on_one("a sink without a value", |device| {
        let ([fast, fma], of_parts) = both_ways(device, &case, &inputs);
        assert!(!of_parts, "{case:?}");
        same_bits("o", &fast.o, &fma.o).unwrap();
        // lse has lost nothing, and the gradients may be of parts.
        assert_ne!(fast.lse, fma.lse);
        let expected = exact(&case.sizes(), &inputs.q, &inputs.k, &inputs.v);
        let [fast, fma] = [&fast.lse, &fma.lse].map(|lse| relative_error(lse, &expected.lse));
        assert!(fast <= most_error() * fma.max(2f64.powi(-24)), "{fast:e}, fma {fma:e}");
    });
}

/// Everything else as it comes: masks, windows, packed sequences, placements, scales, features; where all rows start on
/// 16 bytes, and there are batches, heads, and more than one query and key, so that there are kernels for it.
#[test]
fn parts_are_right_in_all_cases() {
    let cases = Cases::changed(|case| {
        (case.dtype, case.output_dtype) = (Dtype::F32, Dtype::F32);
        case.head_dim = case.head_dim.next_multiple_of(4).clamp(8, 128);
        case.value_dim = case.value_dim.next_multiple_of(4).min(128);
        (case.query_rows, case.key_rows) = (case.query_rows.max(2), case.key_rows.max(2));
        (case.batches, case.query_heads) = (case.batches.max(1), case.query_heads.max(1));
        case.key_heads = case.key_heads.max(1);
        case.softcap = case.softcap.map(|cap| cap.max(2.0));
        if case.placement == Placement::Unaligned {
            case.placement = Placement::Packed;
        }
        (case.precision, case.gradients, case.num_splits) = (Some(Precision::Fast3), None, None);
    });
    let counts = Mutex::new([0, 0]);
    // Of a twentieth that is left to fma, a few cases may happen to have more than a quarter.
    check("precision", 64, cases.extended().with_just_enough_rows(), |device, case| {
        let (device, launched) = recording(device);
        within_the_rule(&device, case, Inputs::drawn)?;
        let turns = launched.turns();
        // More where the rule has more cases judged as one.
        let Some(&turn) = turns.first() else { return Err(format!("not planned in parts: {case:?}")) };
        let mut counts = counts.lock().unwrap();
        counts[usize::from(turn == [0, 0])] += 1;
        Ok(())
    });
    let [of_fma, of_parts] = *counts.lock().unwrap();
    // Numbers are normally distributed: seldom one is so large, or an output so small, that parts are not as exact.
    assert!(of_parts >= 3 * of_fma, "{of_parts} results are of parts, {of_fma} of fused multiply-adds");
}

/// Every part of these kernels, with several tiles to a block, as late or as early as their protocol allows, as is drawn; in
/// the emulator whatever the device.
#[test]
fn every_part_of_the_kernels_is_right_in_any_order() {
    let kernels = KERNELS.iter().filter(|spec| spec.multiplies_parts);
    for (kernel, arch) in kernels.map(|spec| (spec.name, spec.arch)) {
        let mut with_dropout = 0;
        let cases = cases(kernel).into_iter().filter(|case| case.key_rows > 0);
        for (number, (case, may_be_lost)) in cases.flat_map(fitted).enumerate() {
            let schedules = [Schedule::Latest, Schedule::Eager];
            for schedule in drawn(&format!("{kernel} {number}"), 2, schedules) {
                let device = emulated(arch, KernelImages::embedded(), options(schedule));
                let (device, launched) = recording(&small(&device));
                let verdict = judge_on(&device, kernel, &case);
                assert!(matches!(verdict, Verdict::Clean), "{kernel}, {case:?}: {verdict:?}");
                // The first run: in a second one packed sequences have neighbours of NaN. Gradients come behind
                // o and lse, whose output may be lost where theirs are not.
                let turns = launched.turns();
                let of_gradients = turns.get(1).filter(|_| case.gradients.is_some());
                assert!(of_gradients.is_none_or(|&turn| turn == [0, 0]), "{kernel}, {case:?}: fma");
                let [of_operands, of_output] = turns[0];
                let as_expected = of_operands == 0 && (of_output == 0 || may_be_lost);
                assert!(as_expected, "{kernel}, {case:?}: fma computed it");
                with_dropout += usize::from(of_output == 0 && case.features.dropout.is_some());
            }
        }
        assert!(with_dropout > 0, "{kernel}: no result of parts with dropout");
    }
}

/// A case with all rows on 16 bytes, since others are left to fused multiply-adds, and whether its results may be, too.
///
/// A row whose keys are all dropped has an output of 0, which counts as one of small probabilities where the other row of
/// its lanes has some of these: with dropout comes the same case without it. A row that sees nothing counts for nothing.
fn fitted(case: Case) -> Vec<(Case, bool)> {
    let columns = |columns: usize| columns.next_multiple_of(4).max(8);
    let case = Case { head_dim: columns(case.head_dim), value_dim: columns(case.value_dim), ..case };
    let drops = case.features.dropout.is_some();
    let without = Features { dropout: None, ..case.features };
    let without = drops.then_some((Case { features: without, ..case.clone() }, false));
    [(case, drops)].into_iter().chain(without).collect()
}

/// Gradients are made by `mma.sync`, of the lse of a forward by `wgmma`: what scores are off by cancels where both add the
/// same products in the same order. Where a query sees a single key lse is its score.
#[test]
fn scores_are_the_same_bits_by_either_instruction() {
    for head_dim in [64, 128] {
        let mask =
            Mask::Window { left: Some(0), right: Some(0), alignment: CausalAlignment::BottomRight };
        let case = Case { mask, precision: Some(Precision::Fast3), ..case(head_dim) };
        let inputs = Inputs::drawn(&case);
        have_the_same_scores(&case, &Inputs { q: scaled(&inputs.q, 8.0), ..inputs });
    }
}

fn have_the_same_scores(case: &Case, inputs: &Inputs) {
    on_each(|device| {
        let older = recording_as(device, Arch::Sm80);
        let of = |(device, launched): (Device, Launched), arch: Arch| {
            let computed = run(&device, case, inputs, Surroundings::Nan).unwrap();
            let names = launched.names();
            let multiplies = |spec: &&KernelSpec| spec.multiplies_parts && names.contains(spec.name);
            assert_eq!(KERNELS.iter().find(multiplies).unwrap().arch, arch);
            computed.lse.iter().map(|lse| lse.to_bits()).collect::<Vec<_>>()
        };
        let is_hopper = device.properties().compute_capability.0 == 9;
        let newest = if is_hopper { Arch::Sm90a } else { Arch::Sm80 };
        assert_eq!(of(recording(device), newest), of(older, Arch::Sm80));
    });
}
