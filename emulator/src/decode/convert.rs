//! Conversions.

use super::{Builder, Result, Statement, UNSUPPORTED, with_rows};
use crate::isa::types::tf32;
use crate::isa::{
    ConvertType, FLAG_FINITE, FLAG_FTZ, FLAG_SATURATE, FLAG_VARIANT, Instruction, MoveOp, Op, Rounding,
};

fn convert_type(name: &str) -> Result<ConvertType> {
    Ok(match name {
        "u8" => ConvertType::U8,
        "s8" => ConvertType::S8,
        "u16" => ConvertType::U16,
        "s16" => ConvertType::S16,
        "u32" => ConvertType::U32,
        "s32" => ConvertType::S32,
        "u64" => ConvertType::U64,
        "s64" => ConvertType::S64,
        "f16" => ConvertType::F16,
        "bf16" => ConvertType::Bf16,
        "f32" => ConvertType::F32,
        "f64" => ConvertType::F64,
        _ => return Err(UNSUPPORTED),
    })
}

/// Decodes `cvt{.rounding}{.ftz}{.sat}{.relu}{.satfinite}.to.from d, a{, b};`
pub fn decode<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>) -> Result<Instruction> {
    let [modifiers @ .., to, from] = s.modifiers() else { return Err(UNSUPPORTED) };
    if [*to, *from] == ["tf32", "f32"] {
        return to_tf32(s, b, modifiers);
    }
    let (mut rounding, mut flags) = (None, 0);
    for modifier in modifiers {
        if rounding.is_some() && modifier.starts_with('r') && *modifier != "relu" {
            return Err(UNSUPPORTED);
        }
        match *modifier {
            "rn" => rounding = Some(Rounding::NearestEven),
            "rz" => rounding = Some(Rounding::Zero),
            "rm" => rounding = Some(Rounding::Down),
            "rp" => rounding = Some(Rounding::Up),
            "rni" => rounding = Some(Rounding::IntegerNearestEven),
            "rzi" => rounding = Some(Rounding::IntegerZero),
            "rmi" => rounding = Some(Rounding::IntegerDown),
            "rpi" => rounding = Some(Rounding::IntegerUp),
            "ftz" => flags |= FLAG_FTZ,
            "sat" => flags |= FLAG_SATURATE,
            "relu" => flags |= FLAG_VARIANT,
            "satfinite" => flags |= FLAG_FINITE,
            _ => return Err(UNSUPPORTED),
        }
    }
    if matches!(*to, "bf16x2" | "f16x2") {
        return pair(s, b, to, rounding, flags);
    }
    let (to, from) = (convert_type(to)?, convert_type(from)?);
    check(to, from, rounding, flags)?;
    s.expect_operands(2, 2)?;
    // Registers wider than the type are allowed: the result is extended to them, the source cut.
    let (d, d_wide) = any_width(s, b, 0, to)?;
    let (a, a_wide) = any_width(s, b, 1, from)?;
    let simple = flags == 0 && rounding.is_none_or(|r| r == Rounding::NearestEven);
    let narrow = d_wide == to.is_wide() && a_wide == from.is_wide();
    let op = match (to, from) {
        // As they are, whatever they are: NaN, too.
        (ConvertType::F32, ConvertType::F32) if flags == 0 && rounding.is_none() => {
            Op::Move(MoveOp::Bits32)
        }
        (ConvertType::F32, ConvertType::Bf16) if flags == 0 && narrow => Op::ConvertBfloatToF32,
        _ if !simple || !narrow => Op::Convert,
        (ConvertType::U64, ConvertType::U32) => Op::ConvertU32ToU64,
        (ConvertType::S64, ConvertType::S32) => Op::ConvertS32ToS64,
        (ConvertType::U32 | ConvertType::S32, ConvertType::U64 | ConvertType::S64) => {
            Op::ConvertU64ToU32
        }
        (ConvertType::U16, ConvertType::U32) | (ConvertType::U32, ConvertType::U16) => {
            Op::ConvertU32ToU16
        }
        (ConvertType::F32, ConvertType::F16) => Op::ConvertHalfToF32,
        _ => Op::Convert,
    };
    let rounding = rounding.unwrap_or(Rounding::NearestEven);
    let mut instruction = with_rows(op, d, &[a, from as u32, to as u32]);
    // Bit 0: the destination register is 64 bits wide; bit 1: the source register is.
    instruction.immediate = i32::from(d_wide) | i32::from(a_wide) << 1;
    Ok(Instruction { flags, count: rounding as u8, ..instruction })
}

/// `cvt.rounding{.relu}{.satfinite}.tf32.f32 d, a;`
fn to_tf32<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>, modifiers: &[&str]) -> Result<Instruction> {
    let [rounding, rest @ ..] = modifiers else { return Err(UNSUPPORTED) };
    let immediate = match *rounding {
        "rna" => tf32::AWAY,
        "rn" => tf32::EVEN,
        "rz" => tf32::ZERO,
        _ => return Err(UNSUPPORTED),
    };
    let flags = match rest {
        [] => 0,
        ["relu"] if immediate != tf32::AWAY => FLAG_VARIANT,
        ["satfinite"] if immediate == tf32::AWAY => FLAG_FINITE,
        _ => return Err(UNSUPPORTED),
    };
    s.expect_operands(2, 2)?;
    let d = b.destination(s, 0, 32)?;
    let rows = with_rows(Op::ConvertTf32, d, &[b.source(s, 1, 32)?]);
    Ok(Instruction { flags, immediate, ..rows })
}

/// Rounding is required and allowed by the types.
fn check(to: ConvertType, from: ConvertType, rounding: Option<Rounding>, flags: u8) -> Result<()> {
    let integral = rounding.is_some_and(|r| r as u8 >= Rounding::IntegerNearestEven as u8);
    let same_float = to.is_float() && to == from;
    let good = match (to.is_float(), from.is_float()) {
        (false, false) => rounding.is_none(),
        (false, true) => integral,
        (true, false) => rounding.is_some() && !integral,
        (true, true) if same_float => rounding.is_none() || integral,
        (true, true) => !integral,
    };
    // The one limits a result to [0, 1], the other to what is finite.
    if flags & FLAG_SATURATE != 0 && flags & FLAG_FINITE != 0 {
        return Err(UNSUPPORTED);
    }
    let narrows = flags & (FLAG_VARIANT | FLAG_FINITE) != 0;
    let may_narrow = matches!(to, ConvertType::F16 | ConvertType::Bf16) && from == ConvertType::F32;
    if good && (!narrows || may_narrow) { Ok(()) } else { Err(UNSUPPORTED) }
}

/// The row of an operand and whether its register is 64 bits wide.
fn any_width<'a>(
    s: &Statement<'a>,
    b: &mut Builder<'a, '_>,
    index: usize,
    ty: ConvertType,
) -> Result<(u32, bool)> {
    let wide = match b.any_register(s, index) {
        Ok(register) if !ty.is_float() => register.class.rows() == 2,
        _ => ty.is_wide(),
    };
    let bits = if wide { 64 } else { 32 };
    let row = if index == 0 { b.destination(s, 0, bits)? } else { b.source(s, index, bits)? };
    Ok((row, wide))
}

/// `cvt.rn{.relu}{.satfinite}.bf16x2.f32 d, high, low;`
fn pair<'a>(
    s: &Statement<'a>,
    b: &mut Builder<'a, '_>,
    to: &str,
    rounding: Option<Rounding>,
    flags: u8,
) -> Result<Instruction> {
    let rounding = match rounding {
        Some(rounding @ (Rounding::NearestEven | Rounding::Zero)) => rounding,
        _ => return Err(UNSUPPORTED),
    };
    if s.last() != "f32" || flags & !(FLAG_VARIANT | FLAG_FINITE) != 0 {
        return Err(UNSUPPORTED);
    }
    s.expect_operands(3, 3)?;
    let op = if to == "bf16x2" { Op::ConvertPairBfloat } else { Op::ConvertPairHalf };
    let d = b.destination(s, 0, 32)?;
    let sources = [b.source(s, 1, 32)?, b.source(s, 2, 32)?];
    Ok(Instruction { flags, count: rounding as u8, ..with_rows(op, d, &sources) })
}
