//! A block, or all blocks of a cluster: their warps, and whose turn it is.

use crate::exec::actors::async_copy;
use crate::exec::actors::bulk;
use crate::exec::actors::wgmma;
use crate::exec::state::barrier::Outcome;
use crate::exec::state::context::{Context, Environment, Stop};
use crate::exec::state::flight::Flight;
use crate::exec::state::warp::{Fragment, State, Warp};
use crate::exec::step::{Event, run};
use crate::exec::values::registers::{LANES, Registers};
use crate::isa::{BARRIERS, BarrierOp, Fill, Op, PREDICATE_CLUSTERS, PREDICATE_TRUE, Special};
use crate::options::Schedule;
use crate::report::FindingKind;
use crate::space::{RANK_SHIFT, SHARED_BASE};

/// Instructions of a fragment's turn, so that lanes which spin let others go on.
const TURN: u64 = 1 << 13;
/// The longest turn of a random schedule.
const RANDOM_TURN: u64 = 400;
/// One in so many turns of a random schedule lets a copy land.
const LANDING_ODDS: u64 = 4;
/// Warps that stay behind together in a random schedule.
const WARPGROUP: usize = 4;
/// Others stay behind after so many turns, on average.
const SLOW_TURNS: u64 = 256;
/// One in so many turns may go to those who stay behind, though others could go on.
const SLOW_ODDS: u64 = 64;

/// Whether a block, or a cluster of several, has come to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It has; its findings say whether well.
    Done,
    /// It has had its turn, and can go on.
    Paused,
    /// It can go on, but none of its warps does anything but ask for what others have to write.
    Spinning,
}

/// A block, or a cluster of several, in execution.
pub struct Block<'a> {
    /// What its instructions share.
    pub context: Context<'a>,
    pub(super) warps: Vec<Warp>,
    /// Registers before the kernel starts, for each warp.
    initial: Vec<Registers>,
    /// The warp whose turn it is.
    turn: usize,
    /// Four warps that hardly get a turn at the moment, in a random order.
    slow: Option<usize>,
    /// How many turns in a row only asked for what others have to write.
    pub(super) spins: usize,
    /// How often in a row all threads asked in vain, and what had been done before.
    pub(super) asks: u32,
    pub(super) deeds: u64,
    /// Events at barriers so far.
    pub(super) progress: u64,
    /// How many there were when those who wait for a phase last gave up.
    pub(super) given_up: Option<u64>,
}

fn live_lanes(threads: u32, warp: u32) -> u32 {
    match threads - (warp * LANES as u32).min(threads) {
        0 => 0,
        n if n >= LANES as u32 => !0,
        n => (1 << n) - 1,
    }
}

impl<'a> Block<'a> {
    /// A block at the start of a kernel.
    pub fn new(environment: &'a Environment<'a>, number: u64) -> Self {
        let context = Context::new(environment, number);
        let threads = environment.threads();
        let cluster = &environment.cluster;
        let count = cluster.all_warps();
        let local = environment.kernel.data.local_bytes as usize;
        let initial: Vec<Registers> = (0..count).map(|warp| initial_registers(&context, warp)).collect();
        let warps = (0..count)
            .map(|warp| {
                let registers = initial[warp as usize].clone();
                let live = live_lanes(threads, cluster.in_block(warp));
                let mut warp = Warp::new(warp, registers, live, local);
                if environment.options.checks.races && !environment.code().touches.is_empty() {
                    warp.flight = Some(Box::new(Flight::new(environment.code())));
                }
                let watch = &environment.code().watch;
                if environment.options.checks.registers && !watch.is_empty() {
                    warp.watched = Some(vec![0; watch.registers.len()].into());
                }
                warp
            })
            .collect();
        let (turn, slow, spins, asks, deeds, progress, given_up) = (0, None, 0, 0, 0, 0, None);
        Block { context, warps, initial, turn, slow, spins, asks, deeds, progress, given_up }
    }

    /// Makes it another block of the same launch.
    pub fn restart(&mut self, number: u64) {
        self.context.reset(number);
        (self.turn, self.slow, self.spins, self.progress, self.given_up) = (0, None, 0, 0, None);
        (self.asks, self.deeds) = (0, 0);
        let environment = self.context.environment;
        let threads = environment.threads();
        for (warp, initial) in self.warps.iter_mut().zip(&mut self.initial) {
            fill_block(initial, &self.context, warp.id);
            warp.registers.copy_from(initial);
            warp.restart(live_lanes(threads, environment.cluster.in_block(warp.id)));
        }
    }

    /// Runs for about so many warp instructions.
    pub fn run(&mut self, budget: u64) -> Progress {
        let end = self.context.statistics.warp_instructions.saturating_add(budget);
        while self.context.statistics.warp_instructions < end {
            match self.step() {
                Ok(true) => {}
                Ok(false) | Err(Stop) => return Progress::Done,
            }
            if self.spins >= self.warps.len() {
                self.spins = 0;
                return Progress::Spinning;
            }
            if std::mem::take(&mut self.context.lets_next_grid_start) {
                return Progress::Paused;
            }
        }
        Progress::Paused
    }

    /// Lets one fragment run. False when all threads have exited.
    fn step(&mut self) -> Result<bool, Stop> {
        let random = matches!(self.context.environment.options.schedule, Schedule::Random(_));
        if random && self.context.random.below(LANDING_ODDS) == 0 {
            self.land_some()?;
        }
        self.wake();
        let choice = if random { self.choose_random() } else { self.choose_next() };
        let Some((warp, fragment)) = choice else {
            if self.has_exited() {
                self.finish()?;
                return Ok(false);
            }
            if self.unstick()? {
                return Ok(true);
            }
            if self.context.awaits_grid {
                self.spins = self.warps.len();
                return Ok(true);
            }
            self.report_stuck();
            return Err(Stop);
        };
        let turn = if random { 1 + self.context.random.below(RANDOM_TURN) } else { TURN };
        let event = run(&mut self.context, &mut self.warps[warp], fragment, turn)?;
        self.spins = if event == Event::Spin { self.spins + 1 } else { 0 };
        match event {
            // The other fragments of the warp come first, then the other warps.
            Event::Yield | Event::Spin | Event::Ask => {
                self.turn = (warp + usize::from(!random)) % self.warps.len();
                if event == Event::Ask && !random {
                    self.arrive_where_asked()?;
                }
                if event != Event::Yield {
                    return self.hope();
                }
            }
            Event::Barrier(id) => self.settle(id),
            Event::Cluster => self.settle_cluster(),
            Event::Gone => {
                self.turn = warp;
                let rank = self.context.environment.cluster.rank(warp as u32);
                // Lanes that have exited may have been all that others waited for.
                (rank * BARRIERS..(rank + 1) * BARRIERS).for_each(|id| self.settle(id));
                if self.warps[warp].live == 0 {
                    self.end_block(rank);
                }
                self.settle_cluster();
            }
        }
        Ok(true)
    }

    /// Lets something asynchronous happen, at random.
    fn land_some(&mut self) -> Result<(), Stop> {
        let warp = self.context.random.below(self.warps.len() as u64) as usize;
        async_copy::land_some(&mut self.context, &mut self.warps[warp])?;
        async_copy::arrive_some(&mut self.context, &mut self.warps[warp])?;
        wgmma::run_next(&mut self.context, &mut self.warps[warp]);
        let loads = self.context.bulk.in_time().count() as u64;
        if loads != 0 {
            let drawn = self.context.random.below(loads) as usize;
            let drawn = self.context.bulk.in_time().nth(drawn);
            drawn.map_or(Ok(()), |index| bulk::land(&mut self.context, index))?;
        }
        let stores = self.context.bulk.stores.len() as u64;
        if stores != 0 {
            let index = self.context.random.below(stores) as usize;
            bulk::perform(&mut self.context, index)?;
        }
        Ok(())
    }

    /// Whether all threads have exited.
    pub fn has_exited(&self) -> bool {
        self.warps.iter().all(|warp| warp.live == 0)
    }

    /// Lets those look again who wait at a memory barrier where something happened, for registers, or for a
    /// grid that has ended.
    fn wake(&mut self) {
        let woken = std::mem::take(&mut self.context.mbarriers.woken);
        let registers = std::mem::take(&mut self.context.warpgroups.woken);
        let grid = self.context.awaits_grid && self.context.grid_before_has_ended();
        if woken.is_empty() && !registers && !grid {
            return;
        }
        self.context.awaits_grid &= !grid;
        self.progress += 1;
        for fragment in self.warps.iter_mut().flat_map(|warp| &mut warp.fragments) {
            match fragment.state {
                State::Phase(address) if woken.contains(&address) => fragment.state = State::Ready,
                State::Registers if registers => fragment.state = State::Ready,
                State::Grid if grid => fragment.state = State::Ready,
                _ => {}
            }
        }
    }

    /// All threads have exited: nothing may be on its way.
    fn finish(&mut self) -> Result<(), Stop> {
        if self.context.environment.cluster.is_one() {
            self.end_copies(0);
        }
        let c = &mut self.context;
        for index in 0..c.bulk.stores.len() {
            bulk::perform(c, index)?;
        }
        if let Some((step, warp)) = c.warpgroups.unfinished() {
            c.report(FindingKind::WarpgroupDivergence, step.pc, warp, 0, |_| {
                format!("warp {warp} ended without it, but another warp of its warpgroup executed it")
            });
        }
        Ok(())
    }

    /// All threads of a block have exited: no copy to or from its shared memory may be on its way.
    fn end_copies(&mut self, rank: u32) {
        let c = &mut self.context;
        let (cluster, kind) = (c.environment.cluster, FindingKind::AsyncCopyInFlight);
        let is_one = cluster.is_one();
        let loads = c.bulk.loads.iter().map(|load| &load.transfer);
        let loads = loads.filter(|transfer| is_one || transfer.shared >> RANK_SHIFT == rank);
        let stores = c.bulk.stores.iter().filter(|store| !store.waited).map(|store| &store.transfer);
        let stores = stores.filter(|transfer| cluster.rank(transfer.issuer.warp) == rank);
        let open: Vec<_> = loads.chain(stores).map(|transfer| (transfer.pc, transfer.issuer)).collect();
        for (pc, issuer) in open {
            c.report(kind, pc, issuer.warp, issuer.lane, |_| {
                "the block ends before this bulk copy, which has not been waited for".to_string()
            });
        }
    }

    /// A warp of a block of several has ended, which may be its last.
    fn end_block(&mut self, rank: u32) {
        let cluster = self.context.environment.cluster;
        if cluster.is_one() || self.warps[cluster.warps_of(rank)].iter().any(|warp| warp.live != 0) {
            return;
        }
        self.end_copies(rank);
        self.context.remote_end(rank);
        self.context.ended |= 1 << rank;
        self.context.lets_next_grid_start |= self.context.allow_next_grid(0);
    }

    fn choose_next(&self) -> Option<(usize, usize)> {
        let count = self.warps.len();
        (0..count).map(|step| (self.turn + step) % count).find_map(|warp| {
            let ready = |fragment: &Fragment| fragment.state == State::Ready;
            self.warps[warp].fragments.iter().position(ready).map(|fragment| (warp, fragment))
        })
    }

    /// One that is ready. With odd seeds four warps stay behind, for a while at a time: what one warpgroup
    /// does far ahead of another hardly happens where all have the same chances.
    fn choose_random(&mut self) -> Option<(usize, usize)> {
        let schedule = self.context.environment.options.schedule;
        let lets_some_lag = matches!(schedule, Schedule::Random(seed) if seed % 2 == 1);
        if !lets_some_lag || self.warps.len() <= WARPGROUP {
            return self.choose_but(None);
        }
        let random = &mut self.context.random;
        if random.below(SLOW_TURNS) == 0 {
            let groups = self.warps.len().div_ceil(WARPGROUP) as u64;
            let drawn = random.below(2 * groups);
            self.slow = (drawn < groups).then_some(drawn as usize);
        }
        // Who asks for what others have to write may ask the slow ones.
        let spares_slow = self.spins == 0 && random.below(SLOW_ODDS) != 0;
        let slow = self.slow.filter(|_| spares_slow);
        self.choose_but(slow).or_else(|| self.choose_but(None))
    }

    /// One that is ready, in none of these four warps.
    fn choose_but(&mut self, slow: Option<usize>) -> Option<(usize, usize)> {
        let mut choice = None;
        let mut seen = 0;
        for (index, warp) in self.warps.iter().enumerate() {
            if slow == Some(index / WARPGROUP) {
                continue;
            }
            for (position, fragment) in warp.fragments.iter().enumerate() {
                if fragment.state == State::Ready {
                    seen += 1;
                    if self.context.random.below(seen) == 0 {
                        choice = Some((index, position));
                    }
                }
            }
        }
        choice
    }

    /// Lets those go on who wait at a barrier that is complete.
    fn settle(&mut self, id: u32) {
        let of_block = self.context.environment.cluster.warps_of(id / BARRIERS);
        let mut live = [0; LANES];
        for (live, warp) in live.iter_mut().zip(&self.warps[of_block.clone()]) {
            *live = warp.live;
        }
        let (live, first) = (&live[..of_block.len()], of_block.start as u32);
        let Some(outcome) = self.context.barriers.complete(id, live, first) else {
            return;
        };
        self.progress += 1;
        let mut waited = Vec::new();
        for warp in &mut self.warps[of_block] {
            for index in 0..warp.fragments.len() {
                let fragment = &mut warp.fragments[index];
                if fragment.state == State::Barrier(id) {
                    let (pc, mask) = (fragment.pc, fragment.mask);
                    fragment.state = State::Ready;
                    fragment.pc += 1;
                    deliver(self.context.environment, &mut warp.registers, pc, mask, outcome);
                    waited.push(warp.id);
                }
            }
        }
        self.context.race_acquire_from_barrier(&waited, id);
    }

    /// Lets those look again who wait at the barrier of the cluster, if it is complete.
    fn settle_cluster(&mut self) {
        if !self.context.barriers.cluster.complete(self.warps.iter().map(|warp| warp.live)) {
            return;
        }
        self.progress += 1;
        let waiting = self.warps.iter_mut().flat_map(|warp| &mut warp.fragments);
        for fragment in waiting.filter(|fragment| fragment.state == State::Cluster) {
            fragment.state = State::Ready;
        }
    }
}

/// Hands the result of a reducing barrier to lanes that waited.
fn deliver(environment: &Environment<'_>, r: &mut Registers, pc: u32, mask: u32, outcome: Outcome) {
    let i = &environment.code().instructions[pc as usize];
    let holds = |holds: bool| if holds { !0 } else { 0 };
    match i.op {
        Op::Barrier(BarrierOp::ReducePopulation) => r.set32(i.d, mask, &[outcome.population; LANES]),
        Op::Barrier(BarrierOp::ReduceAnd) => r.set_predicate(i.d, mask, holds(outcome.all)),
        Op::Barrier(BarrierOp::ReduceOr) => r.set_predicate(i.d, mask, holds(outcome.any)),
        _ => {}
    }
}

fn initial_registers(context: &Context<'_>, warp: u32) -> Registers {
    let environment = context.environment;
    let code = environment.code();
    let mut registers = Registers::new(code.rows, code.predicates);
    registers.set_predicate(PREDICATE_TRUE, !0, !0);
    registers.set_predicate(
        PREDICATE_CLUSTERS,
        !0,
        if environment.cluster.is_explicit { !0 } else { 0 },
    );
    let of_block = u64::from(environment.cluster.rank(warp) << RANK_SHIFT);
    let dynamic = of_block + u64::from(SHARED_BASE + environment.dynamic_offset);
    for &(row, fill) in &code.fills {
        let (value, wide) = match fill {
            Fill::Constant32(value) => (u64::from(value), false),
            Fill::Constant64(value) => (value, true),
            Fill::DynamicShared { wide } => (dynamic, wide),
            Fill::Shared { address, wide } => (of_block.wrapping_add(address), wide),
            // Every call has its own.
            Fill::Frame { wide, .. } => (0, wide),
            Fill::Variable { index, offset, wide } => {
                (environment.variables[index as usize].0.wrapping_add(offset as u64), wide)
            }
            Fill::Special(special) => {
                *registers.row32_mut(row) = special_row(context, warp, special);
                continue;
            }
        };
        if wide {
            *registers.row64_mut(row) = [value; LANES];
        } else {
            *registers.row32_mut(row) = [value as u32; LANES];
        }
    }
    registers
}

/// Rewrites the special registers that differ between blocks.
fn fill_block(registers: &mut Registers, context: &Context<'_>, warp: u32) {
    for &(row, fill) in &context.environment.code().fills {
        if let Fill::Special(special @ (Special::Block(_) | Special::Cluster(_))) = fill {
            *registers.row32_mut(row) = special_row(context, warp, special);
        }
    }
}

fn special_row(context: &Context<'_>, warp: u32, special: Special) -> [u32; LANES] {
    let environment = context.environment;
    let (launch, cluster) = (&environment.launch, &environment.cluster);
    let (block, rank) = (context.block_of(warp), cluster.rank(warp));
    let warp = cluster.in_block(warp);
    std::array::from_fn(|lane| {
        let lane = lane as u32;
        let bit = 1u32 << lane;
        match special {
            Special::Thread(d) => environment.thread(warp * LANES as u32 + lane)[usize::from(d)],
            Special::Threads(d) => launch.block[usize::from(d)],
            Special::Block(d) => block[usize::from(d)],
            Special::Blocks(d) => launch.grid[usize::from(d)],
            Special::Cluster(d) => cluster.at(launch, context.number)[usize::from(d)],
            Special::Clusters(d) => cluster.grid(launch)[usize::from(d)],
            Special::BlockInCluster(d) => cluster.block_in_cluster(rank)[usize::from(d)],
            Special::BlocksOfCluster(d) => cluster.dims[usize::from(d)],
            Special::ClusterRank => rank,
            Special::ClusterSize => cluster.blocks,
            Special::Lane => lane,
            Special::Warp => warp,
            Special::Warps => environment.threads().div_ceil(LANES as u32),
            Special::LaneMaskEq => bit,
            Special::LaneMaskLt => bit - 1,
            Special::LaneMaskLe => bit | (bit - 1),
            Special::LaneMaskGt => !(bit | (bit - 1)),
            Special::LaneMaskGe => !(bit - 1),
            Special::DynamicSharedBytes => launch.shared_bytes,
            Special::TotalSharedBytes => cluster.bytes - environment.kernel.system_shared_bytes(),
            Special::SystemSharedBytes => SHARED_BASE,
            Special::Workspace { high } => (environment.workspace.0 >> if high { 32 } else { 0 }) as u32,
            Special::Zero => 0,
            Special::One => 1,
        }
    })
}
