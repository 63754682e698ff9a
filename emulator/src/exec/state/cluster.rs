//! The blocks of a cluster: where they are in the grid, which warps are theirs, and which bytes of shared
//! memory.
//!
//! Blocks of a cluster run together, so a cluster is what the emulator runs: their warps are numbered one
//! block after the other, and their shared memory is one piece. A launch without clusters has clusters of
//! one block.

use crate::options::Launch;
use crate::space::{RANK_SHIFT, SHARED_BASE};

/// Blocks of a cluster on any GPU.
pub const MAX_BLOCKS: u32 = 16;
/// From the shared memory of one block to that of the next there is a multiple of this.
const ALIGN: u32 = 1024;
/// A block takes a multiple of so many numbers of warps, so that warpgroups do not cross blocks.
const WARPS: u32 = 4;

/// The clusters of a launch.
#[derive(Clone, Copy, Debug)]
pub struct Cluster {
    /// Blocks by dimension,
    pub dims: [u32; 3],
    /// and in all.
    pub blocks: u32,
    /// Whether the launch or the kernel asks for clusters.
    pub is_explicit: bool,
    /// Numbers of warps that each block takes.
    pub warps: u32,
    /// Bytes of shared memory of each block.
    pub bytes: u32,
    /// From the first byte of a block to that of the next.
    pitch: u32,
}

impl Cluster {
    /// Those of a launch of blocks with so many threads and so many bytes of shared memory.
    pub fn new(dims: [u32; 3], is_explicit: bool, threads: u32, bytes: u32) -> Self {
        let blocks = dims.iter().product();
        let warps = threads.div_ceil(32);
        let warps = if blocks == 1 { warps } else { warps.next_multiple_of(WARPS) };
        let pitch = bytes.max(1).next_multiple_of(ALIGN);
        Cluster { dims, blocks, is_explicit, warps, bytes, pitch }
    }

    /// Whether a cluster is one block.
    #[inline(always)]
    pub fn is_one(&self) -> bool {
        self.blocks == 1
    }

    /// Numbers of warps of a cluster.
    pub fn all_warps(&self) -> u32 {
        self.blocks * self.warps
    }

    /// Bytes of shared memory of a cluster.
    pub fn all_bytes(&self) -> u32 {
        (self.blocks - 1) * self.pitch + self.bytes
    }

    /// The rank of a warp's block.
    #[inline(always)]
    pub fn rank(&self, warp: u32) -> u32 {
        if self.is_one() { 0 } else { warp / self.warps }
    }

    /// The number of a warp in its block.
    #[inline(always)]
    pub fn in_block(&self, warp: u32) -> u32 {
        if self.is_one() { warp } else { warp % self.warps }
    }

    /// The warps of a block.
    pub fn warps_of(&self, rank: u32) -> std::ops::Range<usize> {
        (rank * self.warps) as usize..((rank + 1) * self.warps) as usize
    }

    /// Where a block's shared memory starts in that of the cluster.
    #[inline(always)]
    pub fn start(&self, rank: u32) -> u32 {
        rank * self.pitch
    }

    /// The rank of the block whose shared memory an offset in that of the cluster belongs to.
    #[inline(always)]
    pub fn rank_of_offset(&self, offset: u32) -> u32 {
        if self.is_one() { 0 } else { offset / self.pitch }
    }

    /// The offset in the cluster's shared memory of an address that lies there.
    #[inline(always)]
    pub fn offset(&self, address: u32) -> u32 {
        if self.is_one() {
            return address - SHARED_BASE;
        }
        self.start(address >> RANK_SHIFT) + in_block(address) - SHARED_BASE
    }

    /// The other way round.
    #[inline(always)]
    pub fn address(&self, offset: u32) -> u32 {
        let rank = self.rank_of_offset(offset);
        (rank << RANK_SHIFT) + SHARED_BASE + (offset - self.start(rank))
    }

    /// Clusters of a grid, by dimension.
    pub fn grid(&self, launch: &Launch<'_>) -> [u32; 3] {
        std::array::from_fn(|dimension| launch.grid[dimension] / self.dims[dimension])
    }

    /// Clusters of a grid.
    pub fn count(&self, launch: &Launch<'_>) -> u64 {
        self.grid(launch).iter().map(|&size| u64::from(size)).product()
    }

    /// The coordinates of a cluster by its number in the grid.
    pub fn at(&self, launch: &Launch<'_>, number: u64) -> [u32; 3] {
        let [x, y, _] = self.grid(launch).map(u64::from);
        [(number % x) as u32, (number / x % y) as u32, (number / x / y) as u32]
    }

    /// The coordinates of a block in its cluster by its rank.
    pub fn block_in_cluster(&self, rank: u32) -> [u32; 3] {
        let [x, y, _] = self.dims;
        [rank % x, rank / x % y, rank / x / y]
    }

    /// The coordinates of a block in the grid by its cluster's number and its rank.
    pub fn block_at(&self, launch: &Launch<'_>, number: u64, rank: u32) -> [u32; 3] {
        let (cluster, block) = (self.at(launch, number), self.block_in_cluster(rank));
        std::array::from_fn(|dimension| cluster[dimension] * self.dims[dimension] + block[dimension])
    }
}

/// An address without the rank of its block.
#[inline(always)]
pub fn in_block(address: u32) -> u32 {
    address & ((1 << RANK_SHIFT) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_a_cluster_are_neighbours_and_their_bytes_have_addresses_of_their_own() {
        let launch = Launch::new([6, 4, 1], [96, 1, 1], &[]);
        let cluster = Cluster::new([2, 2, 1], true, 96, 1500);
        assert_eq!(
            (cluster.count(&launch), cluster.all_warps(), cluster.all_bytes()),
            (6, 16, 3 * 2048 + 1500)
        );
        let of_fourth: Vec<_> = (0..4).map(|rank| cluster.block_at(&launch, 4, rank)).collect();
        assert_eq!(of_fourth, [[2, 2, 0], [3, 2, 0], [2, 3, 0], [3, 3, 0]]);
        for offset in [0, 1499, 2048, 3 * 2048 + 7] {
            assert_eq!(cluster.offset(cluster.address(offset)), offset);
        }
        assert_eq!(cluster.address(2048 + 5), 1 << RANK_SHIFT | (SHARED_BASE + 5));
        assert_eq!((cluster.rank(7), cluster.in_block(7)), (1, 3));
    }
}
