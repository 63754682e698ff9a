//! Values that are the first not to be finite: what they are told by, and how they are counted and kept. The
//! rule stands in [`crate::report::trace`].

use crate::exec::state::context::Context;
use crate::exec::values::half::{Bfloat, Half};
use crate::isa::ConvertType;
use crate::report::trace::{Number, Operand, Origin, OriginKind};

/// How a register holds a value.
#[derive(Clone, Copy, Debug)]
pub enum Encoding {
    F32,
    F64,
    /// From this bit on.
    F16(u32),
    Bf16(u32),
    /// f32 whose low 13 bits are ignored.
    Tf32,
}

impl Encoding {
    /// The value that bits stand for.
    pub fn value(self, bits: u64) -> f64 {
        match self {
            Encoding::F32 => f64::from(f32::from_bits(bits as u32)),
            Encoding::F64 => f64::from_bits(bits),
            Encoding::F16(shift) => f64::from(Half((bits >> shift) as u16).to_f32()),
            Encoding::Bf16(shift) => f64::from(Bfloat((bits >> shift) as u16).to_f32()),
            Encoding::Tf32 => f64::from(f32::from_bits(bits as u32 & !0x1fff)),
        }
    }

    /// Of a value to convert, if it is a floating-point number.
    pub fn of(ty: ConvertType) -> Option<Encoding> {
        Some(match ty {
            ConvertType::F16 => Encoding::F16(0),
            ConvertType::Bf16 => Encoding::Bf16(0),
            ConvertType::F32 => Encoding::F32,
            ConvertType::F64 => Encoding::F64,
            _ => return None,
        })
    }

    /// Whether it takes two rows.
    pub fn is_wide(self) -> bool {
        matches!(self, Encoding::F64)
    }
}

/// What a result that is not finite is, by its operands; none if it only passes on what was there.
pub fn classify(
    result: f64,
    operands: impl Iterator<Item = f64> + Clone,
    pole: bool,
) -> Option<OriginKind> {
    let finite = operands.clone().all(f64::is_finite);
    match (finite, result.is_nan()) {
        (true, true) => Some(OriginKind::Invalid),
        (true, false) if pole => Some(OriginKind::Pole),
        (true, false) => Some(OriginKind::Overflow),
        (false, true) if !operands.clone().any(f64::is_nan) => Some(OriginKind::Indeterminate),
        (false, _) => None,
    }
}

/// Where and how a value came to be not finite.
pub struct Found {
    pub kind: OriginKind,
    pub pc: u32,
    pub warp: u32,
    pub lane: usize,
    pub result: f64,
    pub element: Option<[u32; 2]>,
}

/// Operands by name.
pub type Operands<'o> = &'o [(&'static str, &'o [f64])];

impl Context<'_> {
    /// Counts an origin or a suspect, and keeps the first of each.
    pub fn trace_note(&mut self, found: Found, operands: Operands<'_>) {
        let (block, thread) = (self.block_of(found.warp), self.thread_of(found.warp, found.lane as u32));
        let Some(trace) = &mut self.trace else { return };
        let (first, count) = if found.kind.is_suspect() {
            (&mut trace.suspect, &mut trace.suspects)
        } else {
            (&mut trace.first, &mut trace.origins)
        };
        *count += 1;
        if first.is_some() {
            return;
        }
        let environment = self.environment;
        let kernel = environment.kernel;
        let operand = |&(name, values): &(&'static str, &[f64])| Operand {
            name,
            values: values.iter().copied().map(Number).collect(),
        };
        *first = Some(Origin {
            kind: found.kind,
            kernel: kernel.name().to_string(),
            block,
            thread,
            ptx_line: kernel.line(found.pc),
            ptx: kernel.text(found.pc),
            source: kernel.location(found.pc),
            operands: operands.iter().map(operand).collect(),
            result: Number(found.result),
            element: found.element,
        });
    }

    /// Looks at one result that is a sum of products, or a sum.
    pub fn trace_sum(&mut self, mut found: Found, operands: Operands<'_>) {
        let values = operands.iter().flat_map(|(_, values)| values.iter().copied());
        if let Some(kind) = classify(found.result, values, false) {
            found.kind = kind;
            self.trace_note(found, operands);
        }
    }
}
