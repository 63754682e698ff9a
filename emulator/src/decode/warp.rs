//! Warp-wide exchanges: shuffles, votes, matches and reductions.

use super::operand::type_bits;
use super::{Builder, Result, Statement, UNSUPPORTED, with_rows};
use crate::isa::{FLAG_NEGATE_SOURCE, Instruction, Op, PREDICATE_SINK, ReduxOp, ShuffleOp, VoteOp};

/// Decodes the family.
pub fn decode<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>) -> Result<Instruction> {
    match s.name() {
        "shfl" => shuffle(s, b),
        "vote" => vote(s, b),
        "redux" => redux(s, b),
        "match" => matching(s, b),
        "elect" => elect(s, b),
        _ => {
            let ["b32"] = s.modifiers() else { return Err(UNSUPPORTED) };
            s.expect_operands(1, 1)?;
            Ok(with_rows(Op::ActiveMask, b.destination(s, 0, 32)?, &[]))
        }
    }
}

/// `shfl.sync.mode.b32 d{|p}, a, b, c, membermask;`
fn shuffle<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>) -> Result<Instruction> {
    let op = match s.modifiers() {
        ["sync", "up", "b32"] => ShuffleOp::Up,
        ["sync", "down", "b32"] => ShuffleOp::Down,
        ["sync", "bfly", "b32"] => ShuffleOp::Butterfly,
        ["sync", "idx", "b32"] => ShuffleOp::Index,
        _ => return Err(UNSUPPORTED),
    };
    s.expect_operands(5, 5)?;
    let (first, second) = b.destination_pair(s, 0)?;
    let d = b.destination_scalar(first, 32)?;
    let in_range = second.map_or(Ok(PREDICATE_SINK), |scalar| b.predicate_destination(scalar))?;
    let mut rows = [0; 4];
    for (index, row) in rows.iter_mut().enumerate() {
        *row = b.source(s, 1 + index, 32)?;
    }
    Ok(Instruction { immediate: in_range as i32, ..with_rows(Op::Shuffle(op), d, &rows) })
}

/// `vote.sync.mode.type d, {!}p, membermask;`, or with `sync` behind the mode.
fn vote<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>) -> Result<Instruction> {
    let op = match s.modifiers() {
        ["sync", "all", "pred"] | ["all", "sync", "pred"] => VoteOp::All,
        ["sync", "any", "pred"] | ["any", "sync", "pred"] => VoteOp::Any,
        ["sync", "uni", "pred"] | ["uni", "sync", "pred"] => VoteOp::Uniform,
        ["sync", "ballot", "b32"] | ["ballot", "sync", "b32"] => VoteOp::Ballot,
        _ => return Err(UNSUPPORTED),
    };
    s.expect_operands(3, 3)?;
    let d = if op == VoteOp::Ballot {
        b.destination(s, 0, 32)?
    } else {
        let (first, _) = b.destination_pair(s, 0)?;
        b.predicate_destination(first)?
    };
    let (p, negated) = b.predicate_source(s, 1)?;
    let members = b.source(s, 2, 32)?;
    let flags = if negated { FLAG_NEGATE_SOURCE } else { 0 };
    Ok(Instruction { flags, ..with_rows(Op::Vote(op), d, &[p, members]) })
}

/// `redux.sync.op.type d, a, membermask;`
fn redux<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>) -> Result<Instruction> {
    let op = match s.modifiers() {
        ["sync", "add", "u32" | "s32"] => ReduxOp::Add,
        ["sync", "and", "b32"] => ReduxOp::And,
        ["sync", "or", "b32"] => ReduxOp::Or,
        ["sync", "xor", "b32"] => ReduxOp::Xor,
        ["sync", "min", "u32"] => ReduxOp::MinUnsigned,
        ["sync", "max", "u32"] => ReduxOp::MaxUnsigned,
        ["sync", "min", "s32"] => ReduxOp::MinSigned,
        ["sync", "max", "s32"] => ReduxOp::MaxSigned,
        _ => return Err(UNSUPPORTED),
    };
    s.expect_operands(3, 3)?;
    let d = b.destination(s, 0, 32)?;
    let sources = [b.source(s, 1, 32)?, b.source(s, 2, 32)?];
    Ok(with_rows(Op::Redux(op), d, &sources))
}

/// `match.any.sync.type d, a, membermask;` and `match.all.sync.type d|p, a, membermask;`
fn matching<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>) -> Result<Instruction> {
    let (op, bits) = match s.modifiers() {
        ["any", "sync", ty @ ("b32" | "b64")] => (Op::MatchAny, type_bits(ty)?),
        ["all", "sync", ty @ ("b32" | "b64")] => (Op::MatchAll, type_bits(ty)?),
        _ => return Err(UNSUPPORTED),
    };
    s.expect_operands(3, 3)?;
    let (first, second) = b.destination_pair(s, 0)?;
    let d = b.destination_scalar(first, 32)?;
    let p = second.map_or(Ok(PREDICATE_SINK), |scalar| b.predicate_destination(scalar))?;
    let sources = [b.source(s, 1, bits)?, b.source(s, 2, 32)?];
    Ok(Instruction { e: p, count: (bits / 32) as u8, ..with_rows(op, d, &sources) })
}

/// `elect.sync d|p, membermask;`
fn elect<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>) -> Result<Instruction> {
    let ["sync"] = s.modifiers() else { return Err(UNSUPPORTED) };
    s.expect_operands(2, 2)?;
    let (first, second) = b.destination_pair(s, 0)?;
    let d = b.destination_scalar(first, 32)?;
    let p = second.map_or(Ok(PREDICATE_SINK), |scalar| b.predicate_destination(scalar))?;
    let members = b.source(s, 1, 32)?;
    Ok(Instruction { e: p, ..with_rows(Op::Elect, d, &[members, members]) })
}
