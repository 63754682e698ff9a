//! Which accesses to global memory are ordered: what the instructions tell the shadow of the launch.

use super::race::{place_in, swap_in, words};
use super::strong::Strength;
use crate::exec::state::bulk::{Issuer, Transfer};
use crate::exec::state::context::{Context, Environment};
use crate::exec::state::warp::Warp;
use crate::exec::state::window::Window;
use crate::exec::values::registers::LANES;
use crate::report::FindingKind;
use crate::shadow::global::{Access, Actors, GlobalRace, Manner, Meeting, Order, Touch};
use crate::shadow::knowledge::Foreign;
use crate::shadow::lanes::{LaneConflict, Words};
use crate::shadow::orders::Scope;
use crate::shadow::race::Race;
use crate::space::Space;
use std::sync::{MutexGuard, PoisonError};

impl<'a> Context<'a> {
    pub fn global_race(&self) -> MutexGuard<'a, GlobalRace> {
        self.environment.chain.race.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of the cluster's first warp among the actors of the launch.
    pub fn first_actor(&self) -> u32 {
        let Actors { first, of_cluster, .. } = self.environment.grid().actors;
        first.wrapping_add((self.number as u32).wrapping_mul(of_cluster))
    }

    /// The number of the bulk stores of a thread among the actors of the launch.
    fn bulk_actor(&self, issuer: Issuer) -> u32 {
        self.first_actor()
            + self.environment.cluster.all_warps()
            + issuer.warp * LANES as u32
            + issuer.lane
    }

    /// Lanes are about to access global memory.
    #[inline(always)]
    pub fn global_access(&mut self, w: &Warp, window: &Window, bytes: u32, touch: Touch, how: Strength) {
        if window.space == Space::Global && self.race.is_some() {
            self.global_access_slowly(w, window, bytes, touch, how);
        }
    }

    #[inline(never)]
    fn global_access_slowly(
        &mut self,
        w: &Warp,
        window: &Window,
        bytes: u32,
        touch: Touch,
        how: Strength,
    ) {
        let first = self.first_actor();
        let access = Access { manner: how.manner(), ..self.own_access(w.pc, w.id) };
        let mut launch = self.global_race();
        let Some(race) = &mut self.race else { return };
        let mut sweep = launch.sweep(access, touch);
        let mut found = None;
        for (lane, offset, bytes) in window.runs(bytes) {
            let order = |other: Access| race.order(w.id, first, other);
            let met = launch.access(&mut sweep, window.data as u64 + offset, bytes, order);
            found = found.or(met.map(|met| (lane, met)));
        }
        drop(launch);
        let mut between_lanes = None;
        if access.manner == Manner::Plain {
            let offsets = window.offsets.map(|offset| offset.wrapping_add(window.data as u64));
            let words = Words { offsets: &offsets, ..words(window, bytes) };
            between_lanes = race.lanes.access_global(w.id, words, touch == Touch::Write);
        }
        if let Some((lane, met)) = found {
            self.global_report(w.pc, Issuer { warp: w.id, lane: lane as u32 }, touch, met);
        } else if let Some(conflict) = between_lanes {
            self.global_report_lanes(w.pc, w.id, conflict);
        }
    }

    #[cold]
    #[inline(never)]
    fn global_report_lanes(&mut self, pc: u32, warp: u32, conflict: LaneConflict) {
        let LaneConflict { lane, other, wrote, .. } = conflict;
        self.report(FindingKind::GlobalRace, pc, warp, lane, |context| {
            let warp = context.warp_name(warp);
            let other = other.map_or("other lanes".to_owned(), |other| format!("lane {other}"));
            let did = if wrote { "wrote" } else { "read" };
            format!(
                "lane {lane} of {warp} accesses a word that {other} of it {did}; no bar.warp.sync \
                 orders the two"
            )
        });
    }

    /// What a warp's own accesses are called now.
    fn own_access(&self, pc: u32, warp: u32) -> Access {
        let clock = self.race.as_ref().map_or(0, |race| race.clock(warp));
        Access { actor: self.first_actor() + warp, clock, pc, manner: Manner::Plain }
    }

    /// A `cp.async` of a thread reads bytes.
    pub fn global_copy_reads(&mut self, pc: u32, issuer: Issuer, at: u64, bytes: u32) {
        let (access, first) = (self.own_access(pc, issuer.warp), self.first_actor());
        let order = |race: &Race, other| race.order(issuer.warp, first, other);
        self.global_copy(access, issuer, (at, bytes), Touch::Read, order);
    }

    /// A bulk load that a thread started reads bytes. What its barrier orders is the copy, not the warp that
    /// started it: nothing is kept of the read.
    pub fn global_bulk_reads(&mut self, t: &Transfer, at: u64, bytes: u32) {
        let access = self.own_access(t.pc, t.issuer.warp);
        let order = |_: &Race, other| t.known.order_for_copy(other);
        self.global_copy(access, t.issuer, (at, bytes), Touch::Look, order);
    }

    /// A bulk store of a group writes bytes, or adds to them.
    pub fn global_bulk_writes(&mut self, t: &Transfer, (group, adds): (u32, bool), at: u64, bytes: u32) {
        let actor = self.bulk_actor(t.issuer);
        let manner = if adds { Manner::Strong(Scope::Launch) } else { Manner::Plain };
        let access = Access { actor, clock: group + 1, pc: t.pc, manner };
        let order = |_: &Race, other: Access| {
            // Stores of one thread are its own affair.
            if other.actor == actor { Order::Before } else { t.known.order_for_copy(other) }
        };
        self.global_copy(access, t.issuer, (at, bytes), Touch::Write, order);
    }

    fn global_copy(
        &mut self,
        access: Access,
        issuer: Issuer,
        (at, bytes): (u64, u32),
        touch: Touch,
        order: impl Fn(&Race, Access) -> Order,
    ) {
        let Some(race) = &self.race else { return };
        let mut launch = self.global_race();
        let mut sweep = launch.sweep(access, touch);
        let met = launch.access(&mut sweep, at, bytes, |other| order(race, other));
        drop(launch);
        if let Some(met) = met {
            self.global_report(access.pc, issuer, touch, met);
        }
    }

    /// What a warp knows when it starts a bulk copy. What it does next does not come before the copy.
    pub fn known_to_copy(&mut self, warp: u32) -> Foreign {
        let first = self.first_actor();
        self.race.as_mut().map_or_else(Foreign::default, |race| race.known(warp, first))
    }

    /// A thread has waited until so many of its groups of bulk stores were written.
    pub fn global_bulk_written(&mut self, issuer: Issuer, groups: u32) {
        let actor = self.bulk_actor(issuer);
        if let Some(race) = &mut self.race {
            race.bulk_written(issuer.warp, actor, groups);
        }
    }

    /// `fence.proxy.async` of global memory.
    pub fn global_proxy_fence(&mut self, warp: u32) {
        let first = self.first_actor();
        if let Some(race) = &mut self.race {
            race.global_proxy_fence(warp, first);
        }
    }

    #[cold]
    #[inline(never)]
    fn global_report(&mut self, pc: u32, issuer: Issuer, touch: Touch, met: Meeting) {
        let Meeting { other, wrote, fenceless, read_only } = met;
        let only_fence = fenceless && !read_only;
        let (_, grid) = self.environment.chain.grid_of_actor(other.actor);
        let kind = if only_fence {
            FindingKind::MissingProxyFence
        } else if !read_only && swap_in(self.environment.kernel, pc, grid.kernel, other.pc) {
            FindingKind::CompareAndSwapLoad
        } else {
            FindingKind::GlobalRace
        };
        self.report(kind, pc, issuer.warp, issuer.lane, |context| {
            let Environment { chain, place: own, .. } = context.environment;
            let (place, grid) = chain.grid_of_actor(other.actor);
            let (cluster, warp, is_store) = grid.actors.warp(other.actor);
            let rank = grid.cluster.rank(warp);
            let [x, y, z] = grid.cluster.block_at(&grid.launch, u64::from(cluster), rank);
            let of = if place == *own { String::new() } else { format!(" of {}", grid.kernel.name()) };
            let place = place_in(grid.kernel, other.pc);
            let warp = grid.cluster.in_block(warp);
            let who =
                if is_store { format!("a bulk store of warp {warp}") } else { format!("warp {warp}") };
            let touched = if touch == Touch::Write { "write" } else { "read" };
            let did = if wrote { "wrote" } else { "read" };
            let (by, lacks) = if only_fence {
                (" by a bulk copy", ", with no fence.proxy.async behind it")
            } else if read_only {
                ("", "; one of them is ld.global.nc, of what nothing may write while the kernel runs")
            } else {
                ("", "; nothing orders the two")
            };
            format!(
                "a {touched}{by} of bytes that {who} of block ({x}, {y}, {z}){of} {did}{place}{lacks}"
            )
        });
    }
}
