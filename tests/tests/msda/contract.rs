//! What the contract says of samples, sizes and memory.

use super::{SAMPLINGS, bits, computed};
use finite_attention::check::Surroundings;
use finite_attention::check::msda::{
    MsdaCase, MsdaNumbers, compute_msda, msda_case, run_msda_case, run_msda_case_with,
};
use finite_attention::{Dtype, Mode, Padding};
use finite_attention_tests::device::open;

/// One head with one channel of values 1, 2, 3, ..., and queries of one point of weight 1 each.
fn single(shape: [usize; 2], padding: Padding, align_corners: bool, at: &[[f32; 2]]) -> Vec<f32> {
    let case = MsdaCase {
        queries: at.len(),
        heads: 1,
        channels: 1,
        shapes: vec![shape],
        level_points: 1,
        padding,
        align_corners,
        ..MsdaCase::small()
    };
    let numbers = MsdaNumbers {
        value: (0..shape[0] * shape[1]).map(|cell| cell as f32 + 1.0).collect(),
        locations: at.concat(),
        weights: vec![1.0; at.len()],
        d_o: vec![1.0; at.len()],
    };
    computed(&open(), &case, &numbers).o
}

#[test]
fn a_point_on_the_centre_of_a_cell_takes_that_cell() {
    let centres = |size: usize| (0..size).map(move |cell| (cell as f32 + 0.5) / size as f32);
    for padding in [Padding::Zeros, Padding::Border] {
        let at: Vec<_> = centres(4).flat_map(|y| centres(8).map(move |x| [x, y])).collect();
        let expected: Vec<f32> = (1..=32).map(|value| value as f32).collect();
        assert_eq!(single([4, 8], padding, false, &at), expected);
        let corners = [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]];
        assert_eq!(single([4, 8], padding, true, &corners), [1.0, 8.0, 25.0, 32.0]);
    }
}

#[test]
fn far_outside_there_are_zeros_or_the_border() {
    let at = [[-9.0, -9.0], [9.0, -9.0], [-9.0, 9.0], [3e38, 3e38], [-3e38, 0.5], [0.5, -3e38]];
    for align_corners in [false, true] {
        assert_eq!(single([4, 8], Padding::Zeros, align_corners, &at), [0.0; 6]);
        let border = single([4, 8], Padding::Border, align_corners, &at);
        // The middle of the first column, and of the first row.
        assert_eq!(border, [1.0, 8.0, 25.0, 32.0, 13.0, 4.5]);
    }
}

#[test]
fn half_outside_zeros_count_half() {
    let at = [[0.0, 0.125], [1.0, 0.125], [0.0, 0.0]];
    assert_eq!(single([4, 8], Padding::Zeros, false, &at), [0.5, 4.0, 0.25]);
    assert_eq!(single([4, 8], Padding::Border, false, &at), [1.0, 8.0, 1.0]);
}

#[test]
fn levels_of_one_cell_and_of_one_row_or_column_are_within_the_rule() {
    let device = open();
    for (padding, align_corners) in SAMPLINGS {
        for dtype in [Dtype::F32, Dtype::Bf16] {
            let case = MsdaCase {
                seed: 7,
                queries: 25,
                channels: 8,
                shapes: vec![[1, 1], [1, 7], [5, 1], [2, 3]],
                dtype,
                padding,
                align_corners,
                ..MsdaCase::small()
            };
            for mode in [Mode::Fast, Mode::Deterministic] {
                let outcome = run_msda_case(&device, &MsdaCase { mode, ..case.clone() });
                assert_eq!(outcome.failure, None, "{:?}", outcome.case);
            }
        }
    }
}

#[test]
fn sixteen_levels_and_many_points_are_within_the_rule() {
    let shapes = (1..=16).map(|side| [side, 17 - side]).collect();
    let case = MsdaCase { shapes, level_points: 7, queries: 5, ..MsdaCase::small() };
    for mode in [Mode::Fast, Mode::Deterministic] {
        let outcome = run_msda_case(&open(), &MsdaCase { mode, ..case.clone() });
        assert_eq!(outcome.failure, None);
    }
}

/// More points of a query than the kernels find the level of by a product.
#[test]
fn more_than_65536_points_of_a_query_are_within_the_rule() {
    let shapes = vec![[2, 3], [1, 1], [3, 2]];
    let case = MsdaCase {
        batches: 1,
        queries: 1,
        heads: 1,
        channels: 1,
        shapes,
        level_points: 22_000,
        ..MsdaCase::small()
    };
    let outcome = run_msda_case(&open(), &case);
    assert_eq!(outcome.failure, None);
}

/// Nothing is launched that reads, and all that is written is zeros.
#[test]
fn without_points_or_queries_everything_is_zero() {
    let device = open();
    let small = MsdaCase { channels: 6, ..MsdaCase::small() };
    for dtype in [Dtype::F32, Dtype::F16] {
        for mode in [Mode::Fast, Mode::Deterministic] {
            let small = MsdaCase { dtype, mode, ..small.clone() };
            let empty = [
                MsdaCase { level_points: 0, ..small.clone() },
                MsdaCase { queries: 0, ..small.clone() },
                MsdaCase { batches: 0, ..small.clone() },
                MsdaCase { heads: 0, ..small.clone() },
            ];
            for case in empty {
                let computed = computed(&device, &case, &MsdaNumbers::drawn(&case));
                let sizes = case.sizes();
                let elements = case.batches * case.heads * case.channels;
                assert_eq!(computed.o, vec![0.0; elements * case.queries]);
                assert_eq!(computed.d_value, vec![0.0; elements * sizes.cells()]);
                assert!(computed.d_weights.is_empty() && computed.d_locations.is_empty());
            }
        }
    }
}

/// What stands around and between the elements of tensors does not matter, bit for bit; nothing there is
/// written, and in the emulator nothing there is read.
#[test]
fn poison_around_tensors_changes_no_bit() {
    let device = open();
    for id in 0..48 {
        // Sums of the fast mode depend on the order, which is the same in the emulator.
        let case = MsdaCase { mode: Mode::Deterministic, ..msda_case(11, id) };
        let numbers = MsdaNumbers::drawn(&case);
        let around = [Surroundings::Nan, Surroundings::Infinity, Surroundings::Zero];
        let results = around.map(|around| {
            let computed = compute_msda(&device, &case, &numbers, around).unwrap();
            assert_eq!(computed.spilled, None, "{case:?}");
            bits(&computed)
        });
        assert!(results.iter().all(|bits| *bits == results[0]), "{case:?}");
    }
}

/// Sums that f16 does not hold are infinity of their sign, and never NaN; a sum is only rounded in the end.
#[test]
fn sums_beyond_f16_are_infinity_of_the_right_sign() {
    let device = open();
    for (dtype, mode) in [(Dtype::F16, Mode::Fast), (Dtype::F16, Mode::Deterministic)] {
        for sign in [1.0, -1.0] {
            let case = MsdaCase {
                dtype,
                mode,
                queries: 12,
                channels: 8,
                shapes: vec![[1, 1]],
                ..MsdaCase::small()
            };
            let drawn = MsdaNumbers::drawn(&case);
            let numbers = MsdaNumbers {
                value: vec![sign * 60000.0; drawn.value.len()],
                locations: vec![0.5; drawn.locations.len()],
                weights: vec![1.0; drawn.weights.len()],
                d_o: vec![sign * 30000.0; drawn.d_o.len()],
            };
            let (outcome, computed) = run_msda_case_with(&device, &case, &numbers).unwrap();
            assert_eq!(outcome.failure, None);
            let infinity = sign * f32::INFINITY;
            assert!(computed.o.iter().all(|&o| o == infinity), "{:?}", computed.o);
            assert!(computed.d_value.iter().all(|&d| d == infinity), "{:?}", computed.d_value);
            // f32: 8 channels of 60000 times 30000.
            assert!(computed.d_weights.iter().all(|&d| d > 1.4e10 && d.is_finite()));
            // The second half takes back what the first half gave: on the way sums are beyond f16.
            let mut back = numbers.clone();
            let half = back.d_o.len() / 2;
            back.d_o[half..].iter_mut().for_each(|g| *g = -*g);
            let (outcome, computed) = run_msda_case_with(&device, &case, &back).unwrap();
            assert_eq!(outcome.failure, None);
            assert!(computed.d_value.iter().all(|&d| d == 0.0), "{:?}", computed.d_value);
        }
    }
}

/// Values of nearly the largest f32 and of either sign: neither their differences nor what is multiplied by the size of
/// a level leaves the range of f32 before the end; and a location beyond the border has no gradient.
#[test]
fn gradients_of_values_near_the_largest_number_are_finite() {
    let device = open();
    for dtype in [Dtype::F32, Dtype::Bf16] {
        for mode in [Mode::Fast, Mode::Deterministic] {
            let case = MsdaCase {
                dtype,
                mode,
                heads: 1,
                queries: 2,
                channels: 1,
                shapes: vec![[2, 2]],
                level_points: 1,
                padding: Padding::Border,
                align_corners: false,
                ..MsdaCase::small()
            };
            let large = 3e38;
            let numbers = MsdaNumbers {
                value: vec![large, -large, -large, large],
                locations: vec![0.375, 0.375, -1.0, -1.0],
                weights: vec![1.0; 2],
                d_o: vec![0.125; 2],
            };
            let computed = computed(&device, &case, &numbers);
            let close = |got: f32, expected: f32| {
                let error = (got - expected).abs();
                assert!(error <= expected.abs() / 64.0, "{dtype:?} {mode:?}: {expected:e}, got {got:e}");
            };
            // A quarter of a cell from the first corner: 2 (v01 - v00 + (v11 - v10 - v01 + v00) / 4).
            close(computed.d_locations[0], -0.125 * 2.0 * large);
            close(computed.d_locations[1], -0.125 * 2.0 * large);
            close(computed.d_weights[0], 0.125 * large / 4.0);
            close(computed.d_weights[1], 0.125 * large);
            assert_eq!(computed.d_locations[2..], [0.0; 2], "{dtype:?} {mode:?}");
        }
    }
}
