//! The table of instruction families, and of the checks that cost most, for a kind of CPU.

use super::context::{Context, Flow};
use super::warp::Warp;
use super::wgmma::Pending;
use super::window::Window;
use crate::exec::values::registers::Registers;
use crate::isa::{CompareType, FloatOp, Instruction, IntegerOp, MatrixOp, Op};
use crate::space::Space;

/// The instruction families and checks of which a faster version exists.
pub struct Families {
    pub integer16: fn(&mut Registers, &Instruction, u32, IntegerOp),
    pub integer32: fn(&mut Registers, &Instruction, u32, IntegerOp),
    pub integer64: fn(&mut Registers, &Instruction, u32, IntegerOp),
    pub float32: fn(&mut Registers, &Instruction, u32, FloatOp),
    pub float64: fn(&mut Registers, &Instruction, u32, FloatOp),
    pub half: fn(&mut Registers, &Instruction, u32, Op),
    pub compare: fn(&mut Registers, &Instruction, u32, CompareType),
    pub convert: fn(&mut Registers, &Instruction, u32, Op),
    pub load: fn(&mut Context<'_>, &mut Warp, &Instruction, u32, Space) -> Flow,
    pub store: fn(&mut Context<'_>, &mut Warp, &Instruction, u32, Space) -> Flow,
    pub wgmma: fn(&mut Context<'_>, &mut Warp, &Pending),
    pub matrix: fn(&mut Context<'_>, &mut Warp, &Instruction, u32, MatrixOp) -> Flow,
    pub race_lanes: fn(&mut Context<'_>, &Warp, &Window, u32, bool) -> bool,
    pub race_copies: fn(&mut Context<'_>, &Warp, &Window, u32),
    pub race_copies_end: fn(&mut Context<'_>, &Warp, &Window, u32, u32),
    pub race_operand: fn(&mut Context<'_>, &Warp, usize, u32),
}
