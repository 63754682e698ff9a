//! Named barriers of the blocks of a cluster, and the barrier of the cluster.
//!
//! A barrier counts threads, warp by warp: a warp whose live lanes have all arrived counts as a whole
//! warp. Without an explicit count it awaits every warp that has live lanes.

use crate::isa::{BARRIERS, BarrierOp};

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

/// All barriers of the blocks of a cluster: those of a block behind those of the one before.
#[derive(Clone, Debug, Default)]
pub struct Barriers {
    named: Vec<Barrier>,
    /// That of the cluster.
    pub cluster: ClusterBarrier,
}

/// Where lanes of a warp are at the barrier of the cluster.
#[derive(Clone, Copy, Debug, Default)]
pub struct Turnout {
    /// They have arrived in the current phase.
    pub arrived: u32,
    /// They arrived in the last one, and have not waited for it.
    pub behind: u32,
}

/// The barrier of a cluster. Lanes that have exited need not arrive.
#[derive(Clone, Debug, Default)]
pub struct ClusterBarrier {
    /// Of each warp.
    pub warps: Vec<Turnout>,
    /// Phases completed.
    pub phase: u32,
}

impl ClusterBarrier {
    /// Lanes of a warp arrive. An error says what is wrong with that.
    pub fn arrive(&mut self, warp: u32, lanes: u32) -> Result<(), String> {
        let turnout = &mut self.warps[warp as usize];
        let again = lanes & (turnout.arrived | turnout.behind);
        if again != 0 {
            return Err(format!(
                "lanes {again:#010x} arrive at the cluster's barrier again and have not waited"
            ));
        }
        turnout.arrived |= lanes;
        Ok(())
    }

    /// Completes the phase if all lanes are there that have not exited.
    pub fn complete(&mut self, live: impl Iterator<Item = u32>) -> bool {
        let missing =
            live.zip(&self.warps).fold(0, |all, (live, turnout)| all | live & !turnout.arrived);
        if missing != 0 || self.warps.iter().all(|turnout| turnout.arrived == 0) {
            return false;
        }
        for turnout in &mut self.warps {
            *turnout = Turnout { arrived: 0, behind: turnout.behind | turnout.arrived };
        }
        self.phase += 1;
        true
    }

    /// Threads that have arrived in the current phase.
    pub fn threads(&self) -> u32 {
        self.warps.iter().map(|turnout| turnout.arrived.count_ones()).sum()
    }
}

impl Barriers {
    /// Those of so many blocks and warps.
    pub fn new(blocks: u32, warps: u32) -> Self {
        let cluster = ClusterBarrier { warps: vec![Turnout::default(); warps as usize], phase: 0 };
        Barriers { named: vec![Barrier::default(); (blocks * BARRIERS) as usize], cluster }
    }

    /// Lanes arrive; `predicate` holds for some of them. An error says what disagrees.
    pub fn arrive(
        &mut self,
        id: u32,
        count: Option<u32>,
        arrival: Arrival,
        predicate: u32,
    ) -> Result<(), String> {
        let barrier = &mut self.named[id as usize];
        let id = id % BARRIERS;
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

    /// Completes a barrier whose threads are all there. `live` tells the live lanes of the block's warps, the
    /// first of which has number `first`.
    pub fn complete(&mut self, id: u32, live: &[u32], first: u32) -> Option<Outcome> {
        let barrier = &mut self.named[id as usize];
        if barrier.arrivals.is_empty() {
            return None;
        }
        let done = match barrier.count {
            Some(count) => barrier.threads() >= count,
            None => live
                .iter()
                .enumerate()
                .all(|(warp, &live)| live & !barrier.lanes_of(first as usize + warp) == 0),
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
