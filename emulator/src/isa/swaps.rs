//! Loops of compare-and-swap: the plain load before the first turn.
//!
//! `old = *p; do { seen = old; old = atomicCAS(p, seen, f(seen)); } while (old != seen);` reads `*p` by a
//! plain load, which others' atomic operations race with. What it read is checked by the swap.

use super::{AtomicOp, Code, FLAG_STRONG, MoveOp, Op};
use std::collections::HashSet;

/// Plain loads whose value may be what a compare-and-swap of the same word expects. Before rows are renamed.
pub fn expected_loads(code: &Code) -> Vec<u32> {
    let is_swap = |op: Op| op == Op::Atomic(AtomicOp::CompareExchange);
    let swaps: Vec<_> = code.instructions.iter().filter(|i| is_swap(i.op)).collect();
    if swaps.is_empty() {
        return Vec::new();
    }
    // Where values come from that end in these rows, by moves alone.
    let moved_to = |rows: &mut HashSet<u32>| {
        let mut before = 0;
        while before != rows.len() {
            before = rows.len();
            for i in &code.instructions {
                if matches!(i.op, Op::Move(MoveOp::Bits32 | MoveOp::Bits64)) && rows.contains(&i.d) {
                    rows.insert(i.a);
                }
            }
        }
    };
    let mut loads = Vec::new();
    for swap in swaps {
        let mut expected = HashSet::from([swap.b]);
        moved_to(&mut expected);
        let mut addresses = HashSet::from([swap.a]);
        moved_to(&mut addresses);
        for (pc, i) in code.instructions.iter().enumerate() {
            let is_plain = matches!(i.op, Op::Load(_)) && i.count == 1 && !i.has(FLAG_STRONG);
            let same_word = addresses.contains(&i.a) && i.immediate == swap.immediate;
            if is_plain && same_word && expected.contains(&code.lists[i.d as usize]) {
                loads.push(pc as u32);
            }
        }
    }
    loads
}
