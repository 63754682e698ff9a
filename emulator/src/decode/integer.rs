//! Integer arithmetic, logic, shifts and bit fields.

use super::operand::type_bits;
use super::{Builder, Result, Statement, UNSUPPORTED, with_rows};
use crate::isa::types::combine;
use crate::isa::{
    CarryOp, CompareType, FLAG_FTZ, FLAG_NEGATE_SOURCE, FLAG_OPTIONAL, FLAG_SATURATE, Instruction,
    IntegerOp, MoveOp, Op, PREDICATE_SINK, Relation,
};
use crate::parse::scope::Class;

/// Whether a type name is that of a signed integer.
fn is_signed(name: &str) -> bool {
    name.starts_with('s')
}

fn of_width(bits: u32, op: IntegerOp) -> Result<Op> {
    Ok(match bits {
        16 => Op::Integer16(op),
        32 => Op::Integer32(op),
        64 => Op::Integer64(op),
        _ => return Err(UNSUPPORTED),
    })
}

/// Decodes the family.
pub fn decode<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>) -> Result<Instruction> {
    let name = s.name();
    match name {
        "addc" | "subc" | "madc" => carry(s, b),
        "add" | "sub" | "mad" if s.middle().contains(&"cc") => carry(s, b),
        "mul" | "mad" => product(s, b),
        "mul24" | "mad24" => product24(s, b),
        "shl" | "shr" => shift(s, b),
        "shf" => funnel(s, b),
        "bfe" | "bfi" => field(s, b),
        "bfind" | "popc" | "clz" | "brev" => bits(s, b),
        "prmt" | "dp4a" | "dp2a" => special(s, b),
        "lop3" => logic3(s, b),
        "sad" => absolute_differences(s, b),
        "bmsk" | "szext" => pairs_and_masks(s, b),
        "slct" => by_sign(s, b),
        "add" | "min" | "max" if matches!(s.last(), "u16x2" | "s16x2") => pairs_and_masks(s, b),
        "min" | "max" if s.modifiers().contains(&"relu") => pairs_and_masks(s, b),
        _ => simple(s, b),
    }
}

/// Operations whose operands and result all have the type's width.
fn simple<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>) -> Result<Instruction> {
    let ty = s.last();
    let width = type_bits(ty)?;
    let signed = is_signed(ty);
    let by_sign = |yes, no| if signed { yes } else { no };
    let (op, sources) = match (s.name(), s.middle()) {
        ("add", []) => (IntegerOp::Add, 2),
        ("sub", []) => (IntegerOp::Sub, 2),
        ("add", ["sat"]) if ty == "s32" => (IntegerOp::AddSaturating, 2),
        ("sub", ["sat"]) if ty == "s32" => (IntegerOp::SubSaturating, 2),
        ("div", []) => (by_sign(IntegerOp::DivSigned, IntegerOp::DivUnsigned), 2),
        ("rem", []) => (by_sign(IntegerOp::RemSigned, IntegerOp::RemUnsigned), 2),
        ("min", []) => (by_sign(IntegerOp::MinSigned, IntegerOp::MinUnsigned), 2),
        ("max", []) => (by_sign(IntegerOp::MaxSigned, IntegerOp::MaxUnsigned), 2),
        ("and", []) => (IntegerOp::And, 2),
        ("or", []) => (IntegerOp::Or, 2),
        ("xor", []) => (IntegerOp::Xor, 2),
        ("not", []) => (IntegerOp::Not, 1),
        ("cnot", []) => (IntegerOp::LogicalNot, 1),
        ("neg", []) if signed => (IntegerOp::Neg, 1),
        ("abs", []) if signed => (IntegerOp::Abs, 1),
        _ => return Err(UNSUPPORTED),
    };
    s.expect_operands(1 + sources, 1 + sources)?;
    let op = of_width(width, op)?;
    let d = b.destination(s, 0, width)?;
    let a = b.source(s, 1, width)?;
    let second = if sources == 2 { b.source(s, 2, width)? } else { a };
    Ok(with_rows(op, d, &[a, second]))
}

fn product<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>) -> Result<Instruction> {
    let ty = s.last();
    let width = type_bits(ty)?;
    let signed = is_signed(ty);
    let mad = s.name() == "mad";
    let (op, wide) = match (s.middle(), signed, mad) {
        (["lo"], _, false) => (IntegerOp::Mul, false),
        (["lo"], _, true) => (IntegerOp::Mad, false),
        (["hi"], false, false) => (IntegerOp::MulHighUnsigned, false),
        (["hi"], true, false) => (IntegerOp::MulHighSigned, false),
        (["hi"], false, true) => (IntegerOp::MadHighUnsigned, false),
        (["hi"], true, true) => (IntegerOp::MadHighSigned, false),
        (["hi", "sat"], true, true) if width == 32 => (IntegerOp::MadHighSaturating, false),
        (["wide"], false, false) => (IntegerOp::MulWideUnsigned, true),
        (["wide"], true, false) => (IntegerOp::MulWideSigned, true),
        (["wide"], false, true) => (IntegerOp::MadWideUnsigned, true),
        (["wide"], true, true) => (IntegerOp::MadWideSigned, true),
        _ => return Err(UNSUPPORTED),
    };
    if wide && width > 32 {
        return Err(UNSUPPORTED);
    }
    let result = if wide { 2 * width } else { width };
    s.expect_operands(3 + usize::from(mad), 3 + usize::from(mad))?;
    let op = of_width(width, op)?;
    let d = b.destination(s, 0, result)?;
    let (x, y) = (b.source(s, 1, width)?, b.source(s, 2, width)?);
    let addend = if mad { b.source(s, 3, result)? } else { x };
    Ok(with_rows(op, d, &[x, y, addend]))
}

/// `add.cc`, `addc{.cc}` and the like: the carry is a predicate that the text cannot name.
fn carry<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>) -> Result<Instruction> {
    let ty = s.last();
    let width = type_bits(ty)?;
    if !matches!(ty, "u32" | "s32" | "u64" | "s64") {
        return Err(UNSUPPORTED);
    }
    let (words, writes) = match s.middle() {
        [words @ .., "cc"] => (words, true),
        words => (words, false),
    };
    let (op, reads) = match (s.name(), words) {
        ("add", []) => (CarryOp::Add, false),
        ("addc", []) => (CarryOp::Add, true),
        ("sub", []) => (CarryOp::Sub, false),
        ("subc", []) => (CarryOp::Sub, true),
        (name @ ("mad" | "madc"), ["lo"]) => (CarryOp::Mad, name == "madc"),
        (name @ ("mad" | "madc"), ["hi"]) if is_signed(ty) => (CarryOp::MadHighSigned, name == "madc"),
        (name @ ("mad" | "madc"), ["hi"]) => (CarryOp::MadHighUnsigned, name == "madc"),
        _ => return Err(UNSUPPORTED),
    };
    let operands = if matches!(op, CarryOp::Add | CarryOp::Sub) { 3 } else { 4 };
    s.expect_operands(operands, operands)?;
    let d = b.destination(s, 0, width)?;
    let (x, y) = (b.source(s, 1, width)?, b.source(s, 2, width)?);
    let addend = if operands == 4 { b.source(s, 3, width)? } else { x };
    let carry = b.carry()?;
    let flags = if reads { FLAG_OPTIONAL } else { 0 } | if writes { FLAG_SATURATE } else { 0 };
    let instruction = with_rows(Op::Carry(op), d, &[x, y, addend, carry]);
    Ok(Instruction { flags, count: (width / 32) as u8, ..instruction })
}

fn product24<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>) -> Result<Instruction> {
    let op = match (s.name(), s.modifiers()) {
        ("mul24", ["lo", "u32"]) => IntegerOp::Mul24Unsigned,
        ("mul24", ["lo", "s32"]) => IntegerOp::Mul24Signed,
        ("mul24", ["hi", "u32"]) => IntegerOp::Mul24HighUnsigned,
        ("mul24", ["hi", "s32"]) => IntegerOp::Mul24HighSigned,
        ("mad24", ["lo", "u32"]) => IntegerOp::Mad24Unsigned,
        ("mad24", ["lo", "s32"]) => IntegerOp::Mad24Signed,
        ("mad24", ["hi", "u32"]) => IntegerOp::Mad24HighUnsigned,
        ("mad24", ["hi", "s32"]) => IntegerOp::Mad24HighSigned,
        ("mad24", ["hi", "sat", "s32"]) => IntegerOp::Mad24HighSaturating,
        _ => return Err(UNSUPPORTED),
    };
    let sources = if s.name() == "mad24" { 3 } else { 2 };
    s.expect_operands(1 + sources, 1 + sources)?;
    let d = b.destination(s, 0, 32)?;
    let (x, y) = (b.source(s, 1, 32)?, b.source(s, 2, 32)?);
    let addend = if sources == 3 { b.source(s, 3, 32)? } else { x };
    Ok(with_rows(Op::Integer32(op), d, &[x, y, addend]))
}

/// `slct{.ftz}.type.condition d, a, b, c;`
fn by_sign<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>) -> Result<Instruction> {
    let (ty, op, flags) = match s.modifiers() {
        [ty, "s32"] => (ty, IntegerOp::SelectBySign, 0),
        [ty, "f32"] => (ty, IntegerOp::SelectByFloat, 0),
        ["ftz", ty, "f32"] => (ty, IntegerOp::SelectByFloat, FLAG_FTZ),
        _ => return Err(UNSUPPORTED),
    };
    let width = match *ty {
        "b16" | "u16" | "s16" => 16,
        "b32" | "u32" | "s32" | "f32" => 32,
        "b64" | "u64" | "s64" | "f64" => 64,
        _ => return Err(UNSUPPORTED),
    };
    s.expect_operands(4, 4)?;
    let d = b.destination(s, 0, width)?;
    let sources = [b.source(s, 1, width)?, b.source(s, 2, width)?, b.source(s, 3, 32)?];
    Ok(Instruction { flags, ..with_rows(of_width(width, op)?, d, &sources) })
}

/// Two halves at a time, `.relu`, `bmsk` and `szext`.
fn pairs_and_masks<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>) -> Result<Instruction> {
    let op = match (s.name(), s.modifiers()) {
        ("add", ["u16x2" | "s16x2"]) => IntegerOp::AddPair,
        ("min", ["u16x2"]) => IntegerOp::MinPairUnsigned,
        ("max", ["u16x2"]) => IntegerOp::MaxPairUnsigned,
        ("min", ["s16x2"]) => IntegerOp::MinPairSigned,
        ("max", ["s16x2"]) => IntegerOp::MaxPairSigned,
        ("min", ["relu", "s32"] | ["s32", "relu"]) => IntegerOp::MinRelu,
        ("max", ["relu", "s32"] | ["s32", "relu"]) => IntegerOp::MaxRelu,
        ("min", ["relu", "s16x2"] | ["s16x2", "relu"]) => IntegerOp::MinPairRelu,
        ("max", ["relu", "s16x2"] | ["s16x2", "relu"]) => IntegerOp::MaxPairRelu,
        ("bmsk", ["wrap", "b32"]) => IntegerOp::BitMaskWrap,
        ("bmsk", ["clamp", "b32"]) => IntegerOp::BitMaskClamp,
        ("szext", ["wrap", "u32"]) => IntegerOp::ExtendUnsignedWrap,
        ("szext", ["wrap", "s32"]) => IntegerOp::ExtendSignedWrap,
        ("szext", ["clamp", "u32"]) => IntegerOp::ExtendUnsignedClamp,
        ("szext", ["clamp", "s32"]) => IntegerOp::ExtendSignedClamp,
        _ => return Err(UNSUPPORTED),
    };
    s.expect_operands(3, 3)?;
    let d = b.destination(s, 0, 32)?;
    let sources = [b.source(s, 1, 32)?, b.source(s, 2, 32)?];
    Ok(with_rows(Op::Integer32(op), d, &sources))
}

fn shift<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>) -> Result<Instruction> {
    let [ty] = s.modifiers() else { return Err(UNSUPPORTED) };
    let width = type_bits(ty)?;
    let op = match s.name() {
        "shl" => IntegerOp::ShiftLeft,
        _ if is_signed(ty) => IntegerOp::ShiftRightSigned,
        _ => IntegerOp::ShiftRightUnsigned,
    };
    s.expect_operands(3, 3)?;
    let op = of_width(width, op)?;
    let d = b.destination(s, 0, width)?;
    let sources = [b.source(s, 1, width)?, b.source(s, 2, 32)?];
    Ok(with_rows(op, d, &sources))
}

fn funnel<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>) -> Result<Instruction> {
    let op = match s.modifiers() {
        ["l", "wrap", "b32"] => IntegerOp::FunnelLeftWrap,
        ["l", "clamp", "b32"] => IntegerOp::FunnelLeftClamp,
        ["r", "wrap", "b32"] => IntegerOp::FunnelRightWrap,
        ["r", "clamp", "b32"] => IntegerOp::FunnelRightClamp,
        _ => return Err(UNSUPPORTED),
    };
    s.expect_operands(4, 4)?;
    let d = b.destination(s, 0, 32)?;
    let sources = [b.source(s, 1, 32)?, b.source(s, 2, 32)?, b.source(s, 3, 32)?];
    Ok(with_rows(Op::Integer32(op), d, &sources))
}

fn field<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>) -> Result<Instruction> {
    let [ty] = s.modifiers() else { return Err(UNSUPPORTED) };
    let width = type_bits(ty)?;
    if width < 32 {
        return Err(UNSUPPORTED);
    }
    let d = b.destination(s, 0, width)?;
    if s.name() == "bfi" {
        s.expect_operands(5, 5)?;
        let op = of_width(width, IntegerOp::FieldInsert)?;
        let (insert, base) = (b.source(s, 1, width)?, b.source(s, 2, width)?);
        let (position, length) = (b.source(s, 3, 32)?, b.source(s, 4, 32)?);
        return Ok(with_rows(op, d, &[insert, base, position, length]));
    }
    s.expect_operands(4, 4)?;
    let op = if is_signed(ty) { IntegerOp::FieldExtractSigned } else { IntegerOp::FieldExtractUnsigned };
    let sources = [b.source(s, 1, width)?, b.source(s, 2, 32)?, b.source(s, 3, 32)?];
    Ok(with_rows(of_width(width, op)?, d, &sources))
}

/// Operations whose result is a 32-bit count, and `brev`.
fn bits<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>) -> Result<Instruction> {
    let (ty, shifts) = match s.modifiers() {
        ["shiftamt", ty] if s.name() == "bfind" => (ty, true),
        [ty] => (ty, false),
        _ => return Err(UNSUPPORTED),
    };
    let width = type_bits(ty)?;
    if width < 32 {
        return Err(UNSUPPORTED);
    }
    let (op, result) = match s.name() {
        "popc" => (IntegerOp::PopulationCount, 32),
        "clz" => (IntegerOp::LeadingZeros, 32),
        "brev" => (IntegerOp::ReverseBits, width),
        _ if shifts && is_signed(ty) => (IntegerOp::ShiftToHighSigned, 32),
        _ if shifts => (IntegerOp::ShiftToHighUnsigned, 32),
        _ if is_signed(ty) => (IntegerOp::FindHighSigned, 32),
        _ => (IntegerOp::FindHighUnsigned, 32),
    };
    s.expect_operands(2, 2)?;
    let d = b.destination(s, 0, result)?;
    let a = b.source(s, 1, width)?;
    Ok(with_rows(of_width(width, op)?, d, &[a]))
}

fn special<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>) -> Result<Instruction> {
    let mut immediate = 0;
    let op = match (s.name(), s.modifiers()) {
        ("prmt", ["b32"]) => IntegerOp::Permute,
        ("prmt", ["b32", mode]) => {
            let modes = ["f4e", "b4e", "rc8", "ecl", "ecr", "rc16"];
            immediate = modes.iter().position(|known| known == mode).ok_or(UNSUPPORTED)? as i32;
            IntegerOp::PermuteByTable
        }
        ("dp4a", [left @ ("u32" | "s32"), right @ ("u32" | "s32")]) => {
            immediate = i32::from(is_signed(left)) | i32::from(is_signed(right)) << 1;
            IntegerOp::DotBytes
        }
        ("dp2a", [half @ ("lo" | "hi"), left @ ("u32" | "s32"), right @ ("u32" | "s32")]) => {
            immediate = i32::from(is_signed(left)) | i32::from(is_signed(right)) << 1;
            immediate |= i32::from(*half == "hi") << 2;
            IntegerOp::DotHalves
        }
        _ => return Err(UNSUPPORTED),
    };
    s.expect_operands(4, 4)?;
    let d = b.destination(s, 0, 32)?;
    let sources = [b.source(s, 1, 32)?, b.source(s, 2, 32)?, b.source(s, 3, 32)?];
    Ok(Instruction { immediate, ..with_rows(Op::Integer32(op), d, &sources) })
}

/// `sad.type d, a, b, c;`
fn absolute_differences<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>) -> Result<Instruction> {
    let [ty @ ("u16" | "s16" | "u32" | "s32" | "u64" | "s64")] = s.modifiers() else {
        return Err(UNSUPPORTED);
    };
    let width = type_bits(ty)?;
    let op = if is_signed(ty) { IntegerOp::SadSigned } else { IntegerOp::SadUnsigned };
    s.expect_operands(4, 4)?;
    let d = b.destination(s, 0, width)?;
    let sources = [b.source(s, 1, width)?, b.source(s, 2, width)?, b.source(s, 3, width)?];
    Ok(with_rows(of_width(width, op)?, d, &sources))
}

/// `lop3.b32 d, a, b, c, table;`, and `lop3.or.b32 d|p, a, b, c, table, q;`, whose predicate is whether
/// any bit of the result is set, combined with another one.
fn logic3<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>) -> Result<Instruction> {
    let combination = match s.modifiers() {
        ["b32"] => 0,
        ["and", "b32"] => combine::AND,
        ["or", "b32"] => combine::OR,
        _ => return Err(UNSUPPORTED),
    };
    let operands = if combination == 0 { 5 } else { 6 };
    s.expect_operands(operands, operands)?;
    let sources = [b.source(s, 1, 32)?, b.source(s, 2, 32)?, b.source(s, 3, 32)?];
    let table = b.immediate(s, 4)?;
    let (first, second) = b.destination_pair(s, 0)?;
    let d = b.destination_scalar(first, 32)?;
    let logic =
        |d| Instruction { immediate: table, ..with_rows(Op::Integer32(IntegerOp::Logic3), d, &sources) };
    let predicate = match second {
        None if combination == 0 => return Ok(logic(d)),
        Some(predicate) if combination != 0 => predicate,
        _ => return Err(UNSUPPORTED),
    };
    let p = b.predicate_destination(predicate)?;
    let (c, negated) = b.predicate_source(s, 5)?;
    // Into a register of its own first: the result may be one of the sources, or nothing.
    let row = b.register(Class::Bits32)?.index;
    b.emit_guarded(logic(row));
    b.emit_guarded(with_rows(Op::Move(MoveOp::Bits32), d, &[row]));
    // Last of all, since it may write the guard.
    let zero = b.constant(0, false)?;
    let any = with_rows(Op::Compare(CompareType::U32), p, &[row, zero, c, PREDICATE_SINK]);
    let flags = if negated { FLAG_NEGATE_SOURCE } else { 0 };
    Ok(Instruction { flags, count: Relation::Ne as u8, immediate: combination, ..any })
}
