//! Comparisons, selections and logic on predicates.

use super::operand::type_bits;
use super::{Builder, Result, Statement, UNSUPPORTED, with_rows};
use crate::isa::types::combine;
use crate::isa::{
    CompareType, FLAG_FTZ, FLAG_NEGATE_SOURCE, Instruction, Op, PREDICATE_SINK, PredicateOp, Relation,
};

/// The type of a comparison.
pub fn compare_type(name: &str) -> Result<CompareType> {
    Ok(match name {
        "u16" | "b16" => CompareType::U16,
        "s16" => CompareType::S16,
        "u32" | "b32" => CompareType::U32,
        "s32" => CompareType::S32,
        "u64" | "b64" => CompareType::U64,
        "s64" => CompareType::S64,
        "f16" => CompareType::F16,
        "bf16" => CompareType::Bf16,
        "f32" => CompareType::F32,
        "f64" => CompareType::F64,
        _ => return Err(UNSUPPORTED),
    })
}

/// Whether it is a floating-point number's.
pub fn is_float_type(ty: CompareType) -> bool {
    matches!(ty, CompareType::F16 | CompareType::Bf16 | CompareType::F32 | CompareType::F64)
}

/// The relation of a name.
pub fn relation(name: &str, float: bool) -> Result<Relation> {
    Ok(match (name, float) {
        ("eq", _) => Relation::Eq,
        ("ne", _) => Relation::Ne,
        ("lt", _) | ("lo", false) => Relation::Lt,
        ("le", _) | ("ls", false) => Relation::Le,
        ("gt", _) | ("hi", false) => Relation::Gt,
        ("ge", _) | ("hs", false) => Relation::Ge,
        ("equ", true) => Relation::EqUnordered,
        ("neu", true) => Relation::NeUnordered,
        ("ltu", true) => Relation::LtUnordered,
        ("leu", true) => Relation::LeUnordered,
        ("gtu", true) => Relation::GtUnordered,
        ("geu", true) => Relation::GeUnordered,
        ("num", true) => Relation::Number,
        ("nan", true) => Relation::Nan,
        _ => return Err(UNSUPPORTED),
    })
}

/// `setp.relation{.and|.or|.xor}{.ftz}.type p{|q}, a, b{, {!}c};`
pub fn compare<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>) -> Result<Instruction> {
    let ty = compare_type(s.last())?;
    let float = is_float_type(ty);
    let [first, rest @ ..] = s.middle() else { return Err(UNSUPPORTED) };
    let relation = relation(first, float)?;
    let (mut flags, mut combination) = (0, 0);
    for modifier in rest {
        match *modifier {
            "ftz" if float => flags |= FLAG_FTZ,
            "and" => combination = combine::AND,
            "or" => combination = combine::OR,
            "xor" => combination = combine::XOR,
            _ => return Err(UNSUPPORTED),
        }
    }
    let operands = if combination == 0 { 3 } else { 4 };
    s.expect_operands(operands, operands)?;
    let bits = type_bits(s.last())?;
    let (first, second) = b.destination_pair(s, 0)?;
    let d = b.predicate_destination(first)?;
    let e = second.map_or(Ok(PREDICATE_SINK), |scalar| b.predicate_destination(scalar))?;
    let (x, y) = (b.source(s, 1, bits)?, b.source(s, 2, bits)?);
    let mut c = 0;
    if combination != 0 {
        let (predicate, negated) = b.predicate_source(s, 3)?;
        c = predicate;
        flags |= if negated { FLAG_NEGATE_SOURCE } else { 0 };
    }
    let instruction = with_rows(Op::Compare(ty), d, &[x, y, c, e]);
    Ok(Instruction { flags, count: relation as u8, immediate: combination, ..instruction })
}

/// `selp.type d, a, b, p;`
pub fn select<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>) -> Result<Instruction> {
    let [ty] = s.modifiers() else { return Err(UNSUPPORTED) };
    let bits = type_bits(ty)?;
    s.expect_operands(4, 4)?;
    let op = match bits {
        16 | 32 => Op::Select32,
        64 => Op::Select64,
        _ => return Err(UNSUPPORTED),
    };
    let d = b.destination(s, 0, bits)?;
    let (x, y) = (b.source(s, 1, bits)?, b.source(s, 2, bits)?);
    let (p, negated) = b.predicate_source(s, 3)?;
    let flags = if negated { FLAG_NEGATE_SOURCE } else { 0 };
    Ok(Instruction { flags, ..with_rows(op, d, &[x, y, p]) })
}

/// `and.pred`, `or.pred`, `xor.pred`, `not.pred`.
pub fn predicate<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>) -> Result<Instruction> {
    let op = match s.name() {
        "and" => PredicateOp::And,
        "or" => PredicateOp::Or,
        "xor" => PredicateOp::Xor,
        "not" => PredicateOp::Not,
        _ => PredicateOp::Move,
    };
    let operands = if matches!(op, PredicateOp::Not | PredicateOp::Move) { 2 } else { 3 };
    s.expect_operands(operands, operands)?;
    let (first, _) = b.destination_pair(s, 0)?;
    let d = b.predicate_destination(first)?;
    let (x, negated) = b.predicate_source(s, 1)?;
    let (y, second) = if operands == 3 { b.predicate_source(s, 2)? } else { (x, false) };
    let flags = if negated { FLAG_NEGATE_SOURCE } else { 0 };
    // The immediate says whether the second source is negated.
    let immediate = i32::from(second);
    Ok(Instruction { flags, immediate, ..with_rows(Op::Predicate(op), d, &[x, y]) })
}
