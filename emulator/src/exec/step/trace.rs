//! Instructions whose results are looked at for those that are the first not to be finite. The rule stands in
//! [`crate::report::trace`].

use super::{Next, Runner};
use crate::exec::check::trace::{Encoding, Found, classify};
use crate::exec::state::context::Stop;
use crate::exec::values::registers::{LANES, Registers, lanes};
use crate::isa::{ConvertType, FLAG_FTZ, FloatOp, Instruction, MatrixOp, Op, RareOp};
use crate::report::trace::OriginKind;

/// One result in a register and what it is made of: sources by number.
#[derive(Clone, Copy)]
struct Part {
    result: Encoding,
    sources: [(usize, Encoding); 3],
    count: usize,
}

impl Part {
    fn new(result: Encoding, sources: &[(usize, Encoding)]) -> Self {
        let mut part = Part { result, sources: [(0, result); 3], count: sources.len() };
        part.sources[..sources.len()].copy_from_slice(sources);
        part
    }

    /// Operands `a`, `b`, `c` of one format.
    fn uniform(format: Encoding, count: usize) -> Self {
        Part { result: format, sources: [(0, format), (1, format), (2, format)], count }
    }
}

fn arity(op: FloatOp) -> usize {
    match op {
        FloatOp::Fma => 3,
        FloatOp::Add | FloatOp::Sub | FloatOp::Mul | FloatOp::Div => 2,
        FloatOp::Min | FloatOp::Max | FloatOp::CopySign => 2,
        _ => 1,
    }
}

/// The results of an instruction; none if it is no floating-point instruction of registers.
fn parts(i: &Instruction) -> ([Part; 2], usize) {
    let one = |part: Part| ([part; 2], 1);
    let two = |parts: [Part; 2]| (parts, 2);
    match i.op {
        Op::Float32(op) => one(Part::uniform(Encoding::F32, arity(op))),
        Op::Float64(op) => one(Part::uniform(Encoding::F64, arity(op))),
        Op::Half(op) => one(Part::uniform(Encoding::F16(0), arity(op))),
        Op::Bfloat(op) => one(Part::uniform(Encoding::Bf16(0), arity(op))),
        Op::HalfPair(op) => two([0, 16].map(|shift| Part::uniform(Encoding::F16(shift), arity(op)))),
        Op::BfloatPair(op) => two([0, 16].map(|shift| Part::uniform(Encoding::Bf16(shift), arity(op)))),
        Op::ConvertPairHalf => two([
            Part::new(Encoding::F16(16), &[(0, Encoding::F32)]),
            Part::new(Encoding::F16(0), &[(1, Encoding::F32)]),
        ]),
        Op::ConvertPairBfloat => two([
            Part::new(Encoding::Bf16(16), &[(0, Encoding::F32)]),
            Part::new(Encoding::Bf16(0), &[(1, Encoding::F32)]),
        ]),
        Op::ConvertTf32 => one(Part::new(Encoding::F32, &[(0, Encoding::F32)])),
        // Of numbers of 8 bits, and to them, nothing that is finite becomes anything else.
        Op::Rare(RareOp::RcpUpper | RareOp::RsqrtUpper) => one(Part::uniform(Encoding::F64, 1)),
        Op::Convert => {
            let [from, to] = [i.b, i.c].map(|ty| Encoding::of(ConvertType::ALL[ty as usize]));
            match (from, to) {
                (Some(from), Some(to)) => one(Part::new(to, &[(0, from)])),
                _ => (one(Part::uniform(Encoding::F32, 0)).0, 0),
            }
        }
        _ => (one(Part::uniform(Encoding::F32, 0)).0, 0),
    }
}

fn read(r: &Registers, row: u32, wide: bool) -> [u64; LANES] {
    if wide { *r.row64(row) } else { r.row32(row).map(u64::from) }
}

/// An instruction of registers before it runs: its sources, which it may overwrite.
struct Before {
    parts: [Part; 2],
    count: usize,
    sources: [[u64; LANES]; 3],
}

impl Before {
    fn new(r: &Registers, i: &Instruction) -> Option<Self> {
        let (parts, count) = parts(i);
        if count == 0 {
            return None;
        }
        let mut sources = [[0; LANES]; 3];
        for part in &parts[..count] {
            for &(source, format) in &part.sources[..part.count] {
                sources[source] = read(r, [i.a, i.b, i.c][source], format.is_wide());
            }
        }
        Some(Before { parts, count, sources })
    }
}

/// Whether an infinite result is exact: a pole of the operation.
fn is_pole(i: &Instruction, operands: &[f64]) -> bool {
    let flushes = i.flags & FLAG_FTZ != 0;
    let zero = |value: f64| value == 0.0 || flushes && value.abs() < f64::from(f32::MIN_POSITIVE);
    match i.op {
        Op::Float32(op) | Op::Float64(op) => match op {
            FloatOp::Rcp | FloatOp::Rsqrt | FloatOp::Lg2 => zero(operands[0]),
            FloatOp::Div => zero(operands[1]),
            _ => false,
        },
        // Subnormal ones are flushed.
        Op::Rare(_) => operands[0].abs() < f64::MIN_POSITIVE,
        _ => false,
    }
}

impl Runner<'_, '_> {
    /// Runs an instruction and looks at its results.
    #[inline(never)]
    pub fn execute_traced(&mut self, i: &Instruction, m: u32) -> Result<Next, Stop> {
        if let Op::Matrix(op) = i.op {
            match op {
                MatrixOp::Multiply | MatrixOp::MultiplySparse => return self.multiply_any_traced(i, m),
                MatrixOp::MultiplyVolta => return self.multiply_volta_traced(i, m),
                _ => {}
            }
            if let Some(shape) = Shape::of(op) {
                return self.multiply_traced(i, m, &shape);
            }
        }
        let before = Before::new(&self.warp.registers, i);
        let next = self.execute(i, m)?;
        let Some(before) = before else { return Ok(next) };
        for part in &before.parts[..before.count] {
            let results = read(&self.warp.registers, i.d, part.result.is_wide());
            for lane in lanes(m) {
                let result = part.result.value(results[lane]);
                if result.is_finite() {
                    continue;
                }
                let operands: Vec<f64> = part.sources[..part.count]
                    .iter()
                    .map(|&(source, format)| format.value(before.sources[source][lane]))
                    .collect();
                let pole = is_pole(i, &operands);
                let Some(kind) = classify(result, operands.iter().copied(), pole) else { continue };
                let named: Vec<(&'static str, &[f64])> =
                    ["a", "b", "c"].into_iter().zip(operands.chunks(1)).collect();
                let (pc, warp) = (self.pc, self.warp.id);
                self.context.trace_note(Found { kind, pc, warp, lane, result, element: None }, &named);
            }
        }
        Ok(next)
    }

    fn multiply_traced(&mut self, i: &Instruction, m: u32, shape: &Shape) -> Result<Next, Stop> {
        let lists = &self.context.environment.kernel.data.code.lists;
        let registers = &self.warp.registers;
        let rows = |at: u32, count: usize| -> Vec<[u32; LANES]> {
            lists[at as usize..][..count].iter().map(|&row| *registers.row32(row)).collect()
        };
        let (a, b, c) = (rows(i.a, shape.a), rows(i.b, shape.b), rows(i.c, 4));
        let next = self.execute(i, m)?;
        if !matches!(next, Next::Advance) {
            return Ok(next);
        }
        for register in 0..4 {
            let results = *self.warp.registers.row32(lists[i.d as usize + register]);
            for lane in lanes(self.warp.live) {
                let result = f64::from(f32::from_bits(results[lane]));
                if result.is_finite() {
                    continue;
                }
                let (row, column) = (lane / 4 + register / 2 * 8, lane % 4 * 2 + register % 2);
                let left: Vec<f64> = (0..shape.k).map(|k| shape.left(&a, row, k)).collect();
                let right: Vec<f64> = (0..shape.k).map(|k| shape.right(&b, column, k)).collect();
                let sum = f64::from(f32::from_bits(c[register][lane]));
                let (pc, warp, kind) = (self.pc, self.warp.id, OriginKind::Overflow);
                let element = Some([row as u32, column as u32]);
                self.context.trace_sum(
                    Found { kind, pc, warp, lane, result, element },
                    &[("a", &left), ("b", &right), ("c", &[sum])],
                );
            }
        }
        Ok(next)
    }
}

/// Where `mma` holds its operands.
struct Shape {
    /// Registers of A and of B.
    a: usize,
    b: usize,
    /// Columns of A.
    k: usize,
    /// Of the even and the odd values of k.
    format: [Encoding; 2],
}

impl Shape {
    fn of(op: MatrixOp) -> Option<Self> {
        let bf16 = [Encoding::Bf16(0), Encoding::Bf16(16)];
        let f16 = [Encoding::F16(0), Encoding::F16(16)];
        let tf32 = [Encoding::Tf32; 2];
        let (a, b, k, format) = match op {
            MatrixOp::M16N8K16Bf16 => (4, 2, 16, bf16),
            MatrixOp::M16N8K16F16 => (4, 2, 16, f16),
            MatrixOp::M16N8K8Bf16 => (2, 1, 8, bf16),
            MatrixOp::M16N8K8F16 => (2, 1, 8, f16),
            MatrixOp::M16N8K8Tf32 => (4, 2, 8, tf32),
            MatrixOp::M16N8K4Tf32 => (2, 1, 4, tf32),
            MatrixOp::LoadMatrix | MatrixOp::StoreMatrix | MatrixOp::MoveTransposed => return None,
            // These have ways of their own.
            MatrixOp::Multiply | MatrixOp::MultiplySparse | MatrixOp::MultiplyVolta => return None,
            // Integers are never NaN.
            MatrixOp::M16N8K32Bytes | MatrixOp::M16N8K16Bytes | MatrixOp::M8N8K16Bytes => return None,
            MatrixOp::CheckFragment => return None,
        };
        Some(Shape { a, b, k, format })
    }

    /// Values of k that a register holds for a row: two in each of four lanes, or one.
    fn per_register(&self) -> usize {
        if matches!(self.format[0], Encoding::Tf32) { 4 } else { 8 }
    }

    /// The value in a register at a row or column and at k.
    fn at(&self, row: &[u32; LANES], line: usize, k: usize) -> f64 {
        let per_lane = self.per_register() / 4;
        let k = k % self.per_register();
        self.format[k % per_lane].value(u64::from(row[line * 4 + k / per_lane]))
    }

    fn left(&self, a: &[[u32; LANES]], row: usize, k: usize) -> f64 {
        self.at(&a[row / 8 + 2 * (k / self.per_register())], row % 8, k)
    }

    fn right(&self, b: &[[u32; LANES]], column: usize, k: usize) -> f64 {
        self.at(&b[k / self.per_register()], column, k)
    }
}
