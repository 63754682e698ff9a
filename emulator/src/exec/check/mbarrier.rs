//! Memory barriers in the race shadow: what they order, when they begin to live, and when they end.

use super::race::At;
use crate::exec::state::context::Context;
use crate::exec::state::mbarrier::MBARRIER_BYTES;
use crate::exec::state::warp::Warp;
use crate::report::FindingKind;
use crate::shadow::orders::Scope;

impl Context<'_> {
    /// A warp uses a memory barrier, which must have begun to live before.
    pub fn race_mbarrier_used(&mut self, w: &Warp, lane: u32, address: u32) {
        if self.race.as_mut().is_none_or(|race| race.mbarrier_is_used(w.id, address)) {
            return;
        }
        self.report(FindingKind::MbarrierMisuse, w.pc, w.id, lane, |_| {
            format!("another warp initialised the mbarrier at {address:#x}, and nothing orders the two")
        });
    }

    /// Lanes of a warp arrive at a memory barrier.
    pub fn race_release_to_mbarrier(
        &mut self,
        (warp, lanes): (u32, u32),
        address: u32,
        scope: Scope,
        relaxed: bool,
    ) {
        let phase = self.mbarriers.get(address).map_or(0, |barrier| barrier.phase);
        match &mut self.race {
            Some(race) if relaxed => race.relaxed_to_mbarrier(warp, address, phase, scope),
            Some(race) => race.release_to_mbarrier((warp, lanes), address, phase, scope),
            None => {}
        }
    }

    /// A warp has seen a phase complete; without a scope, by a `relaxed` wait. How many arrivals of its own
    /// that comes after.
    pub fn race_acquire_from_mbarrier(&mut self, warp: u32, address: u32, scope: Option<Scope>) -> u32 {
        let phase = self.mbarriers.get(address).map_or(0, |barrier| barrier.phase);
        match &mut self.race {
            Some(race) => race.acquire_from_mbarrier(warp, address, phase, scope),
            None => 0,
        }
    }

    /// `fence.mbarrier_init`.
    pub fn race_mbarrier_fence(&mut self, warp: u32) {
        if let Some(race) = &mut self.race {
            race.mbarrier_fence(warp);
        }
    }

    /// A bulk copy is to complete at a memory barrier, which the asynchronous proxy must see.
    pub fn race_mbarrier_copied_to(&mut self, w: &Warp, lane: u32, address: u32) {
        self.race_mbarrier_used(w, lane, address);
        if self.race.as_ref().is_none_or(|race| race.mbarrier_is_shown(w.id, address)) {
            return;
        }
        self.report(FindingKind::MissingMbarrierFence, w.pc, w.id, lane, |_| {
            format!(
                "a bulk copy completes at the mbarrier at {address:#x}, which was initialised with no \
                 fence.mbarrier_init or fence.proxy.async behind it"
            )
        });
    }

    /// A memory barrier begins to live.
    pub fn race_mbarrier_begins(&mut self, w: &Warp, lane: u32, address: u32) {
        let offset = self.shared_offset(address);
        let Some(race) = &mut self.race else { return };
        race.pc = w.pc;
        let conflict = race.access(w.id, offset, MBARRIER_BYTES, true);
        race.mbarrier_begins(w.id, address, offset, MBARRIER_BYTES);
        self.race_report(At { pc: w.pc, warp: w.id, lane }, conflict);
    }

    /// A memory barrier ends.
    pub fn race_mbarrier_ends(&mut self, w: &Warp, lane: u32, address: u32) {
        let offset = self.shared_offset(address);
        let Some(race) = &mut self.race else { return };
        race.pc = w.pc;
        let user = race.mbarrier_ends(w.id, address, offset, MBARRIER_BYTES);
        let conflict = race.access(w.id, offset, MBARRIER_BYTES, true);
        self.race_report(At { pc: w.pc, warp: w.id, lane }, conflict);
        if let Some(user) = user {
            self.report(FindingKind::MbarrierMisuse, w.pc, w.id, lane, |context| {
                let user = context.warp_name(user);
                format!(
                    "{user} used the mbarrier at {address:#x}, which is invalidated, and nothing orders \
                     the two"
                )
            });
        }
    }
}
