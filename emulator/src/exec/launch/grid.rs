//! A launch: checks its shape, runs the blocks of its grid or grids, collects what they found.

use super::block::{Block, Progress};
use super::families::families;
use super::limits;
use crate::error::LaunchError;
use crate::exec::state::chain::Chain;
use crate::exec::state::cluster::Cluster;
use crate::exec::state::context::{Context, Environment, Random};
use crate::exec::state::regions::Regions;
use crate::isa::{Fill, Special};
use crate::memory::global::Memory;
use crate::module::Kernel;
use crate::options::{Launch, Options, Schedule};
use crate::report::trace::Trace;
use crate::report::{FindingKind, Findings, Report, Statistics};
use crate::space::{Address, SHARED_BASE};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};

/// Threads of a block on any GPU.
const MAX_THREADS: u64 = 1024;
/// Threads of a block in its third dimension.
const MAX_DEPTH: u32 = 64;
/// Blocks of a grid in each dimension.
const MAX_BLOCKS: [u32; 3] = [(1 << 31) - 1, 65535, 65535];
/// Local memory of a thread on any GPU.
const MAX_LOCAL_BYTES: u64 = 512 * 1024;
/// Warp instructions after which a block lets others run, in case it waits for them.
const PAUSE: u64 = 1 << 22;
/// Under a random schedule they are at most 1, 2, 4, and so on up to this power of two: short turns, between
/// which much of what others do can fall, are as likely as long ones.
const RANDOM_PAUSE: u64 = 12;
/// Blocks of a grid that take turns under a random schedule, unless these wait for others.
const RANDOM_RESIDENT: usize = 2;
/// Turns from when a block may start before the grid before its own has ended until it does, on average: 1,
/// 2, 4, and so on up to this power of two.
const RANDOM_DELAY: u64 = 12;
/// Blocks that a thread keeps in the middle of their execution, unless all of them wait for others.
const MAX_RESIDENT: usize = 64;
/// Rounds in which all of these only ask for what others have to write, until more start.
const LACK_ROUNDS: u32 = 2;
/// Of so many blocks or more, twice as many are tried at once then.
const MANY: usize = 8;
/// The same, until nobody believes any more that it will be written.
const VAIN_ROUNDS: u32 = 1 << 12;
/// Multiprocessors of the largest GPU; its blocks, threads, and bytes of shared memory, of which each block
/// takes some.
const MULTIPROCESSORS: usize = 192;
const MULTIPROCESSOR: [usize; 3] = [32, 2048, 228 * 1024];
const BLOCK_BYTES: usize = 1024;

/// Runs a kernel.
///
/// Blocks run in parallel on [`Options::threads`] threads. A block that asks again and again for what
/// others have to write lets other blocks run before it goes on, and so does one that runs for long. Under
/// a random schedule two at a time take turns of random length. As many blocks wait for each other as the
/// largest GPU runs at once. The blocks of a cluster run together, their warps in turns.
///
/// # Errors
///
/// The launch is impossible on any GPU of the module's target, its clusters are not those that the kernel
/// demands or do not divide the grid, its parameters do not have the kernel's size, its regions overlap or
/// reach beyond its shared memory, the target is not one from sm_70 to sm_90a, or the kernel holds an
/// instruction that the target does not have or the emulator does not know. Faults of the kernel itself are
/// no errors: the report lists them.
pub fn launch(
    kernel: &Kernel,
    memory: &Memory,
    launch: &Launch<'_>,
    options: &Options,
) -> Result<Report, LaunchError> {
    let mut reports = launch_dependent(&[(kernel, *launch)], memory, options)?;
    Ok(reports.pop().unwrap_or_default())
}

/// Runs kernels in order, each as a dependent of the one before ("programmatic dependent launch").
///
/// Blocks of a kernel may start as soon as all blocks of the one before have executed
/// `griddepcontrol.launch_dependents` or ended; `griddepcontrol.wait` waits for the end of that one, and
/// makes all that it did known. A block that does not wait is to those of the kernel before as they are to
/// each other, and knows what the kernels further back did if they had ended when it started. Some block
/// must wait, since what is queued behind the two waits for the later one only. Blocks start as early as
/// they may; under a random schedule, or later. Reports are in the order of the kernels.
///
/// # Errors
///
/// As for [`launch`]; then none of the kernels has run.
pub fn launch_dependent(
    kernels: &[(&Kernel, Launch<'_>)],
    memory: &Memory,
    options: &Options,
) -> Result<Vec<Report>, LaunchError> {
    let rooms: Vec<Room<'_>> = kernels
        .iter()
        .map(|(kernel, launch)| Room::new(kernel, launch))
        .collect::<Result<_, LaunchError>>()?;
    let variables: Vec<_> = kernels.iter().map(|(kernel, _)| memory.variables(&kernel.module)).collect();
    let asks = |(kernel, _): &(&Kernel, Launch<'_>)| {
        let is_workspace = |fill| matches!(fill, Fill::Special(Special::Workspace { .. }));
        kernel.data.code.fills.iter().any(|&(_, fill)| is_workspace(fill))
    };
    let workspace = kernels.iter().any(asks).then(|| Workspace::new(memory));
    let clusters: Vec<_> = kernels
        .iter()
        .zip(&rooms)
        .map(|(&(kernel, launch), room)| (kernel, launch, room.cluster))
        .collect();
    let chain = Chain::new(&clusters, memory.view());
    let parts = kernels.iter().zip(rooms).zip(variables).enumerate();
    let environments: Vec<Environment<'_>> = parts
        .map(|(place, ((&(kernel, launch), room), variables))| Environment {
            kernel,
            launch,
            options,
            variables,
            workspace: workspace.as_ref().map_or(Address::default(), |workspace| workspace.address),
            global: &chain.global,
            chain: &chain,
            place,
            dynamic_offset: room.dynamic_offset,
            cluster: room.cluster,
            regions: room.regions,
            families: families(),
        })
        .collect();
    Ok(run_blocks(&chain, &environments, options))
}

/// Bytes of a workspace.
const WORKSPACE_BYTES: usize = 256;

/// Where the blocks of a cooperative launch meet. It lives as long as the launch.
struct Workspace<'m> {
    memory: &'m Memory,
    address: Address,
}

impl<'m> Workspace<'m> {
    fn new(memory: &'m Memory) -> Self {
        let address = memory.allocate(WORKSPACE_BYTES);
        // Cannot fail: just allocated.
        let _ = memory.write(address, &[0; WORKSPACE_BYTES]);
        Workspace { memory, address }
    }
}

impl Drop for Workspace<'_> {
    fn drop(&mut self) {
        let _ = self.memory.free(self.address);
    }
}

/// The shared memory and the clusters of a launch that is possible.
struct Room<'a> {
    dynamic_offset: u32,
    cluster: Cluster,
    regions: Option<Regions<'a>>,
}

impl<'a> Room<'a> {
    /// That of a launch, if any GPU of the module's target can run it.
    fn new(kernel: &Kernel, launch: &Launch<'a>) -> Result<Self, LaunchError> {
        let name = || kernel.name().to_string();
        let shared_limit = limits::shared_bytes(kernel)?;
        if let Some(error) = kernel.error() {
            return Err(LaunchError::Unsupported { kernel: name(), error });
        }
        limits::check_instructions(kernel)?;
        check_shape(kernel, launch)?;
        let (dims, is_explicit) = limits::cluster(kernel, launch)?;
        let variables = kernel.data.static_shared_bytes;
        let dynamic_offset = variables.next_multiple_of(kernel.data.dynamic_shared_align.max(16));
        let needs_dynamic = launch.shared_bytes > 0;
        let base = if needs_dynamic { dynamic_offset } else { variables };
        let all = u64::from(base) + u64::from(launch.shared_bytes);
        let shared = all - u64::from(kernel.system_shared_bytes());
        if shared > shared_limit {
            let target = kernel.module.target.clone();
            return Err(LaunchError::Shared {
                kernel: name(),
                bytes: shared,
                limit: shared_limit,
                target,
            });
        }
        let bytes = [variables, base, launch.shared_bytes];
        let regions = Regions::new(kernel.name(), launch.regions, bytes)?;
        debug_assert_eq!(SHARED_BASE % 1024, 0);
        let cluster = Cluster::new(dims, is_explicit, launch.threads(), all as u32);
        Ok(Room { dynamic_offset: base, cluster, regions })
    }
}

fn check_shape(kernel: &Kernel, launch: &Launch<'_>) -> Result<(), LaunchError> {
    let name = || kernel.name().to_string();
    let (expected, got) = (kernel.parameter_bytes(), launch.params.len());
    if expected != got {
        return Err(LaunchError::Parameters { kernel: name(), expected, got });
    }
    let product =
        |sizes: [u32; 3]| sizes.iter().map(|&size| u64::from(size)).try_fold(1, u64::checked_mul);
    let threads = product(launch.block).unwrap_or(u64::MAX);
    let limit = kernel.max_threads().unwrap_or([MAX_THREADS as u32, 1, 1]);
    let most = product(limit).unwrap_or(u64::MAX).min(MAX_THREADS);
    if launch.block[2] > MAX_DEPTH {
        let limit = [MAX_THREADS as u32, MAX_THREADS as u32, MAX_DEPTH];
        return Err(LaunchError::Threads { kernel: name(), block: launch.block, limit });
    }
    if threads == 0 || threads > most {
        return Err(LaunchError::Threads { kernel: name(), block: launch.block, limit });
    }
    if let Some(expected) = kernel.data.required_threads.filter(|&required| required != launch.block) {
        return Err(LaunchError::RequiredThreads { kernel: name(), expected, got: launch.block });
    }
    let fits = launch.grid.iter().zip(MAX_BLOCKS).all(|(&size, most)| size <= most);
    if !fits || !matches!(product(launch.grid), Some(1..=0xffff_ffff)) {
        return Err(LaunchError::Grid { kernel: name(), grid: launch.grid });
    }
    let bytes = u64::from(kernel.local_bytes());
    if bytes > MAX_LOCAL_BYTES {
        return Err(LaunchError::Local { kernel: name(), bytes, limit: MAX_LOCAL_BYTES });
    }
    Ok(())
}

/// What the blocks that have ended found.
#[derive(Default)]
struct Collected {
    findings: Findings,
    traces: BTreeMap<u64, Trace>,
    outputs: BTreeMap<u64, String>,
    statistics: Statistics,
}

fn run_blocks<'a>(
    chain: &'a Chain<'a>,
    environments: &'a [Environment<'a>],
    options: &'a Options,
) -> Vec<Report> {
    let clusters: u64 = chain.grids.iter().map(|grid| grid.clusters).sum();
    let threads = options.threads.clamp(1, clusters.clamp(1, 1024) as usize);
    let next = AtomicU64::new(0);
    let collected: Vec<_> = environments.iter().map(|_| Mutex::new(Collected::default())).collect();
    let worker = || Worker { chain, environments, options, next: &next, collected: &collected }.run();
    if threads == 1 {
        worker();
    } else {
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(worker);
            }
        });
    }
    let report = |collected: Mutex<Collected>| {
        let Collected { findings, traces, outputs, statistics } =
            collected.into_inner().unwrap_or_else(PoisonError::into_inner);
        let mut trace = Trace::default();
        traces.into_values().for_each(|later| trace.add(later));
        let output = outputs.into_values().collect();
        Report { findings: findings.in_order(options.max_findings), statistics, trace, output }
    };
    collected.into_iter().map(report).collect()
}

/// Blocks, or clusters, that the largest GPU runs at once: those of a grid barrier may be so many.
fn most_resident(environment: &Environment<'_>) -> usize {
    let [blocks, threads, bytes] = MULTIPROCESSOR;
    let by_threads = threads / (environment.threads() as usize).max(1);
    let Cluster { bytes: shared, blocks: of_cluster, .. } = environment.cluster;
    let by_bytes = bytes / (shared as usize + BLOCK_BYTES);
    MULTIPROCESSORS * blocks.min(by_threads).min(by_bytes).max(1) / of_cluster as usize
}

/// One thread's share of a launch.
struct Worker<'w, 'a> {
    chain: &'a Chain<'a>,
    environments: &'a [Environment<'a>],
    options: &'a Options,
    /// The cluster that is to start next, counted through all grids: a block where there are none.
    next: &'w AtomicU64,
    /// Of each grid.
    collected: &'w [Mutex<Collected>],
}

/// A block in the middle of its execution.
struct Resident<'a> {
    block: Block<'a>,
    /// Whether it has asked again and again for what others have to write, in this round.
    spins: bool,
}

/// How often in a row all blocks in execution only asked for what others have to write.
#[derive(Default)]
struct Vain {
    /// Blocks that did in this round.
    spinning: usize,
    /// Rounds in which all did.
    rounds: u32,
}

impl Vain {
    /// A block has had its turn, and the others have not: whether it did anything, and whether it spins.
    fn note(
        &mut self,
        now: &mut Resident<'_>,
        others: &mut VecDeque<Resident<'_>>,
        acted: bool,
        spins: bool,
    ) {
        if acted {
            self.rounds = 0;
        } else if spins && !now.spins {
            now.spins = true;
            self.spinning += 1;
        }
        let all = self.spinning > others.len();
        self.rounds += u32::from(all);
        if (acted || all) && self.spinning != 0 {
            others.iter_mut().for_each(|other| other.spins = false);
            (now.spins, self.spinning) = (false, 0);
        }
    }
}

impl Resident<'_> {
    /// Whether a block of a grid that starts now takes turns with this one under a random schedule: it is of
    /// the same grid, and does not wait for the one before.
    fn takes_turns_with(&self, grid: Option<usize>) -> bool {
        let Context { environment, awaits_grid, .. } = &self.block.context;
        Some(environment.place) == grid && !awaits_grid
    }
}

/// Whether a block that may start early waits for another turn. How often they do is drawn once: most are
/// then early, or late, or in between.
fn waits(random: &mut Random, delay: &mut Option<u64>) -> bool {
    let delay = *delay.get_or_insert_with(|| 1 << random.below(RANDOM_DELAY + 1));
    random.below(delay) != 0
}

impl<'a> Worker<'_, 'a> {
    fn run(self) {
        let mut resident: VecDeque<Resident<'a>> = VecDeque::new();
        let mut spare: Option<Block<'a>> = None;
        let schedule = self.options.schedule;
        let mut random =
            matches!(schedule, Schedule::Random(_)).then(|| Random::new(schedule, u64::MAX));
        let mut delay = None;
        // How many of the blocks in execution did nothing but wait, one after the other. Others start if
        // all did, or if one has run for long.
        let mut waiting = 0;
        let mut vain = Vain::default();
        // How many more than these are to start, as all of them wait.
        let mut lacking = 0usize;
        let most_resident = self.environments.iter().map(most_resident).max().unwrap_or(0);
        loop {
            let next = self.chain.grid_of_cluster(self.next.load(Ordering::Relaxed));
            let early = next.is_some_and(|grid| !self.chain.has_ended_before(grid));
            let others = || resident.iter().filter(|other| other.takes_turns_with(next)).count();
            let wanted = waiting >= resident.len()
                || if random.is_some() { others() < RANDOM_RESIDENT } else { waiting == 0 || early };
            let wanted =
                wanted && !random.as_mut().is_some_and(|random| early && waits(random, &mut delay));
            if vain.rounds >= LACK_ROUNDS {
                lacking = if resident.len() < MANY { 1 } else { resident.len() };
            }
            let lacks = lacking > 0 && resident.len() < most_resident;
            let fresh = if wanted && resident.len() < MAX_RESIDENT || lacks {
                self.start(&mut spare)
            } else {
                None
            };
            if fresh.is_some() {
                (waiting, vain.rounds) = (0, 0);
                lacking = lacking.saturating_sub(1);
            } else if vain.rounds >= VAIN_ROUNDS && self.options.threads <= 1 {
                for mut stuck in resident {
                    stuck.block.report_stuck();
                    self.collect(&mut stuck.block);
                }
                return;
            }
            let Some(mut now) = fresh.or_else(|| resident.pop_front()) else {
                if next.is_none() {
                    return;
                }
                // Others run the grid before.
                std::thread::yield_now();
                continue;
            };
            let turn = random.as_mut().map_or(PAUSE, |random| {
                let most = 1 << random.below(RANDOM_PAUSE + 1);
                1 + random.below(most)
            });
            let before = now.block.context.deeds;
            let progress = now.block.run(turn);
            waiting = if progress == Progress::Spinning { waiting + 1 } else { 0 };
            let acted = progress == Progress::Done || now.block.context.deeds != before;
            vain.note(&mut now, &mut resident, acted, progress == Progress::Spinning);
            if progress == Progress::Done {
                self.collect(&mut now.block);
                spare = Some(now.block);
            } else {
                resident.push_back(now);
            }
            if waiting > 0 {
                // What it waits for may be the business of another thread.
                std::thread::yield_now();
            }
        }
    }

    /// The next block that nobody has started.
    fn start(&self, spare: &mut Option<Block<'a>>) -> Option<Resident<'a>> {
        let grid_of = |next| self.chain.grid_of_cluster(next).filter(|&grid| self.chain.may_start(grid));
        let following = |next| grid_of(next).map(|_| next + 1);
        let next = self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, following).ok()?;
        let grid = grid_of(next)?;
        let number = next - self.chain.grids[grid].first_cluster;
        let block = match spare.take().filter(|spare| spare.context.environment.place == grid) {
            Some(mut block) => {
                block.restart(number);
                block
            }
            None => Block::new(&self.environments[grid], number),
        };
        Some(Resident { block, spins: false })
    }

    /// A block has ended.
    fn collect(&self, block: &mut Block<'a>) {
        let (number, place, grid) =
            (block.context.number, block.context.environment.place, block.context.environment.grid());
        let blocks = block.context.statistics.blocks;
        let is_early = !block.context.grid_before_has_ended();
        block.context.statistics.early_blocks = if is_early { blocks } else { 0 };
        if !block.has_exited() {
            grid.note_wait();
        }
        block.context.allow_next_grid(u32::MAX >> (32 - block.context.environment.cluster.blocks));
        if grid.end_cluster() && place > 0 && !grid.waits() {
            let end = block.context.environment.code().instructions.len() as u32 - 1;
            block.context.report(FindingKind::MissingGridWait, end, 0, 0, |_| {
                "no block of the grid has executed griddepcontrol.wait: what follows would not wait for the \
                 grid before"
                    .to_string()
            });
        }
        let mut collected = self.collected[place].lock().unwrap_or_else(PoisonError::into_inner);
        collected.statistics.add(&block.context.statistics);
        if let Some(ended) = &self.options.blocks_ended {
            ended.fetch_add(blocks, Ordering::Relaxed);
        }
        if !block.context.findings.is_empty() {
            collected.findings.add(number, std::mem::take(&mut block.context.findings));
        }
        if !block.context.output.is_empty() {
            collected.outputs.insert(number, std::mem::take(&mut block.context.output));
        }
        if let Some(trace) = block.context.trace.take()
            && *trace != Trace::default()
        {
            collected.traces.insert(number, *trace);
        }
    }
}
