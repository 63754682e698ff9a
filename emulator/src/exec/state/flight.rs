//! Registers that unfinished multiplications use.
//!
//! From `wgmma.mma_async` to the wait for its group, accumulators belong to the tensor core, and
//! registers of A may be read only. What was written before must be ordered by `wgmma.fence`; another
//! multiplication of the same shape may follow on the same accumulators at once.

use crate::isa::Code;

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

/// What may be wrong with the registers of a multiplication.
#[derive(Clone, Copy, Debug)]
pub struct Hazards {
    /// Another shape accumulates into some of them since the last fence.
    pub changes_shape: bool,
    /// They were used since the last fence, or there was none.
    pub unfenced: bool,
    /// An unfinished multiplication accumulates into what is read as A, or the reverse.
    pub overlaps: bool,
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
    /// Notes the registers of a multiplication with so many columns, and its group; what is wrong with them.
    pub fn issue(
        &mut self,
        accumulators: &[u32],
        operands: &[u32],
        columns: u32,
        group: u32,
    ) -> Hazards {
        let unfenced = self.unfenced(accumulators, operands);
        let changes_shape = self.changes_shape(accumulators, columns);
        let done = self.done;
        let overlaps = operands.iter().any(|&row| self.rows[row as usize].accumulator > done)
            || accumulators.iter().any(|&row| self.rows[row as usize].operand > done);
        for &row in accumulators {
            self.rows[row as usize].accumulator = group;
        }
        for &row in operands {
            self.rows[row as usize].operand = group;
        }
        self.issued = group;
        Hazards { changes_shape, unfenced, overlaps }
    }

    /// Groups up to this one are complete.
    pub fn complete(&mut self, group: u32) {
        self.done = self.done.max(group);
    }

    /// Whether a group has been issued that is not complete.
    pub fn is_busy(&self) -> bool {
        self.issued > self.done
    }
}
