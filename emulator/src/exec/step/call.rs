//! Calls of functions, and returns from them.
//!
//! Lanes that make a call together are awaited where it returns to. The function has registers of its own,
//! which a call saves where one of the same function may not have ended, and a part of local memory behind
//! its caller's. Arguments and results are copied between the two parts.

use super::{Next, Runner};
use crate::exec::state::calls::Call;
use crate::exec::state::context::Stop;
use crate::exec::state::warp::{Fragment, NONE, State};
use crate::exec::values::registers::{LANES, Registers, lanes};
use crate::isa::{FUNCTION_BASE, FUNCTION_BYTES, Fill, FunctionCode, Instruction, Op, STACK_BYTES};
use crate::report::FindingKind;
use crate::space::{LOCAL_BASE, Space};

impl Runner<'_, '_> {
    /// `call`.
    pub fn call(&mut self, i: &Instruction, m: u32) -> Result<Next, Stop> {
        let numbers = match u32::try_from(i.immediate) {
            Ok(number) => [u64::from(number); LANES],
            Err(_) => self.numbers(i, m)?,
        };
        let first = numbers[m.trailing_zeros() as usize & 31];
        let same = lanes(m).filter(|&lane| numbers[lane] == first).fold(0u32, |mask, l| mask | 1 << l);
        let rest = self.mask & !same;
        if rest != 0 {
            // The others come later: those that call another function at this call, those that do not behind
            // it.
            let record = self.warp.split(self.pc + 1, self.mask, self.record);
            for (pc, mask) in [(self.pc, m & !same), (self.pc + 1, self.mask & !m)] {
                if mask != 0 {
                    self.warp.fragments.push(Fragment { pc, mask, record, state: State::Ready });
                }
            }
            self.record = record;
        }
        self.begin(i, same, first)?;
        Ok(Next::Stay)
    }

    /// The functions at the addresses of an indirect call.
    fn numbers(&mut self, i: &Instruction, m: u32) -> Result<[u64; LANES], Stop> {
        let addresses = *self.warp.registers.row64(i.a);
        let functions = &self.context.environment.code().functions;
        let number = |address: u64| {
            let number = address.wrapping_sub(FUNCTION_BASE) / FUNCTION_BYTES;
            let exact = address.wrapping_sub(FUNCTION_BASE).is_multiple_of(FUNCTION_BYTES);
            let (arguments, results) = (usize::from(i.count), i.e as usize);
            let fits = |function: &&FunctionCode| {
                u64::from(function.number) == number
                    && (function.parameters.len(), function.results.len()) == (arguments, results)
            };
            functions.iter().find(fits).filter(|_| exact).map(|_| number)
        };
        let mut numbers = [0; LANES];
        for lane in lanes(m) {
            let Some(found) = number(addresses[lane]) else {
                let address = addresses[lane];
                let message = format!("a call of {address:#x}, where no function of this kind is");
                self.report(FindingKind::InvalidOperand, 1 << lane, message);
                return Err(Stop);
            };
            numbers[lane] = found;
        }
        Ok(numbers)
    }

    /// Lanes `m`, all that run here now, begin a call of a function.
    fn begin(&mut self, i: &Instruction, m: u32, number: u64) -> Result<(), Stop> {
        let environment = self.context.environment;
        let code = environment.code();
        let place = code.functions.iter().position(|function| u64::from(function.number) == number);
        let place = place.expect("functions that are called are among those of the kernel");
        let function = &code.functions[place];
        let base = match self.warp.call_of(self.record) {
            Some((_, call)) => {
                let call = self.warp.calls[call as usize].as_ref().expect("a call that has not ended");
                call.base + code.functions[call.function].frame_bytes
            }
            None => environment.kernel.data.frame_bytes,
        };
        let stack = if code.has_stack { STACK_BYTES } else { 0 };
        let bytes = self.warp.local.bytes() as u32 - stack;
        if base + function.frame_bytes > bytes {
            let message = format!(
                "calls need more than the {bytes} bytes of local memory: {} nests too deep",
                function.name
            );
            self.report(FindingKind::OutOfBounds { space: Space::Local }, m, message);
            return Err(Stop);
        }
        let offsets = |row: u32| self.warp.registers.row32(row).map(|at| at.wrapping_sub(LOCAL_BASE));
        let rows = &code.lists[i.d as usize..][..usize::from(i.count) + i.e as usize];
        let (arguments, results) = rows.split_at(usize::from(i.count));
        let arguments: Vec<_> = arguments.iter().map(|&row| offsets(row)).collect();
        let results = results.iter().map(|&row| offsets(row)).collect();
        let mut call = Call::new(place, function, base, results, &self.warp.registers);
        call.stack = self.warp.stack;
        for lane in lanes(m) {
            self.warp.local.forget(lane, base as usize, function.frame_bytes as usize);
            for (from, parameter) in arguments.iter().zip(&function.parameters) {
                let (from, to) = (from[lane] as usize, (base + parameter.offset) as usize);
                self.warp.local.copy(lane, from, to, parameter.bytes as usize);
            }
        }
        for &(row, fill) in &code.fills {
            let Fill::Frame { function, offset, wide } = fill else { continue };
            let address = (LOCAL_BASE + base).wrapping_add(offset);
            match wide {
                _ if u64::from(function) != number => {}
                true => self.warp.registers.set64(row, m, &[u64::from(address); LANES]),
                false => self.warp.registers.set32(row, m, &[address; LANES]),
            }
        }
        let record = self.warp.begin_call(call, self.pc + 1, m, self.record);
        (self.mask, self.pc) = (m, function.entry);
        self.stand_in(record);
        Ok(())
    }

    /// `ret` in a function.
    pub fn return_from_call(&mut self, m: u32) -> Next {
        let Some((record, number)) = self.warp.call_of(self.record) else {
            // Nothing falls into a function, and what calls it has a record.
            unreachable!("a return outside of a call");
        };
        let call = self.warp.calls[number as usize].take().expect("a call that has not ended");
        let function = &self.context.environment.code().functions[call.function];
        for lane in lanes(m) {
            for (to, result) in call.results.iter().zip(&function.results) {
                let (from, to) = ((call.base + result.offset) as usize, to[lane] as usize);
                self.warp.local.copy(lane, from, to, result.bytes as usize);
            }
        }
        call.restore(&mut self.warp.registers, m);
        lanes(m).for_each(|lane| self.warp.stack[lane] = call.stack[lane]);
        self.warp.calls[number as usize] = Some(call);
        self.warp.leave(m, self.record, record);
        let rest = self.mask & !m;
        let resume = self.warp.resume(record);
        match self.warp.arrive(record, m) {
            Some((all, parent)) => {
                (self.mask, self.pc) = (all, resume);
                self.stand_in(parent);
                Next::Stay
            }
            None if rest != 0 => {
                (self.mask, self.pc) = (rest, self.pc + 1);
                Next::Stay
            }
            None => Next::Leave(super::Event::Gone),
        }
    }

    /// `alloca`, `stacksave`, `stackrestore`: behind the part of local memory that the lanes' calls have.
    pub fn stack(&mut self, i: &Instruction, m: u32) -> Result<(), Stop> {
        let wide = i.count == 2;
        let value = |r: &Registers, row: u32, lane: usize| match wide {
            true => r.row64(row)[lane],
            false => u64::from(r.row32(row)[lane]),
        };
        let mut tops = self.warp.stack;
        let mut results = [0u64; LANES];
        for lane in lanes(m) {
            let operand = value(&self.warp.registers, i.a, lane);
            let top = u64::from(tops[lane]);
            match i.op {
                Op::StackAllocate => {
                    let start = top.next_multiple_of(i.immediate as u64);
                    let end = start.saturating_add(operand);
                    if end > u64::from(STACK_BYTES) {
                        let message = format!(
                            "alloca of {operand} bytes on a stack of {STACK_BYTES}, {top} of them used"
                        );
                        self.report(
                            FindingKind::OutOfBounds { space: Space::Local },
                            1 << lane,
                            message,
                        );
                        return Err(Stop);
                    }
                    let first = self.warp.local.bytes() - STACK_BYTES as usize;
                    self.warp.local.forget(lane, first + start as usize, operand as usize);
                    tops[lane] = end as u32;
                    results[lane] = u64::from(LOCAL_BASE) + (first as u64) + start;
                }
                Op::StackSave => results[lane] = top,
                _ => tops[lane] = operand.min(u64::from(STACK_BYTES)) as u32,
            }
        }
        self.warp.stack = tops;
        match (i.op, wide) {
            (Op::StackRestore, _) => {}
            (_, true) => self.warp.registers.set64(i.d, m, &results),
            (_, false) => self.warp.registers.set32(i.d, m, &results.map(|value| value as u32)),
        }
        Ok(())
    }

    fn stand_in(&mut self, record: u32) {
        self.record = record;
        self.meet = self.warp.meeting_point(record);
        debug_assert!(
            record == NONE || self.pc != self.meet || self.meet != crate::exec::state::warp::RETURNED
        );
    }
}
