//! Where a value that is not finite comes from.

use super::source::SourceLocation;
use serde::{Serialize, Serializer};
use std::fmt;

/// What a launch with [`crate::Options::trace`] on saw.
///
/// Every floating-point instruction is looked at, lane by lane. The rule that tells an origin from what is
/// expected:
///
/// - An **origin** has finite operands and a result that is not: an overflow, or an operation that is not
///   defined there (`sqrt(-1)`, `0/0`). Of a matrix instruction, the operands of an element are its row of
///   A, its column of B and its accumulator.
/// - What moves, selects, loads or shuffles a value is no origin, nor is arithmetic with an operand that is
///   infinite or NaN: it passes on what was there. So `-inf` that masks a score is never one, nor the
///   running maximum that starts there, nor `-inf - x`, `2^-inf = 0`, `fma(-inf, c, x)`.
/// - A **suspect** is expected in some places: an exact pole, `lg2(0)`, `1/0` or `rsqrt(0)`, as of the sum
///   of a row that sees no key; and a NaN made of infinities, `-inf - -inf` or `0 * inf`, as of a comparison
///   of two running maxima. Suspects are counted apart: they tell something only where a result is not
///   finite and there is no origin.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Trace {
    /// The first origin, of the first block that had one.
    pub first: Option<Origin>,
    /// Elements with an origin, the first one included.
    pub origins: u64,
    /// The first suspect, of the first block that had one.
    pub suspect: Option<Origin>,
    /// Elements that are suspect.
    pub suspects: u64,
}

impl Trace {
    /// Adds what a later block saw.
    pub(crate) fn add(&mut self, later: Trace) {
        self.first = self.first.take().or(later.first);
        self.suspect = self.suspect.take().or(later.suspect);
        self.origins += later.origins;
        self.suspects += later.suspects;
    }
}

/// How a value came to be not finite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum OriginKind {
    /// Finite operands, infinite result.
    Overflow,
    /// Finite operands, and the operation is not defined for them.
    Invalid,
    /// A suspect: a logarithm, a reciprocal or a quotient by zero.
    Pole,
    /// A suspect: NaN made of infinities.
    Indeterminate,
}

impl OriginKind {
    /// Whether it is expected in some places.
    pub fn is_suspect(self) -> bool {
        matches!(self, OriginKind::Pole | OriginKind::Indeterminate)
    }
}

impl fmt::Display for OriginKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            OriginKind::Overflow => "overflow",
            OriginKind::Invalid => "invalid operation",
            OriginKind::Pole => "pole",
            OriginKind::Indeterminate => "NaN made of infinities",
        })
    }
}

/// A floating-point number; in JSON, text where it is not finite. One NaN equals another.
#[derive(Clone, Copy, Debug)]
pub struct Number(pub f64);

impl PartialEq for Number {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0 || self.0.is_nan() && other.0.is_nan()
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (magnitude, short) = (self.0.abs(), self.0 as f32);
        let plain = magnitude == 0.0 || !magnitude.is_finite() || (1e-4..1e7).contains(&magnitude);
        // A value that f32 holds needs no more digits than that.
        match (f64::from(short) == self.0, plain) {
            (true, true) => write!(f, "{short}"),
            (true, false) => write!(f, "{short:e}"),
            (false, true) => write!(f, "{}", self.0),
            (false, false) => write!(f, "{:e}", self.0),
        }
    }
}

impl Serialize for Number {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0.is_finite() {
            serializer.serialize_f64(self.0)
        } else {
            serializer.collect_str(&self.0)
        }
    }
}

/// An operand of an instruction: one value, or those of A and B that belong to an element of a product.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Operand {
    /// Its place: `a`, `b`, `c` in the order of the text; `memory` of an atomic addition.
    pub name: &'static str,
    /// Its values, of a matrix instruction in the order of k.
    pub values: Vec<Number>,
}

/// One instruction and lane that made a value which is not finite.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Origin {
    /// How.
    pub kind: OriginKind,
    /// The kernel.
    pub kernel: String,
    /// The block.
    pub block: [u32; 3],
    /// The thread.
    pub thread: [u32; 3],
    /// Line of the instruction in the PTX text, from 1.
    pub ptx_line: u32,
    /// Text of the instruction.
    pub ptx: String,
    /// Where the source that was compiled into it stands.
    pub source: Option<SourceLocation>,
    /// What it computed with.
    pub operands: Vec<Operand>,
    /// What came of it.
    pub result: Number,
    /// Of a matrix instruction, row and column of the element in what the instruction computes: 16 x 8 for
    /// `mma`, 64 rows for `wgmma`.
    pub element: Option<[u32; 2]>,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ([bx, by, bz], [tx, ty, tz]) = (self.block, self.thread);
        write!(f, "{}: {}", self.kind, self.result)?;
        if let Some([row, column]) = self.element {
            write!(f, " at row {row}, column {column} of the product")?;
        }
        for Operand { name, values } in &self.operands {
            let values: Vec<String> = values.iter().map(Number::to_string).collect();
            write!(f, "\n  {name} = {}", values.join(" "))?;
        }
        write!(f, "\n  in {}, block ({bx}, {by}, {bz}), thread ({tx}, {ty}, {tz})", self.kernel)?;
        write!(f, "\n  PTX line {}: {}", self.ptx_line, self.ptx)?;
        SourceLocation::write_chain(self.source.as_ref(), f)
    }
}
