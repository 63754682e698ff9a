//! Floating-point arithmetic.

use super::operand::type_bits;
use super::{Builder, Result, Statement, UNSUPPORTED, with_rows};
use crate::isa::{
    FLAG_FTZ, FLAG_OUT_OF_BOUNDS, FLAG_SATURATE, FLAG_VARIANT, FLAG_XOR_SIGN, FloatOp, Instruction, Op,
    Rounding,
};

/// Whether a type name is that of a floating-point number.
pub fn is_float(name: &str) -> bool {
    matches!(name, "f16" | "f16x2" | "bf16" | "bf16x2" | "f32" | "f64")
}

/// How many sources an operation has.
fn sources(op: FloatOp) -> usize {
    match op {
        FloatOp::Fma => 3,
        FloatOp::Add | FloatOp::Sub | FloatOp::Mul | FloatOp::Div => 2,
        FloatOp::Min | FloatOp::Max | FloatOp::CopySign => 2,
        _ => 1,
    }
}

fn operation(name: &str) -> Result<FloatOp> {
    Ok(match name {
        "add" => FloatOp::Add,
        "sub" => FloatOp::Sub,
        "mul" => FloatOp::Mul,
        "fma" | "mad" => FloatOp::Fma,
        "div" => FloatOp::Div,
        "min" => FloatOp::Min,
        "max" => FloatOp::Max,
        "neg" => FloatOp::Neg,
        "abs" => FloatOp::Abs,
        "rcp" => FloatOp::Rcp,
        "sqrt" => FloatOp::Sqrt,
        "rsqrt" => FloatOp::Rsqrt,
        "ex2" => FloatOp::Ex2,
        "lg2" => FloatOp::Lg2,
        "tanh" => FloatOp::Tanh,
        "sin" => FloatOp::Sin,
        "cos" => FloatOp::Cos,
        "copysign" => FloatOp::CopySign,
        _ => return Err(UNSUPPORTED),
    })
}

/// Which operations exist for a type, beyond what the interpreter's tables allow.
fn of_type(ty: &str, op: FloatOp) -> Result<Op> {
    use FloatOp::{Abs, Add, Ex2, Fma, Max, Min, Mul, Neg, Sub, Tanh};
    let half = matches!(op, Add | Sub | Mul | Fma | Neg | Abs | Min | Max | Ex2 | Tanh);
    let approximate = matches!(op, Ex2 | Tanh | FloatOp::Lg2 | FloatOp::Sin | FloatOp::Cos);
    Ok(match ty {
        "f32" => Op::Float32(op),
        "f64" if !approximate => Op::Float64(op),
        "f16" if half => Op::Half(op),
        "bf16" if half => Op::Bfloat(op),
        "f16x2" if half => Op::HalfPair(op),
        "bf16x2" if half => Op::BfloatPair(op),
        _ => return Err(UNSUPPORTED),
    })
}

fn flags(s: &Statement<'_>, op: FloatOp) -> Result<u8> {
    let ty = s.last();
    let exact = matches!(op, FloatOp::Add | FloatOp::Sub | FloatOp::Mul | FloatOp::Fma);
    let divides = matches!(op, FloatOp::Div | FloatOp::Rcp | FloatOp::Sqrt);
    let orders = matches!(op, FloatOp::Min | FloatOp::Max);
    let changes_sign = matches!(op, FloatOp::Neg | FloatOp::Abs);
    let is_half = !matches!(ty, "f32" | "f64");
    let mut flags = 0;
    for modifier in s.middle() {
        flags |= match *modifier {
            "rn" if exact || divides => 0,
            "rz" | "rm" | "rp" if matches!(ty, "f32" | "f64") && (exact || divides) => 0,
            // Within the error that the approximate forms are allowed.
            "approx" if !exact => 0,
            "full" if op == FloatOp::Div => 0,
            "ftz" if ty == "f32" || (op == FloatOp::Ex2 && ty.starts_with("bf16")) => FLAG_FTZ,
            "sat" if exact && ty != "f64" => FLAG_SATURATE,
            "ftz" if ty.starts_with("f16") && (exact || orders || changes_sign) => FLAG_FTZ,
            "NaN" if orders => FLAG_VARIANT,
            "xorsign" | "abs" if orders && ty != "f64" => FLAG_XOR_SIGN,
            "relu" if op == FloatOp::Fma && is_half => FLAG_VARIANT,
            "oob" if op == FloatOp::Fma && is_half => FLAG_OUT_OF_BOUNDS,
            _ => return Err(UNSUPPORTED),
        };
    }
    // A result is limited in one way, and one that may count for nothing is not flushed either.
    let has = |word: &str| s.middle().contains(&word);
    if has("sat") && (has("relu") || has("oob")) || has("ftz") && has("oob") {
        return Err(UNSUPPORTED);
    }
    // One does not come without the other.
    if has("xorsign") != has("abs") {
        return Err(UNSUPPORTED);
    }
    Ok(flags)
}

fn rounding(s: &Statement<'_>) -> Rounding {
    let directed = s.middle().iter().find_map(|word| match *word {
        "rz" => Some(Rounding::Zero),
        "rm" => Some(Rounding::Down),
        "rp" => Some(Rounding::Up),
        _ => None,
    });
    directed.unwrap_or(Rounding::NearestEven)
}

/// Decodes the family.
pub fn decode<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>) -> Result<Instruction> {
    let operation = operation(s.name())?;
    let op = of_type(s.last(), operation)?;
    let count = sources(operation);
    s.expect_operands(1 + count, 1 + count)?;
    let bits = type_bits(s.last())?;
    let d = b.destination(s, 0, bits)?;
    let mut rows = [0; 3];
    for (index, row) in rows[..count].iter_mut().enumerate() {
        *row = b.source(s, 1 + index, bits)?;
    }
    let (flags, count) = (flags(s, operation)?, rounding(s) as u8);
    Ok(Instruction { flags, count, ..with_rows(op, d, &rows[..sources(operation)]) })
}
