//! What the instructions of a cluster share, which is a block where there are no clusters: shared memory,
//! findings, and the launch around them.

use super::barrier::Barriers;
use super::bulk::BulkQueue;
use super::chain::{Chain, Grid};
use super::cluster::Cluster;
use super::families::Families;
use super::mbarrier::Mbarriers;
use super::poison::Origin;
use super::regions::Regions;
use super::remote::Remote;
use super::steps;
use super::tiles::Tiles;
use super::warpgroup::Warpgroups;
use crate::isa::Code;
use crate::memory::Refusal;
use crate::memory::shared::SharedMemory;
use crate::memory::view::{GlobalView, View};
use crate::module::Kernel;
use crate::options::{Launch, Options, Schedule};
use crate::report::trace::Trace;
use crate::report::{Finding, FindingKind, Statistics};
use crate::shadow::race::Race;
use crate::space::{Address, PARAM_WINDOW, RANK_SHIFT, SHARED_BASE, SYSTEM_SHARED_SET, Space};
use foldhash::fast::FixedState;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// The block cannot go on; why is among its findings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stop;

/// Whether the block goes on.
pub type Flow = Result<(), Stop>;

/// What all blocks of a grid share.
pub struct Environment<'a> {
    pub kernel: &'a Kernel,
    pub launch: Launch<'a>,
    pub options: &'a Options,
    pub global: &'a GlobalView,
    /// The grids that run together,
    pub chain: &'a Chain<'a>,
    /// and the place of this one among them.
    pub place: usize,
    pub variables: Arc<[Address]>,
    /// What the blocks of a cooperative launch meet at: zeros; 0 where no kernel asks for it.
    pub workspace: Address,
    /// Bytes of shared memory before the dynamic part.
    pub dynamic_offset: u32,
    /// The clusters of the grid.
    pub cluster: Cluster,
    /// What stands where in it, if the launch says.
    pub regions: Option<Regions<'a>>,
    pub families: &'static Families,
}

impl<'a> Environment<'a> {
    /// How far the grid has come.
    pub fn grid(&self) -> &'a Grid<'a> {
        &self.chain.grids[self.place]
    }

    pub fn code(&self) -> &Code {
        &self.kernel.data.code
    }

    pub fn threads(&self) -> u32 {
        self.launch.threads()
    }

    /// The coordinates of a thread by its number in the block.
    pub fn thread(&self, number: u32) -> [u32; 3] {
        let [x, y, _] = self.launch.block;
        [number % x, number / x % y, number / x / y]
    }

    /// Steps that a cluster may take.
    pub fn step_limit(&self) -> u64 {
        let limit = self.options.step_limit.unwrap_or(u64::MAX);
        limit.saturating_mul(u64::from(self.cluster.blocks))
    }

    /// The random numbers of a cluster.
    fn random(&self, number: u64) -> Random {
        Random::new(self.options.schedule, self.grid().first_cluster + number)
    }
}

/// A small generator of random numbers (xorshift*), so that a seed means the same everywhere.
#[derive(Clone, Copy, Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(schedule: Schedule, block: u64) -> Self {
        let seed = if let Schedule::Random(seed) = schedule { seed } else { 0 };
        let mixed =
            (seed ^ block.wrapping_mul(0xd134_2543_de82_ef95)).wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        Random((mixed ^ mixed >> 27) | 1)
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) % bound
    }
}

/// One in so many loads is late, where some are.
const LATE_ODDS: u64 = 8;

/// A cluster's state apart from its warps.
pub struct Context<'a> {
    pub environment: &'a Environment<'a>,
    /// Its number in the grid.
    pub number: u64,
    pub shared: SharedMemory,
    pub barriers: Barriers,
    pub mbarriers: Mbarriers,
    pub bulk: BulkQueue,
    pub warpgroups: Warpgroups,
    pub tiles: Tiles,
    /// Where races are looked for.
    pub race: Option<Race>,
    pub random: Random,
    /// How often it did what may end somebody's wait.
    pub deeds: u64,
    /// The memory barrier that was last asked in vain.
    pub asked: Option<u32>,
    /// Which of its blocks have allowed the next grid to start,
    pub allow_next_grid: u32,
    /// so that it does,
    pub allows_next_grid: bool,
    /// and was the last to do so, just now.
    pub lets_next_grid_start: bool,
    /// Which of its blocks have ended, or all of their threads have.
    pub ended: u32,
    /// Accesses of its blocks to each other's shared memory.
    pub remote: Remote,
    /// Whether some of it waits for the end of the grid before.
    pub awaits_grid: bool,
    pub findings: Vec<Finding>,
    /// Where values come from that are not defined and were stored in shared or local memory, by word.
    pub undefined: HashMap<u64, Origin, FixedState>,
    /// What it has printed.
    pub output: String,
    /// Which kind at which instruction has which place in `findings`.
    known: HashMap<(FindingKind, u32), usize>,
    pub statistics: Statistics,
    /// The steps that its instructions took beside one each: [`steps`].
    pub more_steps: u64,
    /// Where values that are not finite come from, if that is looked for.
    pub trace: Option<Box<Trace>>,
}

/// Barriers at which nobody is.
fn new_barriers(environment: &Environment<'_>) -> Barriers {
    let Cluster { blocks, .. } = environment.cluster;
    Barriers::new(blocks, environment.cluster.all_warps())
}

/// Warpgroups that have done nothing.
fn new_warpgroups(environment: &Environment<'_>) -> Warpgroups {
    let Cluster { blocks, warps, .. } = environment.cluster;
    Warpgroups::new(&environment.kernel.data, environment.threads().div_ceil(32), (blocks, warps))
}

/// No work done.
fn new_statistics(environment: &Environment<'_>) -> Statistics {
    Statistics { blocks: u64::from(environment.cluster.blocks), ..Statistics::default() }
}

/// The race shadow, if races are looked for.
fn new_race(environment: &Environment<'_>) -> Option<Race> {
    let wanted = environment.options.checks.races;
    let Cluster { warps, .. } = environment.cluster;
    let (bytes, all) = (environment.cluster.all_bytes() as usize, environment.cluster.all_warps());
    wanted.then(|| {
        let mut race = Race::new(bytes, all, warps, RANK_SHIFT);
        if environment.code().meets_in_parts {
            race.lanes.meet_in_parts();
        }
        race.starts_behind(environment.chain.unknown_at_start(environment.place));
        race
    })
}

/// Where bits of the cluster's shared memory are set at the start: in each block the same.
fn set_at_start(environment: &Environment<'_>) -> Vec<Range<usize>> {
    let cluster = &environment.cluster;
    let of_block = |start: u32| {
        (0..cluster.blocks).map(move |rank| {
            let start = cluster.start(rank) + start;
            start as usize..(start + SYSTEM_SHARED_SET) as usize
        })
    };
    environment.kernel.data.system_shared.into_iter().flat_map(of_block).collect()
}

impl<'a> Context<'a> {
    pub fn new(environment: &'a Environment<'a>, number: u64) -> Self {
        Context {
            environment,
            number,
            shared: SharedMemory::new(
                environment.cluster.all_bytes() as usize,
                set_at_start(environment),
                environment.code().asynchronous,
            ),
            barriers: new_barriers(environment),
            mbarriers: Mbarriers::default(),
            bulk: BulkQueue::default(),
            warpgroups: new_warpgroups(environment),
            tiles: Tiles::default(),
            race: new_race(environment),
            random: environment.random(number),
            deeds: 0,
            asked: None,
            allow_next_grid: 0,
            allows_next_grid: false,
            ended: 0,
            remote: Remote::default(),
            lets_next_grid_start: false,
            awaits_grid: false,
            findings: Vec::new(),
            undefined: HashMap::default(),
            output: String::new(),
            known: HashMap::new(),
            statistics: new_statistics(environment),
            more_steps: 0,
            trace: environment.options.trace.then(Box::default),
        }
    }

    /// Whether a load that is issued now will be late.
    pub fn draws_late(&mut self) -> bool {
        let some_are =
            matches!(self.environment.options.schedule, Schedule::Random(seed) if seed % 4 == 3);
        some_are && self.random.below(LATE_ODDS) == 0
    }

    /// Makes the context that of another block. The findings must have been taken.
    pub fn reset(&mut self, number: u64) {
        self.number = number;
        self.shared.reset();
        self.barriers = new_barriers(self.environment);
        self.mbarriers = Mbarriers::default();
        self.asked = None;
        self.bulk = BulkQueue::default();
        self.warpgroups = new_warpgroups(self.environment);
        self.tiles.clear();
        self.race = self.race.take().map(Race::reset);
        if let Some(race) = &mut self.race {
            race.starts_behind(self.environment.chain.unknown_at_start(self.environment.place));
        }
        self.random = self.environment.random(number);
        self.deeds = 0;
        (self.allows_next_grid, self.lets_next_grid_start, self.awaits_grid) = (false, false, false);
        (self.allow_next_grid, self.ended) = (0, 0);
        self.remote.clear();
        self.findings.clear();
        self.output.clear();
        self.undefined.clear();
        self.known.clear();
        self.statistics = new_statistics(self.environment);
        self.more_steps = 0;
        self.trace = self.environment.options.trace.then(Box::default);
    }

    /// Whether the grid before has ended, if there is one.
    pub fn grid_before_has_ended(&self) -> bool {
        self.environment.chain.has_ended_before(self.environment.place)
    }

    /// Blocks allow the next grid to start; whether all of the grid have now.
    pub fn allow_next_grid(&mut self, ranks: u32) -> bool {
        let all = u32::MAX >> (32 - self.environment.cluster.blocks);
        self.allow_next_grid |= ranks;
        let now = (self.allow_next_grid | self.ended) == all;
        now && !std::mem::replace(&mut self.allows_next_grid, true)
            && self.environment.grid().allow_next()
    }

    /// The coordinates of a warp's block.
    pub fn block_of(&self, warp: u32) -> [u32; 3] {
        self.block_at(self.environment.cluster.rank(warp))
    }

    /// The coordinates of the block of a rank.
    pub fn block_at(&self, rank: u32) -> [u32; 3] {
        self.environment.cluster.block_at(&self.environment.launch, self.number, rank)
    }

    /// The coordinates of a thread in its block.
    pub fn thread_of(&self, warp: u32, lane: u32) -> [u32; 3] {
        self.environment.thread(self.environment.cluster.in_block(warp) * 32 + lane)
    }

    /// The offset of a shared address in the shared memory of the cluster.
    #[inline(always)]
    pub fn shared_offset(&self, address: u32) -> u32 {
        self.environment.cluster.offset(address)
    }

    /// Whether reads of unwritten bytes are looked for.
    #[inline(always)]
    pub fn checks_uninitialised(&self) -> bool {
        self.environment.options.checks.uninitialised
    }

    /// Records a fault. The message is only made the first time this kind is met at this instruction.
    #[cold]
    #[inline(never)]
    pub fn report(
        &mut self,
        kind: FindingKind,
        pc: u32,
        warp: u32,
        lane: u32,
        message: impl FnOnce(&Self) -> String,
    ) {
        self.statistics.faults += 1;
        self.more_steps += steps::FAULT;
        if let Some(&place) = self.known.get(&(kind, pc)) {
            self.findings[place].occurrences += 1;
            return;
        }
        if self.findings.len() >= self.environment.options.max_findings {
            return;
        }
        let kernel = self.environment.kernel;
        let finding = Finding {
            kind,
            kernel: kernel.name().to_string(),
            block: self.block_of(warp),
            thread: self.thread_of(warp, lane),
            ptx_line: kernel.line(pc),
            ptx: kernel.text(pc),
            source: kernel.location(pc),
            message: message(self),
            occurrences: 1,
        };
        self.known.insert((kind, pc), self.findings.len());
        self.findings.push(finding);
    }

    /// Records a refused access and stops the block.
    #[cold]
    #[inline(never)]
    pub fn refuse(&mut self, at: Access, refusal: Refusal) -> Flow {
        let Access { space, address, bytes, pc, warp, lane, .. } = at;
        let kind = match refusal {
            Refusal::OutOfBounds(_) | Refusal::NoSpace => FindingKind::OutOfBounds { space },
            Refusal::Misaligned | Refusal::MisalignedTo(_) => FindingKind::Misaligned { space },
            Refusal::Null => FindingKind::NullPointer,
            Refusal::Freed => FindingKind::UseAfterFree,
            Refusal::ReadOnly => FindingKind::WriteToReadOnly { space },
            Refusal::OtherBlock => FindingKind::OutOfBounds { space },
            Refusal::Ended => FindingKind::SharedLifetime,
        };
        self.report(kind, pc, warp, lane, |_| {
            let verb = at.verb();
            let place = format!("{verb} of {bytes} bytes at {space} address {address:#x}");
            let underrun = GlobalView::underrun(address).filter(|_| space == Space::Global);
            match (refusal, underrun) {
                (Refusal::OutOfBounds(_) | Refusal::NoSpace, Some(bytes)) => {
                    format!("{place}: {bytes} bytes before the start of an allocation")
                }
                (refusal, _) => explain(refusal, place, at),
            }
        });
        Err(Stop)
    }
}

fn explain(refusal: Refusal, place: String, at: Access) -> String {
    let Access { space, address, bytes, .. } = at;
    match refusal {
        Refusal::OutOfBounds(end) if space == Space::Global => {
            let offset = GlobalView::offset(address);
            format!("{place}: offset {offset} in an allocation of {end} bytes")
        }
        Refusal::OutOfBounds(end) => format!("{place}, which ends at {end:#x}"),
        Refusal::Misaligned => format!("{place}, which is no multiple of {bytes}"),
        Refusal::MisalignedTo(align) => format!("{place}, which is no multiple of {align}"),
        Refusal::NoSpace => format!("{place}, which belongs to nothing"),
        Refusal::Null => format!("{place}, in the first page"),
        Refusal::Freed => format!("{place}, in an allocation that was freed"),
        Refusal::ReadOnly => place,
        Refusal::OtherBlock => {
            format!("{place}, which is that of another block: only shared::cluster reaches it")
        }
        Refusal::Ended => format!("{place}, of a block that has ended"),
    }
}

/// An access of one lane, for reports.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    pub space: Space,
    pub address: u64,
    pub bytes: u32,
    pub store: bool,
    pub pc: u32,
    pub warp: u32,
    pub lane: u32,
}

impl Access {
    pub fn verb(&self) -> &'static str {
        if self.store { "store" } else { "load" }
    }
}

impl Context<'_> {
    /// The address of a range of shared memory, which must be aligned. It is that of the warp's own block,
    /// or with [`Space::Cluster`] or a generic address of any one of the cluster.
    pub fn shared_address(&mut self, at: Access, align: u32) -> Result<u32, Stop> {
        let (generic, own_only) = (at.space == Space::Generic, at.space == Space::Shared);
        let at = Access { space: Space::Shared, ..at };
        let address = if generic { at.address.wrapping_sub(Space::Shared.window()) } else { at.address };
        let cluster = &self.environment.cluster;
        let own = cluster.rank(at.warp);
        let rank = if cluster.is_one() { 0 } else { address >> RANK_SHIFT };
        let start = (rank << RANK_SHIFT) + u64::from(SHARED_BASE);
        let end = start + u64::from(cluster.bytes);
        let inside = rank < u64::from(cluster.blocks)
            && address >= start
            && address.checked_add(u64::from(at.bytes)).is_some_and(|last| last <= end);
        if inside && rank != u64::from(own) {
            if own_only {
                self.refuse(at, Refusal::OtherBlock)?;
            }
            if self.remote_access((at.pc, at.warp, at.lane), rank as u32) {
                self.refuse(at, Refusal::Ended)?;
            }
        }
        let refusal = match inside {
            false => Refusal::OutOfBounds(end),
            true if !address.is_multiple_of(u64::from(align)) => Refusal::MisalignedTo(align),
            true => return Ok(address as u32),
        };
        self.refuse(at, refusal)?;
        Err(Stop)
    }

    /// A range of global memory: its allocation and the offset in it.
    pub fn global_range(&mut self, at: Access, align: u32) -> Result<(View, usize), Stop> {
        let offset = GlobalView::offset(at.address);
        let refusal = match self.environment.global.get(at.address) {
            Err(refusal) => refusal,
            Ok(view) if at.store && view.read_only => Refusal::ReadOnly,
            Ok(view) if offset + u64::from(at.bytes) > view.bytes => Refusal::OutOfBounds(view.bytes),
            Ok(_) if !offset.is_multiple_of(u64::from(align)) => Refusal::MisalignedTo(align),
            Ok(&view) => return Ok((view, offset as usize)),
        };
        self.refuse(at, refusal)?;
        Err(Stop)
    }

    /// The words of a tensor map in global or parameter space.
    pub fn read_map(&mut self, at: Access, align: u32) -> Result<[u64; 16], Stop> {
        let mut bytes = [0u8; 128];
        if at.space == Space::Param {
            let params = self.environment.launch.params;
            let offset = (at.address - PARAM_WINDOW) as usize;
            let refusal = match params.get(offset..).and_then(|rest| rest.get(..bytes.len())) {
                None => Refusal::OutOfBounds(PARAM_WINDOW + params.len() as u64),
                Some(_) if !offset.is_multiple_of(align as usize) => Refusal::MisalignedTo(align),
                Some(found) => {
                    bytes.copy_from_slice(found);
                    return Ok(words(&bytes));
                }
            };
            self.refuse(at, refusal)?;
            return Err(Stop);
        }
        if at.space != Space::Global {
            self.refuse(at, Refusal::NoSpace)?;
            return Err(Stop);
        }
        let (view, offset) = self.global_range(at, align)?;
        // SAFETY: `global_range` checked that 128 bytes exist.
        unsafe { view.data.add(offset).copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
        Ok(words(&bytes))
    }
}

fn words(bytes: &[u8; 128]) -> [u64; 16] {
    std::array::from_fn(|word| {
        u64::from_le_bytes(bytes[word * 8..word * 8 + 8].try_into().expect("8 bytes"))
    })
}
