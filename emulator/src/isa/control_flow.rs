//! Where the paths of a branch meet again: immediate post-dominators.
//!
//! Blocks of straight code form a graph with one added exit. The post-dominator tree comes from the
//! iterative algorithm of Cooper, Harvey and Kennedy on the reversed graph.

use super::{Code, Instruction, NO_RECONVERGENCE, Op, PREDICATE_TRUE};

const UNKNOWN: usize = usize::MAX;

/// Blocks of straight code and the ways between them.
pub struct Graph {
    /// First instruction of each block.
    starts: Vec<usize>,
    /// Block of each instruction.
    block_of: Vec<usize>,
    successors: Vec<Vec<usize>>,
}

fn ends_block(instruction: &Instruction) -> bool {
    matches!(instruction.op, Op::Branch | Op::BranchIndexed | Op::Exit | Op::Return)
}

fn targets<'c>(code: &'c Code, instruction: &Instruction) -> &'c [u32] {
    let first = instruction.d as usize;
    &code.lists[first..first + instruction.e as usize]
}

impl Graph {
    /// The graph of a kernel.
    pub fn new(code: &Code) -> Self {
        let instructions = &code.instructions;
        let mut leads = vec![false; instructions.len() + 1];
        leads[0] = true;
        for (index, instruction) in instructions.iter().enumerate() {
            match instruction.op {
                Op::Branch => leads[instruction.immediate as usize] = true,
                Op::BranchIndexed => {
                    targets(code, instruction).iter().for_each(|&target| leads[target as usize] = true);
                }
                _ => {}
            }
            leads[index + 1] |= ends_block(instruction);
        }
        let starts: Vec<usize> = (0..instructions.len()).filter(|&index| leads[index]).collect();
        let mut block_of = vec![0; instructions.len()];
        for (block, &start) in starts.iter().enumerate() {
            let end = starts.get(block + 1).copied().unwrap_or(instructions.len());
            block_of[start..end].fill(block);
        }
        let mut graph = Graph { starts, block_of, successors: Vec::new() };
        graph.successors =
            (0..graph.starts.len()).map(|block| graph.successors_of(code, block)).collect();
        graph.successors.push(Vec::new());
        graph
    }

    /// Number of blocks. The block of this number is the added exit.
    pub fn blocks(&self) -> usize {
        self.starts.len()
    }

    /// The instructions of a block.
    pub fn range(&self, block: usize) -> std::ops::Range<usize> {
        self.starts[block]..self.last_of(block) + 1
    }

    /// Where a block can go.
    pub fn successors(&self, block: usize) -> &[usize] {
        &self.successors[block]
    }

    fn exit(&self) -> usize {
        self.starts.len()
    }

    fn last_of(&self, block: usize) -> usize {
        self.starts.get(block + 1).copied().unwrap_or(self.block_of.len()) - 1
    }

    fn successors_of(&self, code: &Code, block: usize) -> Vec<usize> {
        let last = &code.instructions[self.last_of(block)];
        let mut successors = match last.op {
            Op::Branch => vec![self.block_of[last.immediate as usize]],
            Op::BranchIndexed => {
                targets(code, last).iter().map(|&target| self.block_of[target as usize]).collect()
            }
            Op::Exit | Op::Return => vec![self.exit()],
            _ => vec![block + 1],
        };
        // A guarded one may fall through. The last instruction of all is an unguarded exit.
        if last.guard != PREDICATE_TRUE && ends_block(last) {
            successors.push(block + 1);
        }
        successors
    }

    /// Blocks from which the exit can be reached, each after its successors as far as possible.
    fn reverse_postorder_to_exit(&self, predecessors: &[Vec<usize>]) -> Vec<usize> {
        let mut seen = vec![false; self.successors.len()];
        let mut order = Vec::new();
        let mut stack = vec![(self.exit(), 0)];
        seen[self.exit()] = true;
        while let Some((block, next)) = stack.last_mut() {
            match predecessors[*block].get(*next) {
                Some(&predecessor) => {
                    *next += 1;
                    if !seen[predecessor] {
                        seen[predecessor] = true;
                        stack.push((predecessor, 0));
                    }
                }
                None => {
                    order.push(*block);
                    stack.pop();
                }
            }
        }
        order.reverse();
        order
    }

    fn post_dominators(&self) -> Vec<usize> {
        let mut predecessors = vec![Vec::new(); self.successors.len()];
        for (block, successors) in self.successors.iter().enumerate() {
            successors.iter().for_each(|&successor| predecessors[successor].push(block));
        }
        let order = self.reverse_postorder_to_exit(&predecessors);
        let mut number = vec![UNKNOWN; self.successors.len()];
        order.iter().enumerate().for_each(|(position, &block)| number[block] = position);
        let mut parent = vec![UNKNOWN; self.successors.len()];
        parent[self.exit()] = self.exit();
        let mut changed = true;
        while changed {
            changed = false;
            for &block in &order[1..] {
                let known = self.successors[block].iter().copied().filter(|&s| parent[s] != UNKNOWN);
                let meet = known.reduce(|a, b| common(&parent, &number, a, b)).unwrap_or(UNKNOWN);
                changed |= parent[block] != meet;
                parent[block] = meet;
            }
        }
        parent
    }
}

/// The nearest common ancestor in the tree so far.
fn common(parent: &[usize], number: &[usize], mut a: usize, mut b: usize) -> usize {
    while a != b {
        while number[a] > number[b] {
            a = parent[a];
        }
        while number[b] > number[a] {
            b = parent[b];
        }
    }
    a
}

/// Writes the reconvergence point of every branch that can split a warp.
pub fn reconverge(code: &mut Code, graph: &Graph) {
    let parent = graph.post_dominators();
    for index in 0..code.instructions.len() {
        let instruction = &mut code.instructions[index];
        let meet = parent[graph.block_of[index]];
        // An endless loop never reaches the exit and has no post-dominator.
        let point = match graph.starts.get(meet) {
            Some(&start) => start as u32,
            None => NO_RECONVERGENCE,
        };
        match instruction.op {
            Op::Branch => instruction.e = point,
            Op::BranchIndexed => instruction.immediate = point as i32,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &[(Op, bool, i32)]) -> Code {
        let instructions = text
            .iter()
            .map(|&(op, guarded, target)| Instruction {
                guard: if guarded { 5 } else { PREDICATE_TRUE },
                immediate: target,
                ..Instruction::new(op)
            })
            .collect();
        Code { instructions, ..Code::default() }
    }

    #[test]
    fn both_arms_meet_behind_them() {
        let mut code = code(&[
            (Op::Branch, true, 3),
            (Op::Nop, false, 0),
            (Op::Branch, false, 4),
            (Op::Nop, false, 0),
            (Op::Nop, false, 0),
            (Op::Exit, false, 0),
        ]);
        let graph = Graph::new(&code);
        reconverge(&mut code, &graph);
        assert_eq!(code.instructions[0].e, 4);
    }

    #[test]
    fn a_loop_meets_at_its_exit_even_when_its_body_stands_before_its_header() {
        let mut code = code(&[
            (Op::Branch, false, 2),
            (Op::Nop, false, 0),
            (Op::Nop, false, 0),
            (Op::Branch, true, 1),
            (Op::Exit, false, 0),
        ]);
        let graph = Graph::new(&code);
        reconverge(&mut code, &graph);
        assert_eq!(code.instructions[3].e, 4);
    }

    #[test]
    fn an_endless_loop_has_no_meeting_point() {
        let mut code = code(&[(Op::Branch, true, 0), (Op::Branch, false, 0), (Op::Exit, false, 0)]);
        let graph = Graph::new(&code);
        reconverge(&mut code, &graph);
        assert_eq!(code.instructions[0].e, NO_RECONVERGENCE);
    }
}
