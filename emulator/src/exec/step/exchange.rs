//! Instructions at which lanes of a warp wait for each other: those with a member mask, and those that all
//! lanes execute together.
//!
//! Lanes with one value of the mask are a group, which may run at its own time: parts of a warp exchange
//! values among themselves by one instruction.

use super::{Event, Next, Runner};
use crate::exec::ops;
use crate::exec::state::context::Stop;
use crate::exec::state::warp::{Fragment, State};
use crate::exec::values::registers::{LANES, lanes};
use crate::isa::{Instruction, Op};
use crate::report::FindingKind;

/// The lanes that hold a value.
fn holders(values: &[u32; LANES], value: u32) -> u32 {
    (0..LANES).fold(0, |mask, lane| mask | u32::from(values[lane] == value) << lane)
}

impl Runner<'_, '_> {
    /// Waits until lanes `needed` have reached this instruction. Then all that have, else `None`. Lanes that
    /// are not of `among` do not count.
    ///
    /// Lanes of other fragments that wait here are released: the caller executes for them too.
    pub fn gather(&mut self, needed: u32, m: u32, among: u32) -> Option<u32> {
        if needed & !m == 0 {
            return Some(m);
        }
        if let Some(all) = self.merge(needed, m, among) {
            self.mask = all;
            return Some(all);
        }
        let all = self.collect(needed, m, among);
        if all.is_none() {
            self.park(State::Lanes(m));
        }
        all
    }

    /// Lanes `m` and those of `among` that wait at this instruction, if all of `needed` are there. The others
    /// go on behind it.
    fn collect(&mut self, needed: u32, m: u32, among: u32) -> Option<u32> {
        let pc = self.pc;
        let waits = |fragment: &Fragment| match fragment.state {
            State::Lanes(lanes) if fragment.pc == pc && lanes & !among == 0 => lanes,
            _ => 0,
        };
        let all = self.warp.fragments.iter().fold(m, |all, fragment| all | waits(fragment));
        if needed & !all != 0 {
            return None;
        }
        for fragment in self.warp.fragments.iter_mut().filter(|fragment| waits(fragment) != 0) {
            fragment.state = State::Ready;
            fragment.pc += 1;
        }
        Some(all)
    }

    /// Takes over the lanes of `among` that wait at this instruction and are awaited at the same place, if
    /// with them all the needed ones are here.
    pub fn merge(&mut self, needed: u32, m: u32, among: u32) -> Option<u32> {
        let (pc, record) = (self.pc, self.record);
        let here = |f: &Fragment| {
            let whole = matches!(f.state, State::Lanes(mask) if mask == f.mask && mask & !among == 0);
            whole && f.pc == pc && f.record == record
        };
        let all = self.warp.fragments.iter().filter(|f| here(f)).fold(m, |mask, f| mask | f.mask);
        if m != self.mask || needed & !all != 0 {
            return None;
        }
        self.warp.fragments.retain(|f| !here(f));
        Some(all)
    }

    /// Instructions with a member mask.
    pub fn exchange(&mut self, i: &Instruction, m: u32) -> Result<Next, Stop> {
        let row = match i.op {
            Op::Shuffle(_) => i.e,
            Op::WarpSync => i.a,
            _ => i.b,
        };
        let masks = self.warp.registers.row32(row);
        let members = masks[m.trailing_zeros() as usize & 31];
        let group = holders(masks, members);
        if m & !group != 0 {
            let masks = *masks;
            return self.exchange_apart(i, m, &masks);
        }
        if m & !members != 0 {
            self.check_members(m, members)?;
        }
        let Some(m) = self.gather(members & self.warp.live, m, group) else {
            return Ok(Next::Leave(Event::Yield));
        };
        self.exchange_among(i, m);
        Ok(Next::Advance)
    }

    /// Lanes must be among the members that they name.
    #[cold]
    fn check_members(&mut self, m: u32, members: u32) -> Result<(), Stop> {
        if m & !members == 0 || !self.context.environment.options.checks.barriers {
            return Ok(());
        }
        let message = format!("lanes {m:#010x} execute it with member mask {members:#010x}");
        self.report(FindingKind::WarpDivergence, m & !members, message);
        Err(Stop)
    }

    /// Lanes with several masks: group after group. Groups that lack lanes wait, each by itself.
    #[cold]
    fn exchange_apart(&mut self, i: &Instruction, m: u32, masks: &[u32; LANES]) -> Result<Next, Stop> {
        let mut rest = m;
        while rest != 0 {
            let members = masks[rest.trailing_zeros() as usize];
            let group = holders(masks, members);
            let here = group & m;
            self.check_members(here, members)?;
            let others = members & m & !group;
            if others != 0 && self.context.environment.options.checks.barriers {
                let other = others.trailing_zeros() as usize;
                let message = format!(
                    "lane {other} executes it with member mask {:#010x}, but lanes {here:#010x} with \
                     {members:#010x}, of which it is a member",
                    masks[other]
                );
                self.report(FindingKind::WarpDivergence, here, message);
                return Err(Stop);
            }
            rest &= !here;
            let needed = members & self.warp.live;
            let all = if needed & !here == 0 { Some(here) } else { self.collect(needed, here, group) };
            match all {
                Some(all) => self.exchange_among(i, all),
                None => {
                    let (pc, record, state) = (self.pc, self.record, State::Lanes(here));
                    self.warp.fragments.push(Fragment { pc, mask: here, record, state });
                    self.mask &= !here;
                }
            }
        }
        Ok(if self.mask == 0 { Next::Leave(Event::Yield) } else { Next::Advance })
    }

    /// What the lanes of a group do, who are all there.
    fn exchange_among(&mut self, i: &Instruction, m: u32) {
        let registers = &mut self.warp.registers;
        match i.op {
            Op::Shuffle(op) => {
                let sources = ops::shuffle::shuffle(registers, i, m, op);
                self.shuffle_poison(i, m, &sources);
            }
            Op::Vote(op) => ops::shuffle::vote(registers, i, m, op),
            Op::Redux(op) => ops::shuffle::redux(registers, i, m, op),
            Op::MatchAny => ops::shuffle::match_any(registers, i, m),
            Op::MatchAll => ops::shuffle::match_all(registers, i, m),
            Op::Elect => ops::shuffle::elect(registers, i, m),
            // Lanes that have exited need not be waited for.
            _ => self.context.race_lanes_meet(self.warp.id, m | !self.warp.live),
        }
    }

    /// Marks what lanes took from lanes that do not take part.
    #[inline(always)]
    fn shuffle_poison(&mut self, i: &Instruction, m: u32, sources: &[u32; LANES]) {
        if m == !0 && self.warp.poison.is_none() {
            return;
        }
        let taken = lanes(m).fold(0, |taken, lane| taken | 1 << sources[lane]);
        let undefined = taken & !m != 0 || self.warp.poison.is_some();
        if undefined && self.context.environment.options.checks.registers {
            self.context.poison_shuffled(self.warp, i, m, sources);
        }
    }
}
