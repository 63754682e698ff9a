//! Operations that compilers hardly ever write: on one lane after the other, with no loop of their own.

/// Operations on the values of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RareOp {
    /// `fns`: the position of the `c`-th bit set in `a`, from bit `b` on, up or down.
    FindNthSet,
    /// Video instructions on one, two or four numbers in a register; the [`VideoOp`] is in `immediate`.
    Video,
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
            RareOp::FindNthSet | RareOp::Video | RareOp::PackSaturated => [1, 1, 1, 1],
            RareOp::Fp8FromSingles => [1, 1, 1, 0],
            RareOp::Fp8FromHalves | RareOp::HalvesFromFp8 => [1, 1, 0, 0],
            RareOp::RcpUpper | RareOp::RsqrtUpper => [2, 2, 0, 0],
        }
    }
}

/// What a video instruction does with each pair of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum VideoKind {
    Add,
    Sub,
    AbsoluteDifference,
    Min,
    Max,
    /// 1 where a relation holds, else 0.
    Set,
}

/// What becomes of the results together with `c`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum VideoRest {
    /// `c` is not looked at.
    None,
    /// Their sum with it.
    Add,
    /// The smaller one.
    Min,
    /// The larger one.
    Max,
}

/// A video instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VideoOp {
    /// What it does.
    pub kind: VideoKind,
    /// The [`super::Relation`] of `Set`.
    pub relation: u8,
    /// Numbers in a register: 1, 2 or 4.
    pub lanes: u32,
    /// Whether numbers of the result, of `a` and of `b` are signed.
    pub signed: [bool; 3],
    /// Whether results are clamped.
    pub saturates: bool,
    /// What comes then.
    pub rest: VideoRest,
}

impl VideoOp {
    /// As an immediate.
    pub fn encode(self) -> i32 {
        let signed = self.signed.iter().rev().fold(0, |bits, &signed| bits << 1 | i32::from(signed));
        self.kind as i32
            | i32::from(self.relation) << 4
            | (self.lanes as i32) << 8
            | signed << 12
            | i32::from(self.saturates) << 15
            | (self.rest as i32) << 16
    }

    /// From an immediate.
    pub fn decode(bits: i32) -> Self {
        let kinds = [
            VideoKind::Add,
            VideoKind::Sub,
            VideoKind::AbsoluteDifference,
            VideoKind::Min,
            VideoKind::Max,
            VideoKind::Set,
        ];
        let rests = [VideoRest::None, VideoRest::Add, VideoRest::Min, VideoRest::Max];
        VideoOp {
            kind: kinds[(bits & 15) as usize % kinds.len()],
            relation: (bits >> 4 & 15) as u8,
            lanes: (bits >> 8 & 15) as u32,
            signed: std::array::from_fn(|index| bits >> (12 + index) & 1 != 0),
            saturates: bits >> 15 & 1 != 0,
            rest: rests[(bits >> 16 & 3) as usize],
        }
    }
}
