//! Matrix instructions that go element by element, whose results are looked at: of any types, sparse ones,
//! and the one of sm_70.

use super::{Next, Runner};
use crate::exec::check::sparse::columns;
use crate::exec::check::trace::Found;
use crate::exec::ops::volta;
use crate::exec::state::context::Stop;
use crate::exec::values::matrix::{element, number};
use crate::exec::values::registers::{LANES, Registers, lanes};
use crate::isa::{
    FLAG_VARIANT, Fragments, Instruction, MatrixOp, MatrixShape, MatrixType, Op, VoltaShape,
};
use crate::report::trace::OriginKind;

/// Copies of some registers, of so many rows each, in a file of their own; and where they are in it.
fn copied<const N: usize>(r: &Registers, lists: [&[u32]; N], each: u32) -> (Registers, [Vec<u32>; N]) {
    let count: usize = lists.iter().map(|list| list.len()).sum();
    let mut copy = Registers::new(count as u32 * each, 0);
    let mut next = 0;
    let places = lists.map(|list| {
        let place = |&row: &u32| {
            let at = next;
            next += each;
            (0..each).for_each(|part| *copy.row32_mut(at + part) = *r.row32(row + part));
            at
        };
        list.iter().map(place).collect()
    });
    (copy, places)
}

impl Runner<'_, '_> {
    /// A product of any types, of sparse A too.
    pub fn multiply_any_traced(&mut self, i: &Instruction, m: u32) -> Result<Next, Stop> {
        let shape = MatrixShape::decode(i.immediate);
        let Some(f) = Fragments::of_instruction(i).filter(|_| shape.d != MatrixType::S32) else {
            return self.execute(i, m);
        };
        let is_sparse = i.op == Op::Matrix(MatrixOp::MultiplySparse);
        let lists = &self.context.environment.kernel.data.code.lists;
        let list = |at: u32, count: usize| &lists[at as usize..][..count];
        let operands = [list(i.a, f.a), list(i.b, f.b), list(i.c, f.d)];
        let (before, [a, b, c]) = copied(&self.warp.registers, operands, f.value_rows);
        let metadata = if is_sparse { *self.warp.registers.row32(i.e) } else { [0; LANES] };
        let next = self.execute(i, m)?;
        if !matches!(next, Next::Advance) {
            return Ok(next);
        }
        // Where the values of A stand, row after row. The instruction has found the metadata valid.
        let kept = if is_sparse { shape.k / 2 } else { shape.k };
        let places = match is_sparse {
            true => {
                let how = (usize::from(i.count), i.has(FLAG_VARIANT));
                columns(self.context, self.warp, &metadata, &shape, how)?
            }
            false => (0..shape.rows).flat_map(|_| 0..shape.k).collect(),
        };
        let read = |r: &Registers, row: u32, lane: usize| match f.value_rows {
            2 => r.row64(row)[lane],
            _ => u64::from(r.row32(row)[lane]),
        };
        let apart = if is_sparse { 2 } else { shape.rows / 8 };
        for register in 0..f.d {
            for lane in lanes(self.warp.live) {
                let result = read(&self.warp.registers, lists[i.d as usize + register], lane);
                let sum = read(&before, c[register], lane);
                let row = lane / 4 + register / if f.packed { 1 } else { 2 } * 8;
                for half in 0..1 + usize::from(f.packed) {
                    let column = lane % 4 * 2 + if f.packed { half } else { register % 2 };
                    let value = |bits: u64| number(shape.d, bits >> (16 * half)).as_f64();
                    if value(result).is_finite() {
                        continue;
                    }
                    let columns = &places[row * kept..][..kept];
                    let value_of_a = |k| element(&before, &a, (shape.a, apart), (row, k)).as_f64();
                    let value_of_b =
                        |&k: &usize| element(&before, &b, (shape.b, 1), (column, k)).as_f64();
                    let left: Vec<f64> = (0..kept).map(value_of_a).collect();
                    let right: Vec<f64> = columns.iter().map(value_of_b).collect();
                    self.sum_traced(lane, (row, column), value(result), [&left, &right, &[value(sum)]]);
                }
            }
        }
        Ok(next)
    }

    /// Four products of 8 x 8 x 4 numbers.
    pub fn multiply_volta_traced(&mut self, i: &Instruction, m: u32) -> Result<Next, Stop> {
        let shape = VoltaShape::decode(i.immediate);
        let lists = &self.context.environment.kernel.data.code.lists;
        let before: [_; 4] =
            std::array::from_fn(|product| volta::gather(&self.warp.registers, i, lists, product));
        let next = self.execute(i, m)?;
        for (product, operands) in before.iter().enumerate() {
            for (member, lane) in VoltaShape::members(product).into_iter().enumerate() {
                for index in 0..8 {
                    let result = volta::sum_of(
                        &self.warp.registers,
                        (lists, i.d),
                        (index, lane),
                        shape.gives_singles,
                    );
                    if result.is_finite() {
                        continue;
                    }
                    let (row, column) = volta::sum_place(member, index, shape.gives_singles);
                    let [left, right] =
                        [operands.a[row], operands.b[column]].map(|values| values.map(f64::from));
                    let sum = operands.sums[row][column].into();
                    self.sum_traced(lane, (row, column), result.into(), [&left, &right, &[sum]]);
                }
            }
        }
        Ok(next)
    }

    /// Looks at an element of a product, of which the operands are given.
    fn sum_traced(
        &mut self,
        lane: usize,
        (row, column): (usize, usize),
        result: f64,
        [a, b, c]: [&[f64]; 3],
    ) {
        let (kind, pc, warp) = (OriginKind::Overflow, self.pc, self.warp.id);
        let element = Some([row as u32, column as u32]);
        let found = Found { kind, pc, warp, lane, result, element };
        self.context.trace_sum(found, &[("a", a), ("b", b), ("c", c)]);
    }
}
