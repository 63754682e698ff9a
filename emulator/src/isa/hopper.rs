//! Operations of compute capability 9.0: memory barriers, bulk copies, multiplications by a warpgroup.

use super::MatrixType;

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
    /// Bytes of the block's shared memory, at shared address `b`, to that of a block of the cluster.
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
    /// One m64nNk16 multiplication, or k of as many bytes.
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
}

impl WgmmaShape {
    /// Columns of A that one instruction multiplies: as many as are 32 bytes.
    pub fn k(self) -> usize {
        WGMMA_K * 16 / self.a.bits()
    }

    /// Whether A and B are of one 16-bit type, and sums f32.
    pub fn is_usual(self) -> bool {
        self.d == MatrixType::F32 && matches!(self.a, MatrixType::Bf16 | MatrixType::F16)
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
