//! Registers that may be read before they are written.
//!
//! A register is assigned where every way from the entry passes an unguarded write. Reads of others may still
//! be good: a write and a read under the same guard, or behind the same condition. So only registers with
//! such a read are watched while the kernel runs, lane by lane, at the instructions that touch them. In most
//! kernels there are none.

use super::allocate::Set;
use super::control_flow::Graph;
use super::operands::{Role, visit, visit_predicates};
use super::{Code, MatrixOp, Op, PREDICATE_TRUE, PREDICATES_RESERVED, ROWS_RESERVED};
use std::collections::HashSet;

/// How an instruction touches a watched register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touch {
    /// The lanes that execute it read it.
    Read,
    /// All lanes that come here read it: the guard.
    Guard,
    /// Those read it for which the predicate of a selection holds.
    Chosen,
    /// Those read it for which that does not hold.
    NotChosen,
    /// Those read it whose addresses the matrix load or store uses.
    Address,
    /// It is read if the multiplication accumulates.
    Accumulator,
    /// The lanes that execute it write it.
    Write,
}

/// The watched registers of a kernel, and who touches them.
#[derive(Debug, Default)]
pub struct Watch {
    starts: Vec<u32>,
    touches: Vec<(u32, Touch)>,
    /// The registers.
    pub registers: Vec<Register>,
}

/// A watched register.
#[derive(Clone, Debug)]
pub struct Register {
    /// Its first row, or its number among the predicates. By the names of the text until rows are renamed.
    pub index: u32,
    /// Rows that it takes; 0 of a predicate.
    pub rows: u32,
    /// Whether it is a predicate.
    pub is_predicate: bool,
    /// Its name.
    pub name: String,
}

/// What the instructions touch: registers by number, predicates behind the rows.
struct Uses {
    starts: Vec<u32>,
    all: Vec<(u32, Touch)>,
}

impl Uses {
    fn new(code: &mut Code) -> Self {
        let mut fixed = Set::new(code.rows as usize);
        code.fills.iter().for_each(|&(row, _)| fixed.insert(row as usize));
        let mut uses = Uses { starts: Vec::with_capacity(code.instructions.len() + 1), all: Vec::new() };
        let Code { instructions, lists, rows, .. } = code;
        for instruction in instructions {
            uses.starts.push(uses.all.len() as u32);
            let (op, a, b) = (instruction.op, instruction.a, instruction.b);
            let add = |index: u32, touch: Touch, uses: &mut Uses| uses.all.push((index, touch));
            if instruction.guard >= PREDICATES_RESERVED {
                add(*rows + instruction.guard, Touch::Guard, &mut uses);
            }
            visit_predicates(instruction, &mut |predicate, role| {
                if predicate >= PREDICATES_RESERVED {
                    let touch = if role == Role::Read { Touch::Read } else { Touch::Write };
                    add(*rows + predicate, touch, &mut uses);
                }
            });
            visit(instruction, lists, &mut |&mut row, _, role| {
                if row < ROWS_RESERVED || fixed.contains(row as usize) {
                    return;
                }
                match role {
                    Role::Read => add(row, read(op, row, a, b), &mut uses),
                    Role::Write => add(row, Touch::Write, &mut uses),
                    Role::Update => {
                        add(row, Touch::Accumulator, &mut uses);
                        add(row, Touch::Write, &mut uses);
                    }
                }
            });
        }
        uses.starts.push(uses.all.len() as u32);
        uses
    }

    fn of(&self, index: usize) -> &[(u32, Touch)] {
        &self.all[self.starts[index] as usize..self.starts[index + 1] as usize]
    }
}

/// Which lanes' values an instruction reads from a row that is its operand `a` or `b`, or another one.
fn read(op: Op, row: u32, a: u32, b: u32) -> Touch {
    match op {
        Op::Select32 | Op::Select64 if a == b => Touch::Read,
        Op::Select32 | Op::Select64 if row == a => Touch::Chosen,
        Op::Select32 | Op::Select64 if row == b => Touch::NotChosen,
        Op::Matrix(MatrixOp::LoadMatrix | MatrixOp::StoreMatrix) if row == a => Touch::Address,
        _ => Touch::Read,
    }
}

/// Notes what an instruction certainly assigns.
fn assign(code: &Code, uses: &Uses, index: usize, assigned: &mut Set) {
    if code.instructions[index].guard == PREDICATE_TRUE {
        let written = uses.of(index).iter().filter(|(_, touch)| *touch == Touch::Write);
        written.for_each(|&(register, _)| assigned.insert(register as usize));
    }
}

/// What is assigned at the start of each block, on every way there.
fn assigned(code: &Code, graph: &Graph, uses: &Uses, count: usize) -> Vec<Set> {
    let blocks = graph.blocks();
    let mut into = vec![Set::full(count); blocks];
    into[0] = Set::new(count);
    let mut waiting = vec![false; blocks];
    let mut work = vec![0];
    while let Some(block) = work.pop() {
        waiting[block] = false;
        let mut out = into[block].clone();
        graph.range(block).for_each(|index| assign(code, uses, index, &mut out));
        for &successor in graph.successors(block).iter().filter(|&&s| s < blocks) {
            if into[successor].intersect(&out) && !std::mem::replace(&mut waiting[successor], true) {
                work.push(successor);
            }
        }
    }
    // A block that nothing leads to keeps the full set: it does not run.
    into
}

impl Watch {
    /// The registers that may be read too early. Before rows are renamed.
    pub fn new(code: &mut Code, graph: &Graph) -> Self {
        let uses = Uses::new(code);
        let count = (code.rows + code.predicates) as usize;
        let into = assigned(code, graph, &uses, count);
        let mut early = Set::new(count);
        let mut bad = HashSet::new();
        for (block, mut assigned) in into.into_iter().enumerate() {
            for index in graph.range(block) {
                for &(register, touch) in uses.of(index) {
                    if touch != Touch::Write && !assigned.contains(register as usize) {
                        early.insert(register as usize);
                        bad.insert((index, register));
                    }
                }
                assign(code, &uses, index, &mut assigned);
            }
        }
        let mut watch = Watch::default();
        if bad.is_empty() {
            return watch;
        }
        let mut place = vec![u32::MAX; count];
        for register in early.members() {
            place[register] = watch.registers.len() as u32;
            let is_predicate = register >= code.rows as usize;
            let index = if is_predicate { register as u32 - code.rows } else { register as u32 };
            watch.registers.push(Register { index, rows: 0, is_predicate, name: String::new() });
        }
        for index in 0..code.instructions.len() {
            watch.starts.push(watch.touches.len() as u32);
            let touched = uses.of(index).iter().filter(|(register, touch)| {
                early.contains(*register as usize)
                    && (*touch == Touch::Write || bad.contains(&(index, *register)))
            });
            let touched = touched.map(|&(register, touch)| (place[register as usize], touch));
            watch.touches.extend(touched);
        }
        watch.starts.push(watch.touches.len() as u32);
        watch.measure(code, &place);
        watch
    }

    /// Finds how many rows each register takes, by its place among the watched ones.
    fn measure(&mut self, code: &mut Code, place: &[u32]) {
        let Code { instructions, lists, .. } = code;
        for instruction in instructions {
            visit(instruction, lists, &mut |&mut row, count, _| {
                if let Some(register) = self.registers.get_mut(place[row as usize] as usize) {
                    register.rows = register.rows.max(count);
                }
            });
        }
    }

    /// Whether there is nothing to watch.
    pub fn is_empty(&self) -> bool {
        self.registers.is_empty()
    }

    /// The watched registers that an instruction touches; reads before writes.
    #[inline(always)]
    pub fn of(&self, pc: u32) -> &[(u32, Touch)] {
        let (from, to) = (self.starts[pc as usize], self.starts[pc as usize + 1]);
        &self.touches[from as usize..to as usize]
    }
}
