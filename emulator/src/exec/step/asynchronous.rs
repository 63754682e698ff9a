//! Instructions of compute capability 9.0 that can wait, or that a whole warp executes.

use super::{Event, Next, Runner};
use crate::exec::actors::wgmma;
use crate::exec::ops;
use crate::exec::state::context::{Context, Stop};
use crate::exec::state::warp::{State, Warp};
use crate::exec::state::warpgroup::Step;
use crate::isa::{FLAG_OPTIONAL, Instruction, MbarrierOp, WgmmaOp};
use crate::options::Schedule;
use crate::report::FindingKind;

/// One in so many polls of a random schedule gives up at once.
const IMPATIENCE: u64 = 4;

impl Runner<'_, '_> {
    /// Asks for phases. `try_wait` waits for the first one that is not complete.
    pub fn poll(&mut self, i: &Instruction, m: u32, op: MbarrierOp) -> Result<Next, Stop> {
        let (complete, waits) = ops::mbarrier::poll(self.context, self.warp, i, m, op)?;
        let tries = matches!(op, MbarrierOp::TryParity | MbarrierOp::TryState);
        let random = matches!(self.context.environment.options.schedule, Schedule::Random(_));
        let patient = !random || self.context.random.below(IMPATIENCE) != 0;
        if let Some(address) = waits
            && tries
            && patient
            && m == self.mask
        {
            self.park(State::Phase(address));
            return Ok(Next::Leave(Event::Ask));
        }
        self.warp.registers.set_predicate(i.d, m, complete);
        if waits.is_none() {
            return Ok(Next::Advance);
        }
        // Whoever asks in a loop lets others go on.
        self.warp.asks_in_vain(m & !complete);
        self.pc += 1;
        self.park(State::Ready);
        Ok(Next::Leave(Event::Ask))
    }

    /// Gathers the warp for an instruction that is `.aligned`.
    pub fn whole_warp(&mut self, m: u32) -> Result<Option<u32>, Stop> {
        let live = self.warp.live;
        let gathered = self.gather(live, m, !0);
        if gathered.is_some() && live != !0 {
            let message = format!("lanes {live:#010x} of a warp; all 32 are needed");
            self.report(FindingKind::WarpDivergence, m, message);
            return Err(Stop);
        }
        Ok(gathered)
    }

    /// `wgmma`.
    pub fn wgmma(&mut self, i: &Instruction, m: u32, op: WgmmaOp) -> Result<Next, Stop> {
        let Some(_) = self.whole_warp(m)? else {
            return Ok(Next::Leave(Event::Yield));
        };
        let (c, w) = (&mut *self.context, &mut *self.warp);
        match op {
            WgmmaOp::Multiply => wgmma::issue(c, w, i)?,
            WgmmaOp::Fence => {
                if let Some(flight) = &mut w.flight {
                    flight.fence();
                }
            }
            WgmmaOp::Commit => w.wgmma.committed += 1,
            WgmmaOp::Wait => wgmma::wait(c, w, i.immediate as u32),
        }
        Ok(Next::Advance)
    }

    /// `setmaxnreg`: an increase waits until there are enough registers.
    pub fn set_max_registers(&mut self, i: &Instruction, m: u32) -> Result<Next, Stop> {
        let Some(m) = self.whole_warp(m)? else {
            return Ok(Next::Leave(Event::Yield));
        };
        let count = i.immediate as u32;
        let (c, w) = (&mut *self.context, &*self.warp);
        if !(24..=256).contains(&count) || !count.is_multiple_of(8) {
            let message = format!("{count} registers: expected a multiple of 8 from 24 to 256");
            self.report(FindingKind::InvalidOperand, m, message);
            return Err(Stop);
        }
        let (now, _) = c.warpgroups.registers(w.id);
        if !i.has(FLAG_OPTIONAL) && count > now {
            let message = format!("a decrease to {count} registers of a thread that has {now}");
            self.report(FindingKind::InvalidOperand, m, message);
            return Err(Stop);
        }
        if !c.warpgroups.set_registers(w.id, count) {
            self.mask = m;
            self.park(State::Registers);
            return Ok(Next::Leave(Event::Yield));
        }
        c.warpgroup_step(w, Step { pc: w.pc, operands: [0; 2], accumulates: false })?;
        Ok(Next::Advance)
    }
}

/// Gives the lanes that wait for a phase the answer that they would get when their time is up.
pub fn give_up(c: &mut Context<'_>, w: &mut Warp, pc: u32, mask: u32) -> Result<(), Stop> {
    let i = &c.environment.code().instructions[pc as usize];
    if let crate::isa::Op::Mbarrier(op) = i.op {
        w.pc = pc;
        let (complete, _) = ops::mbarrier::poll(c, w, i, mask, op)?;
        w.registers.set_predicate(i.d, mask, complete);
    }
    Ok(())
}
