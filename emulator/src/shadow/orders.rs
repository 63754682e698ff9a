//! What the warps of a cluster know of the launch, and of each other: what passes through strong accesses.
//!
//! A fence, or a `release`, lets a strong write make something known; a strong read of the same address
//! sees it, and an `acquire`, or the next fence, makes it count. All of these have a scope: what one of
//! them has for the block only is nothing to other blocks. A cluster keeps what its own warps made known, to
//! their blocks and to each other, apart from what all did.

use super::clock::View;
use super::global::{Access, Order};
use super::knowledge::Foreign;
use super::race::Race;

/// Whom a fence or a strong access is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The threads of the block: `cta`.
    Block,
    /// The threads of the blocks of the cluster: `cluster`.
    Cluster,
    /// All threads of the launch: `gpu` and `sys`.
    Launch,
}

/// In the place of a rank: all blocks of the cluster.
const ALL: u32 = u32::MAX;

/// What a warp's strong accesses have to do with others: those of its block, of its cluster, and of all
/// blocks.
#[derive(Clone, Debug, Default)]
pub struct Strong {
    /// What the last fence lets them make known to the block, and to the cluster if that has more,
    fenced: [Option<View>; 2],
    /// and to all blocks.
    fenced_for_all: Option<Foreign>,
    /// The address through which that was made known last, to each of the three.
    published: [Option<u64>; 3],
    /// What they saw of the block, and of the cluster, since the last fence,
    seen: [Option<View>; 2],
    /// and of all blocks.
    seen_of_all: Foreign,
    /// Where they last looked, and how often what is known there had grown.
    last: [Option<(u64, u32)>; 3],
}

impl Strong {
    /// What the last fence lets strong accesses make known to the block, or to the cluster.
    pub fn fenced(&self, level: usize) -> Option<&View> {
        self.fenced[level].as_ref()
    }

    /// They saw what counts from the next fence on, of the block or of the cluster.
    pub fn sees(&mut self, known: &View, level: usize) {
        self.seen[level].get_or_insert_default().join(known);
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

    /// Whether the block is one of several of a cluster.
    #[inline(always)]
    pub fn has_clusters(&self) -> bool {
        self.of_block as usize != self.warps.len()
    }

    /// The rank of a warp's block in the cluster.
    pub(super) fn rank(&self, warp: u32) -> u32 {
        warp / self.of_block
    }

    /// What a scope reaches of the cluster: 0 the block, 1 all of it.
    pub(super) fn level(&self, scope: Scope) -> usize {
        usize::from(scope != Scope::Block && self.has_clusters())
    }

    /// What is made known to a warp's block, or to the cluster, stands under this rank.
    fn reader(&self, warp: u32, level: usize) -> u32 {
        if level == 0 { self.rank(warp) } else { ALL }
    }

    /// A fence of a warp that lets what follows make known what came before.
    pub fn fence(&mut self, warp: u32, first: u32, scope: Scope) {
        let level = self.level(scope);
        let released = self.release(warp);
        let for_all = (scope == Scope::Launch).then(|| self.for_all(&released, first));
        let strong = &mut self.strong[warp as usize];
        if level == 1 {
            strong.fenced[1] = Some(released.clone());
            strong.published[1] = None;
        }
        strong.fenced[0] = Some(released);
        strong.published[0] = None;
        if for_all.is_some() {
            strong.fenced_for_all = for_all;
            strong.published[2] = None;
        }
    }

    /// Whether a strong write of a warp without `release` makes anything known.
    pub fn publishes(&self, warp: u32) -> bool {
        self.strong[warp as usize].fenced[0].is_some()
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
        let (level, for_all) = (self.level(scope), scope == Scope::Launch);
        if releases {
            let released = self.release(warp);
            for level in 0..=level {
                self.publish_to((address, self.reader(warp, level)), &released);
            }
            return for_all.then(|| self.for_all(&released, first));
        }
        let strong = &mut self.strong[warp as usize];
        let all = &mut strong.published[2];
        let known = strong.fenced_for_all.as_ref();
        let known = known.filter(|_| for_all && all.replace(address) != Some(address)).cloned();
        for level in 0..=level {
            let reader = self.reader(warp, level);
            let strong = &mut self.strong[warp as usize];
            if strong.published[level].replace(address) != Some(address)
                && let Some(fenced) = strong.fenced[level].take()
            {
                self.publish_to((address, reader), &fenced);
                self.strong[warp as usize].fenced[level] = Some(fenced);
            }
        }
        known
    }

    fn publish_to(&mut self, place: (u64, u32), known: &View) {
        let (place, version) = self.places.entry(place).or_default();
        place.join(known);
        *version += 1;
    }

    /// A strong access of a warp saw what its block, or its cluster, made known; it counts from the next
    /// fence on.
    pub fn learn_from_cluster(&mut self, warp: u32, address: u64, scope: Scope) {
        for level in 0..=self.level(scope) {
            let Some((known, version)) = self.places.get(&(address, self.reader(warp, level))) else {
                continue;
            };
            let strong = &mut self.strong[warp as usize];
            if strong.last[level].replace((address, *version)) != Some((address, *version)) {
                strong.sees(known, level);
            }
        }
    }

    /// A strong access of a warp saw what any block made known; it counts from the next fence on.
    pub fn learn(&mut self, warp: u32, address: u64, known: &Foreign, version: u32) {
        let Strong { seen_of_all, last, .. } = &mut self.strong[warp as usize];
        if last[2].replace((address, version)) != Some((address, version)) {
            seen_of_all.join(known);
        }
    }

    /// What a warp has seen counts from now on.
    pub fn apply(&mut self, warp: u32, first: u32, scope: Scope) {
        let (count, level) = (self.warps.len(), self.level(scope));
        let strong = &mut self.strong[warp as usize];
        let view = &mut self.warps[warp as usize];
        for seen in &mut strong.seen[..=level] {
            if let Some(seen) = seen.take() {
                view.join(&seen);
            }
        }
        if scope != Scope::Launch {
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
