//! Calls that have not ended.

use crate::exec::values::registers::{LANES, Registers};
use crate::isa::{FunctionCode, RegisterRow};

/// A register as it was.
#[derive(Debug)]
enum Saved {
    Narrow(u32, [u32; LANES]),
    Wide(u32, [u64; LANES]),
}

/// A call of a function by lanes of a warp.
#[derive(Debug)]
pub struct Call {
    /// The function's place among those of the kernel.
    pub function: usize,
    /// Where its part of local memory starts: an offset.
    pub base: u32,
    /// Where it leaves its results, lane by lane: offsets in local memory.
    pub results: Vec<[u32; LANES]>,
    /// What its lanes had on the stack.
    pub stack: [u32; LANES],
    /// The function's registers and predicates before the call, if a call of it may not have ended.
    registers: Vec<Saved>,
    predicates: Vec<(u32, u32)>,
}

impl Call {
    /// A call that is about to begin.
    pub fn new(
        function: usize,
        code: &FunctionCode,
        base: u32,
        results: Vec<[u32; LANES]>,
        r: &Registers,
    ) -> Self {
        let mut call = Call {
            function,
            base,
            results,
            stack: [0; LANES],
            registers: Vec::new(),
            predicates: Vec::new(),
        };
        if code.recurses {
            let save = |&register: &RegisterRow| match register {
                RegisterRow::Narrow(row) => Saved::Narrow(row, *r.row32(row)),
                RegisterRow::Wide(row) => Saved::Wide(row, *r.row64(row)),
            };
            call.registers = code.registers.iter().map(save).collect();
            call.predicates = code.predicates.clone().map(|index| (index, r.predicate(index))).collect();
        }
        call
    }

    /// Gives returning lanes the registers back that the function had before.
    pub fn restore(&self, r: &mut Registers, m: u32) {
        for saved in &self.registers {
            match saved {
                Saved::Narrow(row, values) => r.set32(*row, m, values),
                Saved::Wide(row, values) => r.set64(*row, m, values),
            }
        }
        self.predicates.iter().for_each(|&(index, bits)| r.set_predicate(index, m, bits));
    }
}
