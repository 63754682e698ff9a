//! Grids that run together, each of which may start before the one before it has ended
//! (`griddepcontrol`).
//!
//! A grid starts once all blocks of the one before have allowed it, or ended. What orders its blocks with
//! those is what orders blocks of one grid, until a warp waits for the end of the grid before.

use super::cluster::Cluster;
use crate::exec::values::registers::LANES;
use crate::memory::view::GlobalView;
use crate::module::Kernel;
use crate::options::Launch;
use crate::shadow::global::{Actors, GlobalRace};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Actors of a warp: its threads, and the bulk stores of each lane.
pub const ACTORS: u32 = 1 + LANES as u32;

/// What all clusters of grids that run together share.
pub struct Chain<'a> {
    /// Global memory.
    pub global: GlobalView,
    /// What is known of accesses to global memory, if races are looked for.
    pub race: Mutex<GlobalRace>,
    /// Held from when a strong write to global memory is noted until it is done: see
    /// [`super::context::Context::turn`].
    pub turn: Mutex<()>,
    /// In order.
    pub grids: Vec<Grid<'a>>,
}

/// One of them, and how far it has come.
pub struct Grid<'a> {
    /// What it runs,
    pub kernel: &'a Kernel,
    /// and in which shape.
    pub launch: Launch<'a>,
    /// Its clusters.
    pub cluster: Cluster,
    /// Who accesses global memory.
    pub actors: Actors,
    /// How many clusters it has,
    pub clusters: u64,
    /// and how many all grids before.
    pub first_cluster: u64,
    /// Clusters that have allowed the next grid to start, or ended.
    allowed: AtomicU64,
    /// Clusters that have ended.
    ended: AtomicU64,
    /// Whether a block has come to `griddepcontrol.wait`, or a fault kept it from that.
    waits: AtomicBool,
}

impl<'a> Chain<'a> {
    /// Grids of which nothing has run.
    pub fn new(launches: &[(&'a Kernel, Launch<'a>, Cluster)], global: GlobalView) -> Self {
        let (mut first, mut first_cluster) = (0u32, 0);
        let mut grids = Vec::new();
        for &(kernel, launch, cluster) in launches {
            let (warps, clusters) = (cluster.all_warps(), cluster.count(&launch));
            let actors = Actors { first, of_cluster: warps * ACTORS, warps, of_block: cluster.warps };
            let of = (kernel, launch, cluster, actors);
            grids.push(Grid::new(of, [clusters, first_cluster]));
            first = first.wrapping_add((clusters as u32).wrapping_mul(actors.of_cluster));
            first_cluster += clusters;
        }
        let race = Mutex::new(GlobalRace::new(grids.iter().map(|grid| grid.actors).collect()));
        Chain { global, race, turn: Mutex::new(()), grids }
    }

    /// The grid of an actor, and its place.
    pub fn grid_of_actor(&self, actor: u32) -> (usize, &Grid<'a>) {
        let behind = self.grids.partition_point(|grid| grid.actors.first <= actor);
        let place = behind.saturating_sub(1);
        (place, &self.grids[place])
    }

    /// The place of the grid of a cluster, counted through all grids; none if there are fewer.
    pub fn grid_of_cluster(&self, number: u64) -> Option<usize> {
        self.grids.iter().position(|grid| number < grid.first_cluster + grid.clusters)
    }

    /// Whether blocks of a grid may start, once all of those before have.
    pub fn may_start(&self, place: usize) -> bool {
        self.before(place).is_none_or(|grid| grid.allowed.load(Ordering::Acquire) >= grid.clusters)
    }

    /// Whether nothing is before a grid that still runs.
    pub fn has_ended_before(&self, place: usize) -> bool {
        self.before(place).is_none_or(|grid| grid.ended.load(Ordering::Acquire) >= grid.clusters)
    }

    /// The first actor whose end a block of a grid does not know of as it starts. The grid before it may
    /// have written nothing yet; but what has ended before that one let it start is there.
    pub fn unknown_at_start(&self, place: usize) -> u32 {
        match place.checked_sub(1) {
            Some(before) if self.has_ended_before(before) => self.grids[before].actors.first,
            _ => 0,
        }
    }

    /// The grid before.
    fn before(&self, place: usize) -> Option<&Grid<'a>> {
        self.grids.get(place.checked_sub(1)?)
    }
}

impl<'a> Grid<'a> {
    /// One with so many clusters, behind so many of grids before.
    fn new(
        (kernel, launch, cluster, actors): (&'a Kernel, Launch<'a>, Cluster, Actors),
        [clusters, first_cluster]: [u64; 2],
    ) -> Self {
        let [allowed, ended] = [0; 2].map(AtomicU64::new);
        let waits = AtomicBool::new(false);
        Grid { kernel, launch, cluster, actors, clusters, first_cluster, allowed, ended, waits }
    }

    /// One more cluster allows the next grid to start; whether all have now.
    pub fn allow_next(&self) -> bool {
        self.allowed.fetch_add(1, Ordering::AcqRel) + 1 == self.clusters
    }

    /// One more cluster has ended; whether all have now.
    pub fn end_cluster(&self) -> bool {
        self.ended.fetch_add(1, Ordering::AcqRel) + 1 == self.clusters
    }

    /// A block has come to its wait for the grid before, or never will.
    pub fn note_wait(&self) {
        self.waits.store(true, Ordering::Release);
    }

    /// Whether a block has.
    pub fn waits(&self) -> bool {
        self.waits.load(Ordering::Acquire)
    }
}
