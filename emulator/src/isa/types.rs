//! Types, relations and roundings that instructions name.

use crate::space::Space;

/// Types of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum CompareType {
    U16,
    S16,
    U32,
    S32,
    U64,
    S64,
    F16,
    Bf16,
    F32,
    F64,
}

/// Relations of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Relation {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    /// Equal, or either is NaN; and so on for the other `…Unordered`.
    EqUnordered,
    NeUnordered,
    LtUnordered,
    LeUnordered,
    GtUnordered,
    GeUnordered,
    /// Neither is NaN.
    Number,
    /// Either is NaN.
    Nan,
}

impl Relation {
    /// Every relation, in the order of their discriminants.
    pub const ALL: [Relation; 14] = [
        Relation::Eq,
        Relation::Ne,
        Relation::Lt,
        Relation::Le,
        Relation::Gt,
        Relation::Ge,
        Relation::EqUnordered,
        Relation::NeUnordered,
        Relation::LtUnordered,
        Relation::LeUnordered,
        Relation::GtUnordered,
        Relation::GeUnordered,
        Relation::Number,
        Relation::Nan,
    ];
}

/// How a comparison's result is combined with predicate `c`, in `immediate`: 0 not at all.
pub mod combine {
    /// `and`.
    pub const AND: i32 = 1;
    /// `or`.
    pub const OR: i32 = 2;
    /// `xor`.
    pub const XOR: i32 = 3;
}

/// Types of a conversion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum ConvertType {
    U8,
    S8,
    U16,
    S16,
    U32,
    S32,
    U64,
    S64,
    F16,
    Bf16,
    F32,
    F64,
}

impl ConvertType {
    /// Every type, in the order of their discriminants.
    pub const ALL: [ConvertType; 12] = [
        ConvertType::U8,
        ConvertType::S8,
        ConvertType::U16,
        ConvertType::S16,
        ConvertType::U32,
        ConvertType::S32,
        ConvertType::U64,
        ConvertType::S64,
        ConvertType::F16,
        ConvertType::Bf16,
        ConvertType::F32,
        ConvertType::F64,
    ];

    /// Whether a value takes two rows.
    pub const fn is_wide(self) -> bool {
        matches!(self, ConvertType::U64 | ConvertType::S64 | ConvertType::F64)
    }

    /// Whether values are floating-point numbers.
    pub const fn is_float(self) -> bool {
        matches!(self, ConvertType::F16 | ConvertType::Bf16 | ConvertType::F32 | ConvertType::F64)
    }
}

/// Rounding of a conversion; the `Integer` forms round a float to an integral value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Rounding {
    NearestEven,
    Zero,
    Down,
    Up,
    IntegerNearestEven,
    IntegerZero,
    IntegerDown,
    IntegerUp,
}

impl Rounding {
    /// Every rounding, in the order of their discriminants.
    pub const ALL: [Rounding; 8] = [
        Rounding::NearestEven,
        Rounding::Zero,
        Rounding::Down,
        Rounding::Up,
        Rounding::IntegerNearestEven,
        Rounding::IntegerZero,
        Rounding::IntegerDown,
        Rounding::IntegerUp,
    ];
}

/// Types of an atomic operation, in the `count` of its instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum AtomicType {
    B16,
    B32,
    U32,
    S32,
    B64,
    U64,
    S64,
    F16,
    Bf16,
    F16x2,
    Bf16x2,
    F32,
    F64,
    B128,
}

impl AtomicType {
    /// Every type, in the order of their discriminants.
    pub const ALL: [AtomicType; 14] = [
        AtomicType::B16,
        AtomicType::B32,
        AtomicType::U32,
        AtomicType::S32,
        AtomicType::B64,
        AtomicType::U64,
        AtomicType::S64,
        AtomicType::F16,
        AtomicType::Bf16,
        AtomicType::F16x2,
        AtomicType::Bf16x2,
        AtomicType::F32,
        AtomicType::F64,
        AtomicType::B128,
    ];
}

/// Spaces of an atomic operation, in the `e` of its instruction.
pub const ATOMIC_SPACES: [Space; 4] = [Space::Generic, Space::Global, Space::Shared, Space::Cluster];

/// How [`super::Op::ConvertTf32`] rounds.
pub mod tf32 {
    /// To the nearest number, and in the middle away from 0.
    pub const AWAY: i32 = 0;
    /// To the nearest number, and in the middle to the even one.
    pub const EVEN: i32 = 1;
    /// Towards 0.
    pub const ZERO: i32 = 2;
}
