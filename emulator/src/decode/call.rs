//! Calls of functions.

use super::{Builder, Result, Statement, UNSUPPORTED, with_rows};
use crate::error::ParseErrorKind;
use crate::isa::{Builtin, Instruction, Op};
use crate::parse::operand::{Operand, Scalar};
use crate::parse::scope::{Class, Symbol};

/// Functions that the emulator provides: name, and how many arguments and results they have.
fn builtin(name: &str) -> Option<(Builtin, usize, usize)> {
    Some(match name {
        "vprintf" => (Builtin::Print, 2, 1),
        "__assertfail" => (Builtin::AssertFail, 5, 0),
        "malloc" => (Builtin::Allocate, 1, 1),
        "free" => (Builtin::Free, 1, 0),
        _ => return None,
    })
}

/// `call {(result),} function, {(arguments)};`
pub fn decode<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>) -> Result<Instruction> {
    let (Some(call), [] | ["uni"]) = (s.call, s.modifiers()) else { return Err(UNSUPPORTED) };
    let mut rows = Vec::with_capacity(s.operands.len());
    for operand in &s.operands {
        // Registers and constants can be arguments only of functions without an ABI.
        let Operand::Scalar(Scalar::Name(name)) = operand else { return Err(UNSUPPORTED) };
        rows.push(match b.symbol(name) {
            Some(symbol @ (Symbol::Argument(_) | Symbol::FrameArgument(_))) => {
                b.address_of(symbol, 0, false)?
            }
            Some(_) => return Err(UNSUPPORTED),
            None => return Err(ParseErrorKind::UnknownName((*name).to_string())),
        });
    }
    rows.rotate_left(call.results);
    let arguments = rows.len() - call.results;
    let mut instruction = match call.target {
        Scalar::Register(register) if register.class == Class::Bits64 => {
            b.need_all_functions();
            Instruction { immediate: -1, ..with_rows(Op::Call, 0, &[register.index]) }
        }
        Scalar::Name(name) => {
            let number = b.function(name);
            let wrong =
                ParseErrorKind::Operand("arguments and results that are not those of the function");
            match number.filter(|&number| b.has_body(number)) {
                Some(number) if b.takes(number, arguments, call.results) => {
                    b.need_function(number);
                    Instruction { immediate: number as i32, ..Instruction::new(Op::Call) }
                }
                Some(_) => return Err(wrong),
                None => match builtin(name) {
                    Some((op, inputs, results)) if (inputs, results) == (arguments, call.results) => {
                        Instruction::new(Op::CallBuiltin(op))
                    }
                    _ => return Err(UNSUPPORTED),
                },
            }
        }
        _ => return Err(UNSUPPORTED),
    };
    instruction.d = b.list(&rows);
    instruction.count = arguments as u8;
    instruction.e = call.results as u32;
    Ok(instruction)
}
