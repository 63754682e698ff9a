//! Named barriers of a block.
//!
//! A barrier counts threads, warp by warp: a warp whose live lanes have all arrived counts as a whole
//! warp. Without an explicit count it awaits every warp that has live lanes.

use crate::isa::{BarrierOp, CLUSTER_BARRIER};

/// Barriers that a block has: 16 to name, and that of its cluster.
pub const BARRIERS: usize = CLUSTER_BARRIER as usize + 1;
const WARP: u32 = 32;

/// Lanes of a warp that arrived.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    pub warp: u32,
    pub mask: u32,
    /// Threads that it counts for.
    pub threads: u32,
}

/// A barrier with somebody at it.
#[derive(Clone, Debug, Default)]
pub struct Barrier {
    pub arrivals: Vec<Arrival>,
    /// Threads awaited, if an operand says so.
    pub count: Option<u32>,
    /// Threads whose predicate holds, and whether it holds for all and for any.
    pub population: u32,
    pub all: bool,
    pub any: bool,
}

/// What a completed barrier hands to those who wait.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    pub population: u32,
    pub all: bool,
    pub any: bool,
}

/// All barriers of a block.
#[derive(Clone, Debug, Default)]
pub struct Barriers {
    named: [Barrier; BARRIERS],
}

impl Barriers {
    /// Lanes arrive; `predicate` holds for some of them. An error says what disagrees.
    pub fn arrive(
        &mut self,
        id: u32,
        count: Option<u32>,
        arrival: Arrival,
        predicate: u32,
    ) -> Result<(), String> {
        let barrier = &mut self.named[id as usize % BARRIERS];
        if barrier.arrivals.is_empty() {
            *barrier = Barrier { count, all: true, ..Barrier::default() };
        } else if barrier.count != count {
            let name = |count: Option<u32>| count.map_or("all".to_string(), |n| n.to_string());
            return Err(format!(
                "barrier {id} awaits {} threads here, {} at the first arrival of this phase",
                name(count),
                name(barrier.count)
            ));
        }
        barrier.arrivals.push(arrival);
        barrier.population += predicate.count_ones();
        barrier.all &= predicate == arrival.mask;
        barrier.any |= predicate != 0;
        match count {
            Some(count) if barrier.threads() > count => Err(format!(
                "barrier {id} awaits {count} threads but {} have arrived",
                barrier.threads()
            )),
            _ => Ok(()),
        }
    }

    /// Completes a barrier whose threads are all there. `live` tells the live lanes of each warp.
    pub fn complete(&mut self, id: u32, live: &[u32]) -> Option<Outcome> {
        let barrier = &mut self.named[id as usize % BARRIERS];
        if barrier.arrivals.is_empty() {
            return None;
        }
        let done = match barrier.count {
            Some(count) => barrier.threads() >= count,
            None => live.iter().enumerate().all(|(warp, &live)| live & !barrier.lanes_of(warp) == 0),
        };
        if !done {
            return None;
        }
        barrier.arrivals.clear();
        Some(Outcome { population: barrier.population, all: barrier.all, any: barrier.any })
    }

    /// The barriers with somebody at them.
    pub fn waiting(&self) -> impl Iterator<Item = (usize, &Barrier)> {
        self.named.iter().enumerate().filter(|(_, barrier)| !barrier.arrivals.is_empty())
    }
}

impl Barrier {
    /// Threads that have arrived.
    pub fn threads(&self) -> u32 {
        self.arrivals.iter().map(|arrival| arrival.threads).sum()
    }

    fn lanes_of(&self, warp: usize) -> u32 {
        let of_warp = self.arrivals.iter().filter(|arrival| arrival.warp as usize == warp);
        of_warp.fold(0, |mask, arrival| mask | arrival.mask)
    }
}

/// Threads that lanes count for: a warp as a whole if no live lane is missing.
pub fn weight(mask: u32, live: u32) -> u32 {
    if live & !mask == 0 { WARP } else { mask.count_ones() }
}

/// Whether lanes wait at a barrier until it completes.
pub fn waits(op: BarrierOp) -> bool {
    op != BarrierOp::Arrive
}
