//! Operations of compute capability 9.0: memory barriers, bulk copies, multiplications by a warpgroup.

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
    /// Awaits `b` more bytes.
    Expect,
    /// Counts `b` bytes as arrived.
    Complete,
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
    /// Of a load, what is added to the barrier's address; of a store, the [`super::ReduceOp`].
    pub const FIRST: usize = 0;
    /// Of a load, whether the barrier's row is 64 bits wide.
    pub const BARRIER_WIDE: usize = 1;
    /// Where the rows start: `count` of them, then, with the optional operand, the mask of blocks.
    pub const ROWS: usize = 2;
}

/// What a store does with the old value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
#[allow(missing_docs)]
pub enum ReduceOp {
    /// Overwrites it.
    None,
    /// Adds elements of the tensor's type.
    AddElement,
    AddF32,
    AddF64,
    AddU32,
    AddU64,
    AddF16,
    AddBf16,
}

impl ReduceOp {
    /// Every operation, in the order of their discriminants.
    pub const ALL: [ReduceOp; 8] = [
        ReduceOp::None,
        ReduceOp::AddElement,
        ReduceOp::AddF32,
        ReduceOp::AddF64,
        ReduceOp::AddU32,
        ReduceOp::AddU64,
        ReduceOp::AddF16,
        ReduceOp::AddBf16,
    ];
}

/// Multiplications by a warpgroup. Of `Multiply`: accumulators in the list at `d`; A in the list at
/// `a` when the optional operand is present, else its descriptor in row `a`; B's descriptor in row `b`;
/// whether to accumulate in predicate `c`; the [`WgmmaShape`] in `e`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WgmmaOp {
    /// Orders accesses to registers before the multiplications that follow.
    Fence,
    /// Ends the open group.
    Commit,
    /// Waits until at most `immediate` groups are incomplete.
    Wait,
    /// One m64nNk16 multiplication.
    Multiply,
}

/// Columns of A and rows of B that one instruction multiplies.
pub const WGMMA_K: usize = 16;

/// Types of A and B.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum WgmmaType {
    Bf16,
    F16,
}

/// What a multiplication's modifiers and immediates say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WgmmaShape {
    /// Columns of B and D.
    pub columns: u32,
    /// Type of A and B.
    pub ty: WgmmaType,
    /// Subtract the product.
    pub negate: bool,
    /// A is stored column after column.
    pub transpose_a: bool,
    /// B is stored row after row.
    pub transpose_b: bool,
}

impl WgmmaShape {
    /// As the operand of an instruction.
    pub fn encode(self) -> u32 {
        self.columns
            | u32::from(self.ty == WgmmaType::F16) << 16
            | u32::from(self.negate) << 17
            | u32::from(self.transpose_a) << 18
            | u32::from(self.transpose_b) << 19
    }

    /// From the operand of an instruction.
    pub fn decode(bits: u32) -> Self {
        let bit = |position: u32| bits >> position & 1 != 0;
        WgmmaShape {
            columns: bits & 0xffff,
            ty: if bit(16) { WgmmaType::F16 } else { WgmmaType::Bf16 },
            negate: bit(17),
            transpose_a: bit(18),
            transpose_b: bit(19),
        }
    }
}
