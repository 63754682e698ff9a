//! o and lse are as near to the f64 reference as the tolerance rule asks, for every ragged shape, dtype, mask and
//! layout. What surrounds the elements is NaN, and nothing outside the outputs may be written.

use finite_attention::Dtype;
use finite_attention_tests::cases::Cases;
use finite_attention_tests::compare::{numbers, within_the_rule};
use finite_attention_tests::property::check;

fn accurate(test: &str, count: u32, cases: Cases) {
    check(test, count, cases, |device, case| within_the_rule(device, case, numbers).map(|_| ()));
}

/// Cases of one dtype; o is in f32 where it was to differ from the inputs.
fn of(dtype: Dtype) -> Cases {
    Cases::changed(move |case| {
        let widened = case.output_dtype != case.dtype;
        case.dtype = dtype;
        case.output_dtype = if widened { Dtype::F32 } else { dtype };
    })
}

#[test]
fn bf16_is_within_the_rule() {
    accurate("accuracy-bf16", 60, of(Dtype::Bf16));
}

#[test]
fn f16_is_within_the_rule() {
    accurate("accuracy-f16", 60, of(Dtype::F16));
}

#[test]
fn f32_is_within_the_rule() {
    accurate("accuracy-f32", 40, of(Dtype::F32));
}

/// One row of queries, as in decoding, and one key at the least.
#[test]
fn a_single_query_row_is_within_the_rule() {
    accurate("accuracy-decode", 30, Cases::changed(|case| case.query_rows = 1));
}

/// Query heads in large groups: the key head of a query head must be the right one.
#[test]
fn heads_of_a_group_share_their_key_head() {
    let grouped = Cases::changed(|case| {
        let key_heads = 1 + case.seed as usize % 3;
        (case.key_heads, case.query_heads) = (key_heads, 4 * key_heads);
        (case.query_rows, case.key_rows) = (case.query_rows.min(20), case.key_rows.min(40));
    });
    accurate("accuracy-groups", 30, grouped);
}
