//! Where the warps of a block meet: memory barriers, named barriers, and the fence between the proxies.

use super::actor::Actor;
use super::clock::{CLOCK, View};
use super::race::Race;

/// What passes through a memory barrier.
#[derive(Clone, Debug, Default)]
pub struct Mbarrier {
    /// What its completed phases make known.
    complete: View,
    /// What has arrived in the current phase.
    current: View,
    /// The number of that phase.
    phase: u32,
    /// When it began to live.
    begun: u32,
    /// When `fence.mbarrier_init` showed it to the asynchronous proxy.
    shown: Option<u32>,
}

impl Mbarrier {
    /// Brings it up to a phase.
    fn advance(&mut self, phase: u32) {
        if phase != self.phase {
            self.complete.join(&self.current);
            self.current.clear();
            self.phase = phase;
        }
    }
}

impl Race {
    /// An arrival of some lanes at a memory barrier, in a phase.
    pub fn release_to_mbarrier(&mut self, warp: u32, lanes: u32, address: u32, phase: u32) {
        let arrivals = &mut self.warps[warp as usize].arrivals;
        let arrival = arrivals.get(warp as usize) + 1;
        arrivals.raise(warp as usize, arrival);
        let mut released = self.release(warp);
        if let Some(clock) = self.lanes.arrive(warp, lanes, arrival) {
            released.threads.lower(warp as usize, clock);
            released.proxy.lower(warp as usize, clock);
        }
        self.arrive(address, phase, &released);
    }

    /// A `relaxed` arrival makes known what the last fence of the warp lets it.
    pub fn relaxed_to_mbarrier(&mut self, warp: u32, address: u32, phase: u32) {
        if let Some(fenced) = self.strong[warp as usize].fenced() {
            let known = fenced.clone();
            self.arrive(address, phase, &known);
        }
    }

    fn arrive(&mut self, address: u32, phase: u32, known: &View) {
        let barrier = self.mbarriers.entry(address).or_default();
        barrier.advance(phase);
        barrier.current.join(known);
    }

    /// A warp learns that so many phases are complete; a `relaxed` wait counts from its next fence on. How
    /// many arrivals of its own they come after, at this or any other memory barrier.
    pub fn acquire_from_mbarrier(&mut self, warp: u32, address: u32, phases: u32, relaxed: bool) -> u32 {
        let mut own = 0;
        let number = self.number(Actor::Load(address));
        let Race { warps, mbarriers, strong, .. } = self;
        let view = &mut warps[warp as usize];
        if let Some(barrier) = mbarriers.get_mut(&address) {
            barrier.advance(phases);
            if relaxed {
                strong[warp as usize].sees(&barrier.complete);
            } else {
                view.join(&barrier.complete);
                own = barrier.complete.arrivals.get(warp as usize);
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

    /// Whether a memory barrier began to live before what a warp does now.
    pub fn mbarrier_is_known(&self, warp: u32, address: u32) -> bool {
        let barrier = self.mbarriers.get(&address);
        barrier.is_none_or(|barrier| self.warps[warp as usize].threads.covers(barrier.begun))
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
                || barrier.shown.is_some_and(|shown| view.threads.covers(shown))
        })
    }

    /// A memory barrier gives its bytes back.
    pub fn mbarrier_ends(&mut self, offset: u32, bytes: u32) {
        self.fill(offset, bytes, 0);
    }
}
