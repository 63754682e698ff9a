//! Accesses of the blocks of a cluster to each other's shared memory, which has to be there: a block must
//! have started before, and must not end before it knows that they are done.

use super::context::Context;
use crate::report::FindingKind;
use crate::space::RANK_SHIFT;
use foldhash::fast::FixedState;
use std::collections::HashMap;

/// The last access of a warp by an instruction to the shared memory of a block.
#[derive(Clone, Copy, Debug)]
struct Last {
    /// Who must be known to have come how far: the warp, or what completes at a memory barrier.
    actor: u32,
    clock: u32,
    lane: u32,
}

/// Accesses to the shared memory of other blocks: by the block's rank, the warp and the instruction.
#[derive(Debug, Default)]
pub struct Remote {
    accesses: HashMap<(u32, u32, u32), Last, FixedState>,
}

impl Remote {
    /// There were none.
    pub fn clear(&mut self) {
        self.accesses.clear();
    }
}

impl Context<'_> {
    /// A lane's instruction accesses the shared memory of another block of the cluster; whether that has
    /// ended.
    #[cold]
    pub fn remote_access(&mut self, (pc, warp, lane): (u32, u32, u32), rank: u32) -> bool {
        if self.ended >> rank & 1 != 0 {
            return true;
        }
        let Some(race) = &self.race else { return false };
        let last = Last { actor: warp, clock: race.clock(warp), lane };
        let starts = race.knows_of_start(warp, rank);
        self.remote.accesses.insert((rank, warp, pc), last);
        if !starts {
            self.report(FindingKind::SharedLifetime, pc, warp, lane, |context| {
                let [x, y, z] = context.block_at(rank);
                format!(
                    "an access to the shared memory of block ({x}, {y}, {z}), which may not have started: no \
                     barrier of the cluster, and nothing else of that block, comes before it"
                )
            });
        }
        false
    }

    /// The access is done when the current phase of a memory barrier of that block is complete.
    pub fn remote_completes(&mut self, (pc, warp, lane): (u32, u32, u32), barrier: u32) {
        let rank = barrier >> RANK_SHIFT;
        if rank == self.environment.cluster.rank(warp) {
            return;
        }
        let phase = self.mbarriers.get(barrier).map_or(0, |barrier| barrier.phase);
        if let Some(race) = &mut self.race {
            let last = Last { actor: race.loads_of(barrier), clock: phase + 1, lane };
            self.remote.accesses.insert((rank, warp, pc), last);
        }
    }

    /// All threads of a block have exited: what others do with its shared memory must be known to have been
    /// done.
    pub fn remote_end(&mut self, rank: u32) {
        let Some(race) = &self.race else { return };
        let late = |&(&(of, ..), last): &(&(u32, u32, u32), &Last)| {
            of == rank && !race.block_knows(rank, last.actor, last.clock)
        };
        let mut late: Vec<_> =
            self.remote.accesses.iter().filter(late).map(|(&key, &last)| (key, last)).collect();
        late.sort_by_key(|&(key, _)| key);
        for ((_, warp, pc), Last { lane, .. }) in late {
            self.report(FindingKind::SharedLifetime, pc, warp, lane, |context| {
                let [x, y, z] = context.block_at(rank);
                format!(
                    "an access to the shared memory of block ({x}, {y}, {z}), which may have ended: nothing, \
                     such as a barrier of the cluster, keeps it until then"
                )
            });
        }
    }
}
