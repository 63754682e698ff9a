//! What the warps of a block know of the launch, and of each other: what passes through strong accesses.
//!
//! A fence, or a `release`, lets a strong write make something known; a strong read of the same address
//! sees it, and an `acquire`, or the next fence, makes it count. All of these have a scope: what one of
//! them has for the block only is nothing to other blocks. A block keeps what its own warps made known
//! apart from what all did.

use super::clock::View;
use super::global::{Access, Order};
use super::knowledge::Foreign;
use super::race::Race;

/// Whom a fence or a strong access is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The threads of the block: `cta`, and `cluster`, as a cluster has one block.
    Block,
    /// All threads of the launch: `gpu` and `sys`.
    Launch,
}

/// What a warp's strong accesses have to do with others: those of its block, and those of all blocks.
#[derive(Clone, Debug, Default)]
pub struct Strong {
    /// What the last fence lets them make known to the block,
    fenced: Option<View>,
    /// and to all blocks.
    fenced_for_all: Option<Foreign>,
    /// The address through which that was made known last, to either.
    published: [Option<u64>; 2],
    /// What they saw of the block since the last fence,
    seen: Option<View>,
    /// and of all blocks.
    seen_of_all: Foreign,
    /// Where they last looked, and how often what is known there had grown.
    last: [Option<(u64, u32)>; 2],
}

impl Strong {
    /// What the last fence lets strong accesses make known to the block.
    pub fn fenced(&self) -> Option<&View> {
        self.fenced.as_ref()
    }

    /// They saw what counts from the next fence on.
    pub fn sees(&mut self, known: &View) {
        self.seen.get_or_insert_default().join(known);
    }
}

impl Foreign {
    /// Whether an access of any block comes before a bulk copy that started when this was known.
    pub fn order_for_copy(&self, other: Access) -> Order {
        if other.actor < self.ended {
            Order::Ended
        } else if self.threads.get(other.actor) < other.clock {
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
        if other.actor < view.foreign.ended {
            return Order::Ended;
        }
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
        self.for_all(&view, first)
    }

    /// What is known in a block, in numbers of the launch.
    fn for_all(&self, view: &View, first: u32) -> Foreign {
        let Foreign { ended, ref proxy, .. } = view.foreign;
        let mut known = Foreign { ended, proxy: proxy.clone(), ..Foreign::default() };
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

    /// A fence of a warp that lets what follows make known what came before.
    pub fn fence(&mut self, warp: u32, first: u32, scope: Scope) {
        let released = self.release(warp);
        let for_all = (scope == Scope::Launch).then(|| self.for_all(&released, first));
        let strong = &mut self.strong[warp as usize];
        strong.fenced = Some(released);
        strong.published[0] = None;
        if for_all.is_some() {
            strong.fenced_for_all = for_all;
            strong.published[1] = None;
        }
    }

    /// Whether a strong write of a warp without `release` makes anything known.
    pub fn publishes(&self, warp: u32) -> bool {
        self.strong[warp as usize].fenced.is_some()
    }

    /// A strong write of a warp makes known, through an address, what its own `release` lets it, or the last
    /// fence, unless it just did. To all blocks: what is returned.
    pub fn publish(
        &mut self,
        (warp, first): (u32, u32),
        address: u64,
        scope: Scope,
        releases: bool,
    ) -> Option<Foreign> {
        let for_all = scope == Scope::Launch;
        if releases {
            let released = self.release(warp);
            self.publish_to_block(address, &released);
            return for_all.then(|| self.for_all(&released, first));
        }
        let strong = &mut self.strong[warp as usize];
        let [block, all] = &mut strong.published;
        let known = strong.fenced_for_all.as_ref();
        let known = known.filter(|_| for_all && all.replace(address) != Some(address)).cloned();
        if block.replace(address) != Some(address)
            && let Some(fenced) = strong.fenced.take()
        {
            self.publish_to_block(address, &fenced);
            self.strong[warp as usize].fenced = Some(fenced);
        }
        known
    }

    fn publish_to_block(&mut self, address: u64, known: &View) {
        let (place, version) = self.places.entry(address).or_default();
        place.join(known);
        *version += 1;
    }

    /// A strong access of a warp saw what its block made known; it counts from the next fence on.
    pub fn learn_from_block(&mut self, warp: u32, address: u64) {
        let Some((known, version)) = self.places.get(&address) else { return };
        let strong = &mut self.strong[warp as usize];
        if strong.last[0].replace((address, *version)) != Some((address, *version)) {
            strong.sees(known);
        }
    }

    /// A strong access of a warp saw what any block made known; it counts from the next fence on.
    pub fn learn(&mut self, warp: u32, address: u64, known: &Foreign, version: u32) {
        let Strong { seen_of_all, last, .. } = &mut self.strong[warp as usize];
        if last[1].replace((address, version)) != Some((address, version)) {
            seen_of_all.join(known);
        }
    }

    /// What a warp has seen counts from now on.
    pub fn apply(&mut self, warp: u32, first: u32, scope: Scope) {
        let count = self.warps.len();
        let strong = &mut self.strong[warp as usize];
        let view = &mut self.warps[warp as usize];
        if let Some(seen) = strong.seen.take() {
            view.join(&seen);
        }
        if scope == Scope::Block {
            return;
        }
        let seen = std::mem::take(&mut strong.seen_of_all);
        for (actor, clock) in seen.threads.iter() {
            let own = actor.wrapping_sub(first) as usize;
            if own < count {
                view.threads.raise(own, clock);
            }
        }
        view.foreign.join(&seen);
    }

    /// The block starts when the grids have ended whose actors come before this one.
    pub fn starts_behind(&mut self, actor: u32) {
        self.warps.iter_mut().for_each(|view| view.foreign.ended = actor);
    }

    /// A warp has waited until the grids had ended whose actors come before this one.
    pub fn grids_ended(&mut self, warp: u32, actor: u32) {
        let ended = &mut self.warps[warp as usize].foreign.ended;
        *ended = actor.max(*ended);
    }

    /// A warp has waited until bulk stores had written, up to a clock; the end of a bulk copy is a fence
    /// between the proxies.
    pub fn bulk_written(&mut self, warp: u32, actor: u32, clock: u32) {
        let Foreign { threads, proxy, .. } = &mut self.warps[warp as usize].foreign;
        threads.raise(actor, clock);
        proxy.raise(actor, clock);
    }
}
