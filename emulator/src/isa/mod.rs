//! The decoded form of a kernel: fixed-size instructions over rows of lanes.

pub mod allocate;
mod arithmetic;
mod assigned;
mod calls;
pub mod control_flow;
mod hopper;
mod matrix;
pub mod op;
pub mod operands;
mod rare;
pub mod steps;
mod swaps;
mod touches;
pub mod types;
mod video;

pub use arithmetic::{CarryOp, FloatOp, IntegerOp};
pub use assigned::{Touch, Watch};
pub use calls::{
    FUNCTION_BASE, FUNCTION_BYTES, FunctionCode, Place as FramePlace, RegisterRow, STACK_BYTES,
};
pub use hopper::{BulkOp, MbarrierOp, Reduction, WGMMA_K, WgmmaOp, WgmmaShape, bulk_list, map_field};
pub use matrix::{Fragments, LanePlace, MatrixShape, MatrixType, VoltaShape};
pub use op::{
    AsyncCopyOp, AtomicOp, BarrierOp, Builtin, MatrixOp, MoveOp, Op, PredicateOp, ReduxOp, ShuffleOp,
    VoteOp,
};
pub use rare::RareOp;
pub use swaps::expected_loads;
pub use touches::Touches;
pub use types::{ATOMIC_SPACES, AtomicType, CompareType, ConvertType, Relation, Rounding};
pub use video::{VideoKind, VideoOp, VideoProduct, VideoRest};

/// Predicate that is always true, also the guard of an unguarded instruction.
pub const PREDICATE_TRUE: u32 = 0;
/// Predicate that is always false.
pub const PREDICATE_FALSE: u32 = 1;
/// Predicate that takes results nobody wants (`_`).
pub const PREDICATE_SINK: u32 = 2;
/// Predicate that says whether the launch has clusters: `%is_explicit_cluster`.
pub const PREDICATE_CLUSTERS: u32 = 3;
/// Predicates that exist in every kernel.
pub const PREDICATES_RESERVED: u32 = 4;
/// Row that takes results nobody wants; four rows, for results of up to 128 bits.
pub const ROW_SINK: u32 = 0;
/// Rows that exist in every kernel.
pub const ROWS_RESERVED: u32 = 4;

/// Flush subnormal inputs and results of f32 to zero.
pub const FLAG_FTZ: u8 = 1;
/// Clamp a float result to [0, 1], or an integer result to its type's range.
pub const FLAG_SATURATE: u8 = 2;
/// The address operand is a 64-bit row; else 32-bit.
pub const FLAG_WIDE_ADDRESS: u8 = 4;
/// `.relu` of a conversion, `.NaN` of a minimum or maximum.
pub const FLAG_VARIANT: u8 = 8;
/// `.xorsign.abs` of a minimum or maximum.
pub const FLAG_XOR_SIGN: u8 = 16;
/// `.satfinite` of a conversion: what is too large becomes the largest number.
pub const FLAG_FINITE: u8 = 16;
/// `.oob` of a fused multiply-add: the NaN that a tensor copy fills with counts as a result of 0.
pub const FLAG_OUT_OF_BOUNDS: u8 = 16;
/// The transposing form of a matrix load or store.
pub const FLAG_TRANSPOSE: u8 = 8;
/// A shared address is generic, not an offset in shared memory.
pub const FLAG_GENERIC: u8 = 8;
/// In operand `e` of a matrix load or store: the address is generic, of shared memory.
pub const MATRIX_GENERIC: u32 = 1;
/// A load, store or atomic operation is meant to meet those of others: `volatile`, `relaxed` and stronger.
pub const FLAG_STRONG: u8 = 1;
/// An `acquire` that needs no fence.
pub const FLAG_ACQUIRE: u8 = 8;
/// A `release` that needs no fence.
pub const FLAG_RELEASE: u8 = 16;
/// A load of what nothing may write while the kernel runs: `ld.global.nc`.
pub const FLAG_READ_ONLY: u8 = 16;
/// The scope of a strong access or of a fence is the block.
pub const FLAG_BLOCK: u8 = 64;
/// In operand `e`: the scope of a strong access, a fence or an operation on a memory barrier is the cluster.
pub const IN_CLUSTER: u32 = 1 << 8;
/// In operand `e` of an operation on a memory barrier: it may be that of another block of the cluster.
pub const OF_CLUSTER: u32 = 1 << 9;
/// In operand `e` of a store, and of the [`MbarrierOp::CompleteStore`] behind it: it happens any time
/// before that is waited for.
pub const LATER: u32 = 1 << 10;
/// An operation on a memory barrier, or an arrival at that of the cluster, orders nothing: `relaxed`.
pub const FLAG_RELAXED: u8 = 1;
/// The fence between the proxies concerns shared memory.
pub const FLAG_SHARED: u8 = 1;
/// The fence between the proxies concerns global memory.
pub const FLAG_GLOBAL: u8 = 2;
/// A bulk copy goes to shared memory of any block of the cluster.
pub const FLAG_CLUSTER: u8 = 1;
/// `.aligned`: all threads of the warp execute the instruction together.
pub const FLAG_ALIGNED: u8 = 16;
/// An optional operand is present.
pub const FLAG_OPTIONAL: u8 = 32;
/// A predicate source operand is negated.
pub const FLAG_NEGATE_SOURCE: u8 = 64;
/// The guard is negated.
pub const FLAG_NEGATE_GUARD: u8 = 128;

/// Barriers of a block.
pub const BARRIERS: u32 = 16;
/// No reconvergence point: the paths meet only at exit.
pub const NO_RECONVERGENCE: u32 = u32::MAX;

/// One instruction.
///
/// `d`, `a`, `b`, `c` and `e` are rows of the register file (immediates, symbols and special registers
/// are rows too, filled before the kernel starts), predicates, or positions in [`Code::lists`]: the
/// family decides. A 64-bit operand is the first of its two rows.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Instruction {
    /// What to do.
    pub op: Op,
    /// `FLAG_*`.
    pub flags: u8,
    /// Vector length, relation, rounding: the family decides.
    pub count: u8,
    /// Predicate that guards the instruction.
    pub guard: u32,
    /// Destination.
    pub d: u32,
    /// First source; the address of a memory access.
    pub a: u32,
    /// Second source.
    pub b: u32,
    /// Third source.
    pub c: u32,
    /// Address offset, branch target, or another constant.
    pub immediate: i32,
    /// A further operand; of a branch, where its paths meet again.
    pub e: u32,
}

const _: () = assert!(size_of::<Instruction>() == 32);

impl Instruction {
    /// An unguarded instruction without operands.
    pub const fn new(op: Op) -> Self {
        let guard = PREDICATE_TRUE;
        Instruction { op, flags: 0, count: 0, guard, d: 0, a: 0, b: 0, c: 0, immediate: 0, e: 0 }
    }

    /// Whether a flag is set.
    #[inline(always)]
    pub const fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// What fills a row of the register file before the kernel starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fill {
    /// A 32-bit constant in every lane.
    Constant32(u32),
    /// A 64-bit constant in every lane.
    Constant64(u64),
    /// The address of a module variable, by its index, in a 32-bit or 64-bit row.
    Variable {
        /// Index in the module's table of variables.
        index: u32,
        /// Added to the address.
        offset: i64,
        /// Whether the row is 64 bits wide.
        wide: bool,
    },
    /// An address in the shared memory of the block.
    Shared {
        /// The address in a cluster's first block.
        address: u64,
        /// Whether the row is 64 bits wide.
        wide: bool,
    },
    /// Start of dynamic shared memory.
    DynamicShared {
        /// Whether the row is 64 bits wide.
        wide: bool,
    },
    /// The address of a function's variable, in its part of local memory.
    Frame {
        /// The function's number.
        function: u32,
        /// Offset in its part.
        offset: u32,
        /// Whether the row is 64 bits wide.
        wide: bool,
    },
    /// A special register.
    Special(Special),
}

impl Fill {
    /// Rows that it takes.
    pub fn rows(self) -> u32 {
        match self {
            Fill::Constant64(_) => 2,
            Fill::Variable { wide, .. }
            | Fill::Shared { wide, .. }
            | Fill::DynamicShared { wide }
            | Fill::Frame { wide, .. } => 1 + u32::from(wide),
            Fill::Constant32(_) | Fill::Special(_) => 1,
        }
    }
}

/// Special registers with a value that a thread keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Special {
    /// `%tid`, by dimension.
    Thread(u8),
    /// `%ntid`, by dimension.
    Threads(u8),
    /// `%ctaid`, by dimension.
    Block(u8),
    /// `%nctaid`, by dimension.
    Blocks(u8),
    /// `%clusterid`, by dimension.
    Cluster(u8),
    /// `%nclusterid`, by dimension.
    Clusters(u8),
    /// `%cluster_ctaid`, by dimension.
    BlockInCluster(u8),
    /// `%cluster_nctaid`, by dimension.
    BlocksOfCluster(u8),
    /// `%cluster_ctarank`.
    ClusterRank,
    /// `%cluster_nctarank`.
    ClusterSize,
    /// `%laneid`.
    Lane,
    /// `%warpid`.
    Warp,
    /// `%nwarpid`.
    Warps,
    /// `%lanemask_eq`.
    LaneMaskEq,
    /// `%lanemask_lt`.
    LaneMaskLt,
    /// `%lanemask_le`.
    LaneMaskLe,
    /// `%lanemask_gt`.
    LaneMaskGt,
    /// `%lanemask_ge`.
    LaneMaskGe,
    /// `%dynamic_smem_size`.
    DynamicSharedBytes,
    /// `%total_smem_size`.
    TotalSharedBytes,
    /// Bytes of shared memory below the variables of the kernel.
    SystemSharedBytes,
    /// Half of the address of the grid's workspace.
    Workspace {
        /// The upper half.
        high: bool,
    },
    /// A register that is always zero here: `%smid`, `%gridid` and the like.
    Zero,
    /// A register that is always one here: `%nsmid`.
    One,
}

/// The decoded body of a kernel.
#[derive(Debug, Default)]
pub struct Code {
    /// The instructions; the last is an `exit`.
    pub instructions: Vec<Instruction>,
    /// What each of them counts for beside one step: [`steps::beside`].
    pub steps: Vec<u16>,
    /// PTX line of each instruction.
    pub lines: Vec<u32>,
    /// Text of each instruction, as a range of the module's text.
    pub texts: Vec<(u32, u32)>,
    /// Source location of each instruction, as an index into the module's table.
    pub locations: Vec<u32>,
    /// Operand lists of vector instructions.
    pub lists: Vec<u32>,
    /// Rows of the register file.
    pub rows: u32,
    /// Predicates.
    pub predicates: u32,
    /// Whether there are memory barriers, bulk copies or multiplications by a warpgroup.
    pub asynchronous: bool,
    /// Whether there is a `bar.warp.sync` that not the whole warp may have to reach.
    pub meets_in_parts: bool,
    /// Rows that instructions touch; only filled where there are multiplications by a warpgroup.
    pub touches: Touches,
    /// Registers that may be read before they are written.
    pub watch: Watch,
    /// Whether `alloca` makes room in local memory.
    pub has_stack: bool,
    /// Functions that it calls.
    pub functions: Vec<FunctionCode>,
    /// Plain loads of what a compare-and-swap of the same word expects.
    pub expected_loads: Vec<u32>,
    /// Rows to fill before the kernel starts.
    pub fills: Vec<(u32, Fill)>,
}
