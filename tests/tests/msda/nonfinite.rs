//! Locations that are no numbers, and values that are none.

use super::{SAMPLINGS, computed};
use finite_attention::check::msda::{MsdaCase, MsdaComputed, MsdaNumbers, judge_msda};
use finite_attention::{Dtype, Mode};
use finite_attention_tests::device::open;

/// The result without the location of one point, whose weight is 0 instead, and with it as `bad`.
fn with_and_without(case: &MsdaCase, at: usize, bad: f32) -> [MsdaComputed; 2] {
    let device = open();
    let mut numbers = MsdaNumbers::drawn(case);
    numbers.weights[at / 2] = 0.0;
    numbers.locations[at] = 0.5;
    let without = computed(&device, case, &numbers);
    numbers.weights[at / 2] = 1.0;
    numbers.locations[at] = bad;
    [without, computed(&device, case, &numbers)]
}

/// o of that query and head and the gradients of that point are NaN. Nothing else changes, and value has no
/// gradient of the point.
#[test]
fn a_location_that_is_no_number_is_nan_in_what_depends_on_it_alone() {
    for (padding, align_corners) in SAMPLINGS {
        for (dtype, mode) in
            [(Dtype::F32, Mode::Deterministic), (Dtype::F16, Mode::Fast), (Dtype::Bf16, Mode::Fast)]
        {
            let case = MsdaCase { padding, align_corners, dtype, mode, ..MsdaCase::small() };
            let points = case.sizes().points();
            for (at, bad) in [(13, f32::NAN), (30, f32::INFINITY), (31, f32::NEG_INFINITY)] {
                let [without, with] = with_and_without(&case, at, bad);
                let point = at / 2;
                let row = point / points;
                for (index, (o, before)) in with.o.iter().zip(&without.o).enumerate() {
                    if index / case.channels == row {
                        assert!(o.is_nan(), "o {index}: {o}");
                    } else {
                        assert_eq!(o.to_bits(), before.to_bits(), "o {index}");
                    }
                }
                for (index, d) in with.d_weights.iter().enumerate() {
                    assert_eq!(d.is_nan(), index == point, "dweights {index}: {d}");
                }
                for (index, d) in with.d_locations.iter().enumerate() {
                    assert_eq!(d.is_nan(), index / 2 == point, "dlocations {index}: {d}");
                }
                // In the fast mode of the emulator, too: it adds up in one order.
                assert!(with.d_value == without.d_value, "{case:?} {at} {bad}");
                assert!(judge_msda(&case, &with).iter().all(|tensor| tensor.verdict.passes()));
            }
        }
    }
}

/// NaN in value reaches every sample that has the cell as a corner, and no other: corners outside, and cells
/// that a border holds, are not read in its place.
#[test]
fn nan_in_value_reaches_those_that_sample_it_and_no_others() {
    for (padding, align_corners) in SAMPLINGS {
        let case = MsdaCase { padding, align_corners, seed: 3, ..MsdaCase::small() };
        let mut numbers = MsdaNumbers::drawn(&case);
        // The last cell of the first level, and the first of the second.
        let row = case.heads * case.channels;
        for cell in [23, 24] {
            numbers.value[cell * row..][..case.channels].fill(f32::NAN);
        }
        let computed = computed(&open(), &case, &numbers);
        let verdicts = judge_msda(&case, &computed);
        // The reference reads a cell exactly where it is a corner.
        assert!(verdicts.iter().all(|tensor| tensor.verdict.passes()), "{verdicts:?}");
        assert!(computed.o.iter().any(|o| o.is_nan()) && computed.o.iter().any(|o| o.is_finite()));
        assert!(computed.d_value.iter().all(|d| d.is_finite()));
    }
}
