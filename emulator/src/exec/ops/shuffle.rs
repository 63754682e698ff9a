//! Exchanges between the lanes of a warp. All required lanes have arrived when these run.

use crate::exec::values::registers::{LANES, Registers, lanes};
use crate::isa::{FLAG_NEGATE_SOURCE, Instruction, ReduxOp, ShuffleOp, VoteOp};

/// `shfl.sync`: each lane reads the value of another one of its segment. From which lane each took it.
pub fn shuffle(r: &mut Registers, i: &Instruction, m: u32, op: ShuffleOp) -> [u32; LANES] {
    let (a, b, c) = (*r.row32(i.a), *r.row32(i.b), *r.row32(i.c));
    let (mut out, mut sources) = ([0; LANES], [0; LANES]);
    let mut in_range = 0;
    for lane in 0..LANES as u32 {
        let offset = b[lane as usize] & 31;
        let clamp = c[lane as usize] & 31;
        let segment = c[lane as usize] >> 8 & 31;
        let last = lane & segment | clamp & !segment;
        let first = lane & segment;
        let (source, good) = match op {
            ShuffleOp::Up => (lane.wrapping_sub(offset), lane as i32 - offset as i32 >= last as i32),
            ShuffleOp::Down => (lane + offset, lane + offset <= last),
            ShuffleOp::Butterfly => (lane ^ offset, lane ^ offset <= last),
            ShuffleOp::Index => {
                let source = first | offset & !segment;
                (source, source <= last)
            }
        };
        let source = if good { source & 31 } else { lane };
        sources[lane as usize] = source;
        out[lane as usize] = a[source as usize];
        in_range |= u32::from(good) << lane;
    }
    r.set32(i.d, m, &out);
    r.set_predicate(i.immediate as u32, m, in_range);
    sources
}

/// `vote.sync`.
pub fn vote(r: &mut Registers, i: &Instruction, m: u32, op: VoteOp) {
    let holds = (r.predicate(i.a) ^ if i.has(FLAG_NEGATE_SOURCE) { !0 } else { 0 }) & m;
    let answer = match op {
        VoteOp::Ballot => return r.set32(i.d, m, &[holds; LANES]),
        VoteOp::All => holds == m,
        VoteOp::Any => holds != 0,
        VoteOp::Uniform => holds == m || holds == 0,
    };
    r.set_predicate(i.d, m, if answer { !0 } else { 0 });
}

/// `redux.sync`.
pub fn redux(r: &mut Registers, i: &Instruction, m: u32, op: ReduxOp) {
    let a = *r.row32(i.a);
    let values = lanes(m).map(|lane| a[lane]);
    let signed = lanes(m).map(|lane| a[lane] as i32);
    let result = match op {
        ReduxOp::Add => values.fold(0, u32::wrapping_add),
        ReduxOp::And => values.fold(!0, |x, y| x & y),
        ReduxOp::Or => values.fold(0, |x, y| x | y),
        ReduxOp::Xor => values.fold(0, |x, y| x ^ y),
        ReduxOp::MinUnsigned => values.min().unwrap_or(0),
        ReduxOp::MaxUnsigned => values.max().unwrap_or(0),
        ReduxOp::MinSigned => signed.min().unwrap_or(0) as u32,
        ReduxOp::MaxSigned => signed.max().unwrap_or(0) as u32,
    };
    r.set32(i.d, m, &[result; LANES]);
}

/// The operand of a match.
fn matched(r: &Registers, i: &Instruction) -> [u64; LANES] {
    if i.count == 2 { *r.row64(i.a) } else { r.row32(i.a).map(u64::from) }
}

/// `match.any.sync`: the lanes with the same value.
pub fn match_any(r: &mut Registers, i: &Instruction, m: u32) {
    let a = matched(r, i);
    let mut out = [0; LANES];
    for lane in lanes(m) {
        out[lane] =
            lanes(m).filter(|&other| a[other] == a[lane]).fold(0, |mask, other| mask | 1 << other);
    }
    r.set32(i.d, m, &out);
}

/// `match.all.sync`: the members if all have the same value, else nothing.
pub fn match_all(r: &mut Registers, i: &Instruction, m: u32) {
    let a = matched(r, i);
    let first = a[m.trailing_zeros() as usize & 31];
    let same = lanes(m).all(|lane| a[lane] == first);
    r.set32(i.d, m, &[if same { m } else { 0 }; LANES]);
    r.set_predicate(i.e, m, if same { !0 } else { 0 });
}

/// `elect.sync`: the lowest lane is the leader.
pub fn elect(r: &mut Registers, i: &Instruction, m: u32) {
    let leader = m.trailing_zeros();
    r.set32(i.d, m, &[leader; LANES]);
    r.set_predicate(i.e, m, 1u32.checked_shl(leader).unwrap_or(0));
}
