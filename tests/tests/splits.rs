//! Ranges of keys that are worked on side by side: o and lse are those of all keys, whatever the ranges.

use finite_attention::check::{Case, Inputs, Placement, Surroundings, compute, with_enough_rows};
use finite_attention::{CausalAlignment, Device, Dtype, KernelImages, Mask};
use finite_attention_tests::cases::Cases;
use finite_attention_tests::device::open;
use finite_attention_tests::property::{Finding, check};
use finite_attention_tests::recorder::recording;
use finite_attention_tests::rule::within_the_rule;
use finite_attention_tests::share::drawn;
use kernels_gpu::abi::{Arch, Family, KERNELS, MAX_SPLITS};

fn right(device: &Device, case: &Case) -> Finding {
    within_the_rule(device, case, Inputs::drawn).map(|_| ())
}

/// Up to as many ranges as there can be, most of them of one key tile, in every placement; with gradients.
#[test]
fn any_number_of_ranges_gives_the_same() {
    let cases = Cases::changed(|case| {
        case.key_rows += 200;
        case.num_splits = Some([2, 3, 5, MAX_SPLITS][case.seed as usize % 4]);
    });
    check("splits", 16, cases.extended().with_just_enough_rows(), right);
}

/// Under a window or a causal mask a row sees nothing in some ranges, and all rows nothing in others.
#[test]
fn ranges_that_show_nothing_count_for_nothing() {
    let cases = Cases::changed(|case| {
        case.packed = case.seed.is_multiple_of(3);
        (case.query_rows, case.key_rows) = (case.query_rows.min(70), 390);
        case.num_splits = Some(MAX_SPLITS);
        let alignment = [CausalAlignment::TopLeft, CausalAlignment::BottomRight][case.seed as usize % 2];
        case.mask = Mask::Window { left: Some(case.seed as u32 % 40), right: Some(3), alignment };
    });
    check("splits-windows", 16, cases.with_just_enough_rows(), right);
}

/// What one range overflows or loses must not show: logits far from 0 on either side, and far from each other.
#[test]
fn ranges_with_logits_far_apart_are_weighed_right() {
    let cases = Cases::changed(|case| {
        case.packed = case.seed.is_multiple_of(2);
        (case.query_rows, case.key_rows) = (case.query_rows.min(20), 300);
        case.num_splits = Some(4);
        case.logit_shift = [200.0, -200.0, 0.0][case.seed as usize % 3];
        case.amplitude = 2.0;
    });
    check("splits-logits", 16, cases.with_just_enough_rows(), right);
}

/// A case of two ranges, 64 keys or more and a few, in f32 and in 16 bits.
fn two_ranges(dtype: Dtype) -> Case {
    Case {
        query_rows: 9,
        key_rows: 131,
        batches: 2,
        num_splits: Some(2),
        dtype,
        output_dtype: dtype,
        ..Case::small()
    }
}

/// o of two ranges and of all keys at once, where column 0 alone counts and keys have `key` times `query`.
fn apart_and_at_once(case: &Case, scale: f32, query: f32, key: impl Fn(usize) -> f32) -> [Vec<f32>; 2] {
    let mut inputs = Inputs::drawn(case);
    for (tensor, heads, is_key) in
        [(&mut inputs.q, case.query_heads, false), (&mut inputs.k, case.key_heads, true)]
    {
        tensor.fill(0.0);
        for (row, columns) in tensor.chunks_mut(case.head_dim).enumerate() {
            columns[0] = if is_key { key(row / heads % case.key_rows) } else { query };
        }
    }
    [2, 1].map(|ranges| {
        let case = Case { num_splits: Some(ranges), scale: Some(scale), ..case.clone() };
        compute(&open(), &case, &inputs, Surroundings::Nan).unwrap().o
    })
}

fn assert_close([apart, at_once]: [Vec<f32>; 2], what: &str) {
    for (apart, at_once) in apart.into_iter().zip(at_once) {
        assert!((apart - at_once).abs() <= 0.01, "{what}: {apart} instead of {at_once}");
    }
}

/// Parts once had lse for all that is known of them: where scores are so large that their logarithm lost the number
/// of keys, 128 of them counted as much as the 3 of the next range.
#[test]
fn ranges_count_for_their_keys_however_large_scores_are() {
    for dtype in [Dtype::Bf16, Dtype::F32] {
        for query in [1.0, 1e10, -1e10] {
            assert_close(apart_and_at_once(&two_ranges(dtype), 1.0, query, |_| 3e10), "equal keys");
        }
    }
}

/// lse is infinite where f32 does not hold the scaled score. Its parts once were, too: o was NaN, or 0 as if the row
/// saw no key.
#[test]
fn ranges_are_weighed_where_lse_overflows() {
    for dtype in [Dtype::Bf16, Dtype::F32] {
        for query in [1.0, -1.0] {
            assert_close(apart_and_at_once(&two_ranges(dtype), 1e20, query, |_| 1e20), "infinite lse");
        }
    }
}

/// Where all scores of a range are minus infinity its sum is 0: its o was once NaN, and with it the whole.
#[test]
fn a_range_of_infinitely_small_scores_counts_for_nothing() {
    for dtype in [Dtype::Bf16, Dtype::F32] {
        let last = |key: usize| if key < 128 { 0.0 } else { -1e20 };
        assert_close(apart_and_at_once(&two_ranges(dtype), 1.0, 1e20, last), "last range");
        assert_close(
            apart_and_at_once(&two_ranges(dtype), 1.0, 1e20, |key| last(130 - key)),
            "first keys",
        );
        // And NaN is NaN: no score is finite.
        let [apart, at_once] = apart_and_at_once(&two_ranges(dtype), 1.0, 1e20, |_| -1e20);
        assert!(apart.iter().chain(&at_once).all(|x| x.is_nan()));
    }
}

/// Packed sequences have as many ranges as their keys fill: the longest as many as were asked for, others fewer, and
/// one without a key.
#[test]
fn packed_sequences_have_ranges_of_their_own() {
    let cases = Cases::changed(|case| {
        (case.packed, case.batches) = (true, 2 + case.seed as usize % 5);
        (case.query_rows, case.key_rows) = (case.query_rows.clamp(1, 20), 390);
        case.num_splits = Some([2, 5, MAX_SPLITS][case.seed as usize % 3]);
    });
    check("splits-packed", 16, cases.with_enough_rows(), right);
}

/// The kernel that combines finds a row's sequence among so many that a warp has to look once, twice and three times;
/// some have no query, some no key.
#[test]
fn the_ranges_of_a_row_are_those_of_its_sequence_among_many() {
    let (device, launched) = recording(&open());
    for (batches, query_rows) in [(31, 3), (32, 2), (33, 2), (70, 1), (1060, 1)] {
        let case = Case {
            packed: true,
            batches,
            query_rows,
            key_rows: 260,
            head_dim: 8,
            value_dim: 8,
            query_heads: 2,
            key_heads: 2,
            num_splits: Some(3),
            seed: batches as u64,
            ..Case::small()
        };
        if let Err(finding) = right(&device, &case) {
            panic!("{batches} sequences: {finding}");
        }
    }
    let combines = launched.names().iter().any(|name| name.starts_with("forward_combine_"));
    assert!(combines, "nothing was combined");
}

/// A kernel that combines, and starts while the one before it ends, waits for that one before all else: no branch leads
/// past it, and nothing in memory is touched before. A main kernel of the backward makes its barriers before.
#[test]
fn kernels_that_start_early_wait_before_they_touch_memory() {
    let images = KernelImages::embedded();
    for kernel in KERNELS {
        let ptx = images.get(kernel.into()).unwrap();
        let code = ptx.rsplit(".entry").next().unwrap();
        let before: Vec<&str> =
            code.lines().take_while(|line| !line.contains("griddepcontrol.wait")).collect();
        let waits = before.len() < code.lines().count();
        assert_eq!(waits, kernel.may_start_early(), "{}", kernel.name);
        let combines = kernel.family == Family::ForwardCombine;
        let touches = |line: &&str| {
            let is_code = |part| line.contains(part) && !line.trim_start().starts_with('.');
            ["global", "cp."].into_iter().any(is_code)
                || combines && ["shared", "bra", "bar."].into_iter().any(is_code)
                || combines && line.starts_with("$L__BB")
        };
        if waits && kernel.family != Family::BackwardConvert {
            assert_eq!(before.iter().find(|line| touches(line)), None, "{}", kernel.name);
        }
        let allows = code.contains("griddepcontrol.launch_dependents");
        let is_first_of_two = match kernel.family {
            Family::Forward => kernel.splits_keys(),
            Family::Backward => true,
            _ => false,
        };
        assert_eq!(allows, kernel.arch == Arch::Sm90a && is_first_of_two, "{}", kernel.name);
    }
}

/// Decoding: one query of many heads, of which those that share keys are rows of a tile, and 16 keys more than whole
/// tiles, in so many ranges that the warps of a block of the kernel that combines take a row together. It is launched,
/// and results are the same bits each time.
#[test]
fn a_single_query_is_combined_from_ranges_and_repeats() {
    let (device, launched) = recording(&open());
    let dtypes = [(Dtype::Bf16, Dtype::F32), (Dtype::F16, Dtype::F32), (Dtype::F32, Dtype::F32)];
    let same = [Dtype::Bf16, Dtype::F16].map(|dtype| (dtype, dtype));
    let all = dtypes.into_iter().chain(same).flat_map(|(dtype, output_dtype)| {
        [Placement::Bshd, Placement::Unaligned].map(|placement| (dtype, output_dtype, placement))
    });
    for (dtype, output_dtype, placement) in drawn("splits-single-query", 3, all) {
        let case = with_enough_rows(Case {
            query_rows: 1,
            key_rows: 5 * 128 + 16,
            query_heads: 8,
            key_heads: 2,
            batches: 2,
            head_dim: 60,
            value_dim: 50,
            num_splits: Some(6),
            dtype,
            output_dtype,
            placement,
            ..Case::small()
        });
        if let Err(finding) = right(&device, &case) {
            panic!("{} {placement:?}: {finding}", dtype.name());
        }
        let run = || {
            let computed = compute(&device, &case, &Inputs::drawn(&case), Surroundings::Nan).unwrap();
            (computed.o, computed.lse)
        };
        assert_eq!(run(), run(), "{} {placement:?}", dtype.name());
        let kernel = format!("forward_combine_{}_q1_sm80", dtype.name());
        assert!(launched.names().contains(kernel.as_str()), "{kernel} was not launched");
    }
}
