//! Errors of parsing, of launching and of the host's own memory operations.

use crate::region::Region;
use crate::space::Address;
use thiserror::Error;

/// PTX text that is not understood.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("PTX line {line}: {kind}: `{text}`")]
pub struct ParseError {
    /// Line of the text, from 1.
    pub line: u32,
    /// The statement, or the piece of it where reading stopped.
    pub text: String,
    /// What is wrong with it.
    pub kind: ParseErrorKind,
}

/// What is wrong with a piece of PTX text.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ParseErrorKind {
    /// The text does not follow the grammar.
    #[error("expected {0}")]
    Expected(&'static str),
    /// An instruction, or a combination of its modifiers, that the emulator does not know.
    #[error("unsupported instruction")]
    UnsupportedInstruction,
    /// A directive that the emulator does not know.
    #[error("unsupported directive")]
    UnsupportedDirective,
    /// A register, label, variable or special register that is not declared.
    #[error("unknown name {0}")]
    UnknownName(String),
    /// An operand of the wrong kind, width or number.
    #[error("{0}")]
    Operand(&'static str),
    /// More of something than the emulator handles.
    #[error("{0} exceeds the emulator's limit")]
    Limit(&'static str),
}

/// Why a launch did not start.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// The parameter buffer does not have the kernel's size.
    #[error("{kernel}: expected {expected} bytes of parameters, got {got}")]
    Parameters {
        /// The kernel.
        kernel: String,
        /// Bytes that its `.param` declarations take.
        expected: usize,
        /// Bytes given.
        got: usize,
    },
    /// A block dimension is zero, or a block has more threads than the kernel or a GPU allows: in the third
    /// dimension 64.
    #[error("{kernel}: block {block:?} exceeds {limit:?} threads")]
    Threads {
        /// The kernel.
        kernel: String,
        /// The block asked for.
        block: [u32; 3],
        /// The kernel's `.maxntid`, or the most that any GPU runs.
        limit: [u32; 3],
    },
    /// A block that is not as the kernel demands.
    #[error("{kernel}: block: expected {expected:?} threads, which .reqntid demands, got {got:?}")]
    RequiredThreads {
        /// The kernel.
        kernel: String,
        /// The kernel's `.reqntid`.
        expected: [u32; 3],
        /// The block asked for.
        got: [u32; 3],
    },
    /// A grid dimension is zero or too large: the first has up to 2^31 - 1 blocks, the others 65535.
    #[error("{kernel}: grid {grid:?} is empty or too large")]
    Grid {
        /// The kernel.
        kernel: String,
        /// The grid asked for.
        grid: [u32; 3],
    },
    /// A cluster with a dimension that is zero, or with more blocks than the kernel's `.maxclusterrank` or
    /// a GPU allows.
    #[error("{kernel}: cluster {cluster:?}: expected 1 to {limit} blocks")]
    Cluster {
        /// The kernel.
        kernel: String,
        /// The cluster asked for.
        cluster: [u32; 3],
        /// Blocks that it may have.
        limit: u32,
    },
    /// A grid that is no whole number of clusters.
    #[error("{kernel}: grid {grid:?}: expected multiples of the cluster {cluster:?}")]
    ClusterGrid {
        /// The kernel.
        kernel: String,
        /// The grid asked for.
        grid: [u32; 3],
        /// The cluster.
        cluster: [u32; 3],
    },
    /// A cluster that is not as the kernel demands.
    #[error(
        "{kernel}: cluster: expected {expected:?} blocks, which .reqnctapercluster demands, got {got:?}"
    )]
    RequiredCluster {
        /// The kernel.
        kernel: String,
        /// The kernel's `.reqnctapercluster`.
        expected: [u32; 3],
        /// The cluster asked for.
        got: [u32; 3],
    },
    /// A launch without clusters of a kernel that demands some.
    #[error("{kernel}: cluster: expected its size, which .explicitcluster demands, got none")]
    ExplicitCluster {
        /// The kernel.
        kernel: String,
    },
    /// Clusters of several blocks on a target that has none.
    #[error("{kernel}: cluster {cluster:?}: expected .target sm_90 or newer, got {got}")]
    ClusterTarget {
        /// The kernel.
        kernel: String,
        /// The cluster.
        cluster: [u32; 3],
        /// The module's target.
        got: String,
    },
    /// More shared memory than a GPU of the target has.
    #[error("{kernel}: {bytes} bytes of shared memory exceed the {limit} of {target}")]
    Shared {
        /// The kernel.
        kernel: String,
        /// Static and dynamic bytes together.
        bytes: u64,
        /// The most that a block can have.
        limit: u64,
        /// The module's target.
        target: String,
    },
    /// A `.target` that the emulator does not stand for.
    #[error("{kernel}: .target: expected one of {expected}, got `{got}`")]
    Target {
        /// The kernel.
        kernel: String,
        /// The targets that there are.
        expected: String,
        /// The module's; empty if it names none.
        got: String,
    },
    /// An instruction that the module's target does not have.
    #[error("{kernel}: PTX line {line}: `{text}`: expected .target {expected}, got {got}")]
    TargetInstruction {
        /// The kernel.
        kernel: String,
        /// Line of the text, from 1.
        line: u32,
        /// The first such instruction.
        text: String,
        /// The targets that have it.
        expected: &'static str,
        /// The module's.
        got: String,
    },
    /// More local memory than a thread can have.
    #[error("{kernel}: {bytes} bytes of local memory exceed {limit}")]
    Local {
        /// The kernel.
        kernel: String,
        /// Bytes of each thread.
        bytes: u64,
        /// The most that a thread can have.
        limit: u64,
    },
    /// A region that ends beyond the dynamic shared memory.
    #[error("{kernel}: region {region} ends beyond the {bytes} bytes of dynamic shared memory")]
    RegionBounds {
        /// The kernel.
        kernel: String,
        /// The region.
        region: Region,
        /// Bytes of dynamic shared memory.
        bytes: u32,
    },
    /// Two regions that have bytes in common.
    #[error("{kernel}: regions {} and {} of dynamic shared memory overlap", .regions[0], .regions[1])]
    RegionOverlap {
        /// The kernel.
        kernel: String,
        /// Both, in the order of their offsets.
        regions: [Region; 2],
    },
    /// The kernel holds an instruction that the emulator does not know, or its text is wrong.
    #[error("{kernel}: {error}")]
    Unsupported {
        /// The kernel.
        kernel: String,
        /// The first such instruction, or what is wrong with the text.
        error: ParseError,
    },
}

/// A host operation on emulated global memory that was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// The address is not the start of a live allocation.
    #[error("{0} is not the start of a live allocation")]
    NotAllocated(Address),
    /// The range is not inside one live allocation.
    #[error("{bytes} bytes at {address} are outside the allocation of {allocated} bytes")]
    OutOfBounds {
        /// Start of the range.
        address: Address,
        /// Length of the range.
        bytes: usize,
        /// Length of the allocation that the address belongs to; 0 if none is live.
        allocated: usize,
    },
}
