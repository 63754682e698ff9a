//! Multiplications of matrices by a warp: their types and shapes, and how operands lie in registers.

use super::{Instruction, MatrixOp, Op, Rounding};

/// Types of the elements of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum MatrixType {
    Bf16,
    F16,
    Tf32,
    F32,
    F64,
    S8,
    U8,
    S4,
    U4,
    B1,
    S32,
    /// FP8 with 4 bits of exponent and 3 of mantissa.
    E4m3,
    /// FP8 with 5 bits of exponent and 2 of mantissa.
    E5m2,
}

impl MatrixType {
    /// Every type, in the order of their discriminants.
    pub const ALL: [MatrixType; 13] = [
        MatrixType::Bf16,
        MatrixType::F16,
        MatrixType::Tf32,
        MatrixType::F32,
        MatrixType::F64,
        MatrixType::S8,
        MatrixType::U8,
        MatrixType::S4,
        MatrixType::U4,
        MatrixType::B1,
        MatrixType::S32,
        MatrixType::E4m3,
        MatrixType::E5m2,
    ];

    /// The type of a modifier.
    pub fn of_name(name: &str) -> Option<MatrixType> {
        Some(match name {
            "bf16" => MatrixType::Bf16,
            "f16" => MatrixType::F16,
            "tf32" => MatrixType::Tf32,
            "f32" => MatrixType::F32,
            "f64" => MatrixType::F64,
            "s8" => MatrixType::S8,
            "u8" => MatrixType::U8,
            "s4" => MatrixType::S4,
            "u4" => MatrixType::U4,
            "b1" => MatrixType::B1,
            "s32" => MatrixType::S32,
            "e4m3" => MatrixType::E4m3,
            "e5m2" => MatrixType::E5m2,
            _ => return None,
        })
    }

    /// Bits of an element in a register.
    pub const fn bits(self) -> usize {
        match self {
            MatrixType::B1 => 1,
            MatrixType::S4 | MatrixType::U4 => 4,
            MatrixType::S8 | MatrixType::U8 | MatrixType::E4m3 | MatrixType::E5m2 => 8,
            MatrixType::Bf16 | MatrixType::F16 => 16,
            MatrixType::Tf32 | MatrixType::F32 | MatrixType::S32 => 32,
            MatrixType::F64 => 64,
        }
    }
}

/// What [`MatrixOp::Multiply`] multiplies, in the `immediate` of its instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixShape {
    /// Rows of A and D: 8 or 16. B and D have 8 columns.
    pub rows: usize,
    /// Columns of A.
    pub k: usize,
    /// Type of A,
    pub a: MatrixType,
    /// of B,
    pub b: MatrixType,
    /// and of C and D.
    pub d: MatrixType,
    /// Whether sums of integers are clamped to the range of i32.
    pub clamps: bool,
    /// Whether single bits are combined by exclusive or; else by `and`.
    pub xors: bool,
    /// How sums in f64 are rounded: to nearest, or to one side.
    pub rounding: Rounding,
}

impl MatrixShape {
    /// As an immediate.
    pub fn encode(self) -> i32 {
        self.k as i32
            | (self.rounding as i32 & 3) << 12
            | i32::from(self.rows == 16) << 16
            | (self.a as i32) << 17
            | (self.b as i32) << 21
            | (self.d as i32) << 25
            | i32::from(self.clamps) << 29
            | i32::from(self.xors) << 30
    }

    /// From an immediate.
    pub fn decode(bits: i32) -> Self {
        let ty = |position: i32| MatrixType::ALL[(bits >> position & 15) as usize];
        MatrixShape {
            rows: if bits >> 16 & 1 != 0 { 16 } else { 8 },
            k: (bits & 0xfff) as usize,
            rounding: Rounding::ALL[(bits >> 12 & 3) as usize],
            a: ty(17),
            b: ty(21),
            d: ty(25),
            clamps: bits >> 29 & 1 != 0,
            xors: bits >> 30 & 1 != 0,
        }
    }

    /// Of a sparse product, the lanes of the four of a row that have metadata: the first, and how many. Of
    /// each four values of A two have an index of two bits; of two of tf32 one has two, and of 4 bits pairs
    /// count.
    pub fn metadata_lanes(self, selector: usize) -> (usize, usize) {
        let indices = match self.a {
            MatrixType::Tf32 => self.k,
            MatrixType::S4 | MatrixType::U4 => self.k / 4,
            _ => self.k / 2,
        };
        // Four lanes have that of two rows.
        let count = 2 * 2 * indices / 32;
        (selector * count, count)
    }

    /// Registers of the operands. One holds `32 / bits` values of k of a row of A, or of a column of B; four
    /// lanes have four times as many. The next register of A is of 8 rows more, where there are 16, and the
    /// next two of the next values of k.
    pub fn fragments(self) -> Fragments {
        let value_rows = if self.a == MatrixType::F64 { 2 } else { 1 };
        let lane_bits = self.a.bits().max(32);
        let packed = self.d == MatrixType::F16;
        Fragments {
            a: self.rows / 8 * self.k * self.a.bits() / (4 * lane_bits),
            b: self.k * self.b.bits() / (4 * lane_bits),
            d: self.rows / 8 * if packed { 1 } else { 2 },
            rows: self.rows,
            value_rows,
            packed,
        }
    }
}

/// What [`MatrixOp::MultiplyVolta`] multiplies, in the `immediate` of its instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VoltaShape {
    /// A lane has four values of a column of A, instead of a row.
    pub a_by_columns: bool,
    /// A lane has four values of a column of B, instead of a row.
    pub b_by_columns: bool,
    /// C is f32 instead of f16.
    pub adds_singles: bool,
    /// D is f32 instead of f16.
    pub gives_singles: bool,
}

impl VoltaShape {
    /// Registers of A, and of B.
    pub const FACTOR: usize = 2;

    /// The lanes of one of the four products, the four of the lower half of the warp first.
    pub fn members(product: usize) -> [usize; 8] {
        std::array::from_fn(|index| 16 * (index / 4) + 4 * product + index % 4)
    }

    /// As an immediate.
    pub fn encode(self) -> i32 {
        let VoltaShape { a_by_columns, b_by_columns, adds_singles, gives_singles } = self;
        let bits = [a_by_columns, b_by_columns, adds_singles, gives_singles];
        bits.into_iter().rev().fold(0, |all, bit| all << 1 | i32::from(bit))
    }

    /// From an immediate.
    pub fn decode(bits: i32) -> Self {
        let bit = |position: i32| bits >> position & 1 != 0;
        VoltaShape {
            a_by_columns: bit(0),
            b_by_columns: bit(1),
            adds_singles: bit(2),
            gives_singles: bit(3),
        }
    }

    /// Registers of C.
    pub fn sums(self) -> usize {
        if self.adds_singles { 8 } else { 4 }
    }

    /// Registers of D.
    pub fn results(self) -> usize {
        if self.gives_singles { 8 } else { 4 }
    }
}

/// Where in memory a lane's elements of a fragment are, in the `c` of [`Op::FragmentPlace`]. Four lanes have
/// a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LanePlace {
    /// Strides from the matrix to the first element of lane 0.
    pub apart: usize,
    /// Elements from a lane to the next one of its line.
    pub step: usize,
    /// Bits of an element.
    pub bits: usize,
    /// Whether a line's elements follow each other, and lines are a stride apart; else the other way round.
    pub along_line: bool,
}

impl LanePlace {
    /// As an operand.
    pub fn encode(self) -> u32 {
        let LanePlace { apart, step, bits, along_line } = self;
        apart as u32 | (step as u32) << 8 | (bits as u32) << 16 | u32::from(along_line) << 24
    }

    /// From an operand.
    pub fn decode(bits: u32) -> Self {
        let byte = |at: u32| (bits >> at & 0xff) as usize;
        LanePlace { apart: byte(0), step: byte(8), bits: byte(16), along_line: bits >> 24 != 0 }
    }

    /// Bytes from the matrix to the lane's element.
    pub fn offset(self, lane: usize, stride: u32) -> u64 {
        let (line, place) = (lane / 4, lane % 4 * self.step);
        let (strides, next) = if self.along_line { (line, place) } else { (place, line) };
        let elements = (strides + self.apart) as u64 * u64::from(stride) + next as u64;
        elements * self.bits as u64 / 8
    }
}

/// How the operands of a multiplication lie in registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragments {
    /// Registers of A.
    pub a: usize,
    /// Of B.
    pub b: usize,
    /// Of C and D.
    pub d: usize,
    /// Rows of A, C and D: 8 or 16.
    pub rows: usize,
    /// Rows of the register file that one register takes.
    pub value_rows: u32,
    /// Whether C and D have two columns in a register.
    pub packed: bool,
}

impl Fragments {
    const fn of([a, b, d]: [usize; 3], rows: usize) -> Self {
        Fragments { a, b, d, rows, value_rows: 1, packed: false }
    }

    /// Those of a matrix instruction, if it multiplies.
    pub fn of_instruction(i: &Instruction) -> Option<Self> {
        let Op::Matrix(op) = i.op else { return None };
        Some(match op {
            MatrixOp::M16N8K16Bf16 | MatrixOp::M16N8K16F16 | MatrixOp::M16N8K8Tf32 => {
                Fragments::of([4, 2, 4], 16)
            }
            MatrixOp::M16N8K8Bf16 | MatrixOp::M16N8K8F16 | MatrixOp::M16N8K4Tf32 => {
                Fragments::of([2, 1, 4], 16)
            }
            MatrixOp::M16N8K32Bytes => Fragments::of([4, 2, 4], 16),
            MatrixOp::M16N8K16Bytes => Fragments::of([2, 1, 4], 16),
            MatrixOp::M8N8K16Bytes => Fragments::of([1, 1, 2], 8),
            MatrixOp::Multiply => MatrixShape::decode(i.immediate).fragments(),
            MatrixOp::MultiplySparse => {
                let all = MatrixShape::decode(i.immediate).fragments();
                Fragments { a: all.a / 2, ..all }
            }
            MatrixOp::LoadMatrix
            | MatrixOp::MultiplyVolta
            | MatrixOp::StoreMatrix
            | MatrixOp::MoveTransposed
            | MatrixOp::CheckFragment => return None,
        })
    }
}
