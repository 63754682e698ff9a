//! What is launched and how it is run.

use crate::region::Region;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// The shape and the arguments of one launch.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    /// Blocks in x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y and z; at most 1024 in all.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory, beyond what the kernel declares itself.
    pub shared_bytes: u32,
    /// What stands where in dynamic shared memory, in any order and without bytes in common. With none,
    /// nothing is known, and nothing is checked; with some, every access must stay inside one of them
    /// ([`Checks::regions`]), and findings name them.
    pub regions: &'a [Region],
    /// Blocks of a cluster in x, y and z; in all up to 8, or 16 as of a kernel that allows more than is
    /// portable. `None`: as many as the kernel's `.reqnctapercluster` says, or no clusters.
    pub cluster: Option<[u32; 3]>,
    /// The kernel's parameters as laid out in its `.param` space,
    /// [`crate::Kernel::parameter_bytes`] long.
    pub params: &'a [u8],
}

impl<'a> Launch<'a> {
    /// A launch without dynamic shared memory, regions and clusters: what a literal starts from.
    pub const fn new(grid: [u32; 3], block: [u32; 3], params: &'a [u8]) -> Self {
        Launch { grid, block, shared_bytes: 0, regions: &[], cluster: None, params }
    }

    /// Threads of a block.
    pub(crate) fn threads(&self) -> u32 {
        self.block.iter().product()
    }
}

/// Which optional checks run. Bounds and alignment are always checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Checks {
    /// Reads of bytes that nothing wrote, in global, shared and local memory, and reads of bytes that
    /// an asynchronous copy is still to write.
    pub uninitialised: bool,
    /// Barriers and warp-wide instructions that not all the required threads reach together.
    pub barriers: bool,
    /// Accesses to shared and to global memory that nothing orders, by warps and by asynchronous copies;
    /// missing proxy fences, and registers in flight.
    pub races: bool,
    /// Registers that are read before anything wrote them.
    pub registers: bool,
    /// Accesses to shared memory that touch bytes of two of [`Launch::regions`], or of none. All of a bulk
    /// copy and all of an operand of `wgmma` count as one access.
    pub regions: bool,
}

impl Checks {
    /// Every check.
    pub const fn all() -> Self {
        Checks { uninitialised: true, barriers: true, races: true, registers: true, regions: true }
    }

    /// Memory safety only.
    pub const fn none() -> Self {
        Checks { uninitialised: false, barriers: false, races: false, registers: false, regions: false }
    }
}

impl Default for Checks {
    fn default() -> Self {
        Checks::all()
    }
}

/// The order of warps, and the moment at which asynchronous copies land.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Schedule {
    /// A copy lands when it is issued; a warp runs until it waits.
    Eager,
    /// A copy lands at the wait that requires it and no sooner; a warp runs until it waits.
    #[default]
    Latest,
    /// Warps, and blocks two by two, take turns of random length and copies land at random moments, all drawn
    /// from this seed; blocks of a dependent kernel start as soon as they may, or later. With an odd one,
    /// four warps at a time stay behind the others. With one that is 3 modulo 4, some bulk loads land when
    /// nothing else can happen, however long they are waited for.
    Random(u64),
}

/// How a launch is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The optional checks.
    pub checks: Checks,
    /// The order of warps and of asynchronous copies.
    pub schedule: Schedule,
    /// Threads of the CPU that run blocks in parallel. 1 runs on the calling thread; 0 counts as 1.
    pub threads: usize,
    /// Distinct findings kept; the rest is only counted.
    pub max_findings: usize,
    /// Steps that one block may take; a cluster as many times that as it has blocks. More is reported as a
    /// finding, not awaited. A warp instruction is one step, and what takes the emulator longer counts as
    /// several, some 30 ns each.
    pub step_limit: Option<u64>,
    /// Report every read of bytes that nothing wrote at the read itself, whatever comes of it. Off, such a
    /// value is followed, and is reported where something comes of it: what a kernel loads and throws away is
    /// then no finding. Registers that nothing wrote are followed in any case: compilers leave those
    /// undefined whose value does not matter, and compute with them where that costs nothing.
    pub strict: bool,
    /// Count every atomic operation and other strong access as an `acquire` of what it sees. What is a race
    /// without this and none with it lacks only that.
    pub acquire_always: bool,
    /// Look for the instructions whose results are the first that are not finite: [`crate::Trace`]. Off,
    /// it costs nothing; on, about as much as the floating-point instructions themselves.
    pub trace: bool,
    /// Counts blocks that have ended, while the launch runs: for whoever shows how far it is.
    pub blocks_ended: Option<Arc<AtomicU64>>,
}

impl Default for Options {
    /// Every check, the latest schedule, one thread, 64 findings, 2^32 steps per block, not
    /// strict, no trace.
    fn default() -> Self {
        Options {
            checks: Checks::all(),
            schedule: Schedule::Latest,
            threads: 1,
            max_findings: 64,
            step_limit: Some(1 << 32),
            strict: false,
            acquire_always: false,
            trace: false,
            blocks_ended: None,
        }
    }
}
