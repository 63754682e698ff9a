//! Strong accesses and fences: what they make known to others, and see of them.

use crate::exec::state::context::Context;
use crate::exec::state::warp::Warp;
use crate::exec::state::window::Window;
use crate::exec::values::registers::lanes;
use crate::isa::{
    FLAG_ACQUIRE, FLAG_BLOCK, FLAG_READ_ONLY, FLAG_RELEASE, FLAG_STRONG, IN_CLUSTER, Instruction,
};
use crate::shadow::global::Manner;
use crate::shadow::orders::Scope;
use crate::space::Space;
use std::sync::{MutexGuard, PoisonError};

/// How an access or a fence meets others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Strength(u16);

impl Strength {
    /// That of an instruction.
    #[inline(always)]
    pub fn of(i: &Instruction) -> Self {
        Strength(u16::from(i.flags) | (i.e & IN_CLUSTER) as u16)
    }

    fn has(self, flag: u8) -> bool {
        self.0 & u16::from(flag) != 0
    }

    /// It is atomic, or `volatile`, `relaxed`, `acquire` or `release`.
    #[inline(always)]
    pub fn is_strong(self) -> bool {
        self.has(FLAG_STRONG)
    }

    /// What comes after sees what its value makes known, with no fence; of a fence, what came before saw.
    pub fn acquires(self) -> bool {
        self.has(FLAG_ACQUIRE)
    }

    /// What came before is known to who sees it, with no fence; of a fence, to who sees what follows.
    pub fn releases(self) -> bool {
        self.has(FLAG_RELEASE)
    }

    /// Whom it is for.
    pub fn scope(self) -> Scope {
        match self.0 & (u16::from(FLAG_BLOCK) | IN_CLUSTER as u16) {
            0 => Scope::Launch,
            scope if scope & IN_CLUSTER as u16 != 0 => Scope::Cluster,
            _ => Scope::Block,
        }
    }

    /// How the access is made.
    pub fn manner(self) -> Manner {
        if self.is_strong() {
            Manner::Strong(self.scope())
        } else if self.has(FLAG_READ_ONLY) {
            Manner::ReadOnly
        } else {
            Manner::Plain
        }
    }
}

impl<'a> Context<'a> {
    /// Blocks that run at the same time make strong writes to global memory in turn, while they hold this:
    /// what is known of them is then in the order in which they happen.
    #[inline(always)]
    pub fn turn(&self, window: &Window, how: Strength) -> Option<MutexGuard<'a, ()>> {
        let noted = how.is_strong() && window.space == Space::Global && self.race.is_some();
        noted.then(|| self.environment.chain.turn.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Lanes are about to write what others may learn something through.
    #[inline(always)]
    pub fn strong_write(&mut self, w: &Warp, window: &Window, how: Strength) {
        if how.is_strong() {
            self.strong_write_slowly(w, window, how);
        }
    }

    #[inline(never)]
    fn strong_write_slowly(&mut self, w: &Warp, window: &Window, how: Strength) {
        let first = self.first_actor();
        let Some(scope) = scope_in(window.space, how) else { return };
        let Some(race) = &mut self.race else { return };
        if !how.releases() && !race.publishes(w.id) {
            return;
        }
        let mut last = None;
        let mut for_all = Vec::new();
        for lane in lanes(window.mask) {
            let place = window.data as u64 + window.offsets[lane];
            if last.replace(place) != Some(place) {
                let known = race.publish((w.id, first), place, scope, how.releases());
                for_all.extend(known.map(|known| (place, known)));
            }
        }
        if !for_all.is_empty() {
            let mut launch = self.global_race();
            for_all.iter().for_each(|(place, known)| launch.publish(*place, known));
        }
    }

    /// Lanes have read, or changed, what others may have made something known through.
    #[inline(always)]
    pub fn strong_seen(&mut self, w: &Warp, window: &Window, how: Strength) {
        if how.is_strong() {
            self.strong_seen_slowly(w, window, how);
        }
    }

    #[inline(never)]
    fn strong_seen_slowly(&mut self, w: &Warp, window: &Window, how: Strength) {
        let first = self.first_actor();
        let Some(scope) = scope_in(window.space, how) else { return };
        let launch = (scope == Scope::Launch).then(|| self.global_race());
        let Some(race) = &mut self.race else { return };
        let mut last = None;
        for lane in lanes(window.mask) {
            let place = window.data as u64 + window.offsets[lane];
            if last.replace(place) == Some(place) {
                continue;
            }
            race.learn_from_cluster(w.id, place, scope);
            if let Some((known, version)) = launch.as_ref().and_then(|launch| launch.place(place)) {
                race.learn(w.id, place, known, *version);
            }
        }
        if how.acquires() || self.environment.options.acquire_always {
            race.apply(w.id, first, scope);
        }
    }

    /// A fence: what came before is made known by what follows, and what was seen before counts now.
    pub fn fence(&mut self, warp: u32, how: Strength) {
        let first = self.first_actor();
        let Some(race) = &mut self.race else { return };
        if how.acquires() {
            race.apply(warp, first, how.scope());
        }
        if how.releases() {
            race.fence(warp, first, how.scope());
        }
    }
}

/// Whom a strong access can be for: to shared memory, the cluster at most. `None`: nobody else.
fn scope_in(space: Space, how: Strength) -> Option<Scope> {
    match space {
        Space::Shared if how.scope() == Scope::Block => Some(Scope::Block),
        Space::Shared => Some(Scope::Cluster),
        Space::Global => Some(how.scope()),
        _ => None,
    }
}
