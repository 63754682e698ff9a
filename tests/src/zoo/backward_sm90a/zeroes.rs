//! The accumulator of dq, which is zeroed while others work.

use super::{KERNEL, Mutant, NO_FENCE, WRITER};
use crate::ptx::{Which, dropped, operand, with_operand};
use crate::shapes::many_key_tiles;

const GLOBAL_RACE: &str = "race in global memory";

pub(super) fn mutants() -> Vec<Mutant> {
    let mutant = |name| Mutant::new(name, KERNEL, many_key_tiles(KERNEL)).blocks(3);
    vec![
        mutant("zeros are not fenced from the copies of them")
            .edit("fence.proxy.async", &["room.rs: bulk_copy::fence();"], Which::All, dropped)
            .finding(NO_FENCE, &["bulk_copy::store_bytes("]),
        mutant("zeroed blocks are counted before they are written")
            .edit("cp.async.bulk.wait_group", &["self.zero("], Which::All, dropped)
            .finding(GLOBAL_RACE, &[WRITER]),
        mutant("zeroed blocks are counted with no fence")
            .edit("fence.acq_rel.gpu", &["self.zero("], Which::All, dropped)
            .finding(GLOBAL_RACE, &[WRITER]),
        mutant("zeros are not waited for")
            .edit("setp.eq.u32", &["global::wait_for_u32(zeroed"], Which::All, |line| {
                with_operand(line, 2, operand(line, 1))
            })
            .finding(GLOBAL_RACE, &[WRITER]),
        mutant("zeroed blocks are not counted")
            .edit("atom.global.add", &["key_block::zeroed(p, batch, head), 1);"], Which::All, dropped)
            .finding("step limit reached", &["global::wait_for_u32(zeroed"]),
        mutant("a block is zeroed but for its last bytes")
            .edit("cp.async.bulk.global", &["bulk_copy::store_bytes("], Which::All, |line| {
                with_operand(line, 2, "4080")
            })
            .wrong("dq"),
    ]
}
