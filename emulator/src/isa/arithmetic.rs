//! Operations on integers and floating-point numbers.

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

/// Operations on integers that read or write the carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CarryOp {
    /// Sum.
    Add,
    /// Difference; the carry is that nothing was borrowed, as the hardware has it.
    Sub,
    /// Lower half of the product, plus `c`.
    Mad,
    /// Upper half of the unsigned product, plus `c`.
    MadHighUnsigned,
    /// Upper half of the signed product, plus `c`.
    MadHighSigned,
}
