//! Operations, by family.

use super::{BulkOp, CarryOp, CompareType, FloatOp, IntegerOp, MbarrierOp, RareOp, WgmmaOp};
use crate::space::Space;

/// What an instruction does: a family, and the operation in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Nothing that the emulator models (`nanosleep`, prefetches, cache hints).
    Nop,
    /// Jump to `immediate`; guarded ones reconverge at `e`.
    Branch,
    /// Jump to the entry of the list at `d` (length `e`) that row `a` selects; reconverges at
    /// `immediate`.
    BranchIndexed,
    /// End of the thread.
    Exit,
    /// Call of the function `immediate`, or, if that is negative, of the one at the address in row `a`. The
    /// list at `d` has the local addresses of `count` arguments and, behind them, of `e` results.
    Call,
    /// Return from a function.
    Return,
    /// Call of a function that the emulator provides; the list as for `Call`.
    CallBuiltin(Builtin),
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
    /// Integers of `count` rows with the carry in predicate `e`: read if the optional operand is present,
    /// written if the saturate flag is set.
    Carry(CarryOp),
    /// binary32; the [`super::Rounding`] is in `count`.
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
    /// Comparison to a predicate `d` and its complement `e`; the [`super::Relation`] is in `count`.
    Compare(CompareType),
    /// `selp` of 32 bits.
    Select32,
    /// `selp` of 64 bits.
    Select64,
    /// Logic on predicates `a`, negated by its flag, and `b`, negated if `immediate` is not 0.
    Predicate(PredicateOp),
    /// Moves, packing and address-space changes.
    Move(MoveOp),
    /// Conversion between the [`super::ConvertType`]s in `b` (from) and `c` (to); rounding in `count`.
    Convert,
    /// Two f32 to a pair of bf16.
    ConvertPairBfloat,
    /// Two f32 to a pair of f16.
    ConvertPairHalf,
    /// f32 to the nearest tf32, ties away from zero; to even in the variant; with the saturate flag towards
    /// zero.
    ConvertTf32,
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
    /// What compilers hardly ever write.
    Rare(RareOp),
    /// Whether generic address `a` is that of a constant; predicate `d`.
    IsConstant,
    /// Makes room for as many bytes as row `a` says on the stack of local memory, at an address aligned to
    /// `immediate`, which goes to row `d`: of 64 bits, as is `a`, when `count` is 2.
    StackAllocate,
    /// The top of that stack to row `d`.
    StackSave,
    /// From row `a` the top of that stack.
    StackRestore,
    /// `tensormap.replace`: in the tensor map at address `a` + `immediate`, the field numbered `e`, of
    /// dimension `c`, becomes what is in row `b`, of 64 bits when `count` is 2.
    ReplaceInMap,
    /// `tensormap.cp_fenceproxy`: 128 bytes from shared address `b` to global address `a`, offsets in
    /// `immediate` and `e`.
    CopyMap,
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
    /// `match.any.sync` of `count` rows.
    MatchAny,
    /// `match.all.sync` of `count` rows.
    MatchAll,
    /// `activemask`.
    ActiveMask,
    /// `elect.sync`.
    Elect,
    /// `redux.sync`.
    Redux(ReduxOp),
    /// Matrix instructions.
    Matrix(MatrixOp),
    /// The address of a lane's first element of a part of a matrix: address `a` + `immediate`, stride `b` in
    /// elements; the [`super::LanePlace`] is in `c`.
    FragmentPlace,
    /// Asynchronous copies to shared memory.
    AsyncCopy(AsyncCopyOp),
    /// Memory barriers.
    Mbarrier(MbarrierOp),
    /// Bulk copies between global and shared memory.
    Bulk(BulkOp),
    /// Multiplications by a warpgroup.
    Wgmma(WgmmaOp),
    /// `fence.proxy.async`.
    ProxyFence,
    /// `fence` and `membar`.
    Fence,
    /// `fence.mbarrier_init`.
    MbarrierFence,
    /// `griddepcontrol.launch_dependents`.
    AllowNextGrid,
    /// `griddepcontrol.wait`.
    AwaitGrid,
    /// `setmaxnreg` to `immediate` registers; an increase when the optional operand is present.
    SetMaxRegisters,
    /// `mapa`: address `a` of block `b` of the cluster; 64-bit rows when `count` is 2.
    MapAddress,
    /// `getctarank`: the block of the cluster that address `a` belongs to; a 64-bit row when `count` is 2.
    BlockRank,
    /// Whether generic address `a` is one in the shared memory of the thread's own block; predicate `d`.
    IsOwnShared,
    /// `barrier.cluster.arrive`.
    ClusterArrive,
    /// `barrier.cluster.wait`.
    ClusterWait,
    /// A clock read of 32 bits.
    Clock32,
    /// A clock read of 64 bits.
    Clock64,
}

/// Functions that the emulator provides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Builtin {
    /// `vprintf(format, arguments)`.
    Print,
    /// `__assertfail(expression, file, line, function, character size)`.
    AssertFail,
    /// `malloc(bytes)`.
    Allocate,
    /// `free(address)`.
    Free,
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

/// Read-modify-write operations.
///
/// Operands: old value to `d` (the sink for `red`), address `a` + `immediate`, operand `b`, second
/// operand of `cas` in `c`; the space ([`super::ATOMIC_SPACES`]) and the type ([`super::AtomicType`]) are in
/// `e` and `count`.
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
    /// m16n8k32, bytes, i32 accumulators: signed ones of A by bit 0 of `immediate`, of B by bit 1; by bit 2
    /// results are clamped to the range of i32.
    M16N8K32Bytes,
    /// m16n8k16 of the same.
    M16N8K16Bytes,
    /// m8n8k16 of the same.
    M8N8K16Bytes,
    /// Any other `mma`; the [`super::MatrixShape`] is in `immediate`.
    Multiply,
    /// `ldmatrix` of `count` matrices into the list at `d`.
    LoadMatrix,
    /// `stmatrix` of `count` matrices from the list at `d`.
    StoreMatrix,
    /// `movmatrix`: the matrix in row `a`, transposed.
    MoveTransposed,
    /// `mma.sp`: as `Multiply`, and A without what is zero; metadata in row `e`, its selector in `count`. In
    /// the variant the indices of the metadata grow.
    MultiplySparse,
    /// `mma` of m8n8k4 of f16; the [`super::VoltaShape`] is in `immediate`.
    MultiplyVolta,
    /// Before the loads or stores of `wmma`: all lanes have the same address `a` + `immediate`, a multiple of
    /// `count`, and stride `b`, in elements of `c` bits; the space is in `e`, as for [`AtomicOp`].
    CheckFragment,
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
