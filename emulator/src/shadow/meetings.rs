//! Where the warps of a cluster meet: memory barriers, named barriers, and the fence between the proxies.

use super::actor::Actor;
use super::clock::{CLOCK, Clock, View};
use super::orders::Scope;
use super::race::Race;

/// In the place of an address: the barrier of the cluster.
const CLUSTER_BARRIER: u32 = u32::MAX;

/// What passes through a memory barrier.
#[derive(Clone, Debug, Default)]
pub struct Mbarrier {
    /// What its completed phases make known: arrivals of its own block, and of others.
    complete: [View; 2],
    /// What has arrived in the current phase.
    current: [View; 2],
    /// The number of that phase.
    phase: u32,
    /// When it began to live.
    begun: u32,
    /// When `fence.mbarrier_init` showed it to the asynchronous proxy.
    shown: Option<u32>,
    /// When each warp used it last.
    used: Clock,
}

impl Mbarrier {
    /// Brings it up to a phase.
    fn advance(&mut self, phase: u32) {
        if phase != self.phase {
            for (complete, current) in self.complete.iter_mut().zip(&mut self.current) {
                complete.join(current);
                current.clear();
            }
            self.phase = phase;
        }
    }
}

impl Race {
    /// An arrival of some lanes at a memory barrier, in a phase.
    pub fn release_to_mbarrier(
        &mut self,
        (warp, lanes): (u32, u32),
        address: u32,
        phase: u32,
        scope: Scope,
    ) {
        let arrivals = &mut self.warps[warp as usize].arrivals;
        let arrival = arrivals.get(warp as usize) + 1;
        arrivals.raise(warp as usize, arrival);
        let mut released = self.release(warp);
        if let Some(clock) = self.lanes.arrive(warp, lanes, arrival) {
            released.threads.lower(warp as usize, clock);
            released.proxy.lower(warp as usize, clock);
        }
        self.arrive(warp, address, phase, scope, &released);
    }

    /// A `relaxed` arrival makes known what the last fence of the warp lets it.
    pub fn relaxed_to_mbarrier(&mut self, warp: u32, address: u32, phase: u32, scope: Scope) {
        if let Some(fenced) = self.strong[warp as usize].fenced(self.level_at(warp, address)) {
            let known = fenced.clone();
            self.arrive(warp, address, phase, scope, &known);
        }
    }

    /// Whether a memory barrier is of another block than a warp, or of the cluster: 1, else 0.
    fn level_at(&self, warp: u32, address: u32) -> usize {
        usize::from(self.has_clusters() && address >> self.rank_shift != self.rank(warp))
    }

    fn arrive(&mut self, warp: u32, address: u32, phase: u32, scope: Scope, known: &View) {
        let from = self.level_at(warp, address);
        let barrier = self.mbarriers.entry(address).or_default();
        barrier.advance(phase);
        // An arrival for the block it comes from is nothing to another one.
        if from == 0 || scope != Scope::Block {
            barrier.current[from].join(known);
        }
    }

    /// An arrival of some lanes at the barrier of the cluster, in a phase. A `relaxed` one orders no accesses
    /// but those before the last fence, and memory barriers that `fence.mbarrier_init` has shown.
    pub fn arrive_at_cluster(&mut self, (warp, lanes): (u32, u32), phase: u32, relaxed: bool) {
        if !relaxed {
            return self.release_to_mbarrier((warp, lanes), CLUSTER_BARRIER, phase, Scope::Cluster);
        }
        let level = self.level(Scope::Cluster);
        let mut known = self.strong[warp as usize].fenced(level).cloned().unwrap_or_default();
        let released = self.release(warp);
        known.control.join(&released.control);
        known.control.join(&released.threads);
        self.arrive(warp, CLUSTER_BARRIER, phase, Scope::Cluster, &known);
    }

    /// Lanes of a warp have waited for the barrier of the cluster, of which so many phases are complete.
    pub fn wait_for_cluster(&mut self, warp: u32, lanes: u32, phases: u32) {
        let arrivals = self.acquire_from_mbarrier(warp, CLUSTER_BARRIER, phases, Some(Scope::Cluster));
        self.lanes_wait(warp, lanes, arrivals);
    }

    /// Whether a warp knows that a block has started, by anything that one of its warps did.
    pub fn knows_of_start(&self, warp: u32, rank: u32) -> bool {
        let View { threads, control, .. } = &self.warps[warp as usize];
        let mut warps = (rank * self.of_block) as usize..((rank + 1) * self.of_block) as usize;
        warps.any(|other| threads.get(other) != 0 || control.get(other) != 0)
    }

    /// Whether some warp of a block knows how far an actor had come.
    pub fn block_knows(&self, rank: u32, actor: u32, clock: u32) -> bool {
        let warps = &self.warps[(rank * self.of_block) as usize..((rank + 1) * self.of_block) as usize];
        let knows = |known: &Clock| known.get(actor as usize) >= clock;
        warps.iter().any(|view| knows(&view.threads) || knows(&view.control))
    }

    /// A warp learns that so many phases are complete, of whom a scope says; a `relaxed` wait, without one,
    /// counts from its next fence on. How many arrivals of its own they come after, at this or any other
    /// memory barrier.
    pub fn acquire_from_mbarrier(
        &mut self,
        warp: u32,
        address: u32,
        phases: u32,
        scope: Option<Scope>,
    ) -> u32 {
        let level = scope.map(|scope| self.level(scope));
        let all = self.level(Scope::Cluster);
        let mut own = 0;
        let number = self.number(Actor::Load(address));
        let Race { warps, mbarriers, strong, .. } = self;
        let view = &mut warps[warp as usize];
        if let Some(barrier) = mbarriers.get_mut(&address) {
            barrier.advance(phases);
            if let Some(level) = level {
                for complete in &barrier.complete[..=level] {
                    view.join(complete);
                    own = own.max(complete.arrivals.get(warp as usize));
                }
            } else {
                for level in 0..=all {
                    strong[warp as usize].sees(&barrier.complete[level], level);
                }
            }
        }
        view.threads.raise(number, phases);
        view.proxy.raise(number, phases);
        own
    }

    /// An arrival at a named barrier.
    pub fn release_to_barrier(&mut self, warp: u32, id: u32) {
        self.lanes_meet(warp, !0);
        let released = self.release(warp);
        self.barriers.entry(id).or_default().join(&released);
    }

    /// Warps go on behind a named barrier.
    pub fn acquire_from_barrier(&mut self, warps: &[u32], id: u32) {
        let Some(known) = self.barriers.remove(&id) else { return };
        for &warp in warps {
            self.warps[warp as usize].join(&known);
        }
    }

    /// The asynchronous proxy sees what a warp knows of.
    pub fn proxy_fence(&mut self, warp: u32) {
        let number = warp as usize;
        let View { threads, proxy, .. } = &mut self.warps[number];
        proxy.join(threads);
        // What the warp does next comes after the fence.
        threads.raise(number, threads.get(number) + 1);
    }

    /// A memory barrier takes its bytes.
    pub fn mbarrier_begins(&mut self, warp: u32, address: u32, offset: u32, bytes: u32) {
        let epoch = Race::epoch(self.number(Actor::Mbarrier(address)), CLOCK);
        self.fill(offset, bytes, epoch);
        let begun = self.now(warp);
        self.mbarriers.insert(address, Mbarrier { begun, ..Mbarrier::default() });
    }

    /// A warp uses a memory barrier; whether that began to live before.
    pub fn mbarrier_is_used(&mut self, warp: u32, address: u32) -> bool {
        let Some(barrier) = self.mbarriers.get_mut(&address) else { return true };
        let View { threads, control, .. } = &self.warps[warp as usize];
        barrier.used.raise(warp as usize, threads.get(warp as usize));
        threads.covers(barrier.begun) || barrier.shown.is_some_and(|shown| control.covers(shown))
    }

    /// `fence.mbarrier_init`: the asynchronous proxy sees the memory barriers that a warp has made.
    pub fn mbarrier_fence(&mut self, warp: u32) {
        let now = self.now(warp);
        for barrier in self.mbarriers.values_mut() {
            if barrier.shown.is_none() && Race::actor_of(barrier.begun) == warp as usize {
                barrier.shown = Some(now);
            }
        }
    }

    /// Whether a fence before what a warp does now showed a memory barrier to the asynchronous proxy.
    pub fn mbarrier_is_shown(&self, warp: u32, address: u32) -> bool {
        let view = &self.warps[warp as usize];
        self.mbarriers.get(&address).is_none_or(|barrier| {
            view.proxy.covers(barrier.begun)
                || barrier
                    .shown
                    .is_some_and(|shown| view.threads.covers(shown) || view.control.covers(shown))
        })
    }

    /// A memory barrier gives its bytes back to a warp. The first other one that used it, as far as this one
    /// knows maybe only now.
    pub fn mbarrier_ends(&mut self, warp: u32, address: u32, offset: u32, bytes: u32) -> Option<u32> {
        self.fill(offset, bytes, 0);
        let used = self.mbarriers.get(&address)?.used.clone();
        let View { threads, control, .. } = &self.warps[warp as usize];
        let known = |other: usize| threads.get(other).max(control.get(other));
        let mut others = (0..self.warps.len()).filter(|&other| other != warp as usize);
        others.find(|&other| used.get(other) > known(other)).map(|other| other as u32)
    }
}
