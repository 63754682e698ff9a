//! Vector clocks: what the race shadow counts with.

use super::knowledge::Foreign;

/// Bits of an epoch's clock; the rest is the actor.
pub const CLOCK_BITS: u32 = 21;
/// The last clock of an epoch.
pub const CLOCK: u32 = (1 << CLOCK_BITS) - 1;

/// What is known of every actor's progress; actors beyond the end: nothing.
#[derive(Clone, Debug, Default)]
pub struct Clock(Vec<u32>);

impl Clock {
    /// What is known of an actor.
    #[inline(always)]
    pub fn get(&self, actor: usize) -> u32 {
        self.0.get(actor).copied().unwrap_or(0)
    }

    /// An actor is known to have come so far.
    pub fn raise(&mut self, actor: usize, value: u32) {
        if self.0.len() <= actor {
            self.0.resize(actor + 1, 0);
        }
        self.0[actor] = self.0[actor].max(value);
    }

    /// No more than this is known of an actor.
    pub fn lower(&mut self, actor: usize, value: u32) {
        if let Some(known) = self.0.get_mut(actor) {
            *known = value.min(*known);
        }
    }

    /// Knows what another one knows.
    pub fn join(&mut self, other: &Clock) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        self.0.iter_mut().zip(&other.0).for_each(|(mine, &theirs)| *mine = theirs.max(*mine));
    }

    /// Whether an access is known.
    #[inline(always)]
    pub fn covers(&self, epoch: u32) -> bool {
        epoch & CLOCK <= self.get((epoch >> CLOCK_BITS) as usize)
    }
}

/// What somebody knows: for accesses of threads, and for those of the asynchronous proxy.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// For accesses of threads.
    pub threads: Clock,
    /// For accesses of the asynchronous proxy.
    pub proxy: Clock,
    /// How far each warp is known to have come by what orders no accesses: `relaxed` arrivals at the
    /// cluster's barrier.
    pub control: Clock,
    /// How many arrivals of each warp at memory barriers.
    pub arrivals: Clock,
    /// For warps of other blocks, and what bulk stores wrote.
    pub foreign: Foreign,
}

impl View {
    /// Knows what another one knows.
    pub fn join(&mut self, other: &View) {
        self.threads.join(&other.threads);
        self.proxy.join(&other.proxy);
        self.control.join(&other.control);
        self.arrivals.join(&other.arrivals);
        self.foreign.join(&other.foreign);
    }

    /// Knows nothing any more.
    pub fn clear(&mut self) {
        self.threads.0.clear();
        self.proxy.0.clear();
        self.control.0.clear();
        self.arrivals.0.clear();
        self.foreign = Foreign::default();
    }
}
