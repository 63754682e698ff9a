//! A row that sees no key has o = 0, lse = -inf and dq = 0, exactly; the rows beside it are right.

use finite_attention::check::{BiasValues, Case, Computed, Features, Inputs, ScoreInputs};
use finite_attention::{CausalAlignment, Device, Mask};
use finite_attention_tests::cases::Cases;
use finite_attention_tests::compare::RowVisibility;
use finite_attention_tests::property::{Finding, check};
use finite_attention_tests::rule::within_the_rule;

const CAUSAL: Mask = Mask::Causal(CausalAlignment::BottomRight);

/// o and dq of dead rows are 0 and their lse -inf.
fn dead_rows_are_zero(case: &Case, computed: &Computed) -> Finding {
    let visible = RowVisibility::of(case, &computed.inputs);
    let dq = computed.gradients.as_ref().map_or(&[][..], |gradients| &gradients.dq);
    for (name, tensor, columns) in [("o", &*computed.o, case.value_dim), ("dq", dq, case.head_dim)] {
        for (at, &number) in tensor.iter().enumerate() {
            if visible.of_element(columns, at) == 0 && number != 0.0 {
                return Err(format!(
                    "{}: {name}: element {at} of a dead row is {number}",
                    computed.kernel
                ));
            }
        }
    }
    for (at, &lse) in computed.lse.iter().enumerate() {
        if visible.of_lse(case, at) == 0 && lse != f32::NEG_INFINITY {
            return Err(format!("{}: lse: element {at} of a dead row is {lse}", computed.kernel));
        }
    }
    Ok(())
}

fn right(device: &Device, case: &Case) -> Finding {
    dead_rows_are_zero(case, &within_the_rule(device, case, Inputs::drawn)?)
}

/// Causal, aligned at the bottom right, with more queries than keys: the first rows are dead.
#[test]
fn rows_before_the_first_key_are_dead() {
    let cases = Cases::fitted(|mut case| {
        case.mask = CAUSAL;
        if case.query_rows < case.key_rows {
            (case.query_rows, case.key_rows) = (case.key_rows, case.query_rows);
        }
        (case.query_rows > case.key_rows).then_some(case)
    });
    check("dead-rows", 50, cases.with_just_enough_rows(), right);
}

/// The boundary between dead and living rows on both sides of every tile edge.
#[test]
fn the_first_living_row_may_stand_anywhere_in_a_tile() {
    let cases = Cases::changed(|case| {
        case.mask = CAUSAL;
        let dead = [1, 7, 8, 15, 16, 17, 31, 32, 63, 64, 65, 127, 128, 129][case.seed as usize % 14];
        case.key_rows = case.key_rows.min(70);
        case.query_rows = case.key_rows + dead;
    });
    check("dead-rows-edges", 50, cases.with_just_enough_rows(), right);
}

/// No keys at all: k and v have no elements.
#[test]
fn without_keys_every_row_is_dead() {
    check("dead-rows-no-keys", 40, Cases::changed(|case| case.key_rows = 0), right);
}

/// Windows that end before the first key or begin after the last, and packed sequences without keys;
/// with gradients.
#[test]
fn dead_rows_have_no_gradients() {
    let cases = Cases::fitted(|mut case| {
        if case.mask == Mask::Full && !case.packed {
            case.mask = CAUSAL;
        }
        let dead = RowVisibility::of(&case, &Inputs::drawn(&case)).0.contains(&0);
        (dead && case.gradients.is_some()).then_some(case)
    });
    check("dead-rows-gradients", 50, cases.extended().with_just_enough_rows(), right);
}

/// Rows that a boolean mask or a bias of minus infinity hides all keys from, beside living ones of the same tile
/// and with sinks.
#[test]
fn rows_that_a_mask_or_a_bias_hides_all_keys_from_are_dead() {
    let cases = Cases::fitted(|mut case| {
        if let Some(mask) = &mut case.features.mask {
            mask.has_dead_rows = true;
        }
        if let Some(bias) = &mut case.features.bias {
            bias.values = BiasValues::Hiding;
        }
        let scores = ScoreInputs::drawn(&case);
        let visible = RowVisibility::of(&case, &Inputs { scores, ..Inputs::default() });
        let Features { bias, mask, .. } = case.features;
        let hides = bias.is_some() || mask.is_some();
        (hides && visible.0.contains(&0) && case.key_rows > 0).then_some(case)
    });
    check("dead-rows-features", 50, cases.featured().with_just_enough_rows(), right);
}
