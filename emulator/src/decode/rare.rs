//! Instructions that compilers hardly ever write: `fns`, `set`, `testp`, conversions to and from numbers of 8
//! bits. Some become several instructions.

use super::operand::type_bits;
use super::select::{compare_type, is_float_type, relation};
use super::{Builder, Result, Statement, UNSUPPORTED, with_rows};
use crate::isa::types::combine;
use crate::isa::{
    CompareType, FLAG_FTZ, FLAG_NEGATE_SOURCE, FLAG_VARIANT, Instruction, IntegerOp, MoveOp, Op,
    PREDICATE_SINK, PredicateOp, RareOp, Relation,
};
use crate::parse::scope::Class;

/// An instruction of sources of 32 bits, the first operand being the destination.
fn narrow<'a>(
    s: &Statement<'a>,
    b: &mut Builder<'a, '_>,
    op: RareOp,
    bits: &[u32],
    immediate: i32,
) -> Result<Instruction> {
    s.expect_operands(bits.len(), bits.len())?;
    let d = b.destination(s, 0, bits[0])?;
    let mut sources = [0; 3];
    for (index, &bits) in bits.iter().enumerate().skip(1) {
        sources[index - 1] = b.source(s, index, bits)?;
    }
    Ok(Instruction { immediate, ..with_rows(Op::Rare(op), d, &sources) })
}

/// `fns.b32 d, mask, base, offset;`
pub fn find_nth_set<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>) -> Result<Instruction> {
    if s.modifiers() != ["b32"] {
        return Err(UNSUPPORTED);
    }
    narrow(s, b, RareOp::FindNthSet, &[32, 32, 32, 32], 0)
}

/// `cvt.pack.sat.to.s32{.b32} d, a, b{, c};`
pub fn pack_saturated<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>) -> Result<Instruction> {
    let (to, has_rest) = match s.modifiers() {
        ["pack", "sat", to, "s32"] => (*to, false),
        ["pack", "sat", to, "s32", "b32"] => (*to, true),
        _ => return Err(UNSUPPORTED),
    };
    let (signed, bits) = match to {
        "s16" => (1, 16),
        "u16" => (0, 16),
        "s8" => (1, 8),
        "u8" => (0, 8),
        "s4" => (1, 4),
        "u4" => (0, 4),
        "s2" => (1, 2),
        "u2" => (0, 2),
        _ => return Err(UNSUPPORTED),
    };
    if has_rest == (bits == 16) {
        return Err(UNSUPPORTED);
    }
    let operands: &[u32] = if has_rest { &[32, 32, 32, 32] } else { &[32, 32, 32] };
    narrow(s, b, RareOp::PackSaturated, operands, bits | signed << 8)
}

/// `cvt.rn.satfinite{.relu}.e4m3x2.f32 d, a, b;`, from f16x2, and to it.
pub fn convert_fp8<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>) -> Result<Instruction> {
    let number = |name: &str| match name {
        "e4m3x2" => Some(0),
        "e5m2x2" => Some(1),
        _ => None,
    };
    let (words, relu): (Vec<&str>, bool) = (
        s.modifiers().iter().copied().filter(|&word| word != "relu").collect(),
        s.modifiers().contains(&"relu"),
    );
    let mut instruction = match words[..] {
        ["rn", "satfinite", to, "f32"] => {
            narrow(s, b, RareOp::Fp8FromSingles, &[16, 32, 32], number(to).ok_or(UNSUPPORTED)?)?
        }
        ["rn", "satfinite", to, "f16x2"] => {
            narrow(s, b, RareOp::Fp8FromHalves, &[16, 32], number(to).ok_or(UNSUPPORTED)?)?
        }
        ["rn", "f16x2", from] => {
            narrow(s, b, RareOp::HalvesFromFp8, &[32, 16], number(from).ok_or(UNSUPPORTED)?)?
        }
        _ => return Err(UNSUPPORTED),
    };
    instruction.flags |= if relu { FLAG_VARIANT } else { 0 };
    Ok(instruction)
}

/// `rcp.approx.ftz.f64` and `rsqrt.approx.ftz.f64`.
pub fn upper_half<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>) -> Result<Instruction> {
    let op = if s.name() == "rcp" { RareOp::RcpUpper } else { RareOp::RsqrtUpper };
    s.expect_operands(2, 2)?;
    let d = b.destination(s, 0, 64)?;
    Ok(with_rows(Op::Rare(op), d, &[b.source(s, 1, 64)?]))
}

/// A comparison to a predicate of its own; `c` is a predicate to combine the result with.
fn comparison(
    b: &mut Builder<'_, '_>,
    (ty, relation, flags): (CompareType, u8, u8),
    [x, y]: [u32; 2],
    (c, negated, combination): (u32, bool, i32),
) -> Result<u32> {
    let p = b.register(Class::Predicate)?.index;
    let flags = flags | if negated { FLAG_NEGATE_SOURCE } else { 0 };
    let rows = with_rows(Op::Compare(ty), p, &[x, y, c, PREDICATE_SINK]);
    b.emit(Instruction { flags, count: relation, immediate: combination, ..rows });
    Ok(p)
}

/// `a` if a predicate holds, else 0.
fn chosen(b: &mut Builder<'_, '_>, p: u32, value: u64) -> Result<u32> {
    let d = b.register(Class::Bits32)?.index;
    let sources = [b.constant(value, false)?, b.constant(0, false)?, p];
    b.emit(with_rows(Op::Select32, d, &sources));
    Ok(d)
}

/// The halves of a pair.
fn halves(b: &mut Builder<'_, '_>, pair: u32) -> Result<[u32; 2]> {
    let rows = [b.register(Class::Bits32)?.index, b.register(Class::Bits32)?.index];
    let d = b.list(&rows);
    let unpack = with_rows(Op::Move(MoveOp::Unpack), d, &[pair, 2, 4]);
    b.emit(Instruction { count: 2, ..unpack });
    Ok(rows)
}

/// Types of the elements of pairs.
fn element(name: &str) -> Option<CompareType> {
    match name {
        "f16x2" => Some(CompareType::F16),
        "bf16x2" => Some(CompareType::Bf16),
        _ => None,
    }
}

/// The relation, whether subnormal numbers are flushed, and how the result is combined with a predicate.
fn manner(words: &[&str], is_float: bool) -> Result<(u8, u8, i32)> {
    let [name, rest @ ..] = words else { return Err(UNSUPPORTED) };
    let (mut flags, mut combination) = (0, 0);
    for word in rest {
        match *word {
            "ftz" if is_float => flags |= FLAG_FTZ,
            "and" => combination = combine::AND,
            "or" => combination = combine::OR,
            "xor" => combination = combine::XOR,
            _ => return Err(UNSUPPORTED),
        }
    }
    Ok((relation(name, is_float)? as u8, flags, combination))
}

/// The relation of the lower and of the upper halves, each combined with predicate operand 3 where
/// `combination` says so, in predicates of their own.
fn relations<'a>(
    s: &Statement<'a>,
    b: &mut Builder<'a, '_>,
    (ty, relation, flags): (CompareType, u8, u8),
    combination: i32,
) -> Result<[u32; 2]> {
    let operands = if combination == 0 { 3 } else { 4 };
    s.expect_operands(operands, operands)?;
    let (x, y) = (b.source(s, 1, 32)?, b.source(s, 2, 32)?);
    let (c, negated) = if combination == 0 { (0, false) } else { b.predicate_source(s, 3)? };
    let ([x_low, x_high], [y_low, y_high]) = (halves(b, x)?, halves(b, y)?);
    let with = (c, negated, combination);
    let low = comparison(b, (ty, relation, flags), [x_low, y_low], with)?;
    Ok([low, comparison(b, (ty, relation, flags), [x_high, y_high], with)?])
}

/// `setp.relation{.and|.or|.xor}{.ftz}.f16x2 p|q, a, b{, {!}c};`: of the lower halves, and of the upper ones.
pub fn compare_pairs<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>) -> Result<Instruction> {
    let ty = element(s.last()).ok_or(UNSUPPORTED)?;
    let (relation, flags, combination) = manner(s.middle(), true)?;
    let (first, second) = b.destination_pair(s, 0)?;
    let p = b.predicate_destination(first)?;
    let q = second.map_or(Ok(PREDICATE_SINK), |scalar| b.predicate_destination(scalar))?;
    let [low, high] = relations(s, b, (ty, relation, flags), combination)?;
    let mut results = [(p, low), (q, high)];
    if s.guard.is_some_and(|(guard, _)| guard == q) {
        results.reverse(); // the guard is written when it is not needed any more
    }
    let [last, first] = results.map(|(d, a)| with_rows(Op::Predicate(PredicateOp::Move), d, &[a, a]));
    b.emit_guarded(first);
    Ok(last)
}

/// `set.relation{.and|.or|.xor}{.ftz}.to.from d, a, b{, {!}c};`
pub fn set<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>) -> Result<Instruction> {
    let [words @ .., to, from] = s.modifiers() else { return Err(UNSUPPORTED) };
    if let Some(ty) = element(from) {
        let one = match (*to, ty) {
            ("f16x2", CompareType::F16) => 0x3c00,
            ("bf16x2", CompareType::Bf16) => 0x3f80,
            ("u32" | "s32", _) => 0xffff,
            _ => return Err(UNSUPPORTED),
        };
        let (relation, flags, combination) = manner(words, true)?;
        let d = b.destination(s, 0, 32)?;
        let [low, high] = relations(s, b, (ty, relation, flags), combination)?;
        let parts = [chosen(b, low, one)?, chosen(b, high, one)?];
        let a = b.list(&parts);
        return Ok(Instruction { count: 2, ..with_rows(Op::Move(MoveOp::Pack), d, &[a, 2, 4]) });
    }
    let ty = compare_type(from)?;
    let (relation, flags, combination) = manner(words, is_float_type(ty))?;
    let operands = if combination == 0 { 3 } else { 4 };
    s.expect_operands(operands, operands)?;
    let bits = type_bits(from)?;
    let (value, result_bits) = match *to {
        "u32" | "s32" => (0xffff_ffff, 32),
        "f32" => (u64::from(1f32.to_bits()), 32),
        "f16" => (0x3c00, 16),
        "bf16" => (0x3f80, 16),
        "u16" | "s16" => (0xffff, 16),
        _ => return Err(UNSUPPORTED),
    };
    let d = b.destination(s, 0, result_bits)?;
    let sources = [b.source(s, 1, bits)?, b.source(s, 2, bits)?];
    let (c, negated) = if combination == 0 { (0, false) } else { b.predicate_source(s, 3)? };
    let p = comparison(b, (ty, relation, flags), sources, (c, negated, combination))?;
    let sources = [b.constant(value, false)?, b.constant(0, false)?, p];
    Ok(with_rows(Op::Select32, d, &sources))
}

/// `testp.class.f32 p, a;`: by the bits.
pub fn test_property<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>) -> Result<Instruction> {
    let [class, ty @ ("f32" | "f64")] = s.modifiers() else { return Err(UNSUPPORTED) };
    let wide = *ty == "f64";
    let (bits, exponent, mantissa) = match wide {
        true => (64, 0x7ff0_0000_0000_0000, 0x000f_ffff_ffff_ffff),
        false => (32, 0x7f80_0000u64, 0x007f_ffffu64),
    };
    s.expect_operands(2, 2)?;
    let (first, _) = b.destination_pair(s, 0)?;
    let d = b.predicate_destination(first)?;
    let a = b.source(s, 1, bits)?;
    let of_width = |op: IntegerOp| if wide { Op::Integer64(op) } else { Op::Integer32(op) };
    let ty = if wide { CompareType::U64 } else { CompareType::U32 };
    let mut computed = |op: IntegerOp, value: u32, constant: u64| -> Result<u32> {
        let row = b.register(if wide { Class::Bits64 } else { Class::Bits32 })?.index;
        let constant = b.constant(constant, wide)?;
        b.emit(with_rows(of_width(op), row, &[value, constant]));
        Ok(row)
    };
    let magnitude = computed(IntegerOp::And, a, exponent | mantissa)?;
    // Of 0, all bits.
    let less_one = match *class {
        "normal" | "subnormal" => computed(IntegerOp::Sub, magnitude, 1)?,
        _ => magnitude,
    };
    let (value, name, bound) = match *class {
        "finite" | "normal" => (magnitude, "lt", exponent),
        "infinite" => (magnitude, "eq", exponent),
        "number" => (magnitude, "le", exponent),
        "notanumber" => (magnitude, "gt", exponent),
        "subnormal" => (less_one, "lt", mantissa),
        _ => return Err(UNSUPPORTED),
    };
    let sources = [value, b.constant(bound, wide)?];
    let mut instruction = with_rows(Op::Compare(ty), d, &[sources[0], sources[1], 0, PREDICATE_SINK]);
    instruction.count = relation(name, false)? as u8;
    if *class == "normal" {
        // Those that are not subnormal: 0 counts as normal.
        let least = b.constant(mantissa, wide)?;
        instruction.c = comparison(b, (ty, Relation::Lt as u8, 0), [less_one, least], (0, false, 0))?;
        instruction.flags = FLAG_NEGATE_SOURCE;
        instruction.immediate = combine::AND;
    }
    Ok(instruction)
}
