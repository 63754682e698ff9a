//! Which registers of a warp hold values that are not defined.

use crate::exec::values::registers::Registers;
use crate::isa::operands::{Role, visit, visit_predicates};
use crate::isa::{Code, FLAG_NEGATE_SOURCE, Instruction, Op};

/// Which lanes' values are not defined.
#[derive(Debug)]
pub struct Poison {
    rows: Vec<u32>,
    predicates: Vec<u32>,
    /// Operand lists, of which [`visit`] wants its own.
    lists: Vec<u32>,
    /// The instruction that made the last one.
    pub origin: u32,
}

impl Poison {
    /// All values are defined.
    pub fn new(code: &Code) -> Self {
        let (rows, predicates) = (vec![0; code.rows as usize], vec![0; code.predicates as usize]);
        Poison { rows, predicates, lists: code.lists.clone(), origin: 0 }
    }

    /// The lanes of any of these rows.
    pub fn of(&self, row: u32, count: u32) -> u32 {
        self.rows[row as usize..][..count as usize].iter().fold(0, |all, mask| all | mask)
    }

    /// The lanes of a predicate.
    pub fn predicate(&self, index: u32) -> u32 {
        self.predicates[index as usize]
    }

    /// Lanes of a row become defined, or not.
    pub fn set(&mut self, row: u32, m: u32, value: u32) {
        let mask = &mut self.rows[row as usize];
        *mask = *mask & !m | value & m;
    }

    /// From now on everything is defined in these lanes.
    pub fn forget(&mut self, lanes: u32) {
        self.rows.iter_mut().chain(&mut self.predicates).for_each(|mask| *mask &= !lanes);
    }

    /// What an instruction reads: the lanes in which some of it is not defined.
    pub fn read(&mut self, registers: &Registers, i: &Instruction) -> u32 {
        let mut lists = std::mem::take(&mut self.lists);
        let mut all = 0;
        visit_predicates(i, &mut |predicate, role| {
            all |= if role == Role::Read { self.predicates[predicate as usize] } else { 0 };
        });
        if let Op::Select32 | Op::Select64 = i.op {
            let holds = registers.predicate(i.c) ^ if i.has(FLAG_NEGATE_SOURCE) { !0 } else { 0 };
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
    pub fn write(&mut self, i: &Instruction, m: u32, value: u32) {
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
