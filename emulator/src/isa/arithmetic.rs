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
    /// Upper half of the signed product, plus `c`, clamped to the type's range.
    MadHighSaturating,
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
    /// `a` if the signed 32-bit number `c` is at least 0, else `b`.
    SelectBySign,
    /// `a` if the f32 `c` is at least 0, else `b`.
    SelectByFloat,
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
    /// By how much to shift left to have the highest bit that differs from a zero extension at the top.
    ShiftToHighUnsigned,
    /// The same of the highest bit that differs from the sign.
    ShiftToHighSigned,
    /// `b` ones from bit `a` on, both modulo 32.
    BitMaskWrap,
    /// The same, cut off at 32.
    BitMaskClamp,
    /// The lower `b` bits, a number modulo 32, extended with zeros.
    ExtendUnsignedWrap,
    /// The same with the sign.
    ExtendSignedWrap,
    /// The lower `b` bits extended with zeros; with 32 and more, all.
    ExtendUnsignedClamp,
    /// The same with the sign.
    ExtendSignedClamp,
    /// Bit field insertion: `a` into `b` at `c`, length `e`.
    FieldInsert,
    /// Byte permutation.
    Permute,
    /// Byte permutation of a mode, by its number in `immediate`, and the lower two bits of `c`.
    PermuteByTable,
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
    /// Lower 32 bits of the product of unsigned numbers of 24 bits.
    Mul24Unsigned,
    /// The same of signed ones.
    Mul24Signed,
    /// Upper 32 of its 48 bits.
    Mul24HighUnsigned,
    /// The same of signed ones.
    Mul24HighSigned,
    /// Lower 32 bits of the product of unsigned numbers of 24 bits, plus `c`.
    Mad24Unsigned,
    /// The same of signed ones.
    Mad24Signed,
    /// Upper 32 of the product's 48 bits, plus `c`.
    Mad24HighUnsigned,
    /// The same of signed ones.
    Mad24HighSigned,
    /// The same, clamped to the type's range.
    Mad24HighSaturating,
    /// Signed minimum, at least 0.
    MinRelu,
    /// Signed maximum, at least 0.
    MaxRelu,
    /// Sums of the halves.
    AddPair,
    /// Minima of unsigned halves.
    MinPairUnsigned,
    /// Maxima of unsigned halves.
    MaxPairUnsigned,
    /// Minima of signed halves.
    MinPairSigned,
    /// Maxima of signed halves.
    MaxPairSigned,
    /// Minima of signed halves, at least 0.
    MinPairRelu,
    /// Maxima of signed halves, at least 0.
    MaxPairRelu,
    /// Sum of absolute differences, unsigned.
    SadUnsigned,
    /// Sum of absolute differences, signed.
    SadSigned,
    /// Dot product of the bytes of `a` and `b`, plus `c`: signed ones of `a` by bit 0 of `immediate`, of `b`
    /// by bit 1.
    DotBytes,
    /// Dot product of the halves of `a` and the lower or, by bit 2, the upper two bytes of `b`, plus `c`.
    DotHalves,
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
