//! A launch: checks its shape, runs its blocks, collects what they found.

use super::block::{Block, Progress};
use super::context::{Environment, Random};
use super::global_race::block_actors;
use super::limits;
use super::target::families;
use crate::error::LaunchError;
use crate::memory::SHARED_BASE;
use crate::memory::global::Memory;
use crate::module::Kernel;
use crate::options::{Launch, Options, Schedule};
use crate::region::Regions;
use crate::report::{Findings, Report, Statistics};
use crate::shadow::global::GlobalRace;
use crate::trace::Trace;
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
/// Blocks that take turns under a random schedule, unless these wait for others.
const RANDOM_RESIDENT: usize = 2;
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
/// largest GPU runs at once.
///
/// # Errors
///
/// The launch is impossible on any GPU of the module's target, its parameters do not have the kernel's
/// size, its regions overlap or reach beyond its shared memory, the target is not one from sm_80 to sm_90a,
/// or the kernel holds an instruction that the target does not have or the emulator does not know. Faults of
/// the kernel itself are no errors: the report lists them.
pub fn launch(
    kernel: &Kernel,
    memory: &Memory,
    launch: &Launch<'_>,
    options: &Options,
) -> Result<Report, LaunchError> {
    let name = || kernel.name().to_string();
    let shared_limit = limits::shared_bytes(kernel)?;
    if let Some(unsupported) = kernel.unsupported().first() {
        return Err(LaunchError::Unsupported { kernel: name(), error: unsupported.to_error() });
    }
    limits::check_instructions(kernel)?;
    check_shape(kernel, launch)?;
    let dynamic_offset =
        kernel.static_shared_bytes().next_multiple_of(kernel.data.dynamic_shared_align.max(16));
    let needs_dynamic = launch.shared_bytes > 0;
    let base = if needs_dynamic { dynamic_offset } else { kernel.static_shared_bytes() };
    let shared = u64::from(base) + u64::from(launch.shared_bytes);
    if shared > shared_limit {
        let target = kernel.module.target.clone();
        return Err(LaunchError::Shared { kernel: name(), bytes: shared, limit: shared_limit, target });
    }
    let bytes = [kernel.static_shared_bytes(), base, launch.shared_bytes];
    let regions = Regions::new(kernel.name(), launch.regions, bytes)?;
    debug_assert_eq!(SHARED_BASE % 1024, 0);
    let environment = Environment {
        kernel,
        launch: *launch,
        options,
        variables: memory.variables(&kernel.module),
        global: memory.view(),
        dynamic_offset: base,
        shared_bytes: shared as u32,
        regions,
        families: families(),
        global_race: Mutex::new(GlobalRace::new(block_actors(launch))),
        turn: Mutex::new(()),
    };
    Ok(run_blocks(&environment))
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
    let required = kernel.data.required_threads.is_none_or(|required| required == launch.block);
    if launch.block[2] > MAX_DEPTH {
        let limit = [MAX_THREADS as u32, MAX_THREADS as u32, MAX_DEPTH];
        return Err(LaunchError::Threads { kernel: name(), block: launch.block, limit });
    }
    if threads == 0 || threads > most || !required {
        return Err(LaunchError::Threads { kernel: name(), block: launch.block, limit });
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
    statistics: Statistics,
}

fn run_blocks(environment: &Environment<'_>) -> Report {
    let blocks: u64 = environment.launch.grid.iter().map(|&size| u64::from(size)).product();
    let threads = environment.options.threads.clamp(1, blocks.min(1024) as usize);
    let next = AtomicU64::new(0);
    let collected = Mutex::new(Collected::default());
    let worker = || Worker { environment, next: &next, blocks, collected: &collected }.run();
    if threads == 1 {
        worker();
    } else {
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(worker);
            }
        });
    }
    let Collected { findings, traces, statistics } =
        collected.into_inner().unwrap_or_else(PoisonError::into_inner);
    let mut trace = Trace::default();
    traces.into_values().for_each(|later| trace.add(later));
    Report { findings: findings.in_order(environment.options.max_findings), statistics, trace }
}

/// Blocks that the largest GPU runs at once: those of a grid barrier may be so many.
fn most_resident(environment: &Environment<'_>) -> usize {
    let [blocks, threads, bytes] = MULTIPROCESSOR;
    let by_threads = threads / (environment.threads() as usize).max(1);
    let by_bytes = bytes / (environment.shared_bytes as usize + BLOCK_BYTES);
    MULTIPROCESSORS * blocks.min(by_threads).min(by_bytes).max(1)
}

/// One thread's share of a launch.
struct Worker<'w, 'a> {
    environment: &'a Environment<'a>,
    next: &'w AtomicU64,
    blocks: u64,
    collected: &'w Mutex<Collected>,
}

/// A block in the middle of its execution.
struct Resident<'a> {
    number: u64,
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

impl<'a> Worker<'_, 'a> {
    fn run(self) {
        let mut resident: VecDeque<Resident<'a>> = VecDeque::new();
        let mut spare: Option<Block<'a>> = None;
        let schedule = self.environment.options.schedule;
        let mut random =
            matches!(schedule, Schedule::Random(_)).then(|| Random::new(schedule, u64::MAX));
        // How many of the blocks in execution did nothing but wait, one after the other. Others start if
        // all did, or if one has run for long.
        let mut waiting = 0;
        let mut vain = Vain::default();
        // How many more than these are to start, as all of them wait.
        let mut lacking = 0usize;
        let most_resident = most_resident(self.environment);
        loop {
            let wanted = waiting >= resident.len()
                || if random.is_some() { resident.len() < RANDOM_RESIDENT } else { waiting == 0 };
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
            } else if vain.rounds >= VAIN_ROUNDS && self.environment.options.threads <= 1 {
                for mut stuck in resident {
                    stuck.block.report_stuck();
                    self.collect(stuck.number, &mut stuck.block);
                }
                return;
            }
            let Some(mut now) = fresh.or_else(|| resident.pop_front()) else { return };
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
                self.collect(now.number, &mut now.block);
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
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        if number >= self.blocks {
            return None;
        }
        let block = match spare.take() {
            Some(mut block) => {
                block.restart(number);
                block
            }
            None => Block::new(self.environment, number),
        };
        Some(Resident { number, block, spins: false })
    }

    fn collect(&self, number: u64, block: &mut Block<'a>) {
        let mut collected = self.collected.lock().unwrap_or_else(PoisonError::into_inner);
        collected.statistics.add(&block.context.statistics);
        if !block.context.findings.is_empty() {
            collected.findings.add(number, std::mem::take(&mut block.context.findings));
        }
        if let Some(trace) = block.context.trace.take()
            && *trace != Trace::default()
        {
            collected.traces.insert(number, *trace);
        }
    }
}
