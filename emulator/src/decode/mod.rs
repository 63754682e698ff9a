//! Statements to instructions: one file per family.
//!
//! Every modifier of an opcode is looked at. One that a family does not know makes the instruction
//! unsupported; none is passed over.

mod atomic;
pub mod builder;
mod bulk;
mod call;
mod control;
mod convert;
mod float;
mod integer;
mod matrix;
mod mbarrier;
mod memory;
mod moves;
mod operand;
mod rare;
mod select;
mod video;
mod warp;
mod wgmma;
mod wmma;

use crate::error::ParseErrorKind;
use crate::isa::{Instruction, Op};
use crate::parse::statement::Statement;
use builder::Builder;

/// The result of decoding.
pub type Result<T> = std::result::Result<T, ParseErrorKind>;

/// The instruction is not known.
pub const UNSUPPORTED: ParseErrorKind = ParseErrorKind::UnsupportedInstruction;

/// Decodes a statement.
pub fn decode<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>) -> Result<Instruction> {
    match s.name() {
        "add" | "sub" | "mul" | "fma" | "mad" | "div" | "min" | "max" | "neg" | "abs"
            if float::is_float(s.last()) =>
        {
            float::decode(s, b)
        }
        "rcp" | "rsqrt" if s.modifiers() == ["approx", "ftz", "f64"] => rare::upper_half(s, b),
        "rcp" | "sqrt" | "rsqrt" | "ex2" | "lg2" | "tanh" | "sin" | "cos" | "copysign" => {
            float::decode(s, b)
        }
        "and" | "or" | "xor" | "not" if s.last() == "pred" => select::predicate(s, b),
        "setp" if matches!(s.last(), "f16x2" | "bf16x2") => rare::compare_pairs(s, b),
        "setp" => select::compare(s, b),
        "set" => rare::set(s, b),
        "testp" => rare::test_property(s, b),
        "fns" => rare::find_nth_set(s, b),
        "vadd" | "vadd2" | "vadd4" | "vsub" | "vsub2" | "vsub4" | "vabsdiff" | "vabsdiff2"
        | "vabsdiff4" | "vmin" | "vmin2" | "vmin4" | "vmax" | "vmax2" | "vmax4" | "vset" | "vset2"
        | "vset4" | "vavrg2" | "vavrg4" | "vshl" | "vshr" => video::decode(s, b),
        "vmad" => video::multiply_add(s, b),
        "cvt" if s.modifiers().first() == Some(&"pack") => rare::pack_saturated(s, b),
        "cvt" if s.modifiers().iter().any(|word| matches!(*word, "e4m3x2" | "e5m2x2")) => {
            rare::convert_fp8(s, b)
        }
        "selp" => select::select(s, b),
        "cvt" => convert::decode(s, b),
        "mov" | "cvta" | "isspacep" => moves::decode(s, b),
        "st" if s.modifiers().first() == Some(&"async") => mbarrier::store(s, b),
        "red" if s.modifiers().first() == Some(&"async") => mbarrier::reduce(s, b),
        "ld" | "ldu" | "st" => memory::access(s, b),
        "cp" if matches!(s.modifiers(), ["async", "bulk", ..] | ["reduce", "async", "bulk", ..]) => {
            bulk::decode(s, b)
        }
        "cp" => memory::async_copy(s, b),
        "mbarrier" => mbarrier::decode(s, b),
        "wgmma" => wgmma::decode(s, b),
        "wmma" => wmma::decode(s, b),
        "mapa" => moves::map_address(s, b),
        "getctarank" => moves::block_rank(s, b),
        "alloca" | "stacksave" | "stackrestore" => moves::stack(s, b),
        "tensormap" => bulk::tensor_map(s, b),
        "createpolicy" => moves::cache_policy(s, b),
        "prefetch" | "prefetchu" | "applypriority" | "discard" => memory::hint(s),
        "atom" | "red" => atomic::decode(s, b),
        "shfl" | "vote" | "match" | "redux" | "activemask" | "elect" => warp::decode(s, b),
        "bra" | "brx" | "ret" | "exit" | "trap" | "brkpt" | "bar" | "barrier" | "membar" | "fence"
        | "nanosleep" | "setmaxnreg" | "griddepcontrol" | "pmevent" => control::decode(s, b),
        "call" => call::decode(s, b),
        "mma" | "ldmatrix" | "stmatrix" | "movmatrix" => matrix::decode(s, b),
        _ => integer::decode(s, b),
    }
}

/// An instruction with a destination and up to three sources, all of them given as rows.
pub fn with_rows(op: Op, d: u32, sources: &[u32]) -> Instruction {
    let mut instruction = Instruction { d, ..Instruction::new(op) };
    for (&row, place) in sources.iter().zip([
        &mut instruction.a,
        &mut instruction.b,
        &mut instruction.c,
        &mut instruction.e,
    ]) {
        *place = row;
    }
    instruction
}
