//! Values that are not defined: what `shfl.sync` takes from a lane that is not a member.
//!
//! Such values may be carried about and computed with, as long as nothing comes of it: it is a fault if one
//! decides where a lane goes, is an address, reaches memory or other lanes. From the first one on they are
//! followed through the registers of their warp, lane by lane. Most kernels never make one.

use super::context::Context;
use super::warp::Warp;
use crate::exec::values::registers::{LANES, lanes};
use crate::isa::operands::{Role, visit, visit_predicates};
use crate::isa::{Code, FLAG_NEGATE_SOURCE, Instruction, Op};
use crate::report::FindingKind;

/// Which lanes' values are not defined.
#[derive(Debug)]
pub struct Poison {
    rows: Vec<u32>,
    predicates: Vec<u32>,
    /// Operand lists, of which [`visit`] wants its own.
    lists: Vec<u32>,
    /// The instruction that made the last one.
    origin: u32,
}

impl Poison {
    fn new(code: &Code) -> Self {
        let (rows, predicates) = (vec![0; code.rows as usize], vec![0; code.predicates as usize]);
        Poison { rows, predicates, lists: code.lists.clone(), origin: 0 }
    }

    /// The lanes of any of these rows.
    fn of(&self, row: u32, count: u32) -> u32 {
        self.rows[row as usize..][..count as usize].iter().fold(0, |all, mask| all | mask)
    }

    /// From now on everything is defined in these lanes.
    fn forget(&mut self, lanes: u32) {
        self.rows.iter_mut().chain(&mut self.predicates).for_each(|mask| *mask &= !lanes);
    }

    /// What an instruction reads: the lanes in which some of it is not defined.
    fn read(&mut self, w: &Warp, i: &Instruction) -> u32 {
        let mut lists = std::mem::take(&mut self.lists);
        let mut all = 0;
        visit_predicates(i, &mut |predicate, role| {
            all |= if role == Role::Read { self.predicates[predicate as usize] } else { 0 };
        });
        if let Op::Select32 | Op::Select64 = i.op {
            let holds = w.registers.predicate(i.c) ^ if i.has(FLAG_NEGATE_SOURCE) { !0 } else { 0 };
            let count = if i.op == Op::Select64 { 2 } else { 1 };
            all |= holds & self.of(i.a, count) | !holds & self.of(i.b, count);
        } else {
            visit(&mut i.clone(), &mut lists, &mut |&mut row, count, role| {
                all |= if role == Role::Write { 0 } else { self.of(row, count) };
            });
        }
        self.lists = lists;
        all
    }

    /// Lanes write what is defined, or not.
    fn write(&mut self, i: &Instruction, m: u32, value: u32) {
        let mut lists = std::mem::take(&mut self.lists);
        let set = |mask: &mut u32| *mask = *mask & !m | value & m;
        visit_predicates(i, &mut |predicate, role| {
            if role == Role::Write {
                set(&mut self.predicates[predicate as usize]);
            }
        });
        visit(&mut i.clone(), &mut lists, &mut |&mut row, count, role| {
            if role != Role::Read {
                self.rows[row as usize..][..count as usize].iter_mut().for_each(set);
            }
        });
        self.lists = lists;
    }
}

/// Whether all that comes of an instruction is a register of the same lane.
fn computes(op: Op) -> bool {
    matches!(
        op,
        Op::Integer16(_)
            | Op::Integer32(_)
            | Op::Integer64(_)
            | Op::Float32(_)
            | Op::Float64(_)
            | Op::Half(_)
            | Op::Bfloat(_)
            | Op::HalfPair(_)
            | Op::BfloatPair(_)
            | Op::Compare(_)
            | Op::Select32
            | Op::Select64
            | Op::Predicate(_)
            | Op::Move(_)
            | Op::Convert
            | Op::ConvertPairBfloat
            | Op::ConvertPairHalf
            | Op::ConvertU32ToU64
            | Op::ConvertS32ToS64
            | Op::ConvertU64ToU32
            | Op::ConvertU32ToU16
            | Op::ConvertBfloatToF32
            | Op::ConvertHalfToF32
            | Op::ConvertTf32
            | Op::Carry(_)
    )
}

impl Context<'_> {
    /// Before an instruction: what becomes of the values that are not defined. All lanes that came to it, and
    /// those that execute it.
    #[cold]
    #[inline(never)]
    pub fn poison_touch(&mut self, w: &mut Warp, pc: u32, all: u32, m: u32) {
        let i = &self.environment.code().instructions[pc as usize];
        let Some(mut poison) = w.poison.take() else { return };
        let guard = poison.predicates[i.guard as usize] & all;
        // The value that is passed on is looked at once it is known from whom.
        let read = match i.op {
            Op::Shuffle(_) => poison.of(i.b, 1) | poison.of(i.c, 1) | poison.of(i.e, 1),
            _ => poison.read(w, i),
        };
        let used = guard | if computes(i.op) { 0 } else { read & m };
        if used != 0 {
            let origin = self.place_of(poison.origin);
            let kind = FindingKind::UninitialisedRegister;
            self.report(kind, pc, w.id, used.trailing_zeros(), |_| {
                format!(
                    "lanes {used:#010x} use what comes of a value that shfl.sync took from a lane which is \
                     no member, the last one{origin}"
                )
            });
            // One finding is enough for what the lanes go on to do with it.
            poison.forget(used);
        }
        if !matches!(i.op, Op::Shuffle(_)) {
            poison.write(i, m, if computes(i.op) { read & !used } else { 0 });
        }
        w.poison = Some(poison);
    }

    /// After a shuffle: values that lanes took from others, of which some may not take part.
    #[cold]
    #[inline(never)]
    pub fn poison_shuffled(&mut self, w: &mut Warp, i: &Instruction, m: u32, sources: &[u32; LANES]) {
        let code = self.environment.code();
        let mut poison = w.poison.take().unwrap_or_else(|| Box::new(Poison::new(code)));
        let passed = poison.of(i.a, 1);
        let outside = lanes(m).filter(|&lane| m >> sources[lane] & 1 == 0);
        let outside = outside.fold(0, |mask, lane| mask | 1 << lane);
        let taken = lanes(m).filter(|&lane| passed >> sources[lane] & 1 != 0);
        let taken = taken.fold(0, |mask, lane| mask | 1 << lane);
        poison.write(i, m, 0);
        let row = &mut poison.rows[i.d as usize];
        *row = *row & !m | outside | taken;
        if outside != 0 {
            poison.origin = w.pc;
            w.registers.set32(i.d, outside, &[!0; LANES]);
        }
        w.poison = Some(poison);
    }
}
