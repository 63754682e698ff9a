//! Conversions.

use super::{Builder, Result, Statement, UNSUPPORTED, with_rows};
use crate::isa::{ConvertType, FLAG_FTZ, FLAG_SATURATE, FLAG_VARIANT, Instruction, Op, Rounding};

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

/// Decodes `cvt{.rounding}{.ftz}{.sat}{.relu}.to.from d, a{, b};`
pub fn decode<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>) -> Result<Instruction> {
    let [modifiers @ .., to, from] = s.modifiers() else { return Err(UNSUPPORTED) };
    if let [rounding, "tf32", "f32"] = s.modifiers() {
        s.expect_operands(2, 2)?;
        let d = b.destination(s, 0, 32)?;
        let flags = match *rounding {
            "rna" => 0,
            "rn" => FLAG_VARIANT,
            "rz" => FLAG_SATURATE,
            _ => return Err(UNSUPPORTED),
        };
        return Ok(Instruction { flags, ..with_rows(Op::ConvertTf32, d, &[b.source(s, 1, 32)?]) });
    }
    let (mut rounding, mut flags) = (None, 0);
    for modifier in modifiers {
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
        _ if !simple || !narrow => Op::Convert,
        (ConvertType::U64, ConvertType::U32) => Op::ConvertU32ToU64,
        (ConvertType::S64, ConvertType::S32) => Op::ConvertS32ToS64,
        (ConvertType::U32 | ConvertType::S32, ConvertType::U64 | ConvertType::S64) => {
            Op::ConvertU64ToU32
        }
        (ConvertType::U16, ConvertType::U32) | (ConvertType::U32, ConvertType::U16) => {
            Op::ConvertU32ToU16
        }
        (ConvertType::F32, ConvertType::Bf16) => Op::ConvertBfloatToF32,
        (ConvertType::F32, ConvertType::F16) => Op::ConvertHalfToF32,
        _ => Op::Convert,
    };
    let rounding = rounding.unwrap_or(Rounding::NearestEven);
    let mut instruction = with_rows(op, d, &[a, from as u32, to as u32]);
    // Bit 0: the destination register is 64 bits wide; bit 1: the source register is.
    instruction.immediate = i32::from(d_wide) | i32::from(a_wide) << 1;
    Ok(Instruction { flags, count: rounding as u8, ..instruction })
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
    let relu = flags & FLAG_VARIANT != 0;
    let relu_allowed = matches!(to, ConvertType::F16 | ConvertType::Bf16) && from == ConvertType::F32;
    if good && (!relu || relu_allowed) { Ok(()) } else { Err(UNSUPPORTED) }
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

/// `cvt.rn{.relu}.bf16x2.f32 d, high, low;`
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
    if s.last() != "f32" || flags & !FLAG_VARIANT != 0 {
        return Err(UNSUPPORTED);
    }
    s.expect_operands(3, 3)?;
    let op = if to == "bf16x2" { Op::ConvertPairBfloat } else { Op::ConvertPairHalf };
    let d = b.destination(s, 0, 32)?;
    let sources = [b.source(s, 1, 32)?, b.source(s, 2, 32)?];
    Ok(Instruction { flags, count: rounding as u8, ..with_rows(op, d, &sources) })
}
