//! `wmma`: its loads and stores as the plain ones of each lane, its multiplications as `mma`.
//!
//! PTX leaves open which lane has which element of a fragment. Here it is as `ptxas` has it for sm_80 and
//! newer: the operands of the `mma` of 8 columns, one part of the product after the other. Where D has 8
//! rows and 32 columns, the transposed product is what is computed. A fragment of f16 that needs fewer than
//! 8 registers is repeated in the others.

use super::matrix::{operation, registers, rounding};
use super::memory::space;
use super::{Builder, Result, Statement, UNSUPPORTED, with_rows};
use crate::isa::{
    ATOMIC_SPACES, FLAG_WIDE_ADDRESS, Instruction, LanePlace, MatrixOp, MatrixShape, MatrixType, MoveOp,
    Op, Rounding,
};
use crate::parse::scope::Class;
use crate::space::Space;

/// Rows, columns, and the length of the products.
type Shape = [usize; 3];

/// Which matrix a fragment is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Matrix {
    A,
    B,
    /// C or D.
    Sum,
}

/// How a fragment lies in the registers of a lane. A line is a row or a column, whichever of the two the four
/// lanes that follow each other share; the elements of a line have places.
struct Fragment {
    /// Line and place of the first element of each register in lane 0.
    registers: Vec<(usize, usize)>,
    /// Elements in a register.
    each: usize,
    /// From one lane to the next, of the four of a line.
    step: usize,
    /// Whether lines are rows.
    lines_are_rows: bool,
    /// How often the registers stand in the operand.
    copies: usize,
    /// Rows and columns of the whole matrix.
    extent: [usize; 2],
}

fn shape_of(name: &str) -> Option<Shape> {
    Some(match name {
        "m16n16k16" => [16, 16, 16],
        "m32n8k16" => [32, 8, 16],
        "m8n32k16" => [8, 32, 16],
        "m16n16k8" => [16, 16, 8],
        "m8n8k4" => [8, 8, 4],
        "m8n8k32" => [8, 8, 32],
        "m8n8k128" => [8, 8, 128],
        _ => return None,
    })
}

/// The types that the factors, and C or D, have in a shape.
fn has(shape: Shape, matrix: Matrix, ty: MatrixType) -> bool {
    use MatrixType::{B1, Bf16, F16, F32, F64, S4, S8, S32, Tf32, U4, U8};
    match (shape, matrix) {
        ([_, _, 16], Matrix::Sum) => matches!(ty, F16 | F32 | S32),
        ([_, _, 16], _) => matches!(ty, F16 | Bf16 | S8 | U8),
        ([16, 16, 8], Matrix::Sum) => ty == F32,
        ([16, 16, 8], _) => ty == Tf32,
        ([_, _, 4], _) => ty == F64,
        (_, Matrix::Sum) => ty == S32,
        ([_, _, 32], _) => matches!(ty, S4 | U4),
        (_, _) => ty == B1,
    }
}

impl Fragment {
    fn new([m, n, k]: Shape, matrix: Matrix, ty: MatrixType) -> Self {
        let is_turned = m == 8 && n == 32;
        match matrix {
            Matrix::Sum => Fragment::of_sum([m, n], is_turned, ty),
            Matrix::A => Fragment::of_factor([m, k], true, m >= 16, ty),
            Matrix::B => Fragment::of_factor([k, n], false, n == 32, ty),
        }
    }

    /// A or B, of which each part of 16 lines is the first factor of an `mma`, or each of 8 lines the second.
    fn of_factor(extent: [usize; 2], lines_are_rows: bool, is_first: bool, ty: MatrixType) -> Self {
        let (lines, k) = if lines_are_rows { (extent[0], extent[1]) } else { (extent[1], extent[0]) };
        let each = (32 / ty.bits()).max(1);
        let part = if is_first { 16 } else { 8 };
        let mut registers = Vec::new();
        for first in (0..lines).step_by(part) {
            for place in (0..k).step_by(4 * each) {
                registers.extend((first..first + part).step_by(8).map(|line| (line, place)));
            }
        }
        let copies = if ty == MatrixType::F16 { 8 / registers.len() } else { 1 };
        Fragment { registers, each, step: each, lines_are_rows, copies, extent }
    }

    /// C or D: parts of 8 places, of 16 lines or of all.
    fn of_sum(extent: [usize; 2], is_turned: bool, ty: MatrixType) -> Self {
        let [m, n] = extent;
        let (lines, places) = if is_turned { (n, m) } else { (m, n) };
        let each = if ty == MatrixType::F16 { 2 } else { 1 };
        let mut registers = Vec::new();
        for first in (0..lines).step_by(16) {
            for place in (0..places).step_by(8) {
                for line in (first..lines.min(first + 16)).step_by(8) {
                    registers.extend((place..place + 2).step_by(each).map(|place| (line, place)));
                }
            }
        }
        Fragment { registers, each, step: 2, lines_are_rows: !is_turned, copies: 1, extent }
    }

    fn count(&self) -> usize {
        self.registers.len() * self.copies
    }
}

/// Decodes the family.
pub fn decode<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>) -> Result<Instruction> {
    match s.modifiers() {
        ["load" | "store", _, "sync", "aligned", ..] => transfer(s, b),
        ["mma", "xor", "popc", "sync", "aligned", rest @ ..] => multiply(s, b, rest, Some(true)),
        ["mma", "and", "popc", "sync", "aligned", rest @ ..] => multiply(s, b, rest, Some(false)),
        ["mma", "sync", "aligned", rest @ ..] => multiply(s, b, rest, None),
        _ => Err(UNSUPPORTED),
    }
}

/// Bits of a register of this type.
fn register_bits(ty: MatrixType) -> u32 {
    if ty == MatrixType::F64 { 64 } else { 32 }
}

/// `wmma.load.{a,b,c}.sync.aligned.layout.shape{.space}.type r, [p]{, stride};` and
/// `wmma.store.d…  [p], r{, stride};`
fn transfer<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>) -> Result<Instruction> {
    let [verb, operand, _, _, first, second, between @ .., last] = s.modifiers() else {
        return Err(UNSUPPORTED);
    };
    let is_load = *verb == "load";
    let matrix = match (*operand, is_load) {
        ("a", true) => Matrix::A,
        ("b", true) => Matrix::B,
        ("c", true) | ("d", false) => Matrix::Sum,
        _ => return Err(UNSUPPORTED),
    };
    let (layout, shape) = if first.starts_with('m') { (second, first) } else { (first, second) };
    let row_major = match *layout {
        "row" => true,
        "col" => false,
        _ => return Err(UNSUPPORTED),
    };
    let place = match between {
        [] => Space::Generic,
        [name] => space(name)
            .filter(|space| matches!(space, Space::Global | Space::Shared))
            .ok_or(UNSUPPORTED)?,
        _ => return Err(UNSUPPORTED),
    };
    let shape = shape_of(shape).ok_or(UNSUPPORTED)?;
    let ty = MatrixType::of_name(last).filter(|&ty| has(shape, matrix, ty)).ok_or(UNSUPPORTED)?;
    let fragment = Fragment::new(shape, matrix, ty);
    // Elements of one line stand one after the other.
    let along_line = row_major == fragment.lines_are_rows;
    if ty.bits() < 8 && !along_line {
        return Err(UNSUPPORTED);
    }
    s.expect_operands(2, 3)?;
    let (values, address) = if is_load { (0, 1) } else { (1, 0) };
    let rows = registers(s, b, values, fragment.count(), register_bits(ty), is_load)?;
    let (base, offset, wide) = b.address(s, address)?;
    let stride = match s.operands.len() {
        3 => b.source(s, 2, 32)?,
        _ => b.constant(fragment.extent[usize::from(row_major)] as u64, false)?,
    };
    let fragment_bytes = (fragment.count() as u32 * register_bits(ty) / 8).min(32);
    let flags = if wide { FLAG_WIDE_ADDRESS } else { 0 };
    let check = with_rows(Op::Matrix(MatrixOp::CheckFragment), 0, &[base, stride, ty.bits() as u32]);
    let e = ATOMIC_SPACES.iter().position(|&space| space == place).unwrap_or(0) as u32;
    let check = Instruction { flags, count: fragment_bytes as u8, immediate: offset, e, ..check };
    let transfer = Transfer { place, ty, flags, along_line, offset, base, stride, is_load };
    let mut out = vec![check];
    transfer.expand(b, &fragment, rows, &mut out)?;
    let last = out.pop().unwrap_or(check);
    out.into_iter().for_each(|instruction| b.emit_guarded(instruction));
    Ok(last)
}

/// A load or a store of a fragment.
struct Transfer {
    place: Space,
    ty: MatrixType,
    flags: u8,
    along_line: bool,
    offset: i32,
    base: u32,
    stride: u32,
    is_load: bool,
}

impl Transfer {
    /// Adds the loads, or stores, of each register, and what they need.
    fn expand<'a>(
        &self,
        b: &mut Builder<'a, '_>,
        fragment: &Fragment,
        rows: Vec<u32>,
        out: &mut Vec<Instruction>,
    ) -> Result<()> {
        let count = fragment.registers.len();
        let mut known: Vec<(usize, u32)> = Vec::new();
        // A register that nobody wants is loaded all the same, elsewhere.
        for (index, &(line, place)) in fragment.registers.iter().enumerate() {
            let row = rows[index];
            if self.along_line || fragment.each == 1 {
                let bits = self.ty.bits() * fragment.each;
                let access = self.access(b, fragment, (line, place), &mut known, out)?;
                out.push(self.access_of(b, access, row, (bits / 8) as u32));
            } else {
                self.each_element(b, fragment, (line, place), row, &mut known, out)?;
            }
        }
        if self.is_load {
            for (index, &row) in rows.iter().enumerate().skip(count) {
                out.push(with_rows(Op::Move(MoveOp::Bits32), row, &[rows[index % count]]));
            }
        }
        Ok(())
    }

    /// Elements of 8 or 16 bits that stand apart, in one register.
    fn each_element<'a>(
        &self,
        b: &mut Builder<'a, '_>,
        fragment: &Fragment,
        (line, place): (usize, usize),
        row: u32,
        known: &mut Vec<(usize, u32)>,
        out: &mut Vec<Instruction>,
    ) -> Result<()> {
        let bytes = (self.ty.bits() / 8) as u32;
        let mut parts = Vec::with_capacity(fragment.each);
        for _ in 0..fragment.each {
            parts.push(b.register(Class::Bits32)?.index);
        }
        let list = b.list(&parts);
        let move_of = |op: MoveOp, d: u32, a: u32| Instruction {
            count: fragment.each as u8,
            ..with_rows(Op::Move(op), d, &[a, bytes, 4])
        };
        if !self.is_load {
            out.push(move_of(MoveOp::Unpack, list, row));
        }
        for (element, &part) in parts.iter().enumerate() {
            let access = self.access(b, fragment, (line, place + element), known, out)?;
            out.push(self.access_of(b, access, part, bytes));
        }
        if self.is_load {
            out.push(move_of(MoveOp::Pack, row, list));
        }
        Ok(())
    }

    /// The row with the address of an element, and what to add to it. Rows are made once for elements whose
    /// addresses differ by a constant.
    fn access<'a>(
        &self,
        b: &mut Builder<'a, '_>,
        fragment: &Fragment,
        (line, place): (usize, usize),
        known: &mut Vec<(usize, u32)>,
        out: &mut Vec<Instruction>,
    ) -> Result<(u32, i32)> {
        let (apart, next) = if self.along_line { (line, place) } else { (place, line) };
        let bytes = (next * self.ty.bits() / 8) as i32;
        if let Some(&(_, row)) = known.iter().find(|(known, _)| *known == apart) {
            return Ok((row, bytes));
        }
        let class = if self.flags != 0 { Class::Bits64 } else { Class::Bits32 };
        let row = b.register(class)?.index;
        let (bits, step, along_line) = (self.ty.bits(), fragment.step, self.along_line);
        let lanes = LanePlace { apart, step, bits, along_line }.encode();
        let instruction = with_rows(Op::FragmentPlace, row, &[self.base, self.stride, lanes]);
        out.push(Instruction { flags: self.flags, immediate: self.offset, ..instruction });
        known.push((apart, row));
        Ok((row, bytes))
    }

    fn access_of<'a>(
        &self,
        b: &mut Builder<'a, '_>,
        (address, offset): (u32, i32),
        row: u32,
        bytes: u32,
    ) -> Instruction {
        let op = if self.is_load { Op::Load(self.place) } else { Op::Store(self.place) };
        let list = b.list(&[row]);
        Instruction {
            flags: self.flags,
            count: 1,
            immediate: offset,
            ..with_rows(op, list, &[address, bytes])
        }
    }
}

/// What is multiplied: the types of D, A, B and C, how sums of f64 are rounded, and whether those of integers
/// are clamped. The types of f16 are those of D and C alone.
fn product(words: &[&str]) -> Option<([MatrixType; 4], Rounding, bool)> {
    let (clamps, words) = match words {
        [rest @ .., "satfinite"] | ["satfinite", rest @ ..] => (true, rest),
        rest => (false, rest),
    };
    let (round, words) = match words {
        [first, rest @ ..] if rounding(first).is_some() => (rounding(first), rest),
        [rest @ .., last] if rounding(last).is_some() => (rounding(last), rest),
        rest => (None, rest),
    };
    let of = MatrixType::of_name;
    let types = match words {
        [d, c] => [of(d)?, MatrixType::F16, MatrixType::F16, of(c)?],
        [d, a, b, c] => [of(d)?, of(a)?, of(b)?, of(c)?],
        _ => return None,
    };
    let [d, a, b, c] = types;
    use MatrixType::{B1, Bf16, F16, F32, F64, S4, S8, S32, Tf32, U4, U8};
    let is_there = a == b
        && match a {
            F16 => matches!(d, F16 | F32) && matches!(c, F16 | F32) && words.len() == 2,
            Bf16 | Tf32 => d == F32 && c == F32,
            F64 => d == F64 && c == F64,
            S8 | U8 | S4 | U4 | B1 => d == S32 && c == S32,
            _ => false,
        };
    let clamps_well = !clamps || matches!(a, S8 | U8 | S4 | U4);
    let is_there = is_there && clamps_well && (round.is_none() || a == F64);
    is_there.then_some((types, round.unwrap_or(Rounding::NearestEven), clamps))
}

/// `wmma.mma{.xor.popc,.and.popc}.sync.aligned.layout.layout.shape{.types}  d, a, b, c;` `xors`: how bits are
/// combined.
fn multiply<'a>(
    s: &Statement<'a>,
    b: &mut Builder<'a, '_>,
    words: &[&str],
    xors: Option<bool>,
) -> Result<Instruction> {
    let [la @ ("row" | "col"), lb @ ("row" | "col"), shape, rest @ ..] = words else {
        return Err(UNSUPPORTED);
    };
    let shape = shape_of(shape).ok_or(UNSUPPORTED)?;
    let (types, rounding, clamps) = product(rest).ok_or(UNSUPPORTED)?;
    let [d, a, bt, c] = types;
    let fits = has(shape, Matrix::A, a) && has(shape, Matrix::Sum, d) && has(shape, Matrix::Sum, c);
    // Of less than 8 bits, A stands by rows and B by columns.
    let stands = a.bits() >= 8 || (*la == "row" && *lb == "col");
    if !fits || !stands || xors.is_some() != (a == MatrixType::B1) {
        return Err(UNSUPPORTED);
    }
    s.expect_operands(4, 4)?;
    let count = |matrix, ty| Fragment::new(shape, matrix, ty);
    let (of_a, of_b) = (count(Matrix::A, a), count(Matrix::B, bt));
    let (of_d, of_c) = (count(Matrix::Sum, d).count(), count(Matrix::Sum, c).count());
    let results = registers(s, b, 0, of_d, register_bits(d), true)?;
    let left = registers(s, b, 1, of_a.count(), register_bits(a), false)?;
    let right = registers(s, b, 2, of_b.count(), register_bits(bt), false)?;
    let mut sums = registers(s, b, 3, of_c, register_bits(c), false)?;
    // Sums are of one type while they are computed: f32, if either is.
    let halves = |ty: MatrixType| ty == MatrixType::F16;
    let ty = if d != c { MatrixType::F32 } else { d };
    if halves(c) && !halves(ty) {
        sums = widen(b, &sums)?;
    }
    let [m, n, k] = shape;
    let is_turned = m == 8 && n == 32;
    let rows = if m == 8 && n == 8 { 8 } else { 16 };
    let xors = xors == Some(true);
    let part = MatrixShape { rows, k, a, b: bt, d: ty, clamps, xors, rounding };
    let (op, immediate) = operation(part);
    let fragments = part.fragments();
    let (x, y) = match is_turned {
        true => (&right[..of_b.registers.len()], &left[..of_a.registers.len()]),
        false => (&left[..of_a.registers.len()], &right[..of_b.registers.len()]),
    };
    let bits = register_bits(ty);
    let class = if bits == 64 { Class::Bits64 } else { Class::Bits32 };
    let parts = sums.len() / fragments.d;
    // What a part writes must not be what a later one reads.
    let read = |row: &u32| left.contains(row) || right.contains(row) || sums.contains(row);
    let apart = parts > 1 && (results.iter().any(read) || halves(d) != halves(ty));
    let mut targets = results.clone();
    if apart {
        targets.clear();
        for _ in 0..sums.len() {
            targets.push(b.register(class)?.index);
        }
    }
    let mut out = Vec::new();
    for index in 0..parts {
        let of = |rows: &[u32], count: usize| {
            let first = if rows.len() == count { 0 } else { index * count };
            rows[first..first + count].to_vec()
        };
        let target = b.list(&of(&targets, fragments.d));
        let lists = [of(x, fragments.a), of(y, fragments.b), of(&sums, fragments.d)];
        let lists = lists.map(|rows| b.list(&rows));
        out.push(Instruction { immediate, ..with_rows(Op::Matrix(op), target, &lists) });
    }
    if apart {
        match halves(d) && !halves(ty) {
            true => results.iter().enumerate().for_each(|(index, &row)| {
                let pair = [targets[2 * index + 1], targets[2 * index]];
                out.push(with_rows(Op::ConvertPairHalf, row, &pair));
            }),
            false => results.iter().zip(&targets).for_each(|(&row, &from)| {
                out.push(with_rows(Op::Move(MoveOp::Bits32), row, &[from]));
            }),
        }
    }
    let last = out.pop().ok_or(UNSUPPORTED)?;
    out.into_iter().for_each(|instruction| b.emit_guarded(instruction));
    Ok(last)
}

/// Pairs of f16 as f32.
fn widen<'a>(b: &mut Builder<'a, '_>, pairs: &[u32]) -> Result<Vec<u32>> {
    let mut singles = Vec::with_capacity(2 * pairs.len());
    for &pair in pairs {
        let halves = [b.register(Class::Bits32)?.index, b.register(Class::Bits32)?.index];
        let list = b.list(&halves);
        let unpack = with_rows(Op::Move(MoveOp::Unpack), list, &[pair, 2, 4]);
        b.emit_guarded(Instruction { count: 2, ..unpack });
        for half in halves {
            let single = b.register(Class::Bits32)?.index;
            b.emit_guarded(with_rows(Op::ConvertHalfToF32, single, &[half]));
            singles.push(single);
        }
    }
    Ok(singles)
}
