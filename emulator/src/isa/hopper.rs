//! Operations of compute capability 9.0: memory barriers, bulk copies, multiplications by a warpgroup.

use super::{AtomicOp, AtomicType, MatrixShape, MatrixType, Rounding};

/// Memory barriers: address `a` + `immediate`, value in row `b` when the optional operand is present;
/// a token goes to row `d`, the answer of a poll to predicate `d`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MbarrierOp {
    /// Makes one that awaits `b` arrivals in each phase.
    Init,
    /// Ends one.
    Invalidate,
    /// `b` arrivals; one without the optional operand.
    Arrive,
    /// As `Arrive`, and later phases await as many less.
    ArriveDrop,
    /// Awaits `b` more bytes and arrives once.
    ArriveExpect,
    /// As `ArriveExpect`, and later phases await one arrival less.
    ArriveDropExpect,
    /// Awaits `b` more bytes.
    Expect,
    /// Counts `b` bytes as arrived.
    Complete,
    /// The same of bytes that the thread has just stored, or added: who waits for the phase sees them.
    CompleteStore,
    /// Arrives when the `cp.async` of the thread so far have completed: with the optional operand, which has
    /// no meaning, by one of the arrivals that the phase awaits, else by one of its own.
    ArriveCopies,
    /// Whether the phase of token `b` is complete.
    TestState,
    /// As `TestState`, and may wait for it.
    TryState,
    /// Whether the phase of parity `b` is complete.
    TestParity,
    /// As `TestParity`, and may wait for it.
    TryParity,
}

impl MbarrierOp {
    /// Whether it asks for a phase.
    pub fn polls(self) -> bool {
        use MbarrierOp as M;
        matches!(self, M::TestState | M::TryState | M::TestParity | M::TryParity)
    }

    /// Whether it gives the token of its phase.
    pub fn gives_token(self) -> bool {
        use MbarrierOp as M;
        matches!(self, M::Arrive | M::ArriveDrop | M::ArriveExpect | M::ArriveDropExpect)
    }

    /// Whether its value is a token.
    pub fn takes_token(self) -> bool {
        matches!(self, MbarrierOp::TestState | MbarrierOp::TryState)
    }
}

/// Bulk copies: shared address `a` + `immediate`; in 64-bit row `b` the address of the tensor map, or,
/// with `e` added, of global memory; a load's barrier in `c`. The list at `d` is described in
/// [`bulk_list`]. `count`: rows in it, coordinates of a tensor or the size of a plain copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BulkOp {
    /// A box of a tensor to shared memory.
    LoadTensor,
    /// A box of a tensor from shared memory, or added to it.
    StoreTensor,
    /// Bytes to shared memory.
    Load,
    /// Bytes of the block's shared memory, at shared address `b`, to that of a block of the cluster, or added
    /// to it.
    LoadShared,
    /// Bytes from shared memory, or added to it.
    Store,
    /// Ends the open group of stores.
    Commit,
    /// Waits until at most `immediate` groups of stores are incomplete.
    WaitGroup,
    /// Waits until at most `immediate` groups of stores have yet to read shared memory.
    WaitGroupRead,
}

/// Positions in the list of a bulk copy.
pub mod bulk_list {
    /// Of a load, what is added to the barrier's address; of a store, the number of its [`super::Reduction`].
    pub const FIRST: usize = 0;
    /// Of a load, whether the barrier's row is 64 bits wide, and twice the number of its
    /// [`super::Reduction`].
    pub const BARRIER_WIDE: usize = 1;
    /// Where the rows start: `count` of them, then, with the optional operand, the mask of blocks.
    pub const ROWS: usize = 2;
}

/// What a copy does with the value before, element after element; without a type, elements of the tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reduction {
    pub op: AtomicOp,
    pub ty: Option<AtomicType>,
}

impl AtomicOp {
    /// Whether bulk copies do this with elements of a type; of `B16`, small integers of a tensor.
    pub fn is_of(self, ty: AtomicType) -> bool {
        use AtomicType::{B16, B32, B64, Bf16, F16, F32, F64, S32, S64, U32, U64};
        match self {
            AtomicOp::Add => matches!(ty, B16 | U32 | S32 | U64 | S64 | F16 | Bf16 | F32 | F64),
            AtomicOp::Min | AtomicOp::Max => matches!(ty, U32 | S32 | U64 | S64 | F16 | Bf16),
            AtomicOp::Increment | AtomicOp::Decrement => ty == U32,
            AtomicOp::And | AtomicOp::Or | AtomicOp::Xor => {
                matches!(ty, B32 | B64 | U32 | S32 | U64 | S64)
            }
            AtomicOp::Exchange | AtomicOp::CompareExchange => false,
        }
    }
}

impl Reduction {
    const OPS: [AtomicOp; 8] = [
        AtomicOp::Add,
        AtomicOp::Min,
        AtomicOp::Max,
        AtomicOp::Increment,
        AtomicOp::Decrement,
        AtomicOp::And,
        AtomicOp::Or,
        AtomicOp::Xor,
    ];
    const TYPES: [Option<AtomicType>; 11] = [
        None,
        Some(AtomicType::B32),
        Some(AtomicType::B64),
        Some(AtomicType::U32),
        Some(AtomicType::S32),
        Some(AtomicType::U64),
        Some(AtomicType::S64),
        Some(AtomicType::F16),
        Some(AtomicType::Bf16),
        Some(AtomicType::F32),
        Some(AtomicType::F64),
    ];

    /// What modifiers say: an operation, and a type unless the copy is one of a tensor. Copies to shared
    /// memory know fewer.
    pub fn of_words(words: &[&str], to_shared: bool) -> Option<Self> {
        use AtomicType::{B32, B64, Bf16, F16, F32, F64, S32, S64, U32, U64};
        let (op, ty) = match *words {
            [op] => (op, None),
            [op, ty] => (op, Some(ty)),
            [op @ "add", "noftz", ty @ ("f16" | "bf16")] => (op, Some(ty)),
            _ => return None,
        };
        let op = match op {
            "add" => AtomicOp::Add,
            "min" => AtomicOp::Min,
            "max" => AtomicOp::Max,
            "inc" => AtomicOp::Increment,
            "dec" => AtomicOp::Decrement,
            "and" => AtomicOp::And,
            "or" => AtomicOp::Or,
            "xor" => AtomicOp::Xor,
            _ => return None,
        };
        let Some(ty) = ty else { return (!to_shared).then_some(Reduction { op, ty: None }) };
        let ty = match ty {
            "b32" => B32,
            "b64" => B64,
            "u32" => U32,
            "s32" => S32,
            "u64" => U64,
            "s64" => S64,
            "f16" => F16,
            "bf16" => Bf16,
            "f32" => F32,
            "f64" => F64,
            _ => return None,
        };
        let is_there = match (op, to_shared) {
            (AtomicOp::And | AtomicOp::Or | AtomicOp::Xor, true) => ty == B32,
            (AtomicOp::And | AtomicOp::Or | AtomicOp::Xor, false) => matches!(ty, B32 | B64),
            (AtomicOp::Min | AtomicOp::Max, true) => matches!(ty, U32 | S32),
            (AtomicOp::Add, true) => matches!(ty, U32 | S32 | U64),
            (AtomicOp::Add, false) if words.len() == 2 => matches!(ty, U32 | S32 | U64 | F32 | F64),
            _ => op.is_of(ty),
        };
        is_there.then_some(Reduction { op, ty: Some(ty) })
    }

    /// As a number in a list, 0 for none.
    pub fn encode(reduction: Option<Self>) -> u32 {
        let Some(Reduction { op, ty }) = reduction else { return 0 };
        let op = Self::OPS.iter().position(|&other| other == op).unwrap_or(0);
        let ty = Self::TYPES.iter().position(|&other| other == ty).unwrap_or(0);
        1 + (op + ty * Self::OPS.len()) as u32
    }

    /// From a number in a list.
    pub fn decode(number: u32) -> Option<Self> {
        let number = number.checked_sub(1)? as usize;
        let op = Self::OPS[number % Self::OPS.len()];
        Some(Reduction { op, ty: Self::TYPES[number / Self::OPS.len()] })
    }
}

/// Multiplications by a warpgroup. Of `Multiply`: accumulators in the list at `d`, and behind them the
/// metadata of a sparse one; A in the list at `a` when the optional operand is present, else its descriptor
/// in row `a`; B's descriptor in row `b`; whether to accumulate in predicate `c`; the [`WgmmaShape`] in `e`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WgmmaOp {
    /// Orders accesses to registers before the multiplications that follow.
    Fence,
    /// Ends the open group.
    Commit,
    /// Waits until at most `immediate` groups are incomplete.
    Wait,
    /// One m64nNk16 multiplication, or k of as many bytes; twice as many where A is sparse.
    Multiply,
}

/// Columns of A and rows of B that one instruction multiplies, of 16 bits.
pub const WGMMA_K: usize = 16;

/// What a multiplication's modifiers and immediates say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WgmmaShape {
    /// Columns of B and D.
    pub columns: u32,
    /// Type of A,
    pub a: MatrixType,
    /// of B,
    pub b: MatrixType,
    /// and of D.
    pub d: MatrixType,
    /// Sums of integers are clamped.
    pub clamps: bool,
    /// Subtract the product.
    pub negate: bool,
    /// A is stored column after column.
    pub transpose_a: bool,
    /// B is stored row after row.
    pub transpose_b: bool,
    /// Half of A is left out; which lanes of four have metadata of the other half.
    pub selector: Option<u8>,
}

impl WgmmaShape {
    /// Columns of A that one instruction multiplies: as many as are 32 bytes, or twice as many where half of
    /// them is left out.
    pub fn k(self) -> usize {
        self.kept() << u32::from(self.selector.is_some())
    }

    /// Values of a row of A: 32 bytes.
    pub fn kept(self) -> usize {
        WGMMA_K * 16 / self.a.bits()
    }

    /// Whether A and B are of one 16-bit type, A is whole, and sums f32.
    pub fn is_usual(self) -> bool {
        let is_half = matches!(self.a, MatrixType::Bf16 | MatrixType::F16);
        is_half && self.d == MatrixType::F32 && self.selector.is_none()
    }

    /// What a warp multiplies, by 8 columns of B.
    pub fn of_warp(self) -> MatrixShape {
        let WgmmaShape { a, b, d, clamps, .. } = self;
        let rounding = Rounding::NearestEven;
        MatrixShape { rows: 16, k: self.k(), a, b, d, clamps, xors: false, rounding }
    }

    /// Registers of D.
    pub fn accumulators(self) -> usize {
        self.columns as usize / if self.d == MatrixType::F16 { 4 } else { 2 }
    }

    /// As the operand of an instruction.
    pub fn encode(self) -> u32 {
        self.columns
            | (self.a as u32) << 9
            | (self.b as u32) << 13
            | (self.d as u32) << 17
            | u32::from(self.negate) << 21
            | u32::from(self.transpose_a) << 22
            | u32::from(self.transpose_b) << 23
            | u32::from(self.clamps) << 24
            | self.selector.map_or(0, |selector| 1 | u32::from(selector) << 1) << 25
    }

    /// From the operand of an instruction.
    #[inline(always)]
    pub fn decode(bits: u32) -> Self {
        let bit = |position: u32| bits >> position & 1 != 0;
        let ty = |position: u32| MatrixType::ALL[(bits >> position & 15) as usize];
        WgmmaShape {
            columns: bits & 0x1ff,
            a: ty(9),
            b: ty(13),
            d: ty(17),
            negate: bit(21),
            transpose_a: bit(22),
            transpose_b: bit(23),
            clamps: bit(24),
            selector: bit(25).then_some((bits >> 26 & 3) as u8),
        }
    }
}

/// The number of a field that `tensormap.replace` replaces, in the order of `tensor_map::MapField`, and
/// whether it has a value for each dimension.
pub fn map_field(name: &str) -> Option<(u32, bool)> {
    Some(match name {
        "global_address" => (0, false),
        "rank" => (1, false),
        "box_dim" => (2, true),
        "global_dim" => (3, true),
        "global_stride" => (4, true),
        "element_stride" => (5, true),
        "elemtype" => (6, false),
        "interleave_layout" => (7, false),
        "swizzle_mode" => (8, false),
        "fill_mode" => (9, false),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reduction_is_what_its_words_say_and_nothing_else() {
        for words in
            [&["f32"][..], &["noftz"], &["noftz", "f16"], &["add", "noftz", "f32"], &["add", "add"]]
        {
            assert_eq!(Reduction::of_words(words, false), None, "{words:?}");
        }
        let found = Reduction::of_words(&["add", "noftz", "bf16"], false);
        assert_eq!(found, Some(Reduction { op: AtomicOp::Add, ty: Some(AtomicType::Bf16) }));
        assert_eq!(Reduction::of_words(&["add", "noftz", "bf16"], true), None);
        let of_tensor = Some(Reduction { op: AtomicOp::Xor, ty: None });
        assert_eq!(Reduction::of_words(&["xor"], false), of_tensor);
        assert_eq!(Reduction::of_words(&["xor"], true), None);
    }

    #[test]
    fn reductions_are_numbers_and_back() {
        for op in Reduction::OPS {
            for ty in Reduction::TYPES {
                let reduction = Some(Reduction { op, ty });
                assert_eq!(Reduction::decode(Reduction::encode(reduction)), reduction);
            }
        }
        assert_eq!(Reduction::decode(Reduction::encode(None)), None);
    }
}
