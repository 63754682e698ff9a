//! The accumulator of dq, which nobody zeroes: one share of each half is stored, the others are added.

use super::{FIRST_WRITER, KERNEL, Mutant, WRITER};
use crate::ptx::{Which, dropped, operand};
use crate::shapes::many_key_tiles;

const GLOBAL_RACE: &str = "race in global memory";
const WAIT: &str = "global::wait_for_u32(note";
const PUBLISHED: &str = "shares.publish(note);";

pub(super) fn mutants() -> Vec<Mutant> {
    let mutant = |name| Mutant::new(name, KERNEL, many_key_tiles(KERNEL)).blocks(3);
    vec![
        mutant("the first share is noted before it is written")
            .edit("cp.async.bulk.wait_group", &[PUBLISHED], Which::All, dropped)
            .finding(GLOBAL_RACE, &[WRITER]),
        mutant("the first share is never noted")
            .edit("st.release", &[PUBLISHED], Which::All, dropped)
            .finding("deadlock", &[WAIT]),
        mutant("the note is read with no acquire")
            .edit("ld.acquire", &["global::load_acquire_u32(note)"], Which::All, |line| {
                line.replacen("acquire", "relaxed", 1)
            })
            .finding(GLOBAL_RACE, &[WRITER])
            .blocks(5),
        mutant("everybody's share is the first")
            .edit("atom.acquire", &["global::claim_u32(note"], Which::All, |line| {
                format!("mov.b32 {}, 0;", operand(line, 0))
            })
            .finding(GLOBAL_RACE, &[FIRST_WRITER]),
        mutant("the first share is added")
            .edit("cp.async.bulk.global", &[FIRST_WRITER], Which::All, |line| {
                format!(
                    "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 {}, {}, {};",
                    operand(line, 0),
                    operand(line, 1),
                    operand(line, 2)
                )
            })
            .wrong("dq"),
    ]
}
