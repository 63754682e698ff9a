//! Vector clocks, and sets of reads: what the race shadow counts with.

use super::knowledge::Foreign;
use foldhash::fast::FixedState;
use std::collections::HashMap;

/// Bits of an epoch's clock; the rest is the actor.
pub const CLOCK_BITS: u32 = 22;
/// The last clock of an epoch.
pub const CLOCK: u32 = (1 << CLOCK_BITS) - 1;
/// Transitions of read sets that are remembered at hand.
const RECENT: usize = 256;

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
    /// For warps of other blocks, and what bulk stores wrote.
    pub foreign: Foreign,
}

impl View {
    /// Knows what another one knows.
    pub fn join(&mut self, other: &View) {
        self.threads.join(&other.threads);
        self.proxy.join(&other.proxy);
        self.foreign.join(&other.foreign);
    }
}

/// Sets of reads, each once; adding to one leads to another.
#[derive(Debug)]
pub struct ReadSets {
    /// The sets; the first is empty.
    pub sets: Vec<Vec<u32>>,
    after: HashMap<(u32, u32), u32, FixedState>,
    recent: Vec<(u32, u32, u32)>,
}

impl ReadSets {
    /// The empty set alone.
    pub fn new() -> Self {
        let recent = vec![(u32::MAX, 0, 0); RECENT];
        ReadSets { sets: vec![Vec::new()], after: HashMap::default(), recent }
    }

    /// The set with one read more.
    #[inline(always)]
    pub fn add(&mut self, set: u32, epoch: u32) -> u32 {
        let hash = (set ^ epoch ^ epoch >> 17).wrapping_mul(0x9e37_79b1) >> 24;
        let (known, with, then) = self.recent[hash as usize];
        if (known, with) == (set, epoch) {
            return then;
        }
        let then = self.add_slowly(set, epoch);
        self.recent[hash as usize] = (set, epoch, then);
        then
    }

    #[inline(never)]
    fn add_slowly(&mut self, set: u32, epoch: u32) -> u32 {
        if let Some(&then) = self.after.get(&(set, epoch)) {
            return then;
        }
        let mut reads = self.sets[set as usize].clone();
        match reads.iter_mut().find(|read| **read >> CLOCK_BITS == epoch >> CLOCK_BITS) {
            Some(read) => *read = epoch,
            None => reads.push(epoch),
        }
        self.sets.push(reads);
        let then = self.sets.len() as u32 - 1;
        self.after.insert((set, epoch), then);
        then
    }
}
