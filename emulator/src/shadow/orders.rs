//! What the warps of a block know of the launch: their clocks, and what passes through global memory.

use super::global::{Access, Order};
use super::knowledge::Foreign;
use super::race::Race;

/// What a warp's strong accesses have to do with others.
#[derive(Clone, Debug, Default)]
pub struct Strong {
    /// What the last fence lets them make known.
    fenced: Option<Foreign>,
    /// The address through which that was made known last.
    published: Option<u64>,
    /// What they saw since the last fence.
    seen: Foreign,
    /// Where they last looked, and how often what is known there had grown.
    last: Option<(u64, u32)>,
}

impl Foreign {
    /// Whether an access of any block comes before a bulk copy that started when this was known.
    pub fn order_for_copy(&self, other: Access) -> Order {
        if self.threads.get(other.actor) < other.clock {
            Order::None
        } else if self.proxy.get(other.actor) < other.clock {
            Order::Unseen
        } else {
            Order::Before
        }
    }
}

impl Race {
    /// The clock of a warp.
    #[inline(always)]
    pub fn clock(&self, warp: u32) -> u32 {
        self.warps[warp as usize].threads.get(warp as usize)
    }

    /// Whether an access of any block comes before what a warp does now; `first` is the block's first actor.
    #[inline(always)]
    pub fn order(&self, warp: u32, first: u32, other: Access) -> Order {
        let view = &self.warps[warp as usize];
        let own = other.actor.wrapping_sub(first) as usize;
        let known = if own < self.warps.len() {
            view.threads.get(own)
        } else {
            view.foreign.threads.get(other.actor)
        };
        if known >= other.clock { Order::Before } else { Order::None }
    }

    /// All that a warp knows, in numbers of the launch; it goes on to the next clock.
    pub fn known(&mut self, warp: u32, first: u32) -> Foreign {
        let view = self.release(warp);
        let mut known = Foreign { proxy: view.foreign.proxy, ..Foreign::default() };
        for other in 0..self.warps.len() {
            known.threads.raise(first + other as u32, view.threads.get(other));
        }
        known.threads.join(&view.foreign.threads);
        known
    }

    /// The asynchronous proxy sees, of global memory, what a warp knows of.
    pub fn global_proxy_fence(&mut self, warp: u32, first: u32) {
        let known = self.known(warp, first);
        self.warps[warp as usize].foreign.proxy.join(&known.threads);
    }

    /// A fence of a warp.
    pub fn fence(&mut self, warp: u32, first: u32) {
        let known = self.known(warp, first);
        let strong = &mut self.strong[warp as usize];
        strong.fenced = Some(known);
        strong.published = None;
    }

    /// What the last fence of a warp lets it make known through an address, unless it just did.
    pub fn unpublished(&mut self, warp: u32, address: u64) -> Option<&Foreign> {
        let Strong { fenced, published, .. } = &mut self.strong[warp as usize];
        fenced.as_ref().filter(|_| published.replace(address) != Some(address))
    }

    /// A strong access of a warp saw what others made known; it counts from the next fence on.
    pub fn learn(&mut self, warp: u32, address: u64, known: &Foreign, version: u32) {
        let Strong { seen, last, .. } = &mut self.strong[warp as usize];
        if last.replace((address, version)) != Some((address, version)) {
            seen.join(known);
        }
    }

    /// What a warp has seen counts from now on.
    pub fn apply(&mut self, warp: u32, first: u32) {
        let seen = std::mem::take(&mut self.strong[warp as usize].seen);
        let count = self.warps.len();
        let view = &mut self.warps[warp as usize];
        for (actor, clock) in seen.threads.iter() {
            let own = actor.wrapping_sub(first) as usize;
            if own < count {
                view.threads.raise(own, clock);
            }
        }
        view.foreign.join(&seen);
    }

    /// A warp has waited until bulk stores had written, up to a clock; the end of a bulk copy is a fence
    /// between the proxies.
    pub fn bulk_written(&mut self, warp: u32, actor: u32, clock: u32) {
        let Foreign { threads, proxy } = &mut self.warps[warp as usize].foreign;
        threads.raise(actor, clock);
        proxy.raise(actor, clock);
    }
}
