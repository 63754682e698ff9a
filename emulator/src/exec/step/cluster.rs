//! What concerns all blocks of a cluster: its barrier, and whose shared memory an address is in.

use super::{Event, Next, Runner};
use crate::exec::state::cluster::in_block;
use crate::exec::state::context::Stop;
use crate::exec::state::warp::State;
use crate::exec::values::registers::{LANES, lanes};
use crate::isa::{FLAG_ALIGNED, FLAG_RELAXED, Instruction};
use crate::report::FindingKind;
use crate::space::{RANK_SHIFT, SHARED_WINDOW, Space};

impl Runner<'_, '_> {
    /// `barrier.cluster.arrive`.
    pub fn cluster_arrive(&mut self, i: &Instruction, m: u32) -> Result<Next, Stop> {
        if i.has(FLAG_ALIGNED) && self.warp.live & !m != 0 {
            return self.divergent_barrier(m);
        }
        let (warp, phase) = (self.warp.id, self.context.barriers.cluster.phase);
        if let Err(message) = self.context.barriers.cluster.arrive(warp, m) {
            self.report(FindingKind::BarrierDivergence, m, message);
            return Err(Stop);
        }
        if let Some(race) = &mut self.context.race {
            race.arrive_at_cluster((warp, m), phase, i.has(FLAG_RELAXED));
        }
        self.pc += 1;
        self.park(State::Ready);
        Ok(Next::Leave(Event::Cluster))
    }

    /// `barrier.cluster.wait`.
    pub fn cluster_wait(&mut self, i: &Instruction, m: u32) -> Result<Next, Stop> {
        if i.has(FLAG_ALIGNED) && self.warp.live & !m != 0 {
            return self.divergent_barrier(m);
        }
        let warp = self.warp.id;
        let barrier = &mut self.context.barriers.cluster;
        let (phase, turnout) = (barrier.phase, &mut barrier.warps[warp as usize]);
        let missing = m & !(turnout.arrived | turnout.behind);
        if missing != 0 {
            let message = format!(
                "lanes {missing:#010x} wait for the cluster's barrier and have not arrived there"
            );
            self.report(FindingKind::BarrierDivergence, missing, message);
            return Err(Stop);
        }
        if m & turnout.arrived == 0 {
            turnout.behind &= !m;
            if let Some(race) = &mut self.context.race {
                race.wait_for_cluster(warp, m, phase);
            }
            return Ok(Next::Advance);
        }
        let rest = self.mask & !m;
        self.mask = m;
        self.park(State::Cluster);
        if rest != 0 {
            self.mask = rest;
            self.pc += 1;
            self.park(State::Ready);
        }
        // Others may have exited since it was looked.
        Ok(Next::Leave(Event::Cluster))
    }

    /// Addresses in row `a`, of 64 bits when `count` is 2.
    fn shared_addresses(&self, i: &Instruction) -> [u64; LANES] {
        match i.count {
            2 => *self.warp.registers.row64(i.a),
            _ => self.warp.registers.row32(i.a).map(u64::from),
        }
    }

    /// The rank of the block in whose shared memory an address lies, generic or not; none if it lies in none.
    fn rank_of(&self, address: u64) -> Option<u32> {
        let offset = match Space::of_address(address) {
            Some(Space::Shared) => address - SHARED_WINDOW,
            _ => address,
        };
        let rank = u32::try_from(offset >> RANK_SHIFT).ok()?;
        (rank < self.context.environment.cluster.blocks).then_some(rank)
    }

    /// The ranks of the blocks that addresses belong to.
    fn ranks(&mut self, i: &Instruction, m: u32) -> Result<[u32; LANES], Stop> {
        let addresses = self.shared_addresses(i);
        let mut ranks = [0; LANES];
        for lane in lanes(m) {
            let Some(rank) = self.rank_of(addresses[lane]) else {
                let message =
                    format!("{:#x} is no address in shared memory of the cluster", addresses[lane]);
                self.report(FindingKind::InvalidOperand, 1 << lane, message);
                return Err(Stop);
            };
            ranks[lane] = rank;
        }
        Ok(ranks)
    }

    /// `mapa`.
    pub fn map_address(&mut self, i: &Instruction, m: u32) -> Result<(), Stop> {
        self.ranks(i, m)?;
        let (addresses, blocks) = (self.shared_addresses(i), self.context.environment.cluster.blocks);
        let ranks = *self.warp.registers.row32(i.b);
        if let Some(lane) = lanes(m).find(|&lane| ranks[lane] >= blocks) {
            let message = match blocks {
                1 => format!("block {} of a cluster of one block", ranks[lane]),
                _ => format!("block {} of a cluster of {blocks} blocks", ranks[lane]),
            };
            self.report(FindingKind::InvalidOperand, 1 << lane, message);
            return Err(Stop);
        }
        let mapped: [u64; LANES] = std::array::from_fn(|lane| {
            let (high, low) = (addresses[lane] >> 32 << 32, in_block(addresses[lane] as u32));
            high | u64::from(ranks[lane].wrapping_shl(RANK_SHIFT) | low)
        });
        match i.count {
            2 => self.warp.registers.set64(i.d, m, &mapped),
            _ => self.warp.registers.set32(i.d, m, &mapped.map(|address| address as u32)),
        }
        Ok(())
    }

    /// `getctarank`.
    pub fn block_rank(&mut self, i: &Instruction, m: u32) -> Result<(), Stop> {
        let ranks = self.ranks(i, m)?;
        self.warp.registers.set32(i.d, m, &ranks);
        Ok(())
    }

    /// `isspacep.shared::cta`.
    pub fn is_own_shared(&mut self, i: &Instruction, m: u32) {
        let own = self.context.environment.cluster.rank(self.warp.id);
        let addresses = *self.warp.registers.row64(i.a);
        let is_own = |&lane: &usize| {
            let address = addresses[lane];
            Space::of_address(address) == Some(Space::Shared) && self.rank_of(address) == Some(own)
        };
        let inside = lanes(m).filter(is_own).fold(0, |mask, lane| mask | 1 << lane);
        self.warp.registers.set_predicate(i.d, m, inside);
    }
}
