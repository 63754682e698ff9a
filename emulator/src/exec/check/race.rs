//! Which accesses to shared memory are ordered: what the instructions tell the race shadow.

use super::strong::Strength;
use crate::exec::state::bulk::{Issuer, Transfer};
use crate::exec::state::context::Context;
use crate::exec::state::warp::Warp;
use crate::exec::state::window::Window;
use crate::exec::values::registers::{LANES, lanes};
use crate::isa::Op;
use crate::module::Kernel;
use crate::report::FindingKind;
use crate::shadow::actor::Actor;
use crate::shadow::cells::Sweep;
use crate::shadow::global::Touch;
use crate::shadow::lanes::{LaneConflict, Words};
use crate::shadow::race::{Conflict, Copying, Race, WORD};
use crate::space::Space;

/// Where an access happens, for reports.
#[derive(Clone, Copy)]
pub(super) struct At {
    pub pc: u32,
    pub warp: u32,
    pub lane: u32,
}

impl Context<'_> {
    /// Reports what an access met.
    #[inline(always)]
    pub(super) fn race_report(&mut self, at: At, conflict: Option<Conflict>) {
        if let Some(conflict) = conflict {
            self.race_report_slowly(at, conflict, false);
        }
    }

    #[cold]
    #[inline(never)]
    fn race_report_slowly(&mut self, at: At, conflict: Conflict, writes_the_same: bool) {
        let Conflict { other, wrote, offset, .. } = conflict;
        let kind = match (other, conflict.own) {
            (Actor::Mbarrier(_), _) if conflict.fenceless => FindingKind::MbarrierMisuse,
            _ if conflict.fenceless => FindingKind::MissingProxyFence,
            (Actor::Warp(_), Actor::Warp(_)) if wrote && writes_the_same => FindingKind::RedundantWrites,
            (Actor::Warp(_), Actor::Warp(_))
                if conflict.other_pc.is_some_and(|other| self.swaps(at.pc, other)) =>
            {
                FindingKind::CompareAndSwapLoad
            }
            (Actor::Warp(_), Actor::Warp(_) | Actor::Copy(_)) => FindingKind::SharedRace,
            _ => FindingKind::AsyncCopyInFlight,
        };
        self.report(kind, at.pc, at.warp, at.lane, |context| {
            let (own, other) = (context.actor(conflict.own), context.actor(other));
            let address = context.shared_place(context.environment.cluster.address(offset));
            let did = if wrote { "wrote" } else { "read" };
            let place = conflict.other_pc.map_or(String::new(), |pc| context.place_of(pc));
            match kind {
                FindingKind::MbarrierMisuse => {
                    format!("bytes at shared address {address} belong to {other}")
                }
                FindingKind::MissingProxyFence => format!(
                    "{own} accesses shared address {address}, which {other} {did}{place} with no \
                     fence.proxy.async behind it"
                ),
                _ => format!(
                    "{own} accesses shared address {address}, which {other} {did}{place}; nothing \
                     orders the two"
                ),
            }
        });
    }

    /// Where an instruction stands, for the message of a finding elsewhere.
    pub fn place_of(&self, pc: u32) -> String {
        place_in(self.environment.kernel, pc)
    }

    /// Loads, stores and atomic operations of a warp; whether there was a conflict.
    #[inline(always)]
    pub fn race_access(
        &mut self,
        w: &Warp,
        window: &Window,
        bytes: u32,
        touch: Touch,
        how: Strength,
    ) -> bool {
        if window.space != Space::Shared || self.race.is_none() {
            return false;
        }
        if how.is_strong() {
            return self.race_strong(w, window, bytes, touch == Touch::Write, how);
        }
        (self.environment.families.race_lanes)(self, w, window, bytes, touch == Touch::Write)
    }

    #[cold]
    #[inline(never)]
    fn race_report_lanes(&mut self, pc: u32, warp: u32, conflict: LaneConflict, writes_the_same: bool) {
        let LaneConflict { lane, other, wrote, offset } = conflict;
        let redundant = wrote && writes_the_same;
        let kind = if redundant { FindingKind::RedundantWrites } else { FindingKind::SharedRace };
        self.report(kind, pc, warp, lane, |context| {
            let address = context.shared_place(context.environment.cluster.address(offset as u32));
            let warp = context.warp_name(warp);
            let other = other.map_or("other lanes".to_owned(), |other| format!("lane {other}"));
            let did = if wrote { "wrote" } else { "read" };
            format!(
                "lane {lane} of {warp} accesses shared address {address}, which {other} of it {did}; no \
                 bar.warp.sync orders the two"
            )
        });
    }

    /// Whether lanes of one store that write a word need another look: not where they are strong, of which
    /// one comes after the other, nor where each lane has memory of its own.
    #[inline(always)]
    pub fn looks_for_races_of_one_store(&self, window: &Window, how: Strength) -> bool {
        matches!(window.space, Space::Shared | Space::Global) && self.race.is_some() && !how.is_strong()
    }

    /// Lanes have stored so many bytes each by one instruction, and of `lost` others are there now: another
    /// lane has stored something else. PTX leaves open which of them stays.
    #[inline(always)]
    pub fn race_of_one_store(&mut self, w: &Warp, window: &Window, bytes: u32, lost: u32) {
        if lost != 0 {
            self.race_of_one_store_slowly(w, window, bytes, lost);
        }
    }

    #[cold]
    #[inline(never)]
    fn race_of_one_store_slowly(&mut self, w: &Warp, window: &Window, bytes: u32, lost: u32) {
        let lane = lost.trailing_zeros() as usize;
        let at = window.offsets[lane];
        let meets = |&other: &usize| window.offsets[other].abs_diff(at) < u64::from(bytes);
        let Some(other) = lanes(window.mask).filter(|&other| other != lane).filter(meets).last() else {
            // Bytes that another block has changed: a race of blocks.
            return;
        };
        let kind = match window.space {
            Space::Shared => FindingKind::SharedRace,
            _ => FindingKind::GlobalRace,
        };
        self.report(kind, w.pc, w.id, lane as u32, |context| {
            let warp = context.warp_name(w.id);
            let place = match kind {
                FindingKind::SharedRace => {
                    let address = context.environment.cluster.address(at as u32);
                    format!("at shared address {}", context.shared_place(address))
                }
                _ => "in the same bytes of global memory".to_owned(),
            };
            format!(
                "lanes {lane} and {other} of {warp} store different values {place} by one instruction; \
                 which of them stays is not defined"
            )
        });
    }

    /// A bulk copy meets what other lanes of the warp did that starts it.
    fn race_bulk_lanes(&mut self, transfer: &Transfer, write: bool) {
        let Some(race) = &self.race else { return };
        let Issuer { warp, lane } = transfer.issuer;
        let (offset, bytes) = (self.shared_offset(transfer.shared), transfer.bytes.shared());
        if let Some(conflict) = race.lanes.copy(warp, lane, offset, bytes, write) {
            self.race_report_lanes(transfer.pc, warp, conflict, false);
        }
    }

    /// Lanes of a warp have waited for a memory barrier, which comes after so many arrivals of the warp.
    pub fn race_lanes_wait(&mut self, warp: u32, lanes: u32, arrivals: u32) {
        if let Some(race) = &mut self.race {
            race.lanes_wait(warp, lanes, arrivals);
        }
    }

    /// Lanes of a warp meet.
    pub fn race_lanes_meet(&mut self, warp: u32, lanes: u32) {
        if let Some(race) = &mut self.race {
            race.lanes_meet(warp, lanes);
        }
    }

    /// Lanes begin a `cp.async`.
    pub fn race_copy_begins(&mut self, w: &Warp, window: &Window, bytes: u32) {
        (self.environment.families.race_copies)(self, w, window, bytes);
    }

    /// Lanes have waited for a `cp.async` of an instruction: it is as if they wrote now.
    pub fn race_copy_ends(&mut self, w: &Warp, window: &Window, bytes: u32, pc: u32) {
        (self.environment.families.race_copies_end)(self, w, window, bytes, pc);
    }

    /// Strong accesses of a warp; whether there was a conflict.
    #[inline(never)]
    fn race_strong(
        &mut self,
        w: &Warp,
        window: &Window,
        bytes: u32,
        store: bool,
        how: Strength,
    ) -> bool {
        let Some(race) = &mut self.race else { return false };
        race.pc = w.pc;
        let sweep = race.accesses(w.id, bytes, store, Some(how.scope()));
        let found = sweep_all(race, sweep, window, bytes);
        // What its lanes did is one by one in nobody's way, but is not known to the others either.
        let lanes = Words { offsets: &window.offsets, lanes: window.mask, count: 0, contiguous: false };
        race.lanes.access(w.id, lanes, store);
        if let Some((lane, conflict)) = found {
            self.race_report_slowly(At { pc: w.pc, warp: w.id, lane: lane as u32 }, conflict, false);
        }
        found.is_some()
    }

    /// Whether one of two instructions is an atomic operation, and the other one loads what a
    /// compare-and-swap expects.
    fn swaps(&self, one: u32, other: u32) -> bool {
        swap_in(self.environment.kernel, one, self.environment.kernel, other)
    }

    /// A warp arrives at a named barrier.
    pub fn race_release_to_barrier(&mut self, warp: u32, id: u32) {
        if let Some(race) = &mut self.race {
            race.release_to_barrier(warp, id);
        }
    }

    /// A named barrier completes for warps that waited.
    pub fn race_acquire_from_barrier(&mut self, warps: &[u32], id: u32) {
        if let Some(race) = &mut self.race {
            race.acquire_from_barrier(warps, id);
        }
    }

    /// A bulk load will write shared memory, or reduce into it, in the current phase of a barrier.
    pub fn race_bulk_load(&mut self, transfer: &Transfer, barrier: u32, copying: Copying) {
        let offset = self.shared_offset(transfer.shared);
        let source = transfer.source_in_shared().map(|source| self.shared_offset(source));
        let phase = self.mbarriers.get(barrier).map_or(0, |barrier| barrier.phase);
        let Some(race) = &mut self.race else { return };
        race.pc = transfer.pc;
        let Issuer { warp, lane } = transfer.issuer;
        let actor = Actor::Load(barrier);
        let bytes = transfer.bytes.shared();
        let mut copy = |from: u32, copying: Copying| {
            race.asynchronous(warp, actor, phase + 1, from..from + bytes, copying)
        };
        let read = source.and_then(|source| copy(source, Copying::Reads));
        let conflict = copy(offset, copying);
        self.race_report(At { pc: transfer.pc, warp, lane }, conflict.or(read));
        self.race_bulk_lanes(transfer, true);
        self.remote_completes((transfer.pc, warp, lane), barrier);
    }

    /// A bulk store will read shared memory.
    pub fn race_bulk_store(&mut self, transfer: &Transfer, group: u32) {
        let offset = self.shared_offset(transfer.shared);
        let Some(race) = &mut self.race else { return };
        race.pc = transfer.pc;
        let Issuer { warp, lane } = transfer.issuer;
        let actor = Actor::Store(warp, lane);
        let bytes = offset..offset + transfer.bytes.shared();
        let conflict = race.asynchronous(warp, actor, group + 1, bytes, Copying::Reads);
        self.race_report(At { pc: transfer.pc, warp, lane }, conflict);
        self.race_bulk_lanes(transfer, false);
    }

    /// A thread has waited until its bulk stores, except those of the `left` latest groups, had read, and
    /// maybe written.
    pub fn race_bulk_complete(&mut self, issuer: Issuer, left: u32, written: bool) {
        let committed = self.bulk.groups.get(&issuer).map_or(0, |groups| groups.committed);
        if let Some(race) = &mut self.race {
            let actor = Actor::Store(issuer.warp, issuer.lane);
            race.complete(issuer.warp, actor, committed.saturating_sub(left));
        }
        if written {
            self.global_bulk_written(issuer, committed.saturating_sub(left));
        }
    }

    /// Lanes have started writes of so many bytes each that complete at a memory barrier of each.
    pub fn race_store_later(&mut self, w: &Warp, window: &Window, bytes: u32, barriers: &[u32; LANES]) {
        for lane in lanes(window.mask) {
            let barrier = barriers[lane];
            let phase = self.mbarriers.get(barrier).map_or(0, |barrier| barrier.phase);
            let Some(race) = &mut self.race else { return };
            race.pc = w.pc;
            let (actor, offset) = (Actor::Load(barrier), window.offsets[lane] as u32);
            let conflict = race.store_later(w.id, actor, phase + 1, offset, bytes);
            let at = At { pc: w.pc, warp: w.id, lane: lane as u32 };
            self.race_report(at, conflict);
            self.remote_completes((at.pc, at.warp, at.lane), barrier);
        }
    }

    /// Who accesses shared memory, as findings say it: of several blocks, with the block.
    fn actor(&self, actor: Actor) -> String {
        let cluster = &self.environment.cluster;
        if cluster.is_one() {
            return actor.to_string();
        }
        let of = |warp: u32, own: Actor| {
            let [x, y, z] = self.block_of(warp);
            format!("{own} of block ({x}, {y}, {z})")
        };
        let number = |warp: u32| cluster.in_block(warp);
        match actor {
            Actor::Warp(warp) => of(warp, Actor::Warp(number(warp))),
            Actor::Wgmma(warp) => of(warp, Actor::Wgmma(number(warp))),
            Actor::Store(warp, lane) => of(warp, Actor::Store(number(warp), lane)),
            Actor::Copy(warp) => of(warp, Actor::Copy(number(warp))),
            Actor::Load(_) | Actor::Mbarrier(_) => actor.to_string(),
        }
    }

    /// A warp, as findings say it.
    pub fn warp_name(&self, warp: u32) -> String {
        self.actor(Actor::Warp(warp))
    }

    /// A multiplication will read an operand, by its place among the tiles.
    pub fn race_operand(&mut self, w: &Warp, place: usize, group: u32) {
        (self.environment.families.race_operand)(self, w, place, group);
    }

    /// A warp has waited for its multiplications up to a group.
    pub fn race_wgmma_done(&mut self, w: &Warp, group: u32) {
        if let Some(race) = &mut self.race {
            race.complete(w.id, Actor::Wgmma(w.id), group);
        }
    }

    /// `fence.proxy.async`.
    pub fn race_proxy_fence(&mut self, warp: u32) {
        if let Some(race) = &mut self.race {
            race.proxy_fence(warp);
        }
    }
}

/// Whether one of two instructions is an atomic operation, and the other one loads what a compare-and-swap of
/// its kernel expects.
pub fn swap_in(kernel: &Kernel, one: u32, other_kernel: &Kernel, other: u32) -> bool {
    let is_atomic = |kernel: &Kernel, pc: u32| {
        matches!(kernel.data.code.instructions[pc as usize].op, Op::Atomic(_))
    };
    let loads = |kernel: &Kernel, pc: u32| kernel.data.code.expected_loads.contains(&pc);
    is_atomic(kernel, one) && loads(other_kernel, other)
        || is_atomic(other_kernel, other) && loads(kernel, one)
}

/// Where an instruction of a kernel stands, for messages.
pub fn place_in(kernel: &Kernel, pc: u32) -> String {
    let source = kernel.location(pc).map_or(String::new(), |source| format!(", {source}"));
    format!(" at PTX line {} `{}`{source}", kernel.line(pc), kernel.text(pc))
}

/// What all lanes of an instruction access, so many bytes each: the first lane that met somebody, and whom.
#[inline(always)]
fn sweep_all(
    race: &mut Race,
    mut sweep: Sweep,
    window: &Window,
    bytes: u32,
) -> Option<(usize, Conflict)> {
    let mut found = None;
    for (lane, offset, bytes) in window.runs(bytes) {
        let conflict = race.sweep(&mut sweep, offset as u32, bytes);
        found = found.or(conflict.map(|conflict| (lane, conflict)));
    }
    found
}

/// The words that the lanes access.
#[inline(always)]
pub fn words(window: &Window, bytes: u32) -> Words<'_> {
    Words {
        offsets: &window.offsets,
        lanes: window.mask,
        count: bytes / WORD,
        contiguous: window.is_contiguous(bytes),
    }
}

/// Lanes access so many bytes each; whether there was a conflict.
#[inline(always)]
pub fn lanes_access(c: &mut Context<'_>, w: &Warp, window: &Window, bytes: u32, store: bool) -> bool {
    let Some(race) = &mut c.race else { return false };
    race.pc = w.pc;
    let sweep = race.accesses(w.id, bytes, store, None);
    let found = sweep_all(race, sweep, window, bytes);
    let between_lanes = race.lanes.access(w.id, words(window, bytes), store);
    if found.is_some() || between_lanes.is_some() {
        let same = store && writes_what_is_there(c, w, window);
        if let Some((lane, conflict)) = found {
            c.race_report_slowly(At { pc: w.pc, warp: w.id, lane: lane as u32 }, conflict, same);
        } else if let Some(conflict) = between_lanes {
            c.race_report_lanes(w.pc, w.id, conflict, same);
        }
    }
    found.is_some() || between_lanes.is_some()
}

/// Whether a store, which has yet to happen, changes nothing.
#[cold]
#[inline(never)]
fn writes_what_is_there(c: &Context<'_>, w: &Warp, window: &Window) -> bool {
    let code = c.environment.code();
    let i = &code.instructions[w.pc as usize];
    if !matches!(i.op, Op::Store(_)) {
        return false;
    }
    let rows = &code.lists[i.d as usize..][..usize::from(i.count)];
    // SAFETY: the window was checked for all elements.
    unsafe { window.differing(&w.registers, i, rows) == 0 }
}

/// Lanes begin a `cp.async` of so many bytes each.
#[inline(always)]
pub fn copies_begin(c: &mut Context<'_>, w: &Warp, window: &Window, bytes: u32) {
    let Some(race) = &mut c.race else { return };
    race.pc = w.pc;
    let sweep = race.copies(w.id);
    if let Some((lane, conflict)) = sweep_all(race, sweep, window, bytes) {
        c.race_report_slowly(At { pc: w.pc, warp: w.id, lane: lane as u32 }, conflict, false);
    }
}

/// Lanes have waited for a `cp.async` of so many bytes each.
#[inline(always)]
pub fn copies_end(c: &mut Context<'_>, w: &Warp, window: &Window, bytes: u32, pc: u32) {
    let Some(race) = &mut c.race else { return };
    for (_, offset, bytes) in window.runs(bytes) {
        race.copy_ends(w.id, offset as u32, bytes);
    }
    if let Some(conflict) = race.lanes.access(w.id, words(window, bytes), true) {
        c.race_report_lanes(pc, w.id, conflict, false);
    }
}

/// A multiplication will read an operand.
#[inline(always)]
pub fn operand_is_read(c: &mut Context<'_>, w: &Warp, place: usize, group: u32) {
    let Some(race) = &mut c.race else { return };
    race.pc = w.pc;
    let conflict = race.operand(w.id, group, &c.tiles.get(place).ranges);
    c.race_report(At { pc: w.pc, warp: w.id, lane: 0 }, conflict);
}
