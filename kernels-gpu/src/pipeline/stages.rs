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

use crate::arch::{mbarrier, warp};
use crate::geometry::size::{Count, StageCount};
use core::marker::PhantomData;

/// Bytes of one barrier.
pub const BARRIER_BYTES: u32 = crate::abi::layout::BARRIER_BYTES;

/// As many stages as `C` says: their full barriers, then their empty ones, at a shared address.
#[derive(Clone, Copy)]
pub struct Stages<C: StageCount> {
    address: u32,
    count: PhantomData<C>,
}

/// Which stage is next, and the parity of this round.
///
/// One register where there are a power of two, which then counts the stages gone through; otherwise two.
#[derive(Clone, Copy)]
pub struct Cursor<C: StageCount> {
    position: u32,
    round: u32,
    count: PhantomData<C>,
}

impl<C: StageCount> Cursor<C> {
    /// The first stage in the first round.
    #[inline(always)]
    pub fn start() -> Self {
        Self::at(0, 0)
    }

    #[inline(always)]
    fn at(position: u32, round: u32) -> Self {
        Cursor { position, round, count: PhantomData }
    }

    /// Stage, below their number.
    #[inline(always)]
    pub fn stage(&self) -> u32 {
        if C::COUNT.is_power_of_two() { self.position % C::COUNT } else { self.position }
    }

    #[inline(always)]
    fn parity(&self) -> u32 {
        if C::COUNT.is_power_of_two() { self.position / C::COUNT % 2 } else { self.round }
    }

    /// The stage before this one.
    #[inline(always)]
    pub fn previous(&self) -> Self {
        const { assert!(C::COUNT.is_power_of_two()) };
        Self::at(self.position.wrapping_sub(1), 0)
    }

    /// Goes where the cursor of other stages is, if there are as many of them; both have gone equally far.
    #[inline(always)]
    pub fn follow<D: StageCount>(&mut self, other: &Cursor<D>) {
        if C::COUNT == D::COUNT {
            *self = Self::at(other.position, other.round);
        }
    }

    /// Where stages of another number would be that are gone through in step with these.
    #[inline(always)]
    pub fn in_step<D: StageCount>(&self) -> Cursor<D> {
        const { assert!(C::COUNT.is_power_of_two() && D::COUNT.is_power_of_two()) };
        Cursor::at(self.position, 0)
    }

    /// Where the stage is of the one of `WAYS` whose turn this is, if they have one each and take turns.
    #[inline(always)]
    pub fn dealt<const WAYS: u32>(&self) -> Cursor<Count<1>> {
        const { assert!(C::COUNT.is_power_of_two()) };
        Cursor::at(self.position / WAYS, 0)
    }

    /// The next stage.
    #[inline(always)]
    pub fn advance(&mut self) {
        self.position += 1;
        if !C::COUNT.is_power_of_two() && self.position == C::COUNT {
            *self = Self::at(0, self.round ^ 1);
        }
    }
}

impl<C: StageCount> Stages<C> {
    /// Shared memory of the barriers.
    pub const BYTES: u32 = 2 * C::COUNT * BARRIER_BYTES;

    /// The barriers at shared address `address`.
    #[inline(always)]
    pub fn new(address: u32) -> Self {
        Stages { address, count: PhantomData }
    }

    /// The same stages, for the cursor of others of which there are as many.
    #[inline(always)]
    pub fn counted_by<D: StageCount>(&self) -> Stages<D> {
        const { assert!(C::COUNT == D::COUNT) };
        Stages::new(self.address)
    }

    /// Makes the barriers, for `producers` arrivals that fill and `consumers` that release a stage.
    ///
    /// # Safety
    /// One thread calls it, before anybody uses them: see [`mbarrier::init`].
    #[inline(always)]
    pub unsafe fn init(&self, producers: u32, consumers: u32) {
        let mut stage = 0;
        while stage < C::COUNT {
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
        self.address + (C::COUNT + stage) * BARRIER_BYTES
    }

    /// Producer: waits until the stage may be filled.
    ///
    /// # Safety
    /// The cursor goes round with the stages.
    #[inline(always)]
    pub unsafe fn acquire(&self, cursor: &Cursor<C>) {
        mbarrier::wait(self.empty(cursor.stage()), cursor.parity() ^ 1);
    }

    /// Producer: the stage is filled by ordinary writes of this thread, made before.
    ///
    /// # Safety
    /// After [`Stages::acquire`].
    #[inline(always)]
    pub unsafe fn fill(&self, cursor: &Cursor<C>) {
        mbarrier::arrive(self.full(cursor.stage()));
    }

    /// Consumer: waits until the stage is filled.
    ///
    /// # Safety
    /// The cursor goes round with the stages.
    #[inline(always)]
    pub unsafe fn wait(&self, cursor: &Cursor<C>) {
        mbarrier::wait(self.full(cursor.stage()), cursor.parity());
    }

    /// Consumer: done with the stage. One arrival.
    ///
    /// # Safety
    /// After [`Stages::wait`] and the last use.
    #[inline(always)]
    pub unsafe fn release(&self, cursor: &Cursor<C>) {
        mbarrier::arrive(self.empty(cursor.stage()));
    }

    /// Consumer: a warp is done with the stage, and with what its lanes have read themselves. One arrival.
    ///
    /// # Safety
    /// As [`Stages::release`]; all 32 lanes call it together.
    #[inline(always)]
    pub unsafe fn release_together(&self, lane: u32, cursor: &Cursor<C>) {
        warp::warp_sync();
        if lane == 0 {
            self.release(cursor);
        }
    }

    /// Consumer: goes past `count` stages that it has no use for; this thread releases them, or does not.
    ///
    /// # Safety
    /// As [`Stages::wait`] and [`Stages::release`].
    #[inline(always)]
    pub unsafe fn pass(&self, cursor: &mut Cursor<C>, count: u32, releases: bool) {
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
