//! Key tiles that several blocks share, and the kernel that adds up their sums.

use super::{KERNEL, Mutant};
use crate::ptx::{Which, off_by_one, operand};
use crate::shapes::ragged;
use finite_attention::check::Case;

const SUM: &str = "backward_sum_bf16_sm90a";

pub(super) fn mutants() -> Vec<Mutant> {
    // Two key tiles of 24 steps, in parts.
    let case = Case { query_rows: 183, key_rows: 141, query_heads: 8, key_heads: 1, ..ragged(KERNEL) };
    let mutant = |name, kernel| Mutant::new(name, kernel, case.clone()).blocks(16);
    vec![
        mutant("every stretch begins with the first step", KERNEL)
            .edit(
                "shr",
                &["key_block.rs: (self.steps * unit) >> p.unit_bits"],
                Which::Number(0),
                |line| format!("mov.b32 {}, 0;", operand(line, 0)),
            )
            .wrong("dq"),
        mutant("sums of a key behind the last are written", SUM)
            .edit(
                "setp",
                &["backward_sum.rs: if (row as i32) < target.rows"],
                Which::Number(0),
                off_by_one,
            )
            .finding("out-of-bounds global access", &["backward_sum.rs: store_eight"]),
    ]
}
