//! Operations that compilers hardly ever write: on one lane after the other, with no loop of their own.

/// Operations on the values of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RareOp {
    /// `fns`: the position of the `c`-th bit set in `a`, from bit `b` on, up or down.
    FindNthSet,
    /// Video instructions on one, two or four numbers; the [`super::VideoOp`] is in `immediate`.
    Video,
    /// `vmad`; the [`super::VideoProduct`] is in `immediate`.
    VideoMultiplyAdd,
    /// Two f32 to two numbers of 8 bits: e4m3, or e5m2 if `immediate` is not 0; `.relu` in the variant.
    Fp8FromSingles,
    /// The same of two f16 in a register.
    Fp8FromHalves,
    /// Two numbers of 8 bits to two f16.
    HalvesFromFp8,
    /// `cvt.pack.sat`: the s32 `a` and `b`, clamped to as many bits as `immediate` says, signed if bit 8 is
    /// set, above the lower bits of `c`.
    PackSaturated,
    /// `rcp.approx.ftz.f64`: of the upper 32 bits, with zeros below.
    RcpUpper,
    /// `rsqrt.approx.ftz.f64`, likewise.
    RsqrtUpper,
}

impl RareOp {
    /// Rows of the destination and of sources `a`, `b` and `c`.
    pub fn rows(self) -> [u32; 4] {
        match self {
            RareOp::FindNthSet | RareOp::PackSaturated => [1, 1, 1, 1],
            RareOp::Video | RareOp::VideoMultiplyAdd => [1, 1, 1, 1],
            RareOp::Fp8FromSingles => [1, 1, 1, 0],
            RareOp::Fp8FromHalves | RareOp::HalvesFromFp8 => [1, 1, 0, 0],
            RareOp::RcpUpper | RareOp::RsqrtUpper => [2, 2, 0, 0],
        }
    }
}
