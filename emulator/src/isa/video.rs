//! Video instructions: arithmetic on the one, two or four numbers of a register, chosen, clamped and merged.

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
    /// Half of the sum, rounded up unless it is negative.
    Average,
    /// 1 where a relation holds, else 0.
    Set,
    /// By `b`, at most 32.
    ShiftLeftClamp,
    ShiftRightClamp,
    /// By `b` modulo 32.
    ShiftLeftWrap,
    ShiftRightWrap,
}

const KINDS: [VideoKind; 11] = [
    VideoKind::Add,
    VideoKind::Sub,
    VideoKind::AbsoluteDifference,
    VideoKind::Min,
    VideoKind::Max,
    VideoKind::Average,
    VideoKind::Set,
    VideoKind::ShiftLeftClamp,
    VideoKind::ShiftRightClamp,
    VideoKind::ShiftLeftWrap,
    VideoKind::ShiftRightWrap,
];

/// What becomes of the results together with `c`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum VideoRest {
    /// They take places in `c`, as `bytes` says.
    Merge,
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
    /// The bytes of the destination that results stand in, the others being those of `c`. A single result
    /// has as many bits as there are, and of several only those whose bytes are among them count.
    pub bytes: u32,
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
            | (self.bytes as i32) << 20
    }

    /// From an immediate.
    pub fn decode(bits: i32) -> Self {
        let rests = [VideoRest::Merge, VideoRest::Add, VideoRest::Min, VideoRest::Max];
        VideoOp {
            kind: KINDS[(bits & 15) as usize % KINDS.len()],
            relation: (bits >> 4 & 15) as u8,
            lanes: (bits >> 8 & 15) as u32,
            signed: std::array::from_fn(|index| bits >> (12 + index) & 1 != 0),
            saturates: bits >> 15 & 1 != 0,
            rest: rests[(bits >> 16 & 3) as usize],
            bytes: (bits >> 20 & 15) as u32,
        }
    }
}

/// `vmad`: a product, a sum, and a shift to the right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VideoProduct {
    /// Whether `a` and `b` are signed.
    pub signed: [bool; 2],
    /// Whether the product is negated, and `c`.
    pub negated: [bool; 2],
    /// Whether 1 is added.
    pub plus_one: bool,
    /// Whether the result is clamped.
    pub saturates: bool,
    /// By how many bits it is shifted.
    pub scale: u32,
}

impl VideoProduct {
    /// As an immediate.
    pub fn encode(self) -> i32 {
        let flags = [self.signed, self.negated, [self.plus_one, self.saturates]].concat();
        let flags = flags.iter().rev().fold(0, |bits, &flag| bits << 1 | i32::from(flag));
        flags | (self.scale as i32) << 8
    }

    /// From an immediate.
    pub fn decode(bits: i32) -> Self {
        let flag = |index: i32| bits >> index & 1 != 0;
        VideoProduct {
            signed: [flag(0), flag(1)],
            negated: [flag(2), flag(3)],
            plus_one: flag(4),
            saturates: flag(5),
            scale: (bits >> 8 & 31) as u32,
        }
    }
}
