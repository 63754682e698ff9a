//! Operations, by family.

use crate::memory::Space;

/// What an instruction does: a family, and the operation in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Nothing that the emulator models (`nanosleep`, fences, prefetches, register budgets).
    Nop,
    /// Jump to `immediate`; guarded ones reconverge at `e`.
    Branch,
    /// Jump to the entry of the list at `d` (length `e`) that row `a` selects; reconverges at `immediate`.
    BranchIndexed,
    /// End of the thread.
    Exit,
    /// Abort.
    Trap,
    /// An instruction that the decoder does not know; a kernel with one never launches.
    Unsupported,
    /// Block-wide barriers.
    Barrier(BarrierOp),
    /// `bar.warp.sync` with the member mask in row `a`.
    WarpSync,
    /// 16-bit integers.
    Integer16(IntegerOp),
    /// 32-bit integers.
    Integer32(IntegerOp),
    /// 64-bit integers.
    Integer64(IntegerOp),
    /// binary32.
    Float32(FloatOp),
    /// binary64.
    Float64(FloatOp),
    /// binary16.
    Half(FloatOp),
    /// bfloat16.
    Bfloat(FloatOp),
    /// Two binary16 in a register.
    HalfPair(FloatOp),
    /// Two bfloat16 in a register.
    BfloatPair(FloatOp),
    /// Comparison to a predicate `d` and its complement `e`; the [`Relation`] is in `count`.
    Compare(CompareType),
    /// `selp` of 32 bits.
    Select32,
    /// `selp` of 64 bits.
    Select64,
    /// Logic on predicates.
    Predicate(PredicateOp),
    /// Moves, packing and address-space changes.
    Move(MoveOp),
    /// Conversion between the types in `b` (from) and `c` (to), as [`ConvertType`], rounding in `count`.
    Convert,
    /// Two f32 to a pair of bf16.
    ConvertPairBfloat,
    /// Two f32 to a pair of f16.
    ConvertPairHalf,
    /// Widening u32 to u64.
    ConvertU32ToU64,
    /// Widening s32 to s64.
    ConvertS32ToS64,
    /// Dropping the upper half of 64 bits.
    ConvertU64ToU32,
    /// Dropping the upper half of 32 bits.
    ConvertU32ToU16,
    /// Widening bf16 to f32.
    ConvertBfloatToF32,
    /// Widening f16 to f32.
    ConvertHalfToF32,
    /// Load from a state space; element bytes in `b`, vector length in `count`.
    Load(Space),
    /// Store to a state space; element bytes in `b`, vector length in `count`.
    Store(Space),
    /// Read-modify-write; see [`AtomicOp`].
    Atomic(AtomicOp),
    /// `shfl.sync`.
    Shuffle(ShuffleOp),
    /// `vote.sync`.
    Vote(VoteOp),
    /// `match.any.sync` of 32 bits.
    MatchAny32,
    /// `match.all.sync` of 32 bits.
    MatchAll32,
    /// `activemask`.
    ActiveMask,
    /// `elect.sync`.
    Elect,
    /// `redux.sync`.
    Redux(ReduxOp),
    /// Matrix instructions.
    Matrix(MatrixOp),
    /// Asynchronous copies to shared memory.
    AsyncCopy(AsyncCopyOp),
    /// A clock read of 32 bits.
    Clock32,
    /// A clock read of 64 bits.
    Clock64,
}

/// Block-wide barriers: id in row `a`, thread count in row `b` when the optional operand is present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BarrierOp {
    /// Arrive and wait.
    Sync,
    /// Arrive only.
    Arrive,
    /// Arrive, wait, and count the threads whose predicate `c` holds, into row `d`.
    ReducePopulation,
    /// Arrive, wait, and combine predicates by `and`, into predicate `d`.
    ReduceAnd,
    /// Arrive, wait, and combine predicates by `or`, into predicate `d`.
    ReduceOr,
}

/// Operations on integers of one width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IntegerOp {
    /// Sum.
    Add,
    /// Difference.
    Sub,
    /// Lower half of the product.
    Mul,
    /// Upper half of the unsigned product.
    MulHighUnsigned,
    /// Upper half of the signed product.
    MulHighSigned,
    /// Unsigned product of twice the width.
    MulWideUnsigned,
    /// Signed product of twice the width.
    MulWideSigned,
    /// Lower half of the product, plus `c`.
    Mad,
    /// Upper half of the unsigned product, plus `c`.
    MadHighUnsigned,
    /// Upper half of the signed product, plus `c`.
    MadHighSigned,
    /// Unsigned product of twice the width, plus `c`.
    MadWideUnsigned,
    /// Signed product of twice the width, plus `c`.
    MadWideSigned,
    /// Signed sum clamped to the type's range.
    AddSaturating,
    /// Signed difference clamped to the type's range.
    SubSaturating,
    /// Unsigned quotient.
    DivUnsigned,
    /// Signed quotient.
    DivSigned,
    /// Unsigned remainder.
    RemUnsigned,
    /// Signed remainder.
    RemSigned,
    /// Bitwise and.
    And,
    /// Bitwise or.
    Or,
    /// Bitwise exclusive or.
    Xor,
    /// Bitwise complement.
    Not,
    /// 1 for zero, else 0.
    LogicalNot,
    /// Left shift; amounts beyond the width give 0.
    ShiftLeft,
    /// Logical right shift; amounts beyond the width give 0.
    ShiftRightUnsigned,
    /// Arithmetic right shift; amounts are clamped to the width.
    ShiftRightSigned,
    /// Negation.
    Neg,
    /// Absolute value.
    Abs,
    /// Unsigned minimum.
    MinUnsigned,
    /// Unsigned maximum.
    MaxUnsigned,
    /// Signed minimum.
    MinSigned,
    /// Signed maximum.
    MaxSigned,
    /// Number of bits set.
    PopulationCount,
    /// Number of leading zeros.
    LeadingZeros,
    /// Bits in reverse order.
    ReverseBits,
    /// Position of the highest bit that differs from an unsigned zero extension.
    FindHighUnsigned,
    /// Position of the highest bit that differs from the sign.
    FindHighSigned,
    /// Unsigned bit field.
    FieldExtractUnsigned,
    /// Signed bit field.
    FieldExtractSigned,
    /// Bit field insertion: `a` into `b` at `c`, length `e`.
    FieldInsert,
    /// Byte permutation.
    Permute,
    /// Three-input logic by the table in `immediate`.
    Logic3,
    /// Funnel shift left, amount modulo 32.
    FunnelLeftWrap,
    /// Funnel shift left, amount clamped to 32.
    FunnelLeftClamp,
    /// Funnel shift right, amount modulo 32.
    FunnelRightWrap,
    /// Funnel shift right, amount clamped to 32.
    FunnelRightClamp,
    /// Lower 24-bit unsigned product.
    Mul24Unsigned,
    /// Lower 24-bit signed product.
    Mul24Signed,
    /// Sum of absolute differences, unsigned.
    SadUnsigned,
    /// Sum of absolute differences, signed.
    SadSigned,
    /// Four-way dot product of unsigned bytes, plus `c`.
    Dp4aUnsigned,
    /// Four-way dot product of signed bytes, plus `c`.
    Dp4aSigned,
}

/// Operations on floating-point numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FloatOp {
    /// Sum.
    Add,
    /// Difference.
    Sub,
    /// Product.
    Mul,
    /// Fused multiply-add.
    Fma,
    /// Quotient.
    Div,
    /// Minimum.
    Min,
    /// Maximum.
    Max,
    /// Negation.
    Neg,
    /// Absolute value.
    Abs,
    /// Reciprocal.
    Rcp,
    /// Square root.
    Sqrt,
    /// Reciprocal square root.
    Rsqrt,
    /// 2 to the power of.
    Ex2,
    /// Logarithm to base 2.
    Lg2,
    /// Hyperbolic tangent.
    Tanh,
    /// Sine.
    Sin,
    /// Cosine.
    Cos,
    /// Copy of sign: the magnitude of `b` with the sign of `a`.
    CopySign,
}

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

/// Logic on predicates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum PredicateOp {
    Move,
    Not,
    And,
    Or,
    Xor,
}

/// Moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveOp {
    /// 32 bits, or 16 in a 32-bit lane.
    Bits32,
    /// 64 bits.
    Bits64,
    /// Two 64-bit rows.
    Bits128,
    /// Vector of `count` elements at list `a`, of `b` bytes each, to a scalar `d` of `c` bytes.
    Pack,
    /// Scalar `a` of `c` bytes to a vector of `count` elements at list `d`, of `b` bytes each.
    Unpack,
    /// Generic from a window offset: adds the 64-bit constant in row `b`.
    ToGeneric,
    /// Window offset from a generic address.
    FromGeneric,
    /// Whether a generic address lies in the space numbered `immediate`; predicate `d`.
    IsSpace,
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

/// Read-modify-write operations.
///
/// Operands: old value to `d` (the sink for `red`), address `a` + `immediate`, operand `b`, second
/// operand of `cas` in `c`; the space and the type are in `e` and `count` ([`crate::decode::atomic`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum AtomicOp {
    Add,
    Exchange,
    CompareExchange,
    Min,
    Max,
    And,
    Or,
    Xor,
    Increment,
    Decrement,
}

/// Modes of `shfl.sync`: value `a`, lane operand `b`, clamp `c`, member mask `e`; the lane-in-range
/// predicate is `immediate`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum ShuffleOp {
    Up,
    Down,
    Butterfly,
    Index,
}

/// Modes of `vote.sync`: source predicate `a`, member mask row `b`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum VoteOp {
    All,
    Any,
    Uniform,
    Ballot,
}

/// Operations of `redux.sync`: value `a`, member mask `b`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum ReduxOp {
    Add,
    And,
    Or,
    Xor,
    MinUnsigned,
    MaxUnsigned,
    MinSigned,
    MaxSigned,
}

/// Matrix instructions. Of `mma`, the lists at `d`, `a`, `b` and `c` hold the fragments' rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatrixOp {
    /// m16n8k16, bf16 inputs, f32 accumulators.
    M16N8K16Bf16,
    /// m16n8k16, f16 inputs, f32 accumulators.
    M16N8K16F16,
    /// m16n8k8, bf16 inputs, f32 accumulators.
    M16N8K8Bf16,
    /// m16n8k8, f16 inputs, f32 accumulators.
    M16N8K8F16,
    /// m16n8k8, tf32 inputs, f32 accumulators.
    M16N8K8Tf32,
    /// m16n8k4, tf32 inputs, f32 accumulators.
    M16N8K4Tf32,
    /// `ldmatrix` of `count` matrices into the list at `d`.
    LoadMatrix,
    /// `stmatrix` of `count` matrices from the list at `d`.
    StoreMatrix,
}

/// Asynchronous copies to shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsyncCopyOp {
    /// `cp.async`: shared address `a` + `immediate`, global address `b` + `e`, bytes in `count`, source
    /// bytes in row `c` when the optional operand is present.
    Copy,
    /// `cp.async.commit_group`.
    Commit,
    /// `cp.async.wait_group` with `immediate` groups left.
    WaitGroup,
    /// `cp.async.wait_all`.
    WaitAll,
}
