//! Stages of shared memory that one role fills and another uses, round and round.
//!
//! Each stage has two barriers. *Full*: what was copied is there. *Empty*: all who used it are done.
//!
//! ```text
//! producer:  acquire (wait for empty) | announce bytes, start copies | advance
//! consumer:  wait (for full)          | use                          | release (arrive at empty) | advance
//! ```
//!
//! Both count with a [`Cursor`] of their own: stage, and parity of the round. In the first round every
//! stage is empty although nobody released it: the producer waits for the parity before the first.

use crate::arch::mbarrier;

/// Bytes of one barrier.
pub const BARRIER_BYTES: u32 = crate::abi::layout::BARRIER_BYTES;

/// `COUNT` stages: their full barriers, then their empty ones, at a shared address.
#[derive(Clone, Copy)]
pub struct Stages<const COUNT: u32> {
    address: u32,
}

/// Which stage is next, and the parity of this round.
///
/// One register where `COUNT` is a power of two, which then counts the stages gone through; otherwise two.
#[derive(Clone, Copy)]
pub struct Cursor<const COUNT: u32> {
    position: u32,
    round: u32,
}

impl<const COUNT: u32> Cursor<COUNT> {
    /// The first stage in the first round.
    #[inline(always)]
    pub fn start() -> Self {
        Cursor { position: 0, round: 0 }
    }

    /// Stage, below `COUNT`.
    #[inline(always)]
    pub fn stage(&self) -> u32 {
        if COUNT.is_power_of_two() { self.position % COUNT } else { self.position }
    }

    #[inline(always)]
    fn parity(&self) -> u32 {
        if COUNT.is_power_of_two() { self.position / COUNT % 2 } else { self.round }
    }

    /// The stage before this one.
    #[inline(always)]
    pub fn previous(&self) -> Self {
        const { assert!(COUNT.is_power_of_two()) };
        Cursor { position: self.position.wrapping_sub(1), round: 0 }
    }

    /// Goes where the cursor of other stages is, if there are as many of them; both have gone equally far.
    #[inline(always)]
    pub fn follow<const OTHER: u32>(&mut self, other: &Cursor<OTHER>) {
        if COUNT == OTHER {
            *self = Cursor { position: other.position, round: other.round };
        }
    }

    /// Where stages of another number would be that are gone through in step with these.
    #[inline(always)]
    pub fn in_step<const OTHER: u32>(&self) -> Cursor<OTHER> {
        const { assert!(COUNT.is_power_of_two() && OTHER.is_power_of_two()) };
        Cursor { position: self.position, round: 0 }
    }

    /// Where the stage is of the one of `WAYS` whose turn this is, if they have one each and take turns.
    #[inline(always)]
    pub fn dealt<const WAYS: u32>(&self) -> Cursor<1> {
        const { assert!(COUNT.is_power_of_two()) };
        Cursor { position: self.position / WAYS, round: 0 }
    }

    /// The next stage.
    #[inline(always)]
    pub fn advance(&mut self) {
        self.position += 1;
        if !COUNT.is_power_of_two() && self.position == COUNT {
            *self = Cursor { position: 0, round: self.round ^ 1 };
        }
    }
}

impl<const COUNT: u32> Stages<COUNT> {
    /// Shared memory of the barriers.
    pub const BYTES: u32 = 2 * COUNT * BARRIER_BYTES;

    /// The barriers at shared address `address`.
    #[inline(always)]
    pub fn new(address: u32) -> Self {
        Stages { address }
    }

    /// Makes the barriers, for `producers` arrivals that fill and `consumers` that release a stage.
    ///
    /// # Safety
    /// One thread calls it, before anybody uses them: see [`mbarrier::init`].
    #[inline(always)]
    pub unsafe fn init(&self, producers: u32, consumers: u32) {
        let mut stage = 0;
        while stage < COUNT {
            mbarrier::init(self.full(stage), producers);
            mbarrier::init(self.empty(stage), consumers);
            stage += 1;
        }
    }

    /// The full barrier of a stage.
    #[inline(always)]
    pub fn full(&self, stage: u32) -> u32 {
        self.address + stage * BARRIER_BYTES
    }

    #[inline(always)]
    fn empty(&self, stage: u32) -> u32 {
        self.address + (COUNT + stage) * BARRIER_BYTES
    }

    /// Producer: waits until the stage may be filled.
    ///
    /// # Safety
    /// The cursor goes round with the stages.
    #[inline(always)]
    pub unsafe fn acquire(&self, cursor: &Cursor<COUNT>) {
        mbarrier::wait(self.empty(cursor.stage()), cursor.parity() ^ 1);
    }

    /// Producer: the stage is filled by ordinary writes of this thread, made before.
    ///
    /// # Safety
    /// After [`Stages::acquire`].
    #[inline(always)]
    pub unsafe fn fill(&self, cursor: &Cursor<COUNT>) {
        mbarrier::arrive(self.full(cursor.stage()));
    }

    /// Consumer: waits until the stage is filled.
    ///
    /// # Safety
    /// The cursor goes round with the stages.
    #[inline(always)]
    pub unsafe fn wait(&self, cursor: &Cursor<COUNT>) {
        mbarrier::wait(self.full(cursor.stage()), cursor.parity());
    }

    /// Consumer: done with the stage. One arrival.
    ///
    /// # Safety
    /// After [`Stages::wait`] and the last use.
    #[inline(always)]
    pub unsafe fn release(&self, cursor: &Cursor<COUNT>) {
        mbarrier::arrive(self.empty(cursor.stage()));
    }

    /// Consumer: goes past `count` stages that it has no use for; this thread releases them, or does not.
    ///
    /// # Safety
    /// As [`Stages::wait`] and [`Stages::release`].
    #[inline(always)]
    pub unsafe fn pass(&self, cursor: &mut Cursor<COUNT>, count: u32, releases: bool) {
        let mut left = count;
        while left > 0 {
            // An arrival before the stage is filled would count for the round before.
            self.wait(cursor);
            if releases {
                self.release(cursor);
            }
            cursor.advance();
            left -= 1;
        }
    }
}
