//! A row that sees no key has o = 0 and lse = -inf, exactly; the rows beside it are right.

use finite_attention::check::{Case, Computed};
use finite_attention::{CausalAlignment, Device, Mask};
use finite_attention_tests::cases::Cases;
use finite_attention_tests::compare::{numbers, within_the_rule};
use finite_attention_tests::property::{Finding, check};

const CAUSAL: Mask = Mask::Causal(CausalAlignment::BottomRight);

/// o of dead rows is 0 and their lse -inf.
fn dead_rows_are_zero(case: &Case, computed: &Computed) -> Finding {
    let sizes = case.sizes();
    let rows = case.query_rows.max(1);
    let o_row = |at: usize| at / (case.value_dim * case.query_heads) % rows;
    let o = computed.o.iter().enumerate().find(|&(at, &o)| sizes.visible(o_row(at)) == 0 && o != 0.0);
    if let Some((at, o)) = o {
        return Err(format!("{}: o: element {at} of dead row {} is {o}", computed.kernel, o_row(at)));
    }
    let lse = computed.lse.iter().enumerate();
    let wrong =
        lse.clone().find(|&(at, &lse)| sizes.visible(at % rows) == 0 && lse != f32::NEG_INFINITY);
    wrong.map_or(Ok(()), |(at, lse)| {
        Err(format!("{}: lse: dead row {} has {lse}", computed.kernel, at % rows))
    })
}

fn right(device: &Device, case: &Case) -> Finding {
    dead_rows_are_zero(case, &within_the_rule(device, case, numbers)?)
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
    check("dead-rows", 50, cases, right);
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
    check("dead-rows-edges", 50, cases, right);
}

/// No keys at all: k and v have no elements.
#[test]
fn without_keys_every_row_is_dead() {
    check("dead-rows-no-keys", 40, Cases::changed(|case| case.key_rows = 0), right);
}
