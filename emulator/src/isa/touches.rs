//! Which rows each instruction touches, as a table for quick look-up.

use super::operands::{Role, visit};
use super::{Code, Op, ROWS_RESERVED, WgmmaOp};

/// Marks a row that is written.
const WRITE: u32 = 1 << 31;

/// The rows of every instruction but `wgmma.mma_async`, whose accesses happen later.
#[derive(Debug, Default)]
pub struct Touches {
    starts: Vec<u32>,
    rows: Vec<u32>,
}

impl Touches {
    /// The table of a kernel.
    pub fn new(code: &mut Code) -> Self {
        let mut table = Touches::default();
        let Code { instructions, lists, .. } = code;
        for instruction in instructions {
            table.starts.push(table.rows.len() as u32);
            if instruction.op == Op::Wgmma(WgmmaOp::Multiply) {
                continue;
            }
            visit(instruction, lists, &mut |row, count, role| {
                if *row >= ROWS_RESERVED {
                    let mark = if role == Role::Read { 0 } else { WRITE };
                    (*row..*row + count).for_each(|row| table.rows.push(row | mark));
                }
            });
        }
        table.starts.push(table.rows.len() as u32);
        table
    }

    /// Whether there is a table.
    pub fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    /// The rows of an instruction, and whether it writes them.
    #[inline(always)]
    pub fn of(&self, pc: u32) -> impl Iterator<Item = (usize, bool)> + '_ {
        let (from, to) = (self.starts[pc as usize], self.starts[pc as usize + 1]);
        self.rows[from as usize..to as usize]
            .iter()
            .map(|&row| ((row & !WRITE) as usize, row & WRITE != 0))
    }
}
