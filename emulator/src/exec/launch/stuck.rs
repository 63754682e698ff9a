//! A block in which nothing moves: what may help, and what is reported if nothing does.

use super::block::Block;
use crate::exec::actors::{async_copy, bulk};
use crate::exec::state::context::Stop;
use crate::exec::state::mbarrier::Mbarrier;
use crate::exec::state::warp::{State, Warp};
use crate::exec::step::asynchronous::give_up;
use crate::isa::{BARRIERS, Op};
use crate::report::FindingKind;
use std::fmt::Write;

/// How often all threads ask in vain, and nobody does anything else, until copies land and patience ends.
const ASKS: u32 = 1 << 6;
/// The same, until nobody believes any more that they wait for anything.
const VAIN_ASKS: u32 = 1 << 16;

impl Block<'_> {
    /// Threads asked in vain. An error if all that can go on have done nothing else for long.
    pub fn hope(&mut self) -> Result<bool, Stop> {
        if self.deeds != self.context.deeds {
            (self.deeds, self.asks) = (self.context.deeds, 0);
        } else if !self.warps.iter().all(Warp::only_asks) {
            return Ok(true);
        } else {
            self.asks += 1;
        }
        self.warps.iter_mut().for_each(|warp| warp.asking = 0);
        if self.asks == ASKS {
            self.unstick()?;
        }
        if self.asks >= ASKS && self.context.awaits_grid {
            // Perhaps they wait for those who wait for the grid before.
            (self.asks, self.spins) = (0, self.warps.len());
        }
        if self.asks == VAIN_ASKS {
            self.report_stuck();
            return Err(Stop);
        }
        Ok(true)
    }

    /// Somebody has asked in vain for a phase: lets those arrive there who do so behind copies.
    pub fn arrive_where_asked(&mut self) -> Result<(), Stop> {
        let barrier = self.context.asked.take();
        for warp in &mut self.warps {
            async_copy::arrive_all(&mut self.context, warp, !0, barrier)?;
        }
        Ok(())
    }

    /// Nothing is ready: lets those arrive who do so behind copies, a copy land, or those who wait for a
    /// phase give up. False if nothing helps.
    pub fn unstick(&mut self) -> Result<bool, Stop> {
        let mut any = false;
        for warp in &mut self.warps {
            any |= async_copy::arrive_all(&mut self.context, warp, !0, None)?;
        }
        if any {
            return Ok(true);
        }
        if !self.context.bulk.loads.is_empty() {
            let index = self.context.bulk.in_time().next().unwrap_or(0);
            bulk::land(&mut self.context, index)?;
            return Ok(true);
        }
        let waits = |state| matches!(state, State::Phase(_));
        let any = self.warps.iter().flat_map(|warp| &warp.fragments).any(|f| waits(f.state));
        if !any || self.given_up == Some(self.progress) {
            return Ok(false);
        }
        self.given_up = Some(self.progress);
        for warp in &mut self.warps {
            for index in 0..warp.fragments.len() {
                let fragment = &mut warp.fragments[index];
                if waits(fragment.state) {
                    let (pc, mask) = (fragment.pc, fragment.mask);
                    fragment.state = State::Ready;
                    fragment.pc += 1;
                    give_up(&mut self.context, warp, pc, mask)?;
                }
            }
        }
        Ok(true)
    }

    /// Nothing is ready and somebody is still there.
    #[cold]
    pub fn report_stuck(&mut self) {
        let mut table = String::new();
        // A warp that has torn apart is the cause; then who asks again and again. Who waits suffers from it.
        let mut first: Option<(u32, FindingKind, u32, u32, u32)> = None;
        for warp in &self.warps {
            let asks = warp.fragments.iter().any(|fragment| fragment.state == State::Ready);
            for fragment in &warp.fragments {
                let lanes = fragment.mask;
                let pc = if fragment.state == State::Ready { warp.asked_at() } else { fragment.pc };
                let kernel = self.context.environment.kernel;
                let (line, text) = (kernel.line(pc), kernel.text(pc));
                let (rank, kind, what) = match fragment.state {
                    State::Ready => (1, FindingKind::Deadlock, "what it asks for again and again"),
                    State::Lanes(_) if asks => (2, FindingKind::Deadlock, "other lanes of the warp"),
                    State::Lanes(_)
                        if matches!(
                            self.op(pc),
                            Op::Barrier(_) | Op::ClusterArrive | Op::ClusterWait
                        ) =>
                    {
                        (0, FindingKind::BarrierDivergence, "the rest of the warp at a barrier")
                    }
                    State::Lanes(_) => (0, FindingKind::WarpDivergence, "other lanes of the warp"),
                    State::Registers => (2, FindingKind::Deadlock, "registers"),
                    State::Grid => (2, FindingKind::Deadlock, "the end of the grid before"),
                    State::Cluster => (2, FindingKind::Deadlock, "the barrier of the cluster"),
                    State::Phase(_) => (2, FindingKind::Deadlock, "the mbarrier"),
                    State::Barrier(_) => (2, FindingKind::Deadlock, "the barrier"),
                };
                let name = self.context.warp_name(warp.id);
                let _ =
                    write!(table, "\n    {name} lanes {lanes:#010x} at line {line} `{text}`: {what}");
                if let State::Phase(address) = fragment.state {
                    let _ = write!(table, " at {address:#x}");
                }
                if first.is_none_or(|(known, ..)| rank < known) {
                    first = Some((rank, kind, pc, warp.id, lanes.trailing_zeros() & 31));
                }
            }
        }
        for (id, barrier) in self.context.barriers.waiting() {
            let awaited = barrier.count.map_or("all".to_string(), |count| count.to_string());
            let (id, of) = self.barrier_name(id as u32);
            let _ = write!(table, "\n    barrier {id}{of}: {} of {awaited} threads", barrier.threads());
        }
        let arrived = self.context.barriers.cluster.threads();
        if arrived != 0 {
            let _ = write!(table, "\n    the barrier of the cluster: {arrived} of all threads");
        }
        for (address, barrier) in self.context.mbarriers.iter() {
            let Mbarrier { expected, pending, transactions, phase } = barrier;
            let _ = write!(
                table,
                "\n    mbarrier at {address:#x}: phase {phase} awaits {pending} of {expected} arrivals, \
                 {transactions} bytes"
            );
        }
        if let Some((_, kind, pc, warp, lane)) = first {
            let what = if self.context.environment.cluster.is_one() { "block" } else { "cluster" };
            let message = format!("no thread of the {what} can go on; each waits for{table}");
            self.context.report(kind, pc, warp, lane, |_| message);
        }
    }

    /// The id of a barrier, and its block if there are several.
    fn barrier_name(&self, id: u32) -> (u32, String) {
        let (rank, id) = (id / BARRIERS, id % BARRIERS);
        if self.context.environment.cluster.is_one() {
            return (id, String::new());
        }
        let [x, y, z] = self.context.block_at(rank);
        (id, format!(" of block ({x}, {y}, {z})"))
    }

    fn op(&self, pc: u32) -> Op {
        self.context.environment.code().instructions[pc as usize].op
    }
}
