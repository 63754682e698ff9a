//! Compaction of the register file.
//!
//! LLVM writes PTX with a register per value: thousands, of which a few hundred are alive at a time. At
//! 128 bytes a row, a warp's registers would fill a level-2 cache. Values that are never alive together
//! share rows: liveness over the control-flow graph, one interval of the text per register, and a
//! linear
//! scan over the intervals.
//!
//! That is right for lanes that have diverged too. Each lane takes one path through the code and
//! writes its own lane of a row only, so it sees a register file of its own. That holds among registers
//! of one size: lane 16 of a 64-bit register stands where lane 0 of its second row would, so rows are
//! never passed on to a register of another size. A guarded write leaves the old value to some lanes and
//! counts as a read. Registers that are read before any write are alive from the start and keep their
//! initial poison.

use super::control_flow::Graph;
use super::operands::{Role, visit};
use super::{Code, Op, PREDICATE_TRUE, ROWS_RESERVED, WgmmaOp};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};

/// A set of registers.
#[derive(Clone, PartialEq, Eq)]
pub struct Set(Vec<u64>);

impl Set {
    /// The empty one, for members below a size.
    pub fn new(size: usize) -> Self {
        Set(vec![0; size.div_ceil(64)])
    }

    /// That of all members.
    pub fn full(size: usize) -> Self {
        Set(vec![!0; size.div_ceil(64)])
    }

    /// Keeps what is in another one too; whether that changed anything.
    pub fn intersect(&mut self, other: &Set) -> bool {
        let mut changed = false;
        for (mine, &theirs) in self.0.iter_mut().zip(&other.0) {
            changed |= *mine & !theirs != 0;
            *mine &= theirs;
        }
        changed
    }

    /// Adds what is in another one.
    fn unite(&mut self, other: &Set) {
        self.0.iter_mut().zip(&other.0).for_each(|(mine, &theirs)| *mine |= theirs);
    }

    /// Adds a member.
    pub fn insert(&mut self, index: usize) {
        self.0[index / 64] |= 1 << (index % 64);
    }

    /// Whether it has a member.
    pub fn contains(&self, index: usize) -> bool {
        self.0[index / 64] >> (index % 64) & 1 != 0
    }

    /// The members in order.
    pub fn members(&self) -> impl Iterator<Item = usize> {
        self.0.iter().enumerate().flat_map(|(word, &bits)| {
            let mut left = bits;
            std::iter::from_fn(move || {
                let lowest = left.trailing_zeros() as usize;
                left &= left.checked_sub(1)?;
                Some(word * 64 + lowest)
            })
        })
    }
}

/// A register and the stretch of text in which it is alive.
#[derive(Clone, Copy, Debug)]
struct Unit {
    /// First row before compaction.
    row: u32,
    /// Rows.
    rows: u32,
    start: usize,
    end: usize,
}

/// Uses of units by one instruction, in order.
type Uses = Vec<(usize, Role)>;

const NO_UNIT: usize = usize::MAX;

/// Renames rows so that the register file becomes small.
pub fn compact(code: &mut Code, graph: &Graph) {
    let (mut units, mut uses, unit_of) = collect(code);
    extend_to_waits(code, graph, &mut uses, units.len());
    let live_in = liveness(code, graph, &uses, units.len());
    intervals(graph, &uses, &live_in, &mut units);
    let mut rename: Vec<u32> = (0..code.rows).collect();
    // Rows with a fixed content come first: constants, symbols, special registers.
    let mut next = ROWS_RESERVED;
    let mut fills: Vec<_> = code.fills.clone();
    fills.sort_by_key(|(_, fill)| Reverse(fill.rows()));
    for (row, fill) in &fills {
        rename[*row as usize] = next;
        next += fill.rows();
    }
    code.rows = scan(&units, next.next_multiple_of(4), &mut rename);
    for (row, _) in &mut code.fills {
        *row = rename[*row as usize];
    }
    for register in code.watch.registers.iter_mut().filter(|register| !register.is_predicate) {
        register.index = rename[register.index as usize];
    }
    debug_assert!(unit_of.len() == rename.len());
    let Code { instructions, lists, .. } = code;
    for instruction in instructions {
        visit(instruction, lists, &mut |row, _, _| *row = rename[*row as usize]);
    }
}

/// The registers that instructions use, and how each instruction uses them.
fn collect(code: &mut Code) -> (Vec<Unit>, Vec<Uses>, Vec<usize>) {
    let fixed: HashSet<u32> = code.fills.iter().map(|&(row, _)| row).collect();
    let mut units: Vec<Unit> = Vec::new();
    let mut unit_of = vec![NO_UNIT; code.rows as usize];
    let mut all = Vec::with_capacity(code.instructions.len());
    let Code { instructions, lists, .. } = code;
    for instruction in instructions {
        let guarded = instruction.guard != PREDICATE_TRUE;
        let mut uses = Uses::new();
        visit(instruction, lists, &mut |row, rows, role| {
            if *row < ROWS_RESERVED || fixed.contains(row) {
                return;
            }
            let place = &mut unit_of[*row as usize];
            if *place == NO_UNIT {
                *place = units.len();
                units.push(Unit { row: *row, rows, start: usize::MAX, end: 0 });
            }
            let unit = &mut units[*place];
            unit.rows = unit.rows.max(rows);
            if role == Role::Update || role == Role::Write && guarded {
                uses.push((*place, Role::Read));
            }
            let role = if role == Role::Update { Role::Write } else { role };
            uses.push((*place, role));
        });
        all.push(uses);
    }
    (units, all, unit_of)
}

/// Multiplications by a warpgroup use their registers until they are waited for: every wait reads those
/// of all that may be in flight there.
fn extend_to_waits(code: &Code, graph: &Graph, uses: &mut [Uses], count: usize) {
    let multiplies = |index: usize| code.instructions[index].op == Op::Wgmma(WgmmaOp::Multiply);
    if !(0..code.instructions.len()).any(multiplies) {
        return;
    }
    let waits = |index: usize| code.instructions[index].op == Op::Wgmma(WgmmaOp::Wait);
    let pass = |block: usize, flight: &mut Set, uses: &mut [Uses], note: bool| {
        for index in graph.range(block) {
            if multiplies(index) {
                uses[index].iter().for_each(|&(unit, _)| flight.insert(unit));
            } else if waits(index) {
                if note {
                    uses[index].extend(flight.members().map(|unit| (unit, Role::Read)));
                }
                if code.instructions[index].immediate == 0 {
                    flight.0.fill(0);
                }
            }
        }
    };
    let blocks = graph.blocks();
    let mut into = vec![Set::new(count); blocks];
    let mut changed = true;
    while changed {
        changed = false;
        for block in 0..blocks {
            let mut flight = into[block].clone();
            pass(block, &mut flight, uses, false);
            for &successor in graph.successors(block).iter().filter(|&&s| s < blocks) {
                for (word, bits) in into[successor].0.iter_mut().zip(&flight.0) {
                    changed |= *bits & !*word != 0;
                    *word |= bits;
                }
            }
        }
    }
    for (block, flight) in into.iter_mut().enumerate() {
        pass(block, flight, uses, true);
    }
}

/// The registers alive at the start of each block.
fn liveness(code: &Code, graph: &Graph, uses: &[Uses], count: usize) -> Vec<Set> {
    let blocks = graph.blocks();
    let (mut read, mut written) = (vec![Set::new(count); blocks], vec![Set::new(count); blocks]);
    for block in 0..blocks {
        for index in graph.range(block) {
            // Reads come before writes, whatever the order of the operands.
            for &(unit, _) in uses[index].iter().filter(|(_, role)| *role == Role::Read) {
                if !written[block].contains(unit) {
                    read[block].insert(unit);
                }
            }
            for &(unit, _) in uses[index].iter().filter(|(_, role)| *role == Role::Write) {
                written[block].insert(unit);
            }
        }
    }
    debug_assert_eq!(uses.len(), code.instructions.len());
    let (mut live_in, mut out) = (read, Set::new(count));
    let mut changed = true;
    while changed {
        changed = false;
        for block in (0..blocks).rev() {
            out.0.fill(0);
            for &successor in graph.successors(block).iter().filter(|&&successor| successor < blocks) {
                out.unite(&live_in[successor]);
            }
            let words = live_in[block].0.iter_mut().zip(&out.0).zip(&written[block].0);
            for ((live, out), written) in words {
                let bits = *live | out & !written;
                changed |= bits != *live;
                *live = bits;
            }
        }
    }
    live_in
}

fn intervals(graph: &Graph, uses: &[Uses], live_in: &[Set], units: &mut [Unit]) {
    let mut extend = |unit: usize, at: usize| {
        let unit = &mut units[unit];
        unit.start = unit.start.min(at);
        unit.end = unit.end.max(at);
    };
    for block in 0..graph.blocks() {
        let range = graph.range(block);
        live_in[block].members().for_each(|unit| extend(unit, range.start));
        for &successor in graph.successors(block).iter().filter(|&&s| s < graph.blocks()) {
            live_in[successor].members().for_each(|unit| extend(unit, range.end - 1));
        }
        for index in range {
            uses[index].iter().for_each(|&(unit, _)| extend(unit, index));
        }
    }
}

/// Gives each unit the lowest rows that are free throughout its interval; the number of rows in the
/// end.
fn scan(units: &[Unit], first: u32, rename: &mut [u32]) -> u32 {
    let mut order: Vec<&Unit> = units.iter().collect();
    order.sort_by_key(|unit| unit.start);
    // Free rows by size: those that were in use, and new ones. Fours and twos are aligned; new ones are
    // split when smaller ones run out.
    let mut free: [BinaryHeap<Reverse<u32>>; 3] = Default::default();
    let mut new: [BinaryHeap<Reverse<u32>>; 3] = Default::default();
    let mut active: BinaryHeap<Reverse<(usize, u32, usize)>> = BinaryHeap::new();
    let mut end = first;
    for unit in order {
        // A row whose last use is at the same instruction is not reused there: some operations write
        // one result before they have read all their operands.
        while let Some(&Reverse((last, row, size))) = active.peek() {
            if last >= unit.start {
                break;
            }
            active.pop();
            free[size].push(Reverse(row));
        }
        let size = unit.rows.trailing_zeros() as usize;
        let row = match free[size].pop() {
            Some(Reverse(row)) => row,
            None => take(&mut new, size, &mut end),
        };
        rename[unit.row as usize] = row;
        active.push(Reverse((unit.end, row, size)));
    }
    end
}

/// New rows.
fn take(new: &mut [BinaryHeap<Reverse<u32>>; 3], size: usize, end: &mut u32) -> u32 {
    if let Some(Reverse(row)) = new[size].pop() {
        return row;
    }
    if size == 2 {
        let row = *end;
        *end += 4;
        return row;
    }
    let row = take(new, size + 1, end);
    new[size].push(Reverse(row + (1 << size)));
    row
}
