//! What a launch found.

pub mod severity;
pub mod source;
pub mod trace;

use crate::space::Space;
use serde::Serialize;
use severity::Severity;
use source::SourceLocation;
use std::collections::HashMap;
use std::fmt;
use trace::Trace;

/// The outcome of a launch.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// Distinct faults, ordered by block and then by the order in which the block met them.
    pub findings: Vec<Finding>,
    /// Work done.
    pub statistics: Statistics,
    /// Where values that are not finite come from; empty unless [`crate::Options::trace`] is on.
    pub trace: Trace,
    /// What `printf` printed, block after block, up to 1 MiB of each.
    pub output: String,
}

impl Report {
    /// Whether nothing was found.
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }
}

/// Work done by a launch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Statistics {
    /// Blocks started.
    pub blocks: u64,
    /// Blocks among them that ended before the grid before theirs did ([`crate::launch_dependent`]).
    pub early_blocks: u64,
    /// Instructions executed, counted once per warp, or per part of a diverged warp.
    pub warp_instructions: u64,
    /// Matrix multiply-accumulate instructions among them.
    pub matrix_instructions: u64,
    /// Asynchronous copy instructions among them.
    pub async_copies: u64,
    /// Branches at which a warp split.
    pub divergent_branches: u64,
    /// Faults met, including repetitions and those beyond [`crate::Options::max_findings`].
    pub faults: u64,
}

impl Statistics {
    /// Adds the work of another launch.
    pub fn add(&mut self, other: &Statistics) {
        self.blocks += other.blocks;
        self.early_blocks += other.early_blocks;
        self.warp_instructions += other.warp_instructions;
        self.matrix_instructions += other.matrix_instructions;
        self.async_copies += other.async_copies;
        self.divergent_branches += other.divergent_branches;
        self.faults += other.faults;
    }
}

/// The kind of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[non_exhaustive]
pub enum FindingKind {
    /// An access beyond the bounds of an allocation, of shared, local or parameter memory. Loads, stores and
    /// atomic operations leave the lane out, and the block goes on; others stop the block.
    OutOfBounds {
        /// The space accessed.
        space: Space,
    },
    /// An address that is no multiple of the access width. As for [`FindingKind::OutOfBounds`].
    Misaligned {
        /// The space accessed.
        space: Space,
    },
    /// An access through a null pointer or a small offset from one. As for [`FindingKind::OutOfBounds`].
    NullPointer,
    /// An access to an allocation that was freed before the launch. As for [`FindingKind::OutOfBounds`].
    UseAfterFree,
    /// A write to constant memory or to a parameter. As for [`FindingKind::OutOfBounds`].
    WriteToReadOnly {
        /// The space accessed.
        space: Space,
    },
    /// A read of bytes to which no defined value was written, of which something comes: where a lane goes, an
    /// address, a value in global memory or in other lanes. It stands at the read. The block goes on.
    UninitialisedRead {
        /// The space read.
        space: Space,
    },
    /// A read of a register that nothing wrote in that lane, of which something comes, or a use of what
    /// `shfl.sync` took from a lane that is no member. The block goes on.
    UninitialisedRegister,
    /// A read or overwrite of shared bytes that an asynchronous copy has yet to deliver. The block
    /// goes on.
    AsyncCopyInFlight,
    /// A memory barrier used before its initialisation, arrived at too often, or overwritten. Stops the
    /// block.
    MbarrierMisuse,
    /// A bulk copy whose tensor map is none. Stops the block.
    InvalidTensorMap,
    /// An access to shared memory that touches bytes of two of the launch's regions, or bytes of none
    /// ([`crate::Launch::regions`]). The block goes on.
    OutOfRegion,
    /// Two warps, of one block or two of a cluster, or two lanes access the same shared bytes, one writing,
    /// and nothing orders them. The block goes on.
    SharedRace,
    /// An access to the shared memory of another block of the cluster that may not have started, or may
    /// have ended before; one that has ended is not accessed, and leaves the lane out. The block goes on.
    SharedLifetime,
    /// Two warps, of one block or two, be they of kernels that run together, access the same global bytes,
    /// one of them writing, and nothing orders them; or one reads by `ld.global.nc` what the kernel writes.
    /// The block goes on.
    GlobalRace,
    /// Two warps write the same value to the same shared bytes, and nothing orders them. The block goes on.
    RedundantWrites,
    /// A plain load meets atomic operations, whose value a compare-and-swap of the same word then expects.
    /// The block goes on.
    CompareAndSwapLoad,
    /// A [`FindingKind::GlobalRace`] in which the reader has seen, by an atomic operation, that the other was
    /// done, but has no fence or `acquire` behind that: found by [`crate::Options::acquire_always`].
    MissingAcquire,
    /// An asynchronous copy or multiplication accesses shared bytes that threads wrote, or a copy writes
    /// bytes that they read, with no `fence.proxy.async` between; or a bulk copy does so in global memory.
    /// The block goes on.
    MissingProxyFence,
    /// A bulk copy is to complete at an mbarrier with no fence behind its initialisation. The block goes on.
    MissingMbarrierFence,
    /// A register of a multiplication that has not been waited for. The block goes on.
    RegisterInFlight,
    /// A multiplication on registers that were used after the last `wgmma.fence`, be it by one of another
    /// shape. The block goes on.
    MissingWgmmaFence,
    /// The warps of a warpgroup do not execute the same `wgmma` or `setmaxnreg`. Stops the block.
    WarpgroupDivergence,
    /// A block-wide barrier reached by part of a warp, or with thread counts that disagree. Stops
    /// the block.
    BarrierDivergence,
    /// A warp-wide instruction reached by part of the warp, or by a lane outside its member mask.
    /// Stops the block.
    WarpDivergence,
    /// Every live thread waits for something that cannot happen, or asks for it again and again. Stops the
    /// block.
    Deadlock,
    /// No block of a grid that may start early ([`crate::launch_dependent`]) waits for the grid before, so
    /// that nothing behind the two would. Found as the last block ends.
    MissingGridWait,
    /// The block took more steps than the step limit. Stops the block.
    StepLimit,
    /// The kernel executed `trap`. Stops the block.
    Trap,
    /// An `assert` of the kernel does not hold. Stops the block.
    AssertionFailed,
    /// An operand with a value that the instruction does not define. Stops the block.
    InvalidOperand,
}

impl FindingKind {
    /// Whether what the block leaves is not what the kernel computes: it has stopped, or left lanes out.
    pub fn spoils_results(self) -> bool {
        match self {
            FindingKind::OutOfBounds { .. }
            | FindingKind::Misaligned { .. }
            | FindingKind::NullPointer
            | FindingKind::UseAfterFree
            | FindingKind::WriteToReadOnly { .. }
            | FindingKind::MbarrierMisuse
            | FindingKind::InvalidTensorMap
            | FindingKind::WarpgroupDivergence
            | FindingKind::BarrierDivergence
            | FindingKind::WarpDivergence
            | FindingKind::Deadlock
            | FindingKind::StepLimit
            | FindingKind::Trap
            | FindingKind::AssertionFailed
            | FindingKind::InvalidOperand => true,
            FindingKind::UninitialisedRead { .. }
            | FindingKind::UninitialisedRegister
            | FindingKind::AsyncCopyInFlight
            | FindingKind::OutOfRegion
            | FindingKind::SharedLifetime
            | FindingKind::SharedRace
            | FindingKind::GlobalRace
            | FindingKind::RedundantWrites
            | FindingKind::CompareAndSwapLoad
            | FindingKind::MissingAcquire
            | FindingKind::MissingProxyFence
            | FindingKind::MissingMbarrierFence
            | FindingKind::RegisterInFlight
            | FindingKind::MissingWgmmaFence
            | FindingKind::MissingGridWait => false,
        }
    }
}

impl fmt::Display for FindingKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FindingKind::OutOfBounds { space } => write!(f, "out-of-bounds {space} access"),
            FindingKind::Misaligned { space } => write!(f, "misaligned {space} access"),
            FindingKind::NullPointer => write!(f, "null pointer"),
            FindingKind::UseAfterFree => write!(f, "use after free"),
            FindingKind::WriteToReadOnly { space } => write!(f, "write to read-only {space} memory"),
            FindingKind::UninitialisedRead { space } => write!(f, "uninitialised {space} read"),
            FindingKind::UninitialisedRegister => write!(f, "uninitialised register"),
            FindingKind::AsyncCopyInFlight => write!(f, "asynchronous copy in flight"),
            FindingKind::MbarrierMisuse => write!(f, "misuse of an mbarrier"),
            FindingKind::InvalidTensorMap => write!(f, "invalid tensor map"),
            FindingKind::OutOfRegion => write!(f, "out-of-region shared access"),
            FindingKind::SharedLifetime => write!(f, "shared memory of a block that may not run"),
            FindingKind::SharedRace => write!(f, "race in shared memory"),
            FindingKind::GlobalRace => write!(f, "race in global memory"),
            FindingKind::RedundantWrites => write!(f, "writes of one value that nothing orders"),
            FindingKind::CompareAndSwapLoad => write!(f, "plain load before a compare-and-swap"),
            FindingKind::MissingAcquire => write!(f, "missing acquire"),
            FindingKind::MissingProxyFence => write!(f, "missing proxy fence"),
            FindingKind::MissingMbarrierFence => write!(f, "missing fence of an mbarrier"),
            FindingKind::RegisterInFlight => write!(f, "register in flight"),
            FindingKind::MissingWgmmaFence => write!(f, "missing wgmma fence"),
            FindingKind::WarpgroupDivergence => write!(f, "warpgroup divergence"),
            FindingKind::BarrierDivergence => write!(f, "barrier divergence"),
            FindingKind::WarpDivergence => write!(f, "warp divergence"),
            FindingKind::Deadlock => write!(f, "deadlock"),
            FindingKind::MissingGridWait => write!(f, "missing wait for the grid before"),
            FindingKind::StepLimit => write!(f, "step limit reached"),
            FindingKind::Trap => write!(f, "trap"),
            FindingKind::AssertionFailed => write!(f, "assertion failed"),
            FindingKind::InvalidOperand => write!(f, "invalid operand"),
        }
    }
}

impl Finding {
    /// How bad it is.
    pub fn severity(&self) -> Severity {
        self.kind.severity()
    }
}

/// One fault: what, where and by whom it was first met.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What happened.
    pub kind: FindingKind,
    /// The kernel.
    pub kernel: String,
    /// The first block that met the fault.
    pub block: [u32; 3],
    /// The first thread of that block that met it.
    pub thread: [u32; 3],
    /// Line of the instruction in the PTX text, from 1.
    pub ptx_line: u32,
    /// Text of the instruction.
    pub ptx: String,
    /// Where the source that was compiled into it stands.
    pub source: Option<SourceLocation>,
    /// Address, bytes and what else is known.
    pub message: String,
    /// How often any block met this kind of fault at this instruction.
    pub occurrences: u64,
}

/// A finding of a block, and where it stands: the block's number, and its own among those of the block.
struct Placed {
    place: (u64, usize),
    finding: Finding,
}

/// Findings of blocks that have ended: one per kind and instruction, from the first block that met it.
#[derive(Default)]
pub(crate) struct Findings {
    /// By kind and line, which may hold several instructions.
    known: HashMap<(FindingKind, u32), Vec<Placed>>,
}

impl Findings {
    /// Adds those of a block.
    pub(crate) fn add(&mut self, block: u64, findings: Vec<Finding>) {
        for (number, finding) in findings.into_iter().enumerate() {
            let new = Placed { place: (block, number), finding };
            let known = self.known.entry((new.finding.kind, new.finding.ptx_line)).or_default();
            let Some(same) = known.iter_mut().find(|known| known.finding.ptx == new.finding.ptx) else {
                known.push(new);
                continue;
            };
            let occurrences = same.finding.occurrences + new.finding.occurrences;
            if new.place < same.place {
                *same = new;
            }
            same.finding.occurrences = occurrences;
        }
    }

    /// So many of them, in the order of blocks, and in which these met them.
    pub(crate) fn in_order(self, limit: usize) -> Vec<Finding> {
        let mut all: Vec<Placed> = self.known.into_values().flatten().collect();
        all.sort_by_key(|placed| placed.place);
        all.into_iter().take(limit).map(|placed| placed.finding).collect()
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ([bx, by, bz], [tx, ty, tz]) = (self.block, self.thread);
        writeln!(f, "{}: {}", self.kind, self.message)?;
        write!(f, "  in {}, block ({bx}, {by}, {bz}), thread ({tx}, {ty}, {tz})", self.kernel)?;
        if self.occurrences > 1 {
            write!(f, ", {} times in all", self.occurrences)?;
        }
        write!(f, "\n  PTX line {}: {}", self.ptx_line, self.ptx)?;
        SourceLocation::write_chain(self.source.as_ref(), f)
    }
}
