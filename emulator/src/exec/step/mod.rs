//! The interpreter loop: runs one fragment of a warp until it waits, ends or has had its turn.

pub mod asynchronous;
mod call;
mod cluster;
mod dependent;
mod exchange;
mod trace;
mod trace_matrix;

use crate::exec::actors::async_copy;
use crate::exec::check::strong::Strength;
use crate::exec::ops;
use crate::exec::state::barrier::{Arrival, waits, weight};
use crate::exec::state::context::{Context, Stop};
use crate::exec::state::steps;
use crate::exec::state::warp::{ASK, Fragment, NONE, SPIN, State, Warp};
use crate::exec::values::registers::lanes;
use crate::isa::{
    BARRIERS, BarrierOp, FLAG_ALIGNED, FLAG_GLOBAL, FLAG_NEGATE_GUARD, FLAG_NEGATE_SOURCE,
    FLAG_OPTIONAL, FLAG_SHARED, FLAG_STRONG, Instruction, Op, ROW_SINK,
};
use crate::report::FindingKind;
use crate::space::Space;

/// Why a fragment stopped running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Its turn is over, or it waits for other lanes of its warp.
    Yield,
    /// It asks again and again for what others have to write.
    Spin,
    /// It asked in vain for a phase of a memory barrier.
    Ask,
    /// It has arrived at a barrier, which may now be complete.
    Barrier(u32),
    /// It has arrived at the barrier of the cluster.
    Cluster,
    /// Its lanes exited or joined another fragment.
    Gone,
}

/// Of instructions that count for so much the limit may be reached long before a turn is over.
const HEAVY: u16 = 512;

/// What an instruction leaves to do.
pub enum Next {
    /// Go on behind it.
    Advance,
    /// Go on wherever the fragment now stands.
    Stay,
    /// Stop running.
    Leave(Event),
}

/// A fragment taken out of its warp while it runs.
pub struct Runner<'r, 'a> {
    pub context: &'r mut Context<'a>,
    pub warp: &'r mut Warp,
    pub pc: u32,
    pub mask: u32,
    pub record: u32,
    /// Where the lanes are awaited.
    meet: u32,
}

/// Runs the fragment at `index` for at most `turn` instructions.
pub fn run(context: &mut Context<'_>, warp: &mut Warp, index: usize, turn: u64) -> Result<Event, Stop> {
    let Fragment { pc, mask, record, .. } = warp.fragments.swap_remove(index);
    let meet = warp.meeting_point(record);
    let mut runner = Runner { context, warp, pc, mask, record, meet };
    runner.run(turn)
}

impl Runner<'_, '_> {
    fn run(&mut self, turn: u64) -> Result<Event, Stop> {
        if self.context.trace.is_some() { self.steps::<true>(turn) } else { self.steps::<false>(turn) }
    }

    fn steps<const TRACED: bool>(&mut self, turn: u64) -> Result<Event, Stop> {
        let code = self.context.environment.code();
        let limit = self.context.environment.step_limit();
        let done = self.context.statistics.warp_instructions;
        let taken = done.saturating_add(self.context.more_steps);
        if taken >= limit {
            return self.give_up(limit);
        }
        let turn = turn.min(limit - taken);
        for step in 0..turn {
            if self.pc == self.meet && !self.meet_others() {
                self.context.statistics.warp_instructions = done + step;
                return Ok(Event::Gone);
            }
            let i = &code.instructions[self.pc as usize];
            let guard = self.warp.registers.predicate(i.guard);
            let guard = if i.has(FLAG_NEGATE_GUARD) { !guard } else { guard };
            let mut m = self.mask & guard;
            if self.warp.watched.is_some() {
                self.context.watch_touch(self.warp, self.pc, self.mask, m);
            }
            if self.warp.poison.is_some() {
                m &= !self.context.poison_touch(self.warp, self.pc, self.mask, m);
            }
            if m == 0 {
                self.pc += 1;
                continue;
            }
            if self.warp.flight.is_some() {
                self.context.flight_touch(self.warp, self.pc, m);
            }
            let beside = code.steps[self.pc as usize];
            self.context.more_steps += u64::from(beside) + if TRACED { steps::TRACED } else { 0 };
            if beside >= HEAVY && self.context.more_steps >= limit {
                self.context.statistics.warp_instructions = done + step;
                return self.give_up(limit);
            }
            match if TRACED { self.execute_traced(i, m) } else { self.execute(i, m) } {
                Ok(Next::Advance) => self.pc += 1,
                Ok(Next::Stay) => {}
                Ok(Next::Leave(event)) => {
                    self.context.statistics.warp_instructions = done + step + 1;
                    match event {
                        Event::Spin => self.warp.stall(SPIN),
                        Event::Ask => self.warp.stall(ASK),
                        _ => {}
                    }
                    return Ok(event);
                }
                Err(Stop) => {
                    self.context.statistics.warp_instructions = done + step + 1;
                    return Err(Stop);
                }
            }
        }
        self.context.statistics.warp_instructions = done + turn;
        if (done + turn).saturating_add(self.context.more_steps) >= limit {
            return self.give_up(limit);
        }
        self.park(State::Ready);
        self.warp.stall(turn);
        Ok(Event::Yield)
    }

    #[cold]
    fn give_up(&mut self, limit: u64) -> Result<Event, Stop> {
        self.report(FindingKind::StepLimit, self.mask, format!("{limit} steps"));
        Err(Stop)
    }

    /// At the meeting point: goes on with all lanes if these are the last.
    fn meet_others(&mut self) -> bool {
        while self.pc == self.meet {
            let Some((mask, record)) = self.warp.arrive(self.record, self.mask) else { return false };
            self.mask = mask;
            self.record = record;
            self.meet = self.warp.meeting_point(record);
        }
        true
    }

    pub fn park(&mut self, state: State) {
        let Runner { pc, mask, record, .. } = *self;
        self.warp.fragments.push(Fragment { pc, mask, record, state });
    }

    #[cold]
    pub fn report(&mut self, kind: FindingKind, mask: u32, message: String) {
        let lane = mask.trailing_zeros() & 31;
        self.context.report(kind, self.pc, self.warp.id, lane, |_| message);
    }

    #[inline(always)]
    pub fn execute(&mut self, i: &Instruction, m: u32) -> Result<Next, Stop> {
        let families = self.context.environment.families;
        let registers = &mut self.warp.registers;
        match i.op {
            Op::Integer32(op) => (families.integer32)(registers, i, m, op),
            Op::Float32(op) => (families.float32)(registers, i, m, op),
            Op::Integer64(op) => (families.integer64)(registers, i, m, op),
            Op::Integer16(op) => (families.integer16)(registers, i, m, op),
            Op::Float64(op) => (families.float64)(registers, i, m, op),
            Op::Half(_) | Op::Bfloat(_) | Op::HalfPair(_) | Op::BfloatPair(_) => {
                (families.half)(registers, i, m, i.op);
            }
            Op::Compare(ty) => (families.compare)(registers, i, m, ty),
            Op::Select32 => ops::moves::select32(registers, i, m),
            Op::Select64 => ops::moves::select64(registers, i, m),
            Op::Predicate(op) => ops::moves::predicate(registers, i, m, op),
            Op::Move(op) => {
                ops::moves::run(registers, i, m, op, &self.context.environment.kernel.data.code.lists);
            }
            Op::Convert
            | Op::ConvertPairBfloat
            | Op::ConvertPairHalf
            | Op::ConvertU32ToU64
            | Op::ConvertS32ToS64
            | Op::ConvertU64ToU32
            | Op::ConvertU32ToU16
            | Op::ConvertBfloatToF32
            | Op::ConvertHalfToF32
            | Op::ConvertTf32 => (families.convert)(registers, i, m, i.op),
            Op::Branch => return Ok(self.branch(i, m)),
            _ => return self.execute_rare(i, m),
        }
        Ok(Next::Advance)
    }

    /// Behind a load or an atomic operation: whoever asks in a loop for what others write lets them go on.
    #[inline(always)]
    fn ask(&mut self, others_write: bool) -> Next {
        if !others_write || !self.warp.asks_again() {
            return Next::Advance;
        }
        let op = self.context.environment.code().instructions[self.pc as usize].op;
        if matches!(op, Op::Load(Space::Shared | Space::Cluster)) {
            self.warp.asks_in_vain(self.mask);
        }
        self.pc += 1;
        self.park(State::Ready);
        Next::Leave(Event::Spin)
    }

    /// Instructions that can stop the block, wait, or need more than registers.
    fn execute_rare(&mut self, i: &Instruction, m: u32) -> Result<Next, Stop> {
        let families = self.context.environment.families;
        self.warp.pc = self.pc;
        self.context.deeds += u64::from(!is_quiet(i.op));
        match i.op {
            Op::Load(space) => {
                (families.load)(self.context, self.warp, i, m, space)?;
                return Ok(self.ask(i.has(FLAG_STRONG)));
            }
            Op::Store(space) => (families.store)(self.context, self.warp, i, m, space)?,
            Op::Atomic(op) => {
                ops::atomic::run(self.context, self.warp, i, m, op)?;
                return Ok(self.ask(i.d != ROW_SINK));
            }
            Op::AsyncCopy(op) => ops::async_copy::run(self.context, self.warp, i, m, op)?,
            Op::Matrix(op) => {
                let Some(m) = self.whole_warp(m)? else {
                    return Ok(Next::Leave(Event::Yield));
                };
                (families.matrix)(self.context, self.warp, i, m, op)?;
            }
            Op::Shuffle(_)
            | Op::Vote(_)
            | Op::Redux(_)
            | Op::MatchAny
            | Op::MatchAll
            | Op::Elect
            | Op::WarpSync => {
                return self.exchange(i, m);
            }
            Op::Carry(op) => ops::carry::run(&mut self.warp.registers, i, m, op),
            Op::ActiveMask => self.warp.registers.set32(i.d, m, &[m; 32]),
            Op::Clock32 | Op::Clock64 => {
                // Never 0, as on a GPU.
                let now = self.context.statistics.warp_instructions + 1;
                ops::moves::clock(&mut self.warp.registers, i, m, now, i.op == Op::Clock64);
            }
            Op::Mbarrier(op) if op.polls() => return self.poll(i, m, op),
            Op::Mbarrier(op) => ops::mbarrier::run(self.context, self.warp, i, m, op)?,
            Op::Bulk(op) => ops::bulk::run(self.context, self.warp, i, m, op)?,
            Op::Wgmma(op) => return self.wgmma(i, m, op),
            Op::Fence => self.context.fence(self.warp.id, Strength::of(i)),
            Op::MbarrierFence => self.context.race_mbarrier_fence(self.warp.id),
            Op::ProxyFence => {
                if i.has(FLAG_SHARED) {
                    self.context.race_proxy_fence(self.warp.id);
                }
                if i.has(FLAG_GLOBAL) {
                    self.context.global_proxy_fence(self.warp.id);
                }
            }
            Op::AllowNextGrid => return Ok(self.allow_next_grid()),
            Op::AwaitGrid => return Ok(self.await_grid(m)),
            Op::SetMaxRegisters => return self.set_max_registers(i, m),
            Op::MapAddress => self.map_address(i, m)?,
            Op::BlockRank => self.block_rank(i, m)?,
            Op::IsOwnShared => self.is_own_shared(i, m),
            Op::ClusterArrive => return self.cluster_arrive(i, m),
            Op::ClusterWait => return self.cluster_wait(i, m),
            Op::Barrier(op) => return self.barrier(i, m, op),
            Op::BranchIndexed => return self.branch_indexed(i, m),
            Op::Exit => return self.exit(m),
            Op::Call => return self.call(i, m),
            Op::Return => return Ok(self.return_from_call(m)),
            Op::CallBuiltin(op) => ops::builtin::run(self.context, self.warp, i, m, op)?,
            Op::Trap => {
                self.report(FindingKind::Trap, m, "the kernel executed trap".to_string());
                return Err(Stop);
            }
            Op::Nop => {}
            Op::FragmentPlace => ops::matrix::fragment_place(&mut self.warp.registers, i, m),
            Op::Rare(op) => ops::rare::run(&mut self.warp.registers, i, m, op),
            Op::IsConstant => {
                let addresses = *self.warp.registers.row64(i.a);
                let global = self.context.environment.global;
                let is = |&lane: &usize| global.get(addresses[lane]).is_ok_and(|view| view.read_only);
                let found = lanes(m).filter(is).fold(0, |mask, lane| mask | 1 << lane);
                self.warp.registers.set_predicate(i.d, m, found);
            }
            Op::StackAllocate | Op::StackSave | Op::StackRestore => self.stack(i, m)?,
            Op::ReplaceInMap => ops::tensor_map::replace(self.context, self.warp, i, m)?,
            Op::CopyMap => {
                let Some(m) = self.whole_warp(m)? else {
                    return Ok(Next::Leave(Event::Yield));
                };
                ops::tensor_map::copy(self.context, self.warp, i, m)?;
            }
            _ => unreachable!("{:?} runs elsewhere, or its kernel does not launch", i.op),
        }
        Ok(Next::Advance)
    }

    fn branch(&mut self, i: &Instruction, m: u32) -> Next {
        if m == self.mask {
            self.pc = i.immediate as u32;
            return Next::Stay;
        }
        self.context.statistics.divergent_branches += 1;
        let record = self.warp.split(i.e, self.mask, self.record);
        let rest = Fragment { pc: self.pc + 1, mask: self.mask & !m, record, state: State::Ready };
        self.record = record;
        self.meet = self.warp.meeting_point(record);
        // The common case of an `if` without an `else`: the jumping lanes are at the meeting point.
        if i.immediate as u32 == self.meet && record != NONE {
            let alone = self.warp.arrive(record, m);
            debug_assert!(alone.is_none(), "the other lanes are still on their way");
            self.mask = rest.mask;
            self.pc = rest.pc;
        } else {
            self.warp.fragments.push(rest);
            self.mask = m;
            self.pc = i.immediate as u32;
        }
        Next::Stay
    }

    fn branch_indexed(&mut self, i: &Instruction, m: u32) -> Result<Next, Stop> {
        let index = *self.warp.registers.row32(i.a);
        if let Some(lane) = lanes(m).find(|&lane| index[lane] >= i.e) {
            let message = format!("index {} into {} branch targets", index[lane], i.e);
            self.report(FindingKind::InvalidOperand, 1 << lane, message);
            return Err(Stop);
        }
        let record = self.warp.split(i.immediate as u32, self.mask, self.record);
        let mut rest = m;
        while rest != 0 {
            let entry = index[rest.trailing_zeros() as usize];
            let same = lanes(rest).filter(|&lane| index[lane] == entry).fold(0, |mask, l| mask | 1 << l);
            let pc = self.context.environment.code().lists[(i.d + entry) as usize];
            self.warp.fragments.push(Fragment { pc, mask: same, record, state: State::Ready });
            rest &= !same;
        }
        self.record = record;
        if self.mask & !m != 0 {
            self.mask &= !m;
            self.pc += 1;
            self.park(State::Ready);
        }
        Ok(Next::Leave(Event::Yield))
    }

    fn exit(&mut self, m: u32) -> Result<Next, Stop> {
        async_copy::complete(self.context, self.warp, m, None)?;
        async_copy::arrive_all(self.context, self.warp, m, None)?;
        if self.warp.live & !m == 0 {
            self.context.flight_exit(self.warp)?;
        }
        self.warp.exit(m, self.record);
        self.mask &= !m;
        if self.mask == 0 {
            return Ok(Next::Leave(Event::Gone));
        }
        Ok(Next::Advance)
    }

    fn barrier(&mut self, i: &Instruction, m: u32, op: BarrierOp) -> Result<Next, Stop> {
        if i.has(FLAG_ALIGNED) && self.warp.live & !m != 0 {
            return self.divergent_barrier(m);
        }
        let lane = m.trailing_zeros() as usize & 31;
        let id = self.warp.registers.row32(i.a)[lane];
        let count = i.has(FLAG_OPTIONAL).then(|| self.warp.registers.row32(i.b)[lane]);
        let uniform = lanes(m).all(|lane| self.warp.registers.row32(i.a)[lane] == id);
        if id >= BARRIERS || !uniform {
            let message =
                format!("barrier id {id}, uniform: {uniform}; a block has {BARRIERS} barriers");
            self.report(FindingKind::InvalidOperand, m, message);
            return Err(Stop);
        }
        if let Some(count) = count.filter(|count| count % 32 != 0 || *count == 0) {
            let message =
                format!("a barrier for {count} threads, which is not a positive multiple of 32");
            self.report(FindingKind::InvalidOperand, m, message);
            return Err(Stop);
        }
        let id = id + self.context.environment.cluster.rank(self.warp.id) * BARRIERS;
        let holds = self.warp.registers.predicate(i.c) ^ if i.has(FLAG_NEGATE_SOURCE) { !0 } else { 0 };
        let arrival = Arrival { warp: self.warp.id, mask: m, threads: weight(m, self.warp.live) };
        if let Err(message) = self.context.barriers.arrive(id, count, arrival, holds & m) {
            self.report(FindingKind::BarrierDivergence, m, message);
            return Err(Stop);
        }
        self.context.race_release_to_barrier(self.warp.id, id);
        let rest = self.mask & !m;
        if !waits(op) {
            self.pc += 1;
            self.park(State::Ready);
        } else {
            self.mask = m;
            self.park(State::Barrier(id));
            if rest != 0 {
                self.mask = rest;
                self.pc += 1;
                self.park(State::Ready);
            }
        }
        Ok(Next::Leave(Event::Barrier(id)))
    }

    /// Part of a warp reaches a barrier that the warp must execute as a whole.
    ///
    /// The rest may be about to exit, so the lanes wait; whoever finds that nothing moves any more
    /// reports it.
    pub fn divergent_barrier(&mut self, m: u32) -> Result<Next, Stop> {
        let Some(all) = self.merge(self.warp.live, m, !0) else {
            self.park(State::Lanes(m));
            return Ok(Next::Leave(Event::Yield));
        };
        self.mask = all;
        Ok(Next::Stay)
    }
}

/// Whether an operation ends nobody's wait.
#[inline(always)]
fn is_quiet(op: Op) -> bool {
    match op {
        Op::Mbarrier(op) => op.polls(),
        Op::Store(space) => space == Space::Local,
        Op::AsyncCopy(_)
        | Op::Matrix(_)
        | Op::Bulk(_)
        | Op::Wgmma(_)
        | Op::AllowNextGrid
        | Op::SetMaxRegisters
        | Op::Barrier(_)
        | Op::ClusterArrive
        | Op::ClusterWait
        | Op::Exit => false,
        _ => true,
    }
}
