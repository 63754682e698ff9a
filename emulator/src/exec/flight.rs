//! Registers that unfinished multiplications use.
//!
//! From `wgmma.mma_async` to the wait for its group, accumulators belong to the tensor core, and
//! registers of A may be read only. What was written before must be ordered by `wgmma.fence`; another
//! multiplication of the same shape may follow on the same accumulators at once.

use super::context::{Context, Flow, Stop};
use super::warp::Warp;
use crate::isa::{Code, FLAG_OPTIONAL, Instruction, WGMMA_K, WgmmaShape};
use crate::report::FindingKind;

/// What is known about a row.
#[derive(Clone, Copy, Debug, Default)]
struct Use {
    /// The last group that accumulates into it.
    accumulator: u32,
    /// The last group that reads it as A.
    operand: u32,
    /// Fences executed before it was last written; 0: never written.
    written: u32,
    /// Fences executed before it was last read or written.
    touched: u32,
}

/// The last multiplication that accumulates into a row: fences executed before it, and its columns.
#[derive(Clone, Copy, Debug, Default)]
struct Issue {
    fences: u32,
    columns: u32,
}

/// The rows of a warp.
#[derive(Clone, Debug)]
pub struct Flight {
    rows: Vec<Use>,
    issues: Vec<Issue>,
    /// The last group known to be complete.
    done: u32,
    /// The last group issued.
    issued: u32,
    /// Fences executed, from 1.
    fences: u32,
}

impl Flight {
    /// Nothing is in flight.
    pub fn new(code: &Code) -> Self {
        let rows = code.rows as usize;
        let (rows, issues) = (vec![Use::default(); rows], vec![Issue::default(); rows]);
        Flight { rows, issues, done: 0, issued: 0, fences: 1 }
    }

    /// Forgets everything, for the next block.
    pub fn clear(&mut self) {
        self.rows.fill(Use::default());
        self.issues.fill(Issue::default());
        (self.done, self.issued, self.fences) = (0, 0, 1);
    }

    /// `wgmma.fence`.
    pub fn fence(&mut self) {
        self.fences += 1;
    }

    /// Looks at what an instruction touches; a row that it must not, and whether that accumulates.
    #[inline(always)]
    pub fn touch(&mut self, code: &Code, pc: u32) -> Option<bool> {
        let mut bad = None;
        for (row, write) in code.touches.of(pc) {
            let known = &mut self.rows[row];
            if known.accumulator > self.done {
                bad = Some(true);
            } else if write && known.operand > self.done {
                bad = Some(false);
            }
            known.touched = self.fences;
            if write {
                known.written = self.fences;
            }
        }
        bad
    }

    /// Whether accumulators were touched, or registers of A written, since the last fence.
    fn unfenced(&self, accumulators: &[u32], operands: &[u32]) -> bool {
        let row = |&row: &u32| self.rows[row as usize];
        self.fences == 1
            || accumulators.iter().map(row).any(|known| known.touched == self.fences)
            || operands.iter().map(row).any(|known| known.written == self.fences)
    }
}

impl Flight {
    /// Notes that a multiplication with so many columns accumulates; whether one with another shape does
    /// since the last fence.
    fn changes_shape(&mut self, accumulators: &[u32], columns: u32) -> bool {
        let now = Issue { fences: self.fences, columns };
        let mut changes = false;
        for &row in accumulators {
            let last = std::mem::replace(&mut self.issues[row as usize], now);
            changes |= last.fences == now.fences && last.columns != columns;
        }
        changes
    }
}

impl Context<'_> {
    /// Looks at what an instruction touches while multiplications may be in flight.
    #[inline(always)]
    pub fn flight_touch(&mut self, w: &mut Warp, pc: u32, mask: u32) {
        let Some(flight) = &mut w.flight else { return };
        if let Some(accumulates) = flight.touch(self.environment.code(), pc) {
            let lane = mask.trailing_zeros() & 31;
            self.report(FindingKind::RegisterInFlight, pc, w.id, lane, |_| {
                let what = if accumulates { "accumulates into" } else { "reads A from" };
                format!("a wgmma that {what} a register of this instruction has not been waited for")
            });
        }
    }

    /// Notes the registers of a multiplication.
    pub fn flight_issue(&mut self, w: &mut Warp, i: &Instruction, group: u32) {
        let Some(flight) = &mut w.flight else { return };
        let lists = &self.environment.kernel.data.code.lists;
        let columns = WgmmaShape::decode(i.e).columns;
        let accumulators = &lists[i.d as usize..][..columns as usize / 2];
        let from_registers = i.has(FLAG_OPTIONAL);
        let operands = if from_registers { &lists[i.a as usize..][..WGMMA_K / 4] } else { &[][..] };
        let unfenced = flight.unfenced(accumulators, operands);
        let changes_shape = flight.changes_shape(accumulators, columns);
        let done = flight.done;
        let overlaps = operands.iter().any(|&row| flight.rows[row as usize].accumulator > done)
            || accumulators.iter().any(|&row| flight.rows[row as usize].operand > done);
        for &row in accumulators {
            flight.rows[row as usize].accumulator = group;
        }
        for &row in operands {
            flight.rows[row as usize].operand = group;
        }
        flight.issued = group;
        if changes_shape {
            self.report(FindingKind::MissingWgmmaFence, w.pc, w.id, 0, |_| {
                "a wgmma of another shape accumulates into registers of this one, with no wgmma.fence between"
                    .to_string()
            });
        } else if unfenced {
            self.report(FindingKind::MissingWgmmaFence, w.pc, w.id, 0, |_| {
                "registers of this wgmma were used after the last wgmma.fence, or there was none"
                    .to_string()
            });
        }
        if overlaps {
            self.report(FindingKind::RegisterInFlight, w.pc, w.id, 0, |_| {
                "a register that an unfinished wgmma accumulates into is used as A, or the reverse"
                    .to_string()
            });
        }
    }

    /// Groups up to this one are complete.
    pub fn flight_done(&mut self, w: &mut Warp, group: u32) {
        if let Some(flight) = &mut w.flight {
            flight.done = flight.done.max(group);
        }
    }

    /// A warp ends, perhaps before its multiplications.
    pub fn flight_exit(&mut self, w: &mut Warp) -> Flow {
        let Some(flight) = &w.flight else { return Ok(()) };
        if flight.issued > flight.done {
            self.report(FindingKind::RegisterInFlight, w.pc, w.id, 0, |_| {
                "the warp ends before a wgmma that has not been waited for".to_string()
            });
            return Err(Stop);
        }
        Ok(())
    }
}
